"""Gradient estimators: unbiased with converged solves, equal to the exact gradient where they can be, with controls."""

from __future__ import annotations

import pytest
import torch

from gigagp import inference, kernels, solvers
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.exact.exact import ExactObjective
from gigagp.inference.gradients import Exact, Hutchinson, Pathwise
from gigagp.model.means import ConstantMean
from gigagp.model.model import NOISE, Model
from gigagp.operators import KernelMatrix
from helpers import all_kernels, draw_targets, generator, points, reference_matrix, within_standard_errors

BUDGET = 2**30
ALL = all_kernels()
X = points(60, 4)
Y = draw_targets(ALL["matern32"], X, 0.1, columns=2) + 1.0
ESTIMATORS = {
    "hutchinson": Hutchinson(16),
    "rademacher": Hutchinson(16, law="rademacher"),
    "exact prior": Pathwise(16, prior="exact"),
    "joint features": Pathwise(16, n_features=200, law="joint"),
    "balanced features": Pathwise(16, n_features=200),
}


def model_of(kernel, noise=0.1):
    return Model(kernel.bind(X.shape[1]), ConstantMean(), torch.as_tensor(noise, dtype=torch.float64))


def estimates(estimator, model, *, redraw=True, repeats=150, matrix_model=None):
    """Return flat gradients by redrawn probes and exact solves, shape (repeats, p), and their names."""
    matrix = KernelMatrix(model.kernel, X, model.noise_variance)
    H = matrix.to_dense()
    solved = torch.linalg.solve(H, Y)
    draws = []
    for seed in range(repeats):
        probes = estimator.draw(model, X, generator(seed))
        right = probes.right_hand_sides(model, matrix, BUDGET)
        found = estimator.gradient(matrix, solved, torch.linalg.solve(H, right), right)
        draws.append(torch.cat([found[name].reshape(-1) for name in model.parameters()]))
    return torch.stack(draws)


def exact_gradient(model):
    """Return the same gradient from the dense inverse."""
    matrix = KernelMatrix(model.kernel, X, model.noise_variance)
    H = matrix.to_dense()
    found = Exact().from_factor(matrix, torch.linalg.solve(H, Y), torch.linalg.cholesky(H))
    return torch.cat([found[name].reshape(-1) for name in model.parameters()])


@pytest.mark.parametrize("name", ["matern32", "sum", "product", "growing noise"])
def test_exact_is_the_derivative_of_the_likelihood(name):
    model = model_of(ALL[name])
    values = [value.clone().requires_grad_() for value in model.parameters().values()]
    moved = model.replace(dict(zip(model.parameters(), values, strict=True)))
    H = reference_matrix(moved.kernel, X, moved.noise_variance)
    likelihood = -0.5 * ((Y * torch.linalg.solve(H, Y)).sum() + Y.shape[1] * torch.linalg.slogdet(H).logabsdet)
    expected = torch.autograd.grad(likelihood, values)
    found = exact_gradient(model)
    torch.testing.assert_close(found, torch.cat([one.reshape(-1) for one in expected]), rtol=1e-8, atol=1e-8)


@pytest.mark.few(1)
@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
@pytest.mark.parametrize("name", ["matern32", "sum"])
def test_estimates_are_unbiased(name, estimator):
    """This includes redrawn features, however few, because their mean covariance is the kernel; with two targets."""
    model = model_of(ALL[name])
    assert within_standard_errors(estimates(estimator, model), exact_gradient(model))


@pytest.mark.slow
def test_the_published_frequencies_are_biased():
    """Control: the law of independent coordinates is another kernel, so its error never averages out."""
    model = model_of(kernels.Matern(1.5, 2.0, 1.0), noise=0.01)
    independent = estimates(Pathwise(16, n_features=200, law="independent"), model)
    assert not within_standard_errors(independent, exact_gradient(model))
    assert within_standard_errors(estimates(Pathwise(16, n_features=200), model), exact_gradient(model))


