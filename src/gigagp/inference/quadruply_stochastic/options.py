"""The fields of the settings with the numbers that follow from them, and the problem of a fit.

The settings that users construct are in `gigagp.inference.quadruply_stochastic.settings`. They make objectives, and
objectives read these fields: two files keep the imports free of circles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.quadruply_stochastic.estimators.readings import BoundForm
from gigagp.model.likelihoods import NODES, Gaussian, Likelihood
from gigagp.settings.fields import Count, CountOrZero, Range, Settings

#: Defaults where rows and functions are sampled: number of functions, rows of a step, functions of each of the two
#: samples of a step.
_N_BASIS, _ROW_BATCH, _BASIS_BATCH = 20_000, 128, 10_000
#: Functions of a sample where the prior precision is dense.
_DENSE_BATCH = 1000
#: Most dense columns that every step sees, and the columns of a step where there are more.
_ALL_COLUMNS, _COLUMN_BATCH = 128, 64
#: Where all rows and functions are used at once: fewest and most functions by default (between them, one per row), the
#: most rows for which that is the default, and the most multiplications of a step, ``n m^2 + m^3``, about ten seconds
#: of one core.
LEAST_WHOLE, MOST_WHOLE, WHOLE_ROWS, _WHOLE_WORK = 1000, 2000, 20_000, 2**38


@dataclass(frozen=True)
class WeightOptions(Settings):
    """The fields of `gigagp.inference.QuadruplyStochastic`, which documents them."""

    n_basis: Annotated[int, Range(least=2)] | None = None
    basis: Literal["fourier", "inducing", "grid"] = "fourier"
    row_batch: Count | None = None
    basis_batch: Count | None = None
    n_columns: CountOrZero | None = None
    column_batch: Count | None = None
    diagonal: Literal["learned", "closed_form"] = "learned"
    start_rows: CountOrZero | None = None
    anchor: bool = True
    n_support: CountOrZero = 0
    control: Literal["residual", "quadratic", "as_printed"] = "residual"
    prior_control: bool = False
    linear_control: bool = False
    bound: BoundForm = "sqrt"
    replacement: bool = False
    augment: bool = False
    quadrature_nodes: Count = NODES

    #: whether every weight has its own prior precision, which is learned
    learns_precision = False

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        if self.column_batch is not None and self.learns_precision:
            msg = f"column_batch of {owner} must be left out: a precision depends on all dense columns."
            raise InvalidInputError(msg)
        for name, other, most in (
            ("basis_batch", "n_basis", self.n_functions),
            ("n_columns", "n_basis", self.n_functions),
            ("column_batch", "n_columns", self.n_columns or 0),
        ):
            value = getattr(self, name)
            if value is not None and value > most:
                raise InvalidInputError(f"{name} of {owner} must be at most {other}, {most:,}; got {value:,}.")
        if (self.prior_control or self.augment) and self.basis != "inducing":
            msg = f'prior_control and augment of {owner} are for basis="inducing"; got basis={self.basis!r}.'
            raise InvalidInputError(msg)
        if self.prior_control and not self.n_support:
            raise InvalidInputError(f"prior_control of {owner} needs support rows: set n_support.")

    @property
    def highest_precision(self) -> float | None:
        """Prior precision above which a weight is dropped; None: no weight is dropped."""
        return None

    @property
    def n_functions(self) -> int:
        """Largest number of functions of a sampled fit."""
        return _N_BASIS if self.n_basis is None else self.n_basis

    @property
    def learns_covariance(self) -> bool:
        """Whether a fit learns a covariance of the weights, rather than keeping the one that some rows give."""
        asked = self.n_columns is not None or self.diagonal == "closed_form" or self.augment or self.start_rows == 0
        return asked or self.bound != "sqrt" or self.learns_precision

    @property
    def has_dense_prior(self) -> bool:
        """Whether the prior precision of the weights is dense: a step then needs a block of it for its two samples."""
        return self.basis == "inducing" and not self.learns_precision

    @property
    def sampled_functions(self) -> int:
        """Functions in each of the two samples of a step."""
        if self.basis_batch is not None:
            return self.basis_batch
        if self.has_dense_prior:
            return min(self.n_functions, _DENSE_BATCH)
        # Two samples of half of the functions touch three quarters of them: they would add noise and save little.
        return self.n_functions if self.n_functions <= 2 * _BASIS_BATCH else _BASIS_BATCH

    @property
    def sampled_columns(self) -> int | None:
        """Dense columns that a step sees; None: all of them."""
        k, batch = self.n_columns or 0, self.column_batch
        if self.learns_precision or batch == k:
            return None
        if batch is None:
            return _COLUMN_BATCH if k > _ALL_COLUMNS else None
        return batch

    @property
    def sampled_rows(self) -> int:
        """Largest number of rows of a step."""
        return _ROW_BATCH if self.row_batch is None else self.row_batch

    def for_all_at_once(self, n_rows: int) -> Self | None:
        """Return these settings with the number of functions that suits a fit of all rows and functions at once.

        None where a setting of a sampled fit was given, or where a step would cost too much.
        """
        sampled = self.n_support or self.linear_control or self.replacement or self.bound == "as_printed"
        if sampled or any(batch is not None for batch in (self.column_batch, self.row_batch, self.basis_batch)):
            return None
        if self.learns_precision and self.n_columns is not None:
            return None
        m = self.n_basis
        if m is None:
            if n_rows > WHOLE_ROWS:
                return None
            m = max(min(max(n_rows, LEAST_WHOLE), MOST_WHOLE), self.n_columns or 0)
        if self.basis == "inducing" or self.learns_precision:  # functions at rows
            m = min(m, max(n_rows, 2))
        return replace(self, n_basis=m) if n_rows * m**2 + m**3 <= _WHOLE_WORK else None


@dataclass(frozen=True, eq=False)
class WeightProblem:
    """The parts of a fit that do not change."""

    options: WeightOptions
    #: the rows that are held: all of them, or a sample of a larger table
    table: TrainingTable
    likelihood: Likelihood
    #: all rows that are fitted, held or not
    n_rows: int

    @property
    def is_gaussian(self) -> bool:
        """Whether the likelihood is Gaussian, so that exact solves take the place of searches."""
        return isinstance(self.likelihood, Gaussian)

    @property
    def no_trend(self) -> Tensor:
        """Coefficients of the mean's basis that are zero, shape (p, t)."""
        basis = self.table.basis
        return basis.new_zeros(basis.shape[1], self.table.n_targets, dtype=torch.float64)

    @property
    def has_trend(self) -> bool:
        """Whether the mean's basis has coefficients to be inferred; those of labels and counts stay zero."""
        return self.likelihood.has_noise and self.table.basis.shape[1] > 0

    def centred(self, coefficients: Tensor) -> Tensor:
        """Return the targets of the held rows less a trend with coefficients (p, t); labels and counts stay."""
        table = self.table
        if not self.likelihood.has_noise:
            return table.Y
        return (table.Y.double() - table.basis.double() @ coefficients).to(table.Y)
