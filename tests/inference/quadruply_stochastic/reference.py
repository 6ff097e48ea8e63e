"""The small instances of the paper notes, and enumeration of all samples."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from gigagp.inference.quadruply_stochastic.estimators.sampling import BasisSample
from gigagp.inference.quadruply_stochastic.estimators.terms import SampledRows
from gigagp.inference.quadruply_stochastic.whole import WholeObjective
from weight_bounds import BoundTerms


def sampled(objective):
    """Return the objective of samples, also where all rows and functions can be used at once."""
    return objective.sampled() if isinstance(objective, WholeObjective) else objective


class Instance:
    """A Bayesian linear model with a variational posterior."""

    def __init__(self, Phi, S, y, noise, mean, root, *, terms=None, evidence=None):
        self.Phi, self.S, self.y, self.mean, self.root = (
            torch.as_tensor(np.asarray(one), dtype=torch.float64) for one in (Phi, S, y, mean, root)
        )
        self.noise = noise
        self.n, self.m = self.Phi.shape
        self.terms, self.evidence = terms, evidence

    def rows(self, rows=None, columns=None):
        rows = torch.arange(self.n) if rows is None else torch.as_tensor(rows)
        columns = torch.arange(self.m) if columns is None else columns
        noise = torch.full((len(rows),), self.noise, dtype=torch.float64)
        return SampledRows(self.Phi[rows][:, columns], self.y[rows][:, None], noise, self.n / len(rows))

    def prior(self, index):
        return lambda a, b: (a * (self.S[index][:, index] @ b)).sum(0)


def tiny():
    """T1."""
    return Instance(
        [[1, 0], [1, 1], [0, 2]],
        [[2, 0.5], [0.5, 1]],
        [1, 2, -1],
        0.5,
        [0.3, -0.2],
        [[0.8, 0], [0.1, 0.6]],
        terms=BoundTerms(-2.92, 9.7779383502, 12.8745738696),
        evidence=-6.1685639988,
    )


def small():
    """T2."""
    rng = np.random.default_rng(0)
    Phi, A = rng.normal(size=(6, 4)), rng.normal(size=(4, 4))
    y, noise, mean = rng.normal(size=6), 0.3, rng.normal(size=4)
    root = np.tril(rng.normal(size=(4, 4)))
    root[np.diag_indices(4)] = np.exp(rng.normal(size=4))
    terms = BoundTerms(364.0683231387, 767.7543037721, float("nan"))
    return Instance(Phi, A @ A.T + np.eye(4), y, noise, mean, root, terms=terms, evidence=-12.3548891852)


def samples(n, size, replacement):
    """Return all samples: sets, or tuples with replacement."""
    every = itertools.product(range(n), repeat=size) if replacement else itertools.combinations(range(n), size)
    return [torch.tensor(one) for one in every]


def pairs(m, size, replacement, **settings):
    """Iterate over all pairs of independent samples."""
    for left, right in itertools.product(samples(m, size, replacement), repeat=2):
        yield BasisSample.from_indices(left, right, m, **settings)
