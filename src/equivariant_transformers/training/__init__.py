"""Training: configs, jobs, the training loop, and checkpoints that survive an interruption at any time."""

from equivariant_transformers.training.config import Config
from equivariant_transformers.training.loggers import Epoch
from equivariant_transformers.training.loop import Stopped, train
from equivariant_transformers.training.run import CHECKPOINT, Job, Progress, Result, is_finished

__all__ = ["CHECKPOINT", "Config", "Epoch", "Job", "Progress", "Result", "Stopped", "is_finished", "train"]
