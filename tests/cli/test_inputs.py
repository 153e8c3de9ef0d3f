"""Input of any kind, damaged, malicious or odd: it works or it is refused with a reason, in little time and memory."""

import contextlib
import gzip
import io
import json
import os
import socket
import struct
import sys
import zlib
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from bounded import run_bounded
from matfiles import write_mat
from PIL import Image

from equivariant_transformers import models
from equivariant_transformers.cli import console
from equivariant_transformers.cli.app import run
from equivariant_transformers.cli.config import read_yaml
from equivariant_transformers.data import ImageSet, from_dataset, from_folder
from equivariant_transformers.data import __main__ as data_command
from equivariant_transformers.data.progress import ProgressLines
from equivariant_transformers.hub.classifier import Card, Classifier
from equivariant_transformers.text import quote, visible
from equivariant_transformers.training import Config, checkpoint

svhn = import_module("equivariant_transformers.data.svhn_set")
mnist = import_module("equivariant_transformers.data.mnist_set")

ODD = "odd\x1b[31m\u202e\x07\r\n\udcff"
"""The name of a file that colours the terminal, turns the writing round, rings, and is not UTF-8."""


def save(path, size=(24, 24)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (200, 30, 30)).save(path, format="PNG")
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    blank = ImageSet(
        images=torch.zeros(2, 3, 24, 24, dtype=torch.uint8), labels=torch.arange(2), name="blank", classes=("a", "b")
    )
    card = Card.of(Config(network="resnet10", layers=("rotation",)), blank)
    torch.manual_seed(0)
    Classifier(card.build(), card).save(path)
    return path


@pytest.fixture
def et(capsys):
    """Run a command: its exit code, what it printed, and what it said."""

    def command(*words):
        code = run([str(word) for word in words])
        return code, *capsys.readouterr()

    return command


# Names


def test_quotes_are_short_whatever_the_value():
    nested = ["x" * 1000] * 1000
    for _ in range(50):
        nested = [nested] * 50
    for value in (nested, "x" * 10**6, 10**5000, {1: 2} | {str(i): i for i in range(1000)}, b"x" * 10**6):
        assert len(quote(value)) < 2000
    assert quote(3.5) == "3.5"


def test_what_a_terminal_acts_on_is_escaped():
    assert visible(ODD) == r"odd\x1b[31m\u202e\x07\r\n\udcff"
    assert visible("Übergröße 数字.png") == "Übergröße 数字.png"
    assert visible("a\nb\x1b", keep="\n") == "a\nb\\x1b"


@pytest.mark.parametrize("speak", [console.say, console.note, console.warn, console.error])
def test_no_control_character_is_printed(speak, capsys):
    speak(f"{ODD}:smile:")
    out, err = capsys.readouterr()
    shown = (out + err).replace("\n", "")
    assert shown.isprintable()
    assert r"\x1b[31m\u202e" in shown
    assert ":smile:" in shown


def test_no_control_character_is_in_a_table(capsys):
    console.table("name", "value", rows=[[ODD, "1"], ["[red]plain", "2"]])
    header, *rows = capsys.readouterr().out.splitlines()
    assert rows == [f"{visible(ODD)}  1", f"{'[red]plain':{len(visible(ODD))}}  2"]
    assert header.split() == ["name", "value"]


@pytest.mark.parametrize("terminal", [True, False])
def test_no_control_character_is_on_a_bar(monkeypatch, terminal):
    from rich.console import Console

    written = io.StringIO()
    monkeypatch.setattr(console, "ERR", Console(file=written, force_terminal=terminal, color_system=None, width=200))
    monkeypatch.setattr(sys, "stderr", written)
    with console.loading() as loading:
        loading(f"reading {ODD}[bold]", 0.5)
    assert visible(ODD) + "[bold]" in written.getvalue()
    assert ODD[3:8] not in written.getvalue()


