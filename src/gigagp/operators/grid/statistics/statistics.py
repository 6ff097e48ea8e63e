"""The sufficient statistics of rows on a grid: sums over rows, which can be added, subtracted, sent and saved."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gigagp.errors import GigaGPWarning, InvalidInputError, ModelFileError, warn
from gigagp.operators.grid.statistics.geometry import RegularGrid
from gigagp.operators.grid.statistics.gram import StencilGram
from gigagp.operators.grid.statistics.grid_sum import GridSum, grid_from_dict
from gigagp.operators.grid.statistics.rows_gram import RowsGram
from gigagp.operators.grid.statistics.sum_gram import SumGram
from gigagp.storage.tensor_file import load_state, save_state
from gigagp.tables.rows.chunk import as_columns, as_table
from gigagp.tables.rows.sample import SAMPLE_SIZE, RowSample

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_KIND = "GridStatistics"
#: Share of rows that are copies of others above which their random signs are not to be trusted.
_REPEATED = 0.1
#: Fields that are sums over rows, other than the matrix.
_SUMS = (
    "cross",
    "target_squares",
    "target_sums",
    "probes",
    "probe_squares",
    "position_sums",
    "position_squares",
    "cell_counts",
    "weight_sums",
)


@dataclass(frozen=True, eq=False)
class GridStatistics:
    """Everything that inference on a grid needs of n rows: ``W'W``, ``W'Y``, ``Y'Y`` and further sums.

    Every part is a sum over rows. ``a + b`` are the statistics of both sets of rows, ``a - b`` those without the rows
    of b. The order of the rows, their chunks and the machines that read them change only the last digits.

    When to use: `from_rows` for arrays, `gigagp.grids.GridCollector` for files, folders and generators.

    Parameters
    ----------
    grid : RegularGrid or GridSum
    n_rows : int
    gram : StencilGram, SumGram or RowsGram
        ``W'W``; a `RowsGram` keeps the rows instead, see
        `gigagp.operators.grid.statistics.accumulator.statistics_of_rows`.
    cross : Tensor of shape (m, t)
        ``W'Y``.
    target_squares, target_sums : Tensor of shape (t,)
        ``y'y`` and the sum of each target.
    probes : Tensor of shape (m, s)
        ``W'Z`` for s columns Z of random signs. A row's signs are a function of the seed and the row's numbers, so
        ``W'Z`` does not depend on the order of rows either. Rows whose inputs and targets are all equal share their
        signs: if there are many, log-determinants from these probes are biased.
    probe_squares : Tensor of shape (s,)
        ``z'z``, which is the number of rows.
    seed : int
        Seed of the probes.
    position_sums, position_squares : Tensor of shape (d,)
        Sums of the inputs and of their squares, in units of the spacing from the grid's first node.
    cell_counts : Tensor of shape (cells,)
        Number of rows in each cell of the grid, numbered by `RegularGrid.cell_strides`.
    input_low, input_high : Tensor of shape (d,)
        Smallest and largest value of each input. A subtraction does not update them.
    weight_sums : Tensor of shape (2,)
        Sum and sum of logarithms of the rows' weights; (n, 0) without weights. With weights w every sum over rows is
        a weighted one, ``W'diag(w)W`` in place of ``W'W``, and those of the probes have the roots of the weights.
    noise : float or None
        Noise variance of a row of weight one, if the noise variance of every row is known; weights are inversely
        proportional to them.
    """

    grid: RegularGrid | GridSum
    n_rows: int
    gram: StencilGram | SumGram | RowsGram
    cross: Tensor
    target_squares: Tensor
    target_sums: Tensor
    probes: Tensor
    probe_squares: Tensor
    seed: int
    position_sums: Tensor
    position_squares: Tensor
    cell_counts: Tensor
    input_low: Tensor
    input_high: Tensor
    weight_sums: Tensor
    noise: float | None = None

    # Making -----------------------------------------------------------------------------------------------------------

    @classmethod
    def from_rows(
        cls,
        grid: RegularGrid | GridSum,
        X: Any,
        Y: Any,
        n_probes: int = 0,
        seed: int = 0,
        memory_budget: int | str | None = None,
        noise: Any = None,
    ) -> GridStatistics:
        """Return the statistics of rows that are in memory.

        Parameters
        ----------
        grid : RegularGrid
        X : array of shape (n, d)
        Y : array of shape (n,) or (n, t)
        n_probes : int
            Number of columns of random signs to sum, for log-determinants.
        seed : int
            Seed of these signs.
        memory_budget : int, str or None
            Bytes; None: half of the free memory.
        noise : array of shape (n,), optional
            Known noise variance of each row, positive. Rows are weighted with their harmonic mean over each of them.

        Raises
        ------
        InvalidInputError
            If a number is not finite, a noise variance is not positive, or a row lies outside of the grid; the message
            names the first.
        MemoryBudgetError
            If the statistics on this grid do not fit; raised before anything is allocated.

        Warns
        -----
        GigaGPWarning
            If there are probes and many rows are copies of others.
        """
        unit = None if noise is None else float(1 / (1 / row_noise(noise, len(X))).mean())
        return cls._summed(grid, X, Y, n_probes, seed, memory_budget, noise, unit)

    @classmethod
    def _summed(
        cls,
        grid: RegularGrid | GridSum,
        X: Any,
        Y: Any,
        n_probes: int,
        seed: int,
        memory_budget: int | str | None,
        noise: Any,
        unit: float | None,
    ) -> GridStatistics:
        """Return the statistics with rows weighted by ``unit / noise``."""
        from gigagp.operators.grid.statistics.accumulator import Accumulator

        X, Y = as_table(X, "X"), as_columns(Y)
        accumulator = Accumulator(grid, Y.shape[1], n_probes, seed, memory_budget)
        accumulator.add(X, Y, None if unit is None else unit / row_noise(noise, len(X)))
        if n_probes:
            sample = RowSample(SAMPLE_SIZE, X.shape[1], Y.shape[1], seed)
            sample.add(X, Y)
            warn_if_repeated(sample)
        return replace(accumulator.statistics(), noise=unit)

    def add_rows(self, X: Any, Y: Any, noise: Any = None) -> GridStatistics:
        """Return the statistics with these rows added, on the same grid and with the same probes; see `from_rows`."""
        return self + self._of(X, Y, noise)

    def remove_rows(self, X: Any, Y: Any, noise: Any = None) -> GridStatistics:
        """Return the statistics without these rows, which must have been added before with exactly the same numbers.

        Raises
        ------
        InvalidInputError
            If a cell of the grid holds fewer rows than are removed from it: they were never added.
        """
        return self - self._of(X, Y, noise)

    def _of(self, X: Any, Y: Any, noise: Any) -> GridStatistics:
        if (noise is None) != (self.noise is None):
            msg = "noise of GridStatistics must be given for these rows if and only if it was for the earlier ones."
            raise InvalidInputError(msg)
        if isinstance(self.gram, RowsGram):
            from gigagp.operators.grid.statistics.accumulator import statistics_of_rows

            return statistics_of_rows(self.gram.grid, X, Y, self.n_probes, self.seed, None, noise, self.noise)
        return self._summed(self.grid, X, Y, self.n_probes, self.seed, None, noise, self.noise)

    # Reading ----------------------------------------------------------------------------------------------------------

    @property
    def n_targets(self) -> int:
        """Number of targets t."""
        return self.cross.shape[1]

    @property
    def n_probes(self) -> int:
        """Number of probes s."""
        return self.probes.shape[1]

    @property
    def occupancy(self) -> float:
        """Share of the grid's cells that hold a row."""
        return float((self.cell_counts > 0).double().mean())

    @property
    def _formed(self) -> StencilGram | SumGram:
        if isinstance(self.gram, RowsGram):
            msg = "Statistics that hold the rows in place of W'W cannot be moved or sent. Use GridStatistics.from_rows."
            raise InvalidInputError(msg)
        return self.gram

    @property
    def _total(self) -> Tensor:
        """Sum of the weights; 1 without rows."""
        return self.weight_sums[0] if self.n_rows else torch.ones((), dtype=torch.float64)

    @property
    def target_means(self) -> Tensor:
        """Mean of each target, shape (t,)."""
        return self.target_sums / self._total

    @property
    def target_variances(self) -> Tensor:
        """Variance of each target, shape (t,)."""
        return (self.target_squares / self._total - self.target_means.square()).clamp(min=0)

    @property
    def input_means(self) -> Tensor:
        """Mean of each input, shape (d,)."""
        spacing, lower = (
            self.position_sums.new_tensor(self.grid.spacing),
            self.position_sums.new_tensor(self.grid.lower),
        )
        return lower + spacing * self.position_sums / self._total

    @property
    def input_variances(self) -> Tensor:
        """Variance of each input, shape (d,)."""
        n = self._total
        variance = self.position_squares / n - (self.position_sums / n).square()
        return variance.clamp(min=0) * variance.new_tensor(self.grid.spacing).square()

    @property
    def nbytes(self) -> int:
        """Number of bytes of all parts."""
        parts = [getattr(self, field.name) for field in fields(self)]
        return self.gram.nbytes + sum(part.nbytes for part in parts if isinstance(part, Tensor))

    # Changing ---------------------------------------------------------------------------------------------------------

    def for_targets(self, shift: Any, scale: Any) -> GridStatistics:
        """Return the statistics of targets ``(y - shift) / scale``; the rows are not needed.

        Parameters
        ----------
        shift, scale : float or array of shape (t,)
            One number for each target, or one for all; scales are positive.
        """
        a, b = _one_each(shift, self.n_targets, "shift"), _one_each(scale, self.n_targets, "scale")
        if bool((b <= 0).any()):
            raise InvalidInputError(f"scale of GridStatistics.for_targets must be positive; got {b.tolist()}.")
        return replace(
            self,
            cross=(self.cross - self.gram.row_sums().unsqueeze(1) * a) / b,
            target_squares=(self.target_squares - 2 * a * self.target_sums + self.weight_sums[0] * a.square())
            / b.square(),
            target_sums=(self.target_sums - self.weight_sums[0] * a) / b,
        )

    def for_inputs(self, shift: Any, scale: Any) -> GridStatistics:
        """Return the statistics of inputs ``(x - shift) / scale``, on the grid that is moved and scaled with them.

        Only the coordinates of the nodes change: weights depend on where a row lies between nodes.

        Parameters
        ----------
        shift, scale : float or array of shape (d,)
            One number for each input, or one for all; scales are positive.
        """
        d = self.grid.n_inputs
        a, b = _one_each(shift, d, "shift", "inputs"), _one_each(scale, d, "scale", "inputs")
        if bool((b <= 0).any()):
            raise InvalidInputError(f"scale of GridStatistics.for_inputs must be positive; got {b.tolist()}.")
        grid = self.grid.moved(a.tolist(), b.tolist())
        return replace(
            self,
            grid=grid,
            gram=self._formed.with_values(self._formed.values, grid),  # type: ignore[arg-type]
            input_low=(self.input_low - a) / b,
            input_high=(self.input_high - a) / b,
        )

    def __add__(self, other: GridStatistics) -> GridStatistics:
        self._check_same(other)
        return self._with(
            self.n_rows + other.n_rows,
            self.gram + other.gram,  # type: ignore[operator]
            {name: getattr(self, name) + getattr(other, name) for name in _SUMS},
            torch.minimum(self.input_low, other.input_low),
            torch.maximum(self.input_high, other.input_high),
        )

    def __sub__(self, other: GridStatistics) -> GridStatistics:
        """Return the statistics without the rows of ``other``; raises `InvalidInputError` if they are not in here."""
        self._check_same(other)
        slack = 0.0 if self.noise is None else 1e-9  # weights are rounded, counts are not
        if bool((self.cell_counts * (1 + slack) < other.cell_counts).any()):
            msg = "These rows were never added: a cell of the grid holds fewer rows than are to be taken out of it."
            raise InvalidInputError(msg)
        return self._with(
            self.n_rows - other.n_rows,
            self.gram - other.gram,  # type: ignore[operator]
            {name: getattr(self, name) - getattr(other, name) for name in _SUMS},
            self.input_low,
            self.input_high,
        )

    def _with(
        self, n_rows: int, gram: StencilGram | SumGram | RowsGram, sums: dict[str, Tensor], low: Tensor, high: Tensor
    ) -> GridStatistics:
        return replace(self, n_rows=n_rows, gram=gram, input_low=low, input_high=high, **sums)  # type: ignore[arg-type]

    def _check_same(self, other: GridStatistics) -> None:
        mine = (self.grid, self.n_targets, self.n_probes, self.seed, self.noise)
        theirs = (other.grid, other.n_targets, other.n_probes, other.seed, other.noise)
        if mine != theirs:
            raise InvalidInputError(
                "Statistics can be added or subtracted if they have the same grid, number of targets, number of "
                f"probes, seed and unit of weights; got {mine} and {theirs}."
            )

    def all_reduce(self, group: ProcessGroup | None = None) -> GridStatistics:
        """Return the sum of the statistics of all processes of a ``torch.distributed`` group, the same on each.

        Raises
        ------
        InvalidInputError
            If the processes have different grids, targets or probes; raised in every process.
        """
        import torch.distributed as dist

        alike = [None] * dist.get_world_size(group)
        mine = (self.grid.to_dict(), self.n_targets, self.n_probes, self.seed, self.n_rows)
        dist.all_gather_object(alike, mine, group=group)
        if any(one[:-1] != mine[:-1] for one in alike):  # type: ignore[index]
            msg = f"Processes must have the same grid, number of targets, number of probes and seed; got {alike}."
            raise InvalidInputError(msg)
        sums = {name: getattr(self, name).clone() for name in _SUMS}
        values, low, high = self._formed.values.clone(), self.input_low.clone(), self.input_high.clone()
        for tensor in (values, *sums.values()):
            dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=group)
        dist.all_reduce(low, op=dist.ReduceOp.MIN, group=group)
        dist.all_reduce(high, op=dist.ReduceOp.MAX, group=group)
        n_rows = sum(one[-1] for one in alike)  # type: ignore[index]
        return self._with(n_rows, self._formed.with_values(values), sums, low, high)

    # Files ------------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the statistics as tensors and plain data, for `from_state`."""
        tensors = {f"gram.{name}": value for name, value in self.gram.state.items()}
        tensors |= {name: getattr(self, name) for name in (*_SUMS, "input_low", "input_high")}
        return tensors, {
            "grid": self.grid.to_dict(),
            "n_rows": self.n_rows,
            "seed": self.seed,
            "noise": self.noise,
        }

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], header: dict[str, Any]) -> GridStatistics:
        """Return the statistics that `state` described."""
        grid = grid_from_dict(header["grid"])
        own = {name.removeprefix("gram."): value for name, value in tensors.items() if name.startswith("gram.")}
        gram: StencilGram | SumGram | RowsGram
        if isinstance(grid, GridSum):
            gram = SumGram.from_state(grid, own)
        else:
            gram = RowsGram.from_state(grid, own) if "X" in own else StencilGram.from_state(grid, own)
        # versions without weights did not write them
        parts = {"weight_sums": torch.tensor([float(header["n_rows"]), 0.0], dtype=torch.float64)}
        parts |= {name: tensors[name] for name in (*_SUMS, "input_low", "input_high") if name in tensors}
        noise = header.get("noise")
        return cls(grid=grid, n_rows=header["n_rows"], gram=gram, seed=header["seed"], noise=noise, **parts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the statistics to one file (safetensors), atomically; raises `ModelFileError` if that fails."""
        save_state(path, _KIND, *self.state())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> GridStatistics:
        """Read what `save` wrote; raises `ModelFileError` if the file is missing, damaged or of another kind."""
        tensors, header = load_kind(path, _KIND)
        return cls.from_state(tensors, header)


def load_kind(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a gigagp file of one kind; raise `ModelFileError` if it is of another kind."""
    found, tensors, header = load_state(path)
    if found != kind:
        raise ModelFileError(f"{os.fspath(path)} holds a {found!r}, not a {kind!r}.")
    return tensors, header


def warn_if_repeated(sample: RowSample) -> None:
    """Warn (`GigaGPWarning`) if copies of rows bias the random signs that are made of the rows' contents."""
    if sample.repeated > max(_REPEATED, 4 * sample.size**-0.5):  # four standard errors of the estimate
        message = (
            f"About {sample.repeated:.0%} of the rows are exact copies of others, inputs and targets. Equal rows share "
            "their random signs, so log-determinants from these probes are biased. Add an input or a target that "
            "tells them apart, or merge them."
        )
        warn(message, GigaGPWarning)


def row_noise(value: Any, count: int) -> Tensor:
    """Return given noise variances of the rows, shape (count,), or raise `InvalidInputError`."""
    found = torch.as_tensor(value, dtype=torch.float64)
    if found.shape != (count,) or not bool((found.isfinite() & (found > 0)).all()):
        msg = f"noise of GridStatistics must hold a positive finite variance for each of {count} rows."
        raise InvalidInputError(msg)
    return found


def _one_each(value: Any, count: int, name: str, of: str = "targets") -> Tensor:
    found = torch.as_tensor(value, dtype=torch.float64)
    if found.ndim > 1 or (found.ndim == 1 and len(found) != count) or not bool(found.isfinite().all()):
        msg = f"{name} of GridStatistics must be a finite number, or one for each of {count} {of}; got {value!r}."
        raise InvalidInputError(msg)
    return found.expand(count)
