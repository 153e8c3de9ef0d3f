"""The kernel samples as torch operations do, with their gradients; on a GPU, or interpreted (`test_interpreter.py`)."""

import pytest
import torch
from interpreted import DEVICE, NEEDS_KERNELS

import equivariant_transformers as et
from equivariant_transformers.geometry import sampler
from equivariant_transformers.geometry.sampler import Target

pytestmark = NEEDS_KERNELS
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def pictures(*shape, dtype=torch.float32, layout="planes", seed=0):
    """Random images, in one of three layouts."""
    made = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    if layout == "channels last":
        made = made.to(memory_format=torch.channels_last)
    if layout == "slice":  # no stride is that of a contiguous tensor
        made = made.repeat_interleave(2, -1).repeat_interleave(2, -2)[..., ::2, ::2]
    return made.to(DEVICE)


def matrices(*shape, dtype=torch.float32, size=0.3, seed=1):
    noise = torch.randn(*shape, 3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (torch.eye(3, dtype=torch.float64) + size * noise).to(dtype).to(DEVICE)


def target(images, points=None, size=None, **options):
    own = tuple(images.shape[-2:])
    size = (points.shape[:-2].numel(), points.shape[-2]) if points is not None else size or own
    return Target(points, size, own, **options)


def compare(images, matrix, where, fill, tolerance=None):
    """Assert that samples, mask and gradients of the kernel are those of torch operations."""
    tolerance = tolerance or TOLERANCE[images.dtype]
    found = []
    for function in (sampler.sample, sampler.by_operations):
        leaves = [part.detach().clone().requires_grad_() for part in (images, matrix)]
        if images.stride() != leaves[0].stride():
            leaves[0] = images.detach().requires_grad_()
        outside = fill.detach().clone().requires_grad_() if isinstance(fill, torch.Tensor) else fill
        samples, valid = function((leaves[1],), leaves[0], where, fill=outside)
        weights = torch.linspace(-1, 1, samples.numel(), device=DEVICE).reshape(samples.shape).to(samples.dtype)
        wanted = [*leaves, *([outside] if isinstance(fill, torch.Tensor) else [])]
        gradients = torch.autograd.grad((samples * weights).float().sum(), wanted)
        found.append(([samples.detach()], valid, gradients))
    (ours, our_valid, our_gradients), (theirs, their_valid, their_gradients) = found
    assert (our_valid is None) == (their_valid is None)
    if our_valid is not None:
        assert (our_valid == their_valid).float().mean() > 0.995  # points on the very edge of the image may differ
    for one, other in zip([*ours, *our_gradients], [*theirs, *their_gradients], strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        error = (one.double() - other.double()).abs().max().item()
        assert error <= tolerance * max(1.0, other.abs().max().item()) * (10 if other.shape[-1] == 3 else 1)


@pytest.fixture(autouse=True)
def kernels_are_used(monkeypatch):
    """Fail if the kernel is not launched."""
    launched = []
    original = sampler._in_one_kernel
    monkeypatch.setattr(sampler, "_in_one_kernel", lambda *a: launched.append(1) or original(*a))
    yield
    assert launched


@pytest.mark.parametrize(
    ("name", "batch", "count", "size"),
    [
        ("rotation", 3, (3,), (13, 17)),
        ("x_shear", 2, (), (20, 9)),
        ("log_polar", 2, (2,), (1, 8)),
        ("x_perspective", 2, (), (9, 9)),
    ],
)
def test_charts(name, batch, count, size):
    grid = et.chart(name).replace(size=(9, 14)).grid().to(DEVICE)
    images = pictures(batch, 2, *size)
    compare(images, matrices(*count), target(images, grid, wants_valid=True), 0.3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("layout", "channels", "size"),
    [
        ("planes", 1, None),
        ("planes", 6, (7, 19)),  # two programs per tile
        ("channels last", 3, None),
        ("channels last", 18, (11, 6)),  # two programs per tile
        ("slice", 3, (5, 4)),
    ],
)
def test_pictures(dtype, layout, channels, size):
    images = pictures(2, channels, 9, 14, dtype=dtype, layout=layout)
    fill = pictures(2, channels, 1, 1, dtype=dtype, seed=5)
    matrix = matrices(2, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    compare(images, matrix, target(images, size=size), fill)


@pytest.mark.parametrize(("layout", "channels"), [("planes", 1), ("channels last", 3), ("channels last", 4)])
@pytest.mark.parametrize("size", [None, (64, 96)])
def test_tiles_wholly_inside(layout, channels, size):
    images = pictures(1, channels, 70, 100, layout=layout)
    turn = et.group("rotation").matrix(torch.tensor([0.2])) @ et.group("x_perspective").matrix(torch.tensor([0.1]))
    mask = (pictures(1, 1, 70, 100, seed=3) > 0.1).to(DEVICE)
    where = target(images, size=size, wants_valid=True, mask=mask)
    compare(images, turn.to(DEVICE), where, pictures(1, channels, 1, 1, seed=5))


def test_modes_of_torch_see_the_operator():
    images, matrix = pictures(2, 3, 5, 6), matrices(2)
    with torch._subclasses.FakeTensorMode() as mode:
        result = sampler.sample((mode.from_tensor(matrix),), mode.from_tensor(images), target(images))[0]
    assert isinstance(result, torch._subclasses.FakeTensor)


@pytest.mark.parametrize("share", [False, True])
def test_masks(share):
    images = pictures(3, 2, 12, 18)
    mask = (pictures(1 if share else 3, 1, 12, 18, seed=3) > 0.1).to(DEVICE)
    where = target(images, size=(10, 40), wants_valid=True, mask=mask)
    compare(images, matrices(3), where, 0.0)
    assert 0 < sampler.sample((matrices(3),), images, where)[1].float().mean() < 1


def test_one_image_and_many_matrices():
    images = pictures(1, 3, 11, 8)
    compare(images, matrices(4), target(images), 0.5)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [(torch.float64, (1, 5)), (torch.float32, (28, 28)), (torch.float16, (17, 50)), (torch.bfloat16, (1, 1))],
)
def test_the_identity_is_exact(dtype, size):
    images = (pictures(2, 3, *size, dtype=dtype) - 0.5).to(dtype)
    for warp in (et.Warp.identity(), et.Warp((torch.eye(3, device=DEVICE).expand(2, 3, 3),))):
        assert torch.equal(warp.image(images, fill=0.3), images)


def test_the_horizon_is_outside():
    images = pictures(1, 2, 9, 9) + 1
    warp = et.Warp((et.group("x_perspective").matrix(torch.tensor([2.0], device=DEVICE)),))  # w <= 0 for x <= -1/2
    assert (warp.image(images, fill=-1.0)[..., :3] == -1).all()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning", "ignore:overflow:RuntimeWarning")  # interpreted
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 0.0])
def test_bad_matrices_give_the_fill_value_and_finite_gradients(bad):
    images = pictures(2, 1, 6, 6).requires_grad_()
    matrix = torch.eye(3, device=DEVICE).repeat(2, 1, 1)
    matrix[0] = bad
    matrix.requires_grad_()
    result = et.Warp((matrix,)).image(images, fill=0.25)
    assert (result[0] == 0.25).all()
    assert torch.equal(result[1], images[1])
    assert all(part.isfinite().all() for part in torch.autograd.grad(result.sum(), (images, matrix)))


