"""Device for the tests of kernels: a GPU, or with `TRITON_INTERPRET=1` the CPU, where Triton interprets the kernels."""

import os

import pytest

from equivariant_transformers.geometry import kernels

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
NEEDS_KERNELS = [] if INTERPRETED else [pytest.mark.cuda]
"""Marks of a module whose tests launch kernels."""

if INTERPRETED:
    from triton import language as tl
    from triton.runtime.interpreter import InterpreterBuilder

    kernels.DEVICES = ("cpu",)
    multiply = InterpreterBuilder.create_dot

    def multiply_bfloat16(self, a, b, *others):
        """Multiply matrices. Triton stores bfloat16 as integers and multiplies these, so operands are widened first."""
        wide = (self.cast_impl(x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        return multiply(self, *wide, *others)

    InterpreterBuilder.create_dot = multiply_bfloat16
