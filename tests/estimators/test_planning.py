"""The choice of inference="auto", and its boundaries."""

from __future__ import annotations

import pytest

from gigagp.errors import InvalidInputError
from gigagp.estimators.planning import EXACT_ROWS, resolve_inference
from gigagp.inference import Exact, Iterative
from gigagp.inference.automatic import Automatic

PLENTY = 2**40


def test_the_rule():
    assert resolve_inference("auto", 2, 8, PLENTY) == Exact()
    assert resolve_inference("auto", EXACT_ROWS, 8, PLENTY) == Exact()
    assert resolve_inference("auto", EXACT_ROWS + 1, 8, PLENTY) == Automatic()


@pytest.mark.parametrize("itemsize", [4, 8])
def test_what_does_not_fit_is_not_factorised(itemsize):
    needed = 3 * 1000**2 * itemsize
    assert resolve_inference("auto", 1000, itemsize, needed) == Exact()
    assert resolve_inference("auto", 1000, itemsize, needed - 1) == Automatic()


def test_what_is_given_is_kept():
    settings = Iterative(n_samples=3)
    assert resolve_inference(settings, 10, 8, PLENTY) is settings
    assert resolve_inference(Exact(), 10**9, 8, 1) == Exact()


@pytest.mark.parametrize("wrong", ["exact", None, Exact, 3])
def test_anything_else_is_refused(wrong):
    with pytest.raises(InvalidInputError, match=r'inference of GPRegressor must be "auto" or one of gigagp.inference'):
        resolve_inference(wrong, 10, 8, PLENTY)