@pytest.mark.parametrize("size", [None, (4, 7)])
def test_gradients_by_differences(size):
    images = pictures(1, 2, 4, 5, dtype=torch.float64).requires_grad_()
    matrix = matrices(1, dtype=torch.float64, size=0.1).requires_grad_()
    fill = pictures(1, 2, 1, 1, dtype=torch.float64, seed=4).requires_grad_()

    def see(images, matrix, fill):
        return sampler.sample((matrix,), images, target(images, size=size), fill=fill)[0]

    assert torch.autograd.gradcheck(see, (images, matrix, fill), nondet_tol=1e-12, fast_mode=True)


def test_sums_do_not_depend_on_the_order_of_programs():
    images = pictures(2, 3, 40, 60)
    first, second = (matrices(2).requires_grad_() for _ in range(2))
    for matrix in (first, second):
        et.Warp((matrix,)).image(images).square().sum().backward()
    assert torch.equal(first.grad, second.grad)


def test_the_operator_passes_torchs_checks():
    from equivariant_transformers.geometry.kernels import operator  # noqa: F401

    images, matrix, fill = pictures(2, 3, 5, 6), matrices(2), pictures(2, 3, 1, 1)
    compare(images, matrix, target(images), fill)
    fill, points = fill[..., 0, 0].clone().requires_grad_(), torch.rand(6, 2, device=DEVICE)
    last = images.to(memory_format=torch.channels_last).requires_grad_()
    matrix.requires_grad_()
    for arguments in (
        (images.requires_grad_(), matrix, None, fill, None, (4, 7), (5, 6), True),
        (last, matrix, points, None, None, (2, 3), (5, 6), False),
    ):
        torch.library.opcheck(torch.ops.equivariant_transformers.sample.default, arguments)


def test_a_stack_compiles_with_the_kernel():
    model = et.Canonicalizer(["rotation"], in_channels=3, predictor="consistent", channels=4).to(DEVICE).eval()
    images = pictures(2, 3, 12, 16)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images).image, model(images).image, rtol=1e-4, atol=1e-4)


def test_autocast_keeps_the_dtype_of_images():
    images, matrix = pictures(2, 3, 12, 16), matrices(2)
    expected = et.Warp((matrix,)).image(images)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert torch.equal(et.Warp((matrix,)).image(images), expected)
