"""Fits of at most a hundred rows: whatever is chosen, a fit and its answers end within seconds of processor time."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from stress.draw import Draw
from stress.drawn.rows import Rows, draw_rows
from stress.drawn.settings import draw_kernel
from stress.outcome import RIGHT, Wrong

#: Most rows, and the seconds of processor time that a fit of one target may take, and that its answers may.
_ROWS, LIMIT = 100, 5.0
#: The same with an optimizer that takes as many steps as it was given, however long they take. It is given a time
#: budget, in seconds by the clock.
_LIMIT_OF_STEPS, _BUDGET = 20.0, 10.0


class TooLong(BaseException):
    """The processor time is spent; no handler of errors may catch it."""


def run(draw: Draw) -> str:
    """Run one case."""
    rows = draw_rows(draw, most=_ROWS, inputs=6)
    X, y, estimator = draw_fit(draw, rows)
    draw.note(repr(estimator)[:1500])
    n_targets = y.shape[1] if y.ndim == 2 else 1
    begun = time.process_time()
    limit = LIMIT
    if estimator.optimizer not in ("auto", None):
        limit = _LIMIT_OF_STEPS
        estimator.set_params(time_budget=_BUDGET * n_targets)
    with limited_time("fit", limit * n_targets):
        estimator.fit(X, y)
    fitted = time.process_time()
    with limited_time("answers", LIMIT * n_targets):
        _answer(draw, estimator, X)
    draw.note(f"{fitted - begun:.2f} s to fit, {time.process_time() - fitted:.2f} s to answer")
    return RIGHT


@contextmanager
def limited_time(what: str, seconds: float) -> Iterator[None]:
    """Raise `Wrong` where a block takes more processor time; waiting for other processes does not count."""

    def end(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    except TooLong as error:
        places, trace = [], error.__traceback__
        while trace is not None:
            if "/gigagp/" in trace.tb_frame.f_code.co_filename:
                file = trace.tb_frame.f_code.co_filename.split("/gigagp/")[-1]
                places.append(f"{file}:{trace.tb_lineno} ({trace.tb_frame.f_code.co_name})")
            trace = trace.tb_next
        raise Wrong(f"{what} did not end in {seconds:g} s of processor time: {' > '.join(places)}") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def draw_fit(draw: Draw, rows: Rows) -> tuple[Any, np.ndarray, Any]:
    """Return inputs, targets and an estimator with settings that are defaults, apart from the kinds of its parts."""
    from gigagp import GPClassifier, GPRegressor

    X, y, n_inputs = rows.X, rows.y, rows.X.shape[1]
    if draw.chance(0.1):
        with np.errstate(all="ignore"):
            first = y if y.ndim == 1 else y[:, 0]
            labels = np.argsort(np.argsort(first)) * draw.whole(2, 4) // max(len(X), 1)
        likelihood = draw.one_of(["logistic", "probit"])
        settings = {"likelihood": likelihood, "inference": _latent(draw), "kernel": _kernel(draw, n_inputs)}
        return X, labels, GPClassifier(**settings, optimizer=_optimizer(draw), random_state=draw.whole(0, 3))
    likelihoods = {"gaussian": 0.6, "student-t": 0.1, "auto": 0.1, "laplace": 0.1, "poisson": 0.1}
    likelihood = draw.weighted(likelihoods)
    if likelihood == "poisson" and rows.is_finite:
        with np.errstate(all="ignore"):
            rate = np.exp(
                np.clip(y / max(1e-300, float(np.abs(y).max(initial=0.0))) * draw.one_of([0.5, 2.0, 6.0]), -20, 20)
            )
        y = draw.rng.poisson(rate).astype(float)
    settings = {
        "kernel": _kernel(draw, n_inputs),
        "inference": _latent(draw) if likelihood in ("laplace", "poisson") else _inference(draw, n_inputs),
        "optimizer": _optimizer(draw),
        "likelihood": likelihood,
        "mean": "constant" if likelihood == "poisson" else draw.one_of(["constant", "constant", "zero", "linear"]),
        "standardize": draw.chance(0.9),
        "dtype": draw.weighted({"float64": 0.8, "float32": 0.1, "mixed": 0.1}),
        "random_state": draw.whole(0, 3),
        "outputs": draw.one_of(["auto", "independent", "shared"]),
    }
    if draw.chance(0.15):
        settings["noise_variance"] = draw.one_of([1e-12, 1e-6, 0.1, 10.0, draw.rng.uniform(0.01, 1, len(X))])
    if draw.chance(0.15):
        settings["target_transform"] = draw.one_of(["log", "yeo-johnson", "spline", "auto"])
    if draw.chance(0.2):
        settings["encode"] = "auto"
        X = _table(draw, X)
    return X, y, GPRegressor(**settings)


def _table(draw: Draw, X: np.ndarray) -> Any:
    """Return a data frame with a column of texts and missing cells."""
    import pandas as pd

    frame = pd.DataFrame(X, columns=[f"x{k}" for k in range(X.shape[1])])
    if draw.chance(0.5):
        frame["kind"] = draw.rng.choice(["a", "b", "c", "d"], len(X))
    if draw.chance(0.5):
        frame["day"] = np.datetime64("2024-01-01") + draw.rng.integers(0, 800, len(X))
    if X.size and draw.chance(0.5):
        frame.iloc[draw.rng.integers(0, len(X), 1 + len(X) // 5), 0] = np.nan
    return frame


def _kernel(draw: Draw, n_inputs: int) -> Any:
    """Return a kernel of any kind, a rule for kernels, or None for the default."""
    from gigagp import kernels

    if draw.chance(0.15):
        return draw.one_of(["auto", "average", "choose"])
    if draw.chance(0.15) and n_inputs > 1:
        column = draw.whole(0, n_inputs - 1)
        kinds = [kernels.RBF, kernels.Matern, kernels.RationalQuadratic, kernels.Periodic, kernels.Categorical]
        leaf = draw.one_of(kinds)
        other = draw.one_of([kernels.Matern(nu=2.5), kernels.Linear(), kernels.Cosine(columns=[column])])
        return draw.one_of([leaf(columns=[column]) + other, leaf(columns=[column]) * other])
    return draw_kernel(draw)


def _inference(draw: Draw, n_inputs: int) -> Any:
    """Return an inference method with its defaults, or with those of its settings that make it another method."""
    from gigagp import actions, gradients, inference, solvers

    kinds = {
        "auto": 0.25,
        inference.Exact(): 0.1,
        inference.Iterative(): 0.08,
        inference.Iterative(solver=solvers.AlternatingProjections()): 0.03,
        inference.Iterative(solver=solvers.StochasticGradientDescent()): 0.03,
        inference.Iterative(gradient=gradients.Hutchinson()): 0.02,
        inference.Iterative(computational_uncertainty=True): 0.02,
        inference.Iterative(warm_start="subspace"): 0.02,
        inference.Vecchia(): 0.1,
        inference.Vecchia(n_neighbors=3): 0.04,
        inference.RandomFeatures(): 0.05,
        inference.RandomFeatures(law="balanced", redraw=True): 0.03,
        inference.ComputationAware(): 0.05,
        inference.ComputationAware(n_actions=4, policy=actions.ConjugateGradients()): 0.03,
        inference.SparseVariational(): 0.05,
        inference.SparseVariational(n_inducing=6): 0.03,
        inference.Grid(): 0.05 if n_inputs <= 3 else 0.01,
        inference.Grid(size=9, exact_nodes=0): 0.05 if n_inputs <= 2 else 0.01,
        inference.QuadruplyStochastic(): 0.05,
        inference.QuadruplyStochastic(n_basis=30): 0.03,
        inference.RelevanceVectorMachine(): 0.04,
    }
    return draw.weighted(kinds)


def _latent(draw: Draw) -> Any:
    """Return an inference method for likelihoods other than Gaussian."""
    from gigagp import inference

    kinds = ["auto", inference.Vecchia(), inference.Vecchia(n_neighbors=3)]
    kinds += [inference.QuadruplyStochastic(), inference.QuadruplyStochastic(n_basis=30)]
    return draw.one_of([*kinds, inference.RelevanceVectorMachine()])


def _optimizer(draw: Draw) -> Any:
    """Return an optimizer with its defaults."""
    from gigagp import optimization

    optimizers = {
        "auto": 0.75,
        optimization.LBFGS(): 0.07,
        optimization.Adam(): 0.06,
        optimization.SubsetFirst(): 0.03,
        optimization.SubsetStart(optimization.LBFGS()): 0.03,
        optimization.SparseAdam(): 0.03,
        optimization.SparseAdaGrad(): 0.01,
        None: 0.02,
    }
    return draw.weighted(optimizers)


def _answer(draw: Draw, estimator: Any, X: Any) -> None:
    """Ask a fitted estimator everything that costs more than a product."""
    from gigagp.errors import GigaGPError

    if not hasattr(estimator, "sample_y"):
        estimator.predict_proba(X[:5])
        return
    questions = {
        "predict": lambda: estimator.predict(X, return_std=True),
        "cov": lambda: estimator.predict(X[:20], return_cov=True),
        "laplace": lambda: estimator.predict(X[:5], return_std=True, hyperparameters="laplace"),
        "sample": lambda: estimator.sample_y(X[:20], n_samples=3, random_state=0),
        "quantile": lambda: estimator.predict_quantile(X[:5], [0.1, 0.5]),
        "left out": lambda: estimator.leave_one_out(),
        "likelihood": lambda: estimator.log_marginal_likelihood(),
    }
    for name, ask in questions.items():
        if name == "predict" or draw.chance(0.4):
            begun = time.process_time()
            try:
                ask()
            except GigaGPError as error:
                draw.note(f"{name}: {str(error)[:100]}")
            draw.note(f"{name} took {time.process_time() - begun:.2f} s")
