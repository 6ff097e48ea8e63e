"""Kernels of GPyTorch become ours and ours become theirs: same matrices, gradients, bounds, and what is learned."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from torch import Tensor

from gigagp import kernels
from gigagp.errors import GigaGPWarning, InvalidInputError
from gigagp.kernels.translation import gpytorch as translation
from helpers import points, relative_error
from random_kernels import KINDS, N_INPUTS, Numbers, assert_same_kernel, difference, exact_block, random_tree, rows

gpytorch = pytest.importorskip("gpytorch")
gk = gpytorch.kernels

LEAVES = ["RBF", "Matern", "RationalQuadratic", "Periodic", "Linear", "Constant", "Cosine"]
EXACT = 1e-12


def theirs(kernel, X: Tensor, Z: Tensor) -> Tensor:
    """Return their covariance, row by row: centred at one row, their expanded square of a distance loses no digits."""
    return torch.cat([kernel(X[i : i + 1], Z).to_dense() for i in range(len(X))])


def random_theirs(numbers: Numbers, depth: int = 3, width: int = N_INPUTS):
    """Return one of their kernels of ``width`` columns: constraints, fixed numbers, active columns at every level."""
    kind = numbers.choose(4) if depth else 0
    if kind == 3:
        return constrained(gk.ScaleKernel(random_theirs(numbers, depth - 1, width)), numbers)
    if kind:
        parts = [random_theirs(numbers, depth - 1, width) for _ in range(2)]
        return gk.AdditiveKernel(*parts) if kind == 1 else gk.ProductKernel(*parts)
    columns = [None, [width - 1], list(range(width))[::-1]][numbers.choose(3)]
    active = width if columns is None else len(columns)
    settings = {} if columns is None else {"active_dims": columns}
    ard = {"ard_num_dims": active} if numbers.choose(2) else {}
    made = [
        lambda: gk.RBFKernel(**settings, **ard),
        lambda: gk.MaternKernel(nu=[0.5, 1.5, 2.5][numbers.choose(3)], **settings, **ard),
        lambda: gk.RQKernel(**settings, **ard),
        lambda: gk.PeriodicKernel(**settings, **ard),
        lambda: gk.LinearKernel(**settings, **ard),
        lambda: gk.ConstantKernel(),
        lambda: gk.CosineKernel(active_dims=[0]),
    ]
    return constrained(made[numbers.choose(len(made))](), numbers)


def constrained(kernel, numbers: Numbers):
    """Give the kernel's own numbers random values, constraints, and freedom to be learned."""
    kernel.double()
    for name, raw in list(kernel.named_parameters(recurse=False)):
        low, high = 0.1 * float(numbers.positive()), 20.0 + float(numbers.positive())
        constraint = [
            lambda: gpytorch.constraints.Positive(),
            lambda low=low: gpytorch.constraints.GreaterThan(low),
            lambda low=low, high=high: gpytorch.constraints.Interval(low, high),
            lambda low=low: gpytorch.constraints.GreaterThan(low, transform=None, initial_value=low + 0.3),
        ][numbers.choose(4)]()
        kernel.register_constraint(name, constraint.double())
        raw.data = kernel.__getattr__(f"{name}_constraint").inverse_transform(low + 0.1 + numbers.positive(*raw.shape))
        raw.requires_grad_(numbers.choose(3) > 0)
    return kernel


@pytest.mark.each
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_ours_become_theirs_and_come_back(seed, kind):
    X = rows(kind, seed=seed)
    kernel = random_tree(Numbers(seed, scales=X.abs().mean(0)), LEAVES).bind(N_INPUTS)
    found = kernels.to_gpytorch(kernel)
    Z = torch.cat([X, X + X.std(0)])
    assert difference(exact_block(kernel, X, Z), theirs(found, X, Z)) < EXACT
    assert all(raw.dtype == torch.float64 for raw in found.parameters())
    back = kernels.from_gpytorch(found).bind(N_INPUTS)
    assert_same_kernel(back, kernel)
    assert difference(exact_block(back, X, Z), exact_block(kernel, X, Z)) < EXACT


@pytest.mark.each
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_theirs_become_ours_and_come_back(seed, kind):
    kernel = random_theirs(Numbers(100 + seed))
    X = rows(kind, seed=seed) / (1.0 if kind != "badly scaled" else 100.0)
    found = kernels.from_gpytorch(kernel).bind(N_INPUTS)
    assert difference(exact_block(found, X, X), theirs(kernel, X, X)) < EXACT
    assert difference(theirs(kernels.to_gpytorch(found), X, X), theirs(kernel, X, X)) < EXACT
    learned = sum(raw.numel() for raw in kernel.parameters() if raw.requires_grad)
    free = found.parameters().keys() - found.fixed_parameters()
    assert sum(found.parameters()[name].numel() for name in free) == learned


