"""Simulation-based calibration: ranks of the truth among posterior samples, over many problems drawn from the prior.

Cook, Gelman and Rubin (2006); Talts et al. (2018), arXiv:1804.06788. A function and targets are drawn from the model,
the model is conditioned at its own hyperparameters, and the true function is ranked among samples. If the samples are
from the posterior, the ranks are uniform. The points of a problem are ranked in coordinates that are independent under
the exact posterior (by dense algebra), so that all ranks of all problems are independent, and correlations are tested
too. Coefficients of the mean are drawn far from zero, since universal kriging is calibrated for any coefficients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from contract import dense
from contract.dense import Array, Covariance
from contract.problems import INVERSES, Problem, Table, draw_targets
from contract.systems import SYSTEMS, System
from gigagp import GPRegressor, inference, kernels

N_ROWS, N_POINTS, LENGTHSCALE, NOISE = 24, 6, 0.6, 0.05
PRIOR = dense.matern(1.5, LENGTHSCALE)
#: Systems with a prior of their own: features and grids define processes other than the kernel's.
OWN_PRIOR = ("random features", "quadruply, waves", *(system.name for system in SYSTEMS if system.inside))
#: Systems without a process to draw functions from: precisions depend on the targets; functions at the rows have no
#: variance between them; the mean uses few waves but the covariance is the kernel's.
NO_PRIOR = ("relevance vectors", "quadruply, inducing", "quadruply, sampled")


@dataclass(frozen=True)
class Ranks:
    """Results of a simulation.

    Attributes
    ----------
    ranks : array of int of shape (problems, points)
        Number of samples below the truth, 0 to ``draws``.
    draws : int
        Number of samples per problem.
    scores : array of shape (problems, points)
        Errors of the mean divided by its standard deviation, at each point.
    gains : array of shape (problems, points)
        Predicted variances minus the exact ones.
    """

    ranks: Array
    draws: int
    scores: Array
    gains: Array

    def histogram(self, bins: int) -> Array:
        """Return the counts of ranks in ``bins`` bins of equal size."""
        return np.bincount(self.ranks.ravel() * bins // (self.draws + 1), minlength=bins)

    def p_values(self, bins: int = 16) -> dict[str, float]:
        """Return p-values of uniformity: of the histogram, and of statistics for errors of location and of spread.

        The histogram (chi-square) sees every deviation; the other two need fewer ranks. ``"all"`` is three times the
        smallest of the three.
        """
        counts = self.histogram(bins)
        found = {"histogram": float(stats.chisquare(counts).pvalue)}
        # normal scores, whose first moments under uniform ranks are known exactly
        places = stats.norm.ppf((np.arange(self.draws + 1) + 0.5) / (self.draws + 1))
        scores = places[self.ranks.ravel()]
        for name, values, law in (("location", scores, places), ("spread", scores**2, places**2)):
            z = (values.mean() - law.mean()) / (law.std() / math.sqrt(len(values)))
            found[name] = float(2 * stats.norm.sf(abs(z)))
        found["all"] = min(1.0, 3 * min(found.values()))
        return found

    @property
    def spread(self) -> float:
        """Mean square of normal scores over its expectation: above 1 if samples are too narrow, below 1 if too wide."""
        places = stats.norm.ppf((np.arange(self.draws + 1) + 0.5) / (self.draws + 1))
        return float((places[self.ranks] ** 2).mean() / (places**2).mean())


def draw_problem(
    seed: int, mean: str = "constant", covariance: Covariance = PRIOR, likelihood: str = "gaussian"
) -> tuple[Problem, Array]:
    """Return a problem from the prior and the true function at its points; the rows do not depend on the covariance."""
    draw = np.random.default_rng([seed, 20])
    X = np.sort(np.concatenate([[-2.0, 2.0], draw.uniform(-2, 2, size=N_ROWS - 2)]))[:, None]
    edges = np.linspace(-1.9, 1.9, N_POINTS + 1)
    new = draw.uniform(edges[:-1] + 0.1, edges[1:] - 0.1)[:, None]
    both = np.concatenate([X, new])
    root = np.linalg.cholesky(covariance(both, both) + 1e-10 * np.eye(len(both)))
    f = root @ draw.normal(size=len(both))
    if mean != "zero":
        f = f + 5.0 + (3.0 * both[:, 0] if mean == "linear" else 0.0)
    noise = np.full(N_ROWS, NOISE)
    Y = draw_targets(draw, f[:N_ROWS, None], noise, likelihood)
    table = Table("from the prior", X, new, kernels.Matern(1.5, LENGTHSCALE), covariance, NOISE)
    return Problem(table, Y, mean, noise, False, "float64", likelihood), f[N_ROWS:]


def simulate(
    system: System,
    problems: int,
    *,
    draws: int = 63,
    mean: str = "constant",
    shrink: float = 1.0,
    first: int = 0,
    own_prior: bool = False,
    likelihood: str = "gaussian",
) -> Ranks:
    """Rank the truth among the samples of a system.

    Parameters
    ----------
    system : System
    problems : int
        Number of problems.
    draws : int
        Number of samples per problem.
    mean : {"zero", "constant", "linear"}
    shrink : float
        Factor that pulls samples towards their mean; below 1 it is a control that must be rejected.
    first : int
        Seed of the first problem.
    own_prior : bool
        Whether functions are drawn from the process that the system is exact for, if that does not depend on targets;
        otherwise they are drawn from the kernel.
    likelihood : str
        Of the targets. The posterior of those that are not Gaussian is not: ranks are then taken in the coordinates of
        Laplace's approximation by dense algebra, and gains are over its variance.
    """
    ranks, scores, gains = [], [], []
    for seed in range(first, first + problems):
        cell, truth = draw_problem(seed, mean, likelihood=likelihood)
        if own_prior:
            covariance = system.limit(system.fit(cell, random_state=seed), cell).covariance
            cell, truth = draw_problem(seed, mean, covariance)
        table = cell.table
        gp = system.fit(cell, random_state=seed)
        samples = INVERSES[likelihood](gp.sample_y(table.new, draws, random_state=seed))
        found, std = gp.predict_latent(table.new, return_std=True, variance=system.variance)
        samples = found[:, None] + shrink * (samples - found[:, None])
        rows = table.covariance, table.X, cell.Y, table.new, cell.noise
        if likelihood == "gaussian":
            exact = dense.kriging(*rows, cell.basis)
        else:
            exact = dense.laplace_approximation(*rows, likelihood, cell.basis)
        root = np.linalg.cholesky(exact.covariance)
        apart = np.linalg.solve(root, samples - truth[:, None])
        ranks.append((apart < 0).sum(1))
        scores.append((truth - found) / std)
        gains.append(std**2 - exact.variance)
    return Ranks(np.array(ranks), draws, np.array(scores), np.array(gains))


def learned_spread(problems: int, hyperparameters: str, *, draws: int = 63) -> Array:
    """Rank the truth among samples of fits that learn, for hyperparameters drawn from the fit's own prior.

    Ranks of the points of a problem depend on each other, so that each problem gives one number.

    Parameters
    ----------
    problems : int
        Number of problems.
    hyperparameters : {"learned", "laplace"}
        Argument of `sample_y`.
    draws : int
        Number of samples per problem.

    Returns
    -------
    array of shape (problems,)
        Mean square of the normal scores of the points' ranks over its expectation, as `Ranks.spread`.
    """
    places = stats.norm.ppf((np.arange(draws + 1) + 0.5) / (draws + 1))
    found = []
    for seed in range(problems):
        draw = np.random.default_rng([seed, 21])
        X, new = draw.uniform(-1.7, 1.7, (N_ROWS, 1)), draw.uniform(-1.7, 1.7, (N_POINTS, 1))
        # of the lengthscale, and of the standard deviations of the function and the noise (`optimization.prior`)
        lengthscale, scale, noise = np.exp(draw.normal([0.0, 0.0, math.log(0.3)], [1.5, 1.0, 1.0]))
        both = np.concatenate([X, new])
        covariance = dense.matern(1.5, lengthscale)(both, both) + 1e-9 * np.eye(len(both))
        f = scale * np.linalg.cholesky(covariance) @ draw.normal(size=len(both))
        gp = GPRegressor(kernels.Matern(1.5), inference.Exact(), mean="zero", standardize=False, random_state=0)
        gp.fit(X, f[:N_ROWS] + noise * draw.normal(size=N_ROWS))
        samples = gp.sample_y(new, draws, random_state=seed, hyperparameters=hyperparameters)
        scores = places[(samples < f[N_ROWS:, None]).sum(1)]
        found.append(np.mean(scores**2) / np.mean(places**2))
    return np.array(found)
