"""`et discover`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, cast

import torch
import typer
from torch import Tensor

from equivariant_transformers.cli import console
from equivariant_transformers.data import from_folder
from equivariant_transformers.data.tree import scan
from equivariant_transformers.discovery import Discovery, Found, cosine, discover
from equivariant_transformers.discovery.search import EXAMPLES
from equivariant_transformers.geometry.derivation.algorithm import derive
from equivariant_transformers.geometry.groups import Group
from equivariant_transformers.training.job import find_device


def discover_groups(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of images, in a subfolder per class or not.")
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="PNG to draw the flow lines over a sample image to.")
    ] = Path("discovery.png"),
    family: Annotated[
        str, typer.Option(metavar="projective|polynomial", help="3x3 generators, or cubic vector fields.")
    ] = "projective",
    count: Annotated[int, typer.Option(min=1, help="Number of groups to find one after the other.")] = 1,
    labels: Annotated[
        bool, typer.Option("--labels", help="Use the subfolders as classes whose images show the same content.")
    ] = False,
    examples: Annotated[
        int | None,
        typer.Option(min=20, help="Number of images, drawn at random; 10,000 by default, or 1,000 with --labels."),
    ] = None,
    size: Annotated[int, typer.Option(min=8, max=128, help="Side in pixels that the images are resized to.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for the choice of the images.")] = 0,
    device: Annotated[str, typer.Option(help="A torch device, or auto: the GPU if there is one.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find the one-parameter group that moves the images of a folder, and print the layer that undoes it.

    Each image is moved by its own unknown amount. The search needs about a thousand images, and takes a minute for
    10,000 on one CPU core. A group is printed if a further small motion along it is less visible than along all other
    directions, and if two halves of the images, searched independently, give the same group. With --labels, the images
    of a subfolder show the same content, as digits do, and a few hundred images are enough. The same command resumes an
    interrupted search from the .state file beside the picture.
    """
    with console.usage():
        where = find_device(device)
        scan(folder, labels=labels)
    with console.loading() as loading:
        part = from_folder(
            folder, size=size, channels=1, validation=0.0, test=0.0, labels=labels, progress=loading
        ).train
        examples = examples or EXAMPLES[labels]
        chosen = torch.randperm(len(part), generator=torch.Generator().manual_seed(seed))[:examples]
        images = part.images[chosen].to(where).float() / 255
        with console.usage():
            result = discover(
                images,
                part.labels[chosen].to(where) if labels else None,
                family=cast(Literal["projective", "polynomial"], family),
                count=count,
                examples=examples,
                seed=seed,
                progress=loading,
                state=out.with_suffix(".state"),
            )
    if result.groups:
        _draw(result.groups[0], images[0].cpu(), out)
    if as_json:
        console.print_json({"groups": [_figures(found) for found in result.found], "picture": _picture(result, out)})
        return
    console.say(str(result))
    for found in result.found:
        _describe(found)
    if result.groups:
        console.say(f"flow lines: {out}")


def _describe(found: Found) -> None:
    """Print the generator, the formulas of the chart if there are any, and the code that uses the group."""
    group = found.group
    if group.generator is None:
        console.say(f"vector field of {group.name}: {getattr(group.flow, 'vector_field', '')}")
        return
    rows = [[round(entry, 4) + 0.0 for entry in row] for row in group.generator]
    console.say(f"generator of {group.name}: {rows}")
    simple = found.simplified
    assert simple.generator is not None
    entries = [[round(entry, 4) + 0.0 for entry in row] for row in simple.generator]
    formulas = derive(simple).formulas
    if formulas and simple is not group:
        console.say(f"canonical coordinates of the rounded generator (cosine {cosine(simple, group):.3f}):\n{formulas}")
    console.say(f"  group = et.Group.from_generator({entries})")
    console.say("  layer = et.EquivariantTransformer(et.derive(group), in_channels=1)")


def _figures(found: Found) -> dict[str, Any]:
    name, similar = found.nearest
    return {
        "generator": found.group.generator,
        "theta": None if found.theta is None else list(found.theta),
        "confidence": found.confidence,
        "explained": found.explained,
        "agreement": found.agreement,
        "nearest": {"name": name, "cosine": similar},
    }


def _picture(result: Discovery, out: Path) -> str | None:
    return str(out) if result.groups else None


def _draw(group: Group, image: Tensor, out: Path) -> None:
    from matplotlib.figure import Figure

    from equivariant_transformers import viz

    figure = Figure(figsize=(4, 4), layout="constrained")
    axes = figure.add_subplot()
    viz.show(image, axes)
    viz.flow_lines(group, axes)
    out.parent.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        figure.savefig(out, dpi=150)
