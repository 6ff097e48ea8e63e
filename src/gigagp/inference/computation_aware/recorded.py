"""Computational uncertainty for solves that stopped early: what a solver has multiplied with H are its actions.

Beyond Wenger et al. 2024, whose actions are chosen by a policy. Every product ``H V`` that any solver makes (search
directions, blocks, a preconditioner's columns, the check of the residual) is an observation ``V' y`` with a known
``H V``. Conditioning on all of them costs no kernel entry more, and the variance says what was left uncomputed::

    matrix = RecordingMatrix(model, table)
    solution = solver.solve(matrix, right_hand_sides)        # any solver, any budget
    matrix.add_blocks(solution.value[:, :n_targets])         # one epoch: the solution cut into clusters of rows
    posterior = matrix.posterior("5 epochs")                 # never surer than the exact one

`Iterative(computational_uncertainty=True)` does this with its last solve.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.actions import DenseActions
from gigagp.errors import InvalidInputError
from gigagp.inference.computation_aware.evidence import Evidence
from gigagp.inference.computation_aware.posterior import ComputationAwarePosterior
from gigagp.inference.table import TrainingTable
from gigagp.model import Model
from gigagp.operators import KernelMatrix
from gigagp.operators.base import Index
from gigagp.optimization.history import SolveRecord
from gigagp.preconditioners.clusters import clustered_into

#: Directions of which less than this is new (as a share of their length) are repetitions of others. An image of what is
#: new is made of images whose rounding this divides, so it has to stay far above float64's.
_REPEATED = 1e-5
#: Columns that are remembered where nobody says otherwise.
_CAPACITY = 1024
#: Parts of a solution that are multiplied together.
_PARTS = 16


class RecordingMatrix(KernelMatrix):
    """H, which remembers every product that was made with it.

    Parameters
    ----------
    model : Model
    table : TrainingTable
    capacity : int or None, default None
        Most columns to remember; 16 bytes a row and column. Of a product that does not fit only the leading columns are
        kept (the targets'), and then nothing. None: 1024, or what a quarter of the table's memory budget holds.

    Attributes
    ----------
    count : int
        Columns remembered.
    """

    def __init__(self, model: Model, table: TrainingTable, capacity: int | None = None) -> None:
        super().__init__(model.kernel, table.X, model.noise_variance, memory_budget=table.budget)
        if capacity is None:
            capacity = max(1, min(_CAPACITY, table.budget // (4 * 16 * self.n)))
        if capacity < 1:
            msg = f"capacity of RecordingMatrix must be at least 1; got {capacity!r}."
            raise InvalidInputError(msg)
        self.model, self.table = model, table
        self.capacity, self.n_leading = capacity, table.n_targets + table.basis.shape[1]
        self.count = 0
        #: Float32 images have too few digits to be combined: there the basis is multiplied once at the end instead.
        self._keeps_images = self.dtype == torch.float64
        self._inputs: list[Tensor] = []
        self._outputs: list[Tensor] = []

    def __matmul__(self, vectors: Tensor) -> Tensor:
        """Return ``H @ vectors``, and remember it."""
        product = super().__matmul__(vectors)
        self._remember(vectors, product, None)
        return product

    def columns_product(self, columns: Index, vectors: Tensor) -> Tensor:
        """Return ``H[:, columns] @ vectors``, and remember it: vectors that are zero elsewhere."""
        product = super().columns_product(columns, vectors)
        self._remember(vectors, product, columns)
        return product

    def add_blocks(self, solutions: Tensor, count: int = 256) -> None:
        """Cut solutions into clusters of rows, and observe each part: one epoch.

        The whole solution is a combination of its parts, so the posterior mean can only come nearer (in the norm of H);
        a solver that leaves few products behind (stochastic gradient descent) gains most.

        Parameters
        ----------
        solutions : Tensor of shape (n, t)
            For the targets; their mean is cut, each over its norm.
        count : int, default 256
            Clusters.
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
        # S is block-sparse: a few of its columns at a time have few rows to be multiplied with
        for columns in torch.arange(parts.shape[1]).split(_PARTS):
            rows = parts[:, columns].any(1).nonzero()[:, 0]
            if len(rows):
                product[:, columns] = super().columns_product(rows, parts[rows][:, columns])
            else:
                product[:, columns] = 0.0
        self._outputs.append(product)

    def block(self, rows: Index, columns: Index) -> Tensor:
        """Return the entries ``H[rows, columns]``, and remember whole columns: preconditioners read them."""
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
        """Return S and ``H @ S`` with ``S'HS = I``, float64: a basis of everything that was multiplied.

        The basis is that of the vectors alone, by float64 algebra. Combining their images for it divides rounding by
        what is new in a vector, which float32 products cannot afford; there the basis is multiplied anew, which costs
        what `add_blocks` has saved.

        Raises
        ------
        InvalidInputError
            If nothing was.
        """
        if not self.count:
            msg = "RecordingMatrix has no product yet; solve with it first."
            raise InvalidInputError(msg)
        S = torch.cat(self._inputs, 1).double()
        norms = S.norm(dim=0)
        used = norms > 0  # columns of zeros: solutions that started there
        S = S[:, used] / norms[used]
        squares, vectors = torch.linalg.eigh(S.T @ S)
        new = squares > _REPEATED**2 * float(squares[-1])
        mix = vectors[:, new] / squares[new].sqrt()
        if self._keeps_images:
            basis, image = S @ mix, (torch.cat(self._outputs, 1)[:, used].double() / norms[used]) @ mix
        else:
            narrow = (S @ mix).to(self.dtype)
            basis, image = narrow.double(), super().__matmul__(narrow).double()
        projected = basis.T @ image
        values, vectors = torch.linalg.eigh(0.5 * (projected + projected.T))
        known = values > 0.5 * float(self.noise().min())  # H is nowhere below its noise: what is, is rounding
        mix = vectors[:, known] / values[known].sqrt()
        return basis @ mix, image @ mix

    def posterior(self, note: str = "", final_solve: SolveRecord | None = None) -> ComputationAwarePosterior:
        """Return the posterior conditioned on everything that was multiplied.

        Parameters
        ----------
        note : str
            Which solver left these actions, for `ComputationAwarePosterior.note`.
        final_solve : SolveRecord or None
            What it did.
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