def test_frozen_features_are_biased_and_frozen_exact_draws_are_not():
    """Control: few fixed frequencies with many weights, as warm starts use them, have another covariance."""
    model = model_of(kernels.Matern(1.5, 2.0, 1.0), noise=0.01)
    frozen = Pathwise(4000, n_features=50).draw(model, X, generator(3))
    matrix = KernelMatrix(model.kernel, X, model.noise_variance)
    H = matrix.to_dense()
    right = frozen.right_hand_sides(model, matrix, BUDGET)
    solutions = torch.linalg.solve(H, right)
    # The mean of u u' is the inverse of H for exact draws only.
    energies = (solutions * right).sum(0)
    assert not within_standard_errors(energies, len(X))
    exact = Pathwise(4000, prior="exact").draw(model, X, generator(3)).right_hand_sides(model, matrix, BUDGET)
    assert within_standard_errors((torch.linalg.solve(H, exact) * exact).sum(0), len(X))


@pytest.mark.parametrize("estimator", [Hutchinson(7), Pathwise(7, 100)])
def test_the_noise_component_in_closed_form(estimator):
    """Check d log p / d sigma^2 = (|v|^2 - mean_j A_j' C_j) / 2, the first verification test of the notes."""
    model = model_of(ALL["matern32"])
    matrix = KernelMatrix(model.kernel, X, model.noise_variance)
    right = estimator.draw(model, X, generator()).right_hand_sides(model, matrix, BUDGET)
    targets, solutions = points(60, 1, seed=4), points(60, 7, seed=5)
    found = estimator.gradient(matrix, targets, solutions, right)[NOISE]
    left, other = estimator.trace_pair(solutions, right)
    expected = 0.5 * (targets.square().sum() - (left * other).sum() / 7)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)


def test_many_probes_approach_the_exact_gradient():
    model = model_of(ALL["matern32"])
    for estimator in (Hutchinson(20_000), Pathwise(20_000, prior="exact")):
        found = estimates(estimator, model, repeats=1)[0]
        torch.testing.assert_close(found, exact_gradient(model), rtol=0.05, atol=0.5)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("noise", [0.01, 1.0])
def test_pathwise_probes_never_vary_more_than_gaussian_ones_and_rademacher_ones_can_vary_less(noise):
    """With exact draws the variance of a probe is 2 tr((H^-1 D)^2); for the noise it equals that of Gaussian probes."""
    model = model_of(kernels.Matern(1.5, 1.0, 1.0), noise)
    laws = (Pathwise(1, prior="exact"), Hutchinson(1), Hutchinson(1, law="rademacher"))
    pathwise, gaussian, signs = (estimates(one, model, repeats=300).var(0) for one in laws)
    assert (pathwise < 1.5 * gaussian).all()  # a ratio of two estimates has a standard error of 12 %
    noise_place = len(pathwise) - 1
    assert list(model.parameters())[-1] == NOISE
    assert signs[noise_place] < 0.8 * pathwise[noise_place]


# Laws of the probes ---------------------------------------------------------------------------------------------------


