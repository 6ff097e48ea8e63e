"""The covariance of several outputs: what its numbers mean, all engines, neighbours, and every inference."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from gigagp import GPRegressor, inference, kernels
from gigagp.errors import InvalidInputError
from gigagp.kernels.outputs import agreement_of
from gigagp.kernels.units import Units
from gigagp.neighbours.metric import Metric
from gigagp.products import NativeTiles, TorchTiles
from gigagp.products.engine import LowRankWeights

VARIANTS: dict[str, dict[str, Any]] = {"any": {}, "rank 0": {"rank": 0}, "rank 1": {"rank": 1}, "rank 2": {"rank": 2}}
VARIANTS["ordered"] = {"ordered": True}


def outputs(k: int, columns: list[int], **settings: Any) -> kernels.Outputs:
    """Return a kernel of k outputs with random variances and correlations of both signs."""
    draw = np.random.default_rng(k)
    n_pairs = len(kernels.Outputs(k, columns=columns, **settings).correlation_pairs())
    given = {"agreement": np.exp(draw.normal(size=n_pairs))} if n_pairs else {}
    return kernels.Outputs(k, columns=columns, variance=draw.uniform(0.4, 3, k), **given, **settings)


def correlation(kernel: kernels.Outputs) -> np.ndarray:
    B = kernel.covariance().numpy()
    return B / np.sqrt(np.outer(np.diag(B), np.diag(B)))


def rows(n: int, k: int, seed: int = 0, *, coded: bool = False) -> torch.Tensor:
    """Return uneven inputs beside the number of an output of each row, or beside a one in one of k columns."""
    draw = np.random.default_rng(seed)
    level = draw.integers(0, k, n)
    named = np.eye(k)[level] if coded else level[:, None]
    return torch.from_numpy(np.concatenate([np.exp(draw.normal(size=(n, 2))), named], 1))


@pytest.mark.parametrize("rank", [None, 1, 2])
def test_a_correlation_of_a_rank_has_the_agreements_that_made_it(rank):
    kernel = outputs(7, [0], rank=rank).bind(1)
    R = torch.from_numpy(correlation(kernel))
    found = kernels.Outputs(7, columns=[0], rank=rank, agreement=agreement_of(R, rank).tolist()).bind(1)
    rounding = 1e-10 if rank is None else 0.01  # principal factors are found in some steps
    np.testing.assert_allclose(correlation(found), R, atol=rounding)
    poorer = kernels.Outputs(7, columns=[0], rank=1, agreement=agreement_of(R, 1).tolist()).bind(1)
    assert rank == 1 or np.abs(correlation(poorer) - R.numpy()).max() > 0.05  # one function does not make it


@pytest.mark.parametrize("name", VARIANTS)
def test_variances_are_those_of_the_outputs_and_the_matrix_is_a_covariance(name):
    kernel = outputs(4, [0], **VARIANTS[name]).bind(1)
    B = kernel.covariance()
    np.testing.assert_allclose(B.diagonal(), kernel.value("variance"), rtol=1e-14)
    assert float(torch.linalg.eigvalsh(B).min()) > 0
    levels = torch.arange(4.0).double()[:, None]
    torch.testing.assert_close(kernel.block(levels, levels), B, rtol=1e-14, atol=0)
    torch.testing.assert_close(kernel.diagonal(levels), B.diagonal(), rtol=1e-14, atol=0)


def test_agreements_are_those_of_partial_correlations():
    kernel = outputs(4, [0]).bind(1)
    R = correlation(kernel)
    for (output, earlier), agreement in zip(
        kernel.correlation_pairs().tolist(), kernel.agreement.tolist(), strict=True
    ):
        chosen = [*range(earlier), earlier, output]
        P = np.linalg.inv(R[np.ix_(chosen, chosen)])
        partial = -P[-1, -2] / np.sqrt(P[-1, -1] * P[-2, -2])
        np.testing.assert_allclose(np.sqrt((1 + partial) / (1 - partial)), agreement, rtol=1e-12)


def test_a_rank_is_that_of_what_outputs_share():
    kernel = outputs(6, [0], rank=2).bind(1)
    F = kernel.factor().numpy()
    np.testing.assert_allclose(F[:, :2] @ F[:, :2].T + np.diag(np.square(np.diag(F[:, 2:]))), F @ F.T, rtol=1e-14)
    assert (np.abs(F[:, :2]) > 0).sum() == 11  # all but the first output's second function
    assert np.linalg.matrix_rank(F[:, :2]) == 2
    apart = outputs(6, [0], rank=0).bind(1).covariance()
    torch.testing.assert_close(apart, torch.diag(apart.diagonal()), rtol=0, atol=0)


def test_ordered_outputs_depend_on_the_one_before_alone():
    R = correlation(outputs(4, [0], ordered=True).bind(1))
    for low in range(4):
        for high in range(low + 1, 4):
            steps = [R[step, step + 1] for step in range(low, high)]
            np.testing.assert_allclose(R[low, high], np.prod(steps), rtol=1e-12)
    P = np.linalg.inv(R)
    np.testing.assert_allclose(P[np.abs(np.subtract.outer(range(4), range(4))) > 1], 0, atol=1e-12)
    assert abs(np.linalg.inv(correlation(outputs(4, [0]).bind(1)))[0, 2]) > 0.01  # the control


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("engine", [TorchTiles(), NativeTiles()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize(("name", "coded"), [("any", False), ("any", True), ("rank 1", False), ("ordered", True)])
def test_engines_compute_the_matrix_and_its_gradient(name, coded, engine, dtype):
    k, columns = 3, [2, 3, 4] if coded else [2]
    own = kernels.RBF(0.7, columns=[0]) * kernels.Outputs(k, columns=columns, rank=0, variance=[0.3, 0.1, 0.2])
    kernel = kernels.Matern(1.5, 1.3, columns=[0, 1], fixed=["variance"]) * outputs(k, columns, **VARIANTS[name]) + own
    X, Z = rows(50, k, coded=coded), rows(37, k, 1, coded=coded)
    kernel = kernel.bind(X.shape[1])
    if not coded:  # by the definition, entry by entry
        shared, apart = kernel.parts[0].parts, kernel.parts[1].parts
        same = X[:, 2:].long(), Z[:, 2].long()
        by_hand = shared[0].block(X, Z) * shared[1].covariance()[same]
        by_hand = by_hand + apart[0].block(X, Z) * torch.diag(apart[1].value("variance"))[same]
        torch.testing.assert_close(kernel.block(X, Z), by_hand, rtol=1e-13, atol=1e-14)
    generator, eps = torch.Generator().manual_seed(0), torch.finfo(dtype).eps
    V, L, R = (torch.randn(n, 2, generator=generator, dtype=torch.float64) for n in (37, 50, 50))
    found = engine.product(kernel, X.to(dtype), Z.to(dtype), V.to(dtype), budget=2**30)
    assert float((found.double() - kernel.block(X, Z) @ V).abs().max()) < 500 * eps
    weights = LowRankWeights(L.to(dtype), R.to(dtype))
    found = engine.gradient(kernel, X.to(dtype), X.to(dtype), weights, symmetric=False, budget=2**30)
    values = {name: value.clone().requires_grad_() for name, value in kernel.parameters().items()}
    (L * (kernel.replace(values).block(X, X) @ R)).sum().backward()
    for name, value in values.items():
        assert float((found[name] - value.grad).abs().max()) < 5000 * eps, name


def test_random_features_have_the_covariance():
    kernel = (kernels.RBF(1.3, columns=[0, 1]) * outputs(3, [2])).bind(3)
    X, generator = rows(30, 3), torch.Generator().manual_seed(0)
    phi = kernel.features(X, kernel.draw_features(40_000, 3, generator))
    assert float((phi @ phi.T - kernel.block(X, X)).abs().max()) < 0.1  # some five standard errors
    alone = outputs(3, [2], rank=1).bind(3)
    phi = alone.features(X, alone.draw_features(2, 3, generator))
    torch.testing.assert_close(phi @ phi.T, alone.block(X, X), rtol=1e-13, atol=1e-14)


def test_files_copies_and_units():
    kernel = (kernels.RBF(1.3, columns=[0, 1]) * outputs(3, [2], rank=1)).bind(3)
    assert kernels.from_dict(kernel.to_dict()) == kernel == pickle.loads(pickle.dumps(kernel))
    assert kernels.Outputs(3, columns=[2], bounds={"variance": (0.1, [1, 2, 3])}).bind(3).bounds()
    X = rows(20, 3)
    units = Units(X.mean(0), X.std(0), 4.0)
    standardized = kernel.standardized(units)
    moved = (X - units.centre) / units.scale
    for dtype in (torch.float64, torch.float32):
        block = standardized.block(moved.to(dtype), moved.to(dtype))
        assert float((4.0 * block.double() - kernel.block(X, X)).abs().max()) < 50 * torch.finfo(dtype).eps
    assert kernels.from_dict(standardized.to_dict()) == standardized
    torch.testing.assert_close(standardized.in_own_units(units).block(X, X), kernel.block(X, X), rtol=1e-13, atol=0)
    torch.testing.assert_close(standardized.admitted(moved + 0.2), moved + torch.tensor([0.2, 0.2, 0.0]).double())


@pytest.mark.parametrize("name", VARIANTS)
def test_new_outputs_are_the_mean_of_all_and_a_part_of_their_own(name):
    known, kernel = (outputs(4, [0], new_outputs=new, **VARIANTS[name]).bind(1) for new in (False, True))
    B, levels = known.covariance(), torch.tensor([0.0, 1, 2, 3, 5, 9, 9]).double()[:, None]
    K = kernel.block(levels, levels)
    torch.testing.assert_close(K[:4, :4], B, rtol=1e-14, atol=1e-15)
    torch.testing.assert_close(K[4, :4], B.mean(0), rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(K[4, 5], B.mean(), rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(K[5, 6], B.diagonal().mean(), rtol=1e-13, atol=0)  # one new output twice
    torch.testing.assert_close(kernel.diagonal(levels), K.diagonal(), rtol=1e-13, atol=0)
    assert float(torch.linalg.eigvalsh(K[:6, :6]).min()) > 0
    assert kernels.from_dict(kernel.to_dict()) == kernel != known
    torch.testing.assert_close(kernel.admitted(levels + 0.2), levels)


def test_new_outputs_in_other_inferences():
    kernel = kernels.Matern(1.5, 1.2, columns=[0, 1], fixed=["variance"]) * outputs(3, [2], new_outputs=True)
    X, points = rows(40, 3).numpy(), rows(6, 5, 1).numpy()
    y = np.random.default_rng(1).normal(size=40)
    settings = {"kernel": kernel, "optimizer": None, "noise_variance": 0.1}
    vecchia = inference.Vecchia(n_neighbors=39, prediction_neighbors=40)
    exact, near = (GPRegressor(inference=one, **settings).fit(X, y) for one in (inference.Exact(), vecchia))
    for found, wanted in zip(*(one.predict(points, return_std=True) for one in (near, exact)), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-8)
    features = GPRegressor(inference=inference.RandomFeatures(64), **settings).fit(X, y)
    with pytest.raises(InvalidInputError, match="has random features of 3 outputs alone"):
        features.predict(points)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: kernels.Outputs(2, columns=[0, 1], new_outputs=True), "one column of the output's number"),
        (lambda: kernels.Outputs(0, columns=[0]), "n_outputs"),
        (lambda: kernels.Outputs(3, columns=[0, 1]), "one column with the number of the output, or 3 columns"),
        (lambda: kernels.Outputs(3, columns=[0], rank=-1), "rank of Outputs"),
        (lambda: kernels.Outputs(3, columns=[0], rank=1, ordered=True), "rank of Outputs must be None"),
        (lambda: kernels.Outputs(3, columns=[0], rank=0, agreement=1.0), "agreement of Outputs must be None"),
        (lambda: kernels.Outputs(3, columns=[0], agreement=[1.0, 2.0]).bind(1), "3 .one for each partial correlation"),
        (lambda: kernels.Outputs(3, columns=[0], variance=[1.0, 2.0]).bind(1), "3 .one for each output"),
        (lambda: outputs(3, [2]).block(rows(5, 4), rows(5, 4)), "whole number from 0 to 2, .* got 3 in row"),
        (lambda: outputs(2, [0, 1]).block(rows(5, 2), rows(5, 2)), "a one and 1 zeros"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(InvalidInputError, match=words):
        make()


@pytest.mark.parametrize("package", ["gpytorch", "sklearn"])
def test_other_packages_have_no_such_kernel(package):
    pytest.importorskip(package)
    with pytest.raises(InvalidInputError, match="cannot be translated"):
        getattr(kernels, f"to_{package}")(outputs(3, [0]).bind(1))


def test_neighbours_are_the_rows_that_correlate_most():
    """Outputs that move against each other are as near as those that move together."""
    agreement = np.sqrt([1.95 / 0.05, 0.05 / 1.95, 1.0])
    kernel = kernels.RBF([0.5, 0.5], columns=[0, 1]) * kernels.Outputs(3, columns=[2], agreement=agreement)
    own = kernels.RBF(0.1, 0.2, columns=[0, 1]) * kernels.Outputs(3, columns=[2], rank=0)
    X = rows(300, 3)

    def found(kernel: kernels.Kernel, points: torch.Tensor) -> float:
        kernel = kernel.bind(3)
        nearest = torch.cdist(points, points).topk(11, largest=False).indices
        K = kernel.block(X, X).abs() / (kernel.diagonal(X)[:, None] * kernel.diagonal(X)).sqrt()
        best = K.topk(11).values.sum(1)
        return float((K.gather(1, nearest).sum(1) / best).min())

    assert found(kernel, Metric(kernel.bind(3), X)(X)) > 1 - 1e-9
    assert found(kernel + own, Metric((kernel + own).bind(3), X)(X)) > 0.8
    assert found(kernel, X / torch.tensor([0.5, 0.5, 1.0]).double()) < 0.8  # the control: by the number of the output


@pytest.mark.parametrize("k", [3, 10])  # with and without a compiled program
def test_vecchia_with_all_neighbours_is_exact(k):
    kernel = kernels.Matern(2.5, 1.2, columns=[0, 1], fixed=["variance"]) * outputs(k, [2])
    X = rows(40, k).numpy()
    y = np.random.default_rng(1).normal(size=40)
    settings = {"kernel": kernel, "optimizer": None, "noise_variance": 0.1}
    one, other = (
        GPRegressor(inference=method, **settings).fit(X, y)
        for method in (inference.Exact(), inference.Vecchia(n_neighbors=39, prediction_neighbors=40))
    )
    points = X + np.array([0.1, 0.0, 0.0])
    np.testing.assert_allclose(one.predict(points), other.predict(points), atol=1e-9)
    np.testing.assert_allclose(one.log_marginal_likelihood().value, other.log_marginal_likelihood().value, rtol=1e-9)


@pytest.mark.parametrize("method", [inference.Exact(), inference.Iterative(), inference.Vecchia()])
def test_a_correlation_is_learned(method):
    """Half of the rows of each of two outputs, which move against each other, with values of one far from the other."""
    draw = np.random.default_rng(0)
    x, level = draw.uniform(0, 5, 90), draw.integers(0, 2, 90)
    f = np.sin(2 * x) + np.cos(3.1 * x)
    y = np.where(level == 0, f, -3 * f) + 0.05 * draw.normal(size=90)
    kernel = kernels.Matern(2.5, columns=[0], fixed=["variance"]) * kernels.Outputs(2, columns=[1])
    gp = GPRegressor(kernel, method).fit(np.stack([x, level], 1), y)
    assert correlation(gp.kernel_.parts[1])[0, 1] < -0.9
    B = gp.kernel_.parts[1].covariance()
    assert 4 < float(B[1, 1] / B[0, 0]) < 20


def test_texts_name_the_outputs():
    draw = np.random.default_rng(0)
    names, t = np.array(["left", "right", "top"])[draw.integers(0, 3, 60)], draw.uniform(0, 5, 60)
    table = np.stack([t.astype(object), names], 1)
    y = np.sin(2 * t) * np.where(names == "top", -1, 1) + 0.05 * draw.normal(size=60)
    kernel = kernels.RBF(0.8, columns=[0]) * kernels.Outputs(3, columns=[1], agreement=[1.0, 2.0, 3.0])
    settings = {"optimizer": None, "noise_variance": 0.01, "standardize": False, "mean": "zero"}
    gp = GPRegressor(kernel, encode="auto", **settings).fit(table, y)
    numbers = {name: k for k, name in enumerate(gp.encoder_.columns[1].categories)}
    coded = np.stack([t, [numbers[name] for name in names]], 1)
    np.testing.assert_allclose(
        gp.predict(table), GPRegressor(kernel, **settings).fit(coded, y).predict(coded), atol=1e-9
    )
    with pytest.warns(UserWarning, match="not seen"), pytest.raises(InvalidInputError, match="is no output"):
        gp.predict(np.array([[1.0, "bottom"]], dtype=object))
