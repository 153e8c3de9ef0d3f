"""The package as users get it: an sdist, the wheel built from it, and that wheel in an environment of its own."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

SMOKE = """
import sys
import torch
import equivariant_transformers as et

print(et.__file__)
out = et.EquivariantTransformer("rotation")(torch.rand(2, 1, 32, 32))
assert out.image.shape == (2, 1, 32, 32)
for name, card in et.list_pretrained().items():
    if isinstance(card, et.hub.CanonicalizerCard):
        assert et.pretrained(name)(torch.rand(1, card.in_channels, 32, 32)).image.shape[-1] == 32
        continue
    blank = torch.zeros(1, card.in_channels, *card.size, dtype=torch.uint8)
    assert et.pretrained(name)(blank).shape == (1, len(card.classes))
"""


def build(kind, source, out):
    """What setuptools makes of `source`, in this environment and with nothing downloaded."""
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=True)
    return out / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """An sdist, built from a copy of what git has: building leaves files behind."""
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return build("sdist", copy, copy)


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    return build("wheel", source, folder)


def test_the_wheel_has_all_of_the_package_and_nothing_else(wheel):
    package = ROOT / "src" / "equivariant_transformers"
    files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {str(path.relative_to(ROOT / "src")) for path in files} == {n for n in names if ".dist-info/" not in n}
    assert "equivariant_transformers/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_it_says_which_pythons_it_runs_on(wheel):
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    (lowest,) = re.findall(r"^Requires-Python: >=3\.(\d+)$", metadata, re.MULTILINE)
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    tested = [int(minor) for minor in re.findall(r'"3\.(\d+)"', workflow)]
    classified = re.findall(r"^Classifier: Programming Language :: Python :: 3\.(\d+)$", metadata, re.MULTILINE)
    assert tested == [int(minor) for minor in classified]
    assert tested[0] == int(lowest)


def test_it_works_in_an_environment_of_its_own(wheel, tmp_path):
    """The environment finds torch and the rest in this one's folder, but not the editable install of this one."""
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    assert run(python, "-W", "error", "-c", SMOKE).strip() == str(site / "equivariant_transformers" / "__init__.py")
    assert "evaluate" in run(tmp_path / "venv" / "bin" / "et", "--help")
