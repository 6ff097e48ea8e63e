"""`leave_one_out` of every system: dense algebra without each row in turn, or a refusal."""

from __future__ import annotations

import numpy as np
import pytest

from contract import dense
from contract.checks import CELLS, cell_name
from contract.fits import fitted
from contract.problems import Problem, problem
from contract.systems import BY_NAME, KINDS
from gigagp.errors import InvalidInputError

#: Those that leave rows out in closed form, and the one that estimates it.
CLOSED, ESTIMATED = ("exact", "vecchia", "SS-RFF"), "iterative, CG"
#: Largest and root mean square number of standard errors of an estimate; one false alarm in 1e4 cells of 40 rows.
LARGEST, TYPICAL = 6.0, 2.0


def without_each(cell: Problem) -> tuple[dense.Array, dense.Array]:
    """Return means (n, t) and variances (n,) of observations of the rows, each from all others."""
    X, offset = cell.table.X, cell.offset(cell.table.X)
    means, variances = [], []
    for row in range(len(X)):
        rest = np.arange(len(X)) != row
        rows = cell.table.covariance, X[rest], (cell.Y - offset)[rest], X[[row]], cell.noise[rest], cell.basis
        found = dense.kriging(*rows)
        means.append(found.mean[0] + offset[row])
        variances.append(found.variance[0] + cell.noise[row])
    return np.array(means), np.array(variances)


@pytest.mark.pairs
@pytest.mark.parametrize("cell", CELLS[::3], ids=cell_name)
@pytest.mark.parametrize("name", [*CLOSED, ESTIMATED])
def test_a_cell(name, cell):
    place, targets, mean, noise, dtype = cell
    system, found = BY_NAME[name], problem(place, targets, mean, noise, dtype)
    if system.refuses_cell(mean, noise, dtype, "gaussian"):
        return
    left_out = system.fit(found).leave_one_out()
    means, variances = without_each(found)
    stds = np.sqrt(variances)[:, None]
    got = {part: getattr(left_out, part).reshape(means.shape) for part in ("mean", "std", "standard_error")}
    if name == ESTIMATED:
        apart = (got["std"] - stds) / got["standard_error"]
        assert np.abs(apart).max() < LARGEST
        assert np.sqrt(np.mean(apart**2)) < TYPICAL
        # y - mean = (H^-1 y)_i / (H^-1)_ii, whose numerator is solved for: a mean errs by as much as its variance
        expected = found.Y - (found.Y - means) * (got["std"] / stds) ** 2
    else:
        assert not got["standard_error"].any()
        np.testing.assert_allclose(got["std"], np.broadcast_to(stds, means.shape), rtol=1e-6)
        expected = means
    rounding = 1e-5 if dtype == "float64" else 1e-3
    np.testing.assert_allclose(got["mean"], expected, rtol=0, atol=rounding * np.abs(found.Y).max())


@pytest.mark.few(5)
@pytest.mark.parametrize("system", [one for one in KINDS if one.name not in (*CLOSED, ESTIMATED)], ids=repr)
def test_others_refuse(system):
    with pytest.raises(InvalidInputError, match="leave_one_out of GPRegressor needs"):
        fitted(system.name)[0].leave_one_out()


def test_predictions_from_all_rows_would_be_found():
    """The control: rows predicted from themselves too."""
    gp, cell = fitted("exact")
    means, variances = without_each(cell)
    mean, std = gp.predict(cell.table.X, return_std=True, include_noise=True)
    assert np.abs(mean - means[:, 0]).max() > 1e-2 * np.abs(cell.Y).max()
    assert (std < np.sqrt(variances)).all()
