"""Optimization and evaluation of a network, with all the state that a checkpoint must hold."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from equivariant_transformers.nn.alignment import Aligned
from equivariant_transformers.nn.augment import Augmentation, Augmented
from equivariant_transformers.training import distributed
from equivariant_transformers.training.config import Config
from equivariant_transformers.training.cuda_graph import Replay
from equivariant_transformers.training.tasks import TASKS, Loss


class Batches(Protocol):
    """Interface of a loader for training, implemented by `data.Loader` and `data.BufferedLoader`."""

    def __len__(self) -> int: ...
    def epoch(self, number: int) -> Tensor:
        """Return the indices `(steps, batch)` of an epoch's batches."""

    def in_order(self) -> tuple[Tensor, Tensor]:
        """Return indices `(steps, batch)` that cover every image, and a mask of the indices to count."""

    def start(self, order: Tensor) -> None:
        """Begin to prepare the batches at `order` `(steps, batch)`, for one `advance` each."""

    def advance(self) -> None:
        """Make the next of these batches available to `batch`."""

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images and labels at `indices` `(batch,)`."""

    def close(self) -> None:
        """End what `start` has begun."""


class Evaluation:
    """Evaluation of `module` on all images of `loader`, which sums the errors of the images."""

    def __init__(self, module: nn.Module, loader: Batches, config: Config, *, capture: bool) -> None:
        self.module = module
        self.loader = loader
        self.config = config
        self.indices, self.counts = loader.in_order()
        self.position = torch.zeros((), dtype=torch.long, device=self.indices.device)
        self.errors = torch.zeros((), dtype=torch.float64, device=self.indices.device)
        self.module.eval()
        self.replay = Replay(
            self._add, self.indices.device, capture=capture, prepare=loader.advance, restore=self._rewind
        )

    @torch.no_grad()
    def _add(self) -> None:
        indices = self.indices.index_select(0, self.position[None])[0]
        counts = self.counts.index_select(0, self.position[None])[0]
        images, labels = self.loader.batch(indices)
        outputs = _forward(self.module, images, self.config).float()
        self.errors += torch.where(counts, TASKS[self.config.task].errors(outputs, labels), 0.0).sum()
        self.position += 1

    def _rewind(self) -> None:
        self.position.zero_()
        self.errors.zero_()

    def start(self) -> None:
        """Enqueue the whole evaluation; `result` waits for it."""
        self.module.eval()
        _join(self.replay.stream)
        self._rewind()
        self.loader.start(self.indices)
        _join(self.replay.stream)
        for _ in range(self.indices.shape[0]):
            self.replay()

    def result(self) -> Tensor:
        """Return the sum of the errors and the number of images, `(2,)`, in this process's share."""
        _join(self.replay.stream, wait=True)
        return torch.stack([self.errors, self.counts.sum().double()])

    def error(self) -> float:
        """Evaluate `module` and return the error in per cent, over all processes."""
        self.start()
        errors, images = distributed.total(self.result())
        return 100 * errors / images


