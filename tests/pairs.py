"""Predictors and the charts that they take."""

import pytest

import equivariant_transformers as et


def takes(predictor, *charts):
    """Return True if the predictor can be made for charts of all these names: `centre` is for `cartesian` alone."""
    return predictor != "centre" or set(charts) == {"cartesian"}


def every_pair(*stacks):
    """Parametrise a test by each predictor with each of the stacks, lists of names of charts, that it takes."""
    pairs = [(predictor, list(stack)) for predictor in et.PREDICTORS for stack in stacks if takes(predictor, *stack)]
    return pytest.mark.parametrize(
        ("predictor", "layers"), pairs, ids=[" ".join((predictor, *stack)) for predictor, stack in pairs]
    )
