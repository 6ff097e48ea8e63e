"""A killed fit resumes with the same bits."""

from __future__ import annotations

import re
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from stress.faults import limited_files

from gigagp import GPRegressor, gradients, inference, kernels, optimization, solvers, truncation
from gigagp.errors import GigaGPWarning, InvalidInputError, ModelFileError
from gigagp.estimators import checkpoint
from gigagp.inference.exact.exact import ExactObjective
from gigagp.inference.iterative.iterative import IterativeObjective

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(90, 2))
y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * GENERATOR.normal(size=90)
PATHWISE = gradients.Pathwise(n_probes=4, n_features=40)
METHODS = {
    "exact": (inference.Exact(), optimization.LBFGS(steps=8)),
    "restarts": (inference.Exact(), optimization.Restarts(optimization.LBFGS(steps=4), 2)),
    "warm": (inference.Iterative(gradient=PATHWISE, n_samples=4), optimization.Adam(steps=7)),
    "cold": (inference.Iterative(gradient=PATHWISE, warm_start=False, n_samples=4), optimization.Adam(steps=7)),
    "hutchinson": (
        inference.Iterative(gradient=gradients.Hutchinson(4), warm_start="previous", n_samples=4),
        optimization.LBFGS(steps=6),
    ),
    "truncated": (
        inference.Iterative(
            solver=solvers.ConjugateGradients(truncation=truncation.ExponentialDecay(0.2, 8)),
            gradient=PATHWISE,
            n_samples=4,
        ),
        optimization.Adam(steps=7),
    ),
    "neighbours": (
        inference.Iterative(
            solver=solvers.ConjugateGradients(preconditioner=solvers.Vecchia(5)), gradient=PATHWISE, n_samples=4
        ),
        optimization.Adam(learning_rate=0.2, steps=7),
    ),
    "sgd": (
        inference.Iterative(
            solver=solvers.StochasticGradientDescent(batch_size=30, tolerance=0.1), gradient=PATHWISE, n_samples=4
        ),
        optimization.Adam(steps=5),
    ),
    "ap": (
        inference.Iterative(solver=solvers.AlternatingProjections(block_size=30), gradient=PATHWISE, n_samples=4),
        optimization.Adam(steps=5),
    ),
    "auto": (
        inference.Iterative(gradient=PATHWISE, n_samples=4),
        optimization.Auto(subset_sizes=(20,), middle_size=40, polish_steps=4, polish_tolerance=1e-9),
    ),
}


class Killed(BaseException):
    """Stands for a kill in these tests."""


def estimator(name, **changes):
    method, optimizer = METHODS[name]
    return GPRegressor(inference=method, optimizer=optimizer, **{"kernel": kernels.Matern(nu=1.5)} | changes)


def kill_after(monkeypatch, evaluations):
    """Make evaluations on all rows after the first few kill the fit; return the count of completed ones."""
    count = {"ran": 0}
    for objective in (ExactObjective, IterativeObjective):

        def evaluate(self, model, original=objective.evaluate):
            if self.n_rows == len(X):
                if count["ran"] >= evaluations:
                    raise Killed
                count["ran"] += 1
            return original(self, model)

        monkeypatch.setattr(objective, "evaluate", evaluate)
    return count


@pytest.fixture(autouse=True)
def _write_at_every_step(monkeypatch):
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("killed_after", [1, 3])
@pytest.mark.filterwarnings("ignore:Learning stopped after")  # by so few steps
def test_a_killed_fit_resumes_to_the_same_bits(tmp_path, monkeypatch, name, killed_after):
    whole = estimator(name).fit(X, y)
    path = tmp_path / "fit.checkpoint"
    with monkeypatch.context() as patch:
        kill_after(patch, killed_after)
        with pytest.raises(Killed):
            estimator(name).fit(X, y, checkpoint=path)
    assert path.exists()
    with monkeypatch.context() as patch:
        count = kill_after(patch, 10**6)
        resumed = estimator(name).fit(X, y, checkpoint=path)
    on_all_rows = sum(step.stage not in ("subset 20", "subset 40") for step in whole.history_)
    assert count["ran"] == on_all_rows - killed_after
    assert not path.exists()
    for left, right in zip(whole.predict(X, return_std=True), resumed.predict(X, return_std=True), strict=True):
        assert np.array_equal(left, right)
    assert torch.equal(whole.posterior_.target_solutions, resumed.posterior_.target_solutions)
    steps = [history.to_dict() for history in (whole.history_, resumed.history_)]
    for key in steps[0]:
        assert key == "seconds" or steps[0][key] == steps[1][key]
    seconds = [step.seconds for step in resumed.history_ if not step.stage.startswith("subset")]
    assert seconds == sorted(seconds)  # the clock continues


