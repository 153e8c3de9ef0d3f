"""Training of one network by the processes of `torchrun`. In a single process, the functions have no effect."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn


def rank() -> int:
    """Return the rank of this process. Rank 0 writes files and prints."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


@contextmanager
def processes(device: torch.device) -> Iterator[torch.device]:
    """Join the processes started by `torchrun`, if any, and yield the device of this process."""
    if "WORLD_SIZE" not in os.environ:
        yield device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    # DistributedDataParallel imports this module, whose default arguments refer to the process group at that time. The
    # threads of the group would then outlive the block and still run when the interpreter exits.
    importlib.import_module("torch.distributed.nn.functional")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield device
        dist.barrier()  # a process that exits early can crash a process that still communicates with it
    finally:
        dist.destroy_process_group()


def replicate(module: nn.Module, device: torch.device) -> nn.Module:
    """Return `module` with its gradients averaged over all processes."""
    if world_size() == 1:
        return module
    return nn.parallel.DistributedDataParallel(module, device_ids=[device] if device.type == "cuda" else None)


def total(values: Tensor) -> list[float]:
    """Return `values` `(n,)` summed over all processes."""
    if world_size() > 1:
        dist.all_reduce(values)
    summed: list[float] = values.tolist()
    return summed


def any_process(flag: bool, device: torch.device) -> bool:
    """Return whether `flag` is set in any process."""
    return flag if world_size() == 1 else total(torch.tensor([float(flag)], device=device))[0] > 0
