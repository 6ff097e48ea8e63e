"""Ctrl-C: the first ends a fit at the best hyperparameters so far, the second ends it at once and changes nothing.

Signals are real. They are sent at the k-th point where a fit checks for them, for increasing k until the fit completes.
"""

from __future__ import annotations

import itertools
import signal
import threading
import warnings

import numpy as np
import pyarrow as pa
import pytest

import gigagp
from gigagp import GPClassifier, GPRegressor, gradients, inference, kernels, optimization, solvers
from gigagp.errors import FitInterruptedWarning, FitWarning
from gigagp.estimators.fit_checks import poor_fits
from gigagp.optimization import sparse_ascent, trace
from gigagp.runtime import interruption

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(60, 2))
y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * GENERATOR.normal(size=60)
POINTS = GENERATOR.normal(size=(7, 2))
PATHWISE = gradients.Pathwise(n_probes=4, n_features=40)
AUTO = optimization.Auto(subset_sizes=(20,), middle_size=25, polish_steps=3, noisy_steps=4, subset_steps=4)
SAMPLED = {"n_basis": 30, "row_batch": 10, "basis_batch": 10, "start_rows": 20}


def iterative(**changes):
    return inference.Iterative(gradient=PATHWISE, n_samples=4, **changes)


FITS = {
    "exact auto": {"inference": inference.Exact(), "optimizer": AUTO},
    "exact adam": {"inference": inference.Exact(), "optimizer": optimization.Adam(steps=6)},
    "exact lbfgs, two targets": {"inference": inference.Exact(), "optimizer": optimization.LBFGS(steps=5)},
    "exact, noise of each row": {
        "inference": inference.Exact(),
        "optimizer": AUTO,
        "noise_variance": np.linspace(0.01, 0.1, 60),
    },
    "subset start": {
        "inference": inference.Exact(),
        "optimizer": optimization.SubsetStart(
            optimization.Adam(steps=3), n_centroids=3, n_neighbours=20, optimizer=optimization.Adam(steps=3)
        ),
    },
    "iterative auto": {"inference": iterative(), "optimizer": AUTO},
    "iterative cold": {"inference": iterative(warm_start=False), "optimizer": AUTO},
    "iterative mixed": {"inference": iterative(), "optimizer": optimization.LBFGS(steps=3), "dtype": "mixed"},
    "iterative ap": {
        "inference": iterative(solver=solvers.AlternatingProjections(block_size=20)),
        "optimizer": optimization.Adam(steps=3),
    },
    "iterative aware": {
        "inference": iterative(computational_uncertainty=True),
        "optimizer": optimization.Adam(steps=3),
    },
    "vecchia": {"inference": inference.Vecchia(5), "optimizer": AUTO},
    "vecchia, gross outliers": {"inference": inference.Vecchia(5), "optimizer": AUTO, "likelihood": "student-t"},
    "vecchia, counts": {"inference": inference.Vecchia(5), "optimizer": AUTO, "likelihood": "poisson"},
    "random features": {"inference": inference.RandomFeatures(n_features=30), "optimizer": AUTO},
    "grid": {"inference": inference.Grid(size=24), "optimizer": optimization.Adam(steps=4)},
    "grid of many nodes": {
        "inference": inference.Grid(size=40, exact_nodes=100),
        "optimizer": optimization.Adam(steps=3),
    },
    "sparse": {"inference": inference.SparseVariational(n_inducing=10), "optimizer": AUTO},
    "sparse stochastic": {
        "inference": inference.SparseVariational(n_inducing=10, batch_size=20),
        "optimizer": optimization.Auto(
            subset_sizes=(20,), middle_size=25, stochastic_polish=optimization.Adam(0.03, 8, transform="log")
        ),
    },
    "computation aware": {"inference": inference.ComputationAware(n_actions=6), "optimizer": AUTO},
    "quadruply whole": {"inference": inference.QuadruplyStochastic(n_basis=30), "optimizer": "auto"},
    "quadruply sampled": {
        "inference": inference.QuadruplyStochastic(**SAMPLED),
        "optimizer": optimization.SparseAdam(steps=30, hyper_start=0.0),
    },
    "quadruply given": {"inference": inference.QuadruplyStochastic(**SAMPLED), "optimizer": None},
    "poisson": {"inference": inference.QuadruplyStochastic(n_basis=30), "likelihood": "poisson", "optimizer": "auto"},
}
#: Steps between the points at which signals are sent: small enough for every stage, large enough for every commit.
SLOW = {"sparse": 2, "quadruply given": 4}
PLACES = [1, 3, 7, 15, 33, 45, 73, 120, 160, 350, 770, 1700]


