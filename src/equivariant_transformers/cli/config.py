"""Configs from presets, YAML files and flags; each field of `Config` is a flag, and its docstring the help."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
import yaml

from equivariant_transformers.cli.console import usage
from equivariant_transformers.cli.presets import preset
from equivariant_transformers.geometry.atlas import chart
from equivariant_transformers.geometry.groups import lookup
from equivariant_transformers.models import NETWORKS
from equivariant_transformers.nn.augment import Augmentation, parse_max_theta
from equivariant_transformers.nn.predictors import PREDICTORS
from equivariant_transformers.training import Config
from equivariant_transformers.training.job import find_data, find_device, is_folder

_TYPES = get_type_hints(Config)
_METAVARS = {int: "N", float: "X", str: "NAME", tuple: "A,B,..."}
_WANTED = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", tuple: "a list of names"}


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with its parameter `**flags` spelled out: an option for every field of `Config`, None if not given."""
    given = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind != p.VAR_KEYWORD]
    flags = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(field))
        for field in dataclasses.fields(Config)
    ]
    command.__signature__ = inspect.Signature([*given, *flags])  # type: ignore[attr-defined]
    return command


def make_config(name: str | None, file: Path | None, flags: dict[str, Any]) -> Config:
    """The config of preset `name`, changed by the YAML in `file`, changed by the `flags` that are not None."""
    flags = {field: value for field, value in flags.items() if value is not None}
    with usage():
        if name is None and file is None and "dataset" not in flags:
            raise ValueError("say what to train on: a preset, a folder of images, --config or --dataset")
        fields = {} if name is None else preset(name).to_dict()
        changes = {**({} if file is None else read_yaml(file)), **flags}
        fields |= {field: _convert(field, value) for field, value in changes.items()}
        config = Config.from_dict(fields)
        _check_names(config)
        folder = str(Path(config.dataset))  # without a slash at its end
        if is_folder(folder):
            config = config.replace(dataset=folder)
    return config


def read_yaml(file: Path) -> dict[str, Any]:
    """The fields in a YAML file."""
    try:
        fields = yaml.safe_load(file.read_text())
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{file} is no YAML: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{file} holds no fields of a config, as in epochs: 300")
    return fields


def to_yaml(config: Config) -> str:
    """Every field of `config` as YAML."""
    text: str = yaml.safe_dump(config.to_dict(), sort_keys=False)
    return text


def _check_names(config: Config) -> None:
    """Find every name of `config` now, before anything that takes time."""
    find_data(config.dataset)
    find_device(config.device)
    lookup(NETWORKS, config.network, "network")
    lookup(PREDICTORS, config.predictor, "predictor")
    for name in (*config.layers, *([config.chart] if config.chart else [])):
        chart(name)
    Augmentation(parse_max_theta(config.augment))


def _annotation(field: dataclasses.Field[Any]) -> Any:
    kind, _ = _kind(field.name)
    default = "none" if field.default in (None, ()) else field.default
    options: dict[str, Any] = {
        "help": f"{_docstrings()[field.name]} [dim]({str(default).lower()})[/dim]",
        "show_default": False,
        "rich_help_panel": "Fields of the config, and their values where no preset says otherwise",
    }
    if kind is bool:
        return Annotated[bool | None, typer.Option(**options)]
    return Annotated[str | None, typer.Option(metavar=_METAVARS[kind], **options)]


def _convert(field: str, value: Any) -> Any:
    """What was written in a flag or a YAML file, as the type of the field."""
    if field not in _TYPES:
        return value  # Config.from_dict says which fields there are
    kind, optional = _kind(field)
    if optional and value in (None, "none", "None"):
        return None
    given = value
    if kind is tuple and isinstance(value, str):
        value = [] if value in ("", "none", "None") else [name.strip() for name in value.split(",")]
    elif kind in (int, float) and isinstance(value, str):  # a flag, or 2e-3, which YAML takes for a text
        value = _number(kind, value)
    elif kind is float and type(value) is int:
        value = float(value)
    if kind is tuple and isinstance(value, list) and all(isinstance(name, str) for name in value):
        value = tuple(value)
    if type(value) is not kind:
        raise ValueError(f"{field} takes {_WANTED[kind]}, got {given!r}")
    return value


def _number(kind: Callable[[str], Any], text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        return text


def _kind(field: str) -> tuple[Any, bool]:
    """The plain type of a field, and whether it can also be None."""
    kind = _TYPES[field]
    optional = NoneType in get_args(kind)
    if optional:
        (kind,) = (part for part in get_args(kind) if part is not NoneType)
    origin = get_origin(kind)
    return str if origin is Literal else origin or kind, optional


def _docstrings() -> dict[str, str]:
    """What stands under each field of `Config`."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(Config))).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }  # fmt: skip
