"""The Fisher information against the dense formula, the derivative products in it, and the weak prior."""

from __future__ import annotations

import math

import pytest
import torch

from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import ExactObjective
from gigagp.kernels import (
    RBF,
    Constant,
    DampedTrend,
    IntegratedWiener,
    Linear,
    Matern,
    Oscillator,
    Outputs,
    Periodic,
    White,
)
from gigagp.model.means import ZeroMean
from gigagp.model.model import NOISE, Model
from gigagp.optimization import ParameterSpace, fisher
from gigagp.optimization.fisher import damped_inverse, derivative_products, with_known
from gigagp.optimization.prior import WeakPrior
from gigagp.products.engine import weights_of
from gigagp.products.torch_tiles import TorchTiles
from helpers import all_kernels, generator, points, reference_matrix, relative_error

ALL = all_kernels()


def dense_derivatives(kernel, X):
    """Return dK/dtheta for every value of every hyperparameter, with white parts, by autograd on the formulas."""
    names = list(kernel.parameters())

    def matrix(*values):
        return reference_matrix(kernel.replace(dict(zip(names, values, strict=True))), X)

    found = torch.autograd.functional.jacobian(matrix, tuple(kernel.parameters().values()))
    return {name: one.reshape(len(X), len(X), -1).movedim(2, 0) for name, one in zip(names, found, strict=True)}


@pytest.mark.few(7)
@pytest.mark.parametrize("name", ALL)
def test_derivative_products_agree_with_autograd(name):
    kernel, X, V = ALL[name], points(25, 4), points(25, 3, seed=1)
    X[3] = X[7]  # coincident points
    products = derivative_products(kernel, X, V)
    expected = dense_derivatives(kernel, X)
    assert products.keys() == expected.keys()
    for parameter, derivative in expected.items():
        assert products[parameter].shape == (kernel.parameters()[parameter].numel(), 25, 3)
        # Distances are differences of squares; at two equal rows Matern-1/2 takes the root of their rounding.
        limit = 1e-6 if name == "matern12" else 1e-9
        assert relative_error(products[parameter], derivative @ V) < limit or not products[parameter].any()


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "kernel",
    [
        Periodic([0.8, 0.5, 2.0, 1.0], 1.3, [0.9, 2.0, 3.0, 1.5]),
        Periodic(0.8, 1.3, 0.9, ard=False),
        RBF(1.0, 1.0, fixed=("variance",)) * Periodic(1.0, 0.3, 0.7),
        Matern(1.5) * (RBF(columns=[1]) + Linear()) * 2.0 + White(0.1),
        RBF() * (Matern(2.5) + White(0.3)),
        RBF() * Outputs(3, columns=[3], variance=[0.3, 1.0, 2.0]) + White(0.1) * Outputs(3, columns=[3], rank=0),
        Matern(1.5) * Outputs(3, columns=[3], rank=1) * 2.0,
        Outputs(3, columns=[3], ordered=True, agreement=[0.4, 3.0]) + RBF(),
    ],
)
def test_derivatives_of_products_are_those_of_their_parts_times_the_others(kernel):
    kernel, X, V = kernel.bind(4), points(25, 4), points(25, 3, seed=1)
    X[:, 3] = torch.arange(25) % 3  # the output of each row, where there are several
    weights = points(25, 25, seed=2)
    plain, weighted = derivative_products(kernel, X, V), derivative_products(kernel, X, V, weights)
    expected = dense_derivatives(kernel, X)
    assert plain.keys() == weighted.keys() == expected.keys()
    for name, derivative in expected.items():
        scale = max(float(derivative.abs().max()), 1.0) * 25  # of a sum of 25 products
        assert float((plain[name] - derivative @ V).abs().max()) < 1e-11 * scale
        assert float((weighted[name] - (derivative * weights) @ V).abs().max()) < 1e-11 * scale
    assert any(bool((plain[name] - weighted[name]).abs().max() > 1e-3) for name in plain), "the control"


