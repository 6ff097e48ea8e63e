"""Matern-3/2 kernel products and gradients in every library that ``kernel_products.py`` compares.

A peer converts a `Problem` to a call without arguments, and this call is timed. Work that does not depend on the
hyperparameters (conversions, compilation) is done before it, or in a first call that is not timed. All peers get the
same inputs and lengthscales and scale the inputs themselves. A product is K(X[rows], X) @ V. A gradient is that of
y[rows]' K y with respect to d lengthscales, variance and noise, in natural units. ``rows`` are the first rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigagp.kernels import Kernel, Matern
from gigagp.products import Engine, LowRankWeights, NativeTiles, TorchTiles

Call = Callable[[], Any]
BUDGET = 2**30
#: Tile sizes of the JAX implementation.
JAX_ROWS, JAX_COLUMNS = 256, 1024


@dataclass(frozen=True)
class Problem:
    """Inputs X (n, d), right-hand sides V (n, s) whose first column holds the targets y, and hyperparameters."""

    X: np.ndarray
    V: np.ndarray
    lengthscale: np.ndarray
    variance: float
    dtype: str

    @classmethod
    def random(cls, n: int, d: int, s: int, dtype: str) -> Problem:
        """Return normal inputs, a smooth target with noise, and normal further columns."""
        generator = np.random.default_rng(d)
        X = generator.standard_normal((n, d))
        y = np.sin(X[:, 0]) + X[:, -1] / 2 + 0.3 * generator.standard_normal(n)
        V = np.column_stack([y, generator.standard_normal((n, s - 1))])
        lengthscale = np.sqrt(2 * d) * generator.uniform(0.7, 1.4, d)
        return cls(X.astype(dtype), V.astype(dtype), lengthscale, 1.3, dtype)

    @property
    def y(self) -> np.ndarray:
        """Targets, shape (n,)."""
        return np.ascontiguousarray(self.V[:, 0])

    def tensors(self) -> list[Tensor]:
        """Return X, V and the lengthscales in the dtype of the problem."""
        return [torch.from_numpy(array.astype(self.dtype)) for array in (self.X, self.V, self.lengthscale)]

    def noise_gradient(self, rows: int) -> float:
        """Return the derivative with respect to the noise, the last entry of every peer's gradient."""
        return float(self.y[:rows] @ self.y[:rows])


