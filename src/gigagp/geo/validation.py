"""Cross-validation of maps by blocks: whole areas are held out, as where nobody has measured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.model_selection import GroupKFold

from gigagp.errors import InvalidInputError
from gigagp.geo.pictures import draw_places, placed_figure
from gigagp.geo.places import Places
from gigagp.geo.rasters import steps_of
from gigagp.plots import Predicted, calibration, residuals
from gigagp.storage.figures import save_figure, style

#: Blocks with rows for each fold, where no size is given, and how often the extent is halved for them at most.
_BLOCKS_PER_FOLD, _HALVINGS = 4, 30


class BlockKFold(GroupKFold):
    """Folds of whole blocks of a map, for ``cv`` of `Kriging.cross_validate` and of scikit-learn's tools.

    When to use: to see how good a map is between and beyond the places. With folds of single rows, each place keeps its
    neighbours, and scores are too good.

    Parameters
    ----------
    n_splits : int, default 5
        Number of folds, of about equal numbers of rows.
    block_size : float or (float, float), optional
        Side of the blocks along x and y, in the unit of the coordinates. Use more than the distance over which rows are
        correlated. None: the extent of the rows, halved until there are four blocks with rows for each fold.
    shuffle : bool, default False
        Whether blocks are assigned to the folds at random.
    random_state : int or RandomState, optional
        Seed for ``shuffle``.

    Raises
    ------
    InvalidInputError
        If ``n_splits`` is not an int of at least two.
    """

    def __init__(
        self,
        n_splits: int = 5,
        *,
        block_size: float | tuple[float, float] | None = None,
        shuffle: bool = False,
        random_state: Any = None,
    ) -> None:
        if isinstance(n_splits, bool) or not isinstance(n_splits, int | np.integer) or n_splits < 2:
            raise InvalidInputError(f"n_splits of BlockKFold must be an int of at least 2; got {n_splits!r}.")
        super().__init__(n_splits, shuffle=shuffle, random_state=random_state)
        self.block_size = block_size

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the numbers of the rows of each fold: those to learn from, and those to predict.

        Parameters
        ----------
        X : GeoDataFrame of points, table with columns of coordinates, or array of shape (n, 2) or more
            The places, as for `Kriging.fit`.
        y, groups : optional
            Not read.

        Raises
        ------
        InvalidInputError
            If there are fewer blocks with rows than folds.
        """
        places = X if isinstance(X, Places) else Places.of(X)
        yield from super().split(places.X, groups=self.blocks(places.continuous(places.X)))

    def blocks(self, X: np.ndarray) -> np.ndarray:
        """Return the numbers of the blocks in which places (n, 2) lie, from 0; refuse fewer blocks than folds."""
        block = self._blocks(X)
        count = int(block.max()) + 1
        if count >= self.n_splits:
            return block
        if self.block_size is None:
            raise InvalidInputError(
                f"n_splits of BlockKFold must be at most the number of different places, {count}; got {self.n_splits}. "
                "Take fewer folds."
            )
        raise InvalidInputError(
            f"block_size of BlockKFold must leave rows in at least {self.n_splits} blocks, one for each fold; "
            f"{self.block_size!r} makes {count}. Take a smaller size, or fewer folds."
        )

    def _blocks(self, X: np.ndarray) -> np.ndarray:
        low = X.min(0)
        if self.block_size is not None:
            return _numbered(X - low, steps_of(self.block_size, "block_size of BlockKFold"))
        size = max(float((X - low).max()), np.finfo(float).tiny)
        for _ in range(_HALVINGS):
            block = _numbered(X - low, np.full(2, size))
            if block.max() + 1 >= _BLOCKS_PER_FOLD * self.n_splits:
                break
            size /= 2
        return block


def _numbered(X: np.ndarray, steps: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.unique(np.floor(X / steps), axis=0, return_inverse=True)[1].ravel()
    return found


@dataclass(frozen=True)
class CrossValidation:
    """Measurements beside their predictions by models that were fitted without the fold.

    Attributes
    ----------
    table : GeoDataFrame or dict of str to ndarray
        A row for each place in the order of the fit: ``observed``, ``mean`` and ``std`` of the measurement,
        ``residual`` (observed - mean), ``standardized`` (residual over std) and the number of its ``fold``.
    predicted : Predicted
        The same for `gigagp.plots.residuals` and `gigagp.plots.calibration`.
    places : Places
        Coordinates of the rows.
    target : str
        What was measured.
    """

    table: Any
    predicted: Predicted
    places: Places
    target: str

    @property
    def rmse(self) -> float:
        """Root mean square error, in the unit of the measurements."""
        return float(np.sqrt(np.mean((self.predicted.y - self.predicted.mean) ** 2)))

    @property
    def nll(self) -> float:
        """Mean negative log density of the measurements, in nats."""
        return -float(self.predicted.log_density.mean())

    def coverage(self, level: float = 0.95) -> float:
        """Return the fraction of the measurements inside their central intervals of this probability."""
        return self.predicted.share_inside(level)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw the folds on a map, residuals against predictions, and the calibration of the intervals.

        Parameters
        ----------
        path : str or path, optional
            File for the picture: PNG, PDF or SVG. None: the figure is shown as pyplot shows figures.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        InvalidInputError
            If matplotlib is not installed, or the file cannot be written.
        """
        figure = placed_figure(path, 13.0, 4.4)
        with style():
            ax = figure.add_subplot(1, 3, 1)
            fold = np.asarray(self.table["fold"])
            draw_places(ax, self.places, fold, f"{fold.max() + 1} folds")
            residuals(None, ax=figure.add_subplot(1, 3, 2), label=self.target, found=self.predicted)
            calibration(None, ax=figure.add_subplot(1, 3, 3), found=self.predicted)
        if path is not None:
            save_figure(figure, path)
        return figure

    def __str__(self) -> str:
        """Return the scores in words."""
        n = len(self.predicted.y)
        return (
            f"{np.max(self.table['fold']) + 1} folds of {n:,} rows: RMSE {self.rmse:.4g}, negative log density "
            f"{self.nll:.4g}, {100 * self.coverage():.1f} % of the measurements inside their 95 % intervals"
        )


def joined(parts: list[Predicted], rows: list[np.ndarray]) -> Predicted:
    """Return the predictions of folds as one, in the order of the rows."""
    order = np.argsort(np.concatenate(rows))
    y, mean, std, rank, density = (
        np.concatenate([getattr(part, name) for part in parts])[order]
        for name in ("y", "mean", "std", "rank", "log_density")
    )
    return Predicted(y, mean, std, rank, density, f"rows of {len(parts)} held-out folds")
