"""The matrix H of a Gaussian process: the covariance of the rows plus noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels import Kernel
from gigagp.operators.base import Index, SymmetricMatrix
from gigagp.operators.indexing import (
    add_matching,
    add_rows,
    as_noise,
    check_vectors,
    scaled_places,
    symmetric_factors,
    take,
)
from gigagp.products import Engine, LowRankWeights, PanelTiles, Weights, select
from gigagp.products.arguments import check_finite
from gigagp.products.dense import add_scaled_rows, tall_product
from gigagp.products.engine import weights_of
from gigagp.products.stored import stored_product
from gigagp.runtime import interruption
from gigagp.runtime.memory import require, resolve_budget


class KernelMatrix(SymmetricMatrix):
    """``H = K(X, X) + noise``, stored in memory or recomputed tile by tile, depending on the memory budget.

    Parameters
    ----------
    kernel : Kernel
        Bound to the columns of ``X`` if it is not bound yet.
    X : Tensor of shape (n, d)
        The inputs. Their dtype and device are those of all products.
    noise_variance : float or Tensor of shape () or (n,)
        Variance of independent noise, one value for all rows or one for each. White parts of the kernel are added to
        it.
    memory_budget : int, float, str, optional
        Bytes, or a string such as ``"2GiB"``; None stands for half of the free memory.
    storage : {"auto", "dense", "tiles"}, default "auto"
        ``"dense"`` computes and stores K (n * n numbers) at its first use, and ``"tiles"`` never stores it. ``"auto"``
        is dense if K takes at most half of the budget and products with it are quicker than those of a panel.
    mixed : bool, default False
        Whether the products inside solvers' loops (`fast`) are computed and stored in float32; requires float64 inputs.
        This matrix itself, which residuals and gradients use, stays in float64 and is computed by tiles.
    engine : Engine, optional
        The engine that computes entries; None selects the best one for this problem (`gigagp.products.select`).

    Attributes
    ----------
    storage : {"dense", "tiles"}
        The storage in use.
    engine : str
        Name of the engine that computes entries.
    entries_computed : int
        Number of entries of K computed so far, including those obtained by symmetry.

    Raises
    ------
    InvalidInputError
        If kernel, inputs and noise do not match.
    MemoryBudgetError
        If dense storage is requested and exceeds the budget.

    Examples
    --------
    >>> H = KernelMatrix(Matern(nu=1.5), X, noise_variance=0.1)
    >>> H @ V
    >>> H.gradient(L, R)["lengthscale"]
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Tensor,
        noise_variance: float | Tensor = 0.0,
        *,
        memory_budget: float | str | None = None,
        storage: Literal["auto", "dense", "tiles"] = "auto",
        mixed: bool = False,
        engine: Engine | None = None,
    ) -> None:
        if X.ndim != 2 or X.shape[0] < 1 or X.dtype not in {torch.float32, torch.float64}:
            raise InvalidInputError(
                "X of KernelMatrix must be a float32 or float64 tensor of shape (n, d) with n >= 1; "
                f"got {X.dtype} of shape {tuple(X.shape)}."
            )
        check_finite("X of KernelMatrix", X)
        if storage not in {"auto", "dense", "tiles"}:
            raise InvalidInputError(f'storage of KernelMatrix must be "auto", "dense" or "tiles"; got {storage!r}.')
        self.kernel = kernel.bind(X.shape[1])
        self.X = X
        self.n = X.shape[0]
        self.dtype = X.dtype
        self.device = X.device
        self.noise_variance = noise_variance
        with torch.no_grad():
            independent = as_noise(noise_variance, X[:, 0], "noise_variance of KernelMatrix")
            self._noise = independent + self.kernel.white(X)
        self.memory_budget = resolve_budget(memory_budget, X.device)
        needed = self._rows_held * self.n * (4 if mixed else X.element_size())
        if storage == "dense":
            remedy = 'Use storage="tiles" or a larger memory_budget.'
            require(needed, self.memory_budget, f"A dense kernel matrix of {self.n:,} rows", remedy)
        self._engine = engine or select(self.kernel, self.device, self.dtype, rows=X)
        fits = needed <= self.memory_budget // 2 and not isinstance(self._engine, PanelTiles)
        self.storage = storage if storage != "auto" else ("dense" if fits else "tiles")
        self.entries_computed = 0
        self._stored: Tensor | None = None
        self._smooth: KernelMatrix | None = None
        if mixed:
            if self.dtype != torch.float64:
                raise InvalidInputError(f"mixed of KernelMatrix needs float64 inputs; got {self.dtype}.")
            # White parts are noise, which the wrapper adds in float64, so they are removed from the float32 matrix.
            self._smooth = type(self)(
                self.kernel, X.float(), memory_budget=self.memory_budget, storage=self.storage, engine=engine
            )
            self._smooth._noise = torch.zeros_like(self._smooth._noise)
            self.storage = "tiles"

    @property
    def numbers(self) -> tuple[Tensor, ...] | None:
        """The hyperparameters of the kernel, and the noise."""
        return (*self.kernel.parameters().values(), self._noise)

    @property
    def engine(self) -> str:
        """Name of the engine that computes entries and products."""
        return self._engine.name

    @property
    def panel(self) -> PanelTiles | None:
        """The engine of rows that are cells of a panel; None for others."""
        return self._engine if isinstance(self._engine, PanelTiles) else None

    @property
    def fast(self) -> KernelMatrix | RoundedMatrix:
        """The matrix for solvers' loops: with float32 products if ``mixed``, otherwise this matrix."""
        # The wrapper is made at each use: a kept one and this matrix would hold each other, and a stored matrix would
        # outlive the step that it served.
        return self if self._smooth is None else RoundedMatrix(self, self._smooth)

    def describe(self) -> str:
        """Return one line that describes how products are computed."""
        how = "stored" if self.storage == "dense" else "computed tile by tile"
        gigabytes = self.n * self.n * self.X.element_size() / 1e9
        dtype = str(self.dtype).removeprefix("torch.")
        if self._smooth is not None:
            return f"{self._smooth!r} inside of solvers, computed tile by tile in float64 for residuals"
        return (
            f"kernel matrix of {self.n:,} rows, {dtype} on {self.device}, {how} by {self.engine} "
            f"({gigabytes:.3g} GB if stored, budget {self.memory_budget / 1e9:.3g} GB)"
        )

    def __repr__(self) -> str:
        return f"<{self.describe()}>"

    @property
    def _rows_held(self) -> int:
        """Number of rows of K that are stored here, if K is stored."""
        return self.n

    @property
    def _holds_all(self) -> bool:
        """Whether K is stored here, so that entries are read from it."""
        return self.storage == "dense"

    def _stored_product(self, vectors: Tensor) -> Tensor:
        """Return ``K @ vectors`` for a stored K."""
        return stored_product(self._matrix(), vectors)

    def _matrix(self) -> Tensor:
        """Return the stored K, and compute it at the first use."""
        if self._stored is None:
            self._stored = self._engine.dense(self.kernel, self.X, budget=self.memory_budget)
            self.entries_computed += self.n * self.n
        return self._stored

    # Products -------------------------------------------------------------------------------------------------------

    def _product(self, left: Tensor, right: Tensor, vectors: Tensor) -> Tensor:
        self.entries_computed += left.shape[0] * right.shape[0]
        columns = vectors if vectors.ndim == 2 else vectors[:, None]
        product = self._engine.product(self.kernel, left, right, columns, budget=self.memory_budget)
        return product if vectors.ndim == 2 else product[:, 0]

    def __matmul__(self, vectors: Tensor) -> Tensor:
        check_vectors(self, vectors, self.n)
        interruption.check()
        is_stored = self.storage == "dense"
        product = self._stored_product(vectors) if is_stored else self._product(self.X, self.X, vectors)
        return add_scaled_rows(product, self._noise, vectors)

    def rows_product(self, rows: Index, vectors: Tensor) -> Tensor:
        check_vectors(self, vectors, self.n)
        interruption.check()
        if self._holds_all:
            product = stored_product(self._matrix()[rows], vectors)
        else:
            product = self._product(self.X[rows], self.X, vectors)
        return add_scaled_rows(product, self._noise[rows], vectors[rows])

    def columns_product(self, columns: Index, vectors: Tensor) -> Tensor:
        noise = self._noise[columns]
        check_vectors(self, vectors, len(noise))
        interruption.check()
        if self._holds_all:  # by symmetry, read rows, which are contiguous
            product = tall_product(self._matrix()[columns].T, vectors)
        else:
            product = self._product(self.X, self.X[columns], vectors)
        return add_rows(product, columns, _scaled(noise, vectors))

    # Entries --------------------------------------------------------------------------------------------------------

    def noise(self) -> Tensor:
        """Return the noise variance of every row, including the kernel's white part, shape (n,)."""
        return self._noise

    @torch.no_grad()
    def diagonal(self) -> Tensor:
        return self.kernel.diagonal(self.X) + self._noise

    def block(self, rows: Index, columns: Index) -> Tensor:
        """Return the entries ``H[rows, columns]`` as a new tensor."""
        interruption.check()
        if self._holds_all:
            block = take(self._matrix(), rows, columns)
        else:
            left = self.X[rows]
            right = None if rows is columns else self.X[columns]
            block = self._engine.dense(self.kernel, left, right, budget=self.memory_budget)
            self.entries_computed += block.numel()
        return add_matching(block, rows, columns, self._noise)

    def to_dense(self) -> Tensor:
        """Return the whole H as a new tensor, if it fits into the memory budget."""
        everything = slice(None)
        return self.block(everything, everything)

    def coordinates(self) -> Tensor:
        """Return the scaled inputs of the kernel's first stationary part, or else the inputs, shape (n, d')."""
        return scaled_places(self.kernel, self.X)

    def of_function(self, values: Callable[[Tensor], Tensor]) -> Tensor:
        """Return what the rows have of a function that returns its values (p, s) at points (p, d), shape (n, s)."""
        return values(self.X)

    # Derivatives ----------------------------------------------------------------------------------------------------

    def gradient(self, left: Tensor, right: Tensor, weights: Tensor | None = None) -> dict[str, Tensor]:
        """Return ``sum_j w_j L_j' (dH / d parameter) R_j`` for every hyperparameter.

        Every estimator of the gradient of the marginal likelihood is a choice of left and right vectors.

        Parameters
        ----------
        left, right : Tensor of shape (n, s)
            Vectors L and R. If they are equal, pass the same tensor twice to save work.
        weights : Tensor of shape (s,), optional
            Weights w; None stands for ones.

        Returns
        -------
        dict of str to Tensor
            One entry for every hyperparameter of the kernel, including fixed ones, and ``"noise_variance"``. If the
            rows have known noise variances, the latter is the derivative with respect to a number added to all of them.
            Derivatives are in natural units, float64 on the CPU.
        """
        check_vectors(self, left, self.n)
        check_vectors(self, right, self.n)
        outer, inner, diagonal = symmetric_factors(left, right, weights)
        return self._gradient(LowRankWeights(outer, inner), diagonal)

    def weighted_gradient(self, matrix_weights: Tensor | Weights) -> dict[str, Tensor]:
        """Return ``sum_ij A_ij dH_ij / d parameter`` for a symmetric A.

        Parameters
        ----------
        matrix_weights : Tensor of shape (n, n) or callable
            A, or a function ``weights(rows, columns)`` that returns the tile of A for two slices. Only tiles on and
            above the diagonal are read.

        Returns
        -------
        dict of str to Tensor
            As for `gradient`.
        """
        if isinstance(matrix_weights, Tensor):
            if matrix_weights.shape != self.shape:
                msg = f"matrix_weights must have shape {self.shape}; got {tuple(matrix_weights.shape)}."
                raise InvalidInputError(msg)
            return self._gradient(weights_of(matrix_weights), matrix_weights.diagonal().double())
        read = matrix_weights
        diagonal = torch.zeros(self.n, dtype=torch.float64, device=self.device)

        def tile(rows: slice, columns: slice) -> Tensor:
            found = read(rows, columns)
            if rows == columns:
                diagonal[rows] = found.diagonal().double()
            return found

        return self._gradient(tile, diagonal)

    def _gradient(self, weights: Weights, diagonal: Tensor) -> dict[str, Tensor]:
        """Return the gradient for weights A; their ``diagonal`` is complete only once all tiles have been read."""
        interruption.check()
        self.entries_computed += self.n * self.n
        found = self._engine.gradient(self.kernel, self.X, self.X, weights, symmetric=True, budget=self.memory_budget)
        if self.kernel.has_white:
            for name, value in self._white_gradient(diagonal).items():
                found[name] = found[name] + value
        found["noise_variance"] = diagonal.sum().cpu()
        return found

    def _white_gradient(self, diagonal: Tensor) -> dict[str, Tensor]:
        """Return the gradient through the kernel's white part, which affects only the diagonal."""
        with torch.enable_grad():
            values = {k: v.detach().clone().requires_grad_() for k, v in self.kernel.parameters().items()}
            white = self.kernel.replace(values).white(self.X)
            found = torch.autograd.grad(white, list(values.values()), diagonal.to(white), allow_unused=True)
        return {k: value for k, value in zip(values, found, strict=True) if value is not None}


