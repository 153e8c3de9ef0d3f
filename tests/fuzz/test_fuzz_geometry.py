"""Fuzzers of groups and warps: parameters, matrices, points and images of every kind."""

import numpy as np
import torch

import equivariant_transformers as et
from equivariant_transformers import Group, Warp

NAN, INF = float("nan"), float("inf")
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
NUMBERS = (0.0, 1.0, -1.0, 1e-30, 0.3, -2.5, 7.0, 50.0, -90.0, 1e3, 1e10, -1e30, 3e38)
JUNK = (
    None, "a", "", b"1", True, 3, 10**400, 1j, [], [1.0, 2.0], [[1.0], [1.0, 2.0]], {}, object(), np.zeros((3, 3)),
    np.zeros(2) * 1j, np.array([["1"] * 3] * 3), np.array([[object()] * 3] * 3), (3,), (4, -1), (10**12, 10**12),
    lambda: 1, (2.5, 3), "ab", torch.zeros(()), torch.zeros(3), torch.zeros(0, 2), torch.eye(3).to_sparse(),
    torch.zeros(2, 2).to_sparse(), torch.zeros(2, 2, device="meta"), torch.eye(3, dtype=torch.int64), torch.eye(3) * 1j,
    torch.zeros(1, 1, 4, 4) * 1j, torch.zeros(1, 1, 4, 4).to_sparse(), torch.zeros(1, 4, 4), torch.zeros(1, 1, 0, 4),
    torch.zeros(1, 1, 4, 4, dtype=torch.uint8), torch.full((3, 3), NAN), torch.zeros(3, 3), torch.ones(2, 3, 3),
    torch.eye(3).to(torch.float8_e4m3fn), torch.zeros(2, 5, 3), torch.zeros(4, 5, 2), torch.zeros(2, 3, 4, 2),
    torch.zeros(4, 2, dtype=torch.int32), torch.full((1, 2), NAN),
)  # fmt: skip


def any_group(random):
    if random.random() < 0.5:
        return random.choice([*et.GROUPS.values(), et.RADIAL_LENS])
    scale = random.choice([1e-17, 1e-3, 1.0, 1e3, 1e17])
    return Group.from_generator([[random.choice([0.0, random.gauss(0, scale)]) for _ in range(3)] for _ in range(3)])


def any_tensor(random, shape, dtype):
    values = [random.choice(NUMBERS) if random.random() < 0.3 else random.gauss(0, 1) for _ in range(shape.numel())]
    return torch.tensor(values, dtype=torch.float64).reshape(shape).clamp(-3e38, 3e38).to(dtype)


def any_images(random, batch):
    """Finite images of odd sizes, dtypes and strides."""
    size = random.choice([(1, 1), (1, 7), (9, 1), (2, 2), (5, 8), (3, 130)])
    images = torch.rand(batch, random.choice([0, 1, 3]), *size) * random.choice([1.0, 255.0, 1e4])
    images = images.to(random.choice(FLOATS))
    return random.choice(
        [images, images.to(memory_format=torch.channels_last), images.mT.contiguous().mT, images.flip(-1)]
    )


def any_warp(random, batch):
    """A warp of one to three steps, some of them extreme."""
    warp = Warp.identity()
    for _ in range(random.randint(1, 3)):
        dtype, many = random.choice([torch.float32, torch.float64]), random.choice([1, batch])
        kind = random.randrange(3)
        if kind == 0:
            step = Warp.projective(any_tensor(random, torch.Size((many, 3, 3)), dtype))
        elif kind == 1:
            step = Warp.flow(et.RADIAL_LENS.transform, any_tensor(random, torch.Size((many,)), dtype))
        else:
            matrix = torch.eye(3, dtype=dtype) + 0.2 * any_tensor(random, torch.Size((many, 3, 3)), dtype).clamp(-2, 2)
            step = Warp.projective(matrix)
        warp = warp @ random.choice([step, step.inverse()])
    return warp


def test_groups(fuzz):
    def check(random):
        group, dtype = any_group(random), random.choice(FLOATS)
        theta = any_tensor(random, random.choice([torch.Size(()), torch.Size((4,)), torch.Size((2, 4))]), dtype)
        theta = theta.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
        points = (torch.rand(4, 2) * 2 - 1).to(dtype)
        assert group.transform(0.0, points).isfinite().all()
        assert group.vector_field(points).isfinite().all() or group.generator is not None
        moved = group.transform(theta, points)
        assert moved.shape[-2:] == (4, 2)
        if group.generator is not None:
            matrix = group.matrix(theta)
            assert matrix.shape == (*theta.shape, 3, 3)
            assert matrix.dtype == dtype
            assert matrix.isfinite().all()
        else:
            assert moved.isfinite().all()
        for value in (NAN, INF, -INF):
            assert group.transform(value, points).shape == points.shape

    fuzz(check, cases=100, allowed=(TypeError, ValueError))