def test_laws_of_hutchinson():
    for law in ("gaussian", "rademacher"):
        vectors = Hutchinson(5000, law=law).draw(model_of(ALL["rbf"]), X, generator()).vectors
        products = vectors[:5, None] * vectors[None, :5]
        assert within_standard_errors(products.movedim(2, 0) + 1e-300, torch.eye(5).double(), errors=4.5)
    assert set(vectors.unique().tolist()) == {-1.0, 1.0}


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("prior", ["exact", "features"])
def test_pathwise_right_hand_sides_have_the_covariance_of_the_rows(prior):
    """Check with white parts, a separate noise for each row, and redrawn features."""
    noise = torch.linspace(0.05, 1.0, 60).double()
    model = model_of(kernels.Matern(1.5, 2.0) + kernels.White(0.2), noise)
    matrix = KernelMatrix(model.kernel, X, model.noise_variance)
    n_draws, n_probes = (1, 6000) if prior == "exact" else (600, 10)
    rows = slice(0, 6)
    batches = []
    for seed in range(n_draws):
        probes = Pathwise(n_probes, 40, prior=prior).draw(model, X, generator(seed))
        right = probes.right_hand_sides(model, matrix, BUDGET)[rows]
        products = (right[:, None] * right[None]).movedim(2, 0)
        batches.append(products if prior == "exact" else products.mean(0)[None])
    products = torch.cat(batches)
    expected = matrix.to_dense()[rows, rows]
    assert within_standard_errors(products, expected, errors=4.5)
    assert not within_standard_errors(products, expected - 0.2 * torch.eye(6), errors=4.5)  # control: no white part


@pytest.mark.parametrize("prior", ["exact", "features"])
def test_right_hand_sides_move_smoothly_with_the_hyperparameters(prior):
    probes = Pathwise(3, 100, prior=prior).draw(model_of(ALL["matern32"]), X, generator())

    def at(scale):
        model = model_of(ALL["matern32"])
        model = model.replace({name: value * scale for name, value in model.parameters().items()})
        matrix = KernelMatrix(model.kernel, X, model.noise_variance)
        return probes.right_hand_sides(model, matrix, BUDGET)

    assert torch.equal(at(1.0), at(1.0))
    small, smaller = ((at(1 + step) - at(1.0)).norm() for step in (1e-5, 1e-6))
    assert float(small / smaller) == pytest.approx(10, rel=0.02)
    # More noise changes only the contribution of the noise draws.
    model = model_of(ALL["matern32"])
    louder = model.replace({NOISE: 4 * model.noise_variance})
    moved = probes.right_hand_sides(louder, KernelMatrix(louder.kernel, X, louder.noise_variance), BUDGET) - at(1.0)
    torch.testing.assert_close(moved, model.noise_variance.sqrt() * probes.noise, rtol=1e-6, atol=1e-7)


def test_probes_do_not_depend_on_hyperparameters_where_they_were_drawn():
    first = Pathwise(3, 50).draw(model_of(ALL["matern32"]), X, generator(2))
    wide = model_of(kernels.Matern(1.5, 9.0, 4.0), 2.0)
    second = Pathwise(3, 50).draw(wide, X, generator(2))
    assert torch.equal(first.noise, second.noise)
    assert torch.equal(first.prior.weights, second.prior.weights)
    matrix = KernelMatrix(wide.kernel, X, wide.noise_variance)
    assert torch.equal(first.right_hand_sides(wide, matrix, BUDGET), second.right_hand_sides(wide, matrix, BUDGET))


# Through the objective ------------------------------------------------------------------------------------------------


@pytest.mark.few(3)
@pytest.mark.parametrize("estimator", [Exact(), *ESTIMATORS.values()], ids=["exact", *ESTIMATORS])
def test_the_iterative_objective_with_finished_solves(estimator):
    """The trend is at its optimum, so the mean of the estimator is the gradient of the exact objective."""
    table = TrainingTable(X, Y, ConstantMean(), BUDGET)
    model = model_of(ALL["matern32"])
    expected = ExactObjective(table).evaluate(model).gradient
    settings = inference.Iterative(solver=solvers.Cholesky(), gradient=estimator, warm_start=False)
    objective = settings.objective(table, generator(1))
    repeats = 1 if isinstance(estimator, Exact) else 60
    runs = [objective.evaluate(model).gradient for _ in range(repeats)]
    for name, value in expected.items():
        found = torch.stack([run[name] for run in runs])
        if repeats == 1:
            torch.testing.assert_close(found[0], value, rtol=1e-9, atol=1e-9)
        else:
            assert within_standard_errors(found, value, errors=4.5)