def test_the_comparison_fails_for_another_kernel(monkeypatch):
    X = rows("normal")
    kernel = kernels.Periodic(0.7, 1.3, 2.0).bind(N_INPUTS)
    almost = kernel.replace({"lengthscale": kernel.lengthscale * (1 + 1e-11)})
    right = theirs(kernels.to_gpytorch(kernel), X, X)
    assert difference(exact_block(kernel, X, X), right) < EXACT < difference(exact_block(almost, X, X), right)
    # their lengthscale is the square of ours
    wrong = translation._LEAVES | {
        "PeriodicKernel": (
            kernels.Periodic,
            {"lengthscale": translation._LENGTHSCALE, "period": translation.Name("period_length")},
        )
    }
    monkeypatch.setattr(translation, "_LEAVES", wrong)
    assert difference(theirs(kernels.to_gpytorch(kernel), X, X), right) > 0.01


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.RBF([0.7, 1.3], 1.7, columns=[2, 0]),
        kernels.RBF(0.7, 1.7, ard=False),
        kernels.Matern(0.5, [0.7, 1.3, 0.4], 1.7),
        kernels.Matern(1.5, [0.7, 1.3, 0.4], 1.7, bounds={"lengthscale": (0.1, 30.0)}),
        kernels.Matern(2.5, 0.7, 1.7, ard=False),
        kernels.RationalQuadratic([0.7, 1.3, 0.4], 1.7, 0.6),
        kernels.Periodic([0.7, 1.3, 0.4], 1.7, [2.0, 3.1, 1.7]),
        kernels.Periodic(0.7, 1.7, 2.0, ard=False),
        kernels.Cosine(1.7, 2.3, columns=[1]),
        kernels.Linear([0.3, 0.5, 1.1]),
        kernels.Linear(0.5, ard=False),
        kernels.Constant(1.3),
    ],
    ids=repr,
)
def test_gradients_agree(kernel):
    kernel = kernel.bind(3)
    X, Z = points(6, 3, seed=1).requires_grad_(), points(5, 3, seed=2)
    weights = points(6, 5, seed=3)
    module = kernels.to_gpytorch(kernel)
    raws = dict(module.named_parameters())
    found = torch.autograd.grad((theirs(module, X, Z) * weights).sum(), [X, *raws.values()], allow_unused=True)
    by_theirs = {}
    for (name, raw), gradient in zip(raws.items(), found[1:], strict=True):
        owner = module.base_kernel if name.startswith("base_kernel.") else module
        constraint = getattr(owner, f"{name.removeprefix('base_kernel.')}_constraint")
        point = raw.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(constraint.transform(point).sum(), point)
        by_theirs[name.rpartition("raw_")[2]] = (gradient / slope).reshape(-1)
    values = {name: value.clone().requires_grad_() for name, value in kernel.parameters().items()}
    scalar = (kernel.replace(values).block(X, Z) * weights).sum()
    mine = torch.autograd.grad(scalar, [X, *values.values()], allow_unused=True)
    assert mine[0] is found[0] is None or relative_error(mine[0], found[0]) < EXACT
    names = {"period": "period_length"}
    if isinstance(kernel, kernels.Constant):
        names["variance"] = "constant"
    elif not isinstance(kernel, kernels.Linear):
        names["variance"] = "outputscale"
    for (name, value), gradient in zip(values.items(), mine[1:], strict=True):
        factor = 1.0
        if isinstance(kernel, kernels.Periodic) and name == "lengthscale":
            factor = 2 * value.detach()  # theirs is the square
        if isinstance(kernel, kernels.Cosine) and name == "period":
            factor = 0.5
        assert relative_error(by_theirs[names.get(name, name)] * factor, gradient.reshape(-1)) < EXACT, name


@pytest.mark.parametrize("value", [1e-9, 1e-3, 0.5, 19.999999, 20.0, 20.0 + 1e-9, 20.0 + 3e-9, 25.0, 1e6])
@pytest.mark.parametrize("bounds", [None, (1e-9, None), (None, 2e6), (1e-9, 1e6)])
def test_values_are_exact_through_every_transform(value, bounds):
    kernel = kernels.RBF(value, bounds=None if bounds is None else {"lengthscale": bounds}).bind(1)
    module = kernels.to_gpytorch(kernel)
    inner = module.base_kernel
    assert float(inner.lengthscale.detach()) == pytest.approx(value, rel=1e-14)
    assert math.isfinite(float(inner.raw_lengthscale.detach()))
    assert_same_kernel(kernels.from_gpytorch(module).bind(1), kernel)


