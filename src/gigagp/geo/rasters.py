"""Grids of maps: cells in rows from north to south, as xarray and GeoTIFF have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.geo.places import Places, needed, system_name, system_of

#: Largest number of cells of a map whose coordinates were not given.
_MOST_CELLS = 25_000_000
_NAMES = (("y", "x"), ("latitude", "longitude"), ("lat", "lon"))


@dataclass(frozen=True)
class Raster:
    """Centres of the cells of a map along y (n_y,) and x (n_x,), with the names of these dimensions.

    The map has the reference system of the rows' places.
    """

    y: np.ndarray
    x: np.ndarray
    dims: tuple[str, str]
    places: Places

    @classmethod
    def of(
        cls,
        places: Places,
        resolution: Any = None,
        bounds: Any = None,
        template: Any = None,
        x: Any = None,
        y: Any = None,
    ) -> Raster:
        """Return the grid that one of the arguments asks for; see `gigagp.geo.Kriging.predict`."""
        asked = [resolution is not None, template is not None, x is not None or y is not None]
        if sum(asked) != 1 or (x is None) != (y is None) or (bounds is not None and resolution is None):
            msg = (
                "predict of Kriging takes points; a map takes either resolution (with bounds, if any), or template, or "
                "both x and y."
            )
            raise InvalidInputError(msg)
        if template is not None:
            dims, axes = axes_of(template, "template")
            require_same_system(places, template, "template")
            require_overlap(places, *axes, "template")
            return cls(*axes, dims, places)
        if resolution is None:
            return cls(_axis(y, "y"), _axis(x, "x"), places.dims, places)
        steps = steps_of(resolution, "resolution of Kriging")
        corners = _bounds(places, bounds)
        if bounds is not None:
            require_overlap(places, corners[1::2], corners[::2], "bounds")
        counts = np.maximum(np.ceil((corners[2:] - corners[:2]) / steps - 1e-9), 1)
        if counts.prod() > _MOST_CELLS:
            raise InvalidInputError(
                f"resolution of Kriging makes {counts.prod():,.0f} cells; at most {_MOST_CELLS:,} are computed at once."
            )
        across, up = (corners[k] + steps[k] * (np.arange(int(counts[k])) + 0.5) for k in (0, 1))
        if places.is_geographic:  # the last cell may reach beyond the pole, but not its centre
            up = up[up <= 90.0]
        return cls(up[::-1], across, places.dims, places)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of cells along y and along x."""
        return len(self.y), len(self.x)

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return len(self.y) * len(self.x)

    def points(self, cells: slice = slice(None)) -> np.ndarray:
        """Return the centres of some cells, which are numbered row by row, shape (m, 2)."""
        row, place = np.divmod(np.arange(*cells.indices(self.n_cells)), len(self.x))
        return np.stack([self.x[place], self.y[row]], 1)

    def corners(self) -> np.ndarray:
        """Return the south-western and the north-eastern centre, shape (2, 2)."""
        return np.array([[self.x.min(), self.y.min()], [self.x.max(), self.y.max()]])

    def cells(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and the upper corners of the cells row by row, each of shape (n_y * n_x, 2)."""
        sizes = np.array([_spacing(self.x, self.dims[1]), _spacing(self.y, self.dims[0])])
        low, high = self.points() - sizes / 2, self.points() + sizes / 2
        if self.places.is_geographic:
            low[:, 1], high[:, 1] = low[:, 1].clip(-90, 90), high[:, 1].clip(-90, 90)
        return low, high

    def dataset(self, variables: dict[str, np.ndarray], attributes: dict[str, dict[str, str]]) -> Any:
        """Return an xarray.Dataset of variables, (n_y * n_x,) each, with the reference system of the rows."""
        xarray = needed("xarray", "A map")
        found = xarray.Dataset(
            {name: (self.dims, values.reshape(self.shape), attributes[name]) for name, values in variables.items()},
            coords={self.dims[0]: self.y, self.dims[1]: self.x},
        )
        if self.places.crs is None:
            return found
        needed("rioxarray", "A map with a coordinate reference system")
        placed = found.rio.set_spatial_dims(self.dims[1], self.dims[0])
        return placed.rio.write_crs(self.places.crs).rio.write_coordinate_system()


def steps_of(size: Any, name: str) -> np.ndarray:
    """Return the sizes along x and y, (2,), of cells or blocks for one number or two."""
    try:
        steps = np.broadcast_to(np.asarray(size, dtype=np.float64), (2,))
    except (TypeError, ValueError):
        steps = np.zeros(2)
    if not (np.isfinite(steps) & (steps > 0)).all():
        raise InvalidInputError(f"{name} must be a positive number, or one along x and one along y; got {size!r}.")
    return steps


def _bounds(places: Places, bounds: Any) -> np.ndarray:
    if bounds is None:
        low, high = places.X.min(0), places.X.max(0)
        low[0], high[0] = places.longitudes
        return np.concatenate([low, high])
    try:
        corners = np.asarray(bounds, dtype=np.float64)
    except (TypeError, ValueError):
        corners = np.zeros(0)
    if corners.shape != (4,) or not np.isfinite(corners).all() or not (corners[:2] < corners[2:]).all():
        raise InvalidInputError(
            f"bounds of Kriging must be (west, south, east, north), with west < east and south < north; got {bounds!r}."
        )
    return corners


def _axis(values: Any, name: str) -> np.ndarray:
    try:
        axis = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        axis = np.zeros(0)
    if axis.ndim != 1 or not len(axis) or not np.isfinite(axis).all():
        raise InvalidInputError(f"{name} of a map of Kriging must be finite numbers along one axis; got {values!r}.")
    return axis


def _spacing(axis: np.ndarray, name: str) -> float:
    steps = np.abs(np.diff(axis))
    if not len(steps) or not np.allclose(steps, steps[0], rtol=1e-6, atol=0) or steps[0] == 0:
        msg = f"{name} of the cells of Kriging must be evenly spaced, two centres or more; give resolution and bounds."
        raise InvalidInputError(msg)
    return float(steps[0])


def axes_of(raster: Any, name: str) -> tuple[tuple[str, str], tuple[np.ndarray, np.ndarray]]:
    """Return the names of the dimensions of an xarray object along y and x, and the centres of its cells there."""
    coordinates = getattr(raster, "coords", ())
    found = next((names for names in _NAMES if set(names) <= set(coordinates)), None)
    if found is None:
        got = ", ".join(map(str, coordinates)) or type(raster).__name__
        raise InvalidInputError(
            f"{name} of Kriging must have coordinates y and x, or latitude and longitude; got {got}."
        )
    down, across = (_axis(np.asarray(raster[one]), one) for one in found)
    return found, (down, across)


def require_same_system(places: Places, raster: Any, name: str) -> None:
    """Refuse a raster in another reference system than the rows; one that says nothing is taken as it is."""
    if places.crs is None:
        return
    needed("rioxarray", "A map with a coordinate reference system")
    system = raster.rio.crs
    if system is not None and places.crs != system_of(system):
        own, other = system_name(places.crs), system_name(system)
        msg = f"{name} of Kriging must have the crs of the rows, {own}; got {other}. Use rio.reproject."
        raise InvalidInputError(msg)


def require_overlap(places: Places, y: np.ndarray, x: np.ndarray, name: str) -> None:
    """Refuse cells along y and x of which the extent and that of the rows have nothing in common."""
    west, east = places.longitudes
    south, north = places.X[:, 1].min(), places.X[:, 1].max()
    turns = (-360.0, 0.0, 360.0) if places.is_geographic else (0.0,)
    if y.min() <= north and y.max() >= south and any(x.min() + k <= east and x.max() + k >= west for k in turns):
        return
    raise InvalidInputError(
        f"{name} of Kriging must overlap with the rows, x from {west:.7g} to {east:.7g} and y from {south:.7g} to "
        f"{north:.7g}; got x from {x.min():.7g} to {x.max():.7g} and y from {y.min():.7g} to {y.max():.7g}. See "
        "whether both have one reference system, with x (longitude, easting) first."
    )
