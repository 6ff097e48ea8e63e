"""Configurations of papers, for reproduction and comparison."""

from __future__ import annotations

from typing import Any, Literal

from gigagp import gradients, inference, kernels, optimization, solvers
from gigagp.fields import Count, Positive, checks_arguments

SolverName = Literal["cg", "ap", "sgd"]
EstimatorName = Literal["standard", "pathwise"]


@checks_arguments
def lin2024(
    solver: SolverName = "cg",
    estimator: EstimatorName = "pathwise",
    warm_start: bool = True,
    *,
    steps: Count = 100,
    learning_rate: Positive = 0.1,
    tolerance: Positive = 0.01,
    max_epochs: Positive = 1000,
    n_probes: Count = 64,
    block_size: Count = 1000,
    batch_size: Count = 500,
    sgd_learning_rate: Positive | Literal["auto"] = "auto",
) -> dict[str, Any]:
    """Return the settings of Lin et al. 2024 as arguments of `gigagp.GPRegressor`.

    Matern-3/2 with one lengthscale per input, zero mean, every scale started at 1, Adam on softplus scales, 64 probes,
    1,000 sine and cosine pairs; CG with greedy pivoted Cholesky of rank 100, alternating projections on contiguous
    blocks, SGD with momentum 0.9. gigagp's own defaults are much faster; this is the baseline for comparing them.

    Parameters
    ----------
    solver : {"cg", "ap", "sgd"}, default "cg"
        Conjugate gradients, alternating projections or stochastic gradient descent.
    estimator : {"standard", "pathwise"}, default "pathwise"
        Gradient estimator; "standard" is Hutchinson's.
    warm_start : bool, default True
        Whether solves start from the previous solution, with fixed probes. False: from zero, with new probes each step.
    steps : int, default 100
        Number of steps of Adam.
    learning_rate : float, default 0.1
        Learning rate of Adam.
    tolerance : float, default 0.01
        Relative residual of the targets, and mean relative residual of the probes.
    max_epochs : float, default 1000
        Largest number of epochs of a solve.
    n_probes : int, default 64
        Number of probe vectors.
    block_size : int, default 1000
        Block size of alternating projections; the paper uses 1,000, and 2,000 for protein and keggdirected.
    batch_size : int, default 500
        Batch size of SGD.
    sgd_learning_rate : float or "auto", default "auto"
        The paper tunes it by hand for each table: 30, 20, 30, 20, 20 for pol, elevators, bike, keggdirected, protein.

    Returns
    -------
    dict
        Arguments for ``GPRegressor(**lin2024())``.

    References
    ----------
    Lin, Padhy, Mlodozeniec, Antoran and Hernandez-Lobato (2024), arXiv:2405.18457, section 3, tables 1 to 6.
    """
    common: dict[str, Any] = {"tolerance": tolerance, "max_epochs": max_epochs}
    chosen: Any
    if solver == "cg":
        chosen = solvers.ConjugateGradients(preconditioner=solvers.PivotedCholesky(rank=100), **common)
    elif solver == "ap":
        chosen = solvers.AlternatingProjections(block_size=block_size, partition="contiguous", coarse_rank=0, **common)
    else:
        chosen = solvers.StochasticGradientDescent(
            batch_size=batch_size, learning_rate=sgd_learning_rate, momentum=0.9, **common
        )
    gradient = (
        gradients.Pathwise(n_probes=n_probes, n_features=2000, law="joint")
        if estimator == "pathwise"
        else gradients.Hutchinson(n_probes=n_probes)
    )
    return {
        "kernel": kernels.Matern(nu=1.5, lengthscale=1.0, variance=1.0),
        "noise_variance": 1.0,
        "hyperparameter_units": "standardized",
        "mean": "zero",
        "inference": inference.Iterative(
            solver=chosen,
            gradient=gradient,
            warm_start="previous" if warm_start else False,
            n_samples=n_probes,
        ),
        "optimizer": optimization.Adam(learning_rate=learning_rate, steps=steps),
    }