def test_the_data_command_and_its_progress_escape_names(tmp_path, capsys, monkeypatch):
    ProgressLines()(f"reading {ODD}", 0.5)
    monkeypatch.setenv("ET_DATA", str(tmp_path))
    assert data_command.main(["fetch", "mnist", "--option", f"root={tmp_path / 'x'}\x1b[31m"]) == 1
    err = capsys.readouterr().err
    assert err.replace("\n", "").isprintable()
    assert r"\x1b[31m" in err


# et predict --canonical-out

NAMES = ["..png", "...", ".hidden", "a.PNG", "a.b.c", "a", "x" * 250, "数" * 80, " ", "-", "con:*?", ODD, "a\\b", "~"]


def test_canonical_images_have_safe_names_and_overwrite_nothing(et, model, tmp_path):
    folder = tmp_path / "pictures"
    names = [*NAMES, "a.jpg"]
    files = [save(folder / name) for name in names]
    before = {file: file.read_bytes() for file in files}
    for out in (folder, folder, tmp_path / "out"):  # among the pictures, twice, and elsewhere
        code, text, err = et("predict", model, *files, "--canonical-out", out, "--json")
        assert (code, err) == (0, "")
        written = [Path(entry["canonical"]) for entry in json.loads(text)]
        assert len({*written, *files}) == 2 * len(files)
        for path in written:
            assert path.parent == out
            assert path.name.isprintable()
            assert not path.name.startswith(".")
            assert len(os.fsencode(path.name)) < 255
            with Image.open(path) as picture:
                assert (picture.format, picture.size) == ("PNG", (24, 24))
    assert {file: file.read_bytes() for file in files} == before
    assert Path(tmp_path / "out" / "a.png").is_file()
    code, text, err = et("predict", model, *files)
    assert code == 0
    assert (text + err).replace("\n", "").isprintable()
    assert len(text.splitlines()) == 1 + len(files)


def test_what_cannot_be_written_is_named_and_the_rest_goes_on(et, model, tmp_path, monkeypatch):
    files = [save(tmp_path / f"{name}.png") for name in "abc"]
    whole = Path.open

    def full(path, mode="r", *options):
        if path.name == "b.png" and "x" in mode:
            file = whole(path, mode, *options)
            file.close()
            return FullDisk(path)
        return whole(path, mode, *options)

    class FullDisk:
        def __init__(self, path):
            self.path = path

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def write(self, _):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    code, text, err = et("predict", model, *files, "--canonical-out", tmp_path / "out", "--json")
    assert code == 1
    assert "b.png: its canonical image cannot be written to" in err
    assert "No space left on device" in err
    found = json.loads(text)
    assert ["canonical" in entry for entry in found] == [True, False, True]
    assert all(entry["class"] in "ab" for entry in found)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.png", "c.png"]
    monkeypatch.undo()
    (tmp_path / "file").touch()
    code, text, err = et("predict", model, *files, "--canonical-out", tmp_path / "file")
    assert code == 1
    assert err.count("cannot be written") == 3
    assert len(text.splitlines()) == 4  # what was found is printed all the same


def special_files(folder):
    """A pipe, a socket, a device, a folder, and links to them and to themselves."""
    folder.mkdir(parents=True)
    os.mkfifo(folder / "pipe.png")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as opened:
        here = Path.cwd()
        os.chdir(folder)  # the path of a socket is short
        opened.bind("socket.png")
        os.chdir(here)
    (folder / "folder.png").mkdir()
    for name, target in (("a", "pipe.png"), ("b", "/dev/zero"), ("c", "folder.png"), ("d", "d.png"), ("e", "nothing")):
        (folder / f"{name}.png").symlink_to(target)
    return sorted(folder.iterdir())


