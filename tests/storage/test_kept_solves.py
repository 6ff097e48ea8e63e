"""A solve that a kill interrupts goes on from its last iteration, to the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, inference, kernels, solvers
from gigagp.errors import GigaGPWarning
from gigagp.estimators import checkpoint
from gigagp.operators import KernelMatrix
from gigagp.solvers.krylov import Recurrence
from gigagp.solvers.preconditioners import Vecchia

#: Settings of the solver whose loops keep different things.
SOLVERS = {
    "plain": {"preconditioner": None},
    "refreshed": {"preconditioner": None, "refresh_every": 3},
    "neighbours": {"preconditioner": Vecchia(4)},
    "errors": {"preconditioner": None, "errors": (1e-6, 1e-6)},
}


class Killed(BaseException):
    """Stands for a kill in these tests."""


@pytest.fixture(autouse=True)
def _write_at_every_iteration(monkeypatch):
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)


def table() -> tuple[np.ndarray, np.ndarray]:
    """Return clumped rows with duplicates."""
    rng = np.random.default_rng(3)
    X = np.concatenate([rng.uniform(size=(90, 2)), 0.01 * rng.normal(size=(50, 2))])
    X = np.concatenate([X, X[:10]])
    return X, np.sin(6 * X).sum(1) + 0.1 * rng.normal(size=len(X))


def fit(
    solver: str = "plain",
    dtype: str = "float64",
    noise: float = 0.01,
    aware: bool = False,
    **options: object,
) -> GPRegressor:
    tolerance = 1e-3 if dtype == "float32" else 1e-6
    given = solvers.ConjugateGradients(tolerance, probe_tolerance=tolerance, **SOLVERS[solver])
    how = inference.Iterative(solver=given, n_samples=4, computational_uncertainty=aware)
    gp = GPRegressor(kernels.Matern(1.5, 0.3), how, noise_variance=noise, optimizer=None, dtype=dtype)
    return gp.fit(*table(), **options)


def killed_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> list[int]:
    """Make a step of conjugate gradients after the first few kill the fit; return the list of those that ran."""
    ran: list[int] = []

    def step(self, *args, original=Recurrence.step):
        if len(ran) >= steps:
            raise Killed
        ran.append(1)
        return original(self, *args)

    monkeypatch.setattr(Recurrence, "step", step)
    return ran


def killed(monkeypatch: pytest.MonkeyPatch, steps: int, *arguments: str, **options: object) -> None:
    with monkeypatch.context() as patch:
        killed_after(patch, steps)
        with pytest.raises(Killed):
            fit(*arguments, **options)


@pytest.mark.few(1)
@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("dtype", ["float64", "float32", "mixed"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_killed_solve_goes_on_to_the_same_bits(tmp_path, monkeypatch, solver, dtype, steps):
    path = tmp_path / "fit.checkpoint"
    with monkeypatch.context() as patch:
        all_steps = killed_after(patch, 10**6)
        whole = fit(solver, dtype)
    killed(monkeypatch, steps, solver, dtype, checkpoint=path)
    assert (tmp_path / "fit.checkpoint.solve").exists()
    with monkeypatch.context() as patch:
        further = killed_after(patch, 10**6)
        resumed = fit(solver, dtype, checkpoint=path)
    assert len(further) == len(all_steps) - steps
    assert list(tmp_path.iterdir()) == []
    assert torch.equal(whole.posterior_.target_solutions, resumed.posterior_.target_solutions)
    records = [vars(gp.posterior_.final_solve) for gp in (whole, resumed)]
    assert records[0] == records[1]


def test_a_solve_with_other_hyperparameters_begins_anew(tmp_path, monkeypatch):
    """Targets alone do not tell two solves apart: the file of one must not serve the other."""
    path = tmp_path / "fit.checkpoint"
    killed(monkeypatch, 5, checkpoint=path)
    file = checkpoint.SolveFile(tmp_path / "fit.checkpoint.solve", "other fit", 0.0)
    X, y = (torch.from_numpy(one) for one in table())
    keys = set()
    for lengthscale, noise in ((0.3, 0.01), (0.31, 0.01), (0.3, 0.011)):
        numbers = KernelMatrix(kernels.Matern(1.5, lengthscale), X, noise).numbers
        keys.add(file.key([*numbers, y], "settings"))
    assert len(keys) == 3
    assert all(file.state_of(key) is None for key in keys)


def test_a_solve_whose_products_are_recorded_begins_anew(tmp_path, monkeypatch):
    """The posterior is made of all products, and those before the kill are not in the file."""
    path = tmp_path / "fit.checkpoint"
    whole = fit(aware=True)
    killed(monkeypatch, 5, checkpoint=path, aware=True)
    resumed = fit(checkpoint=path, aware=True)
    for one, other in zip(*(gp.predict(table()[0] + 0.01, return_std=True) for gp in (whole, resumed)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_damaged_file_is_told_and_the_solve_begins_anew(tmp_path, monkeypatch):
    path, kept = tmp_path / "fit.checkpoint", tmp_path / "fit.checkpoint.solve"
    whole = fit()
    killed(monkeypatch, 5, checkpoint=path)
    kept.write_bytes(kept.read_bytes()[:-100])
    with pytest.warns(GigaGPWarning, match="The solve begins anew: .*fit.checkpoint.solve"):
        resumed = fit(checkpoint=path)
    assert torch.equal(whole.posterior_.target_solutions, resumed.posterior_.target_solutions)
    assert list(tmp_path.iterdir()) == []
