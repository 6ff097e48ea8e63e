"""The metric in which rows are near: that of the part of a kernel that decides who is correlated."""

from __future__ import annotations

import pytest
import torch

from gigagp import kernels
from gigagp.neighbours.metric import Metric
from gigagp.neighbours.search import LARGEST
from helpers import points

X = points(50, 3)


def distances(points):
    return torch.cdist(points, points)


def assert_near_in(kernel, expected):
    torch.testing.assert_close(distances(Metric(kernel.bind(3), X)(X)), distances(expected))


def test_a_stationary_kernel_measures_in_lengthscales():
    scale = torch.tensor([0.5, 2.0, 7.0], dtype=torch.float64)
    assert_near_in(kernels.Matern(1.5, scale.tolist(), 3.0), X / scale)
    assert_near_in(kernels.RBF(0.3, columns=[2]), X[:, [2]] / 0.3)


def test_the_part_with_the_shortest_scale_decides():
    short, long = kernels.RBF(0.2, 0.4), kernels.RBF(5.0, 1.0)
    assert_near_in(long + short, X / 0.2)
    assert_near_in(short + long + kernels.White(3.0) + kernels.Constant(5.0), X / 0.2)


def test_a_negligible_part_does_not_decide():
    long = kernels.RBF(5.0, 1.0)
    assert_near_in(long + kernels.RBF(0.2, 0.009), X / 5.0)
    assert_near_in(long + kernels.RBF(0.2, 0.012), X / 0.2)  # the control


def test_a_product_has_the_coordinates_of_its_factors():
    kernel = kernels.RBF(0.5, columns=[0]) * kernels.Matern(2.5, 2.0, columns=[1, 2]) * kernels.Constant(0.1)
    assert_near_in(kernel, torch.cat([X[:, :1] / 0.5, X[:, 1:] / 2.0], 1))
    assert_near_in(kernels.RBF(1.0) * kernels.RBF(2.0), torch.cat([X, X / 2.0], 1))


def test_a_period_is_a_circle():
    metric = Metric(kernels.Periodic(0.7, 1.0, 2.0).bind(3), X)
    torch.testing.assert_close(metric(X), metric(X + 2.0), rtol=0, atol=1e-9)
    assert float((metric(X) - metric(X + 1.0)).norm()) > 1


def test_a_linear_kernel_has_its_inputs():
    assert_near_in(kernels.Linear([0.25, 1.0, 4.0]), X * torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))


class Own(kernels.Leaf):
    """A kernel that is not stationary, with a distance that only it knows."""

    shapes = {"variance": False}  # noqa: RUF012

    def __init__(self, variance=None):
        super().__init__({"variance": variance})

    def block(self, X, Z):
        return self.value("variance", X) * torch.minimum(X[:, :1].exp(), Z[:, :1].exp().T)

    def diagonal(self, X):
        return self.value("variance", X) * X[:, 0].exp()


@pytest.mark.parametrize("kernel", [kernels.Constant(2.0), kernels.White(1.0), Own(1.0)], ids=repr)
def test_a_kernel_without_distances_uses_the_inputs(kernel):
    assert_near_in(kernel, X)


def test_rows_beyond_all_distances_are_the_farthest():
    metric = Metric(kernels.RBF(1e-5).bind(3), X)
    far = torch.tensor([[1e300, -1e308, 0.0]], dtype=torch.float64)
    assert metric(far).tolist() == [[LARGEST, -LARGEST, 0.0]]


def test_points_have_no_graph_and_are_float64():
    found = Metric(kernels.RBF(1.0).bind(3), X)(X.float().requires_grad_())
    assert found.dtype == torch.float64
    assert not found.requires_grad