def test_pipes_sockets_devices_and_folders_are_not_opened(et, model, tmp_path):
    good = save(tmp_path / "photos" / "cat" / "good.png")
    files = special_files(tmp_path / "photos" / "cat" / "special")
    code, text, err = et("predict", model, *files, good, "/dev/zero", "--json")
    assert code == 1
    found = json.loads(text)
    assert [Path(entry["image"]) for entry in found if "error" not in entry] == [good]
    assert len(err.splitlines()) == len(files) + 1
    assert "a pipe, a socket or a device, not a file" in err
    assert "a folder without files" in err
    code, text, err = et("predict", model, tmp_path / "photos", "--json")
    assert code == 1
    assert [Path(entry["image"]) for entry in json.loads(text) if "error" not in entry] == [good]
    assert len(err.splitlines()) == len(files) - 2  # folders, and links to them, are not files
    with pytest.warns(UserWarning, match="skipped 6 files"):  # folders, and links to them, are no pictures
        splits = from_folder(tmp_path / "photos", validation=0, test=0, size=(8, 8))
    assert len(splits.train) == 1


# Configs

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB + "layers: *i\n", "anchor"),
        ("epochs: &a 3\nseed: *a", "anchor"),
        ("layers: !!python/name:os.system", "tag"),
        ("layers: !!binary aGVsbG8=", "tag"),
        ("layers: !!set {a, b}", "tag"),
        ("epochs: !!int ''", "tag"),
        ("layers: [[a]]", "nested"),
        ("[" * 10_000, "nested"),
        ("epochs: 3\nepochs: 4", "'epochs' is given twice"),
        ("1: 2", r"unknown fields \['1'\]"),
        ("null: 2\n1.5: 3\nx: 1", "unknown fields"),
        ("? [a, b]\n: 2", "the name of a field must be text"),
        ("<<: {epochs: 2}", "unknown fields"),
        ("epochs: 2020-01-01", "epochs takes a whole number, got datetime.date"),
        ("epochs: 2020-13-45", "cannot be read: month must be"),
        ("epochs: " + "9" * 400, "epochs must be at most 1,000,000, got a number of about 40[01] digits"),
        ("epochs: " + "9" * 5000, "digits"),
        ("learning_rate: " + "9" * 400, "learning_rate must be finite"),
        ("weight_decay: .inf", "weight_decay must be finite, got inf"),
        ("weight_decay: 1e400", "weight_decay must be finite, got inf"),
        ("layers: " + "x" * 5000, "characters, got .{1,200}$"),
        ("layers: [" + "x_shear, " * 40 + "]", "at most 32 names"),
        ("passes: 1000000", "iterations must be at most 32"),
        ("views: [rotation=1]\nlooks: 1000000000", "tta must be at most 256"),
        ("views: [rotation=1e400]", "positive finite number, got inf"),
        ("dataset: " + "x" * 90_000, "at most 4,096 characters"),
        ("x" * 200_000, "longer than 100,000 bytes"),
        ("\x00", "is not valid YAML"),
    ],
)
def test_a_wrong_config_is_refused_with_a_short_message(tmp_path, et, text, message):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    code, out, err = et("train", "mnist", "--config", file, "--out", tmp_path / "run")
    line = " ".join(err.split())
    assert (code, out) == (2, "")
    with pytest.raises(ValueError, match=message):
        raise ValueError(line)
    assert len(line) < 1500


def test_a_config_that_is_no_text_is_refused(tmp_path):
    for content in (b"\xff\xfe\xff", b"epochs: \xff"):
        (tmp_path / "config.yaml").write_bytes(content)
        with pytest.raises(ValueError, match="cannot be read"):
            read_yaml(tmp_path / "config.yaml")
    with pytest.raises(ValueError, match="longer than"):
        read_yaml(Path("/dev/zero"))


FLOATS = ("dropout", "pose_noise", "learning_rate", "lr_decay", "weight_decay", "ema_decay")


@pytest.mark.parametrize("field", FLOATS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 10**400, "1", None, True, [1.0]])
def test_every_number_of_a_config_is_a_finite_number(field, value):
    with pytest.raises(ValueError, match=f"{field} (takes|must be)"):
        Config(**{field: value})


