"""`et.discover`: the group that moves a data set, found from the images alone."""

from dataclasses import replace

import pytest
import torch
from glyphs import glyphs
from hypothesis import given
from hypothesis import strategies as st

import equivariant_transformers as et
from equivariant_transformers.discovery import Found, commute, cosine
from equivariant_transformers.discovery.families import Polynomial, Projective
from equivariant_transformers.discovery.images import tangents
from equivariant_transformers.discovery.invariance import ratio
from equivariant_transformers.discovery.steps import Steps
from equivariant_transformers.discovery.visibility import least_visible
from equivariant_transformers.geometry.motion import group_warp

OFF_CENTRE = et.Group.from_generator([[0, -1, 0.1], [1, 0, -0.2], [0, 0, 0]], name="off-centre")


def moved(group=None, theta=(-0.5, 0.5), count=80, size=(32, 32), seed=0):
    """Glyphs under small random homographies, then under `group`, and their classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    natural = torch.eye(3) + 0.04 * torch.randn(count, 3, 3, generator=generator)
    warp = et.Warp.projective(natural)
    if group is not None:
        warp = warp @ group_warp(group, theta[0] + (theta[1] - theta[0]) * torch.rand(count, generator=generator))
    return warp.image(glyphs(128)[labels], size=size), labels


@pytest.mark.parametrize(
    ("group", "theta"),
    [
        (et.group("x_shear"), (-1.0, 1.0)),
        (OFF_CENTRE, (-0.8, 0.8)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_finds_the_group_that_moves_labelled_images(group, theta):
    result = et.discover(*moved(group, theta))
    assert abs(cosine(result.group, group)) > 0.97
    assert result.confidence > 0.5
    low, high = result.theta
    assert low < 0 < high


def test_finds_a_rotation_without_labels():
    images, _ = moved(et.group("rotation"), (-3.14, 3.14), count=1000)
    result = et.discover(images)
    assert abs(cosine(result.group, et.group("rotation"))) > 0.98
    assert result.theta is None
    assert result.found[0].explained is None


def test_finds_a_shear_in_images_that_are_not_square():
    result = et.discover(*moved(et.group("x_shear"), (-1.0, 1.0), size=(32, 44)))
    assert abs(cosine(result.group, et.group("x_shear"))) > 0.95


def test_reports_nothing_for_images_of_pure_noise():
    images = torch.rand(60, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    result = et.discover(images)
    assert result.group is None
    assert result.groups == ()
    assert "nothing found" in str(result)


@pytest.mark.parametrize("labelled", [True, False], ids=["labels", "no labels"])
def test_reports_nothing_for_images_that_no_single_group_moves(labelled):
    images, labels = moved(count=80 if labelled else 600)  # each under a random homography of its own
    result = et.discover(images, labels if labelled else None)
    assert result.group is None
    assert not labelled or result.rejected.explained > 0.4  # more than digits at rest


def test_reports_no_wrong_group_without_labels():
    images, _ = moved(et.group("dilation"), (-0.6, 0.6), count=300)
    result = et.discover(images)
    assert result.group is None or abs(cosine(result.group, et.group("dilation"))) > 0.9


def test_images_at_the_ends_of_the_range_do_not_tilt_the_least_visible_direction():
    generator = torch.Generator().manual_seed(0)
    motion = torch.randn(40_000, 3, generator=generator)
    visible = torch.tensor([0.0, 1.0, 1.0])
    predicted = 0.2 * (motion + 2 * torch.randn(motion.shape, generator=generator)) * visible  # best linear prediction
    ends = torch.arange(len(motion)) % 10 == 0  # a motion along the group is confused with the second direction
    together = 0.4 * (motion[ends, 0] + motion[ends, 1])
    predicted[ends] = torch.stack([together, together, 0 * together], 1)
    cross = predicted.T @ motion
    tilted = torch.linalg.eigh(cross + cross.T - predicted.T @ predicted)[1][:, 0]
    assert tilted[0].abs() < 0.98
    assert least_visible(predicted, motion, 1)[0, 0].abs() > 0.999


@given(change=st.floats(0, 10), agreement=st.floats(0, 1))
def test_confidence_without_labels_needs_a_gap_and_the_agreement_of_the_halves(change, agreement):
    entry = Found(et.group("rotation"), None, None, change, agreement)
    assert 0 <= entry.confidence <= 1
    if agreement < 0.89 or change > 0.51:
        assert not entry.significant
    if agreement > 0.91 and change < 0.49:
        assert entry.significant


@given(explained=st.floats(0, 1), change=st.floats(0, 10), agreement=st.floats(0, 1))
def test_confidence_needs_a_motion_and_the_agreement_of_the_halves(explained, change, agreement):
    entry = Found(et.group("rotation"), (-1, 1), explained, change, agreement)
    assert 0 <= entry.confidence <= 1
    assert entry.significant == (entry.confidence >= 0.5)
    if agreement < 0.89 or (explained < 0.39 and change > 0.11):
        assert not entry.significant
    if agreement > 0.91 and (explained > 0.41 or change < 0.09):
        assert entry.significant
    assert replace(entry, agreement=1.0).confidence >= entry.confidence


def test_the_ratio_supports_only_the_direction_of_least_change():
    values = torch.tensor([0.1, 1.0, 4.0])
    directions = torch.tensor([[1.0, 0.5, 0.0], [0.0, 2.0, 0.0], [0.3, 0.0, 1.0]])
    along = [ratio(3 * direction, values, directions) for direction in directions]
    assert along == pytest.approx([0.1, 1.0, 4.0])
    assert ratio(directions[0] + directions[1], values, directions) == pytest.approx(0.55)


def test_is_reproducible_and_leaves_the_random_state_alone():
    images, labels = moved(et.group("rotation"), (-1.0, 1.0), count=60)
    state = torch.get_rng_state()
    for known in (labels, None):
        first, second = (et.discover(images, known, seed=3) for _ in range(2))
        candidates = [result.group or result.rejected.group for result in (first, second)]
        assert candidates[0].generator == candidates[1].generator
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("labelled", [True, False], ids=["labels", "no labels"])
@pytest.mark.parametrize("stop", [0.3, 0.8])
def test_an_interrupted_search_resumes_with_the_same_result(labelled, stop, tmp_path):
    images, labels = moved(et.group("x_shear"), (-1.0, 1.0), count=60)
    search = (images, labels if labelled else None)
    state = tmp_path / "search.state"

    def interrupt(_, share):
        if share > stop:
            raise KeyboardInterrupt

    resumed_shares, shares = [], []
    with pytest.raises(KeyboardInterrupt):
        et.discover(*search, progress=interrupt, state=state)
    resumed = et.discover(*search, progress=lambda _, share: resumed_shares.append(share), state=state)
    whole = et.discover(*search, progress=lambda _, share: shares.append(share))
    assert str(resumed) == str(whole)
    generators = [(result.group or result.rejected.group).generator for result in (resumed, whole)]
    assert generators[0] == generators[1]
    assert len(resumed_shares) < len(shares) or stop == 0.3
    assert resumed_shares[-1] == 1
    assert not state.exists()


def test_a_state_of_other_images_and_a_damaged_state_are_ignored(tmp_path):
    generator = torch.Generator()
    path = tmp_path / "search.state"
    steps = [Steps(path, (torch.arange(3), "projective", seed), generator) for seed in (0, 1)]
    for expected in (0, 1):
        steps[expected].run("half 0", lambda expected=expected: (torch.full((2,), expected),))
        again = Steps(path, (torch.arange(3), "projective", expected), generator)
        assert again.run("half 0", lambda: (torch.zeros(0),))[0].tolist() == [expected] * 2
    assert "half 0" not in Steps(path, (torch.arange(4), "projective", 1), generator).saved
    for damage in (lambda: path.write_bytes(b"damaged"), lambda: torch.save([1, 2], path)):
        damage()
        assert "half 0" not in Steps(path, (torch.arange(3), "projective", 1), generator).saved


def test_the_found_group_makes_a_chart_and_a_layer():
    images, labels = moved(et.group("rotation"), (-1.0, 1.0), count=60)
    chart = et.derive(et.discover(images, labels).found[0].simplified)
    assert et.EquivariantTransformer(chart, in_channels=1)(images[:2]).image.shape == (2, 1, 32, 32)


@pytest.mark.parametrize(
    ("exact", "rounded"),
    [
        ([[0.01, 1, -0.1], [-1, -0.01, 0.3], [0.02, 0.03, 0]], [[0, 1, -0.1], [-1, 0, 0.3], [0, 0, 0]]),
        ([[0.01, -1, 0], [0.11, 0.01, 0], [0.01, 0, 0]], [[0, -1, 0], [0, 0, 0], [0, 0, 0]]),
        ([[1, 0.06, 0], [0.02, 0.06, 0], [0, 0.01, 0]], [[1, 0, 0], [0, 0, 0], [0, 0, 0]]),
    ],
    ids=["rotation off the centre", "x_shear", "x_scale"],
)
def test_the_simplified_group_is_near_and_of_the_kind_of_the_coarsest_rounding(exact, rounded):
    found = Found(et.Group.from_generator(exact), None, None, 0.0, 1.0)
    assert torch.equal(torch.tensor(found.simplified.generator), torch.tensor(rounded, dtype=torch.float32))


def test_reports_progress_up_to_one():
    shares = []
    et.discover(*moved(et.group("x_shear"), count=40), progress=lambda _, share: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == 1


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.rand(1, 1, 16, 16), "at least 20, got 1"),
        (torch.full((30, 1, 16, 16), 0.5), "constant"),
        (torch.rand(1, 1, 16, 16).expand(30, -1, -1, -1), "equal"),
        (torch.full((30, 1, 16, 16), torch.nan), "NaN"),
        (torch.rand(30, 1, 4, 16), "8 x 8"),
    ],
)
def test_refuses_images_without_information(images, message):
    with pytest.raises(ValueError, match=message):
        et.discover(images)


def test_refuses_wrong_types_labels_and_families():
    images, labels = moved(count=40)
    with pytest.raises(TypeError, match="255"):
        et.discover((255 * images).byte())
    with pytest.raises(ValueError, match="shape"):
        et.discover(images, labels[:5])
    with pytest.raises(ValueError, match="family"):
        et.discover(images, labels, family="affine")
    with pytest.raises(ValueError, match="count"):
        et.discover(images, labels, count=9)


def test_groups_that_do_not_commute_are_named():
    rotation, shear = et.group("rotation"), et.group("x_shear")
    assert commute(rotation, et.group("dilation"))
    assert not commute(rotation, shear)
    found = [et.discover(*moved(group, (-1, 1), count=60)).found[0] for group in (rotation, shear)]
    result = et.Discovery(tuple(found), None)
    assert not result.commute
    assert "do not commute" in str(result)


@pytest.mark.parametrize("family", [Projective(), Polynomial()], ids=["projective", "polynomial"])
def test_coefficients_per_image_move_each_image_by_a_flow_of_its_own(family):
    images = glyphs(16)[:2]
    coefficients = torch.linspace(-0.1, 0.1, 2 * family.dimension).view(2, -1)
    together = family.warp(coefficients, torch.ones(2)).image(images)
    one_by_one = [family.warp(own, torch.ones(1)).image(images[n : n + 1]) for n, own in enumerate(coefficients)]
    torch.testing.assert_close(together, torch.cat(one_by_one))


@pytest.mark.parametrize("family", [Projective(), Polynomial()], ids=["projective", "polynomial"])
def test_tangents_are_derivatives_along_the_flow(family):
    images = glyphs(32)
    coefficients = torch.linspace(-1, 1, family.dimension) / family.dimension
    step = 0.02
    ahead, behind = (
        family.warp(coefficients, torch.tensor([sign * step])).image(images, padding="border") for sign in (1, -1)
    )
    expected = ((ahead - behind) / (2 * step)).flatten(1)
    predicted = torch.einsum("k,knp->np", coefficients, tangents(images, family))
    assert (predicted - expected).norm() < 0.1 * expected.norm()


def test_a_polynomial_field_is_a_group_that_algorithm_1_accepts():
    family = Polynomial()
    coefficients = torch.zeros(family.dimension)
    coefficients[family.powers.index((3, 0))] = coefficients[family.powers.index((1, 2))] = 1
    coefficients[10 + family.powers.index((0, 3))] = coefficients[10 + family.powers.index((2, 1))] = 1
    lens = family.group(coefficients, "lens")
    assert cosine(lens, et.RADIAL_LENS) == pytest.approx(1)
    assert str(lens.flow.vector_field) == "(+1 x y^2 +1 x^3, +1 y^3 +1 x^2 y)"
