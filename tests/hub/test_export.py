"""Exported networks compute what the networks themselves do: pixels, poses and logits, in batches of any size."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import equivariant_transformers as et
from equivariant_transformers import cli
from equivariant_transformers.data import ImageSet
from equivariant_transformers.hub.classifier import Card, Classifier
from equivariant_transformers.hub.export import OPSET, ExportError, blobs, to_onnx, to_program
from equivariant_transformers.nn import Step
from equivariant_transformers.nn.predictors import SoftmaxPredictor
from equivariant_transformers.training import Config

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

GROUPS = list(et.GROUPS)
PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text()


@torch.no_grad()
def decided(module):
    """`module`, ready for use, with sharp heat maps as training makes them: the centre of a flat one is rounding."""
    for part in module.modules():
        if isinstance(part, SoftmaxPredictor):
            for conv in part.maps:
                conv.weight *= 20
    return module.eval()


class Stacks(nn.Module):
    """For each group a layer of either predictor, one after the other: one picture and two poses a group."""

    def __init__(self, groups):
        super().__init__()
        charts = [et.chart(name).replace(size=(12, 12)) for name in groups]
        self.stacks = nn.ModuleList(
            et.Canonicalizer(
                [et.EquivariantTransformer(chart, predictor=kind, channels=4) for kind in ("consistent", "softmax")],
                fill=0.0,
                predictor="consistent",
            )
            for chart in charts
        )

    def forward(self, images):
        found = [stack(images) for stack in self.stacks]
        return [out.image for out in found], [out.pose for out in found]


# Several groups go into one file, since exporting is slow: some ten milliseconds for each operation.
@pytest.mark.parametrize("groups", [GROUPS[:4], GROUPS[4:8], GROUPS[8:]], ids=" ".join)
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch about torch
@torch.no_grad()
def test_onnx_has_the_pixels_and_poses_of_every_group_and_predictor_for_any_batch(groups):
    torch.manual_seed(0)
    module, images = decided(Stacks(groups)), blobs(3, 1, (16, 16))
    exported = torch.export.export(module, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    program = torch.onnx.export(exported, (), dynamo=True, opset_version=OPSET, optimize=False, verbose=False)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    for batch in (images[:1], blobs(7, 1, (16, 16)), images):
        found = session.run(None, {session.get_inputs()[0].name: batch.numpy()})
        pictures, poses = module(batch)
        for name, here, there in zip(groups * 2, pictures + poses, found, strict=True):
            torch.testing.assert_close(torch.from_numpy(there), here, rtol=0, atol=1e-4, msg=name)
    for name, picture, pose in zip(groups, pictures, poses, strict=True):
        assert pose.abs().max() > 1e-3, name  # there was something to remove
        assert (picture - images).abs().max() > 1e-2, name


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """File of a classifier with log-polar coordinates behind two layers and with random weights."""
    digits = ImageSet(
        images=torch.zeros(10, 1, 64, 64, dtype=torch.uint8),
        labels=torch.arange(10),
        name="blank",
        mean=(16.0,),
        std=(56.0,),
    )
    torch.manual_seed(0)
    card = Card.of(Config(layers=("x_shear", "y_translation"), predictor="softmax", chart="log_polar"), digits)
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    Classifier(decided(card.build()), card).save(path)
    return path


def load_onnx(path):
    session = onnxruntime.InferenceSession(path)
    (image,), (logits,) = session.get_inputs(), session.get_outputs()
    assert (image.name, image.type, image.shape) == ("images", "tensor(uint8)", ["batch", 1, 64, 64])
    assert (logits.name, logits.shape) == ("logits", ["batch", 10])
    card = session.get_modelmeta().custom_metadata_map["card"]
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0]), card


def load_program(path):
    files = {"card.json": ""}
    return torch.export.load(path, extra_files=files).module(), files["card.json"]


@pytest.mark.parametrize(
    ("name", "load", "form"),
    [("model.onnx", load_onnx, "ONNX, opset 18"), ("model.pt2", load_program, "a program of torch.export")],
)
@torch.no_grad()
def test_a_model_is_exported_for_any_batch(model, tmp_path, monkeypatch, capfd, name, load, form):
    assert cli.main(["export", str(tmp_path / "out" / name), "--model", str(model), "--json"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    said = json.loads(out)
    assert said["file"] == str(tmp_path / "out" / name)
    assert said["format"] == form
    assert 0 <= said["difference"] <= 1e-4
    if name == "model.onnx":  # the exporter notes stack traces
        content = Path(said["file"]).read_bytes()
        assert b"stack_trace" not in content
        assert str(Path(et.__file__).parent).encode() not in content
    exported, card = load(said["file"])
    classifier = Classifier.load(model)
    assert Card.from_dict(json.loads(card)) == classifier.card
    for count in (1, 5):
        images = (255 * blobs(count, 1, (64, 64))).to(torch.uint8)
        torch.testing.assert_close(exported(images), classifier(images), rtol=0, atol=1e-4)
    monkeypatch.chdir(tmp_path / "out")
    run_page(name, {})


def run_page(about, names):
    """Run the blocks of the page that name a file."""
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        if about in block:
            exec(compile(block, "docs/export.md", "exec"), names)


@torch.no_grad()
def test_layers_are_exported_with_their_pictures(tmp_path, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    names = {}
    run_page("layer.pt2", names)
    canonicalizer, images = names["canonicalizer"], blobs(4, 1, (32, 32))
    assert canonicalizer.training  # the module itself stays as it was
    expected = canonicalizer.eval()(images)
    found = torch.export.load(tmp_path / "layer.pt2").module()(images)
    for here, there in zip((expected.image, expected.pose, expected.confidence), found, strict=True):
        torch.testing.assert_close(there, here, rtol=0, atol=1e-4)


class Still(nn.Module):
    """A layer that finds nothing."""

    def forward(self, images):
        zero = images.mean((1, 2, 3))[:, None] * 0
        return et.Canonicalization(images, (Step(None, zero, zero, (), et.Warp.identity()),), 0.0)


def test_outputs_have_names(tmp_path):
    images = blobs(2, 1, (4, 4))
    assert to_onnx(Still(), tmp_path / "layer.onnx", images) == 0
    session = onnxruntime.InferenceSession(tmp_path / "layer.onnx")
    assert [output.name for output in session.get_outputs()] == ["image", "pose", "confidence"]
    assert torch.equal(torch.from_numpy(session.run(["image"], {"images": images.numpy()})[0]), images)


class Fickle(nn.Module):
    """Does one thing itself and another when it is exported."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, images):
        return images + self.error if torch.compiler.is_exporting() else images


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [(to_onnx, 1e-3, r"1\.0e-03"), (to_program, 1e-3, r"1\.0e-03"), (to_program, float("nan"), "nan")],
)
def test_nothing_is_written_that_computes_something_else(write, error, message, tmp_path):
    with pytest.raises(ExportError, match=rf"differs from the network itself by {message}, more than 1e-04"):
        write(Fickle(error), tmp_path / "file", torch.rand(1, 1, 4, 4))
    assert not list(tmp_path.iterdir())