@pytest.mark.parametrize(
    "field", ["copies", "iterations", "tta", "epochs", "batch_size", "seed", "data_seed", "examples"]
)
@pytest.mark.parametrize("value", [10**30, 1.5, float("nan"), "1", True, [1]])
def test_every_count_of_a_config_is_a_reasonable_whole_number(field, value):
    with pytest.raises(ValueError, match=f"{field} (takes|must be)"):
        Config(**{field: value}, augment=("rotation=1",))


@pytest.mark.parametrize("fields", [[], 3, None, {"layers": "x_shear"}, {"layers": {"a": 1}}, {1: 2, "x": 3}])
def test_what_is_no_table_of_fields_is_no_config(fields):
    with pytest.raises(ValueError, match=r"config|layers takes a list of names"):
        Config.from_dict(fields)


# Model files

WRONG = {
    "in_channels": [0, -1, 10**6, 10**9, 1.5, "3", None, True, [3]],
    "size": [[0, 0], [10**6, 10**6], [24], [24, 24, 24], 24, "24", [24.0, 24], [-1, 24], None, [True, 24]],
    "classes": [[], ["x"] * 10**6, 10, "ab", [1, 2], None],
    "mean": [[0.0, 0.0], [], [0.0] * 4, [None] * 3, ["a"] * 3, 0.0, [float("nan")] * 3, [10**400] * 3],
    "std": [[0.0] * 3, [-1.0] * 3, [float("nan")] * 3, [float("inf")] * 3, [1e-300] * 3, [1.0, 1.0], "abc"],
    "fill": [float("nan"), float("inf"), "black", [0.0], 1e300],
    "data": [3, None],
    "origin": [[], None],
    "labels": [3],
    "validation_error": [float("nan"), -1, 101, "3"],
    "test_error": [float("nan"), -1, 101, "3"],
    "config": [None, 3, [], {"epochs": "many"}],
}
WRONG_CONFIG = {
    "tta": [10**9, 0, 2],
    "iterations": [10**6, 0, 1.5],
    "layers": [["rotation"] * 10**4, ["junk"], [3], "rotation", 3, ["rotation", "\x1b" * 10**6]],
    "chart": ["junk", 3, [], "x" * 10**6],
    "network": ["junk", 3, None],
    "predictor": ["junk", 3, None],
    "augment": [["rotation=nan"], ["rotation=x"], ["junk=1"], [3], ["rotation=-1"]],
}


def card_fields(model):
    return checkpoint.read(model)[1]["card"]


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
def test_a_card_with_a_wrong_field_names_it(model, field, value):
    with pytest.raises(ValueError, match=rf"{field}|number|value|per cent|config|from 1 to|takes") as refused:
        Card.from_dict(card_fields(model) | {field: value})
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in WRONG_CONFIG.items() for value in values]
)
def test_a_card_with_a_wrong_config_builds_nothing(model, field, value):
    fields = card_fields(model)
    with pytest.raises(ValueError, match=r"\w") as refused:
        Card.from_dict(fields | {"config": fields["config"] | {field: value}}).build()
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"in_channels": 10**6}, "in_channels"),
        ({"classes": 10**6}, "classes"),
        ({"classes": 0}, "classes"),
        ({"size": (10**6, 64)}, "height"),
        ({"size": (64, 0)}, "width"),
        ({"size": (64.0, 64)}, "height"),
        ({"iterations": 10**6}, "iterations"),
        ({"layers": ["rotation"] * 10**4}, "layers"),
    ],
)
def test_networks_beyond_all_reason_are_not_built(options, name):
    with pytest.raises((TypeError, ValueError), match=f"{name} must be"):
        models.build(**options)


