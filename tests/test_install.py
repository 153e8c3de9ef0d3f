"""Extras: the README lists all of them, messages name those that exist, and each brings what its part imports."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from equivariant_transformers import install

ROOT = Path(__file__).parent.parent
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
EXTRAS = PROJECT.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
MODULES = {"pillow": "PIL", "pyyaml": "yaml"}  # where the module has another name than the package


def packages(extra):
    """Return the modules of the packages that an extra installs, those of the extras that it includes too."""
    listed = re.search(rf"^{extra} = \[(.*?)\]$", EXTRAS, re.MULTILINE | re.DOTALL)[1]
    found = set()
    for requirement in re.findall(r'"([^"]+)"', listed):
        name = re.match(r"[\w-]+", requirement)[0]
        included = re.search(r"equivariant-transformers\[(.*)\]", requirement)
        more = set().union(*map(packages, included[1].split(","))) if included else {MODULES.get(name, name)}
        found |= more
    return found


def test_the_readme_lists_every_extra():
    names = re.findall(r"^(\w+) = \[", EXTRAS, re.MULTILINE)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"Extras,\s+as\s+in\s(.*?)\n\n", text, re.DOTALL)
    assert {*re.findall(r"`(\w+)`", listed)} == {*names, "et"}


def test_messages_name_extras_that_exist():
    sources = [file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py")]
    names = {name for source in sources for name in re.findall(r"install\.command\(['\"](\w+)", source)}
    assert {"export", "hub", "train", "demo"} <= names
    assert all(packages(name) for name in names)


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ("train", "from equivariant_transformers.cli import app, main; import equivariant_transformers.training.run"),
        ("export", "import equivariant_transformers as et, torch; from equivariant_transformers.hub import export"),
        ("hub", "from equivariant_transformers.hub.huggingface import HubClassifier, HubNetwork"),
    ],
)
def test_an_extra_is_enough_for_its_part(extra, code):
    """The modules of all other extras are hidden, except those that the packages of this extra need themselves."""
    everything = set().union(*(packages(name) for name in ("train", "demo", "export", "hub")))
    needed = [
        re.match(r"[\w-]+", requirement)[0].lower()
        for package in packages(extra)
        for requirement in importlib.metadata.requires({"PIL": "pillow", "yaml": "pyyaml"}.get(package, package)) or []
        if "extra ==" not in requirement
    ]
    hidden = sorted(everything - packages(extra) - {MODULES.get(name, name) for name in needed})
    hide = f"import sys; sys.modules.update(dict.fromkeys({hidden}))"
    done = subprocess.run([sys.executable, "-c", f"{hide}\n{code}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_the_hub_the_message_has_the_command():
    code = "import sys; sys.modules['huggingface_hub'] = None\nimport equivariant_transformers.hub.huggingface"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stderr.splitlines()[-1].endswith(f"the Hub needs huggingface_hub: {install.command('hub')}")