class Optimization:
    """Training steps of `module` with the optimizer and the learning rates of `config`.

    Call `begin` for an epoch and `step` for each of its batches, then read `loss` and evaluate. On a GPU, a step is one
    CUDA graph. The graph keeps its position in the epoch itself, so that it does not wait for the host.
    """

    def __init__(
        self,
        module: nn.Module,
        loader: Batches,
        config: Config,
        augmentation: Augmentation | None = None,
        loss: Loss = F.cross_entropy,
    ) -> None:
        self.module = module
        self.loader = loader
        self.config = config
        self.criterion = loss
        self.order = loader.epoch(0)
        self.device = self.order.device
        self.network = distributed.replicate(Aligned(module) if config.alignment else module, self.device)
        if augmentation is not None and augmentation.max_theta:
            self.network = Augmented(self.network, augmentation)
        self.position = torch.zeros((), dtype=torch.long, device=self.device)
        self.total_loss = torch.zeros((), dtype=torch.float64, device=self.device)
        self.learning_rate = torch.tensor(config.learning_rate, device=self.device)
        on_gpu = self.device.type == "cuda"
        self.optimizer = torch.optim.Adam(
            module.parameters(),
            lr=self.learning_rate if on_gpu else config.learning_rate,
            weight_decay=config.weight_decay,
            amsgrad=True,
            fused=True,
            capturable=on_gpu,
        )
        self.averaged = copy.deepcopy(module) if config.ema_decay else module
        """Network to evaluate: `module`, or its copy with averaged weights."""
        self._start = copy.deepcopy(module.state_dict())
        self.module.train()
        capture = distributed.world_size() == 1
        self.replay = Replay(self._work, self.device, capture=capture, prepare=loader.advance, restore=self._restore)
        if not self.optimizer.state:
            self._make_optimizer_state()

    def begin(self, epoch: int, step: int = 0) -> None:
        """Prepare for `epoch`, of which `step` steps are done."""
        self.module.train()
        _join(self.replay.stream)
        order = self.loader.epoch(epoch)
        self.order.copy_(order)
        self.loader.start(order[step:])
        self.position.fill_(step)
        if step == 0:
            self.total_loss.zero_()
        rate = self.config.learning_rate_in(epoch)
        self.learning_rate.fill_(rate)
        if self.device.type == "cpu":
            self.optimizer.param_groups[0]["lr"] = rate
        _join(self.replay.stream)

    def step(self) -> None:
        """Enqueue one step."""
        self.replay()

    def loss(self) -> Tensor:
        """Return the total loss and the number of steps of the epoch so far, `(2,)`, after all queued steps.

        The loss is NaN if a weight is not finite.
        """
        _join(self.replay.stream, wait=True)
        norms = torch.stack(torch._foreach_norm([parameter.detach() for parameter in self.module.parameters()]))
        loss = torch.where(norms.isfinite().all(), self.total_loss, torch.nan)
        return torch.stack([loss, self.position.double()])

    def state(self) -> dict[str, Tensor]:
        """Return every tensor that the next step depends on, by name."""
        _join(self.replay.stream, wait=True)
        tensors = {f"model/{name}": tensor for name, tensor in self.module.state_dict().items()}
        if self.averaged is not self.module:
            tensors |= {f"average/{name}": tensor for name, tensor in self.averaged.state_dict().items()}
        for name, moments in self._moments().items():
            tensors |= {f"optimizer/{name}/{key}": tensor for key, tensor in moments.items()}
        tensors |= {"total_loss": self.total_loss, "random/cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            tensors["random/cuda"] = torch.cuda.get_rng_state(self.device)
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Load the tensors that `state` returned, in place."""
        self.module.load_state_dict(_part(tensors, "model/"))
        if self.averaged is not self.module:
            self.averaged.load_state_dict(_part(tensors, "average/"))
        for name, moments in self._moments().items():
            for key, tensor in moments.items():
                tensor.copy_(tensors[f"optimizer/{name}/{key}"])
        self.total_loss.copy_(tensors["total_loss"])
        torch.set_rng_state(tensors["random/cpu"])
        if self.device.type == "cuda" and "random/cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random/cuda"], self.device)

    def close(self) -> None:
        """Release the replicated network: a process group can only end if no network refers to it."""
        self.network = self.module

    def _work(self) -> None:
        indices = self.order.index_select(0, self.position[None])[0]
        images, labels = self.loader.batch(indices)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._loss(_forward(self.network, images, self.config), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if self.config.ema_decay:
            self._average()
        self.total_loss += loss.detach()
        self.position += 1

    def _loss(self, output: Tensor | tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
        """Return the loss of the network's output: logits, or logits and alignment loss."""
        if isinstance(output, Tensor):
            return self.criterion(output.float(), labels)
        logits, alignment = output
        return self.criterion(logits.float(), labels) + self.config.alignment * alignment

    @torch.no_grad()
    def _average(self) -> None:
        """Update the moving average of the weights, faster in the first steps.

        `torch.optim.swa_utils.AveragedModel` is not used: the host branches on its counter of updates, which a CUDA
        graph cannot do, and it wraps the module, which changes the names of the weights in checkpoints.
        """
        steps = next(iter(self.optimizer.state.values()))["step"]
        share = torch.clamp(9 / (steps + 9), min=1 - self.config.ema_decay)
        averages, values = _floats(self.averaged), _floats(self.module)
        torch._foreach_add_(averages, torch._foreach_mul(torch._foreach_sub(values, averages), share))

    def _restore(self) -> None:
        """Reset everything to the state before the first step."""
        self.position.zero_()
        self.total_loss.zero_()
        self.module.load_state_dict(self._start)
        self.averaged.load_state_dict(self._start)
        for moments in self._moments().values():
            for tensor in moments.values():
                tensor.zero_()

    def _make_optimizer_state(self) -> None:
        """Create the moments of the optimizer, so that they can be loaded before the first step."""
        for parameter in self.module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._restore()

    def _moments(self) -> dict[str, dict[str, Any]]:
        return {name: self.optimizer.state[parameter] for name, parameter in self.module.named_parameters()}


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _floats(module: nn.Module) -> list[Tensor]:
    """Return the weights and running statistics of `module`, without counters."""
    return [tensor for tensor in module.state_dict().values() if tensor.is_floating_point()]


def _forward(module: nn.Module, images: Tensor, config: Config) -> Any:
    with torch.autocast(images.device.type, torch.bfloat16, enabled=config.precision == "bfloat16"):
        return _compiled()(module, images) if config.compile else module(images)


@cache
def _compiled() -> Callable[[nn.Module, Tensor], Any]:
    """Return one compiled function for all networks, so that networks of the same structure are compiled once."""

    def forward(module: nn.Module, images: Tensor) -> Any:
        return module(images)

    torch._dynamo.config.recompile_limit = 256  # structures; any further structure would silently not be compiled
    # Channels last is faster with 32 channels too, which the compiler considers too few.
    options: dict[str, Any] | None = {"force_layout_optimization": True} if torch.cuda.is_available() else None
    return torch.compile(forward, dynamic=False, options=options)


def _join(stream: torch.cuda.Stream | None, *, wait: bool = False) -> None:
    """Make `stream` and the current stream wait for each other; with `wait`, the host waits for both."""
    if stream is None:
        return
    here = torch.cuda.current_stream(stream.device)
    stream.wait_stream(here)
    here.wait_stream(stream)
    if wait:
        here.synchronize()
