"""Recorded calls of a canonicalizer compute what calls without a recording compute.

On a GPU, recordings are CUDA graphs. On the CPU, they are stand-ins that run again what they recorded, and write the
results to the same memory as a CUDA graph does.
"""

import copy
import gc
import pickle
import warnings

import pytest
import torch
from textures import textures
from torch import nn

import equivariant_transformers as et
from equivariant_transformers.nn import graphs, recording
from equivariant_transformers.nn.recording import REHEARSALS, without_recording


class Rerun:
    """Stand-in for a CUDA graph."""

    def __init__(self, work, device, earlier=None):  # noqa: ARG002
        self.work, self.grad = work, torch.is_grad_enabled()
        self.results = [result.detach() for result in work()]

    def replay(self):
        with torch.set_grad_enabled(self.grad):
            results = self.work()
        for kept, result in zip(self.results, results, strict=True):
            kept.data.copy_(result.detach())


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request, monkeypatch):
    if request.param == "cpu":
        monkeypatch.setattr(recording, "DEVICES", ("cpu",))
        monkeypatch.setattr(graphs, "Graph", Rerun)
    return request.param


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    """Let cuDNN compute in full precision: a recording may use other algorithms."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def stack(names=("rotation", "x_shear"), predictor="posterior", **options):
    """A stack with random weights, whose poses differ from 0."""
    torch.manual_seed(0)
    made = et.Canonicalizer(list(names), in_channels=3, predictor=predictor, channels=4, **options)
    for part in made.modules():
        if isinstance(part, (nn.Conv2d, nn.Linear)):
            nn.init.normal_(part.weight, std=0.3)
    return made


def twins(device, **options):
    """Two equal stacks, of which the second is not recorded."""
    first = stack(**options).to(device)
    second = copy.deepcopy(first)
    second.cuda_graph = False
    return first, second


def pictures(number, device, batch=3):
    return textures(batch, (36, 40), seed=number).to(device)


def start(number, device, batch=3):
    theta = torch.linspace(-0.3, 0.2, batch, device=device) * (1 + number / 4)
    return et.Warp.projective(et.group("rotation").matrix(theta))


def recordings(canonicalizer):
    return list(canonicalizer._recorder._recordings.values())


def assert_same(found, expected):
    close = {"rtol": 1e-4, "atol": 1e-5}
    assert len(found.steps) == len(expected.steps)
    for step, other in zip(found.steps, expected.steps, strict=True):
        assert type(step.layer) is type(other.layer)
        for name in ("pose", "confidence", "evidence", "heatmaps"):
            torch.testing.assert_close(getattr(step, name), getattr(other, name), **close)
        torch.testing.assert_close(step.warp.matrix, other.warp.matrix, **close)
    torch.testing.assert_close(found.image, expected.image, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.fill, expected.fill, **close)


STACKS = {
    "posterior": {},
    "two poses": {"names": ("log_polar",)},
    "consistent": {"predictor": "consistent"},
    "softmax": {"predictor": "softmax"},
    "direct": {"predictor": "direct"},
    "options": {"iterations": 2, "min_confidence": 0.5, "fill": 0.25},
}
every_stack = pytest.mark.parametrize("options", STACKS.values(), ids=STACKS)


@every_stack
@pytest.mark.parametrize("warped", [False, True])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inference(device, options, warped, mode):
    ours, theirs = (part.eval() for part in twins(device, **options))
    kept = []
    for number in range(REHEARSALS + 3):
        images, warp = pictures(number, device), start(number, device) if warped else None
        with mode():
            kept.append((ours(images, warp), theirs(images, warp), images))
    assert len(recordings(ours)) == 1
    assert not recordings(theirs)
    for found, expected, images in kept:  # later passes leave the results of earlier ones alone
        assert found.images is images
        assert_same(found, expected)


@every_stack
def test_training(device, options):
    """Losses, gradients, weights and statistics agree step by step, random numbers included."""
    ours, theirs = (part.train() for part in twins(device, **options, pose_noise=0.02))
    optimizers = [torch.optim.SGD(part.parameters(), lr=1e-3, momentum=0.9) for part in (ours, theirs)]
    for number in range(REHEARSALS + 4):
        images, warp = pictures(number, device), start(number, device)
        for part in (ours, theirs):
            torch.manual_seed(number)
            out = part(images, warp)
            (et.alignment_loss(out) + out.image.square().mean()).backward()
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=2e-3, atol=2e-4)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=number % 2 == 0)
        for (name, value), other in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
            torch.testing.assert_close(value, other, rtol=1e-3, atol=1e-4, msg=name)
    assert len(recordings(ours)) == 1
    assert recordings(ours)[0].backward is not None


def test_recordings_outlast_changes_between_training_and_evaluation(device):
    part, kept = stack().to(device), []
    for _ in range(2):
        for training in (True, False):
            part.train(training)
            for number in range(REHEARSALS + 1):
                with torch.set_grad_enabled(training):
                    out = part(pictures(number, device), start(number, device))
                if training:
                    et.alignment_loss(out).backward()
        assert len(recordings(part)) == 2
        kept.append(recordings(part))
    assert kept[0] == kept[1]


def test_gradients_accumulate(device):
    ours, theirs = twins(device)
    for number in range(REHEARSALS + 4):
        for part in (ours, theirs):
            torch.manual_seed(number)
            et.alignment_loss(part(pictures(number, device), start(number, device))).backward()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=2e-3, atol=2e-4)


def warmed(part, device, *, training=False):
    part.train(training)
    for number in range(REHEARSALS + 1):
        with torch.set_grad_enabled(training):
            out = part(pictures(number, device), start(number, device))
        if training:
            et.alignment_loss(out).backward()
    assert len(recordings(part)) == 1
    return part


def assert_same_gradients(device, run):
    """Assert that `run` gives the weights of a stack with and without recordings the same gradients."""
    ours, theirs = twins(device)
    warmed(ours, device, training=True)
    theirs.load_state_dict(ours.state_dict())
    theirs.train()
    for part in (ours, theirs):
        part.zero_grad()
        torch.manual_seed(0)
        run(part)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=2e-3, atol=2e-4)


def test_two_calls_before_a_backward_pass(device):
    def run(part):
        losses = [et.alignment_loss(part(pictures(n, device), start(n, device))) for n in range(3)]
        (losses[0] + 2 * losses[1] - losses[2]).backward()

    assert_same_gradients(device, run)


def test_cudnn_does_not_search_in_a_recording(device, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    graph, seen = graphs.Graph, []
    monkeypatch.setattr(graphs, "Graph", lambda *a: seen.append(torch.backends.cudnn.benchmark) or graph(*a))
    assert_same_gradients(
        device, lambda part: et.alignment_loss(part(pictures(0, device), start(0, device))).backward()
    )
    assert seen == [False, False]
    assert torch.backends.cudnn.benchmark


def test_several_backward_passes(device):
    def run(part):
        out = part(pictures(0, device), start(0, device))
        for factor in (1, 2, -0.5):
            (factor * et.alignment_loss(out)).backward(retain_graph=True)

    assert_same_gradients(device, run)


def test_a_backward_pass_after_a_later_call_is_an_error(device):
    part = warmed(stack().to(device), device, training=True)
    loss = et.alignment_loss(part(pictures(0, device), start(0, device)))
    loss.backward(retain_graph=True)
    et.alignment_loss(part(pictures(1, device), start(1, device)))
    with pytest.raises(RuntimeError, match="a later call of the canonicalizer has overwritten"):
        loss.backward()


def test_results_that_are_dropped_need_no_gradient(device):
    part = warmed(stack().to(device), device, training=True)
    (made,) = recordings(part)
    before = made.calls
    for number in range(3):
        part(pictures(number, device), start(number, device))
    assert made.calls == before + 3
    kept = [part(pictures(number, device), start(number, device)) for number in range(3)]
    assert made.calls == before + 4  # the others run as usual
    assert all(out.steps[0].evidence.requires_grad for out in kept)


def replaced(part):
    part.layers[0].predictor.head.weight = nn.Parameter(part.layers[0].predictor.head.weight.detach() * 2)


CHANGES = {
    "weights in place": lambda part: [weight.data.mul_(1.1) for weight in part.parameters()],
    "another weight": replaced,
    "other memory": lambda part: part.load_state_dict(
        {name: value * 1.1 for name, value in part.state_dict().items()}, assign=True
    ),
    "another dtype": lambda part: part.double(),
    "confidence": lambda part: setattr(part, "min_confidence", 0.9),
    "iterations": lambda part: setattr(part, "iterations", 2),
    "pose range": lambda part: setattr(part.layers[0], "pose_ranges", ((-0.1, 0.1),)),
    "another layer": lambda part: setattr(part, "layers", nn.ModuleList([part.layers[1], part.layers[0]])),
    "a bias": lambda part: setattr(part.layers[0].predictor.head, "bias", nn.Parameter(part.layers[0].widths[:1] / 9)),
    "statistics": lambda part: part.layers[0].predictor.trunk[0].norm.running_mean.add_(0.1),
    "calibration": lambda part: part.layers[1].predictor.head.weight.data.mul_(0.1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_of_the_stack_have_an_effect(device, change):
    ours, theirs = twins(device)
    warmed(ours, device)
    theirs.eval()
    for number in range(REHEARSALS + 2):
        if number == 0:
            change(ours)
            change(theirs)
        dtype = next(ours.parameters()).dtype
        images = pictures(number, device).to(dtype)
        with torch.no_grad():
            assert_same(ours(images, start(number, device)), theirs(images, start(number, device)))


def test_hooks_and_parts_of_a_user_run(device):
    part = warmed(stack().to(device), device)
    seen = []
    handle = part.layers[0].predictor.trunk.register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        part(pictures(0, device), start(0, device))
        assert len(seen) == 1
        handle.remove()
        part(pictures(0, device), start(0, device))
        assert len(seen) == 1

    class Counting(nn.Conv2d):
        def forward(self, x):
            seen.append(2)
            return super().forward(x)

    predictor = part.layers[0].predictor
    head = Counting(8, 1, 1, bias=False).to(device)
    head.load_state_dict(predictor.head.state_dict())
    predictor.head = head
    with torch.no_grad():
        for _ in range(REHEARSALS + 2):
            part(pictures(0, device), start(0, device))
    assert seen == [1] + [2] * (REHEARSALS + 2)


def other_passes(device):
    images, warp = pictures(0, device), start(0, device)
    mask = torch.ones(3, 1, 36, 40, dtype=torch.bool, device=device)
    flow = et.Warp.flow(et.RADIAL_LENS.flow, torch.zeros(3, device=device))
    return {
        "mask": lambda part: part(images, warp, mask),
        "flow": lambda part: part(images, flow),
        "gradient of images": lambda part: part(images.clone().requires_grad_(), warp),
        "gradient of the warp": lambda part: part(images, et.Warp((warp.matrix.clone().requires_grad_(),))),
        "anomalies": lambda part: anomalies(lambda: part(images, warp)),
        "switched off": lambda part: switched_off(lambda: part(images, warp)),
        "transform": lambda part: torch.func.grad(lambda x: part(images * x, warp).confidence.sum())(images.mean()),
    }


def anomalies(function):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            function()


def switched_off(function):
    with without_recording():
        function()


@pytest.mark.parametrize("name", other_passes("cpu"))
def test_passes_that_something_else_follows_are_not_recorded(device, name):
    part = stack().to(device).eval()
    for _ in range(REHEARSALS + 2):
        other_passes(device)[name](part)
    assert not recordings(part)


def test_only_a_few_kinds_of_passes_are_recorded(device):
    part = stack().to(device).eval()
    with torch.no_grad():
        for batch in range(1, recording.MOST + 3):
            for number in range(REHEARSALS + 1):
                part(pictures(number, device, batch))
    assert len(recordings(part)) == recording.MOST


def test_copies_start_without_recordings(device):
    part = warmed(stack().to(device), device)
    for copied in (copy.deepcopy(part), pickle.loads(pickle.dumps(part))):
        assert not recordings(copied)
        with torch.no_grad():
            assert_same(copied(pictures(0, device)), part(pictures(0, device)))


def test_modules_that_were_pickled_without_a_recorder_work(device):
    part = warmed(stack().to(device), device)
    state = part.__getstate__()
    del state["_recorder"]
    older = et.Canonicalizer.__new__(et.Canonicalizer)
    older.__setstate__(state)
    assert_same(warmed(older, device)(pictures(0, device)), part(pictures(0, device)))


def test_lower_precision(device):
    ours, theirs = twins(device)
    dtype = torch.bfloat16
    for number in range(REHEARSALS + 2):
        for part in (ours, theirs):
            torch.manual_seed(number)
            with torch.autocast(device, dtype):
                out = part(pictures(number, device), start(number, device))
                loss = et.alignment_loss(out)
            loss.backward()
    assert len(recordings(ours)) == 1
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=5e-2, atol=5e-2)


def test_a_refusal_is_a_warning(device, monkeypatch):
    def refuse(*_):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(graphs, "Graph", refuse)
    ours, theirs = (part.eval() for part in twins(device))
    with torch.no_grad():
        for number in range(REHEARSALS):
            ours(pictures(number, device))
        with pytest.warns(UserWarning, match="could not be recorded as a CUDA graph and runs without: operation not"):
            ours(pictures(0, device))
        assert_same(ours(pictures(1, device)), theirs(pictures(1, device)))


@pytest.mark.cuda
def test_training_goes_on_after_a_refusal_by_cuda(monkeypatch):
    """A recording that fails in the middle leaves the random numbers and the streams as they were."""
    ours, theirs = (part.train() for part in twins("cuda"))
    run = et.Canonicalizer._run

    def waiting(self, *arguments):
        out = run(self, *arguments)
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        return out

    def train():
        for number in range(REHEARSALS + 3):
            for part in (ours, theirs):
                torch.manual_seed(number)
                et.alignment_loss(part(pictures(number, "cuda"), start(number, "cuda"))).backward()

    monkeypatch.setattr(et.Canonicalizer, "_run", waiting)
    with pytest.warns(UserWarning, match="could not be recorded as a CUDA graph"):
        train()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=2e-2, atol=2e-3)


@pytest.mark.cuda
def test_garbage_is_not_collected_in_a_recording():
    """A collection could free what belongs to an earlier graph, which CUDA does not permit in a recording."""
    graph, results = torch.cuda.CUDAGraph(), []
    with graphs.capture(graph, torch.cuda.Stream()):
        results.append(torch.zeros(1, device="cuda"))
        assert not gc.isenabled()
    assert gc.isenabled()
