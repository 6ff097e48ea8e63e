"""Estimators on a card that is pretended (`card`): nothing meets another device, and all answers equal the processor's.

`test_card` runs these in processes of their own, because torch registers a device for the whole process.

Cases differ in what a card may meet: inference, likelihood, kernel, mean, noise, transform, and kinds of tables.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import gigagp
from card import NAME, pretended
from gigagp import GPClassifier, GPRegressor, actions, inference, kernels, optimization, solvers
from gigagp.errors import InvalidInputError
from gigagp.estimators import planning
from gigagp.inference.automatic import objective as automatic
from gigagp.inference.iterative import solve_cost
from gigagp.model import likelihoods as of
from gigagp.operators import DenseMatrix, KernelMatrix
from gigagp.solvers import ahead, alternating_projections
from gigagp.solvers.base import Status

ROWS = 60
Array = np.ndarray


def _table() -> tuple[Array, Array, Array]:
    draw = np.random.default_rng(5)
    X = np.concatenate([draw.normal(size=(ROWS - 12, 2)), 0.05 * draw.normal(size=(12, 2)) + 1])  # with a clump
    f = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
    return X, f, draw.normal(size=ROWS)


X, F, E = _table()
NEW = np.array([[0.1, 0.2], [1.0, 1.0], [-2.5, 1.5], [4.0, -3.0]])
Y = F + 0.2 * E
RATE = np.exp(F)
COUNTS = np.random.default_rng(7).poisson(RATE).astype(float)
SHARES = 1 / (1 + np.exp(-F - 0.3 * E))
MATERN = kernels.Matern(nu=1.5)
TWO_COLUMNS = np.stack([Y, np.cos(X[:, 0])], 1)
PANEL = pd.DataFrame({"entity": [f"e{k % 6}" for k in range(50)], "time": np.arange(50) // 6})
LIMITS = np.stack([np.where(Y < -0.5, -np.inf, Y), np.maximum(Y, -0.5)], 1)


@dataclass(frozen=True)
class Case:
    """A fit, and what is asked of it.

    Attributes
    ----------
    settings : dict
        Of the estimator, beside a kernel, seed and device.
    y, X, new : array
        Of the fit, and points to predict.
    more : dict
        Further arguments of `fit`.
    estimator : type
    """

    settings: dict[str, Any] = field(default_factory=dict)
    y: Array = field(default_factory=lambda: Y)
    X: Any = field(default_factory=lambda: X)
    new: Any = field(default_factory=lambda: NEW)
    more: dict[str, Any] = field(default_factory=dict)
    estimator: type = GPRegressor

    def fit(self, device: str) -> Any:
        settings = {"kernel": MATERN, "random_state": 0, "device": device, **self.settings}
        return self.estimator(**settings).fit(self.X, self.y, **self.more)


def _by(method: Any, **settings: Any) -> Case:
    return Case({"inference": method, **settings})


def _likelihood(likelihood: Any, y: Array = Y, method: Any = None, **more: Any) -> Case:
    return Case({"likelihood": likelihood, **({} if method is None else {"inference": method})}, y, more=more)


NEIGHBOURS, WEIGHTS = inference.Vecchia(n_neighbors=8), inference.QuadruplyStochastic(n_basis=20)
INFERENCES = {
    "exact": _by(inference.Exact()),
    "CG": _by(inference.Iterative()),
    "AP": _by(inference.Iterative(solver=solvers.AlternatingProjections(block_size=20))),
    "SGD": _by(
        inference.Iterative(solver=solvers.StochasticGradientDescent(batch_size=16, max_epochs=300)),
        optimizer=optimization.Adam(steps=2),
    ),
    "vecchia": _by(NEIGHBOURS),
    "CaGP": _by(inference.ComputationAware(n_actions=10)),
    "CaGP, CG": _by(inference.ComputationAware(n_actions=10, policy=actions.ConjugateGradients())),
    "SGPR": _by(inference.SparseVariational(n_inducing=10)),
    "SVGP": _by(inference.SparseVariational(n_inducing=10, batch_size=20), optimizer=optimization.Adam(steps=5)),
    "random features": _by(inference.RandomFeatures(50)),
    "quadruply": _by(WEIGHTS),
    "quadruply, inducing": _by(inference.QuadruplyStochastic(n_basis=20, basis="inducing")),
    "quadruply, sampled": _by(
        inference.QuadruplyStochastic(n_basis=20, row_batch=20, basis_batch=10),
        optimizer=optimization.SparseAdam(steps=5),
    ),
    "relevance vectors": _by(inference.RelevanceVectorMachine(n_basis=10)),
}
MODELS = {
    "defaults": Case({"kernel": None}),
    "default outputs": Case({"kernel": None}, TWO_COLUMNS),
    "linear mean": Case({"mean": "linear"}),
    "function as mean": Case({"mean": lambda X: X[:, 0]}),
    "known noise": Case({"noise_variance": np.linspace(0.01, 0.1, ROWS)}),
    "varying noise": Case({"noise": "varying"}),
    "scaled": Case({"noise": "scaled"}),
    "transform": Case({"target_transform": "yeo-johnson"}),
    "warped": Case({"target_transform": "auto"}, np.exp(Y)),
    "draws": Case({"hyperparameters": "laplace"}),
    "correlated outputs": Case({"outputs": "correlated"}, np.where(np.arange(2) * (X[:, :1] > 1), np.nan, TWO_COLUMNS)),
    "shared outputs": Case({"outputs": "shared"}, TWO_COLUMNS),
    "groups": Case({"groups": [1]}, X=np.stack([X[:, 0], np.arange(ROWS) % 7], 1), new=np.array([[0.1, 2], [2, 9.0]])),
    "areas": Case(more={"blocks": np.arange(ROWS) // 3}, y=Y[::3]),
    "panel": Case({"panel": ("entity", "time"), "kernel": None}, X=PANEL, y=Y[:50], new=PANEL[::9]),
    # cells are equally far from each other, so that the last bits of learned lengthscales decide who is near
    "panel by neighbours": Case(
        {"panel": ("entity", "time"), "kernel": None, "inference": NEIGHBOURS, "optimizer": None},
        X=PANEL,
        y=Y[:50],
        new=PANEL[::9],
    ),
    "float32": Case({"dtype": "float32"}),
    "mixed": _by(inference.Iterative(), dtype="mixed"),
}
LIKELIHOODS = {
    **{f"student, {k}": _likelihood("student-t", method=m) for k, m in (("auto", None), ("vecchia", NEIGHBOURS))},
    **{
        f"poisson, {k}": _likelihood("poisson", COUNTS, m)
        for k, m in (("auto", None), ("vecchia", NEIGHBOURS), ("quadruply", WEIGHTS))
    },
    "laplace": _likelihood("laplace", method=WEIGHTS),
    "quantile": _likelihood(of.Quantile(0.7)),
    "binomial": _likelihood("binomial", np.minimum(COUNTS, 9), exposure=np.full(ROWS, 9)),
    "ordinal": _likelihood("ordinal", np.minimum(COUNTS, 3)),
    "censored": _likelihood("censored", LIMITS),
    "exposure": _likelihood("poisson", COUNTS, exposure=np.linspace(0.5, 2, ROWS)),
    "beta": _likelihood("beta", SHARES),
    "gamma": _likelihood("gamma", np.exp(Y)),
    "weibull": _likelihood("weibull", np.exp(LIMITS)),
    **{
        one: _likelihood(one, COUNTS)
        for one in ("negative-binomial", "zero-inflated-poisson", "zero-inflated-negative-binomial", "hurdle-poisson")
    },
    "classes": Case(y=(Y > 0).astype(int), estimator=GPClassifier),
    "classes by default": Case({"kernel": None}, (Y > 0).astype(int), estimator=GPClassifier),
    "three classes": Case(y=(Y > 0).astype(int) + (Y > 0.5), estimator=GPClassifier),
    "classes by neighbours": Case({"inference": NEIGHBOURS}, (Y > 0).astype(int), estimator=GPClassifier),
}
LEVELS = {"X": MODELS["groups"].X, "new": np.array([[0.1, 2], [2, 5]])}
KERNELS = {
    name: Case({"inference": inference.Exact(), "kernel": kernel}, **rows)
    for name, kernel, rows in (
        ("RBF", kernels.RBF(), {}),
        ("Matern 1/2", kernels.Matern(nu=0.5), {}),
        ("rational quadratic", kernels.RationalQuadratic(), {}),
        ("sum", kernels.Matern(nu=1.5) + kernels.Linear() + kernels.Constant() + kernels.White(), {}),
        ("product", kernels.Periodic(columns=[0]) * kernels.RBF(columns=[1]), {}),
        ("cosine", kernels.Cosine(columns=[0]) + MATERN, {}),
        ("series", kernels.Oscillator(columns=[0]) + kernels.DampedTrend(columns=[0]), {}),
        ("levels", kernels.Matern(columns=[0]) + kernels.Categorical(1), LEVELS),
    )
}
GROUPS = {"inferences": INFERENCES, "models": MODELS, "likelihoods": LIKELIHOODS, "kernels": KERNELS}
CASES = {f"{group}, {name}": case for group, cases in GROUPS.items() for name, case in cases.items()}
#: Relative difference of answers of learned fits: rounding, which some evaluations of the optimizer enlarge.
LEARNED = {torch.float64: 1e-5, torch.float32: 1e-3}


def answers(case: Case, gp: Any) -> dict[str, Array]:
    """Return all that a fit is asked for; what a model refuses is left out."""
    classes = case.estimator is GPClassifier
    found: dict[str, Array] = {}

    def ask(name: str, question: Callable[[], Any]) -> None:
        try:
            answer = question()
        except InvalidInputError as error:
            answer = np.array(float(len(str(error)) > 0))
        for place, one in enumerate(answer if isinstance(answer, tuple | list) else (answer,)):
            found[f"{name} {place}"] = np.asarray(one, dtype=float)

    if classes:
        ask("probabilities", lambda: gp.predict_proba(case.new))
        return found
    ask("mean and std", lambda: gp.predict(case.new, return_std=True))
    ask("measurements", lambda: gp.predict(case.new, return_std=True, include_noise=True))
    ask("covariance", lambda: gp.predict(case.new, return_cov=True))
    ask("samples", lambda: gp.sample_y(case.new, 3, random_state=1))
    ask("evidence", gp.log_marginal_likelihood)
    ask("quantiles", lambda: gp.predict_quantile(case.new, [0.1, 0.9]))
    if not case.more and isinstance(case.X, np.ndarray):
        ask("left out", lambda: tuple(getattr(gp.leave_one_out(), one) for one in ("mean", "std")))
        ask("more rows", lambda: gp.condition_on(case.X[:3] + 0.01, case.y[:3]).predict(case.new, return_std=True))
    return found


def both(case: Case) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the answers of a processor and of a card, without what both warn of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = answers(case, case.fit("cpu"))
        with pretended():
            gp = case.fit(NAME)
            return expected, answers(case, gp)


def differences(expected: dict[str, Array], got: dict[str, Array], allowed: float) -> list[str]:
    """Return a line for each answer that differs by more than a share of its largest number."""
    assert expected.keys() == got.keys()
    found = []
    for name, one in expected.items():
        size = float(np.abs(one[np.isfinite(one)]).max(initial=1e-12))
        same = (one == got[name]) | (np.isnan(one) & np.isnan(got[name]))
        away = float(np.abs(np.where(same, 0, one - got[name])).max(initial=0) / size)
        if not away <= allowed:
            found.append(f"{name}: {away:.1e}")
    return found


#: A fit takes ten times as long on a pretended card, so that the default run has few of them.
QUICK = ("inferences, SGPR", "inferences, quadruply", "likelihoods, classes", "models, shared outputs")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_answers_equal_the_processors(name):
    case = CASES[name]
    expected, got = both(case)
    assert len(expected) > 0
    assert not differences(expected, got, LEARNED[torch.float32 if "dtype" in case.settings else torch.float64])


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"kernel": MATERN, "inference": inference.Exact()}, "cpu"),
        ({"kernel": MATERN, "inference": inference.SparseVariational(n_inducing=5)}, "card"),
        ({"kernel": MATERN, "inference": NEIGHBOURS}, "cpu"),
        pytest.param({"kernel": kernels.RBF(20.0), "inference": inference.Grid(size=6)}, "cpu", marks=pytest.mark.slow),
    ],
)
def test_auto_takes_a_card_where_it_is_worth_it(settings, name, monkeypatch, tmp_path):
    """A method with few rows for it, one with enough, and one that is computed on the processor anyway."""
    abilities = replace(inference.SparseVariational.abilities, gpu_rows=ROWS)
    monkeypatch.setattr(inference.SparseVariational, "abilities", abilities)
    with pretended(automatic=True):
        gp = GPRegressor(optimizer=None, **settings).fit(X, Y)
        gp.save(tmp_path / "model.gp")
        for one in (gp, gigagp.load(tmp_path / "model.gp")):
            assert one.posterior_.device.type == name
            assert f", {name}" in one.engine_


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exact", "CG", "vecchia", "CaGP", "SVGP", "quadruply", "poisson, vecchia"])
def test_a_file_of_a_fit_on_a_card_is_read_without_one(name, tmp_path, monkeypatch):
    monkeypatch.setattr(inference.Inference, "takes_gpu", lambda self, n_rows: True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pretended(automatic=True):
            gp = (INFERENCES | LIKELIHOODS)[name].fit("auto")
            assert gp.posterior_.device.type == "card"
            expected = gp.predict(NEW, return_std=True)
            gp.save(tmp_path / "model.gp")
        got = gigagp.load(tmp_path / "model.gp").predict(NEW, return_std=True)
    assert not differences(dict(enumerate(expected)), dict(enumerate(got)), LEARNED[torch.float64])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vecchia", "quadruply"])
def test_tables_that_are_read_in_chunks(name):
    settings = {"kernel": MATERN, "random_state": 0, **INFERENCES[name].settings}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = GPRegressor(device="cpu", **settings).fit_table((X, Y)).predict(NEW, return_std=True)
        with pretended():
            got = GPRegressor(device=NAME, **settings).fit_table((X, Y)).predict(NEW, return_std=True)
    assert not differences(dict(enumerate(expected)), dict(enumerate(got)), LEARNED[torch.float64])


@pytest.mark.slow
def test_auto_multiplies_in_float32_where_a_card_is_quicker_with_it(monkeypatch):
    """On GPUs that lose twice and 32 times their speed in float64; the control is one of which that is not known."""
    draw = np.random.default_rng(1)
    rows, new = draw.normal(size=(300, 6)), draw.normal(size=(20, 6))
    rows[:20] = rows[20:40]
    y = np.sin(rows).sum(1) + 0.1 * draw.normal(size=300)
    found = {}
    for module in (planning, automatic):
        monkeypatch.setattr(module, "EXACT_ROWS", 100)
    for slowness in (1.0, 2.0, 32.0):
        monkeypatch.setattr(solve_cost, "float64_slowness", lambda device, known=slowness: known)
        with pretended(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gp = GPRegressor(MATERN, device=NAME, random_state=0).fit(rows, y)
            assert isinstance(gp.inference_, inference.Iterative)
            found[slowness] = gp.predict(new, return_std=True), gp.noise_variance_
            said = gp.describe()
        assert ("products are in float32" in said) == ("float32 inside of solvers" in gp.engine_) == (slowness > 1)
    expected, noise = found.pop(1.0)
    for got, variance in found.values():
        assert variance == pytest.approx(noise, rel=1e-2)
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-2 * y.std())


def test_what_meets_another_device_is_found():
    """The failing control: each of the three ways in which a processor's tensor may not meet one of the card."""
    with pretended() as counts:
        there = torch.ones(3, dtype=torch.float64, device=NAME)
        with pytest.raises(RuntimeError, match="same device"):
            there + torch.ones(3, dtype=torch.float64)
        with pytest.raises(RuntimeError, match="same device"):
            torch.zeros(3)[torch.zeros(1, dtype=torch.int64, device=NAME)]
        with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
            there.numpy()
        before = counts.copy()
        assert float((2 * there).sum()) == 6
        assert counts - before == {"launches": 2, "waits": 1}


