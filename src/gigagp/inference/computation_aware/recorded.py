"""Computational uncertainty for solves that stop early: the vectors that a solver multiplies with H are the actions.

This goes beyond Wenger et al. 2024, where a policy chooses the actions. Every product ``H V`` that a solver computes
(search directions, blocks, columns of a preconditioner, the check of the residual) is an observation ``V' y`` with
known ``H V``. Conditioning on all of them needs no further kernel entries, and the variance accounts for what was left
uncomputed::

    matrix = RecordingMatrix(model, table)
    solution = solver.solve(matrix, right_hand_sides)        # any solver, any budget
    matrix.add_blocks(solution.value[:, :n_targets])         # one epoch: the solution split into clusters of rows
    posterior = matrix.posterior("5 epochs")                 # variances are never below the exact ones

`Iterative(computational_uncertainty=True)` does this with its last solve.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.computation_aware.actions import DenseActions
from gigagp.inference.computation_aware.evidence import Evidence
from gigagp.inference.computation_aware.posterior import ComputationAwarePosterior
from gigagp.inference.contract.table import TrainingTable
from gigagp.model.model import Model
from gigagp.operators import KernelMatrix
from gigagp.operators.base import Index
from gigagp.optimization.history import SolveRecord
from gigagp.products.dense import eigh
from gigagp.solvers.preconditioners.clusters import clustered_into

#: A direction whose new part is less than this share of its length repeats other directions. The image of the new part
#: is computed from other images, whose rounding error is divided by this, so it must be far above float64's precision.
_REPEATED = 1e-5
#: Default of the largest number of recorded columns.
_CAPACITY = 1024
#: Number of parts of a solution that are multiplied together.
_PARTS = 16


class RecordingMatrix(KernelMatrix):
    """The matrix H with a record of all products that are computed with it.

    It records up to ``capacity`` columns, each of which takes 16 bytes per row. From a product that does not fit, only
    the leading columns (those of the targets) are kept, and from later ones none. The default is 1024, but no more than
    a quarter of the table's memory budget allows.
    """

    def __init__(self, model: Model, table: TrainingTable, capacity: int | None = None) -> None:
        super().__init__(model.kernel, table.X, model.noise_variance, memory_budget=table.budget)
        if capacity is None:
            capacity = max(1, min(_CAPACITY, table.budget // (4 * 16 * self.n)))
        if capacity < 1:
            raise InvalidInputError(f"capacity of RecordingMatrix must be at least 1; got {capacity!r}.")
        self.model, self.table = model, table
        self.capacity, self.n_leading = capacity, table.n_targets + table.basis.shape[1]
        #: number of recorded columns
        self.count = 0
        #: float32 images have too few digits to be combined; in that case the basis is multiplied once at the end
        self._keeps_images = self.dtype == torch.float64
        self._inputs: list[Tensor] = []
        self._outputs: list[Tensor] = []

    @property
    def numbers(self) -> None:
        """None: a solve that another process has begun cannot go on here, because its products are not recorded."""

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """Return ``H @ vectors`` and record it."""
        product = super().__matmul__(vectors)
        self._remember(vectors, product, None)
        return product

    def columns_product(self, columns: Index, vectors: Tensor) -> Tensor:
        """Return ``H[:, columns] @ vectors`` and record it, as the product with vectors that are zero elsewhere."""
        product = super().columns_product(columns, vectors)
        self._remember(vectors, product, columns)
        return product

    def add_blocks(self, solutions: Tensor, count: int = 256) -> None:
        """Split the solutions for the targets into clusters of rows and add each part as an action: one epoch.

        It splits the sum of the solutions, each divided by its norm. That sum is a combination of its parts, so the
        posterior mean can only become more accurate (in the norm of H). Solvers that compute few products (stochastic
        gradient descent) gain most.
        """
        norms = solutions.norm(dim=0)
        weights = (solutions[:, norms > 0] / norms[norms > 0]).sum(1)
        parts = torch.zeros(self.n, min(count, self.n), dtype=self.dtype, device=self.device)
        for j, rows in enumerate(clustered_into(self.coordinates(), parts.shape[1]).blocks):
            parts[rows, j] = weights[rows].to(self.dtype)
        self._inputs.append(parts)
        self.count += parts.shape[1]
        if not self._keeps_images:
            return
        product = parts.new_empty(parts.shape)
        # The parts are block-sparse: a few columns at a time involve few rows.
        for columns in torch.arange(parts.shape[1]).split(_PARTS):
            rows = parts[:, columns].any(1).nonzero()[:, 0]
            if len(rows):
                product[:, columns] = super().columns_product(rows, parts[rows][:, columns])
            else:
                product[:, columns] = 0.0
        self._outputs.append(product)

    def block(self, rows: Index, columns: Index) -> Tensor:
        """Return the entries ``H[rows, columns]``; whole columns, which preconditioners read, are recorded."""
        found = super().block(rows, columns)
        if isinstance(rows, slice) and rows == slice(None) and isinstance(columns, Tensor):
            self._remember(torch.eye(len(columns), dtype=self.dtype, device=self.device), found, columns)
        return found

    def _remember(self, vectors: Tensor, product: Tensor, rows: Index | None) -> None:
        vectors, product = (one if one.ndim == 2 else one[:, None] for one in (vectors, product))
        room = self.capacity - self.count
        kept = vectors.shape[1] if vectors.shape[1] <= room else min(self.n_leading, room)
        if kept == 0:
            return
        whole = vectors[:, :kept]
        if rows is not None:
            whole = vectors.new_zeros(self.n, kept)
            whole[rows] = vectors[:, :kept]
        self._inputs.append(whole.clone())
        if self._keeps_images:
            self._outputs.append(product[:, :kept].clone())
        self.count += kept

    def actions(self) -> tuple[Tensor, Tensor]:
        """Return S and ``H @ S`` with ``S'HS = I`` in float64: a basis of all recorded vectors.

        The basis is computed from the vectors alone, in float64. Combining their images divides the rounding error by
        the size of the new part of a vector, which is not possible with float32 products. In that case the basis is
        multiplied again, at the cost that `add_blocks` has saved.
        """
        if not self.count:
            raise InvalidInputError("RecordingMatrix has no product yet; solve with it first.")
        S = torch.cat(self._inputs, 1).double()
        norms = S.norm(dim=0)
        used = norms > 0  # solutions that start at zero leave columns of zeros
        S = S[:, used] / norms[used]
        squares, vectors = eigh(S.T @ S)
        new = squares > _REPEATED**2 * float(squares[-1])
        mix = vectors[:, new] / squares[new].sqrt()
        if self._keeps_images:
            basis, image = S @ mix, (torch.cat(self._outputs, 1)[:, used].double() / norms[used]) @ mix
        else:
            narrow = (S @ mix).to(self.dtype)
            basis, image = narrow.double(), super().__matmul__(narrow).double()
        projected = basis.T @ image
        values, vectors = eigh(0.5 * (projected + projected.T))
        known = values > 0.5 * float(self.noise().min())  # eigenvalues of H are at least the noise; others are rounding
        mix = vectors[:, known] / values[known].sqrt()
        return basis @ mix, image @ mix

    def posterior(self, note: str = "", final_solve: SolveRecord | None = None) -> ComputationAwarePosterior:
        """Return the posterior conditioned on all recorded products.

        ``note`` is the source of the actions, and ``final_solve`` the record of the solve that computed the products.
        """
        model, table = self.model, self.table
        S, image = self.actions()
        noise = model.noise_variance.to(device=self.device, dtype=torch.float64).expand(self.n)
        found = Evidence(model, table, DenseActions.trusted(S), "elbo", noise, self, image)
        return ComputationAwarePosterior(
            model,
            table,
            found.actions,
            found.factor,
            found.conditioned(),
            noise,
            found.terms().elbo,
            note,
            final_solve,
        )
