"""Training: one config, one loop, checkpoints that survive anything."""

from equivariant_transformers.training.config import Config
from equivariant_transformers.training.loop import CHECKPOINT, Job, Progress, Result, Stopped, is_finished, train

__all__ = ["CHECKPOINT", "Config", "Job", "Progress", "Result", "Stopped", "is_finished", "train"]
