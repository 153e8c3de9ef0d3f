"""The sampler as a registered operator, on the CPU, and its kernels compiled for a GPU that is not there."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equivariant_transformers as et
from equivariant_transformers.geometry import kernels, sampler
from equivariant_transformers.geometry.kernels import operator

NEEDS_COMPILER = pytest.mark.skipif(
    not kernels.HAS_TRITON or os.environ.get("TRITON_INTERPRET") == "1", reason="needs Triton, not interpreted"
)


def arguments(
    dtype=torch.float32, *, layout=torch.contiguous_format, points=None, size=(4, 7), valid=True, masked=False
):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, 5, 6, generator=generator, dtype=torch.float64).to(dtype).to(memory_format=layout)
    coordinates = torch.float64 if dtype == torch.float64 else torch.float32
    matrices = (torch.eye(3) + 0.2 * torch.randn(2, 3, 3, generator=generator)).to(coordinates)
    fill = torch.rand(2, 3, generator=generator).to(dtype)
    mask = torch.rand(2, 1, 5, 6, generator=generator) > 0.2 if masked else None
    return images, matrices, points, fill, mask, size, (5, 6), valid


def with_gradients(given):
    return tuple(
        part.requires_grad_() if isinstance(part, torch.Tensor) and part.is_floating_point() and place != 2 else part
        for place, part in enumerate(given)
    )


@pytest.mark.parametrize(
    "options",
    [
        {"masked": True, "dtype": torch.bfloat16},
        {"layout": torch.channels_last, "points": torch.rand(6, 2), "size": (2, 3), "valid": False},
    ],
    ids=["picture", "points"],
)
def test_torchs_checks_pass(options):
    given = with_gradients(arguments(**options))
    torch.library.opcheck(torch.ops.equivariant_transformers.sample.default, given)


@pytest.mark.parametrize("points", [None, torch.rand(28, 2)])
def test_gradients(points):
    given = with_gradients(arguments(torch.float64, points=points))

    def see(images, matrices, fill):
        return operator.sample(images, matrices, points, fill, *given[4:])[0]

    assert torch.autograd.gradcheck(see, (given[0], given[1], given[3]))


@settings(max_examples=30)
@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    rows=st.integers(1, 9),
    columns=st.integers(1, 9),
    channels=st.integers(1, 3),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16]),
)
def test_the_operator_is_the_warp_bit_for_bit(height, width, rows, columns, channels, dtype):
    images, matrix = torch.rand(2, channels, height, width).to(dtype), torch.eye(3) + 0.2 * torch.randn(2, 3, 3)
    warp = et.Warp((matrix,))
    frame = (rows, columns) if et.geometry.frame.same_frame((rows, columns), (height, width)) else (height, width)
    result, _ = operator.sample(images, matrix, None, None, None, (rows, columns), frame, False)
    assert torch.equal(result, warp.image(images, size=(rows, columns)))
    points = torch.rand(rows * columns, 2) - 0.5
    result, valid = operator.sample(images, matrix, points, None, None, (rows, columns), (height, width), True)
    grid = points.reshape(rows, columns, 2)
    assert torch.equal(result, warp.sample(images, grid))
    if dtype != torch.float64:  # coordinates follow the images, and `inside` takes none
        assert torch.equal(valid, warp.inside(grid, (height, width)))


def test_a_mask_is_part_of_what_is_valid():
    images, matrix, _, _, mask, *_ = arguments(masked=True)
    warp, grid = et.Warp((matrix,)), et.chart("rotation").grid()
    samples, valid = warp.sample_valid(images, grid, mask)
    assert torch.equal(samples, warp.sample(images, grid))
    shown = warp.sample(mask.float(), grid)[:, 0] > sampler.SHOWN
    assert torch.equal(valid, warp.inside(grid, (5, 6)) & shown)
    assert 0 < valid.float().mean() < warp.inside(grid, (5, 6)).float().mean()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # from torch.compile itself
def test_compile_export_fake_and_autocast():
    given = arguments()

    class See(torch.nn.Module):
        def forward(self, images, matrices, fill):
            return operator.sample(images, matrices, None, fill, *given[4:])

    tensors = (given[0], given[1], given[3])
    expected = See()(*tensors)
    compiled = torch.compile(See(), fullgraph=True, backend="aot_eager")(*tensors)
    exported = torch.export.export(See(), tensors).module()(*tensors)
    with torch.autocast("cpu", torch.bfloat16):
        cast = See()(*tensors)
    for found in (compiled, exported, cast):
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
    with torch._subclasses.FakeTensorMode() as mode:
        found = See()(*(mode.from_tensor(part) for part in tensors))
    assert [part.shape for part in found] == [part.shape for part in expected]


def test_no_kernel_is_chosen_without_a_gpu():
    images = arguments()[0]
    assert not sampler._fits_kernel((), images, sampler.Target(None, (5, 6), (5, 6)))


POINTERS = {"matrices": "fp32", "points": "fp32", "fill": "fp32", "mask": "i1", "valid": "i1"}
SUMS = ("image_gradient", "matrix_sums", "fill_sums")


@NEEDS_COMPILER
@pytest.mark.parametrize(("together", "block"), [(False, 1), (True, 1), (True, 4)], ids=["planes", "three", "four"])
@pytest.mark.parametrize(("dtype", "wide"), [("fp32", "fp32"), ("bf16", "fp32"), ("fp64", "fp64")])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_kernels_compile_for_a_gpu(dtype, wide, together, block, backward):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from equivariant_transformers.geometry.kernels import sampling

    kernel = sampling.backward_kernel if backward else sampling.forward_kernel
    constants = {"together": together, "count": 3 // block or 1, "block": block, "threshold": 0.999}
    constants |= {"tile_width": sampling.TILE_WIDTH, "patch_width": sampling.PATCH_WIDTH, "strips": sampling.STRIPS}
    constants |= {"pixels": 32 * sampling.WARPS, "compute": triton.language.dtype(wide), "epsilon": 1e-7}
    constants |= {"big": wide == "fp64", "keep": True, "stride_c" if together else "stride_w": 1}
    pointers = {**POINTERS, **dict.fromkeys(SUMS, wide)}
    pointers |= dict.fromkeys(("images", "result", "gradient"), dtype)
    signature, given, attributes = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in pointers:
            signature[name] = f"*{pointers[name]}"
        elif name in constants or name.startswith(("has_", "for_", "wants_", "on_")):
            signature[name], given[name] = "constexpr", constants.get(name, name != "on_points")
        else:
            signature[name] = "i32"
        if name in pointers:
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, given, attributes)
    assembly = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": sampling.WARPS}).asm[
        "ptx"
    ]
    assert "st.local" not in assembly  # nothing is spilled by the compiler of Triton
    if block == 4 and dtype == "fp32":  # four channels are read, and written or added, at once
        assert "ld.global.v4" in assembly
        assert ("add.v4.f32" if backward else "st.global.v4") in assembly
