"""Exported networks compute what the networks themselves do: pixels, poses and logits, in batches of any size."""

import json
import sys

import pytest
import torch
from torch import nn

import equivariant_transformers as et
from equivariant_transformers import cli
from equivariant_transformers.classifier import Card, Classifier
from equivariant_transformers.data import ImageSet
from equivariant_transformers.export import OPSET, ExportError, to_onnx, to_program
from equivariant_transformers.pose import SoftmaxPredictor
from equivariant_transformers.training import Config

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

GROUPS = list(et.GROUPS)


def clouds(count, side):
    coarse = torch.rand(count, 1, 5, 5, generator=torch.Generator().manual_seed(1))
    return nn.functional.interpolate(coarse, (side, side), mode="bilinear", align_corners=True)


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
                background=0.0,
            )
            for chart in charts
        )

    def forward(self, images):
        found = [stack(images) for stack in self.stacks]
        return [out.image for out in found], [out.pose for out in found]


# Several groups go into one file and its batch is fixed, since exporting is slow: some milliseconds for each operation,
# and several times that for a batch of any size.
@pytest.mark.parametrize("groups", [GROUPS[:4], GROUPS[4:8], GROUPS[8:]], ids=" ".join)
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch about torch
@torch.no_grad()
def test_onnx_has_the_pixels_and_poses_of_every_group_and_predictor(groups):
    torch.manual_seed(0)
    module, images = decided(Stacks(groups)), clouds(3, 16)
    program = torch.onnx.export(
        torch.export.export(module, (images,)), (), dynamo=True, opset_version=OPSET, optimize=False, verbose=False
    )
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    found = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    pictures, poses = module(images)
    for name, here, there in zip(groups * 2, pictures + poses, found, strict=True):
        torch.testing.assert_close(torch.from_numpy(there), here, rtol=0, atol=1e-4, msg=name)
    for name, picture, pose in zip(groups, pictures, poses, strict=True):
        assert pose.abs().max() > 1e-3, name  # there was something to remove
        assert (picture - images).abs().max() > 1e-2, name


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The file of a classifier that sees log-polar pictures behind two layers; its weights are random."""
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
def test_a_model_is_exported_for_any_batch(model, tmp_path, capfd, name, load, form):
    assert cli.main(["export", str(tmp_path / "out" / name), "--model", str(model), "--json"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    said = json.loads(out)
    assert said["file"] == str(tmp_path / "out" / name)
    assert said["format"] == form
    assert 0 <= said["difference"] <= 1e-4
    exported, card = load(said["file"])
    classifier = Classifier.load(model)
    assert Card.from_dict(json.loads(card)) == classifier.card
    for count in (1, 5):
        images = (255 * clouds(count, 64)).to(torch.uint8)
        torch.testing.assert_close(exported(images), classifier(images), rtol=0, atol=1e-4)


@torch.no_grad()
def test_layers_are_exported_with_their_pictures(tmp_path):
    torch.manual_seed(0)
    chart = et.chart("x_translation").replace(size=(12, 12))
    canonicalizer = et.Canonicalizer([chart], predictor="softmax", channels=4)
    assert to_program(canonicalizer, tmp_path / "layer.pt2", clouds(1, 16)) <= 1e-4
    assert canonicalizer.training  # the module itself stays as it was
    found = torch.export.load(tmp_path / "layer.pt2").module()(clouds(4, 16))
    expected = canonicalizer.eval()(clouds(4, 16))
    for here, there in zip((expected.image, expected.pose, expected.confidence), found, strict=True):
        torch.testing.assert_close(there, here, rtol=0, atol=1e-4)


class Fickle(nn.Module):
    """Does one thing itself and another when it is exported."""

    def forward(self, images):
        return images + 1e-3 if torch.compiler.is_exporting() else images


@pytest.mark.parametrize("write", [to_onnx, to_program])
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_nothing_is_written_that_computes_something_else(write, tmp_path):
    with pytest.raises(ExportError, match=r"differs from the network itself by 1\.0e-03, more than 1e-04"):
        write(Fickle(), tmp_path / "file", torch.rand(1, 1, 4, 4))
    assert not list(tmp_path.iterdir())


def test_what_export_needs(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="a Canonicalizer can take images of any kind: give some"):
        to_program(et.Canonicalizer(["rotation"]), tmp_path / "layer.pt2")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModuleNotFoundError, match=r"onnxruntime: pip install 'equivariant-transformers\[export\]'"):
        to_onnx(et.Canonicalizer(["rotation"]), tmp_path / "layer.onnx", torch.rand(1, 1, 16, 16))
