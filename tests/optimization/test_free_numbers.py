"""Free numbers, which are learned together with the hyperparameters: every optimizer changes them untransformed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gigagp.errors import FitWarning, InvalidInputError
from gigagp.kernels import RBF
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model
from gigagp.optimization import LBFGS, Adam, Auto, ParameterSpace
from gigagp.optimization.prior import WeakPrior
from helpers import FunctionObjective, generator, new_trace, points

FREE = {"points": points(3, 2), "weight": torch.tensor(-0.5, dtype=torch.float64)}
TARGET = points(3, 2, seed=1)
START = Model(RBF(2.0, 1.5).bind(2), ZeroMean(), torch.tensor(0.3, dtype=torch.float64))


def hill(values):
    """A function with its maximum at lengthscale 1, variance 2, noise 0.1, points = TARGET, weight = variance."""
    distance = (values["lengthscale"].log() ** 2).sum() + (values["variance"] / 2).log() ** 2
    distance = distance + (values["noise_variance"] / 0.1).log() ** 2 + (values["points"] - TARGET).square().sum()
    return -distance - (values["weight"] - values["variance"]) ** 2


def objective(function=hill, **changes):
    return FunctionObjective(function, free=FREE, **changes)


@pytest.mark.parametrize("transform", ["softplus", "log"])
def test_they_are_the_tail_of_the_vector(transform):
    model = replace(START, free=FREE)
    space = ParameterSpace(model, transform)
    vector = space.encode(model)
    assert space.size == len(vector) == space.n_hyperparameters + 7 == len(space.labels) + 7
    assert torch.equal(vector[-7:], torch.cat([FREE["points"].reshape(-1), FREE["weight"].reshape(1)]))
    back = space.decode(vector + 1)
    assert all(torch.equal(back.free[name], FREE[name] + 1) for name in FREE)
    assert torch.equal(space.jacobian(vector)[-7:], torch.ones(7).double())
    plain = ParameterSpace(START, transform)
    assert torch.equal(plain.jacobian(plain.encode(START)), space.jacobian(vector)[:-7])


def test_a_model_changes_them_by_name_and_drops_them_with_its_rows():
    model = replace(START, free=FREE).replace({"weight": torch.tensor(4.0), "variance": torch.tensor(3.0).double()})
    assert (float(model.free["weight"]), float(model.kernel.variance)) == (4.0, 3.0)
    assert torch.equal(model.free["points"], FREE["points"])
    assert model.take_rows(torch.arange(2)).free == {}
    assert set(model.parameters()) == {"lengthscale", "variance", "noise_variance"}
    with pytest.raises(InvalidInputError, match="the model has no hyperparameter 'height'"):
        model.replace({"height": torch.tensor(1.0)})


@pytest.mark.slow
def test_the_path_of_adam_is_that_of_torch():
    model = replace(START, free=FREE)
    space = ParameterSpace(model, "softplus")
    vector = space.encode(model).requires_grad_()
    theirs = torch.optim.Adam([vector], lr=0.1)
    # The rate falls linearly to a fifth at the last of 20 steps.
    schedule = torch.optim.lr_scheduler.LinearLR(theirs, 1.0, 0.2, total_iters=19)
    for _ in range(20):
        theirs.zero_grad()
        moved = space.decode(vector)
        (-hill({**moved.parameters(), **moved.free})).backward()
        theirs.step()
        schedule.step()
    trace = new_trace()
    found = Adam(0.1, 20, final_share=0.2).run(objective(), START, trace, generator())
    torch.testing.assert_close(space.encode(found), vector.detach(), rtol=1e-12, atol=1e-12)
    constant = Adam(0.1, 20).run(objective(), START, new_trace(), generator())
    assert not torch.allclose(space.encode(constant), vector.detach(), rtol=1e-3)  # control: no decay
    assert set(trace.history[-1].hyperparameters) == {"lengthscale", "variance", "noise_variance"}


@pytest.mark.parametrize("with_values", [True, False])
def test_lbfgs_finds_the_maximum(with_values):
    found = LBFGS(100, 1e-12).run(objective(with_values=with_values), START, new_trace(), generator())
    torch.testing.assert_close(found.free["points"], TARGET, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.free["weight"], torch.tensor(2.0).double(), rtol=1e-3, atol=0)
    torch.testing.assert_close(found.kernel.lengthscale, torch.ones(2).double(), rtol=1e-3, atol=0)


class Bound(FunctionObjective):
    """A bound instead of the likelihood; it records the models passed to its starts."""

    is_likelihood = False

    def __init__(self, function, *, deterministic=True, **changes):
        super().__init__(function, **changes)
        self.deterministic, self.handed, self.rows = deterministic, [], []

    def start(self, model):
        self.handed.append(model)
        return super().start(model)

    def subset(self, rows):
        raise AssertionError("the exact likelihood has no say in a bound")

    def thin(self, rows):
        self.rows.append(rows)
        return FunctionObjective(self.function, free=self.free)


@pytest.mark.parametrize(("middle_size", "has_middle"), [(0, False), (4, True), (8, False)])
def test_auto_maximises_a_bound_from_its_own_start(middle_size, has_middle):
    bound, trace = Bound(hill, free=FREE), new_trace()
    found = Auto(middle_size=middle_size, bound_polish=LBFGS(100, 1e-12)).run(bound, START, trace, generator())
    torch.testing.assert_close(found.free["points"], TARGET, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.noise_variance, torch.tensor(0.1).double(), rtol=1e-3, atol=0)
    assert {step.stage for step in trace.history} == {"lbfgs", *(["subset 10"] if has_middle else [])}
    (handed,) = bound.handed
    assert (handed.free == {}) is not has_middle  # the result of the subset includes its free numbers
    assert (float(handed.noise_variance) == 0.3) is not has_middle


class Follower(Bound):
    """A bound whose optimal hyperparameters are close to those of the likelihood."""

    follows_likelihood = True

    def subset(self, rows):
        return _Likelihood(lambda values: hill({**values, "points": TARGET, "weight": values["variance"]}))


class _Likelihood(FunctionObjective):
    def information_is_dear(self, n_learned):
        return False

    def quick_value(self, model):
        return None

    def fisher(self, space, vector, probes):
        return 2 * torch.eye(space.size, dtype=torch.float64)


def test_auto_starts_from_subsets_where_the_bound_follows_the_likelihood():
    bound, trace = Follower(hill, free=FREE), new_trace()
    found = Auto((4,), bound_polish=LBFGS(100, 1e-12)).run(bound, START, trace, generator())
    torch.testing.assert_close(found.free["points"], TARGET, rtol=1e-4, atol=1e-4)
    assert {step.stage for step in trace.history} == {"subset 10", "lbfgs"}
    assert float(bound.handed[0].noise_variance) == pytest.approx(0.1, rel=0.3)  # the result of the subset


@pytest.mark.parametrize("middle_size", [0, 8])
def test_auto_ends_with_adam_where_minibatches_are_drawn(middle_size):
    bound, trace = Bound(hill, free=FREE, deterministic=False), new_trace()
    found = Auto(middle_size=middle_size, stochastic_polish=Adam(0.1, 300)).run(bound, START, trace, generator())
    torch.testing.assert_close(found.free["points"], TARGET, rtol=1e-3, atol=1e-3)
    assert {step.stage for step in trace.history} == {"adam", *(["subset 10"] if middle_size else [])}
    assert [len(rows) for rows in bound.rows] == [8] * bool(middle_size)


def test_they_are_learned_alone_where_every_hyperparameter_is_fixed():
    known = Model(RBF(1.0, 2.0, fixed=True).bind(2), ZeroMean(), torch.full((10,), 0.1).double())
    for optimizer in (Auto(bound_polish=LBFGS(50, 1e-10)), LBFGS(50, 1e-10), Adam(0.1, 200)):
        whole = Bound(lambda v: -(v["points"] - TARGET).square().sum(), free={"points": FREE["points"]})
        found = optimizer.run(whole, known, new_trace(), generator())
        torch.testing.assert_close(found.free["points"], TARGET, rtol=1e-3, atol=1e-3)
        assert found.kernel == known.kernel


@pytest.mark.parametrize("optimizer", [Adam(), LBFGS(), Auto()])
def test_nothing_to_learn_costs_no_evaluation(optimizer):
    known = Model(RBF(1.0, 2.0, fixed=True).bind(2), ZeroMean(), torch.full((10,), 0.1).double())
    for kind in (Bound, FunctionObjective):
        nothing = kind(lambda values: torch.zeros(()))
        assert optimizer.run(nothing, known, new_trace(), generator()).kernel == known.kernel
        assert nothing.evaluations == 0


def test_the_prior_leaves_them_alone():
    plain, wide = (ParameterSpace(model, "log") for model in (START, replace(START, free=FREE)))
    prior = WeakPrior(plain, 2, 1.0)
    vector = wide.encode(wide.template)
    assert prior.penalty(vector) == prior.penalty(vector[:-7])
    assert torch.equal(prior.gradient(vector)[:-7], prior.gradient(vector[:-7]))
    assert not prior.gradient(vector)[-7:].any()


@pytest.mark.parametrize(("optimizer", "edge"), [(Adam(0.1, 10), -0.25), (LBFGS(10), -0.5)])
def test_a_step_that_spoils_them_keeps_the_best_state(optimizer, edge):
    def cliff(values):
        return hill(values) + (torch.nan if float(values["weight"].detach()) > edge else 0.0) * values["weight"]

    with pytest.warns(FitWarning, match="the likelihood or its gradient is not finite"):
        found = optimizer.run(objective(cliff), START, new_trace(), generator())
    assert torch.isfinite(found.free["points"]).all()
    assert float(found.free["weight"]) <= edge
