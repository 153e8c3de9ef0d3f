"""What the demo shows is what the networks do, and the page's HTML says it."""

import dataclasses
import html
import math
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equivariant_transformers import cli
from equivariant_transformers.data.imageset import ImageSet
from equivariant_transformers.data.mnist_set import Digits
from equivariant_transformers.data.projective_mnist_set import PERSPECTIVE, POSE_NAMES, RANGES
from equivariant_transformers.data.synthesis import image_set
from equivariant_transformers.demo import drawing, opening, photographs, poses, scene, uploads
from equivariant_transformers.demo.work import Work
from equivariant_transformers.hub.classifier import Card, Classifier
from equivariant_transformers.hub.zoo import find
from equivariant_transformers.training import Config

REST = dict.fromkeys(POSE_NAMES, 0.0)
BENT = {**REST, "rotation": 0.4, "x_shear": -0.7, "dilation": -0.3, "x_perspective": 0.5}


def network(seed=0, channels=1, size=64, classes=tuple("0123456789"), **config):
    torch.manual_seed(seed)
    blank = torch.zeros(1, channels, size, size, dtype=torch.uint8)
    images = ImageSet(images=blank, labels=torch.zeros(1, dtype=torch.long), name="blank", std=(60.0,), classes=classes)
    card = Card.of(Config(**{"layers": ("x_shear", "hyperbolic_rotation"), "chart": "log_polar", **config}), images)
    return Classifier(card.build(), card).eval()


@pytest.fixture(scope="module")
def model():
    return network()


@pytest.fixture(scope="module")
def plain():
    return network(1, layers=(), chart=None)


@pytest.fixture(scope="module")
def digit():
    return uploads.samples()[7]


@pytest.mark.parametrize("slider", poses.SLIDERS, ids=lambda slider: slider.group)
def test_a_slider_covers_the_range_of_projective_mnist(slider):
    assert sorted(map(slider.to_theta, slider.range)) == pytest.approx(sorted(RANGES[slider.group]))
    assert slider.to_theta(slider.rest) == 0
    assert slider.range[0] <= slider.rest <= slider.range[1]


@pytest.mark.parametrize("slider", poses.SLIDERS, ids=lambda slider: slider.group)
@given(number=st.none() | st.integers() | st.floats(allow_nan=False))
def test_any_number_of_a_slider_gives_a_parameter_in_its_range(slider, number):
    low, high = RANGES[slider.group]
    theta = slider.to_theta(slider.nearest(number))
    assert low - 1e-9 <= theta <= high + 1e-9
    if number is None:
        assert theta == 0
    elif slider.range[0] <= number <= slider.range[1]:
        assert theta == slider.to_theta(number)


@given(st.fixed_dictionaries({name: st.floats(-4, 4) for name in POSE_NAMES}))
def test_a_possible_pose_is_one_of_projective_mnist(pose):
    found = poses.possible(pose)
    assert abs(found["x_perspective"]) + abs(found["y_perspective"]) <= PERSPECTIVE + 1e-6
    for name, (low, high) in RANGES.items():
        assert low <= found[name] <= high
        low, high = poses.room(name, found)
        assert low - 1e-6 <= found[name] <= high + 1e-6
    assert poses.possible(found) == pytest.approx(found)


@pytest.mark.parametrize("pose", [REST, BENT])
def test_the_distorted_picture_is_that_of_the_data_set(model, digit, pose):
    thetas = torch.tensor([[pose[name] for name in POSE_NAMES]])
    base = Digits(digit[None], torch.tensor([7]))
    expected = image_set(base, thetas, POSE_NAMES, size=64, name="", origin="", mode="sharp_bicubic").images[0]
    assert torch.equal(scene.make_scene(model, None, digit, pose).distorted, expected)


def test_a_scene_is_what_the_networks_say(model, plain, digit):
    found = scene.make_scene(model, plain, digit, BENT)
    with torch.no_grad():
        torch.testing.assert_close(torch.tensor(found.shares), model(found.distorted[None])[0].softmax(0))
        torch.testing.assert_close(torch.tensor(found.plain_shares), plain(found.distorted[None])[0].softmax(0))
        out = model.canonicalize(found.distorted[None])
    assert torch.equal(found.canonical, model.to_bytes(out.image)[0])
    assert torch.equal(found.canonical, found.layers[-1].image)
    assert [layer.groups for layer in found.layers] == [("x_shear",), ("hyperbolic_rotation",)]
    assert [axis.pose for layer in found.layers for axis in layer.axes] == pytest.approx(out.pose[0].tolist())


def test_the_marker_stands_where_the_heat_is(model, digit):
    for layer in scene.make_scene(model, None, digit, BENT).layers:
        for axis in layer.axes:
            centre = sum(place * weight for place, weight in zip(axis.positions, axis.weights, strict=True))
            assert axis.marker == pytest.approx(centre / sum(axis.weights), abs=1e-3)


