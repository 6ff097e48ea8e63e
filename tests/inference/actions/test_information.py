"""Information of actions: golden values, optimal eigenvectors, entropies by dense algebra; distances of spans."""

from __future__ import annotations

import math

import pytest
import torch

from gigagp.errors import InvalidInputError
from gigagp.inference.computation_aware.actions import (
    DenseActions,
    RowActions,
    grassmann_distance,
    largest_mutual_information,
    mutual_information,
    posterior_entropy,
)
from gigagp.operators import KernelMatrix
from helpers import generator, reference_block
from twelve_rows import KERNEL, NOISE, ROWS, blocks

F64 = {"dtype": torch.float64}
MATRIX = KernelMatrix(KERNEL, ROWS, NOISE)


def test_golden_information():
    assert mutual_information(MATRIX, blocks()) == pytest.approx(4.804509826479026, rel=1e-10)
    for count, expected in {1: 1.76863678, 2: 3.37542300, 3: 4.80450983}.items():
        nested = DenseActions(blocks().dense()[:, :count])
        assert mutual_information(MATRIX, nested) == pytest.approx(expected, rel=1e-8)
    everything = RowActions(torch.arange(12), 12)
    assert mutual_information(MATRIX, everything) == pytest.approx(8.178486336359631, rel=1e-10)
    assert largest_mutual_information(MATRIX, 3) == pytest.approx(5.183239470583556, rel=1e-10)


def test_nothing_tells_more_than_the_top_eigenvectors():
    values, vectors = torch.linalg.eigh(MATRIX.to_dense())
    top = DenseActions(vectors[:, -3:])
    most = largest_mutual_information(MATRIX, 3)
    assert values.flip(0)[:4].tolist() == pytest.approx([6.102701439672, 3.337136850051, 1.560301265058, 0.74431333009])
    assert mutual_information(MATRIX, top) == pytest.approx(most, rel=1e-12)
    assert most == pytest.approx(0.5 * float((values[-3:] / NOISE).log().sum()), rel=1e-12)
    for seed in range(1000):
        S = torch.randn(12, 3, generator=generator(seed), **F64)
        assert mutual_information(MATRIX, DenseActions(S)) <= most + 1e-10


def test_information_is_the_loss_of_entropy():
    K = reference_block(KERNEL, ROWS, ROWS)
    S = blocks().dense()
    left = K - K @ S @ torch.linalg.solve(S.T @ (K + NOISE * torch.eye(12, **F64)) @ S, S.T @ K)

    def entropy(covariance):
        return 0.5 * float(torch.linalg.slogdet(2 * math.pi * math.e * covariance).logabsdet)

    assert posterior_entropy(MATRIX, blocks()) == pytest.approx(entropy(left), rel=1e-9)
    assert mutual_information(MATRIX, blocks()) == pytest.approx(entropy(K) - entropy(left), rel=1e-9)


def test_information_with_a_noise_for_each_row():
    noise = torch.linspace(0.05, 0.4, 12, **F64)
    matrix = KernelMatrix(KERNEL, ROWS, noise)
    S = blocks().dense()
    K = reference_block(KERNEL, ROWS, ROWS)
    left = K - K @ S @ torch.linalg.solve(S.T @ (K + torch.diag(noise)) @ S, S.T @ K)
    expected = 0.5 * (torch.linalg.slogdet(K).logabsdet - torch.linalg.slogdet(left).logabsdet)
    assert mutual_information(matrix, blocks()) == pytest.approx(float(expected), rel=1e-9)
    with pytest.raises(InvalidInputError, match="one positive noise variance"):
        largest_mutual_information(matrix, 2)


def test_without_noise_information_is_infinite():
    with pytest.raises(InvalidInputError, match="must have positive noise"):
        mutual_information(KernelMatrix(KERNEL, ROWS), blocks())


def test_golden_distance_of_spans():
    top = torch.linalg.eigh(MATRIX.to_dense()).eigenvectors[:, -3:]
    assert grassmann_distance(blocks().dense(), top) == pytest.approx(0.9154761758940965, rel=1e-10)
    angles = torch.tensor([0.231768, 0.322094, 0.825007])
    assert grassmann_distance(top, blocks().dense()) == pytest.approx(float(angles.norm()), rel=1e-6)


def test_distances_of_spans_that_are_known():
    basis = torch.eye(5, **F64)
    assert grassmann_distance(basis[:, :2], basis[:, 2:4]) == pytest.approx(math.pi / 2 * math.sqrt(2), rel=1e-12)
    turned = torch.cos(torch.tensor(1e-9, **F64)) * basis[:, 0] + 1e-9 * basis[:, 4]
    assert grassmann_distance(basis[:, :1], turned[:, None]) == pytest.approx(1e-9, rel=1e-6)  # no digits are lost
    mixed = basis[:, :3] @ torch.randn(3, 3, generator=generator(1), **F64)
    assert grassmann_distance(mixed, basis[:, :3]) < 1e-12
    assert grassmann_distance(basis[:, :3], basis[:, 1:2]) < 1e-12  # one span contains the other
    assert grassmann_distance(basis[:, 1:2], basis[:, :3]) < 1e-12
    with pytest.raises(InvalidInputError, match="matrices with the same number of rows"):
        grassmann_distance(basis, basis[:3])
