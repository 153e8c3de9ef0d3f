"""Configs made from presets, YAML files and flags."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from equivariant_transformers.cli.console import usage
from equivariant_transformers.cli.defaults import align, fill_in
from equivariant_transformers.cli.presets import preset
from equivariant_transformers.data.registry import find_data, is_own
from equivariant_transformers.geometry.atlas import chart
from equivariant_transformers.geometry.groups import lookup
from equivariant_transformers.models import check_name
from equivariant_transformers.nn.predictors import PREDICTORS
from equivariant_transformers.text import quote
from equivariant_transformers.training import Config
from equivariant_transformers.training.aliases import current_fields
from equivariant_transformers.training.config import kind_of
from equivariant_transformers.training.job import check_predictor, find_device

_MOST_BYTES = 100_000  # limit on a YAML file; a config has about 1,000 bytes


def make_config(name: str | None, file: Path | None, flags: dict[str, Any]) -> Config:
    """Return the config of preset `name`, overridden by the YAML in `file`, overridden by `flags` that are not None.

    Some of the other fields are chosen by `align` and, for a folder of images, by `fill_in`.
    """
    flags = {field: value for field, value in flags.items() if value is not None}
    with usage():
        if name is None and file is None and "dataset" not in flags:
            raise ValueError(
                "nothing to train on; give a preset, a folder of images, a CSV file, --config or --dataset"
            )
        fields = {} if name is None else preset(name).to_dict()
        read = {} if file is None else current_fields(read_yaml(file))
        changes = {**read, **flags}
        fields |= {field: convert(field, value) for field, value in changes.items()}
        config = Config.from_dict(fields)
        check_names(config)
        # A file with a predictor may be the config of a run from before the alignment loss existed.
        config = align(config, {*changes, *({"alignment"} if "predictor" in read else ())})
        check_predictor(config)
    folder = str(Path(config.dataset))  # without a trailing slash
    return fill_in(config.replace(dataset=folder), changes) if is_own(folder) else config


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the fields in a YAML file: a mapping to values or flat lists of values."""
    with file.open("rb") as stream:
        content = stream.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{file} is not a config: it is longer than {_MOST_BYTES:,} bytes")
    try:
        text = content.decode()
        _check_plain(text)
        table = yaml.compose(text, yaml.SafeLoader)
        if not isinstance(table, yaml.MappingNode):
            raise ValueError("it has no fields of a config; write fields such as epochs: 300")
        names = [name.value for name, _ in table.value]
        if not all(isinstance(name, str) for name in names):
            raise ValueError("the name of a field must be text, not a list or a mapping")
        twice = [name for index, name in enumerate(names) if name in names[:index]]
        if twice:
            raise ValueError(f"the field {quote(twice[0])} is given twice")
        loader = yaml.SafeLoader("")
        return {name.value: loader.construct_object(value, deep=True) for name, value in table.value}
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is not valid YAML: {error}") from error
    except ValueError as error:  # raised above, by the decoder, or for a number or a date
        raise ValueError(f"{file} cannot be read: {error}") from error


def _check_plain(text: str) -> None:
    """Raise a `ValueError` for aliases, tags and nested lists, which no config needs and which can expand endlessly."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) or getattr(event, "tag", None):
            line = event.start_mark.line + 1
            raise ValueError(f"line {line} has an anchor (&), an alias (*) or a tag (!); write the value itself")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > 2:
            raise ValueError(f"line {event.start_mark.line + 1} is nested; a field is a value or a list of names")


def to_yaml(config: Config) -> str:
    """Return every field of `config` as YAML."""
    text: str = yaml.safe_dump(config.to_dict(), sort_keys=False)
    return text


def check_names(config: Config) -> None:
    """Raise a `ValueError` for an unknown name in `config`, before anything that takes time."""
    find_data(config.dataset)
    find_device(config.device)
    check_name(config.network)
    lookup(PREDICTORS, config.predictor, "predictor")
    for name in (*config.layers, *([config.chart] if config.chart else [])):
        chart(name)


def convert(field: str, value: Any) -> Any:
    """Convert the value of a flag or a YAML file to the type of the field."""
    if field not in Config.__dataclass_fields__:
        return value  # Config.from_dict raises the error
    kind, optional = kind_of(field)
    if optional and value in (None, "none", "None"):
        return None
    if kind is tuple and isinstance(value, str):
        value = [] if value in ("", "none", "None") else [name.strip() for name in value.split(",")]
    elif kind in (int, float) and isinstance(value, str):  # a flag, or 2e-3, which YAML reads as text
        value = _number(kind, value)
    elif kind is float and type(value) is int and abs(value) <= sys.float_info.max:
        value = float(value)
    return value  # Config raises the error for a wrong value


def _number(kind: Callable[[str], Any], text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        return text
