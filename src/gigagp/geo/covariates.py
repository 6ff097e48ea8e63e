"""Covariates of a kriging model: columns beside the places, or the cells of rasters in which places lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.geo.places import Places, array_of_places, columns, is_table
from gigagp.geo.rasters import axes_of, require_overlap, require_same_system

#: How far beyond the outer edge of a raster a place may lie, in cells: edges follow from centres, which are rounded.
_ROUNDING = 1e-6


def beside(table: Any, names: Sequence[str], n_rows: int) -> np.ndarray:
    """Return the covariates of the rows of a table by their names, or of an array after its coordinates, (n, c)."""
    if is_table(table):
        found = columns(table, names) if names else np.empty((n_rows, 0))
        if len(found) != n_rows:
            msg = f"The covariates of Kriging must have one value for each of {n_rows} places; got {len(found)}."
            raise InvalidInputError(msg)
        return found
    found = array_of_places(table)[:, 2:]
    if found.shape[1] != len(names):
        wanted = f"x and y, and the covariates {', '.join(names)}" if names else "x and y"
        msg = f"An array of places of Kriging must have the columns {wanted}; got {found.shape[1] + 2} columns."
        raise InvalidInputError(f"{msg} Kriging(covariates=[...]) names further ones.")
    return found


@dataclass(frozen=True)
class Layer:
    """A raster of one covariate: values (n_y, n_x) in cells whose edges along each axis ascend."""

    name: str
    values: np.ndarray
    y_edges: np.ndarray
    x_edges: np.ndarray
    nodata: float | None
    is_geographic: bool

    @classmethod
    def of(cls, array: Any, name: str, places: Places) -> Layer:
        """Return the layer of an xarray.DataArray; cells with its nodata value have none."""
        if not hasattr(array, "dims"):
            got = type(array).__name__
            raise InvalidInputError(f"The raster of {name} of Kriging must be an xarray.DataArray; got {got}.")
        label = f"The raster of {name}"
        dims, axes = axes_of(array, label)
        require_same_system(places, array, label)
        found = array.squeeze([one for one in array.dims if one not in dims and array.sizes[one] == 1], drop=True)
        if set(found.dims) != set(dims):
            raise InvalidInputError(
                f"{label} of Kriging must have one value in each cell; its dimensions are "
                f"{', '.join(map(str, found.dims))}. Take one band."
            )
        packing = array.attrs.get("scale_factor", 1.0), array.attrs.get("add_offset", 0.0)
        if packing != (1.0, 0.0):
            msg = f"{label} of Kriging has a scale and an offset, {packing}, that were not applied."
            raise InvalidInputError(f"{msg} Open it with rioxarray.open_rasterio(path, mask_and_scale=True).")
        orders = [np.argsort(axis) for axis in axes]
        y_edges, x_edges = (_edges(axis[order], label) for axis, order in zip(axes, orders, strict=True))
        require_overlap(places, y_edges, x_edges, label)
        values = found.transpose(*dims).values[np.ix_(*orders)]
        nodata = array.rio.nodata if hasattr(array, "rio") else None
        if nodata is not None and values.dtype.kind == "f":
            nodata = float(values.dtype.type(nodata))
        return cls(name, values, y_edges, x_edges, nodata, places.is_geographic)

    def at(self, points: np.ndarray) -> np.ndarray:
        """Return the values of the cells in which points (..., 2) lie; NaN where there is no cell or no value."""
        x, y = points[..., 0], points[..., 1]
        if self.is_geographic:
            x = self.x_edges[0] + (x - self.x_edges[0]) % 360.0
        row, column = (_cell(edges, one) for edges, one in ((self.y_edges, y), (self.x_edges, x)))
        found = self.values[row.clip(0), column.clip(0)].astype(np.float64)
        missing = (row < 0) | (column < 0)
        if self.nodata is not None:
            missing |= found == self.nodata
        return np.where(missing, np.nan, found)


def layers_of(given: Any, names: Sequence[str], places: Places) -> list[Layer]:
    """Return a layer for each covariate of the model from a Dataset, a mapping of names, or the raster of one."""
    if not names:
        msg = "covariates were given to a Kriging that has none. Name them: Kriging(covariates=[...])."
        raise InvalidInputError(msg)
    if not isinstance(given, Mapping):
        if len(names) > 1:
            msg = f"covariates of Kriging must be a Dataset or a dictionary with {', '.join(names)}; got one raster."
            raise InvalidInputError(msg)
        given = {names[0]: given}
    absent = [name for name in names if name not in given]
    if absent:
        msg = f"covariates of Kriging must have {', '.join(names)}; {', '.join(absent)} not in {', '.join(given)}."
        raise InvalidInputError(msg)
    return [Layer.of(given[name], name, places) for name in names]


def sampled(layers: Sequence[Layer], points: np.ndarray) -> np.ndarray:
    """Return the values of layers at points (m, 2), shape (m, c); raise `InvalidInputError` where one is missing."""
    found = np.stack([layer.at(points) for layer in layers], -1)
    missing = np.argwhere(~np.isfinite(found))
    if len(missing):
        row, place = (int(one) for one in missing[0])
        raise InvalidInputError(
            f"The raster of {layers[place].name} of Kriging has no value at {len(np.unique(missing[:, 0])):,} of "
            f"{len(points):,} places; the first is row {row} at ({points[row, 0]:.7g}, {points[row, 1]:.7g}). Leave "
            "these places out, or fill the raster."
        )
    return found


def _edges(axis: np.ndarray, name: str) -> np.ndarray:
    """Return the edges of cells, whose centres ascend: between them, and as far beyond the outer ones."""
    if len(axis) < 2 or (np.diff(axis) <= 0).any():
        raise InvalidInputError(f"{name} of Kriging must have two or more different centres along x and along y.")
    middles = (axis[1:] + axis[:-1]) / 2
    reach = (axis[[1, -1]] - axis[[0, -2]]) * (0.5 + _ROUNDING)
    return np.concatenate([[axis[0] - reach[0]], middles, [axis[-1] + reach[1]]])


def _cell(edges: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the numbers of the cells in which values lie; -1 for none."""
    found = np.searchsorted(edges, values, side="right") - 1
    return np.where(found > len(edges) - 2, -1, found)