SERIES = {
    "trend": IntegratedWiener(0.7, centre=0.3),
    "damped": DampedTrend(1.4, 0.7, centre=0.3),
    "swings": Oscillator(0.7, 3.1, 4.0),
    "no swings": Oscillator(0.7, 3.1, 0.2),
    "hardly any": Oscillator(0.7, 3.1, 0.5 + 1e-6),
    "swings that change": Oscillator(0.7, 3.1, 4.0) * Matern(1.5, 4.0, 1.2, fixed=["variance"]),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", SERIES)
def test_kernels_of_series_have_the_derivatives_of_autograd(name, monkeypatch):
    kernel = SERIES[name].bind(1)
    X, V = points(25, 1), points(25, 3, seed=1)
    X[3] = X[7]
    names = list(kernel.parameters())

    def matrix(*values):
        return kernel.replace(dict(zip(names, values, strict=True))).block(X, X)

    slopes = torch.autograd.functional.jacobian(matrix, tuple(kernel.parameters().values()))
    expected = {one: slope.reshape(25, 25, -1).movedim(2, 0) for one, slope in zip(names, slopes, strict=True)}
    weights = points(25, 25, seed=2)
    sums = TorchTiles().gradient(kernel, X, X, weights_of(weights), symmetric=False, budget=2**30)
    monkeypatch.setattr(fisher, "_by_differentiation", None)  # there is a closed form
    products = derivative_products(kernel, X, V)
    assert products.keys() == expected.keys()
    for parameter, slope in expected.items():
        assert relative_error(products[parameter], slope @ V) < 1e-9
        assert relative_error(sums[parameter].reshape(-1), (slope * weights).sum((1, 2))) < 1e-9
        assert relative_error(products[parameter], 1.001 * slope @ V) > 1e-4  # the control


def test_a_class_that_replaces_block_does_not_inherit_derivatives():
    class Doubled(Oscillator):
        def block(self, X, Z):
            return 2 * super().block(X, Z)

    X = points(5, 1)
    assert Oscillator().bind(1).derivatives(X, X) is not None
    assert Doubled().bind(1).derivatives(X, X) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("where", [30.0, 1e3, 1e6, 1e9])
def test_derivative_products_hold_for_clumps_far_apart(where, dtype, monkeypatch):
    """Squares of coordinates would leave nothing of the distances within a clump."""
    X, V = points(60, 2), points(60, 3, seed=1)
    X[:15, 0] += where
    X = X.to(dtype)
    kernel = Matern(1.5, [1.5, 1.4], 0.75).bind(2)
    squares = (X.double()[:, None] - X.double()[None]).square()
    lengths = kernel.parameters()["lengthscale"]
    roots = (3 * (squares / lengths.square()).sum(2)).sqrt()
    expected = (2.25 * (-roots).exp()[:, :, None] * squares / lengths**3).movedim(2, 0) @ V

    def error():
        return relative_error(derivative_products(kernel, X, V.to(dtype))["lengthscale"].double(), expected)

    # The metric of a search need not be exact, and float32 has few digits of rows that far from zero.
    assert error() < {torch.float32: 0.03, torch.float64: 1e-3}[dtype]
    if where == 1e9:
        monkeypatch.setattr(fisher, "_INEXACT", math.inf)  # the control
        assert error() > 10


def objective_of(kernel, n=70, noise=0.1, n_targets=1):
    X = points(n, 4)
    table = TrainingTable(X, points(n, n_targets, seed=9), ZeroMean(), 2**30)
    model = Model(kernel, ZeroMean(), torch.as_tensor(noise, dtype=torch.float64))
    return ExactObjective(table), model, X


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "transform"),
    [
        ("matern32", "softplus"),
        ("matern columns", "log"),
        ("rational quadratic", "log"),
        ("sum", "softplus"),
        ("nested", "log"),
        ("growing noise", "log"),
    ],
)
def test_the_information_is_unbiased(name, transform):
    """Batches of probes agree with tr(H^-1 D_k H^-1 D_l) / 2; without the probes' weight they would not."""
    objective, model, X = objective_of(ALL[name], n=40, n_targets=2)
    space = ParameterSpace(model, transform)
    vector = space.encode(model)
    objective.evaluate(model)
    batches = torch.stack(
        [objective.fisher(space, vector, points(len(X), 16, seed=100 + batch)) for batch in range(50)]
    )
    derivatives = {**dense_derivatives(model.kernel, X), NOISE: torch.eye(len(X)).double()[None]}
    inverse = torch.linalg.inv(reference_matrix(model.kernel, X, 0.1))
    scaled = torch.cat([inverse @ derivatives[parameter] for parameter in space.names])
    slope = space.jacobian(vector)
    expected = torch.einsum("kij,lji->kl", scaled, scaled) * slope[:, None] * slope[None, :]  # two targets: 2 / 2
    error = batches.std(0) / math.sqrt(len(batches))
    # Fifty batches, up to a hundred entries: 4.5 standard errors of a Student t are rarer than one in a thousand.
    assert bool(((batches.mean(0) - expected).abs() <= 4.5 * error + 1e-10).all())
    assert not bool(((batches.mean(0) - 1.5 * expected).abs() <= 4.5 * error + 1e-10).all())
    one = batches[0]
    torch.testing.assert_close(one, one.T)
    assert float(torch.linalg.eigvalsh(one).min()) > -1e-9 * float(one.diagonal().max())


