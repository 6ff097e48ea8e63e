"""Random valid settings."""

from __future__ import annotations

from typing import Any

from stress.draw import Draw


def draw_inference(draw: Draw, n_inputs: int) -> Any:
    """Return an inference method that is fast on sixty rows."""
    from gigagp import actions, inference, solvers

    name = draw.weighted(
        {
            "auto": 0.15,
            "exact": 0.2,
            "iterative": 0.1,
            "cg": 0.05,
            "neighbours": 0.1,
            "by neighbours": 0.03,
            "features": 0.08,
            "aware": 0.1,
            "sparse": 0.1,
            "batches": 0.02,
            "grid": 0.1,
            "quadruply": 0.05,
        }
    )
    if name == "grid" and n_inputs == 4:
        name = "exact"  # the smallest grid has 1,296 nodes and takes seconds
    if name == "aware":
        policy = draw.one_of([actions.Learned(), actions.Random(), actions.UnitVectors(), actions.ConjugateGradients()])
        return inference.ComputationAware(n_actions=draw.one_of([3, 512]), policy=policy)
    return {
        "auto": "auto",
        "exact": inference.Exact(),
        "iterative": inference.Iterative(n_samples=16, computational_uncertainty=draw.chance(0.2)),
        "cg": inference.Iterative(
            solver=solvers.ConjugateGradients(tolerance=1e-8, max_epochs=200), n_samples=8, final_tolerance=1e-10
        ),
        "neighbours": inference.Vecchia(
            n_neighbors=draw.one_of([1, 7, 30, 512]),
            prediction_neighbors=draw.one_of([None, 1, 20]),
            learning_rows=draw.one_of([None, 10, 10_000]),
        ),
        "by neighbours": inference.Iterative(
            solver=solvers.ConjugateGradients(preconditioner=solvers.Vecchia(n_neighbors=draw.one_of([3, 30]))),
            n_samples=8,
        ),
        "features": inference.RandomFeatures(n_features=draw.one_of([10, 64])),
        "sparse": inference.SparseVariational(
            n_inducing=draw.one_of([1, 5, 40]), learn_inducing_points=draw.chance(0.5)
        ),
        "batches": inference.SparseVariational(n_inducing=6, batch_size=8),
        "grid": inference.Grid(
            size=draw.one_of([6, 9, 12]),
            interpolation=draw.one_of(["cubic", "linear"]),
            n_samples=8,
            exact_nodes=draw.one_of([1500, 1500, 0]),
        ),
        "quadruply": inference.QuadruplyStochastic(n_basis=30),
    }[name]


def draw_kernel(draw: Draw) -> Any:
    """Return a kernel, or None for the default."""
    from gigagp import kernels

    if draw.chance(0.3):
        return None
    leaves = {
        "rbf": kernels.RBF,
        "matern12": lambda: kernels.Matern(nu=0.5),
        "matern32": lambda: kernels.Matern(nu=1.5, ard=False),
        "matern52": lambda: kernels.Matern(nu=2.5),
        "rq": kernels.RationalQuadratic,
        "periodic": kernels.Periodic,
        "cosine": kernels.Cosine,
        "linear": kernels.Linear,
        "constant": kernels.Constant,
        "white": kernels.White,
    }
    weights = dict.fromkeys(leaves, 1.0) | {"rbf": 4.0, "matern12": 2.0, "matern32": 3.0, "matern52": 2.0}
    weights |= {"white": 0.3, "constant": 0.3}
    kernel = leaves[draw.weighted(weights)]()
    for _ in range(draw.weighted({0: 0.6, 1: 0.3, 2: 0.1})):
        other = leaves[draw.weighted(weights)]()
        kernel = kernel + other if draw.chance(0.6) else kernel * other
    return kernel


def draw_optimizer(draw: Draw) -> Any:
    """Return a fast optimizer."""
    from gigagp import optimization

    return draw.weighted(
        {
            None: 0.5,
            "auto": 0.2,
            optimization.Adam(steps=3): 0.15,
            optimization.LBFGS(steps=3): 0.15,
        }
    )


def draw_estimator(draw: Draw, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return arguments of `GPRegressor`."""
    from gigagp import optimization
    from gigagp.model.likelihoods import StudentT

    arguments: dict[str, Any] = {
        "kernel": draw_kernel(draw),
        "inference": draw_inference(draw, shape[1]),
        "optimizer": draw_optimizer(draw),
        "mean": draw.weighted({"constant": 0.5, "zero": 0.25, "linear": 0.25}),
        "standardize": draw.chance(0.85),
        "dtype": draw.weighted({"float64": 0.8, "float32": 0.1, "mixed": 0.1}),
        "random_state": draw.whole(0, 3),
    }
    if type(arguments["inference"]).__name__ == "Vecchia":
        likelihoods = {"gaussian": 0.6, "laplace": 0.15, "student-t": 0.2, StudentT(2.1): 0.05}
        arguments["likelihood"] = draw.weighted(likelihoods)
    if getattr(arguments["inference"], "batch_size", None) is not None:
        if arguments["optimizer"] == "auto":
            arguments["optimizer"] = None  # "auto" ends with thousands of steps on minibatches
        elif isinstance(arguments["optimizer"], optimization.LBFGS):  # LBFGS does not support minibatches
            arguments["optimizer"] = optimization.Adam(steps=3)
    if draw.chance(0.3):
        arguments["noise_variance"] = draw.one_of([1e-6, 1e-3, 0.1, 10.0])
    elif draw.chance(0.07):
        arguments["noise_variance"] = draw.rng.uniform(0.01, 1, shape[0])
    return arguments
