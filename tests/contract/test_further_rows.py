"""`condition_on`: every inference that adds rows answers as dense algebra of all rows does, whatever came first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import gigagp
from contract import dense
from contract.checks import CELLS, answers, failures
from contract.fits import differing, everything
from contract.problems import problem
from contract.systems import BY_NAME, KINDS, Limit
from gigagp import GPRegressor, inference, kernels
from gigagp.errors import InvalidInputError
from gigagp.inference.posterior import GrowingPosterior

#: Rows that come later, in two parts.
LATER = (4, 3)
ADDS = [system for system in KINDS if system.make(problem(0, "one", "zero", "one", "float64")).abilities.adds_rows]
ADDS = [system for system in ADDS if system.name not in ("SVGP", "iterative, aware")]


def parts(X):
    """Return the rows that come first, which span the range of all (a grid must cover it), and those that follow."""
    ends = {int(one) for k in range(X.shape[1]) for one in (X[:, k].argmin(), X[:, k].argmax())}
    ends |= {int(one) for one in np.flatnonzero(np.abs(X - np.median(X, 0)).max(1) > 50)}
    later = np.setdiff1d(np.random.default_rng(5).permutation(len(X)), [*ends])[-sum(LATER) :]
    return np.setdiff1d(np.arange(len(X)), later), np.split(later, [LATER[0]])


def grown(system, cell, **changes):
    """Return a fit to the first rows, and the same given all rows."""
    first, later = parts(cell.table.X)
    X, y = cell.table.X, cell.y
    noise = {"noise_variance": cell.noise[first]} if cell.rows_known else {}
    few = system.fit_to(system.estimator(cell, **noise, **changes), X[first], y[first])
    gp = few
    for rows in later:
        gp = gp.condition_on(X[rows], y[rows], noise_variance=cell.noise[rows] if cell.rows_known else None)
    return few, gp


def by_points(gp, problem):
    """Return the limit of inducing points that are not all rows."""
    points = gp.posterior_.inducing_points.numpy()  # the contract does not standardize
    covariance = problem.table.covariance
    S = covariance(points, points)
    S += gp.posterior_.points.share * np.diag(np.diag(S))
    limit = dense.of_features(lambda X: covariance(X, points), S)
    return Limit(limit, rest=covariance, condition=float(np.linalg.cond(S)))


def limited(system):
    return replace(system, limit=by_points, evidence="bound") if system.name == "SGPR" else system


@pytest.mark.parametrize(("place", "cell"), CELLS[::3], ids=lambda one: "-".join(one) if isinstance(one, tuple) else "")
@pytest.mark.parametrize("system", ADDS, ids=repr)
def test_a_cell(system, place, cell):
    targets, mean, noise, dtype = cell
    found = problem(place, targets, mean, noise, dtype)
    if system.refuses_cell(mean, noise, dtype, "gaussian") or found.table.name in system.warns:
        return
    _, gp = grown(system, found)
    assert gp.posterior_.n_rows == len(found.table.X)
    wrong = failures(answers(limited(system), gp, found))
    assert not wrong, f"{system.name}, {found.table.name}, {cell}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("system", ADDS, ids=repr)
def test_the_first_fit_stays_as_it_is_and_files_go_on(system, tmp_path):
    cell = problem(0, "one", "constant", "one", "float64")
    first, later = parts(cell.table.X)
    few = system.fit_to(system.estimator(cell), cell.table.X[first], cell.y[first])
    few.save(tmp_path / "few.gp")
    before = everything(few, cell.table.new)
    rows = later[0]
    more = few.condition_on(cell.table.X[rows], cell.y[rows])
    assert differing(before, everything(few, cell.table.new)) == []
    assert len(differing(before, everything(more, cell.table.new))) >= 7
    assert (more.predict(cell.table.X[rows], return_std=True)[1] < few.predict(cell.table.X[rows], return_std=True)[1]).any()
    loaded = gigagp.load(tmp_path / "few.gp").partial_fit(cell.table.X[rows], cell.y[rows])
    for one, other in zip(everything(more, cell.table.new).values(), everything(loaded, cell.table.new).values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