@pytest.mark.parametrize(
    ("group", "slider"), [("x_shear", (-0.8, 0.8)), ("hyperbolic_rotation", (-0.3, 0.3)), ("dilation", (1.1, 1.9))]
)
def test_the_marker_and_the_content_move_with_the_slider(digit, group, slider):
    to_theta = next(each.to_theta for each in poses.SLIDERS if each.group == group)
    single = network(4, layers=(group,))
    views = [scene.make_scene(single, None, digit, {**REST, group: to_theta(value)}).layers[0] for value in slider]
    assert views[0].axes[0].marker < views[1].axes[0].marker - 0.02
    columns = [view.seen.double().sum((0, 1)) for view in views]
    places = [float((each * torch.linspace(0, 1, len(each))).sum() / each.sum()) for each in columns]
    assert places[0] < places[1] - 0.02


def test_an_axis_of_a_rotation_runs_with_its_slider(digit):
    single = network(4, layers=("rotation",))
    axes = [scene.make_scene(single, None, digit, {**REST, "rotation": turn}).layers[0].axes[0] for turn in (0.0, 0.5)]
    assert (axes[1].marker - axes[0].marker) % 1 == pytest.approx(0.5 / (2 * math.pi), abs=0.03)


@given(low=st.floats(-1e4, 1e4), width=st.floats(1e-3, 1e4))
def test_ticks_are_few_round_numbers_in_their_range(low, width):
    found = drawing.ticks(low, low + width)
    assert 2 <= len(found) <= 6
    for value, label in found:
        assert low - 1e-5 * width <= value <= low + (1 + 1e-5) * width
        assert float(label) == pytest.approx(value, abs=1e-3 * width)


@pytest.mark.parametrize("slider", poses.SLIDERS, ids=lambda slider: slider.group)
@given(error=st.floats(-0.01, 0.01))
def test_a_small_error_of_a_curve_does_not_change_its_ticks(slider, error):
    low, high = slider.range
    expected = [label for _, label in drawing.ticks(low, high)]
    found = [label for _, label in drawing.ticks(low - abs(error), high + abs(error) / 3)]
    assert found == expected
    assert max(map(len, found)) <= 4


def test_the_demo_opens_where_the_plain_network_fails():
    model, plain = (find(name) for name in ("projective-mnist", "projective-mnist-plain"))
    index, pose = opening.of_digits(model, plain, uploads.samples())
    shown = scene.make_scene(model, plain, uploads.samples()[index], pose)
    assert max(range(10), key=shown.shares.__getitem__) == index
    assert max(range(10), key=shown.plain_shares.__getitem__) != index
    assert poses.possible(pose) == pytest.approx(pose)


def test_the_demo_opens_upright_if_there_is_nothing_to_compare(model, plain):
    assert opening.of_digits(model, None, uploads.samples()) == (7, REST)
    assert opening.of_digits(model, model, uploads.samples()) == (7, REST)  # never wrong where the other is right
    assert opening.of_digits(network(classes=("a", "b")), plain, uploads.samples()) == (7, REST)


@torch.no_grad()
def test_the_first_photograph_is_turned_back():
    uprighting = photographs.uprighting()
    index, turn = opening.of_photographs(uprighting, photographs.samples())
    pose = torch.tensor([[turn if name == "rotation" else 0.0 for name in POSE_NAMES]])
    found = uprighting(photographs.samples()[index : index + 1], pose)
    assert abs(turn) >= math.pi / 2 - 1e-3
    assert math.remainder(float(found["predicted"]) - turn, 2 * math.pi) == pytest.approx(0, abs=math.radians(10))
    side = photographs.SIDE
    inside = torch.hypot(*torch.meshgrid(*[torch.linspace(-1, 1, side)] * 2, indexing="ij")) < 0.9
    before, after = (
        (found[name][0].float() - photographs.samples()[index].float()).abs()[:, inside].mean()
        for name in ("distorted", "canonical")
    )
    assert after < 0.5 * before


@pytest.mark.parametrize(
    "config",
    [
        {"layers": ("log_polar", "cartesian")},
        {"layers": ("rotation",), "predictor": "softmax"},
        {"layers": ("x_perspective",), "predictor": "direct"},
        {"layers": ("x_shear",), "channels": 3, "size": 56, "classes": ("<b>", "&")},
    ],
    ids=lambda config: config["layers"][0],
)
def test_other_networks_can_be_shown(config, digit):
    other = network(**config)
    scene.check(other, None, uploads.SIDE)
    found = scene.make_scene(other, None, digit, BENT)
    kinds = 0 if config.get("predictor") == "direct" else len(found.layers[0].groups)
    assert [len(layer.axes) for layer in found.layers] == [kinds] * len(found.layers)
    assert all(0 <= axis.marker <= 1 for layer in found.layers for axis in layer.axes)
    for text in (drawing.hero(found), drawing.classes(found), drawing.layers(found)):
        assert outline(text)
    for name in other.card.classes:
        assert f"<b>{html.escape(name)}</b>" in drawing.classes(found)


