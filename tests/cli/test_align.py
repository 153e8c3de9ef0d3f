"""`et align`: a canonicalizer from upright images without labels, for use in front of any network."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from oriented import arrows, median_error
from PIL import Image
from torch import nn

import equivariant_transformers as et
from equivariant_transformers.cli.align import FILE
from equivariant_transformers.data import DATASETS, Source
from equivariant_transformers.hub.canonicalizers import read_canonicalizer
from equivariant_transformers.nn.augment import Augmentation
from equivariant_transformers.training import CHECKPOINT
from equivariant_transformers.training.checkpoint import read

SMALL = ("--size", 32, "--batch-size", 16, "--device", "cpu")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of upright arrows without class folders."""
    folder = tmp_path_factory.mktemp("data") / "arrows"
    folder.mkdir()
    for number, image in enumerate(arrows(240, 0).images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{number}.png")
    return folder


def test_a_folder_without_labels_makes_a_canonicalizer(run, pictures, tmp_path):
    out, err = run("align", pictures, *SMALL, "--epochs", 10, "--out", tmp_path)
    assert "168/24/48 images, 32 x 32\n" in err
    assert "layers rotation, augmentation rotation=0.26, dilation=0.1\n" in err
    lines = out.splitlines()
    assert " % of 48 test images have a wrong canonical frame, by more than 0.2 half widths" in lines[0]
    assert lines[2].startswith("rotation ")
    assert "-3.14 .. +3.14" in lines[2]  # whole turns, though the augmentation is small
    assert lines[3] == f"canonicalizer: {tmp_path / FILE}"
    space = {"et": et, "backbone": nn.Flatten()}
    for line in lines[4:]:
        exec(line.strip(), space)
    canonicalizer, model = space["canonicalizer"], space["model"]
    assert isinstance(model, et.Canonicalized)

    images = arrows(48, 9)
    start = Augmentation({"rotation": 3}).each(images.images)
    pixels = images.images / 255  # not normalised: the predictor standardises each image
    untrained = et.Canonicalizer(["rotation"], in_channels=3).eval()
    losses = [et.alignment_loss(one(pixels, start)).item() for one in (canonicalizer, untrained)]
    assert losses[0] < losses[1] - 1
    assert median_error(canonicalizer, images) < 15

    card = read_canonicalizer(tmp_path / FILE)[1]
    assert (card.in_channels, card.predictor, card.fill) == (3, "posterior", None)
    assert (card.training["images"], card.training["size"], card.training["config"]["epochs"]) == (168, [32, 32], 10)
    assert card.training["test_error"] == pytest.approx(float(lines[0].split()[0]), abs=0.01)
    found = json.loads(run("align", pictures, *SMALL, "--epochs", 10, "--out", tmp_path, "--json").out)
    assert (found["file"], found["test_error"]) == (str(tmp_path / FILE), card.training["test_error"])
    assert found["audit"]["fixed_frame"][0]["name"] == "rotation"


def test_a_frozen_backbone_stays_as_it_is(tmp_path):
    et.hub.save_canonicalizer(et.Canonicalizer(["rotation"], in_channels=3), tmp_path / FILE)
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(2)).eval()
    images = torch.rand(2, 3, 16, 16)
    expected = backbone(images)
    model = et.Canonicalized(backbone.requires_grad_(False), et.hub.load_canonicalizer(tmp_path / FILE))
    assert torch.allclose(model(images), expected, atol=1e-5)  # an untrained canonicalizer is the identity
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    optimizer = torch.optim.Adam((weight for weight in model.parameters() if weight.requires_grad), 1e-2)
    head = model.canonicalizer.layers[0].predictor.head.weight
    model.canonicalizer.train()
    et.alignment_loss(model.canonicalizer(images, Augmentation({"rotation": 0.3}).random(images))).backward()
    optimizer.step()
    assert head.abs().sum() > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in backbone.state_dict().items())


