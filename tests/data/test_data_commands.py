"""Data sets by name, and the command line over them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from photos import CLASSES, write_table
from PIL import Image

from equivariant_transformers import cli
from equivariant_transformers.data import DATASETS, ImageSet, Source, Splits, commands, load
from equivariant_transformers.data.__main__ import main
from equivariant_transformers.data.progress import ProgressLines


def blank(examples=20, *, fail=None, progress=None):
    if fail:
        raise OSError(f"the disk\nsaid {fail}")
    if progress:
        progress("drawing", 0.5)
        progress("drawing", 1.0)
    images = torch.zeros(examples, 1, 8, 8, dtype=torch.uint8)
    part = ImageSet(images=images, labels=torch.arange(examples) % 10, name="blank", origin="drawn")
    return Splits(part, part, part)


@pytest.fixture(autouse=True)
def blank_is_known(monkeypatch):
    source = Source(name="blank", summary="nothing to see", licence="none", download_bytes=3_000_000, load=blank)
    monkeypatch.setitem(DATASETS, "blank", source)


def test_load_by_name():
    assert len(load("blank", examples=30).train) == 30
    with pytest.raises(ValueError, match="Did you mean 'blank'"):
        load("blnk")
    with pytest.raises(ValueError, match=r"no option exmples\. Its options are: examples, fail, progress"):
        load("blank", exmples=30)


def test_every_source_is_complete():
    for name, source in DATASETS.items():
        assert source.name == name
        assert source.summary
        assert source.licence
        assert source.download_bytes > 0


def test_the_page_lists_what_there_is(monkeypatch, capsys):
    monkeypatch.delitem(DATASETS, "blank")
    page = (Path(__file__).parents[2] / "docs" / "data" / "index.md").read_text()
    assert re.findall(r"^\| \[?`([^`]*)`", page, re.MULTILINE) == list(DATASETS)
    main(["list"])
    assert capsys.readouterr().out in page


def test_list(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(DATASETS)
    assert any(line.split() == ["blank", "3", "MB", "none", "nothing", "to", "see"] for line in lines)


def test_fetch(capsys):
    assert main(["fetch", "blank", "--option", "examples=30"]) == 0
    out, err = capsys.readouterr()
    assert "30 train, 30 validation, 30 test; images of 1 x 8 x 8" in out
    assert "origin: drawn" in out
    assert err.splitlines() == ["drawing: 50%", "drawing: 100%"]


def test_show(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["show", "blank"]) == 0
    *counts, path = capsys.readouterr().out.splitlines()
    assert path == "blank.png"
    assert [line.split() for line in (counts[0], counts[-1])] == [
        ["class", "train", "validation", "test"],
        ["all", "20", "20", "20"],
    ]
    assert main(["show", "blank", "--out", "deep/down/sheet"]) == 0
    for path in ("blank.png", "deep/down/sheet"):
        with Image.open(path) as sheet:
            assert sheet.format == "PNG"


@pytest.mark.parametrize(("name", "sheet"), [("labels.csv", "labels-sheet.png"), ("pictures", "pictures-sheet.png")])
def test_own_images_are_counted_and_drawn(tmp_path, capsys, monkeypatch, name, sheet):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path, 60)
    shown = []
    for command in (main, lambda words: cli.main(["data", *words])):
        assert command(["show", name, "--option", "size=32"]) == 0
        shown.append(capsys.readouterr().out.splitlines())
        with Image.open(sheet) as drawn:
            assert drawn.format == "PNG"
        Path(sheet).unlink()
    assert shown[0] == shown[1]
    assert [line.split() for line in shown[0]] == [
        ["class", "train", "validation", "test"],
        *([name, "14", "2", "4"] for name in CLASSES),
        ["all", "42", "6", "12"],
        [sheet],
    ]


def test_a_long_list_of_classes_is_cut():
    part = ImageSet(
        images=torch.zeros(30, 1, 2, 2, dtype=torch.uint8), labels=torch.arange(30), name="x", classes=("\x1bx",) * 30
    )
    lines = commands.count_classes(Splits(part, part, part)).splitlines()
    assert len(lines) == 23
    assert lines[-2].split() == ["10", "more", "10", "10", "10"]
    assert lines[1].startswith("\\x1bx")


def test_failure_is_one_line(capsys):
    assert main(["fetch", "blank", "--option", "fail=no"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "error: the disk said no\n")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["eat"],
        ["fetch"],
        ["fetch", "blnk"],
        ["fetch", "blank", "--option", "x"],
        ["show", "blank", "--option", "x=1"],
    ],
)
def test_wrong_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "error" in capsys.readouterr().err


def test_a_terminal_gets_one_line_that_moves(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress = ProgressLines()
    for percent in range(101):
        progress("reading", percent / 100)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.endswith("] 100%\n")
    progress("reading", 0.5)
    progress.stop()
    assert capsys.readouterr().err.endswith(" 50%\n")


def test_it_runs_as_a_module():
    command = [sys.executable, "-m", "equivariant_transformers.data", "list"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=True)
    assert "svhn" in done.stdout