def test_images_seen_through_warps(fuzz):
    def check(random):
        batch = random.choice([1, 2])
        warp, images = any_warp(random, batch), any_images(random, batch)
        size = random.choice([None, (1, 1), (3, 4), (0, 2)])
        out = warp.image(
            images,
            size=size,
            mode=random.choice(["bilinear", "nearest", "bicubic", "sharp_bicubic"]),
            padding=random.choice(["zeros", "border", "reflection"]),
            antialias=random.random() < 0.3,
        )
        assert out.shape == (batch, images.shape[1], *(size or images.shape[-2:]))
        assert out.dtype == images.dtype
        assert out.isfinite().all()
        if out.numel():
            largest = images.double().abs().max()
            assert out.double().abs().max() <= 2 * largest + 1e-6
        labels = (images * 3).to(random.choice([torch.bool, torch.uint8, torch.int16, torch.int64]))
        seen = warp.restore(labels)
        assert seen.dtype == labels.dtype
        assert set(seen.unique().tolist()) <= {*labels.unique().tolist(), 0}
        assert warp.valid((4, 5)).dtype == torch.bool
        assert not warp.boxes(torch.tensor([[[-1.0, -0.5, 0.5, 1.0]]])).isnan().any()

    fuzz(check, cases=150, allowed=(TypeError, ValueError))


def test_gradients_through_warps(fuzz):
    def check(random):
        dtype = random.choice([torch.float32, torch.float64])
        matrix = any_tensor(random, torch.Size((2, 3, 3)), dtype).clamp(-1e10, 1e10) * random.choice([1e-10, 1.0, 1e25])
        matrix.requires_grad_()
        theta = any_tensor(random, torch.Size((2,)), dtype).requires_grad_()
        images = torch.rand(2, 1, 5, 6, dtype=dtype, requires_grad=True)
        warp = Warp.projective(matrix) @ Warp.flow(et.RADIAL_LENS.transform, theta)
        out = warp.image(images, padding=random.choice(["zeros", "border", "reflection"]))
        for gradient in torch.autograd.grad(out.sum(), (images, matrix, theta)):
            assert gradient.isfinite().all()

    fuzz(check, cases=100, allowed=(ValueError,))


def test_junk(fuzz):
    """Whatever is given, it works or is refused with an error of the library."""
    images, points = torch.rand(2, 1, 4, 4), torch.rand(2, 5, 2)

    def check(random):
        warp = Warp.projective(torch.eye(3).repeat(2, 1, 1))
        if random.random() < 0.5:
            warp = warp @ Warp.flow(et.RADIAL_LENS.transform, torch.tensor([0.1, 0.2]))
        group = random.choice([et.group("rotation"), et.RADIAL_LENS])
        junk = random.choice(JUNK)
        calls = [
            lambda: Group.from_generator(junk),
            lambda: Group.from_generator(et.group("rotation").generator, name=junk),
            lambda: Group.from_flow(junk),
            lambda: Group.from_flow(vector_field=junk),
            lambda: Group.from_flow(et.RADIAL_LENS.transform, period=junk),
            lambda: Group.from_flow(vector_field=lambda points: points, steps=junk),
            lambda: et.group(junk),
            lambda: et.chart(junk),
            lambda: group.matrix(junk),
            lambda: group.transform(junk, points[0]),
            lambda: group.transform(0.1, junk),
            lambda: group.vector_field(junk),
            lambda: Warp.projective(junk),
            lambda: Warp.flow(junk, 0.1),
            lambda: Warp.flow(et.RADIAL_LENS.transform, junk),
            lambda: warp.points(junk),
            lambda: warp.visible(junk),
            lambda: warp.boxes(junk),
            lambda: warp.inside(junk, (4, 5)),
            lambda: warp.inside(points, junk),
            lambda: warp.points(points, size=junk),
            lambda: warp.boxes(torch.rand(2, 4), size=junk),
            lambda: warp.image(junk),
            lambda: warp.mask(junk),
            lambda: warp.restore(junk),
            lambda: warp.valid(junk),
            lambda: warp.image(images, size=junk),
            lambda: warp.mask(images, size=junk),
            lambda: warp.sample(images, junk),
            lambda: warp.sample(junk, points[:, None]),
        ]
        random.choice(calls)()

    fuzz(check, cases=500, allowed=(TypeError, ValueError))
