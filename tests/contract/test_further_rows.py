"""`condition_on`: every inference that adds rows answers as dense algebra of all rows does, whatever came first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import gigagp
from contract import dense
from contract.checks import CELLS, answers, cell_name, failures, refused
from contract.fits import differing, everything
from contract.problems import problem
from contract.systems import BY_NAME, Limit
from gigagp import GPRegressor, inference, kernels, solvers
from gigagp.errors import InvalidInputError

#: Rows that come later, in two parts.
LATER = (4, 3)
#: Iterative grids take seconds a fit; tests/estimators/test_fit_table.py adds rows to them.
ADDS = [BY_NAME[name] for name in ("exact", "iterative, CG", "vecchia", "random features", "SGPR", "grid, dense")]
#: Those whose inference has the ability, but not with these settings.
REFUSE = [BY_NAME[name] for name in ("SVGP", "iterative, aware")]
CELLS_OF = [(one, cell) for one in ADDS for cell in CELLS[::5] if not refused(one, cell)]


def parts(X):
    """Return the rows that come first, which span the range of all (a grid must cover it), and those that follow."""
    ends = {int(one) for k in range(X.shape[1]) for one in (X[:, k].argmin(), X[:, k].argmax())}
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
    """Return the limit of inducing points that are not all rows: those of their features, and what these leave."""
    points = gp.posterior_.inducing_points.numpy()  # the contract does not standardize
    covariance, new = problem.table.covariance, problem.table.new
    S = covariance(points, points)
    S += gp.posterior_.points.share * np.diag(np.diag(S))
    of_features = dense.of_features(lambda X: covariance(X, points), S)

    def limit(X, Z):
        return covariance(X, Z) if X is Z is new else of_features(X, Z)

    return Limit(limit, condition=float(np.linalg.cond(S)))


def limited(system):
    return replace(system, limit=by_points, evidence="bound") if system.name == "SGPR" else system


@pytest.mark.pairs
@pytest.mark.parametrize(("system", "cell"), CELLS_OF, ids=cell_name)
def test_a_cell(system, cell):
    place, targets, mean, noise, dtype = cell
    found = problem(place, targets, mean, noise, dtype)
    if found.table.name in system.warns:
        return
    _, gp = grown(system, found)
    assert gp.posterior_.n_rows == len(found.table.X)
    wrong = failures(answers(limited(system), gp, found))
    assert not wrong, f"{system.name}, {found.table.name}, {cell}:\n" + "\n".join(wrong)


@pytest.mark.few(3)
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
    at_rows = [gp.predict(cell.table.X[rows], return_std=True)[1] for gp in (more, few)]
    assert (at_rows[0] < at_rows[1]).any()
    loaded = gigagp.load(tmp_path / "few.gp").partial_fit(cell.table.X[rows], cell.y[rows])
    after = everything(more, cell.table.new)
    for name, value in everything(loaded, cell.table.new).items():
        np.testing.assert_allclose(value, after[name], rtol=1e-6, atol=1e-6, err_msg=name)


def test_the_bound_of_inducing_points_is_that_of_all_rows():
    found = problem(0, "several", "linear", "rows", "float64")
    _, gp = grown(BY_NAME["SGPR"], found)
    X, points = found.table.X, gp.posterior_.inducing_points.numpy()
    S = found.table.covariance(points, points)
    of_features = dense.of_features(lambda X: found.table.covariance(X, points), S)
    process = dense.kriging(of_features, X, found.Y, X, found.noise, found.basis)
    left = np.diag(found.table.covariance(X, X) - of_features(X, X)) / found.noise
    assert left.sum() > 1  # points are missing
    expected = process.evidence - 0.5 * found.Y.shape[1] * left.sum()
    np.testing.assert_allclose(gp.log_marginal_likelihood().value, expected, rtol=1e-5)


@pytest.mark.parametrize("system", REFUSE, ids=repr)
def test_settings_that_cannot_add_rows_say_so(system):
    found = problem(0, "one", "constant", "one", "float64")
    gp = system.fit(found)
    with pytest.raises(InvalidInputError, match=r"adds rows to a fit by SGPR|can add rows only to a fit with"):
        gp.condition_on(found.table.X[:2], found.y[:2])


def test_scaling_and_arguments_stay():
    """Rows are scaled as those of the fit, however far they lie, and a copy has the arguments of the first."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 2)), rng.normal(size=40)
    more = 3 + 2 * rng.normal(size=(12, 2)), 5 + rng.normal(size=12)
    gp = GPRegressor(kernels.Matern(2.5), inference.Exact()).fit(X, y)
    grown = gp.condition_on(*more)
    assert grown.get_params()["kernel"] is gp.kernel
    assert grown.scaling_ is gp.scaling_
    scaled = gp.scaling_.inputs(np.concatenate([X, more[0]])), gp.scaling_.targets(np.append(y, more[1])[:, None])[:, 0]
    model = gp.posterior_.model
    options = {"standardize": False, "optimizer": None, "noise_variance": float(model.noise_variance)}
    whole = GPRegressor(model.kernel, inference.Exact(), **options).fit(*scaled)
    at = rng.normal(size=(7, 2))
    expected = gp.scaling_.original(whole.predict(gp.scaling_.inputs(at))[:, None])[:, 0]
    np.testing.assert_allclose(grown.predict(at), expected, rtol=1e-9, atol=1e-9)