def test_the_information_is_the_curvature_of_the_expected_likelihood():
    """At the true model, the mean over targets of minus the Hessian is the information (finite differences)."""
    objective, model, X = objective_of(RBF(1.5, 1.2, ard=False).bind(4), n=40)
    H = reference_matrix(model.kernel, X, 0.1)
    space = ParameterSpace(model, "log")
    vector = space.encode(model)
    # Targets whose outer products sum to n times H have exactly the expected likelihood.
    objective = ExactObjective(TrainingTable(X, torch.linalg.cholesky(H) * math.sqrt(len(X)), ZeroMean(), 2**30))

    def gradient(vector):
        moved = space.decode(vector)
        return space.pull_back(objective.evaluate(moved).gradient, vector) / len(X)

    hessian = torch.stack(
        [(gradient(vector + 1e-5 * unit) - gradient(vector - 1e-5 * unit)) / 2e-5 for unit in torch.eye(space.size)]
    )
    objective.evaluate(model)
    information = objective.fisher(space, vector, points(40, 4000, seed=3)) / len(X)
    torch.testing.assert_close(information, -hessian, rtol=0.1, atol=0.02 * float(hessian.abs().max()))


def test_known_noise_has_no_place_in_the_information():
    objective, model, _ = objective_of(ALL["matern32"], noise=torch.linspace(0.1, 1, 70))
    space = ParameterSpace(model, "log")
    objective.evaluate(model)
    found = objective.fisher(space, space.encode(model), points(70, 2))
    assert found.shape == (5, 5)


def test_damped_inverse():
    information = torch.diag(torch.tensor([4.0, 1.0, 0.0])).double()
    expected = torch.diag(torch.tensor([1 / 4.5, 1 / 1.5, 2.0])).double()
    torch.testing.assert_close(damped_inverse(information, 0.5), expected)


# The prior ------------------------------------------------------------------------------------------------------------


def test_the_prior_is_normal_on_the_log_scales():
    kernel = (Matern(1.5, 1.0) + Linear(0.3) * Periodic() + Constant() + White()).bind(3)
    model = Model(kernel, ZeroMean(), torch.tensor(0.1).double())
    space = ParameterSpace(model, "log")
    prior = WeakPrior(space, 3, target_variance=4.0)
    centre = dict(zip(space.labels, prior.centre.exp().tolist(), strict=True))
    assert centre["0.lengthscale[1]"] == pytest.approx(math.sqrt(3))
    assert centre["0.variance"] == pytest.approx(2.0)  # the standard deviation is that of the targets
    assert centre["1.1.period[0]"] == pytest.approx(1.0)
    assert centre[NOISE] == pytest.approx(0.6)
    vector = space.encode(model)
    differences = [
        (prior.penalty(vector + 1e-6 * unit) - prior.penalty(vector - 1e-6 * unit)) / 2e-6
        for unit in torch.eye(space.size)
    ]
    torch.testing.assert_close(prior.gradient(vector), torch.tensor(differences).double(), rtol=1e-6, atol=1e-7)
    assert prior.penalty(prior.centre) == 0
    # One width away from the centre costs half a nat.
    away = prior.centre.clone()
    away[0] += prior.precision[0] ** -0.5
    assert prior.penalty(away) == pytest.approx(0.5)


def test_the_prior_moves_with_the_units_of_the_targets():
    """Targets a thousand times larger have the same penalty at standard deviations a thousand times larger."""
    model = Model(Matern(1.5, 0.7, 2.0).bind(2), ZeroMean(), torch.tensor(0.3).double())
    larger = Model(Matern(1.5, 0.7, 2e6).bind(2), ZeroMean(), torch.tensor(0.3e6).double())
    space = ParameterSpace(model, "log")
    plain, scaled = WeakPrior(space, 2, 1.0), WeakPrior(space, 2, 1e6)
    assert scaled.penalty(space.encode(larger)) == pytest.approx(plain.penalty(space.encode(model)))


def test_the_draws_come_from_a_generator():
    assert torch.equal(points(3, 2), points(3, 2))
    assert not torch.equal(torch.randn(3, generator=generator(0)), torch.randn(3, generator=generator(1)))


def test_a_known_diagonal_scales_an_information_and_leaves_out_what_few_rows_mistake():
    draws = torch.randn(5, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    information = draws @ draws.T
    unknown = torch.full((5,), torch.nan, dtype=torch.float64)
    torch.testing.assert_close(with_known(information, unknown), information)
    known = unknown.clone()
    known[1], known[3] = information[1, 1], 1e-4 * information[3, 3]  # the rows tell of 1 alike, and of 3 far too much
    found = with_known(information, known)
    torch.testing.assert_close(found.diagonal()[[1, 3]], known[[1, 3]])
    kept = torch.tensor([0, 1, 2, 4])
    torch.testing.assert_close(found[kept][:, kept], information[kept][:, kept])
    scale = found.diagonal().rsqrt()
    correlations = scale[:, None] * found * scale
    assert correlations[3, kept].abs().max() <= 1e-4
    assert torch.linalg.eigvalsh(found).min() > 0
