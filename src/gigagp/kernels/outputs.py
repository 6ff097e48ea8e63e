"""The kernel of several outputs: a learned covariance of the levels of a column."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels.arguments import BoundsLike, ParameterLike
from gigagp.kernels.leaf import Hyperparameter, Leaf
from gigagp.kernels.units import Unit, Units
from gigagp.settings.fields import Count, checked
from gigagp.settings.indexed_random import IndexedDraws
from gigagp.settings.random import standard_normal

#: How far a number may be from a level: levels of standardized rows are rounded, also to float32.
_ROUNDING = 1e-3
#: Correlation with the sign left out below which two outputs count as equally far, as neighbours of each other.
_LEAST_CORRELATION = 1e-2
#: Largest partial correlation of a start, and largest share of a variance that functions share; steps to the factors.
_MOST_CORRELATION, _FACTOR_STEPS = 0.99, 20


class Outputs(Leaf):
    """Learned covariance ``k = B[l, m]`` of outputs l and m: the intrinsic model of coregionalisation.

    When to use: in a product with a kernel of the other inputs, if each row is a measurement of one of several outputs,
    and a column says which: ``Matern(columns=[0, 1], fixed=["variance"]) * Outputs(3, columns=[2])``. A sum of such
    products, each with its own kernel, is the linear model of coregionalisation. ``rank=0`` makes outputs independent:
    times `White` it is a noise variance for each output, times another kernel an independent function for each.

    The covariance is ``B[l, m] = sqrt(variance_l variance_m) R[l, m]`` with a correlation matrix R whose entries may
    have any sign. R is parametrised by partial correlations r, in terms of their ``agreement``
    ``sqrt((1 + r) / (1 - r))``, the standard deviation of the sum of two outputs divided by that of their difference: 1
    for no correlation, larger for positive and smaller for negative correlation. `covariance` returns B.

    Parameters
    ----------
    n_outputs : int
        Number of outputs k.
    columns : sequence of int
        The column with the number of the output of each row, 0 to k - 1; or k one-hot columns.
    rank : int, optional
        Number of functions that all outputs share: ``R = W W' + D`` with W of this many columns and a diagonal D, the
        independent part of each output. None: any correlation matrix.
    ordered : bool, default False
        Whether outputs are ordered levels, such as simulators from coarse to fine, each of which depends only on the
        one before it: R[l, m] is the product of the correlations between them (the autoregressive model of Kennedy and
        O'Hagan 2000).
    new_outputs : bool, default False
        Whether rows may be of outputs that the fit has not seen, numbered from ``n_outputs`` on. Each is the mean of
        all outputs plus an independent part, and has their mean variance. Without it they are refused.
    variance : float or array-like of shape (k,), optional
        Variance of each output. Default 1.
    agreement : float or array-like, optional
        Agreements, in the order of `correlation_pairs`. The default, the root of 3, is a correlation of 1/2.
    fixed, bounds
        As for `RBF`.
    """

    shapes: ClassVar[dict[str, bool]] = {"variance": True, "agreement": True}
    units: ClassVar[dict[str, Unit]] = {"variance": "target", "agreement": "none"}
    has_spectrum: ClassVar[bool] = True

    variance = Hyperparameter("Variance of each output, (k,); None if not settled.")

    def __init__(
        self,
        n_outputs: Count,
        *,
        columns: Sequence[int],
        rank: int | None = None,
        ordered: bool = False,
        new_outputs: bool = False,
        variance: ParameterLike = None,
        agreement: ParameterLike = None,
        fixed: Sequence[str] | bool = (),
        bounds: BoundsLike = None,
    ) -> None:
        self._n_outputs = checked(n_outputs, Count, "n_outputs", "Outputs")
        self._rank = checked(rank, int | None, "rank", "Outputs")
        self._ordered = checked(ordered, bool, "ordered", "Outputs")
        self._new_outputs = checked(new_outputs, bool, "new_outputs", "Outputs")
        if self._rank is not None and (self._rank < 0 or self._ordered):
            allowed = "None where outputs are ordered" if self._ordered else "0 or more, or None"
            raise InvalidInputError(f"rank of Outputs must be {allowed}; got {rank!r}.")
        if not len(self.correlation_pairs()):
            if agreement is not None:
                raise InvalidInputError(f"agreement of Outputs must be None: no outputs correlate; got {agreement!r}.")
            self.shapes, self.units = {"variance": True}, {"variance": "target"}  # type: ignore[misc]
        values = {"variance": variance, "agreement": agreement}
        super().__init__({name: values[name] for name in self.shapes}, columns=columns, fixed=fixed, bounds=bounds)
        if self._columns is None or len(self._columns) not in (1, self._n_outputs):
            raise InvalidInputError(
                f"columns of Outputs must be one column with the number of the output, or {self._n_outputs} columns of "
                f"zeros and a one; got {columns!r}."
            )
        if self._new_outputs and len(self._columns) > 1:
            raise InvalidInputError(
                f"columns of Outputs with new_outputs must be one column of the output's number; got {columns!r}."
            )

    @property
    def n_outputs(self) -> int:
        """Number of outputs."""
        return self._n_outputs

    @property
    def rank(self) -> int | None:
        """Number of functions that all outputs share; None for any covariance."""
        return self._rank

    @property
    def ordered(self) -> bool:
        """Whether each output depends on the one before it alone."""
        return self._ordered

    @property
    def new_outputs(self) -> bool:
        """Whether rows may be of outputs that the fit has not seen."""
        return self._new_outputs

    @property
    def agreement(self) -> Tensor | None:
        """Agreements of `correlation_pairs`; None if not settled, or where no outputs correlate."""
        return self._values.get("agreement")

    # The covariance of the outputs ----------------------------------------------------------------------------------

    def correlation_pairs(self) -> Tensor:
        """Return output and factor of each partial correlation, shape (number of them, 2).

        For any covariance the factors are the earlier outputs; ordered outputs have the one before them. With a
        ``rank`` they are the shared functions, the first of which the first output has, and so on.
        """
        k = self._n_outputs
        if self._ordered:
            return torch.stack([torch.arange(1, k), torch.arange(k - 1)], 1)
        if self._rank is None:
            return torch.tril_indices(k, k, -1).T
        return torch.tril_indices(k, min(self._rank, k)).T

    def factor(self) -> Tensor:
        """Return F with ``B = F F'``, shape (k, n_functions), float64 and differentiable."""
        k, pairs = self._n_outputs, self.correlation_pairs()
        width = k if self._rank is None else min(self._rank, k)
        partial, rest = torch.zeros(k, width, dtype=torch.float64), torch.ones(k, width, dtype=torch.float64)
        if len(pairs):
            agreement, places = self.value("agreement"), tuple(pairs.T)
            squared = agreement.square()
            partial = partial.index_put(places, (squared - 1) / (squared + 1))
            rest = rest.index_put(places, 2 * agreement / (squared + 1))  # the root of 1 - r^2, to all digits
        own, units = rest.prod(1), torch.eye(k, dtype=torch.float64)
        if self._ordered:
            rows = [units[0]]
            for output in range(1, k):
                rows.append(partial[output, output - 1] * rows[-1] + own[output] * units[output])
            found = torch.stack(rows)
        else:
            before = torch.cat([torch.ones(k, 1, dtype=torch.float64), rest.cumprod(1)], 1)[:, :width]
            shared = partial * before
            found = shared + torch.diag(own) if self._rank is None else torch.cat([shared, torch.diag(own)], 1)
        return found * self.value("variance").sqrt()[:, None]

    def covariance(self) -> Tensor:
        """Return the covariance B of the outputs of a bound kernel, shape (k, k), float64."""
        factor = self.factor()
        return factor @ factor.T

    # The contract of leaves -----------------------------------------------------------------------------------------

    def n_values(self, name: str, n_active: int) -> tuple[int, str]:
        if name == "variance":
            return self._n_outputs, "output"
        return len(self.correlation_pairs()), "partial correlation"

    def default(self, name: str, n_active: int) -> float:
        return 3.0**0.5 if name == "agreement" else 1.0

    def levels(self, X: Tensor) -> Tensor:
        """Return the number of the output of each row, shape (n,), or refuse a row that is of no output."""
        active, k = self.active(X.detach()), self._n_outputs
        is_number = active.shape[1] == 1
        found = active[:, 0].round() if is_number else active.argmax(1)
        if is_number:
            sound = ((active[:, 0] - found).abs() <= _ROUNDING) & (found >= 0) & ((found < k) | self._new_outputs)
        else:
            unit = found[:, None] == torch.arange(k, device=found.device)
            sound = ((active - unit.to(active)).abs() <= _ROUNDING).all(1)
        try:
            is_sound = bool(sound.all())
        except RuntimeError:  # torch.vmap does not allow reading a number; the rows of a fit have been looked at
            is_sound = True
        if not is_sound:
            row = int((~sound).nonzero()[0])
            label = ", ".join(map(str, self._columns or ()))
            got = f"got {', '.join(f'{number:g}' for number in active[row].tolist())} in row {row}."
            msg = f"Column {label} of X must be a whole number from 0 to {k - 1}, the output, for Outputs; {got}"
            if not is_number:
                msg = (
                    f"Columns {label} of X must be a one and {k - 1} zeros, the output, for Outputs; {got} A category "
                )
                msg += "that the fit has not seen is no output."
            raise InvalidInputError(msg)
        return found.long()

    def admitted(self, X: Tensor) -> Tensor:
        active, columns = self.active(X), self._active_columns(X.shape[1])
        if len(columns) == 1:
            named = active.round().clamp(0, None if self._new_outputs else self._n_outputs - 1)
        else:
            named = torch.nn.functional.one_hot(active.argmax(1), self._n_outputs).to(X)
        if self._input_weights is not None and self._input_origin is not None:
            named = (named - self._input_origin.to(X)) / self._input_weights.to(X)
        return X.index_copy(1, torch.tensor(columns, device=X.device), named)

    def scale(self, X: Tensor) -> Tensor:
        """Return the rows of `factor` for the outputs of rows: their inner products are the covariance."""
        kernel = self.bind(X.shape[1])
        levels = kernel.levels(X)
        if self._new_outputs and bool((levels >= self._n_outputs).any()):
            raise InvalidInputError(
                f"kernels.Outputs has random features of {self._n_outputs} outputs alone; got one that the fit has not "
                'seen. Use inference="auto", inference.Exact, inference.Markov or inference.Vecchia.'
            )
        return kernel.factor().to(X).index_select(0, levels)

    def block(self, X: Tensor, Z: Tensor) -> Tensor:
        kernel, k = self.bind(X.shape[1]), self._n_outputs
        left, right = kernel.levels(X), kernel.levels(Z)
        if not self._new_outputs:
            return kernel.covariance().to(X).index_select(0, left).index_select(1, right)
        covariance, own = (one.to(X) for one in kernel._with_mean())
        found = covariance.index_select(0, left.clamp(max=k)).index_select(1, right.clamp(max=k))
        return found + own * ((left[:, None] == right) & (left[:, None] >= k))

    def _with_mean(self) -> tuple[Tensor, Tensor]:
        """Return the covariance of the outputs and their mean, (k + 1, k + 1), and what a new one adds to the mean."""
        covariance, k = self.covariance(), self._n_outputs
        each, mean = torch.eye(k, dtype=covariance.dtype), torch.full((1, k), 1 / k, dtype=covariance.dtype)
        weights = torch.cat([each, mean])
        return weights @ covariance @ weights.T, covariance.diagonal().mean() - covariance.mean()

    def diagonal(self, X: Tensor) -> Tensor:
        kernel = self.bind(X.shape[1])
        variance = kernel.value("variance", X)
        if self._new_outputs:
            variance = torch.cat([variance, variance.mean()[None]])
        return variance.index_select(0, kernel.levels(X).clamp(max=len(variance) - 1))

    def draw_frequencies(self, n_frequencies: int, generator: torch.Generator, law: str) -> dict[str, Tensor]:
        """Return random amplitudes, for products, which have no exact features as the kernel alone has."""
        return {"normal": standard_normal(n_frequencies, self.n_functions, generator=generator)}

    def draw_at(self, numbers: IndexedDraws) -> dict[str, Tensor]:
        return {"normal": numbers.normal(self.n_functions)}

    def amplitude_and_phase(self, X: Tensor, draw: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        return self.scale(X) @ draw["normal"].to(X).T, None

    @property
    def n_functions(self) -> int:
        """Number of independent functions that the outputs are made of: columns of `factor`."""
        return self._n_outputs + min(self._rank or 0, self._n_outputs)

    # Units and files ------------------------------------------------------------------------------------------------

    def _weights_in(self, units: Units) -> Tensor:
        return units.scale[self._active_columns(len(units.scale))]

    def _origin_in(self, units: Units) -> Tensor:
        return units.centre[self._active_columns(len(units.scale))]

    def with_groups(self, groups: Sequence[int], columns: Sequence[int] | None = None) -> Self:
        """Return the kernel of an encoded table, whose one-hot categorical columns are the outputs.

        The last of them is for categories that the fit has not seen, which are no output.
        """
        chosen = self._columns if columns is None else tuple(columns)
        chosen = chosen[:-1] if chosen is not None and len(chosen) == self._n_outputs + 1 > 2 else chosen
        if chosen is None or len(chosen) not in (1, self._n_outputs):
            raise InvalidInputError(
                f"columns of Outputs must be a column of {self._n_outputs} categories without missing cells, or of "
                f"whole numbers; got one that is encoded as {len(chosen or ())} columns."
            )
        other = copy.copy(self)
        other._columns = chosen
        return other

    def settings(self) -> dict[str, Any]:
        rank = {} if self._rank is None else {"rank": self._rank}
        ordered = {"ordered": True} if self._ordered else {}
        new = {"new_outputs": True} if self._new_outputs else {}
        return {"n_outputs": self._n_outputs, **rank, **ordered, **new, **super().settings()}


def agreement_of(correlation: Tensor, rank: int | None) -> Tensor:
    """Return the agreements of `Outputs` with a ``rank`` and a correlation near a positive definite one (k, k).

    The shared functions are its principal factors; with ``rank=None`` it is the correlation itself.
    """
    k = len(correlation)
    width = k if rank is None else min(rank, k)
    factor = torch.linalg.cholesky(correlation) if rank is None else _principal_factors(correlation, width)
    left = torch.ones(k, dtype=torch.float64)  # of the variance of each output, by the functions so far
    partial = torch.zeros(k, width, dtype=torch.float64)
    for j in range(width):
        partial[:, j] = (factor[:, j] / left.sqrt()).clamp(-_MOST_CORRELATION, _MOST_CORRELATION)
        left = left * (1 - partial[:, j].square())
    pairs = Outputs(k, columns=[0], rank=rank).correlation_pairs()
    found = partial[tuple(pairs.T)]
    return ((1 + found) / (1 - found)).sqrt()


def _principal_factors(correlation: Tensor, width: int) -> Tensor:
    """Return W (k, width), lower trapezoidal, with ``W W'`` near a correlation outside of its diagonal."""
    shared = 1 - 1 / torch.linalg.inv(correlation).diagonal()
    for _ in range(_FACTOR_STEPS):
        values, vectors = torch.linalg.eigh(correlation - torch.diag(1 - shared))
        found = vectors[:, -width:] * values[-width:].clamp_min(0).sqrt()
        shared = found.square().sum(1).clamp_max(_MOST_CORRELATION)
    return found @ torch.linalg.qr(found[:width].T)[0]


def places_of(covariance: Tensor) -> Tensor:
    """Return a point for each output whose squared distances are ``-2 log |correlation|``, shape (k, coordinates).

    With a squared exponential kernel of the other inputs the nearest rows are then those that correlate most, with
    either sign. The distances need not be those of points: what is Euclidean of them is kept (classical scaling).
    """
    scales = covariance.diagonal().clamp_min(torch.finfo(torch.float64).tiny).sqrt()
    correlation = (covariance / scales[:, None] / scales).abs().clamp(_LEAST_CORRELATION, 1.0)
    squared = -2 * correlation.log().fill_diagonal_(0.0)
    centred = squared - squared.mean(0) - squared.mean(1, keepdim=True) + squared.mean()
    eigenvalues, vectors = np.linalg.eigh((-0.5 * centred).numpy())
    return torch.from_numpy(vectors * np.sqrt(np.maximum(eigenvalues, 0.0)))
