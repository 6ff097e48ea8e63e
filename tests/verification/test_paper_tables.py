"""Notes on Lin et al. 2024, section 10, test 22, as a smoke test: a few hundred rows of the paper's own tables.

Table 1 at full size is `benchmarks/iterative_table.py`; here iterative runs have to end where exact ones do.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gigagp import GPRegressor, inference, kernels
from gigagp.estimators.metrics import gaussian_nll, rmse
from gigagp.presets import lin2024

FOLDER = Path(__file__).parents[2].parent / "shared" / "data" / "uci"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="../shared/data is not here")


@pytest.fixture(scope="module", params=["pol", "elevators"])
def split(request):
    """Return 500 training rows of split 0, 500 of its test rows, z-scored by the former."""
    rows = np.loadtxt(FOLDER / request.param / "data.csv.gz", delimiter=",")
    test = np.loadtxt(FOLDER / request.param / "test_mask.csv.gz", delimiter=",", usecols=0) == 1
    rng = np.random.default_rng(0)
    train, held_out = rng.choice(rows[~test], 500, replace=False), rows[test][:500]
    centre, spread = train.mean(0), train.std(0)
    spread[spread == 0] = 1
    train, held_out = (train - centre) / spread, (held_out - centre) / spread
    return train[:, :-1], train[:, -1], held_out[:, :-1], held_out[:, -1]


def scores(gp, split, variance="solve"):
    X, y, X_test, y_test = split
    mean, std = gp.fit(X, y).predict(X_test, return_std=True, include_noise=True, variance=variance)
    return rmse(y_test, mean), -gaussian_nll(y_test, mean, std)


def test_22_the_paper_s_configuration_ends_where_exact_gradients_do(split):
    settings = lin2024("cg", "pathwise", True, steps=30)
    iterative = scores(GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | settings, standardize=False), split)
    exact = scores(
        GPRegressor(
            **{"kernel": kernels.Matern(nu=1.5)} | {**settings, "inference": inference.Exact()}, standardize=False
        ),
        split,
    )
    assert iterative == pytest.approx(exact, abs=0.04)
    assert iterative[0] < 0.75  # the training mean has 1


def test_22_the_defaults_are_no_worse(split):
    """The default fit against a hundred steps of the paper's loop with exact gradients."""
    default = scores(GPRegressor(kernels.Matern(nu=1.5)), split)
    paper = scores(
        GPRegressor(
            **{"kernel": kernels.Matern(nu=1.5)} | {**lin2024(steps=100), "inference": inference.Exact()},
            standardize=False,
        ),
        split,
    )
    assert default[0] < paper[0] + 0.03
    assert default[1] > paper[1] - 0.06
