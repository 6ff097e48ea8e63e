"""Adam against torch's implementation, on the likelihood and on an arbitrary function."""

from __future__ import annotations

import pytest
import torch

from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import ExactObjective
from gigagp.kernels import RBF, Matern
from gigagp.model.means import ConstantMean, ZeroMean
from gigagp.model.model import Model
from gigagp.optimization import Adam, ParameterSpace
from helpers import FunctionObjective, draw_targets, generator, new_trace, points, reference_matrix


def start(kernel, noise=1.0):
    return Model(kernel.bind(2), ZeroMean(), torch.tensor(noise, dtype=torch.float64))


@pytest.mark.parametrize("transform", ["softplus", "log"])
@pytest.mark.parametrize("settings", [{}, {"beta1": 0.5, "beta2": 0.9, "epsilon": 1e-3}])
def test_the_path_is_that_of_torch(transform, settings):
    """Maximise the log likelihood with our gradients, and with autograd through the dense formula."""
    X = points(60, 2)
    y = draw_targets(Matern(1.5, 1.3), X, 0.05)[:, 0]
    model = start(Matern(1.5, 1.0, 1.0))
    space = ParameterSpace(model, transform)
    vector = space.encode(model).requires_grad_()
    betas = (settings.get("beta1", 0.9), settings.get("beta2", 0.999))
    theirs = torch.optim.Adam([vector], lr=0.1, betas=betas, eps=settings.get("epsilon", 1e-8))
    for _ in range(15):
        theirs.zero_grad()
        moved = space.decode(vector)
        H = reference_matrix(moved.kernel, X, moved.noise_variance)
        (0.5 * (y @ torch.linalg.solve(H, y) + torch.linalg.slogdet(H).logabsdet)).backward()
        theirs.step()
    objective = ExactObjective(TrainingTable(X, y[:, None], ZeroMean(), 2**30))
    trace = new_trace()
    adam = Adam(learning_rate=0.1, steps=15, transform=transform, **settings)
    found = adam.run(objective, model, trace, generator())
    torch.testing.assert_close(space.encode(found), vector.detach(), rtol=1e-8, atol=1e-8)
    assert len(trace.history) == 15
    assert [step.stage for step in trace.history] == ["adam"] * 15
    assert trace.history[-1].objective > trace.history[0].objective


def test_the_likelihood_of_a_trend_has_the_gradient_that_differences_give():
    """The trend's coefficients depend on the hyperparameters; at their optimum this adds nothing to the gradient."""
    X = points(40, 2)
    Y = draw_targets(RBF(1.0), X, 0.1, columns=2) + 3 * X[:, :1] + 5
    objective = ExactObjective(TrainingTable(X, Y, ConstantMean(), 2**30))
    model = start(RBF([0.8, 1.4]), 0.2)
    space = ParameterSpace(model, "log")
    vector = space.encode(model)
    gradient = space.pull_back(objective.evaluate(model).gradient, vector)
    for k, unit in enumerate(torch.eye(space.size)):
        up, down = (objective.evaluate(space.decode(vector + sign * 1e-5 * unit)).value for sign in (1, -1))
        assert (up - down) / 2e-5 == pytest.approx(float(gradient[k]), rel=1e-6, abs=1e-6)


def test_it_climbs_to_a_maximum():
    objective = FunctionObjective(lambda v: -((v["lengthscale"].log() - 1) ** 2).sum() - (v["variance"] - 2) ** 2)
    found = Adam(0.1, 300, transform="log").run(objective, start(RBF()), new_trace(), generator())
    torch.testing.assert_close(found.kernel.lengthscale, torch.full((2,), torch.e).double(), rtol=1e-3, atol=0)
    torch.testing.assert_close(found.kernel.variance, torch.tensor(2.0).double(), rtol=1e-3, atol=0)