def _scaled(diagonal: Tensor, vectors: Tensor) -> Tensor:
    """Return ``diag(diagonal) @ vectors``."""
    return (diagonal if vectors.ndim == 1 else diagonal[:, None]) * vectors


class RoundedMatrix(SymmetricMatrix):
    """``H`` with products of its smooth part, without noise, in float32 and everything else in float64.

    A solver's loop multiplies with this matrix if its residuals come from the exact one. The error of a product is
    about 1e-6 of its size, and it does not persist in a solution whose residual was computed exactly.
    """

    def __init__(self, exact: KernelMatrix, smooth: KernelMatrix) -> None:
        self.exact, self.smooth = exact, smooth
        self.n, self.dtype, self.device = exact.n, exact.dtype, exact.device

    @property
    def storage(self) -> str:
        """Storage of the float32 matrix."""
        return self.smooth.storage

    @property
    def rounding(self) -> float:
        return self.smooth.rounding

    def __matmul__(self, vectors: Tensor) -> Tensor:
        return (self.smooth @ vectors.float()).to(self.dtype).addcmul_(self.noise()[:, None], vectors)

    def rows_product(self, rows: Index, vectors: Tensor) -> Tensor:
        product = self.smooth.rows_product(rows, vectors.float()).to(self.dtype)
        return product.addcmul_(self.noise()[rows, None], vectors[rows])

    def columns_product(self, columns: Index, vectors: Tensor) -> Tensor:
        product = self.smooth.columns_product(columns, vectors.float()).to(self.dtype)
        return add_rows(product, columns, self.noise()[columns, None] * vectors)

    def diagonal(self) -> Tensor:
        return self.exact.diagonal()

    def block(self, rows: Index, columns: Index) -> Tensor:
        return self.exact.block(rows, columns)

    def noise(self) -> Tensor:
        return self.exact.noise()

    def coordinates(self) -> Tensor | None:
        return self.exact.coordinates()

    def inner(self, left: Tensor, right: Tensor) -> Tensor:
        return self.exact.inner(left, right)
