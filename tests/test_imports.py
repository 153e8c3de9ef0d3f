"""Imports go one way only, and importing the package costs little more than importing torch."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

import equivariant_transformers as et

PACKAGE = "equivariant_transformers"
ROAD = {  # module -> what it may import
    "exponential": set(),
    "projective": set(),
    "buffers": set(),
    "groups": {"exponential", "projective"},
    "coordinates": {"projective"},
    "charts": {"coordinates", "groups", "projective"},
    "derivation": {"charts", "coordinates", "exponential", "groups", "projective"},
    "derive": {"charts", "derivation", "groups"},
    "resampling": {"projective"},
    "kernels": set(),
    "warp": {"kernels", "projective", "resampling"},
    "conv": {"projective"},
    "features": {"conv", "kernels"},
    "pose": {"buffers", "charts", "conv", "features", "projective"},
    "views": {"groups", "resampling", "warp"},
    "layers": {"buffers", "charts", "groups", "pose", "projective", "resampling", "views", "warp"},
    "stages": {"layers"},
    "measurements": set(),
    "probes": set(),
    "audit": {"groups", "layers", "measurements", "resampling", "warp"},
    "models": {"charts", "conv", "features", "groups", "layers", "pose", "views"},
    "legacy": {"groups", "models", "warp"},
    "viz": {"charts", "layers", "measurements", "stages", "warp"},
    "files": set(),
    "data": {"files", "groups", "projective", "resampling", "warp"},
    "checkpoint": {"files"},
    "training": {"checkpoint"},
    "classifier": {"checkpoint", "data", "layers", "models", "training", "views"},
    "pretrained": {"classifier", "groups"},
    "export": {"classifier", "files", "layers"},
    "hub": {"classifier", "data", "pretrained"},
    "demo": {"charts", "classifier", "data", "groups", "layers", "projective", "stages", "warp"},
    "experiments": {
        "audit",
        "charts",
        "classifier",
        "data",
        "files",
        "groups",
        "layers",
        "models",
        "pose",
        "pretrained",
        "training",
        "viz",
    },
    "cli": {
        "audit",
        "charts",
        "checkpoint",
        "classifier",
        "data",
        "demo",
        "experiments",
        "export",
        "files",
        "groups",
        "layers",
        "measurements",
        "models",
        "pose",
        "pretrained",
        "probes",
        "training",
        "views",
        "viz",
    },
    "__main__": {"cli"},
}


def imported_modules(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(PACKAGE + "."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith(PACKAGE + "."))


def test_imports_go_one_way():
    root = Path(et.__file__).parent
    files = [path for path in root.rglob("*.py") if path != root / "__init__.py"]
    modules = {path: path.relative_to(root).with_suffix("").parts[0] for path in files}
    assert set(modules.values()) == set(ROAD)
    for path, module in modules.items():
        assert set(imported_modules(path)) <= ROAD[module] | ({module} if path.parent != root else set()), path
    order = list(ROAD)
    for module, allowed in ROAD.items():
        assert all(order.index(other) < order.index(module) for other in allowed), module


def test_the_public_names_exist():
    assert sorted(et.__all__) == sorted(set(et.__all__))
    for name in et.__all__:
        assert getattr(et, name) is not None


def test_importing_loads_nothing_heavy():
    heavy = ["huggingface_hub", "matplotlib", "onnxruntime", "sympy", "torchvision"]
    unwanted = {*heavy, f"{PACKAGE}.classifier", f"{PACKAGE}.data", f"{PACKAGE}.training"}
    code = f"import torch, sys; old = {{*sys.modules}}; import {PACKAGE}; print({unwanted} & ({{*sys.modules}} - old))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_data_sets_are_loaded_when_asked_for():
    code = f"import {PACKAGE} as et, sys; et.data.load; print('PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        et.nonsense  # noqa: B018


def test_importing_is_nearly_as_fast_as_torch():
    def seconds(module):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
        return time.perf_counter() - start

    seconds("torch")  # fills the file cache
    ratios = [seconds(PACKAGE) / seconds("torch") for _ in range(3)]
    assert min(ratios) < 1.3