MODELS = """
from pathlib import Path
from equivariant_transformers.training import checkpoint
from equivariant_transformers.hub.classifier import Classifier
path = Path(sys.argv[1])
tensors, description = checkpoint.read(path)
for change in (
    {"in_channels": 1024, "mean": [0.0], "std": [1.0]},
    {"size": [1024, 1024], "network": "capsule"},
    {"classes": [""] * 100_000, "network": "capsule", "size": [1024, 1024]},
    {"classes": [""] * 100_000},
    {"layers": ["x_perspective"] * 32, "predictor": "softmax", "size": [1024, 1024], "chart": "log_polar"},
):
    card = description["card"]
    config = card["config"] | {name: value for name, value in change.items() if name in card["config"]}
    changed = card | {name: value for name, value in change.items() if name in card} | {"config": config}
    checkpoint.write(path, tensors, {"card": changed})
    try:
        Classifier.load(path)
        print("loaded")
    except checkpoint.CheckpointError as error:
        print("no-memory" if "allocate" in str(error) else "refused")
"""


def test_a_model_file_cannot_promise_a_network_larger_than_itself(model, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(model.read_bytes())
    done = run_bounded(
        MODELS, path, imports="import equivariant_transformers.hub.classifier, safetensors.torch", megabytes=150
    )
    assert (done.stdout.split(), done.returncode) == (["refused"] * 5, 0), done.stderr


# Archives


def compressed(content):
    """A MATLAB file with `content` in a compressed element."""
    squeezed = zlib.compress(content, 9)
    return (
        b"MATLAB 5.0 MAT-file".ljust(124)
        + struct.pack("<H", 0x0100)
        + b"IM"
        + struct.pack("<II", 15, len(squeezed))
        + squeezed
    )


def element(kind, content):
    return struct.pack("<II", kind, len(content)) + content + b"\0" * (-len(content) % 8)


def structure(shape, width, letters, *values):
    return element(
        14,
        element(6, struct.pack("<II", 2, 0)) + element(5, np.array(shape, "<i4").tobytes()) + element(1, b"s")
        + element(5, struct.pack("<i", width)) + element(1, letters) + b"".join(values),
    )  # fmt: skip


def cells(shape, *values):
    header = element(6, struct.pack("<II", 1, 0)) + element(5, np.array(shape, "<i4").tobytes()) + element(1, b"")
    return element(14, header + b"".join(values))


def nested_cells(depth):
    inner = cells((0, 0))
    for _ in range(depth):
        inner = cells((1, 1), inner)
    return inner


def nested(depth):
    inner = structure((1, 1), 8, b"f".ljust(8, b"\0"), element(14, b""))
    for _ in range(depth):
        inner = structure((1, 1), 8, b"f".ljust(8, b"\0"), inner)
    return inner


def many_doubles():
    """Bytes that MATLAB calls doubles: eight times as many in memory."""
    values = bytes(200 * 2**20)
    header = element(6, struct.pack("<II", 6, 0)) + element(5, np.array([len(values), 1], "<i4").tobytes())
    return element(14, header + element(1, b"x") + element(2, values))


READ = """
from equivariant_transformers.data.matfile import read_mat
for path in sys.argv[1:]:
    try:
        print("read", len(read_mat(path)))
    except ValueError as error:
        print("refused", str(error)[:500])
"""


def test_matlab_files_that_unpack_to_gigabytes_are_refused(tmp_path):
    small = element(14, bytes(2**20))
    stream = zlib.compressobj()
    start = stream.compress(struct.pack("<II", 14, 2**31)) + stream.flush(zlib.Z_FULL_FLUSH)
    zeros = stream.compress(bytes(2**24)) + stream.flush(zlib.Z_FULL_FLUSH)
    bomb = start + 96 * zeros  # 1.5 GB
    header = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    files = {
        "empty structures": compressed(structure((2**31 - 1, 1), 8, b"")),
        "structures": compressed(structure((2**31 - 1, 1), 8, b"f".ljust(8, b"\0"), small)),
        "axes": compressed(structure((2**31 - 1,) * 3, 8, b"f".ljust(8, b"\0"), small)),
        "fields": compressed(structure((1, 1), 1, b"f" * 50_000_000)),
        "names": compressed(structure((1, 1), 50_000_000, b"f" * 50_000_000)),
        "deep": compressed(nested(3000)),
        "doubles": compressed(many_doubles()),
        "bomb": header + struct.pack("<II", 15, len(bomb)) + bomb,
    }
    paths = []
    for name, content in files.items():
        paths.append(tmp_path / f"{name}.mat")
        paths[-1].write_bytes(content)
    done = run_bounded(READ, *paths, imports="import equivariant_transformers.data.matfile")
    assert done.returncode == 0, done.stderr
    first, *others = done.stdout.splitlines()
    assert first == "read 0"
    assert len(others) == len(files) - 1
    assert all(line.startswith("refused") and "cut off or damaged" in line for line in others), others


def test_fields_that_claim_to_be_large_take_no_memory(tmp_path):
    """Files of a few hundred bytes or kilobytes, on which other readers take gigabytes or crash."""
    fields = {
        "cells": cells((2**31 - 1, 1)),
        "axes": cells((2**31 - 1,) * 3),
        "deep": nested_cells(20_000),
        "empty": structure((2**31 - 1, 1), 8, b""),
        "structures": structure((2**31 - 1, 1), 8, b"f".ljust(8, b"\0")),
    }
    paths = []
    for name, field in fields.items():
        paths.append(tmp_path / f"{name}.mat")
        paths[-1].write_bytes(compressed(structure((1, 1), 8, b"f".ljust(8, b"\0"), field)))
    done = run_bounded(READ, *paths, imports="import equivariant_transformers.data.matfile")
    assert done.returncode == 0, done.stderr
    *read, refused = done.stdout.splitlines()
    assert read == ["read 0"] * 4
    assert refused.startswith("refused")


def test_idx_files_are_unpacked_no_further_than_mnist_is_long(tmp_path):
    bomb = gzip.compress(b"\0\0\x08\x03" + struct.pack(">III", 60_000, 28, 28)) + 200 * gzip.compress(bytes(2**24))
    for name in (part.file for part in mnist.PARTS.values()):
        (tmp_path / f"{name}.gz").write_bytes(bomb)  # 3 GB
    code = """
from equivariant_transformers.data import mnist
try:
    mnist(sys.argv[1])
except ValueError as error:
    print("refused", error)
"""
    done = run_bounded(code, tmp_path, imports="import equivariant_transformers.data", megabytes=300)
    assert done.returncode == 0, done.stderr
    assert "holds more than the 47,040,016 bytes of an array of shape (60000, 28, 28)" in done.stdout


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\x08",
        b"\0\0\x08\x03",
        b"\0\0\x08\x03" + b"\xff" * 12,
        b"\0\0\x08\xff" + bytes(2000),
        b"\0\0\x0d\x01" + bytes(8),
        b"\0\0\x08\x01" + struct.pack(">I", 5) + bytes(4),
    ],
)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_headers_that_promise_what_is_not_there(tmp_path, content, ending):
    path = tmp_path / f"file{ending}"
    path.write_bytes(gzip.compress(content) if ending else content)
    with pytest.raises(ValueError, match="is not a complete idx file"):
        mnist._read_idx(path, (60_000, 28, 28))


