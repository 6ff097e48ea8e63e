"""Kernels of scikit-learn become ours and ours become theirs: same matrices, gradients, bounds, and what is learned."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from gigagp import GPRegressor, kernels
from gigagp.errors import FitWarning, InvalidInputError
from gigagp.kernels.translation import scikit_learn as translation
from helpers import close, points
from random_kernels import KINDS, N_INPUTS, Numbers, assert_same_kernel, difference, exact_block, random_tree, rows

LEAVES = ["RBF", "Matern", "RationalQuadratic", "Linear", "Constant", "White"]
EXACT = 1e-12


def ours(kernel, X: Tensor) -> Tensor:
    """Return our covariance of rows with their white part."""
    return exact_block(kernel, X, X) + torch.diag(kernel.white(X))


def theirs(kernel, X: Tensor) -> Tensor:
    return torch.from_numpy(kernel(X.numpy()))


def random_theirs(numbers: Numbers, depth: int = 3, d: int = N_INPUTS):
    """Return one of their kernels, of one or of all inputs, with bounds and fixed numbers."""
    kind = numbers.choose(3) if depth else 0
    if kind:
        return (sk.Sum if kind == 1 else sk.Product)(*(random_theirs(numbers, depth - 1, d) for _ in range(2)))

    def one(name: str, *shape: int):
        value = numbers.positive(*shape).numpy()
        pairs = np.stack([value / 3, value * 3], axis=-1)
        bounds = ["fixed", (1e-5, 1e5), tuple(pairs.reshape(-1)) if pairs.size == 2 else pairs][numbers.choose(3)]
        return {name: value if shape and value.size > 1 else float(value.reshape(-1)[0]), f"{name}_bounds": bounds}

    lengths = one("length_scale", *[(), (d,)][numbers.choose(2)])
    made = [
        lambda: sk.RBF(**lengths),
        lambda: sk.Matern(**lengths, nu=[0.5, 1.5, 2.5, math.inf][numbers.choose(4)]),
        lambda: sk.RationalQuadratic(**one("length_scale"), **one("alpha")),
        lambda: sk.DotProduct(**one("sigma_0")),
        lambda: sk.ConstantKernel(**one("constant_value")),
        lambda: sk.WhiteKernel(**one("noise_level")),
        lambda: sk.ExpSineSquared(**one("length_scale"), **one("periodicity")),
    ]
    return made[numbers.choose(len(made) - (d > 1))]()


@pytest.mark.few(16)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_theirs_become_ours_and_come_back(seed, kind):
    d = 1 if seed % 3 == 0 else N_INPUTS
    kernel, X = random_theirs(Numbers(seed), d=d), rows(kind, seed=seed, d=d)
    found = kernels.from_sklearn(kernel).bind(d)
    assert difference(ours(found, X), theirs(kernel, X)) < EXACT
    back = kernels.to_sklearn(found)
    assert difference(theirs(back, X), theirs(kernel, X)) < EXACT
    assert back.theta.size == kernel.theta.size
    np.testing.assert_allclose(np.sort(back.bounds, axis=0), np.sort(_one_by_one(kernel), axis=0), atol=1e-12)
    assert_same_kernel(kernels.from_sklearn(back).bind(d), kernels.from_sklearn(kernels.to_sklearn(found)).bind(d))


def _one_by_one(kernel) -> np.ndarray:
    """Return their bounds, with those of a root as the bounds of its square."""
    found = []
    for name, part in kernel.get_params().items():
        if name.endswith("_bounds") and not (isinstance(part, str) and part == "fixed"):
            count = np.size(kernel.get_params()[name.removesuffix("_bounds")])
            pairs = np.log(np.broadcast_to(np.atleast_2d(part), (count, 2)))
            found.append(2 * pairs if name.endswith("sigma_0_bounds") else pairs)
    return np.concatenate(found) if found else np.zeros(0)


@pytest.mark.each
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_ours_become_theirs_and_come_back(seed, kind):
    X = rows(kind, seed=seed)
    kernel = random_tree(Numbers(50 + seed, scales=X.abs().mean(0)), LEAVES, plain=True).bind(N_INPUTS)
    found = kernels.to_sklearn(kernel)
    assert difference(ours(kernel, X), theirs(found, X)) < EXACT
    back = kernels.from_sklearn(found).bind(N_INPUTS)
    assert difference(ours(kernel, X), ours(back, X)) < EXACT
    learned = kernel.parameters().keys() - kernel.fixed_parameters()
    assert sum(kernel.parameters()[name].numel() for name in learned) == found.theta.size


def test_the_comparison_fails_for_another_kernel(monkeypatch):
    X = rows("normal", d=1)
    kernel = kernels.Periodic(0.7, 1.3, 2.0).bind(1)
    almost = kernel.replace({"lengthscale": kernel.lengthscale * (1 + 1e-11)})
    right = theirs(kernels.to_sklearn(kernel), X)
    assert difference(ours(kernel, X), right) < EXACT < difference(ours(almost, X), right)
    swapped = {"lengthscale": "periodicity", "period": "length_scale"}
    monkeypatch.setattr(translation, "_LEAVES", translation._LEAVES | {"ExpSineSquared": (kernels.Periodic, swapped)})
    assert difference(theirs(kernels.to_sklearn(kernel), X), right) > 0.01


@pytest.mark.parametrize("seed", range(8))
def test_gradients_agree(seed):
    d = 1 if seed % 2 else N_INPUTS
    kernel, X = random_theirs(Numbers(200 + seed), d=d), points(8, d, seed=seed)
    found = kernels.from_sklearn(kernel).bind(d)
    back = kernels.to_sklearn(found)  # whose hyperparameters are ours, one by one
    weights = points(8, 8, seed=seed + 1)
    expected = np.einsum("ijk,ij->k", back(X.numpy(), eval_gradient=True)[1], weights.numpy())
    values = {name: value.clone().requires_grad_() for name, value in found.parameters().items()}
    scalar = (ours(found.replace(values), X) * weights).sum()
    gradients = torch.autograd.grad(scalar, list(values.values()), allow_unused=True)
    by_log = [
        (value.detach() * gradient).reshape(-1)
        for (name, value), gradient in zip(values.items(), gradients, strict=True)
        if name not in found.fixed_parameters()
    ]
    flat = torch.cat(by_log).numpy() if by_log else np.zeros(0)
    np.testing.assert_allclose(np.sort(flat), np.sort(expected), rtol=1e-12, atol=1e-12)


def test_a_constant_factor_is_the_variance():
    found = kernels.from_sklearn(2.0 * sk.RBF([1.0, 3.0], (0.1, 10.0)) + sk.WhiteKernel(0.1, "fixed"))
    first, second = found.parts
    assert first == kernels.RBF(
        [1.0, 3.0], 2.0, bounds={"lengthscale": ([0.1, 0.1], [10.0, 10.0]), "variance": (1e-5, 1e5)}
    )
    assert second == kernels.White(0.1, fixed=True)
    fixed = kernels.from_sklearn(sk.ConstantKernel(2.0, "fixed") * sk.Matern(nu=2.5))
    assert fixed.fixed_parameters() == {"variance"}
    assert float(fixed.variance) == 2.0


def test_numbers_without_bounds_get_those_of_scikit_learn():
    found = kernels.to_sklearn(kernels.RBF(3.0, 1e7, bounds={"lengthscale": (0.5, None)}).bind(1))
    assert found.k2.length_scale_bounds == (0.5, 1e5)
    assert found.k1.constant_value_bounds == (1e-5, 1e12)


def test_a_fitted_kernel_predicts_the_same_there():
    X = points(40, 2).numpy()
    y = np.sin(X[:, 0]) + 0.1 * X[:, 1] + 0.1 * points(40, 1, seed=1)[:, 0].numpy()
    gp = GPRegressor(kernels.RBF() + kernels.White(), mean="zero", standardize=False).fit(X, y)
    other = GaussianProcessRegressor(kernels.to_sklearn(gp.kernel_), alpha=0.0, optimizer=None).fit(X, y)
    condition = np.linalg.cond(other.kernel_(X))
    assert condition < 1e5  # data without noise would leave nothing to compare
    close(gp.predict(X[:5] + 0.1), other.predict(X[:5] + 0.1), condition=condition)
    close(gp.log_marginal_likelihood().value, other.log_marginal_likelihood(), condition=condition)


def test_a_fit_keeps_to_their_bounds():
    X = points(60, 1).numpy()
    kernel = kernels.from_sklearn(1.0 * sk.RBF(1.0, (0.9, 1.1)))
    with pytest.warns(FitWarning, match="explains the targets as noise"):
        gp = GPRegressor(kernel).fit(X, np.sin(7 * X[:, 0]))
    assert float(gp.kernel_.lengthscale) == pytest.approx(0.9)


def test_a_periodic_kernel_stays_with_one_input():
    found = kernels.from_sklearn(sk.ExpSineSquared(0.7, 2.0))
    assert found.n_inputs == 1
    with pytest.raises(InvalidInputError, match="bound to data with 1"):
        found.bind(2)


class Mine(sk.RBF):
    pass


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (sk.RBF() + sk.Exponentiation(sk.RBF(), 2), r"kernel.k2, RBF\(length_scale=1\) \*\* 2, cannot"),
        (sk.Matern(nu=3.5), "its nu must be 0.5, 1.5, 2.5 or infinite"),
        (sk.PairwiseKernel(), "it has no equivalent"),
        (sk.CompoundKernel([sk.RBF()]), "it has no equivalent"),
        (Mine(), "it has no equivalent"),
        (sk.DotProduct(0.0), "its sigma_0 is 0"),
        (sk.RBF(1e-6), r"lengthscale of RBF must lie within its bounds \(1e-05, 100000.0\)"),
        ("rbf", "kernel of from_sklearn must be of sklearn.gaussian_process.kernels; got str"),
    ],
    ids=str,
)
def test_what_has_no_counterpart_here_is_named(kernel, words):
    with pytest.raises(InvalidInputError, match=words):
        kernels.from_sklearn(kernel)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (kernels.Constant() + kernels.RBF(columns=[1]), "part 1 of kernel, RBF.*its kernels depend on all inputs"),
        (kernels.Periodic(), "its ExpSineSquared is the same for one input only"),
        (kernels.Linear([1.0, 2.0]), "one variance for all inputs"),
        (kernels.RationalQuadratic([1.0, 2.0]), "one lengthscale for all inputs"),
        (kernels.Cosine(), "Cosine.*it has no equivalent"),
        (kernels.Linear(1.0, ard=False, centre=2.0), r"its centre is \[2.0\]"),
    ],
    ids=repr,
)
def test_what_has_no_counterpart_there_is_named(kernel, words):
    with pytest.raises(InvalidInputError, match=words):
        kernels.to_sklearn(kernel.bind(2))


def test_what_is_not_bound_is_refused():
    with pytest.raises(InvalidInputError, match=r"call kernel.bind\(n_inputs\) first"):
        kernels.to_sklearn(kernels.RBF())
