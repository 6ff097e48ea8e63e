"""A search that computes the Fisher information once, and then corrects it by the changes of the gradient."""

from __future__ import annotations

import pytest
import torch

from gigagp.kernels import RBF
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from gigagp.optimization.prior import WeakPrior
from gigagp.optimization.scoring import FisherScoring
from gigagp.optimization.space import ParameterSpace
from helpers import FunctionObjective, new_trace

START = Model(RBF([1.0] * 8, 1.0).bind(8), ZeroMean(), torch.tensor(0.3, dtype=torch.float64))
#: Curvatures that differ by a factor of a hundred, and mixed directions.
CURVATURES = torch.logspace(0, 2, 10, dtype=torch.float64)
MIXED = torch.linalg.qr(torch.randn(10, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
TARGET = torch.linspace(-1, 1, 10, dtype=torch.float64)


def valley(values: dict[str, torch.Tensor]) -> torch.Tensor:
    """A function whose curvature changes, of the coordinates of a search: logarithms of lengthscales and deviations."""
    deviations = torch.cat([values[name].log().reshape(-1) / 2 for name in ("variance", "noise_variance")])
    logs = torch.cat([values["lengthscale"].log(), deviations])
    away = (logs - TARGET) @ MIXED
    return -1e4 * (CURVATURES * (away.cosh() - 1)).sum()  # the prior has no weight beside it


class _Valley(FunctionObjective):
    """The function with its curvature, which may be dear."""

    is_exact = True

    def __init__(self, *, is_dear: bool) -> None:
        super().__init__(valley)
        self.is_dear, self.n_informations = is_dear, 0

    def information_is_dear(self, n_learned: int) -> bool:
        return self.is_dear

    def quick_value(self, model: Model) -> None:
        return None

    def fisher(self, space: ParameterSpace, vector: torch.Tensor, probes: torch.Tensor) -> torch.Tensor:
        self.n_informations += 1
        return 1e4 * MIXED @ torch.diag(CURVATURES * ((vector - TARGET) @ MIXED).cosh()) @ MIXED.T


def searched(objective: _Valley, steps: int = 60) -> torch.Tensor:
    space = ParameterSpace(START, "log")
    prior = WeakPrior(space, 8, 1.0)
    scoring = FisherScoring(objective, space, prior, new_trace(), torch.zeros(0, 1), steps, 1e-10, 1.5, "a stage")
    return scoring.run(space.encode(START), None).vector


@pytest.mark.parametrize("is_dear", [False, True])
def test_both_searches_end_at_the_optimum(is_dear):
    objective = _Valley(is_dear=is_dear)
    torch.testing.assert_close(searched(objective), TARGET, rtol=0, atol=1e-3)
    assert (objective.n_informations == 1) is is_dear


def test_an_information_that_stays_as_it_was_takes_more_evaluations(monkeypatch):
    """The control: without corrections the same search is slower."""
    corrected, stale = _Valley(is_dear=True), _Valley(is_dear=True)
    searched(corrected)
    monkeypatch.setattr(FisherScoring, "_corrected", lambda self, before, vector, gradient: before.information)
    searched(stale)
    assert corrected.evaluations < stale.evaluations


def test_a_step_along_which_the_gradient_falls_keeps_the_information_positive_definite():
    space = ParameterSpace(START, "log")
    scoring = FisherScoring(
        _Valley(is_dear=True), space, WeakPrior(space, 8, 1.0), new_trace(), torch.zeros(0, 1), 1, 1e-10, 1.5, "a stage"
    )
    before = scoring.evaluate(space.encode(START))
    assert before is not None
    step = torch.ones(10, dtype=torch.float64)
    fallen = before.gradient - 0.5 * before.information @ step
    found = scoring._corrected(before, before.vector + step, fallen)
    assert float(torch.linalg.eigvalsh(found).min()) > 0
    torch.testing.assert_close(found, found.T)
    raised = before.gradient + 3 * before.information @ step
    found = scoring._corrected(before, before.vector + step, raised)
    expected = raised - before.gradient - scoring.prior.precision * step
    torch.testing.assert_close(found @ step, expected)  # the secant equation