def test_a_fit_with_a_checkpoint_is_the_fit_without(tmp_path):
    path = tmp_path / "fit.checkpoint"
    assert np.array_equal(
        estimator("warm").fit(X, y).predict(X), estimator("warm").fit(X, y, checkpoint=path).predict(X)
    )
    assert not path.exists()


@pytest.mark.parametrize("change", [{"random_state": 1}, {"noise_variance": 0.2}, {"standardize": False}])
def test_a_checkpoint_of_another_fit_is_refused(tmp_path, monkeypatch, change):
    path = tmp_path / "fit.checkpoint"
    with monkeypatch.context() as patch:
        kill_after(patch, 2)
        with pytest.raises(Killed):
            estimator("warm").fit(X, y, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(InvalidInputError, match="belongs to another fit"):
        estimator("warm", **change).fit(X, y, checkpoint=path)
    with pytest.raises(InvalidInputError, match="belongs to another fit"):
        estimator("warm").fit(X + 1e-9, y, checkpoint=path)
    assert path.read_bytes() == before


def test_bad_checkpoints_and_seeds_are_refused(tmp_path):
    path = tmp_path / "fit.checkpoint"
    path.write_text("not a checkpoint", encoding="utf-8")
    with pytest.raises(ModelFileError):
        estimator("warm").fit(X, y, checkpoint=path)
    with pytest.raises(InvalidInputError, match="random_state of GPRegressor must be an int"):
        estimator("warm", random_state=None).fit(X, y, checkpoint=tmp_path / "other")


@pytest.mark.slow
def test_a_mean_function_made_again_is_the_same_fit(tmp_path, monkeypatch):
    """The function of a new process is another object; only its values count."""
    path = tmp_path / "fit.checkpoint"
    with monkeypatch.context() as patch:
        kill_after(patch, 2)
        with pytest.raises(Killed):
            estimator("warm", mean=lambda rows: rows[:, 0]).fit(X, y, checkpoint=path)
    with pytest.raises(InvalidInputError, match="belongs to another fit"):
        estimator("warm", mean=lambda rows: rows[:, 1]).fit(X, y, checkpoint=path)
    resumed = estimator("warm", mean=lambda rows: rows[:, 0]).fit(X, y, checkpoint=path)
    whole = estimator("warm", mean=lambda rows: rows[:, 0]).fit(X, y)
    assert np.array_equal(resumed.predict(X), whole.predict(X))


def test_a_full_disk_does_not_end_a_fit(tmp_path):
    whole = estimator("warm").fit(X, y)
    path = tmp_path / "fit.checkpoint"
    with pytest.warns(GigaGPWarning) as seen, limited_files(1000):
        gp = estimator("warm").fit(X, y, checkpoint=path)
    files = [
        re.match("A checkpoint was not written: (.*) cannot be written", str(one.message)).group(1) for one in seen
    ]
    # once for seven failed writes of the log, and once for those of the solves
    assert sorted(files) == [str(path), f"{path}.solve"]
    assert list(tmp_path.iterdir()) == []
    for left, right in zip(whole.predict(X, return_std=True), gp.predict(X, return_std=True), strict=True):
        assert np.array_equal(left, right)


def test_a_disk_that_fills_up_keeps_the_older_checkpoint(tmp_path, monkeypatch):
    """Earlier writes stay intact, and a killed fit resumes from them."""
    path = tmp_path / "fit.checkpoint"
    original, sizes = checkpoint.save_state, []

    def save_state(*arguments):
        if len(sizes) == 3:
            disk.enter_context(limited_files(1000))
        original(*arguments)
        sizes.append(path.stat().st_size)

    with ExitStack() as disk, monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_state", save_state)
        kill_after(patch, 5)
        with pytest.warns(GigaGPWarning, match="the one before it is whole"), pytest.raises(Killed):
            estimator("warm").fit(X, y, checkpoint=path)
    assert len(sizes) == 3
    with monkeypatch.context() as patch:
        count = kill_after(patch, 10**6)
        resumed = estimator("warm").fit(X, y, checkpoint=path)
    assert count["ran"] == 7 - 3
    assert np.array_equal(resumed.predict(X), estimator("warm").fit(X, y).predict(X))


def test_a_checkpoint_that_can_never_be_written_is_refused_before_the_work(tmp_path, monkeypatch):
    kill_after(monkeypatch, 0)
    for path, match in ((tmp_path / "absent" / "c", "does not exist"), (tmp_path, "a folder"), ("/dev/null", "device")):
        with pytest.raises(InvalidInputError, match=match):
            estimator("warm").fit(X, y, checkpoint=path)
