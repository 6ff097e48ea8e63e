"""Every inference method with every kernel: correct by dense algebra, or refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from contract import dense
from contract.checks import answers, failures
from contract.problems import problem
from contract.systems import KINDS
from gigagp import kernels
from gigagp.errors import InvalidInputError

L = np.array([1.0, 1.6])
#: Of two outputs with variances 0.8 and 1.7, whose sum has three times the standard deviation of their difference.
B = np.array([[0.8, 0.8 * np.sqrt(0.8 * 1.7)], [0.8 * np.sqrt(0.8 * 1.7), 1.7]])
#: Name, kernel, formula, white-noise variance.
KERNELS = {
    "rbf": (kernels.RBF(L), dense.rbf(L), 0.0),
    "matern12": (kernels.Matern(0.5, 2 * L, 0.8), dense.matern(0.5, 2 * L, 0.8), 0.0),
    "rational quadratic": (kernels.RationalQuadratic(L, 1.1, 0.7), dense.rational_quadratic(L, 1.1, 0.7), 0.0),
    "periodic": (kernels.Periodic(1.1, 0.9, 6.0), dense.periodic(1.1, 0.9, 6.0), 0.0),
    "linear": (kernels.Linear([0.5, 0.3]), dense.linear(np.array([0.5, 0.3])), 0.0),
    "sum": (kernels.RBF(L) + kernels.Constant(0.4), dense.added(dense.rbf(L), dense.constant(0.4)), 0.0),
    "product": (kernels.RBF(L) * kernels.Matern(2.5, 2.0), dense.multiplied(dense.rbf(L), dense.matern(2.5, 2.0)), 0.0),
    "rbf and linear": (kernels.RBF(L) + kernels.Linear(0.2), dense.added(dense.rbf(L), dense.linear(0.2)), 0.0),
    "sphere": (
        kernels.Matern(1.5, 150.0, 1.2, metric="haversine"),
        dense.at(dense.on_earth, dense.matern(1.5, 150.0, 1.2)),
        0.0,
    ),
    "rotated": (
        kernels.Matern(2.5, L, 1.2, metric="rotated", angle=35.0),
        dense.at(dense.turned(35.0), dense.matern(2.5, L, 1.2)),
        0.0,
    ),
    "outputs": (
        kernels.RBF(1.2, columns=[0]) * kernels.Outputs(2, columns=[1], variance=[0.8, 1.7], agreement=3.0),
        dense.multiplied(dense.at(lambda A: A[:, :1], dense.rbf(1.2)), dense.outputs(B, 1)),
        0.0,
    ),
    "white": (kernels.Matern(1.5, L) + kernels.White(0.15), dense.matern(1.5, L), 0.15),
}


def _of_outputs(X: dense.Array) -> dense.Array:
    """Return rows whose second column is the number of one of two outputs."""
    return np.stack([X[:, 0], X[:, 1] > 0], 1).astype(float)


@pytest.mark.few(12)
@pytest.mark.filterwarnings("ignore:Squared errors")  # few functions, given noise
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("system", KINDS, ids=repr)
def test_a_kernel(system, name):
    kernel, covariance, white = KERNELS[name]
    cell = problem(0, "one", "constant", "one", "float64")
    table = replace(cell.table, kernel=kernel, covariance=covariance)
    if name == "outputs":
        table = replace(table, X=_of_outputs(table.X), new=_of_outputs(table.new))
    cell = replace(cell, table=table, noise=cell.noise + white)
    gp = system.estimator(cell)
    if name in system.refuses:
        with pytest.raises(InvalidInputError):
            system.fit_to(gp, table.X, cell.y)
        return
    gp = system.fit_to(gp, table.X, cell.y)
    found = failures(answers(system, gp, cell))
    assert not found, "\n".join(found)
