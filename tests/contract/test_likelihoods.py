"""Likelihoods that are not Gaussian: refused where they are not supported, and the probabilities of classes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from contract import dense
from contract.checks import CELLS, check
from contract.problems import LIKELIHOODS, problem
from contract.systems import SYSTEMS
from gigagp import GPClassifier

OTHERS = LIKELIHOODS[1:]
WITH = [system for system in SYSTEMS if len(system.likelihoods) > 1]
#: Methods that take known noise variances of rows have Student-t noise too, by weights (`test_student_fit`).
WEIGHS = [
    system
    for system in SYSTEMS
    if len(system.likelihoods) == 1 and "rows" not in system.refuses and not system.streamed
]
WITHOUT = [
    (system, one)
    for system in SYSTEMS
    for one in OTHERS
    if one not in system.likelihoods and not (one == "student-t" and system in WEIGHS)
]


@pytest.mark.few(6)
@pytest.mark.parametrize(("system", "likelihood"), WITHOUT, ids=repr)
def test_all_cells_are_refused(system, likelihood):
    for cell in CELLS:
        check(system, *cell, likelihood)


def probit(y, mean, std, noise):
    """Signs with the probability ``Phi(f)``, by quadrature."""
    places, weights = np.polynomial.hermite_e.hermegauss(101)
    weights = weights / weights.sum()
    f = y[:, None] * (mean[:, None] + std[:, None] * places)
    ratio = np.exp(stats.norm.logpdf(f) - stats.norm.logcdf(f))
    return stats.norm.logcdf(f) @ weights, y * (ratio @ weights), (ratio * (f + ratio)) @ weights


dense.EXPECTATIONS["probit"] = probit
EXPECTATIONS = {one: dense.EXPECTATIONS[one] for one in ("logistic", "probit")}


@pytest.mark.slow
@pytest.mark.each
@pytest.mark.filterwarnings("ignore:Weights of relevance vectors")  # of float32, for which the fit takes float64
@pytest.mark.filterwarnings("ignore:threshold of RelevanceVectorMachine")  # with few signs no function may remain
@pytest.mark.parametrize("likelihood", ["logistic", "probit"])
@pytest.mark.parametrize("system", WITH, ids=repr)
def test_probabilities_of_classes(system, likelihood):
    """Probabilities of the class, averaged over the latent posterior by fine quadrature."""
    cell = problem(0, "one", "zero", "one", "float64", "logistic")
    table, new = cell.table, cell.table.new
    gp = GPClassifier(table.kernel, system.make(cell), system.keeps, likelihood, standardize=False)
    gp.fit(table.X, np.where(cell.y > 0, "yes", "no"))
    latent = gp.latent_
    limit, expectation = system.limit(latent, cell), EXPECTATIONS[likelihood]
    if system.laplace:
        found = dense.laplace_approximation(limit.covariance, table.X, cell.Y, new, cell.noise, likelihood)
    else:
        found = dense.variational(limit.covariance, table.X, cell.Y, new, cell.noise, expectation, rest=limit.rest)
    places = np.linspace(-12, 12, 4001)
    weights = stats.norm.pdf(places) / stats.norm.pdf(places).sum()
    f = found.mean + np.sqrt(found.variance)[:, None] * places
    link = {"logistic": lambda f: 1 / (1 + np.exp(-f)), "probit": stats.norm.cdf}[likelihood]
    assert (
        np.abs(gp.predict_proba(new)[:, 1] - link(f) @ weights).max() < 1e-3 + 2 * system.tolerance
    )  # the accuracy of the latent function after Newton's search
    clear = np.abs(found.mean[:, 0]) > 1e-6  # with a single vector, all probabilities may be one half
    assert (gp.predict(new)[clear] == np.where(found.mean[:, 0] > 0, "yes", "no")[clear]).all()