PIXELS, DIGITS = np.zeros((32, 32, 3, 4), np.uint8), np.ones((4, 1), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": PIXELS[..., 0], "y": DIGITS}, r"\(32, 32, 3, N\)"),
        ({"X": PIXELS, "y": DIGITS[:3]}, r"\(32, 32, 3, N\)"),
        ({"X": PIXELS, "y": DIGITS[:, 0][None]}, r"\(32, 32, 3, N\)"),
        ({"X": PIXELS}, r"\(32, 32, 3, N\)"),
        ({"y": DIGITS}, r"\(32, 32, 3, N\)"),
        ({"X": PIXELS.astype("f8"), "y": DIGITS}, "uint8"),
        ({"X": PIXELS, "y": np.full((4, 1), np.nan)}, "integers from 1 to 10"),
        ({"X": PIXELS, "y": np.full((4, 1), 2.5)}, "integers from 1 to 10"),
        ({"X": PIXELS, "y": np.full((4, 1), -1, np.int8)}, "integers from 1 to 10"),
    ],
)
def test_house_numbers_of_another_shape_or_type_are_refused(tmp_path, arrays, message):
    write_mat(tmp_path / "file.mat", **arrays)
    with pytest.raises(ValueError, match=message):
        svhn._read(tmp_path / "file.mat")


