"""The training table in the form that inference works on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from gigagp.errors import InvalidInputError
from gigagp.kernels import Kernel
from gigagp.model.means import Mean
from gigagp.operators import KernelMatrix, RowsMatrix, kernel_matrix
from gigagp.optimization.fisher import derivative_products
from gigagp.products import cross_covariance, product_entries
from gigagp.products.panel import distinct_rows
from gigagp.tables.beside import Beside

#: Fewest times of a run with all entities, and otherwise its times for each root of the rows that are drawn.
_SHORT_RUN, _RUN = 30, 3.0
#: Largest entry of inputs, as a share of the number whose square overflows: lengthscales may be far below 1.
_FARTHEST = 1e-3


@dataclass(frozen=True)
class TrainingTable:
    """Training inputs and targets in the model's units, dtype and device.

    The rows are values of the function at points. In a subclass they are averages of it
    (`gigagp.inference.contract.areas`).
    """

    #: whether the rows are values of the function at X
    has_points: ClassVar[bool] = True

    X: torch.Tensor  # inputs, (n, d)
    Y: torch.Tensor  # targets after subtraction of a fixed mean function, (n, t)
    mean: Mean  # its basis functions make the trend
    budget: int  # memory budget of inference in bytes
    mixed: bool = False  # whether solvers may compute products in float32 where the final accuracy does not suffer
    #: rows of which these were drawn at random because no more could be held; None: these are all
    drawn_from: int | None = None
    beside: Beside = field(default_factory=Beside)  # exposure, offset and limits of the rows
    predict_at: torch.Tensor | None = None  # points that are to be predicted, if they are known, (q, d)
    #: columns of the entities and of the times, where rows are cells of a panel
    cells: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def require_finite(self) -> TrainingTable:
        """Return the table; raise `InvalidInputError` if numbers, or squares of distances of rows, are infinite."""
        dtype = str(self.X.dtype).removeprefix("torch.")
        for name, values in (("X", self.X), ("y", self.Y)):
            if not bool(torch.isfinite(values).all()):
                raise InvalidInputError(
                    f"{name} leaves the range of {dtype} in the units of the fit: its entries, or their differences, "
                    'are too large. Take standardize=True, dtype="float64" or other units.'
                )
        if self.X.abs().max() > _FARTHEST * torch.finfo(self.X.dtype).max ** 0.5:
            row, column = divmod(int(self.X.abs().argmax()), self.n_inputs)
            raise InvalidInputError(
                f"X has an entry too far from the others, in row {row}, column {column}: it is "
                f"{float(self.X[row, column]):.0e} in the units of the fit, and squares of distances leave the range "
                f"of {dtype}. If it stands for a missing number, make it NaN or leave the row out; otherwise take "
                'dtype="float64" or other units.'
            )
        return self

    @property
    def basis(self) -> torch.Tensor:
        """Basis functions of the mean at the rows, shape (n, p)."""
        return self.average(self.mean.basis(self.points).to(self.X))

    # What the rows are of the function --------------------------------------------------------------------------------

    @property
    def points(self) -> torch.Tensor:
        """Points that the rows are values at, or averages over, (p, d)."""
        return self.X

    def average(self, values: torch.Tensor) -> torch.Tensor:
        """Return what the rows have of a function with values (p, s) at the points, (n, s)."""
        return values

    def spread(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the transpose of `average` times vectors (n, s), shape (p, s)."""
        return vectors

    def matrix(self, kernel: Kernel, noise_variance: float | torch.Tensor) -> RowsMatrix:
        """Return the matrix H of the rows."""
        return KernelMatrix(kernel, self.X, noise_variance, memory_budget=self.budget, storage="tiles")

    def solve_matrix(self, kernel: Kernel, noise_variance: float | torch.Tensor) -> RowsMatrix:
        """Return the matrix H of the rows for iterative solves; it is stored where half of the budget has room."""
        return kernel_matrix(kernel, self.X, noise_variance, memory_budget=self.budget, mixed=self.mixed)

    def entries_of(self, products: float, kernel: Kernel | None = None) -> float:
        """Return the entries that this many products with `solve_matrix` compute; None: of a kernel without panels."""
        return products * (float(self.n_rows) ** 2 if kernel is None else product_entries(kernel, self.X))

    def cross_covariance(self, kernel: Kernel, X: torch.Tensor) -> torch.Tensor:
        """Return the covariance of the function at points X (m, d) with the rows, (m, n), differentiable in X."""
        return cross_covariance(kernel, X, self.X, budget=self.budget)

    def covariance(self, kernel: Kernel) -> torch.Tensor:
        """Return the covariance of what the few rows have of the function, (n, n), without noise."""
        return kernel.block(self.X, self.X)

    def derivative_products(self, kernel: Kernel, vectors: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return ``(dH/dtheta) @ vectors`` for the kernel's hyperparameters that are learned, or all of them."""
        return derivative_products(kernel, self.X, vectors)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the tensors of a model file; see `gigagp.inference.contract.areas.restored`."""
        return {"X": self.X, "Y": self.Y}

    def notes(self) -> dict[str, str]:
        """Return what a description of a fit should say of the rows, as `Posterior.notes` does."""
        return {}

    # The table as a whole ---------------------------------------------------------------------------------------------

    def describe_drawn(self) -> dict[str, str]:
        """Return a note for `Posterior.notes` if these are not all rows, or no note."""
        if self.drawn_from is None:
            return {}
        return {"drawn": f"{self.n_rows:,} of {self.drawn_from:,} rows, at random: more would exceed the memory budget"}

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.X.shape[0]

    @property
    def n_inputs(self) -> int:
        """Number of inputs."""
        return self.X.shape[1]

    @property
    def n_targets(self) -> int:
        """Number of targets."""
        return self.Y.shape[1]

    @property
    def n_observations(self) -> int:
        """Number of rows times number of targets."""
        return self.Y.numel()

    @property
    def target_variance(self) -> float:
        """Mean variance of the targets about their means; 1 where they do not vary."""
        variance = float((self.Y - self.Y.mean(0)).square().mean())
        return variance if variance > 0 else 1.0

    def in_float64(self, *, mixed: bool = False) -> TrainingTable:
        """Return a float32 table in float64, where solvers may multiply in float32 (``mixed``); others stay."""
        if self.X.dtype == torch.float64:
            return self
        return replace(self, X=self.X.double(), Y=self.Y.double(), mixed=mixed)

    def on_cpu(self) -> TrainingTable:
        """Return the table in float64 on the CPU."""
        return replace(self, X=self.X.double().cpu(), Y=self.Y.double().cpu())

    def appended(self, X: torch.Tensor, Y: torch.Tensor) -> TrainingTable:
        """Return the table with further rows at its end; refuse those beyond the range of its dtype."""
        drawn_from = None if self.drawn_from is None else self.drawn_from + len(X)
        both = torch.cat([self.X, X.to(self.X)]), torch.cat([self.Y, Y.to(self.Y)])
        return replace(self, X=both[0], Y=both[1], drawn_from=drawn_from).require_finite()

    def take_rows(self, rows: torch.Tensor) -> TrainingTable:
        """Return the table restricted to some rows."""
        return replace(self, X=self.X[rows], Y=self.Y[rows], beside=self.beside.take(rows))

    def draw_rows(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """Return the sorted indices of random rows, or for a long panel of cells of a run of times.

        Random cells of a long panel lie too far apart to show what cells of one time, or of one entity, have in common.
        With few entities a run has all of them. With many, half of the rows are a run of random ones, and the others
        are random, because few entities do not show what those with like inputs have in common. Random rows also stand
        for cells that are missing in a run.
        """
        order = torch.randperm(self.n_rows, generator=generator)
        if self.cells is None or count >= self.n_rows:
            return order[:count].sort().values
        (entities, entity), (times, time) = (_distinct(self.X[:, list(columns)]) for columns in self.cells)
        cells = count * len(entities) * len(times) / self.n_rows  # with the gaps among them
        run, some = math.ceil(cells / len(entities)), len(entities)
        if run < _SHORT_RUN:
            run = math.ceil(_RUN * count**0.5)
            some = math.ceil(cells / run / 2)
        if run >= len(times):
            return order[:count].sort().values
        first = int(torch.randint(len(times) - run + 1, (), generator=generator))
        chosen = torch.randperm(len(entities), generator=generator) < some
        inside = chosen[entity.cpu()] & (time.cpu() >= first) & (time.cpu() < first + run)
        return order[inside[order].logical_not().to(torch.int8).argsort(stable=True)][:count].sort().values

    def nearest(self, row: int, count: int) -> torch.Tensor:
        """Return the sorted indices of the rows nearest to a row, itself included."""
        distances = torch.linalg.vector_norm(self.X - self.X[row], dim=1)
        return torch.topk(distances, count, largest=False).indices.sort().values


def _distinct(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the distinct points, in order where they have one column, and the number of each point among them."""
    if points.shape[1] > 1:
        return distinct_rows(points)
    return torch.unique(points[:, 0], return_inverse=True)
