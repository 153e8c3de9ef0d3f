"""Canonicalizers on the command line: measured and used as they are, on pictures of any shape, without labels."""

import json
import math

import pytest
import torch
from oriented import arrows
from PIL import Image

import equivariant_transformers as et
from equivariant_transformers.data import pictures
from equivariant_transformers.geometry.motion import group_warp
from equivariant_transformers.hub.classifier import Classifier
from equivariant_transformers.hub.zoo import find_canonicalizer


def size_of(path):
    with Image.open(path) as picture:
        return picture.size


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A file whose canonicalizer follows rotations with any weights."""
    path = tmp_path_factory.mktemp("hub") / "canonicalizer.safetensors"
    torch.manual_seed(0)
    canonicalizer = et.Canonicalizer(["rotation"], in_channels=3, predictor="consistent")
    et.hub.save_canonicalizer(canonicalizer, path, {"size": [32, 48]})
    return path


@pytest.fixture
def folder(tmp_path):
    """A folder without class folders: a picture, and the picture turned by an eighth, both 40 x 60."""
    picture = torch.zeros(1, 3, 40, 60)
    picture[..., 16:22, 20:42], picture[..., 12:16, 36:42] = 1, 0.5
    turned = group_warp(et.group("rotation"), torch.tensor([math.pi / 4])).image(picture, antialias=True)
    for name, image in {"as it was": picture, "turned": turned}.items():
        pictures.to_picture(image[0].clamp(0, 1)).save(tmp_path / f"{name}.png")
    return tmp_path


def test_predict_prints_poses_and_writes_pictures_of_the_size_of_the_file(run, file, folder, tmp_path):
    out = tmp_path / "canonical"
    found = json.loads(run("predict", file, folder, "--canonical-out", out, "--json").out)
    first, second = (entry["pose"]["rotation"] for entry in found)
    assert math.remainder(second - first - math.pi / 4, 2 * math.pi) == pytest.approx(0, abs=0.1)
    assert found[0].keys() == {"image", "pose", "canonical"}  # no class
    assert [size_of(entry["canonical"]) for entry in found] == [(60, 40), (60, 40)]
    images = [pictures.read(path, (40, 60), 3) for path in sorted(out.iterdir())]
    one, other = (torch.tensor(image).float() for image in images)
    assert (one - other).abs().mean() < 8
    header, *rows = run("predict", file, folder / "turned.png").out.splitlines()
    assert header.split() == ["image", "rotation"]
    assert len(rows) == 1


def test_a_large_picture_is_reduced_and_a_broken_one_named(run, file, tmp_path):
    Image.new("RGB", (3000, 30), "red").save(tmp_path / "long.png")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    found = run("predict", file, tmp_path, "--canonical-out", tmp_path / "out", "--json", code=1)
    assert "broken.png: not an image" in found.err
    assert size_of(tmp_path / "out" / "long.png") == (1024, 10)


def test_audit_measures_it_on_a_folder_without_classes(run, file, tmp_path):
    for number, image in enumerate(arrows(10, 0).images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{number}.png")
    found = json.loads(run("audit", file, "--dataset", tmp_path, "--count", 2, "--json").out)
    assert found["images"] == 2
    assert found["parameters"][0]["slope"] == pytest.approx(1, abs=0.05)
    assert found["frames"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "FILE", "x.png", "--tta", 2], "omit --tta, --poses and --network"),
        (["predict", "FILE", "x.png", "--poses", 2], "omit --tta, --poses and --network"),
        (["evaluate", "FILE"], "is a canonicalizer without a classifier"),
        (["predict", "FOLDER", "x.png"], "is a folder; give the model file in it, such as "),
    ],
)
def test_what_it_cannot_do_is_refused(run, file, arguments, message):
    names = {"FILE": file, "FOLDER": file.parent}
    code = 1 if "evaluate" in arguments else 2
    assert message in run(*(names.get(word, word) for word in arguments), code=code).err


def test_a_classifier_is_no_canonicalizer(tmp_path):
    et.pretrained("projective-mnist").save(tmp_path / "model")
    assert find_canonicalizer(tmp_path / "model") is find_canonicalizer("projective-mnist") is None
    assert isinstance(find_canonicalizer("upright")[0], et.Canonicalizer)
    assert isinstance(Classifier.load(tmp_path / "model"), Classifier)