SLOWLY = solvers.ConjugateGradients(preconditioner=solvers.PivotedCholesky(10))
BLOCKS = solvers.AlternatingProjections(35, partition="contiguous", coarse_rank=0)


@pytest.mark.parametrize(
    ("solver", "tolerances", "launches", "waits"),
    [
        (solvers.ConjugateGradients(), (1e-2, 1e-7), 25, 1 / 5),
        (SLOWLY, (1e-2, 1e-7), 25, 1 / 8),
        (solvers.AlternatingProjections(40), (0.3, 1e-2), 25, 1 / 8),
        pytest.param(BLOCKS, (0.5, 0.2), 25, 1 / 8, marks=pytest.mark.slow),
    ],
    ids=["CG", "many iterations of CG", "AP", "AP of the paper"],
)
def test_what_an_iteration_asks_of_a_card(solver, tolerances, launches, waits):
    """Every wait empties the queue of a card, and every launch takes some microseconds of the host."""
    draw = torch.Generator().manual_seed(0)
    rows, right = (torch.randn(300, k, generator=draw, dtype=torch.float64) for k in (3, 9))
    asked = []
    for tolerance in tolerances:
        with pretended() as counts:
            matrix = KernelMatrix(MATERN.bind(3), rows.to(NAME), 0.01)
            found = replace(solver, tolerance=tolerance).solve(matrix, right.to(NAME), n_targets=1)
        assert found.status is Status.CONVERGED
        asked.append((found.iterations, counts["launches"], counts["waits"]))
    (first, *fewer), (last, *more) = asked
    assert last > first + 5
    each = [(b - a) / (last - first) for a, b in zip(fewer, more, strict=True)]
    assert each[0] <= launches
    assert each[1] <= waits