@pytest.mark.parametrize("group", POSE_NAMES)
def test_an_orbit_goes_through_the_scene(model, plain, digit, group):
    low, high = poses.room(group, BENT)
    pose = {**BENT, group: (low + high) / 2}
    orbit = scene.make_orbit(model, plain, digit, pose, group, label=3, samples=3)
    assert orbit.thetas == pytest.approx([low, pose[group], high])
    here = scene.make_scene(model, plain, digit, pose)
    assert orbit.name == "3"
    assert orbit.shares[1] == pytest.approx(here.shares[3], abs=1e-4)
    assert orbit.plain_shares[1] == pytest.approx(here.plain_shares[3], abs=1e-4)
    has_layer, shifts = group in ("x_shear", "hyperbolic_rotation"), group in ("rotation", "dilation")
    assert (orbit.predicted is not None, orbit.shifts_in == "log_polar") == (has_layer, shifts)
    if has_layer:
        assert orbit.predicted[1] == pytest.approx(pose[group], abs=1e-2)


@pytest.mark.parametrize("group", ["x_shear", "rotation"])
@pytest.mark.parametrize("pose", [REST, {**BENT, "x_shear": 0.0}])
def test_a_predicted_pose_follows_the_orbit_whatever_the_weights(digit, group, pose):
    orbit = scene.make_orbit(network(5, layers=(group,)), None, digit, pose, group, samples=9)
    errors = [
        math.remainder(found - theta, 2 * math.pi) for found, theta in zip(orbit.predicted, orbit.thetas, strict=True)
    ]
    assert max(map(abs, errors)) < 0.15


def test_the_class_of_an_unknown_digit_is_the_one_that_is_seen(model, digit):
    seen = scene.make_scene(model, None, digit, BENT)
    orbit = scene.make_orbit(model, None, digit, BENT, "x_shear", samples=2)
    assert orbit.name == seen.classes[max(range(10), key=seen.shares.__getitem__)]


def test_networks_that_cannot_be_shown_are_refused(model, plain):
    scene.check(model, plain, 28)
    with pytest.raises(ValueError, match="no layers to show"):
        scene.check(plain, None, 28)
    with pytest.raises(ValueError, match="at least 28 x 28"):
        scene.check(network(size=24), None, 28)
    with pytest.raises(ValueError, match="must have the same channels, size and classes"):
        scene.check(model, network(layers=(), chart=None, size=40), 28)


class _Outline(HTMLParser):
    """The elements of a text, each closed as it was opened."""

    def __init__(self):
        super().__init__()
        self.open, self.classes = [], []

    def handle_starttag(self, tag, attributes):
        self.classes += (dict(attributes).get("class") or "").split()
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def outline(text):
    parser = _Outline()
    parser.feed(text)
    parser.close()
    assert not parser.open
    return parser.classes


def test_the_page_shows_all_of_a_scene(model, plain, digit):
    found = scene.make_scene(model, plain, digit, BENT)
    assert outline(drawing.hero(found)).count("et-picture") == 2
    assert outline(drawing.classes(found)).count("et-bars") == 2
    cards = outline(drawing.layers(found))
    assert cards.count("et-card") == 2
    assert cards.count("et-heat") == 2
    assert f"{found.layers[0].axes[0].pose:+.2f}" in drawing.layers(found)
    alone = dataclasses.replace(found, plain_shares=None)
    assert outline(drawing.classes(alone)).count("et-bars") == 1


def test_an_orbit_has_a_second_plot_where_a_layer_predicts(model, plain, digit):
    orbits = [scene.make_orbit(model, plain, digit, BENT, group, samples=3) for group in ("x_shear", "dilation")]
    assert [outline(drawing.orbit(orbit)).count("et-plot") for orbit in orbits] == [2, 1]
    still = scene.make_orbit(model, plain, digit, {**REST, "y_perspective": PERSPECTIVE}, "x_perspective", samples=3)
    assert "nan" not in drawing.orbit(still)


def test_messages_are_text():
    assert "&lt;script&gt;" in drawing.note("<script>")
    assert drawing.note("") == ""


def test_errors_of_the_command_are_one_line(plain, model, tmp_path, capsys):
    plain.save(tmp_path / "plain.safetensors")
    model.save(tmp_path / "model.safetensors")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for arguments, message in (
            (["--model", str(tmp_path / "plain.safetensors")], "no layers to show"),
            (["--model", str(tmp_path / "none.safetensors")], "none.safetensors"),
            (["--model", str(tmp_path / "model.safetensors"), "--port", port], f"port {port} is in use"),
        ):
            assert cli.main(["demo", "--no-browser", *arguments]) == 1
            error = capsys.readouterr().err
            assert message in error
            assert error.count("\n") == 1


def test_work_under_way_is_waited_for():
    work, begun, may_end = Work(), threading.Event(), threading.Event()

    @work.counted
    def draw():
        begun.set()
        may_end.wait()
        raise RuntimeError("which ends it as well")

    with ThreadPoolExecutor() as pool:
        drawn = pool.submit(draw)
        begun.wait()
        assert not work.wait(seconds=0.05)
        may_end.set()
        assert work.wait(seconds=10)
        assert drawn.exception() is not None
    assert work.wait(seconds=0)
