"""Fits of few rows run in one thread, and leave the number of threads as it was."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, kernels


@pytest.fixture(autouse=True)
def _three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def threads_within(n_rows: int) -> tuple[set[int], set[int]]:
    """Return the numbers of threads that a fit and a prediction see, and those of another thread at the same time."""
    seen, elsewhere = set(), set()

    def mean(X: np.ndarray) -> np.ndarray:
        seen.add(torch.get_num_threads())
        other = threading.Thread(target=lambda: elsewhere.add(torch.get_num_threads()))
        other.start()
        other.join()
        return np.zeros(len(X))

    X = np.linspace(0, 1, n_rows)[:, None]
    GPRegressor(mean=mean, optimizer=None, kernel=kernels.Matern()).fit(X, np.sin(X[:, 0])).predict(X[:1])
    return seen, elsewhere


def test_small_fits_have_one_thread():
    assert threads_within(400) == ({1}, {3})
    assert torch.get_num_threads() == 3


def test_larger_fits_have_all():
    assert threads_within(600) == ({3}, {3})


def test_a_failed_fit_leaves_the_number():
    def mean(X: np.ndarray) -> np.ndarray:
        raise RuntimeError("no values")

    with pytest.raises(RuntimeError, match="no values"):
        GPRegressor(mean=mean).fit([[0.0], [1.0]], [0.0, 1.0])
    assert torch.get_num_threads() == 3


def test_a_large_prediction_of_a_small_fit_has_all():
    seen = []

    def mean(X: np.ndarray) -> np.ndarray:
        seen.append(torch.get_num_threads())
        return np.zeros(len(X))

    gp = GPRegressor(mean=mean, optimizer=None).fit([[0.0], [1.0]], [0.0, 1.0])
    gp.predict(np.zeros((10, 1)))
    gp.predict(np.zeros((1000, 1)))
    assert seen[-2:] == [1, 3]