@pytest.fixture
def signals(monkeypatch):
    """Return a function that sends SIGINT at given points of the next fit, counted from 1, and the count."""
    state = {"count": 0, "at": ()}

    def watched(original):
        def call(*arguments, **options):
            state["count"] += 1
            if state["count"] in state["at"]:
                signal.raise_signal(signal.SIGINT)
            return original(*arguments, **options)

        return call

    monkeypatch.setattr(interruption, "check", watched(interruption.check))
    monkeypatch.setattr(trace.Trace, "evaluate", watched(trace.Trace.evaluate))
    monkeypatch.setattr(sparse_ascent.SparseRun, "_take_step", watched(sparse_ascent.SparseRun._take_step))
    before = signal.getsignal(signal.SIGINT)

    def come_at(*places):
        state.update(count=0, at=places)
        return state

    yield come_at
    assert signal.getsignal(signal.SIGINT) is before, "the handler is not what it was before"


def make(name):
    settings = dict(FITS[name])
    kernel = kernels.RBF() if "quadruply" in name or name == "poisson" else None
    return GPRegressor(kernel, **settings)


def targets(name):
    if FITS[name].get("likelihood") == "poisson":
        return np.round(np.exp(y))
    return np.column_stack([y, y**2]) if "two targets" in name else y


