"""The choice of ``inference="auto"`` beyond small tables: its forecasts against dense algebra, and its budgets."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import gigagp
from engines import needs_extension
from gigagp import GPRegressor
from gigagp.errors import FitWarning, InvalidInputError, ModelFileError, NotPositiveDefiniteError, SolverWarning
from gigagp.estimators.saving.configuration import from_plain, to_plain
from gigagp.inference import Exact, Iterative, Vecchia
from gigagp.inference.automatic.inference import _affordable
from gigagp.inference.automatic.objective import LocalScores
from gigagp.inference.automatic.plan import Option, Plan
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.iterative.iterative import IterativeObjective
from gigagp.inference.iterative.solve_cost import products_slowness
from gigagp.inference.iterative.subset_guide import SubsetGuide
from gigagp.kernels import Cosine, Matern
from gigagp.model.means import resolve_mean
from gigagp.model.model import Model
from gigagp.neighbours.neighbourhood import NeighbourGraph
from gigagp.operators import KernelMatrix
from gigagp.optimization import Auto
from gigagp.products import NativeTiles
from gigagp.runtime import interruption
from gigagp.settings.custom import Custom
from gigagp.solvers import AlternatingProjections, ConjugateGradients, Status, StochasticGradientDescent


def made_rows(n: int, d: int, seed: int, noise: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs, clumped and with duplicates, and targets of a smooth function with noise."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, d)) * random.uniform(0.2, 2.0, size=(n, 1))
    X[: n // 50] = X[n // 50 : 2 * (n // 50)]
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, -1] ** 2 + noise * random.normal(size=n)


def problem(n: int, d: int, seed: int) -> tuple[Model, TrainingTable]:
    X, y = made_rows(n, d, seed)
    kernel = Matern(nu=1.5, lengthscale=[1.5] * d, variance=2.0).bind(d)
    model = Model(kernel, resolve_mean("zero"), torch.tensor(0.01, dtype=torch.float64))
    table = TrainingTable(torch.from_numpy(X), torch.from_numpy(y)[:, None], model.mean, 2**30)
    return model, table


def test_left_out_rows_are_not_their_own_neighbours():
    model, table = problem(300, 2, 0)
    table = replace(table, X=torch.cat([table.X, table.X[:1].repeat(20, 1)]), Y=torch.cat([table.Y, table.Y[:20]]))
    graph = NeighbourGraph(model.kernel, table.X, 5)
    rows = torch.arange(table.n_rows)
    found = graph.neighbourhood.others(rows, 5)
    assert found.shape == (320, 5)
    assert not bool((found == rows[:, None]).any())
    assert all(len(set(row.tolist())) == 5 for row in found)


@pytest.mark.parametrize("d", [2, 6])
def test_scores_from_all_other_rows_are_those_of_leaving_one_out(d):
    model, table = problem(250, d, 1)
    scores = LocalScores.of(model, table, NeighbourGraph(model.kernel, table.X, 10), 249)
    H = model.kernel.block(table.X, table.X) + 0.01 * torch.eye(250, dtype=torch.float64)
    inverse = torch.linalg.inv(H)
    variance = 1 / inverse.diagonal()
    residual = (inverse @ table.Y)[:, 0] * variance  # Rasmussen and Williams 2006, eq. 5.12
    densities = 0.5 * (2 * math.pi * variance).log() + 0.5 * residual.square() / variance
    assert scores.nll == pytest.approx(float(densities.mean()), abs=1e-6)
    assert scores.rmse == pytest.approx(float(residual.square().mean().sqrt()), rel=1e-6)
    assert scores.gain == pytest.approx(0.0, abs=1e-9)


@pytest.mark.slow
def test_the_gain_of_exact_inference_is_foreseen():
    """Twenty neighbours in six inputs lose much; the forecast knows how much within a factor of two."""
    model, table = problem(2000, 6, 2)
    graph = NeighbourGraph(model.kernel, table.X, 10)
    few, more = (LocalScores.of(model, table, graph, m) for m in (20, 160))
    H = model.kernel.block(table.X, table.X) + 0.01 * torch.eye(2000, dtype=torch.float64)
    variance = 1 / torch.linalg.inv(H).diagonal()
    for scores, width in ((few, 20), (more, 160)):
        rows = torch.arange(2000)
        near = graph.neighbourhood.others(rows, width).long()
        truth = []
        for row in range(0, 2000, 10):
            block = H[near[row]][:, near[row]]
            cross = H[near[row], row]
            truth.append(H[row, row] - cross @ torch.linalg.solve(block, cross))
        lost = 0.5 * (torch.stack(truth) / variance[::10]).log()
        error = float(lost.std() / len(lost) ** 0.5)
        assert 0.5 * (float(lost.mean()) - 4 * error) < scores.gain < 2 * (float(lost.mean()) + 4 * error)
    assert few.gain > 3 * more.gain > 0


def option(seconds: float, nll: float, inference=None) -> Option:
    return Option(inference or Iterative(), 10, seconds, 1e6, nll, 0.01, math.exp(nll))


def test_without_a_budget_time_must_be_worth_it():
    quick = option(30, 0.5, Vecchia())
    assert Plan.of([quick, option(59, 0.499)], math.inf).chosen.seconds == 59  # within a minute nothing is saved
    assert Plan.of([quick, option(480, 0.49)], math.inf).chosen is quick  # 0.01 nats for three doublings
    assert Plan.of([quick, option(480, 0.48)], math.inf).chosen.seconds == 480
    plan = Plan.of([quick, option(7200, -2.0)], math.inf)
    assert plan.chosen is quick
    assert "2 h" in plan.reason
    assert "2.5 nats" in plan.reason


def test_each_method_has_the_speed_of_what_it_computes():
    plan = Plan.of([option(30, 0.5, Vecchia()), option(40, 0.4)], math.inf)
    after = plan.after(5.0, lambda method: 7.0 if isinstance(method, Iterative) else 2.0)
    assert [one.seconds for one in after.options] == [65.0, 285.0]
    assert after.chosen.inference == plan.chosen.inference


def test_a_budget_is_used_for_whatever_is_better():
    quick, slow = option(5, 0.5, Vecchia()), option(60, 0.48)
    assert Plan.of([quick, slow], 100).chosen is slow
    assert Plan.of([quick, option(60, 0.49)], 100).chosen is quick  # 0.01 nats for more than two doublings of 10 s
    assert Plan.of([quick, option(9, 0.499)], 100).chosen.seconds == 9  # a tenth of the budget is not felt
    assert Plan.of([quick, slow], 59).chosen is quick
    assert Plan.of([slow], 1).chosen is slow  # something has to run
    assert str(Plan.of([quick, slow], 59)).count("\n") == 2


@needs_extension
def test_plans_are_in_the_targets_units():
    X, y = made_rows(400, 2, 3)
    one, other = GPRegressor(Matern(nu=1.5)).plan(X, y), GPRegressor(Matern(nu=1.5)).plan(100 * X, 10 * y)
    assert other.chosen.nll == pytest.approx(one.chosen.nll + math.log(10), abs=1e-6)
    assert other.chosen.rmse == pytest.approx(10 * one.chosen.rmse, rel=1e-6)
    assert one.chosen.inference == Exact()


@needs_extension
@pytest.mark.slow
def test_a_plan_forecasts_the_score_of_new_rows():
    X, y = made_rows(4400, 3, 4)
    gp = GPRegressor(Matern(nu=1.5))
    plan = gp.plan(X[:3400], y[:3400])
    assert not hasattr(gp, "posterior_")
    assert not hasattr(gp, "n_features_in_")
    mean, std = gp.fit(X[:3400], y[:3400]).predict(X[3400:], return_std=True, include_noise=True)
    densities = 0.5 * np.log(2 * math.pi * std**2) + 0.5 * ((y[3400:] - mean) / std) ** 2
    error = math.hypot(densities.std() / 1000**0.5, plan.chosen.nll_error)
    assert plan.chosen.nll == pytest.approx(densities.mean(), abs=4 * error)
    assert gp.plan_.chosen.inference == gp.inference_
    assert "expected NLL" in gp.describe()


@pytest.mark.parametrize(
    "change",
    [{"inference": Exact()}, {"likelihood": "poisson"}, {"target_transform": "yeo-johnson"}, {"time_budget": -1}],
)
def test_what_cannot_be_planned_is_refused(change):
    X, y = made_rows(60, 2, 5)
    with pytest.raises(InvalidInputError):
        GPRegressor(**change).plan(X, np.abs(y).round())


def test_what_cannot_be_foreseen_is_refused_before_the_work(monkeypatch):
    """Without compiled neighbours there is no forecast, and the fit ends with solves."""

    def never(*arguments):
        raise AssertionError("learning has begun")

    monkeypatch.setattr(Auto, "run", never)
    X, y = made_rows(60, 2, 5)
    own = GPRegressor(Matern() * Cosine())
    with pytest.raises(InvalidInputError, match=r"plan of GPRegressor .*(has no compiled code|was not built)"):
        own.plan(X, y)
    monkeypatch.setattr("gigagp.neighbours.conditionals._native", None)
    with pytest.raises(InvalidInputError, match=r"plan of GPRegressor .*extension was not built\. Install gigagp with"):
        GPRegressor().plan(X, y)
    monkeypatch.setattr("gigagp.estimators.planning.EXACT_ROWS", 50)
    monkeypatch.setattr("gigagp.inference.automatic.objective.EXACT_ROWS", 50)
    gp = GPRegressor(Matern(), noise_variance=0.01, optimizer=None).fit(X, y)
    assert isinstance(gp.inference_, Iterative)
    assert gp.plan_ is None


@pytest.mark.slow
@needs_extension
def test_neighbours_can_end_a_fit(tmp_path, monkeypatch):
    """Where exact solves are not worth their time, the fit is the neighbours', and says so."""
    products_slowness()  # is measured once in a process, which must not be with what follows
    monkeypatch.setattr("gigagp.runtime.machine._ENTRY", 1.0)  # solves that would take years
    monkeypatch.setattr("gigagp.inference.exact.exact.FACTOR_SECONDS", 1.0)
    X, y = made_rows(3200, 2, 6)
    gp = GPRegressor(Matern(nu=1.5)).fit(X, y)
    assert isinstance(gp.inference_, Vecchia)
    assert gp.posterior_.kind == "vecchia"
    assert "would take about" in gp.describe()
    gp.save(tmp_path / "model.gp")
    again = gigagp.load(tmp_path / "model.gp")
    assert again.inference_ == gp.inference_
    assert again.plan_ == gp.plan_
    assert again.describe() == gp.describe()
    for one, other in zip(gp.predict(X[:9], return_std=True), again.predict(X[:9], return_std=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    monkeypatch.undo()
    exact = GPRegressor(Matern(nu=1.5)).fit(X, y)
    assert isinstance(exact.inference_, Iterative)
    np.testing.assert_allclose(gp.predict(X[:200]), exact.predict(X[:200]), atol=0.05)


def test_a_plan_comes_back_from_a_file_and_old_files_have_none(tmp_path):
    X, y = made_rows(40, 2, 6)
    gp = GPRegressor(Matern(nu=1.5)).fit(X, y)
    local, exact = (Option(one, 40, 3.0, 1e6, 0.1, math.inf, 1.0) for one in (Vecchia(30, 90), Iterative()))
    for plan in (Plan.of([local, exact], math.inf), Plan.of([local, exact], 60.0).instead(local, "It was late."), None):
        gp.plan_ = plan
        gp.save(tmp_path / "model.gp")
        assert gigagp.load(tmp_path / "model.gp").plan_ == plan
    tensors, header = gp._to_state()
    del header["plan"]
    assert GPRegressor._from_state(tensors, header, Custom()).plan_ is None


@pytest.mark.parametrize(
    "change",
    [{"chosen": 2}, {"chosen": -1}, {"options": []}, {"reason": 3}, {"budget": -1.0}, {"options": [{"seconds": 1.0}]}],
)
def test_a_plan_that_is_none_is_refused(change):
    option = Option(Vecchia(30, 90), 40, 3.0, 1e6, 0.1, 0.1, 1.0)
    plain = Plan.of([option], math.inf).to_plain(to_plain)
    assert Plan.from_plain(plain, from_plain).chosen == option
    with pytest.raises(ModelFileError):
        Plan.from_plain(plain | change, from_plain)
    with pytest.raises(ModelFileError):
        Plan.from_plain(plain, lambda data: "vecchia")


@needs_extension
@pytest.mark.slow
def test_neighbours_end_a_fit_whose_solves_take_longer_than_foreseen(monkeypatch):
    def never(*arguments):
        raise AssertionError("the last solve has begun")

    X, y = made_rows(3200, 2, 12)
    monkeypatch.setattr("gigagp.inference.automatic.objective._SHORT", 1e9)
    monkeypatch.setattr("gigagp.inference.iterative.iterative.IterativeObjective.posterior", never)
    gp = GPRegressor(Matern(nu=1.5), time_budget=1000.0).fit(X, y)
    assert isinstance(gp.inference_, Vecchia)
    assert "took longer than forecast" in gp.describe()
    monkeypatch.undo()
    assert isinstance(GPRegressor(Matern(nu=1.5), time_budget=1000.0).fit(X, y).inference_, Iterative)  # the control


@needs_extension
@pytest.mark.slow
def test_neighbours_end_a_fit_whose_last_solve_is_cut(monkeypatch):
    X, y = made_rows(3200, 2, 12)
    solved = IterativeObjective.solved_posterior

    def cut(objective, model, generator):
        with interruption.ending_earlier(1e4):
            return solved(objective, model, generator)

    monkeypatch.setattr("gigagp.inference.iterative.iterative.IterativeObjective.solved_posterior", cut)
    gp = GPRegressor(Matern(nu=1.5), time_budget=1000.0).fit(X, y)
    assert isinstance(gp.inference_, Vecchia)
    assert "took longer than forecast" in gp.describe()
    assert interruption.seconds_left() == np.inf
    with pytest.warns(SolverWarning, match="time budget"):
        GPRegressor(Matern(nu=1.5), inference=Iterative(), time_budget=1000.0).fit(
            X, y
        )  # the control: it has nothing else


@pytest.mark.slow
@needs_extension
@pytest.mark.filterwarnings("ignore:The fit stopped at step", "ignore:Posterior samples have")  # both of the control
def test_neighbours_end_a_fit_with_too_little_noise_for_solves():
    """Without noise the kernel matrix is too ill conditioned for solves in float64; neighbours' matrices are small."""
    X = np.random.default_rng(0).normal(size=(3300, 2))
    y = X @ [0.1, -0.1] + 0.3 * np.sin(X[:, 0])
    gp = GPRegressor(Matern(nu=1.5)).fit(X[:3100], y[:3100])
    assert isinstance(gp.inference_, Vecchia)
    assert "too ill conditioned" in gp.describe()
    assert np.abs(gp.predict(X[3100:]) - y[3100:]).max() < 0.01 * y.std()
    # The control: solves with this little noise stop early. Rounding decides whether they find any answer.
    with pytest.raises(
        (NotPositiveDefiniteError, SolverWarning), match=r"found no answer|stopped before their tolerance"
    ):
        GPRegressor(gp.kernel_, Iterative(), None, noise_variance=gp.noise_variance_).fit(X[:3100], y[:3100])


@needs_extension
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The fit stopped at step", "ignore:Posterior samples have")
def test_neighbours_end_a_fit_whose_solves_fail(monkeypatch):
    monkeypatch.setattr("gigagp.inference.contract.least_noise._LEAST_SHARE", 0.0)
    X = np.random.default_rng(0).normal(size=(3300, 2))
    y = X @ [0.1, -0.1] + 0.3 * np.sin(X[:, 0])
    gp = GPRegressor(Matern(nu=1.5)).fit(X[:3100], y[:3100])
    assert isinstance(gp.inference_, Vecchia)
    assert "too ill conditioned" in gp.describe()
    with pytest.raises((NotPositiveDefiniteError, SolverWarning), match=r"found no answer|stopped before"):
        GPRegressor(inference=Iterative()).fit(X[:3100], y[:3100])  # the control: it has nothing else


@needs_extension
def test_neighbours_guide_where_the_matrix_of_a_subset_has_no_factor(monkeypatch):
    """As of targets without noise."""

    def fails(*_):
        raise NotPositiveDefiniteError("no factor")

    def fitted(has_rival):
        def guide_of(neighbours, model):
            return SubsetGuide(neighbours.table, model, 300, neighbours=neighbours if has_rival else None)

        monkeypatch.setattr("gigagp.inference.automatic.objective.guide_of", guide_of)
        return GPRegressor(Matern(nu=1.5)).fit(X, y).history_.to_dict()["stage"]

    monkeypatch.setattr(SubsetGuide, "_factorise", fails)
    X, y = made_rows(3200, 2, 14)
    assert "neighbours" in fitted(True)
    with pytest.warns(FitWarning, match="subset 300.*not positive definite"):  # the control
        assert "neighbours" not in fitted(False)


@needs_extension
def test_neighbours_lead_on_where_the_subset_has_taken_structure_for_noise(monkeypatch):
    """And only where they have not done so themselves."""
    X, y = made_rows(3200, 2, 14)
    asked = []

    def fitted(*answers):
        def is_misled(table, model):
            assert table.n_rows == 3200
            asked.append(float(model.noise_variance))
            return answers[len(asked) - 1]

        def guide_of(neighbours, model):
            return SubsetGuide(neighbours.table, model, 300, neighbours=neighbours)

        asked.clear()
        monkeypatch.setattr("gigagp.inference.iterative.subset_guide._is_misled", is_misled)
        monkeypatch.setattr("gigagp.inference.automatic.objective.guide_of", guide_of)
        history = GPRegressor(Matern(nu=1.5), optimizer=Auto(guided_steps=1)).fit(X, y).history_
        assert len(asked) == len(answers)
        record = history.to_dict()
        start = record["hyperparameters"][record["stage"].index("all rows")]
        return record["stage"], start["noise_variance"]

    stages, alone = fitted(False)
    assert "neighbours" not in stages
    stages, led = fitted(True, False)
    assert "neighbours" in stages
    assert asked[1] != pytest.approx(asked[0])
    assert led / alone == pytest.approx(asked[1] / asked[0])  # in the targets' own units
    assert fitted(True, True)[1] == alone  # the control: neighbours are no better


def test_hyperparameters_that_are_given_are_kept():
    X, y = made_rows(3200, 2, 7)
    kernel = Matern(nu=1.5, lengthscale=[1.0, 2.0], variance=1.5)
    gp = GPRegressor(kernel, noise_variance=0.01, optimizer=None).fit(X, y)
    assert gp.kernel_.parameters()["lengthscale"].tolist() == pytest.approx([1.0, 2.0])
    assert (gp.plan_ is not None) == NativeTiles.available()


@pytest.mark.slow
def test_known_noise_leaves_no_row_out(monkeypatch):
    monkeypatch.setattr("gigagp.inference.automatic.inference._SEARCHES", 10**12)  # searches that take for ever
    monkeypatch.setattr("gigagp.inference.automatic.inference._FEWEST_ROWS", 1000)
    X, y = made_rows(3200, 2, 8)
    known = GPRegressor(Matern(nu=1.5), noise_variance=np.full(3200, 0.01), time_budget=100).fit(X, y)
    assert known.posterior_.n_rows == 3200
    thinned = GPRegressor(Matern(nu=1.5), time_budget=100).fit(X, y)
    assert thinned.posterior_.n_rows == 1000
    assert "1,000," in thinned.describe().splitlines()[0]


class Clock:
    """A clock that moves by a step at every look."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_rows_are_left_out_only_where_neighbours_could_not_end_in_time(monkeypatch):
    """A table of flights lost 11,000 of 26,000 rows in 20 s, in which neighbours alone used all of them."""
    table = problem(6000, 2, 15)[1]
    monkeypatch.setattr("time.perf_counter", Clock(50 * 7e-4))  # so that a search takes 0.7 ms
    assert _affordable(table, 20.0).n_rows == 6000
    assert _affordable(table, 10.0).n_rows == 5000


@pytest.mark.few(1)
@pytest.mark.parametrize("slowness", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize(("n", "budget"), [(300, 1.0), (3200, 4.0)])
def test_learning_ends_in_time(n, budget, slowness, monkeypatch):
    """On any machine: times are what the clock says, whatever a forecast of them has been."""
    X, y = made_rows(n, 2, 9)
    whole = GPRegressor(Matern(nu=1.5)).fit(X, y)
    clock = Clock(0.05)
    monkeypatch.setattr("time.monotonic", clock)
    monkeypatch.setattr("time.perf_counter", clock)
    monkeypatch.setattr("gigagp.inference.automatic.objective.slowness", lambda: slowness)
    gp = GPRegressor(Matern(nu=1.5), time_budget=budget).fit(X, y)
    assert gp.history_.interrupted == "time budget"
    assert "time budget" in gp.describe()
    assert 1 <= len(gp.history_) < len(whole.history_)
    assert np.isfinite(gp.predict(X)).all()
    needed = GPRegressor(Matern(nu=1.5), time_budget=1e6).fit(X, y)  # the control
    assert needed.history_.interrupted == ""


@pytest.mark.parametrize(
    "solver",
    [ConjugateGradients(tolerance=1e-12), AlternatingProjections(tolerance=1e-12), StochasticGradientDescent()],
)
def test_solves_end_with_the_budget(solver):
    model, table = problem(300, 2, 10)
    matrix = KernelMatrix(model.kernel, table.X, model.noise_variance)
    with interruption.interruptible(deadline=0.0):
        spent = solver.solve(matrix, table.Y)
    assert spent.status == Status.TIME_SPENT
    assert float(spent.relative_residual.max()) > 1e-12
    with interruption.interruptible():
        assert solver.solve(matrix, table.Y).status != Status.TIME_SPENT


@pytest.mark.parametrize("approximate", [True, False])
def test_hyperparameters_of_other_rows_are_warned_of_where_they_mislead(approximate, monkeypatch):
    """A few functions cannot follow what the exact likelihood of a subset takes for signal."""
    X, y = made_rows(400, 2, 13, noise=0.01)
    method = gigagp.inference.QuadruplyStochastic(n_basis=20) if approximate else Iterative()
    kind = type(method.objective(problem(40, 2, 0)[1], torch.Generator()))

    def late(*arguments):
        interruption.reserve(1e9)
        interruption.check()

    monkeypatch.setattr(kind, "evaluate", late)
    gp = GPRegressor(Matern(nu=1.5), inference=method, optimizer=Auto(subset_sizes=(100,)), time_budget=1000)
    with pytest.warns(FitWarning, match="error bars are too small") if approximate else contextlib.nullcontext():
        gp.fit(X, y)
    assert np.isfinite(gp.predict(X)).all()


def test_an_unfinished_last_solve_warns(monkeypatch):
    X, y = made_rows(600, 2, 11)
    gp = GPRegressor(inference=Iterative(), optimizer=None, time_budget=1e-9)
    with pytest.warns(SolverWarning, match="time budget"):
        gp.fit(X, y)


@pytest.mark.parametrize("method", [Iterative(), Exact(), gigagp.inference.SparseVariational(n_inducing=50)])
def test_a_budget_in_which_no_posterior_can_be_had_is_refused_before_the_work(method, monkeypatch):
    X, y = made_rows(300, 2, 12)
    kind = type(method.objective(problem(40, 2, 0)[1], torch.Generator()))
    monkeypatch.setattr(kind, "least_seconds", lambda _: 6000.0)
    gp = GPRegressor(Matern(nu=1.5), inference=method, time_budget="1h")
    with pytest.raises(InvalidInputError, match=r"too short for .* of 300 rows, which takes at least about 100 min"):
        gp.fit(X, y)
    assert not hasattr(gp, "kernel_")
    gp.set_params(time_budget="2h").fit(X, y)  # the control


@pytest.mark.parametrize(
    ("given", "seconds"), [(90, 90.0), ("90s", 90.0), ("10min", 600.0), (" 1.5 h", 5400.0), ("2m", 120.0), (".5", 0.5)]
)
def test_durations(given, seconds):
    assert gigagp.runtime.duration.resolve_duration(given) == seconds


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.25, "0.25 s"), (110, "110 s"), (240, "4 min"), (6000, "100 min"), (9000, "2.5 h"), (3.6e6, "1,000 h")],
)
def test_durations_in_words(seconds, words):
    assert gigagp.runtime.duration.in_words(seconds) == words


@pytest.mark.parametrize("wrong", ["ten minutes", "10 fortnights", 0, -1, "0s", math.nan, math.inf, "-3s", "1e9"])
def test_other_durations_are_refused(wrong):
    with pytest.raises(InvalidInputError, match="time_budget"):
        GPRegressor(time_budget=wrong).fit(*made_rows(20, 1, 0))
