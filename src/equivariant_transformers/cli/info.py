"""`et info`."""

from __future__ import annotations

import platform
from typing import Annotated, Any

import torch
import typer

import equivariant_transformers as et
from equivariant_transformers.cli import console
from equivariant_transformers.cli.presets import PRESETS
from equivariant_transformers.data import DATASETS, cache
from equivariant_transformers.models import NETWORKS


def show_info(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print versions, devices, data sets, and all names."""
    found = gather()
    if as_json:
        console.print_json(found)
        return
    rows = [[name, ", ".join(value) if isinstance(value, list) else str(value)] for name, value in found.items()]
    console.table("", "", rows=rows)


def gather() -> dict[str, Any]:
    """Return the information that `et info` prints, by name."""
    gpus = [f"cuda:{index} ({torch.cuda.get_device_name(index)})" for index in range(torch.cuda.device_count())]
    return {
        "equivariant_transformers": et.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "devices": [f"cpu ({torch.get_num_threads()} threads)", *gpus],
        "cache": str(cache.root()),
        "data sets": list(DATASETS),
        "downloaded": [name for name, source in DATASETS.items() if source.present],
        "presets": list(PRESETS),
        "groups": list(et.GROUPS),
        "charts": list(et.CHARTS),
        "networks": list(NETWORKS),
        "predictors": list(et.PREDICTORS),
        "pretrained": list(et.list_pretrained()),
    }