def fitted_or_not(estimator, Y):
    """Fit, and return the outcome: "complete", "cut", "late" or "stopped"."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            estimator.fit(X, Y)
        except KeyboardInterrupt:
            return "stopped"
    of_interruption = [one for one in caught if one.category is FitInterruptedWarning]
    last = estimator.estimators_[-1].history_.interrupted  # Ctrl-C in the fit of an earlier output stops all
    came = {"": "complete", "learning": "cut", "last solve": "late"}[last]
    assert len(of_interruption) == (came != "complete")
    assert all(one.filename == __file__ for one in of_interruption)
    return came


@pytest.mark.few(1)
@pytest.mark.parametrize("name", FITS)
def test_the_first_leaves_a_fitted_model_wherever_it_comes(signals, tmp_path, name):
    found = []
    for place in PLACES[:: SLOW.get(name, 1)]:
        state, estimator = signals(place), make(name)
        came = fitted_or_not(estimator, targets(name))
        found.append(came)
        if came == "complete":
            assert state["count"] < place
            break
        if came == "stopped":
            assert not hasattr(estimator, "posterior_")
            continue
        mean, std = estimator.predict(POINTS, return_std=True)
        assert np.isfinite(mean).all()
        assert np.isfinite(std).all()
        assert (std > 0).all()
        assert ("Ctrl-C ended the learning" in estimator.describe()) == (came == "cut")
        estimator.save(tmp_path / "model.gp")
        again = gigagp.load(tmp_path / "model.gp")
        np.testing.assert_allclose(again.predict(POINTS), mean)
        pairs = zip(again.estimators_, estimator.estimators_, strict=True)
        assert all(one.history_.interrupted == other.history_.interrupted for one, other in pairs)
    # The outcomes follow the stages: nothing learned yet, learning, the last solve; each occurs if its stage exists.
    assert found == sorted(found, key=["stopped", "cut", "late", "complete"].index)
    assert "cut" in found
    assert found[0] == "stopped"


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:Squared errors")  # few steps, given noise
@pytest.mark.parametrize("name", ["exact auto", "iterative auto", "quadruply sampled"])
@pytest.mark.filterwarnings("ignore:Learning stopped after")  # by so few steps
def test_the_second_ends_at_once_and_changes_nothing(signals, name):
    estimator, Y = make(name), targets(name)
    estimator.fit(X, Y)
    before, mean = dict(estimator.__dict__), estimator.predict(POINTS)
    for first, later in [(8, 1), (8, 5), (17, 1), (17, 3)]:
        state = signals(first, first + later)
        came = fitted_or_not(estimator, 1000 * Y)
        assert came == "stopped" or state["count"] < first + later
        if came == "stopped":
            assert estimator.__dict__ == before
            np.testing.assert_array_equal(estimator.predict(POINTS), mean)
        else:
            estimator.__dict__.update(before)


@pytest.mark.parametrize("way", ["fit", "fit_table"])
def test_a_fit_is_not_lost_when_it_has_ended(monkeypatch, way):
    """Ctrl-C ends what is looked at after it."""
    went_on = []

    def look(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        interruption.check()
        went_on.append(True)

    monkeypatch.setattr(poor_fits, "warn_of_flat_fit", look)
    gp = GPRegressor(kernels.Matern(nu=1.5), inference=inference.Vecchia(5))
    with pytest.warns(FitInterruptedWarning, match="The fit was completed"):
        gp.fit(X, y) if way == "fit" else gp.fit_table(lambda: [(X, y)])
    assert gp.history_.interrupted == "last solve"
    assert np.isfinite(gp.predict(POINTS)).all()
    assert not went_on


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["exact auto", "exact adam", "exact lbfgs, two targets", "sparse"])
def test_the_best_value_is_kept(signals, name):
    """With values, the kept point is at least as good as every step of the same stage."""
    Y = targets(name)
    for place in PLACES[2:]:
        signals(place)
        estimator = make(name)
        if fitted_or_not(estimator, Y) != "cut":
            continue
        last_output = estimator.estimators_[-1]
        history = last_output.history_
        last = history[len(history) - 1]
        if last.stage in ("adam", "lbfgs", "all rows"):
            best = max(step.objective for step in history if step.stage == last.stage)
            assert last_output.log_marginal_likelihood().value >= best - 1e-6 * abs(best)


def test_without_values_the_last_accepted_step_is_kept(signals):
    signals(*[])
    complete = make("iterative ap").fit(X, y)
    for place in itertools.count(8, 7):
        state, estimator = signals(place), make("iterative ap")
        if fitted_or_not(estimator, y) != "cut":
            assert state["count"] > place - 100
            break
        steps = len(estimator.history_)
        np.testing.assert_allclose(
            estimator.kernel_.parameters()["lengthscale"],
            complete.history_[steps - 1].hyperparameters["lengthscale"],
        )


def test_a_classifier_is_fitted_too(signals, tmp_path):
    labels = np.where(y > 0, "up", "down")
    for place in (5, 12, 24):
        signals(place)
        classifier = GPClassifier(inference=inference.QuadruplyStochastic(n_basis=30))
        with pytest.warns(FitInterruptedWarning, match="Ctrl-C ended the learning"):
            classifier.fit(X, labels)
        assert classifier.latent_.history_.interrupted == "learning"
        assert np.isfinite(classifier.predict_proba(POINTS)).all()
        classifier.save(tmp_path / "model.gp")
        assert (gigagp.load(tmp_path / "model.gp").predict(POINTS) == classifier.predict(POINTS)).all()


def test_an_error_for_the_warning_leaves_the_result(signals):
    """If warnings are errors, nothing is lost, and the first Ctrl-C ends a loop of fits."""
    signals(12)
    estimator, classifier = make("exact auto"), GPClassifier(inference=inference.QuadruplyStochastic(n_basis=30))
    with pytest.raises(FitInterruptedWarning):
        estimator.fit(X, y)
    assert np.isfinite(estimator.predict(POINTS)).all()
    signals(12)
    with pytest.raises(FitInterruptedWarning):
        classifier.fit(X, y > 0)
    assert np.isfinite(classifier.predict_proba(POINTS)).all()


@pytest.mark.slow
def test_rows_that_are_not_held(signals, tmp_path):
    """A pass over the rows has not learned anything yet; later stages have."""
    table = np.column_stack([X, y])
    np.savetxt(tmp_path / "table.csv", table, delimiter=",", header="a,b,y", comments="")
    state = signals()
    optimizer = optimization.Adam(steps=8)
    whole = GPRegressor(inference=inference.Grid(size=24), optimizer=optimizer).fit_table(tmp_path / "table.csv", "y")
    assert state["count"] > 15
    signals(15)
    estimator = GPRegressor(inference=inference.Grid(size=24), optimizer=optimizer)
    with pytest.warns(FitInterruptedWarning):
        estimator.fit_table(tmp_path / "table.csv", "y", checkpoint=tmp_path / "fit.part")
    points = pa.table({"a": POINTS[:, 0], "b": POINTS[:, 1]})
    assert np.isfinite(estimator.predict(points)).all()
    assert (tmp_path / "fit.part").exists()
    signals()
    estimator.fit_table(tmp_path / "table.csv", "y", checkpoint=tmp_path / "fit.part")
    np.testing.assert_allclose(estimator.predict(points), whole.predict(points), rtol=1e-10)
    assert not (tmp_path / "fit.part").exists()


def test_a_pass_over_rows_ends_as_ever(monkeypatch):
    def chunks():
        for k in range(0, 60, 10):
            if k == 30:
                signal.raise_signal(signal.SIGINT)
            yield X[k : k + 10], y[k : k + 10]

    estimator = GPRegressor(inference=inference.Grid(size=24))
    with pytest.raises(KeyboardInterrupt):
        estimator.fit_table(chunks, bounds=(X.min(0), X.max(0)))
    assert not hasattr(estimator, "posterior_")


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore:Squared errors")  # few steps, given noise
@pytest.mark.parametrize("name", ["exact adam", "iterative ap", "quadruply sampled"])
def test_the_checkpoint_stays_and_leads_to_the_same_bits(signals, tmp_path, monkeypatch, name):
    monkeypatch.setattr(gigagp.estimators.checkpoint, "INTERVAL", 0.0)
    signals()
    complete = make(name).fit(X, y)
    path = tmp_path / "fit.part"
    interrupted = 0
    for place in PLACES[2:]:
        state, estimator = signals(place), make(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # a short last window may look like a divergence
            try:
                estimator.fit(X, y, checkpoint=path)
            except KeyboardInterrupt:  # nothing learned yet
                continue
        if estimator.history_.interrupted != "learning":
            assert not path.exists()
            break
        interrupted += path.exists()
        state = signals()
        estimator.fit(X, y, checkpoint=path)
        assert state["count"] > 0
        np.testing.assert_array_equal(estimator.predict(POINTS), complete.predict(POINTS))
        assert len(estimator.history_) == len(complete.history_)
        assert not path.exists()
    assert interrupted > 0


# Handlers of other code -----------------------------------------------------------------------------------------------


def test_a_handler_of_the_users_own_is_left_alone(signals):
    calls = []

    def own(number, frame):
        calls.append(number)

    before = signal.signal(signal.SIGINT, own)
    try:
        signals(8)
        estimator = make("exact auto")
        assert fitted_or_not(estimator, y) == "complete"
        assert calls == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_handler_that_is_set_in_the_middle_stays(monkeypatch):
    def own(number, frame):
        raise AssertionError

    def evaluate(self, *arguments, original=trace.Trace.evaluate):
        signal.signal(signal.SIGINT, own)
        return original(self, *arguments)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(trace.Trace, "evaluate", evaluate)
    try:
        make("exact adam").fit(X, y)
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_installs_nothing():
    seen = []

    def evaluate(*arguments, original=trace.Trace.evaluate):
        seen.append(signal.getsignal(signal.SIGINT))
        return original(*arguments)

    estimator = make("exact adam")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace.Trace, "evaluate", evaluate)
        thread = threading.Thread(target=estimator.fit, args=(X, y))
        thread.start()
        thread.join()
    assert set(seen) == {signal.default_int_handler}
    assert np.isfinite(estimator.predict(POINTS)).all()


def test_an_error_puts_the_handler_back(signals):
    signals()
    with pytest.raises(gigagp.errors.InvalidInputError):
        GPRegressor(inference=inference.Exact(), optimizer=optimization.SparseAdam()).fit(X, y)