def test_house_numbers_are_not_read_from_a_device(tmp_path):
    (tmp_path / "train_32x32.mat").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="a pipe, a socket or a device"):
        svhn.svhn(root=tmp_path, accept_other_files=True)


# Pictures and data sets


def test_large_pictures_take_little_memory_or_are_refused(tmp_path):
    side = 9000  # 81 million pixels, which Pillow thinks safe
    palette = Image.new("P", (side, side))
    palette.putpalette([255, 0, 0])
    palette.save(tmp_path / "alpha.png", bits=1, transparency=bytes([128]))
    Image.new("I;16", (side, side), 1000).save(tmp_path / "sixteen.png", compress_level=1)
    Image.new("1", (80_000_000, 1)).save(tmp_path / "long.png")
    frames = [Image.new("L", (8, 8), value) for value in range(200)]
    frames[0].save(tmp_path / "frames.gif", save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path / "frames.tif", save_all=True, append_images=frames[1:])
    Image.new("1", (15_000, 15_000)).save(tmp_path / "bomb.png")
    code = """
from pathlib import Path
for path in sys.argv[1:]:
    try:
        print(pictures.read(Path(path), (64, 64), 3)[0, 32, 32])
    except pictures.PictureError as error:
        print("refused")
"""
    names = ["alpha.png", "sixteen.png", "frames.gif", "frames.tif", "long.png", "bomb.png"]
    imports = "from equivariant_transformers.data import pictures; from PIL import Image; Image.init()"
    done = run_bounded(code, *(tmp_path / name for name in names), imports=imports)
    assert done.stdout.split() == ["128", "3", "0", "0", "refused", "refused"], done.stderr


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "I;16", "CMYK", "1", "YCbCr", "L", "RGB"])
def test_bands_change_nothing(monkeypatch, mode):
    from equivariant_transformers.data import pictures

    values = np.random.default_rng(0).integers(0, 256, (50, 40, 4), np.uint8)
    picture = Image.fromarray(values)
    picture = Image.fromarray(values[..., 0].astype(np.uint16) * 250) if mode == "I;16" else picture.convert(mode)
    for channels in (1, 3):
        whole = pictures.fit(picture, (20, 30), channels)
        with monkeypatch.context() as patched:
            patched.setattr(pictures, "_BAND", 300)
            np.testing.assert_array_equal(pictures.fit(picture, (20, 30), channels), whole)


def test_a_postscript_program_is_not_run(tmp_path, monkeypatch):
    from equivariant_transformers.data import pictures

    Image.new("RGB", (8, 8)).save(tmp_path / "a.eps")
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("it is run"))
    with pytest.raises(pictures.PictureError, match="EPS is a program"):
        pictures.read(tmp_path / "a.eps", (8, 8), 3)


class Made:
    """A data set that says how long it is."""

    def __init__(self, length, item, count=10**12):
        self.length, self.item, self.count = length, item, count

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index >= self.count:
            raise IndexError(index)
        return self.item


BLACK = torch.zeros(1, 4, 4)


@pytest.mark.parametrize(
    "label",
    [10**9, 10**30, -1, True, np.bool_(True), torch.tensor(True), "1", None],
    ids=repr,
)
def test_a_label_is_a_class_number(label):
    with pytest.raises(ValueError, match=r"item 0 of the train part has label .* from 0 to 99999 is needed"):
        from_dataset([(BLACK, label)] * 10)