#: Settings that end a solve, or change its course, for each of the reasons that there are.
ENDS = {
    "residual": solvers.ConjugateGradients(1e-6),
    "nats": solvers.ConjugateGradients(1e-6, nats=(0.1, 1.0)),
    "nats without a preconditioner": replace(SLOWLY, preconditioner=None, nats=(0.1, 1.0)),
    "errors": replace(SLOWLY, errors=(1e-3, 1e-3)),
    "epochs": replace(SLOWLY, max_epochs=13),
    "replaced residuals": replace(SLOWLY, refresh_every=3),
    "out of reach": replace(SLOWLY, tolerance=1e-30),
    "blocks": replace(BLOCKS, tolerance=0.1),
    "blocks and a coarse space": solvers.AlternatingProjections(45, tolerance=1e-4),
    "blocks by sums": replace(BLOCKS, tolerance=0.1, score="sum", partition="shuffled"),
    "epochs of blocks": replace(BLOCKS, max_epochs=7),
    "out of reach of blocks": solvers.AlternatingProjections(45, tolerance=1e-30, max_epochs=60),
}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float64", "float32", "mixed"])
@pytest.mark.parametrize("name", ENDS)
def test_a_solve_has_the_same_steps_wherever_the_card_is_ahead(name, precision, monkeypatch):
    """A card is some steps ahead of the host, which decides step by step all the same: to the same bits."""
    draw = torch.Generator().manual_seed(1)
    rows, right = (torch.randn(200, k, generator=draw, dtype=torch.float64) for k in (2, 5))
    rows[:60] = 0.01 * rows[:60]
    rows[60:70] = rows[:10]
    dtype = torch.float32 if precision == "float32" else torch.float64

    def solved():
        with pretended() as counts:
            matrix = KernelMatrix(MATERN.bind(2), rows.to(NAME, dtype), 0.01, mixed=precision == "mixed")
            return ENDS[name].solve(matrix, right.to(NAME, dtype), n_targets=1), counts["waits"]

    found, waits = solved()
    monkeypatch.setattr(ahead, "AHEAD", 1)
    expected, each = solved()
    assert (found.status, found.iterations) == (expected.status, expected.iterations)
    assert torch.equal(found.value.cpu(), expected.value.cpu())
    assert torch.equal(found.relative_residual.cpu(), expected.relative_residual.cpu())
    if found.iterations > 25 and precision == "float64" and "without" not in name:
        assert waits < each - found.iterations / 4