def test_constraints_become_bounds_in_their_own_precision():
    inner = gk.RBFKernel(ard_num_dims=2, lengthscale_constraint=gpytorch.constraints.Interval(0.1, [5.0, 7.0]))
    scale = gk.ScaleKernel(inner, outputscale_constraint=gpytorch.constraints.LessThan(3.0))
    scale.outputscale = 1.5
    found = kernels.from_gpytorch(scale)
    single = float(torch.tensor(0.1))
    assert found.bounds()["lengthscale"].to_plain() == [single, [5.0, 7.0]]
    assert found.bounds()["variance"].to_plain() == [None, 3.0]
    assert float(found.variance) == float(scale.outputscale.detach().double())
    with pytest.raises(InvalidInputError, match="only some values of its lengthscale have an upper bound"):
        kernels.to_gpytorch(kernels.RBF([1.0, 2.0], bounds={"lengthscale": (None, [3.0, None])}).bind(2))


def test_the_default_kernel_of_botorch_comes_with_a_warning_about_its_prior():
    prior = gpytorch.priors.LogNormalPrior(loc=1.5, scale=1.7)
    constraint = gpytorch.constraints.GreaterThan(2.5e-2, transform=None, initial_value=prior.mode)
    kernel = gk.RBFKernel(ard_num_dims=3, lengthscale_prior=prior, lengthscale_constraint=constraint)
    with pytest.warns(GigaGPWarning, match="lengthscale_prior of the GPyTorch kernel is left out"):
        found = kernels.from_gpytorch(kernel)
    assert torch.equal(found.lengthscale, kernel.lengthscale.detach().double()[0])
    assert found.fixed_parameters() == {"variance"}


def test_columns_are_selected_as_theirs_select():
    X = rows("normal")
    inner = gk.RBFKernel(active_dims=[1]) + gk.MaternKernel(active_dims=[0], ard_num_dims=1)
    whole = gk.ScaleKernel(inner, active_dims=[2, 0]).double()  # so RBF sees column 0, Matern column 2
    found = kernels.from_gpytorch(whole)
    assert [leaf.columns for leaf in found.leaves() if leaf.shapes.get("lengthscale")] == [(0,), (2,)]
    assert difference(exact_block(found.bind(3), X, X), theirs(whole, X, X)) < EXACT
    # An inner selection below a scale is the scale's: it is applied once.
    twice = gk.ScaleKernel(gk.ScaleKernel(gk.RBFKernel(active_dims=[1]))).double()
    assert difference(exact_block(kernels.from_gpytorch(twice).bind(3), X, X), theirs(twice, X, X)) < EXACT


def test_kernels_of_one_input_stay_so():
    for kernel in (gk.CosineKernel(), gk.RBFKernel(ard_num_dims=1)):
        found = kernels.from_gpytorch(kernel)
        assert found.n_inputs == 1
        with pytest.raises(InvalidInputError, match="bound to data with 1"):
            found.bind(2)


class Mine(gk.RBFKernel):
    pass


def shared():
    part = gk.RBFKernel()
    return part * part


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: gk.RBFKernel() + gk.ScaleKernel(gk.PolynomialKernel(2)),
            r"kernels\[1\].base_kernel .*PolynomialKernel is none",
        ),
        (lambda: gk.SpectralMixtureKernel(2), "SpectralMixtureKernel is none of RBFKernel"),
        (Mine, "Mine is none of"),
        (lambda: gk.RBFKernel(batch_shape=torch.Size([2])), r"a batch of kernels, of shape \(2,\)"),
        (lambda: gk.CosineKernel(active_dims=[0, 1]), "with several inputs"),
        (shared, r"shares lengthscale with ProductKernel.kernels\[0\]"),
        (lambda: kernels.RBF(), "kernel of from_gpytorch must be a gpytorch.kernels.Kernel; got RBF"),
    ],
)
def test_what_has_no_counterpart_here_is_named(make, words):
    with pytest.raises(InvalidInputError, match=words):
        kernels.from_gpytorch(make())


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ((kernels.RBF() + kernels.White()).bind(2), r"part 1 of kernel, White\(.*likelihoods have the noise"),
        (kernels.Cosine(columns=[0, 1]).bind(2), "CosineKernel is one of one input"),
        (kernels.Categorical(columns=[1]).bind(2), "Categorical.*it has no equivalent"),
        (kernels.Linear(1.0, centre=2.0).bind(2), r"its centre is \[2.0\]"),
        (kernels.RBF().with_groups([0, 0, 1]).bind(3), "share one lengthscale"),
        (kernels.RBF(ard=False).bind(2).with_input_weights([1.0, 2.0]), "different units behind one lengthscale"),
        (kernels.RBF(), r"call kernel.bind\(n_inputs\) first"),
        ("rbf", "must be a kernel of gigagp; got str"),
    ],
)
def test_what_has_no_counterpart_there_is_named(kernel, words):
    with pytest.raises(InvalidInputError, match=words):
        kernels.to_gpytorch(kernel)


def test_without_gpytorch_the_error_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "gpytorch", None)
    monkeypatch.delitem(sys.modules, "gpytorch.kernels")
    for function in (kernels.from_gpytorch, kernels.to_gpytorch):
        with pytest.raises(
            InvalidInputError, match=f'{function.__name__} needs GPyTorch. Install it with pip install "gpy'
        ):
            function(kernels.RBF())
