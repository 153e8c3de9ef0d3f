"""`et discover`: generator, formula, picture and code for the group that moves a folder of images."""

import json

import pytest
import torch
from glyphs import glyphs
from PIL import Image

import equivariant_transformers as et
from equivariant_transformers import cli
from equivariant_transformers.geometry.motion import group_warp


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four classes of glyphs, sheared along x."""
    path = tmp_path_factory.mktemp("sheared")
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 4
    theta = 2 * torch.rand(60, generator=generator) - 1
    warp = et.Warp.projective(torch.eye(3) + 0.03 * torch.randn(60, 3, 3, generator=generator))
    images = (warp @ group_warp(et.group("x_shear"), theta)).image(glyphs(96)[labels], size=(32, 32))
    for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        (path / str(label)).mkdir(exist_ok=True)
        Image.fromarray((255 * image[0]).byte().numpy()).save(path / str(label) / f"{number}.png")
    return path


def run(capsys, *words):
    code = cli.main([str(word) for word in words])
    return code, capsys.readouterr()


def test_prints_the_generator_the_coordinates_and_the_code(folder, tmp_path, capsys):
    picture = tmp_path / "flow.png"
    code, said = run(capsys, "discover", folder, "--labels", "--out", picture)
    assert code == 0
    assert "nearest known group x_shear" in said.out
    assert "rho_1 = " in said.out
    assert "et.EquivariantTransformer(et.derive(group)" in said.out
    with Image.open(picture) as drawn:
        assert drawn.size == (600, 600)
    line = next(line for line in said.out.splitlines() if line.startswith("  group = "))
    space = {"et": et}
    exec(line.strip(), space)
    assert et.derive(space["group"]).formulas


def test_prints_json(folder, tmp_path, capsys):
    code, said = run(capsys, "discover", folder, "--labels", "--out", tmp_path / "flow.png", "--json")
    assert code == 0
    (found,) = json.loads(said.out)["groups"]
    assert found["nearest"]["name"] == "x_shear"


def test_refuses_a_folder_of_few_images_and_an_unknown_family(folder, tmp_path, capsys):
    code, said = run(capsys, "discover", tmp_path / "nowhere")
    assert (code, "is not a folder" in said.err) == (2, True)
    code, said = run(capsys, "discover", folder / "0")
    assert (code, "at least 20, got 15" in said.err) == (2, True)
    code, said = run(capsys, "discover", folder, "--family", "affine")
    assert (code, "projective" in said.err) == (2, True)