def test_a_killed_run_resumes_to_the_same_weights(run, pictures, tmp_path):
    command = ["align", pictures, *SMALL, "--out", tmp_path / "cut"]
    arguments = [sys.executable, "-m", "equivariant_transformers", *map(str, [*command, "--epochs", 200])]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    while not (tmp_path / "cut" / FILE).exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert err.splitlines()[-1] == "stopped by SIGTERM; the run is saved, resume with the same command"
    epochs = err.count("\nepoch ") + 1
    run(*command, "--epochs", epochs, "--lr-decay", 1, code=2)  # not a flag of this command
    _, there = read(tmp_path / "cut" / CHECKPOINT)
    assert there["config"]["epochs"] == 200
    # Decay and warm-up are chosen from the images, so that a run can be resumed for another number of epochs.
    run(*command, "--epochs", epochs)
    run(*command[:-1], tmp_path / "whole", "--epochs", epochs)
    cut, whole = (et.hub.load_canonicalizer(tmp_path / name / FILE).state_dict() for name in ("cut", "whole"))
    assert all(torch.equal(tensor, whole[name]) for name, tensor in cut.items())
    other = run(*command, "--epochs", epochs, "--layers", "dilation", code=1).err
    assert "belongs to another run" in other
    assert "'dilation'" in other
    Image.new("RGB", (32, 32)).save(pictures / "new.png")
    try:
        assert "belongs to a run on other images" in run(*command, "--epochs", epochs, code=1).err
    finally:
        (pictures / "new.png").unlink()
    run(*command, "--epochs", 1, "--fresh")


def test_class_folders_and_data_sets_are_read_without_their_labels(run, tmp_path, monkeypatch):
    for number, image in enumerate(arrows(40, 1).images):
        folder = tmp_path / "data" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{number}.png")
    _, err = run("align", tmp_path / "data", *SMALL, "--epochs", 1, "--out", tmp_path / "folder")
    assert "28/4/8 images" in err

    def drawn(progress=None):
        return et.data.Splits(*(arrows(32, seed) for seed in range(3)))

    source = Source(name="arrows", summary="", licence="", download_bytes=0, load=drawn)
    monkeypatch.setitem(DATASETS, "arrows", source)
    monkeypatch.chdir(tmp_path)
    options = ("--layers", "x_shear,cartesian", "--epochs", 1)
    _, err = run("align", "arrows", *options, "--out", "set")
    augmentation = "rotation=0.26, dilation=0.1, x_shear=0.4, x_translation=0.4, y_translation=0.4"
    assert f"layers x_shear, cartesian, augmentation {augmentation}\n" in err
    out = et.hub.load_canonicalizer("set/" + FILE)(torch.rand(2, 3, 32, 32))
    assert out.names == ("x_shear", "x_translation", "y_translation")


@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        (("--layers", "spin"), "unknown chart 'spin'", 2),
        (("--layers", "none"), "nothing to train: give --layers, for example rotation", 2),
        (("--layers", "x_shear", "--augment", "rotation=0.2"), "add x_shear=0.4 to augment", 2),
        (("--augment", "none"), "alignment must be 0 without augment", 2),
        (("--epochs", "0"), "epochs must be at least 1", 2),
        (("--predictor", "direct"), "No such option: --predictor", 2),
    ],
)
def test_wrong_options_are_wrong_usage(run, pictures, tmp_path, options, message, code):
    assert message in run("align", pictures, *SMALL, *options, "--out", tmp_path / "run", code=code).err
    assert not (tmp_path / "run" / FILE).exists()


def test_a_folder_without_images_is_named(run, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no readable image in" in run("align", tmp_path / "empty", "--out", tmp_path / "run", code=1).err
    assert "there is no folder" in run("align", tmp_path / "nowhere", "--out", tmp_path / "run", code=2).err
    Image.new("RGB", (32, 32)).save(tmp_path / "empty" / "one.png")
    assert "1 images are too few" in run("align", tmp_path / "empty", "--out", tmp_path / "run", code=1).err