def test_a_label_beyond_the_classes_is_named():
    with pytest.raises(ValueError, match="item 3 of the train part has label 2; a class number from 0 to 1 is needed"):
        from_dataset([(BLACK, 0)] * 3 + [(BLACK, 2)] * 7, classes=["a", "b"])


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Made(10**15, (BLACK, 0), 5), "the train part has no item 5, but its length is 1000000000000000"),
        (Made(5, (BLACK, 0), 0), "the train part has no item 0, but its length is 5"),
        (Made(0, (BLACK, 0)), "empty"),
        (Made(5, BLACK), r"must be a pair \(image, class number\)"),
        (Made(5, (BLACK, 0, 0)), r"must be a pair \(image, class number\)"),
        (Made(5, None), r"must be a pair \(image, class number\)"),
        ([(torch.zeros(1, 4, 2000), 0)] * 5, r"size must be from \(1, 1\) to \(1024, 1024\)"),
    ],
)
def test_data_sets_that_are_not_what_they_say(dataset, message):
    with pytest.raises(ValueError, match=message):
        from_dataset(dataset)


@pytest.mark.parametrize("labels", [torch.zeros(2), torch.tensor([0.0, torch.nan]), torch.zeros(2, dtype=torch.bool)])
def test_an_image_set_has_whole_numbers_for_labels(labels):
    with pytest.raises(ValueError, match="class numbers of an integer type"):
        ImageSet(images=torch.zeros(2, 1, 4, 4, dtype=torch.uint8), labels=labels, name="blank")


@pytest.mark.parametrize("std", [0.0, -1.0, float("nan"), float("inf"), 1e-300])
def test_an_image_set_can_be_normalised(std):
    with pytest.raises(ValueError, match="std must be from 1e-06 to 1e\\+06"):
        ImageSet(images=torch.zeros(1, 1, 4, 4, dtype=torch.uint8), labels=torch.zeros(1).long(), name="x", std=(std,))


def test_a_folder_of_many_broken_files_takes_no_memory_for_them(tmp_path):
    (tmp_path / "cat").mkdir()
    save(tmp_path / "cat" / "good.png")
    for index in range(5000):
        (tmp_path / "cat" / f"{index}.png").touch()
    code = """
import warnings
warnings.simplefilter("ignore")
part = from_folder(sys.argv[1], size=(1000, 1000), validation=0, test=0).train
print(len(part))
"""
    imports = "from equivariant_transformers.data import from_folder, pictures; from PIL import Image; Image.init()"
    done = run_bounded(code, tmp_path, imports=imports)
    assert done.stdout.split() == ["1"], done.stderr


def test_deep_folders_and_links_in_circles(tmp_path):
    save(tmp_path / "cat" / "a.png")
    (tmp_path / "cat" / "loop").symlink_to(tmp_path)
    (tmp_path / "circle").symlink_to("circle")
    here = Path.cwd()
    os.chdir(tmp_path / "cat")
    for _ in range(1500):
        os.mkdir("d")
        os.chdir("d")
    try:
        splits = from_folder(tmp_path, validation=0, test=0)
    finally:  # what removes temporary folders cannot go so deep
        for _ in range(1500):
            os.chdir("..")
            os.rmdir("d")
        os.chdir(here)
    assert splits.train.classes == ("cat",)
    assert len(splits.train) == 1


def test_names_of_classes_and_files_are_escaped_in_messages(tmp_path):
    save(tmp_path / "cat" / "a.png")
    (tmp_path / "cat" / ODD).touch()
    (tmp_path / ODD).mkdir()
    with (
        pytest.warns(UserWarning, match="skipped 1 files") as caught,
        pytest.raises(ValueError, match="no readable image of class") as refused,
    ):
        from_folder(tmp_path)
    for text in (caught[0].message, refused.value):
        assert str(text).isprintable()
        assert r"\x1b[31m\u202e" in str(text)