def test_refit_learns_from_all_rows():
    rng = np.random.default_rng(1)
    X = rng.uniform(size=(60, 1))
    y = np.sin(20 * X[:, 0]) + 0.1 * rng.normal(size=60)
    gp = GPRegressor(kernels.RBF(), inference.Exact()).fit(X[:12], y[:12])
    kept, learned = (gp.condition_on(X[12:], y[12:], refit=refit) for refit in (False, True))
    assert learned.log_marginal_likelihood().value > kept.log_marginal_likelihood().value + 1
    anew = GPRegressor(kernels.RBF(), inference.Exact()).fit(X, y)
    assert learned.log_marginal_likelihood().value == pytest.approx(anew.log_marginal_likelihood().value, abs=0.05)
    assert learned.kernel is gp.kernel
    np.testing.assert_allclose(learned.scaling_.x_scale, anew.scaling_.x_scale)


def known(X):
    return 5 * X[:, 0] ** 2


@pytest.mark.parametrize("options", [{"mean": known}, {"mean": "zero", "target_transform": "log"}], ids=["mean", "log"])
def test_refit_has_the_rows_in_their_own_units(options):
    """A known mean or a transform is undone and done again: what is learned is that of the plain rows."""
    rng = np.random.default_rng(4)
    X = rng.uniform(1, 2, size=(40, 1))
    z = np.sin(8 * X[:, 0]) + 0.1 * rng.normal(size=40)
    y = np.exp(z) if "target_transform" in options else z + known(X)
    assert np.abs(y - z).max() > 0.5  # the control: other units would show
    plain, other = (
        GPRegressor(kernels.RBF(), inference.Exact(), **more)
        .fit(X[:20], targets[:20])
        .condition_on(X[20:], targets[20:], refit=True)
        for more, targets in (({"mean": "zero"}, z), (options, y))
    )
    new = np.linspace(1, 2, 7)[:, None]
    median = other.predict_quantile(new, 0.5)
    found = np.log(median) if "target_transform" in options else median - known(new)
    np.testing.assert_allclose(found, plain.predict(new), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"optimizer": None}, "refit of condition_on must be False for an estimator with optimizer=None"),
        ({"inference": inference.SparseVariational(5)}, "refit must be False, because a sparse variational posterior"),
        ({"encode": "auto"}, 'refit of condition_on must be False with encode="auto"'),
    ],
)
def test_refit_is_refused_where_it_cannot_be(options, match):
    X = np.linspace(0, 1, 20)[:, None]
    gp = GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | {"inference": inference.Exact(), **options}).fit(X, X[:, 0])
    with pytest.raises(InvalidInputError, match=match):
        gp.condition_on(X[:1], [1.0], refit=True)
    assert gp.condition_on(X[:1] + 0.01, [0.0]).posterior_.n_rows == 21


def test_a_warm_start_saves_iterations():
    """Solves that go on from the old solutions take fewer steps than solves of all rows from zero."""
    rng = np.random.default_rng(2)
    X = rng.uniform(size=(600, 2))
    y = np.sin(6 * X).sum(1) + 0.1 * rng.normal(size=600)
    given = {"kernel": kernels.Matern(1.5, 0.3), "noise_variance": 0.01, "optimizer": None}
    solver = solvers.ConjugateGradients(tolerance=1e-4, preconditioner=None)
    how = inference.Iterative(solver=solver, n_samples=8)
    whole, grown = (
        GPRegressor(inference=how, **given).fit(X, y),
        GPRegressor(inference=how, **given).fit(X[:590], y[:590]),
    )
    grown = grown.condition_on(X[590:], y[590:])
    assert grown.posterior_.final_solve.iterations < 0.6 * whole.posterior_.final_solve.iterations
    exact = GPRegressor(inference=inference.Exact(), **given).fit(X, y)
    np.testing.assert_allclose(grown.predict(X), exact.predict(X), atol=1e-3)
