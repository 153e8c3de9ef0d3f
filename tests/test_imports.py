"""Importing the package costs little more than importing torch; `make lint` checks that imports go one way."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

import equivariant_transformers as et

PACKAGE = "equivariant_transformers"


def test_the_public_names_exist():
    assert sorted(et.__all__) == sorted(set(et.__all__))
    for name in et.__all__:
        assert getattr(et, name) is not None


def test_importing_loads_nothing_heavy():
    heavy = ["huggingface_hub", "matplotlib", "onnxruntime", "sympy", "torchvision"]
    packages = ["cli", "data", "demo", "discovery", "experiments", "hub", "models", "training", "viz"]
    unwanted = {*heavy, *(f"{PACKAGE}.{name}" for name in packages)}
    code = f"import torch, sys; old = {{*sys.modules}}; import {PACKAGE}; print({unwanted} & ({{*sys.modules}} - old))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    "name", ["data", "hub", "models", "training", "load_2019", "pretrained", "list_pretrained", "discover"]
)
def test_subpackages_are_loaded_on_first_use(name):
    code = f"import {PACKAGE} as et, sys; print(et.{name}.__name__, 'PIL' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"{PACKAGE}.{name}" if name in et._PACKAGES else name, "False"]


def test_no_function_shares_the_name_of_its_module():
    for path in sorted(Path(et.__file__).parent.rglob("*.py")):
        functions = {part.name for part in ast.parse(path.read_text()).body if isinstance(part, ast.FunctionDef)}
        assert path.stem not in functions, path


def test_unknown_names_are_attribute_errors():
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
