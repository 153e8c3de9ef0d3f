"""Random configs: YAML files of random fields, values and damage, flags, and tables of fields."""

import pytest
import yaml

from equivariant_transformers.cli.config import make_config, read_yaml
from equivariant_transformers.cli.console import Failure
from equivariant_transformers.training import Config

FIELDS = [*Config.__dataclass_fields__, "nonsense", "1", "~", "<<", "é"]
VALUES = [
    "1", "0", "-1", "2.5", ".inf", "-.inf", ".nan", "1e400", "9" * 400, "9" * 5000, "0x1F", "0b_", "1:59:59", "true",
    "no", "~", "''", "x", "x_shear", "none", "[]", "[x_shear, rotation]", "[1, x]", "[[x]]", "{a: 1}", "rotation=1",
    "[rotation=nan]", "2020-01-01", "2020-99-99", "!!int 3", "!!binary aGk=", "!!float x", "&a 1", "*a", "=",
    "|\n  text", ">\n  text", "\x1b", "\u202e", "x" * 5000, "cpu", "best", "black", "mnist", "/", "..",
    "1_000", "+5", "'1'", "- 1", "?",
]  # fmt: skip
OBJECTS = [
    None, True, 0, -1, 1, 3, 10**6, 10**30, 10**400, 0.5, -0.5, 1e308, float("nan"), float("inf"), "", "x", "mnist",
    "1", [], ["x"], [1], ("x_shear",), ["x_shear"] * 100, {}, {"a": 1}, b"x", 1j, "x" * 10**5, ["x" * 10**5], object(),
]  # fmt: skip


def random_yaml(rng):
    text = "".join(f"{rng.choice(FIELDS)}: {rng.choice(VALUES)}\n" for _ in range(rng.randrange(5)))
    for _ in range(rng.choice([0, 0, 1, 3])):
        place = rng.randrange(len(text) + 1)
        text = (
            text[:place]
            + rng.choice(['"', "'", "[", "{", ":", "\n", "\t", "&", "*", "!", "\0", "#", "%", "---\n"])
            + text[place:]
        )
    return text


def short(error):
    """Return `error`, if its message is short."""
    return error if len(str(error)) < 2000 else AssertionError(f"a message of {len(str(error))} letters")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "config.yaml"


def test_yaml_files(fuzz, file):
    def check(rng):
        file.write_bytes(rng.randbytes(rng.randrange(60)) if rng.random() < 0.1 else random_yaml(rng).encode())
        try:
            config = make_config(None, file, {"dataset": "mnist"})
        except Failure as failure:
            raise short(failure) from failure
        assert Config.from_dict(config.to_dict()) == config
        file.write_text(yaml.safe_dump(config.to_dict()))
        assert Config.from_dict(read_yaml(file)) == config

    fuzz(check, cases=400, allowed=(Failure,))


def test_flags(fuzz):
    def check(rng):
        names = rng.sample([*Config.__dataclass_fields__], 3)
        flags = {name: rng.choice(VALUES) for name in names}
        try:
            make_config("mnist", None, flags)
        except Failure as failure:
            raise short(failure) from failure

    fuzz(check, cases=150, allowed=(Failure, OSError))


def test_tables_of_fields(fuzz):
    def check(rng):
        names = rng.choices([*Config.__dataclass_fields__, "nonsense", 1, None], k=rng.randrange(4))
        fields = {name: rng.choice(OBJECTS) for name in names}
        try:
            config = Config.from_dict(fields)
        except ValueError as error:
            raise short(error) from error
        assert Config.from_dict(config.to_dict()) == config

    fuzz(check, cases=1000, allowed=(ValueError,))
