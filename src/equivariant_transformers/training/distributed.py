"""Several processes that train one network; without `torchrun` there is one, and nothing here does anything."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn


def rank() -> int:
    """The number of this process, 0 for the one that writes files and speaks."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


@contextmanager
def processes(device: torch.device) -> Iterator[torch.device]:
    """Join the processes that `torchrun` started, if it did, and yield the device of this one."""
    if "WORLD_SIZE" not in os.environ:
        yield device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    # DistributedDataParallel imports this module. Its default arguments keep the process group that exists by then,
    # whose threads would outlive the block and meet the end of the interpreter.
    importlib.import_module("torch.distributed.nn.functional")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield device
        dist.barrier()  # a process that leaves while another is still talking to it can take that one down
    finally:
        dist.destroy_process_group()


def replicate(module: nn.Module, device: torch.device) -> nn.Module:
    """`module` with its gradients averaged over all processes."""
    if world_size() == 1:
        return module
    return nn.parallel.DistributedDataParallel(module, device_ids=[device] if device.type == "cuda" else None)


def total(values: Tensor) -> list[float]:
    """`values` `(n,)`, summed over all processes."""
    if world_size() > 1:
        dist.all_reduce(values)
    summed: list[float] = values.tolist()
    return summed


def any_process(flag: bool, device: torch.device) -> bool:
    """Whether `flag` is set in any process."""
    return flag if world_size() == 1 else total(torch.tensor([float(flag)], device=device))[0] > 0