@pytest.mark.parametrize("partition", ["contiguous", "clustered"])
@pytest.mark.parametrize("score", ["frobenius", "sum"])
def test_blocks_of_other_sizes_are_those_of_the_processor(partition, score, monkeypatch):
    """A card has blocks of one size; rows of others in the place of those that lack must not take part."""
    draw = torch.Generator().manual_seed(2)
    rows, right = (torch.randn(110, k, generator=draw, dtype=torch.float64) for k in (2, 3))
    solver = solvers.AlternatingProjections(40, 1e-10, max_epochs=4, partition=partition, score=score, coarse_rank=10)

    def solved(device):
        return solver.solve(KernelMatrix(MATERN.bind(2), rows.to(device), 0.01), right.to(device))

    expected = solved("cpu")
    with pretended():
        found = solved(NAME)
        assert (found.status, found.iterations, found.epochs) == (expected.status, expected.iterations, expected.epochs)
        torch.testing.assert_close(found.value.cpu(), expected.value, rtol=1e-8, atol=1e-8)
        monkeypatch.setattr(alternating_projections, "_NO_CHANGE", 1.0)  # the failing control
        assert float((solved(NAME).value.cpu() - expected.value).abs().max()) > 1e-8


class _Failing(DenseMatrix):
    """A matrix whose products are not finite after some that are, also where steps are taken again."""

    def __init__(self, matrix, good_products):
        super().__init__(matrix, 0.01)
        self.good_products = good_products

    def _spoiled(self, product):
        self.good_products -= 1
        return product if self.good_products >= 0 else product * float("nan")

    def __matmul__(self, vectors):
        return self._spoiled(super().__matmul__(vectors))

    def columns_product(self, columns, vectors):
        return self._spoiled(super().columns_product(columns, vectors))


@pytest.mark.parametrize("solver", [SLOWLY, BLOCKS, solvers.AlternatingProjections(25)], ids=["CG", "paper", "AP"])
@pytest.mark.parametrize("good", [2, 9, 13])
def test_a_solve_that_fails_on_a_card_keeps_finite_numbers(solver, good):
    draw = torch.Generator().manual_seed(3)
    rows, right = (torch.randn(100, k, generator=draw, dtype=torch.float64) for k in (2, 3))
    kernel = MATERN.bind(2).block(rows, rows)
    with pretended():
        matrix = _Failing(kernel.to(NAME), good)
        found = replace(solver, tolerance=1e-14).solve(matrix, right.to(NAME))
    assert found.status is Status.NOT_FINITE
    assert torch.isfinite(found.value.cpu()).all()