def test_what_export_needs(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="the export of a Canonicalizer needs example images"):
        to_program(et.Canonicalizer(["rotation"], predictor="consistent"), tmp_path / "layer.pt2")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModuleNotFoundError, match=r"onnxruntime: pip install .*\[export\]'"):
        to_onnx(
            et.Canonicalizer(["rotation"], predictor="consistent"), tmp_path / "layer.onnx", torch.rand(1, 1, 16, 16)
        )


def test_bad_arguments_are_named_before_the_export(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.export, "export", None)
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    images = torch.rand(1, 1, 4, 4)
    for path, message in (
        (tmp_path, "is not a regular file"),
        (tmp_path / "pipe", "is not a regular file"),
        (tmp_path / "file" / "x.pt2", "because .* is a file"),
        ("", "the path of a file to write, got ''"),
        ("a\0b", "the path of a file to write"),
        (None, "the path of a file to write, got None"),
    ):
        with pytest.raises(ValueError, match=message):
            to_program(nn.Identity(), path, images)
    for module, given, message in (
        (None, images, "only a module can be exported, got None"),
        (nn.Identity(), [1.0], r"a dense tensor with values, got \[1.0\]"),
        (nn.Identity(), images.to("meta"), "a dense tensor with values"),
        (nn.Identity(), images.to_sparse(), "a dense tensor with values"),
        (nn.Identity(), images[0], r"images \(B, C, H, W\), at least one; got shape"),
        (nn.Identity(), images[:0], r"images \(B, C, H, W\), at least one; got shape"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            to_program(module, tmp_path / "new.pt2", given)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "pipe"}


@torch.no_grad()
def test_a_regression_exports_its_values_in_their_units(tmp_path):
    images = torch.randint(256, (6, 1, 16, 20), dtype=torch.uint8)
    values = 1e6 + 5e4 * torch.rand(6, 2)
    card = Card.of(
        Config(task="regression"), ImageSet(images=images, labels=values, name="noise", classes=("weight", "height"))
    )
    module = card.build(
        lambda channels, count: nn.Sequential(nn.Conv2d(channels, count, 5), nn.AvgPool2d((12, 16)), nn.Flatten())
    )
    classifier = Classifier(module, card).eval()
    assert to_onnx(classifier, tmp_path / "model.onnx") < 1e-5  # relative to the values
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [output.name for output in session.get_outputs()] == ["values"]
    found = torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
    torch.testing.assert_close(found, classifier(images), rtol=1e-5, atol=0)
    assert (found / 1e6 - 1).abs().max() < 0.2
