"""Configurations of papers, for reproduction and comparison."""

from __future__ import annotations

from typing import Any, Literal

from gigagp import inference, kernels, optimization, solvers
from gigagp.inference import gradients
from gigagp.settings.fields import Count, CountOrZero, Positive, ShareBelowOne, checks_arguments

SolverName = Literal["cg", "ap", "sgd"]
EstimatorName = Literal["standard", "pathwise"]
ModelName = Literal["fourier", "inducing", "relevance"]


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


@checks_arguments
def evans2020(
    model: ModelName = "fourier",
    n_columns: CountOrZero | None = None,
    *,
    n_basis: Count = 100_000,
    row_batch: Count | None = None,
    basis_batch: Count | None = None,
    n_support: CountOrZero | None = None,
    steps: Count = 100_000,
    learning_rate: Positive = 0.1,
    hyper_learning_rate: ShareBelowOne = 1e-5,
) -> dict[str, Any]:
    """Return the settings of Evans and Nair 2020 as arguments of `gigagp.GPRegressor`.

    Zero mean, weights that start at zero, no anchors, AdaGrad, control variates with equal weights (eq. 3), a chevron
    for a covariance. The hyperparameters start at the optimum of the exact likelihood of 1,000 rows (here with a weak
    prior) and, for a Fourier basis, move by Adam after the first tenth of the steps. gigagp's own defaults get further
    in fewer steps; this is the baseline for comparing them.

    The paper does not state all that a run needs. Its rates fall exponentially: here to a hundredth. Its weights have
    the unit of AdaGrad's rate: here the prior standard deviation of a weight, for an entry of a dense column that over
    the root of ``n_basis``. The diagonal of the covariance is learned like the rest.

    Parameters
    ----------
    model : {"fourier", "inducing", "relevance"}, default "fourier"
        The paper's Table 2 (random Fourier features), its Table 3 (every training row is an inducing point) or its
        Figure 3 (relevance vectors).
    n_columns : int or None, default None
        Dense columns of the covariance. None: 100 with "fourier" (QSGP-100; 0 is QSGP-0), 0 with "inducing", 10 with
        "relevance".
    n_basis : int, default 100,000
        Number of functions, m; with "inducing" and "relevance" the largest number, so that it should not be below the
        number of rows.
    row_batch, basis_batch, n_support : int or None, default None
        Rows of a step, functions of each of its two samples, and rows of the control variates. None: the paper's, 500,
        10,000 and 500 with "fourier", 3,000, 3,000 and 200 with "inducing", 100, 250 and 250 with "relevance";
        ``basis_batch`` at most ``n_basis``.
    steps : int, default 100,000
        Steps of AdaGrad.
    learning_rate : float, default 0.1
        Of AdaGrad; the paper does not state that of its Table 3.
    hyper_learning_rate : float, default 1e-5
        Of Adam on the hyperparameters with "fourier"; with the others they stay where they start.

    Returns
    -------
    dict
        Arguments for ``GPRegressor(**evans2020())``.

    References
    ----------
    Evans and Nair (2020), arXiv:2006.03015, sections 5 and 6, appendices F and I.
    """
    columns, rows, functions, support = {
        "fourier": (100, 500, 10_000, 500),
        "inducing": (0, 3000, 3000, 200),
        "relevance": (10, 100, 250, 250),
    }[model]
    settings: dict[str, Any] = {
        "n_basis": n_basis,
        "row_batch": rows if row_batch is None else row_batch,
        "basis_batch": min(functions if basis_batch is None else basis_batch, n_basis),
        "n_columns": min(columns, n_basis) if n_columns is None else n_columns,
        "n_support": support if n_support is None else n_support,
        "control": "as_printed",
        "start_rows": 0,
        "anchor": False,
    }
    chosen: Any
    if model == "relevance":
        chosen = inference.RelevanceVectorMachine(**settings)
    elif model == "inducing":
        chosen = inference.QuadruplyStochastic(
            basis="inducing", augment=True, prior_control=settings["n_support"] > 0, **settings
        )
    else:
        chosen = inference.QuadruplyStochastic(**settings)
    ascent = optimization.SparseAdaGrad(
        learning_rate,
        steps=steps,
        hyper_learning_rate=hyper_learning_rate if model == "fourier" else 0.0,
        hyper_start=0.1,
        tail_share=0.0,
    )
    return {
        "kernel": kernels.RBF(),
        "mean": "zero",
        "inference": chosen,
        "optimizer": optimization.SubsetFirst(1000, then=ascent),
    }