class Peer:
    """Interface of an implementation.

    Attributes
    ----------
    whole : bool
        Whether it always uses all rows, because it exploits symmetry and its memory does not grow with their number.
    matrices : int
        Number of matrices of size (rows, n) that exist at a time.
    note : str
        A remark for readers of the results.
    """

    whole = False
    matrices = 1
    note = ""

    def product(self, problem: Problem, rows: int) -> Call | None:
        """Return the call that multiplies, or None if the peer only computes gradients."""
        raise NotImplementedError

    def gradient(self, problem: Problem, rows: int) -> Call:
        """Return the call that differentiates."""
        raise NotImplementedError

    def columns(self, n: int, rows: int, *, gradient: bool) -> int:
        """Return the number of columns that the call computes."""
        return n

    def most_rows(self, n: int, d: int, itemsize: int, memory: int, *, gradient: bool) -> int:
        """Return the number of rows that fit into ``memory`` bytes."""
        return n if self.whole else min(n, memory // (self.matrices * itemsize * n))


class Tiles(Peer):
    """An engine of this package."""

    whole = True

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.note = engine.name

    def product(self, problem: Problem, rows: int) -> Call:
        """Return a call of the engine's product."""
        X, V, kernel = self._prepare(problem)
        return partial(self.engine.product, kernel, X, X, V, budget=BUDGET)

    def gradient(self, problem: Problem, rows: int) -> Call:
        """Return a call of the engine's gradient."""
        X, V, kernel = self._prepare(problem)
        y = V[:, :1].contiguous()

        def call() -> np.ndarray:
            found = self.engine.gradient(kernel, X, X, LowRankWeights(y, y), symmetric=True, budget=BUDGET)
            noise = float(y.square().sum())
            return np.array([*found["lengthscale"].tolist(), float(found["variance"]), noise])

        return call

    @staticmethod
    def _prepare(problem: Problem) -> tuple[Tensor, Tensor, Kernel]:
        X, V, _ = problem.tensors()
        kernel = Matern(1.5, lengthscale=problem.lengthscale, variance=problem.variance)
        return X, V, kernel.bind(X.shape[1])


class DenseTorch(Peer):
    """The formula written directly with whole matrices, and autograd."""

    matrices = 10

    def product(self, problem: Problem, rows: int) -> Call:
        """Return a call that multiplies with the matrix."""
        X, V, lengthscale = problem.tensors()

        @torch.no_grad()
        def call() -> Tensor:
            return self._kernel(X, rows, lengthscale, problem.variance) @ V

        return call

    def gradient(self, problem: Problem, rows: int) -> Call:
        """Return a call that differentiates by autograd."""
        X, V, lengthscale = problem.tensors()
        y = V[:, 0].contiguous()
        lengthscale.requires_grad_()
        variance = torch.tensor(problem.variance, dtype=X.dtype, requires_grad=True)

        def call() -> np.ndarray:
            value = y[:rows] @ (self._kernel(X, rows, lengthscale, variance) @ y)
            by_lengthscale, by_variance = torch.autograd.grad(value, [lengthscale, variance])
            return np.array([*by_lengthscale.tolist(), float(by_variance), problem.noise_gradient(rows)])

        return call

    def _kernel(self, X: Tensor, rows: int, lengthscale: Tensor, variance: Tensor | float) -> Any:
        scaled = X * (3**0.5 / lengthscale)
        left, squares = scaled[:rows], scaled.square().sum(1)
        q = squares[:rows, None] + squares - 2 * left @ scaled.T
        t = q.clamp_min(1e-12).sqrt()
        return variance * (1 + t) * torch.exp(-t)


class KeOps(DenseTorch):
    """LazyTensors of KeOps on torch tensors."""

    matrices = 1

    def __init__(self) -> None:
        self.lazy_tensor = import_module("pykeops.torch").LazyTensor
        import_module("pykeops").set_verbose(False)

    def _kernel(self, X: Tensor, rows: int, lengthscale: Tensor, variance: Tensor | float) -> Any:
        scaled = X * (3**0.5 / lengthscale)
        left = self.lazy_tensor(scaled[:rows, None, :].contiguous())
        t = left.sqdist(self.lazy_tensor(scaled[None])).sqrt()
        return _Scaled((1 + t) * (-t).exp(), variance)


@dataclass(frozen=True)
class _Scaled:
    """A symbolic matrix times a number that may need a gradient; outside the sum the factor costs nothing."""

    matrix: Any
    factor: Tensor | float

    def __matmul__(self, V: Tensor) -> Tensor:
        return self.factor * (self.matrix @ (V if V.ndim == 2 else V[:, None])).reshape(-1, *V.shape[1:])


class GPyTorch(Peer):
    """``ScaleKernel(MaternKernel) @ V``."""

    matrices = 12
    module = "gpytorch.kernels"

    def __init__(self) -> None:
        self.gpytorch = import_module("gpytorch")
        self.matern = import_module(self.module).MaternKernel

    def product(self, problem: Problem, rows: int) -> Call:
        """Return a call that multiplies with the lazy kernel matrix."""
        X, V, _ = problem.tensors()
        kernel = self._kernel(problem)

        @torch.no_grad()
        def call() -> Tensor:
            with self.gpytorch.settings.max_cholesky_size(0):  # below this size, KeOps kernels do not use KeOps
                return kernel(X[:rows], X) @ V

        return call

    def gradient(self, problem: Problem, rows: int) -> Call:
        """Return a call that differentiates by autograd."""
        X, V, _ = problem.tensors()
        y = V[:, :1].contiguous()
        kernel = self._kernel(problem)
        raw = [kernel.base_kernel.raw_lengthscale, kernel.raw_outputscale]

        def call() -> np.ndarray:
            with self.gpytorch.settings.max_cholesky_size(0):
                value = (y[:rows] * (kernel(X[:rows], X) @ y)).sum()
                found = torch.autograd.grad(value, raw)
            # natural = softplus(raw), whose derivative is the sigmoid of raw
            natural = [g / torch.sigmoid(p.detach()) for g, p in zip(found, raw, strict=True)]
            return np.array([*natural[0].flatten().tolist(), float(natural[1]), problem.noise_gradient(rows)])

        return call

    def _kernel(self, problem: Problem) -> Any:
        kernel = self.gpytorch.kernels.ScaleKernel(self.matern(nu=1.5, ard_num_dims=problem.X.shape[1]))
        kernel = kernel.to(getattr(torch, problem.dtype))
        kernel.base_kernel.lengthscale = torch.from_numpy(problem.lengthscale)
        kernel.outputscale = torch.tensor(problem.variance, dtype=torch.float64)  # a float would be rounded to float32
        return kernel


class GPyTorchKeOps(GPyTorch):
    """GPyTorch with ``gpytorch.kernels.keops.MaternKernel``."""

    matrices = 1
    module = "gpytorch.kernels.keops"

    def __init__(self) -> None:
        import_module("pykeops").set_verbose(False)  # raises if KeOps is absent, where gpytorch would go on without it
        super().__init__()


class JaxBlocks(Peer):
    """A jitted scan over tiles; gradients by autodiff with recomputed tiles, or by hand as in the engines."""

    def __init__(self, *, by_hand: bool = False) -> None:
        self.jax, self.jnp = import_module("jax"), import_module("jax.numpy")
        self.jax.config.update("jax_enable_x64", True)
        self.by_hand = by_hand

    def product(self, problem: Problem, rows: int) -> Call | None:
        """Return a compiled call that multiplies."""
        if self.by_hand:
            return None
        X, V, lengthscale = self._arrays(problem)
        scan = partial(self._scan, rows=rows)

        def function(lengthscale: Any, X: Any, V: Any) -> Any:
            scaled = X * (3**0.5 / lengthscale)
            return problem.variance * scan(self._multiply, scaled, V, V.shape[1])

        compiled = self.jax.jit(function)
        return lambda: compiled(lengthscale, X, V).block_until_ready()

    def gradient(self, problem: Problem, rows: int) -> Call:
        """Return a compiled call that differentiates."""
        X, V, lengthscale = self._arrays(problem)
        y = V[:, :1]
        function = self._hand_gradient if self.by_hand else self.jax.grad(self._value, argnums=(0, 1))
        compiled = self.jax.jit(partial(function, rows=rows))
        variance = self.jnp.asarray(problem.variance, X.dtype)

        def call() -> np.ndarray:
            by_lengthscale, by_variance = compiled(lengthscale, variance, X, y)
            return np.array([*np.asarray(by_lengthscale), float(by_variance), problem.noise_gradient(rows)])

        return call

    def _arrays(self, problem: Problem) -> list[Any]:
        return [self.jnp.asarray(array.numpy()) for array in problem.tensors()]

    def _distances(self, left: Any, right: Any) -> Any:
        squares = (left * left).sum(1)[:, None] + (right * right).sum(1)
        return self.jnp.sqrt(self.jnp.maximum(squares - 2 * left @ right.T, 1e-12))

    def _multiply(self, left: Any, right: Any, V: Any) -> Any:
        t = self._distances(left, right)
        return ((1 + t) * self.jnp.exp(-t)) @ V

    def _scan(self, tile: Callable[..., Any], scaled: Any, V: Any, width: int, rows: int) -> Any:
        """Return the sums over columns of ``tile(row points, column points, V of the columns)``, (rows, width)."""
        lax, jnp = self.jax.lax, self.jnp
        columns = (scaled.reshape(-1, JAX_COLUMNS, scaled.shape[1]), V.reshape(-1, JAX_COLUMNS, V.shape[1]))

        def block(points: Any) -> Any:
            start = jnp.zeros((JAX_ROWS, width), scaled.dtype)
            return lax.scan(lambda total, part: (total + tile(points, *part), None), start, columns)[0]

        return lax.map(block, scaled[:rows].reshape(-1, JAX_ROWS, scaled.shape[1])).reshape(rows, width)

    def _value(self, lengthscale: Any, variance: Any, X: Any, y: Any, *, rows: int) -> Any:
        scaled = X * (3**0.5 / lengthscale)
        product = self._scan(self.jax.checkpoint(self._multiply), scaled, y, 1, rows)
        return variance * (y[:rows] * product).sum()

    def _hand_gradient(self, lengthscale: Any, variance: Any, X: Any, y: Any, *, rows: int) -> Any:
        """Use dk / dlog lengthscale_k = exp(-t) (x_k - z_k)^2 for scaled inputs: products of exp(-t) by y and y Z."""
        lax, jnp, d = self.jax.lax, self.jnp, X.shape[1]
        scaled = X * (3**0.5 / lengthscale)
        right = jnp.concatenate([y, y * scaled], 1)
        columns = (scaled.reshape(-1, JAX_COLUMNS, d), right.reshape(-1, JAX_COLUMNS, d + 1))

        def block(part: Any) -> Any:
            points, left = part

            def step(total: Any, tile: Any) -> Any:
                t = self._distances(points, tile[0])
                decay = jnp.exp(-t)
                sums = jnp.concatenate([decay @ tile[1], (t * decay) @ tile[1][:, :1]], 1)
                return total + sums, left[:, 0] @ decay

            return lax.scan(step, jnp.zeros((JAX_ROWS, d + 2), X.dtype), columns)

        left, here = y[:rows], scaled[:rows]
        blocks = (here.reshape(-1, JAX_ROWS, d), left.reshape(-1, JAX_ROWS, 1))
        sums, by_column = lax.map(block, blocks)
        sums, by_column = sums.reshape(rows, d + 2), by_column.reshape(-1, X.shape[0]).sum(0)
        by_log = (left * here * (here * sums[:, :1] - 2 * sums[:, 1 : d + 1])).sum(0)
        by_log += (by_column * y[:, 0]) @ (scaled * scaled)
        return variance * by_log / lengthscale, (left * (sums[:, :1] + sums[:, -1:])).sum()


class ScikitLearn(Peer):
    """``sklearn.gaussian_process.kernels``; gradients are arrays (n, n, d + 2), available only for square blocks."""

    matrices = 6
    note = "float64 for every dtype"

    def __init__(self) -> None:
        self.kernels = import_module("sklearn.gaussian_process.kernels")

    def product(self, problem: Problem, rows: int) -> Call:
        """Return a call that evaluates the matrix and multiplies."""
        kernel = self._kernel(problem)
        return lambda: kernel(problem.X[:rows], problem.X) @ problem.V

    def gradient(self, problem: Problem, rows: int) -> Call:
        """Return a call that contracts the array of derivatives."""
        X, y = problem.X[:rows], problem.y[:rows].astype(np.float64)
        kernel = self._kernel(problem) + self.kernels.WhiteKernel(1.0)
        natural = np.array([*problem.lengthscale, problem.variance, 1.0])

        def call() -> np.ndarray:
            by_log = np.tensordot(np.outer(y, y), kernel(X, eval_gradient=True)[1])
            by_log[:-1] = np.roll(by_log[:-1], -1)  # the variance comes first in scikit-learn
            return by_log / natural

        return call

    def columns(self, n: int, rows: int, *, gradient: bool) -> int:
        """Return the number of rows for gradients, because the kernel differentiates only square matrices."""
        return rows if gradient else n

    def most_rows(self, n: int, d: int, itemsize: int, memory: int, *, gradient: bool) -> int:
        """Return the number of rows that fit, counting the derivatives and eight bytes per number for every dtype."""
        each = self.matrices * 8
        return min(n, math.isqrt(memory // (each * (d + 2))) if gradient else memory // (each * n))

    def _kernel(self, problem: Problem) -> Any:
        return self.kernels.ConstantKernel(problem.variance) * self.kernels.Matern(problem.lengthscale, nu=1.5)


#: Name on the command line, and a function that makes the peer or raises ImportError.
PEERS: dict[str, Callable[[], Peer]] = {
    "native": lambda: Tiles(NativeTiles()),
    "torch-tiles": lambda: Tiles(TorchTiles()),
    "torch": DenseTorch,
    "gpytorch": GPyTorch,
    "gpytorch-keops": GPyTorchKeOps,
    "keops": KeOps,
    "jax": JaxBlocks,
    "jax-by-hand": partial(JaxBlocks, by_hand=True),
    "sklearn": ScikitLearn,
}


def make(name: str) -> Peer:
    """Return the peer with a name; ``native:AVX2`` is the native engine with that instruction set."""
    if name.startswith("native:"):
        return Tiles(NativeTiles(name.removeprefix("native:")))
    return PEERS[name]()
