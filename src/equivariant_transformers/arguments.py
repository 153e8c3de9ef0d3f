"""Checks of numeric arguments, with errors that name the argument and the allowed values."""

from __future__ import annotations

import math
import operator
from typing import Any

from equivariant_transformers.text import quote


def whole_number(name: str, value: Any, *, least: int = 1, most: int | None = None) -> int:
    """Return `value` as an int, or raise an error unless it is a whole number from `least` to `most`.

    >>> whole_number("iterations", 0)
    Traceback (most recent call last):
    ...
    ValueError: iterations must be at least 1, got 0
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except (RuntimeError, TypeError, ValueError):
        number = None
    if number is None:
        raise TypeError(f"{name} must be a whole number, got {quote(value)}")
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {quote(value)}")
    if most is not None and number > most:
        raise ValueError(f"{name} must be at most {most}, got {quote(value)}")
    return number


def real_number(name: str, value: Any) -> float:
    """Return `value` as a float, or raise an error if it is NaN, a string or not a number.

    >>> real_number("fill", "black")
    Traceback (most recent call last):
    ...
    TypeError: fill must be a number, got 'black'
    """
    try:
        number = math.nan if isinstance(value, (str, bytes)) else float(value)
    except (OverflowError, RuntimeError, TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise (ValueError if isinstance(value, (int, float)) else TypeError)(
            f"{name} must be a number, got {quote(value)}"
        )
    return number
