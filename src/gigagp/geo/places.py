"""Places of a table: coordinates of its rows, and their coordinate reference system."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.tables.intake import numbers

#: Names of the columns of coordinates that are known, and whether they are longitudes and latitudes in degrees.
_KNOWN = (
    ("longitude", "latitude", True),
    ("lon", "lat", True),
    ("lng", "lat", True),
    ("easting", "northing", False),
    ("x", "y", False),
)
#: Reference system of columns that are named as longitudes and latitudes: that of GPS.
_DEGREES = "EPSG:4326"


def needed(module: str, purpose: str) -> Any:
    """Return a package of the extra ``geo``, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InvalidInputError(f'{purpose} needs {module}. Install it with pip install "gigagp[geo]".') from error


@dataclass(frozen=True)
class Places:
    """Where the rows of a table are: X (n, 2), longitudes and latitudes in degrees, or eastings and northings.

    Those are in the unit of ``crs``, a pyproj.CRS, or None where it is not known.
    """

    X: np.ndarray
    crs: Any
    is_geographic: bool

    @classmethod
    def of(cls, frame: Any, x: str | None = None, y: str | None = None, crs: Any = None) -> Places:
        """Return the places of a GeoDataFrame of points, or of a table with two columns of coordinates.

        ``x`` and ``y`` name these columns. None: the points of a GeoDataFrame, else columns with known names. ``crs``
        is anything that pyproj reads. None: that of the GeoDataFrame, or EPSG:4326 for columns with names such as
        ``lon``.
        """
        if (x is None) != (y is None):
            msg = f"x and y of Kriging must both name a column, or both be None; got {x!r} and {y!r}."
            raise InvalidInputError(msg)
        system = None if crs is None else needed("pyproj", "A coordinate reference system").CRS.from_user_input(crs)
        if x is None and hasattr(frame, "geometry"):
            if system is not None and frame.crs is not None and system != frame.crs:
                msg = f"crs of Kriging must be that of the GeoDataFrame, {frame.crs}; got {crs}. Use frame.to_crs."
                raise InvalidInputError(msg)
            system = frame.crs if system is None else system
            return cls(_of_points(frame.geometry), system, _is_geographic(system, named=False))
        named = False
        if x is None or y is None:
            columns = {str(name).lower(): name for name in frame}
            known = [one for one in _KNOWN if {one[0], one[1]} <= columns.keys()]
            if not known:
                pairs = ", ".join(f"{one[0]} and {one[1]}" for one in _KNOWN)
                raise InvalidInputError(
                    f"The table of Kriging must be a GeoDataFrame, have columns {pairs}, or be given with x and y; its "
                    f"columns are {', '.join(map(str, frame))}."
                )
            x, y, named = columns[known[0][0]], columns[known[0][1]], known[0][2]
        across, up = column(frame, x), column(frame, y)
        if len(across) != len(up):
            msg = f"Columns {x!r} and {y!r} of the table of Kriging must have one length; got {len(across)}, {len(up)}."
            raise InvalidInputError(msg)
        X = np.stack([across, up], 1)
        if named and system is None:
            system = needed("pyproj", "A coordinate reference system").CRS.from_user_input(_DEGREES)
        return cls(X, system, _is_geographic(system, named=named))

    @cached_property
    def longitudes(self) -> tuple[float, float]:
        """Range of the longitudes, or eastings, of the rows.

        Where it is less than half of the way around the Earth, it is that narrow range, also of rows on both sides of
        the date line or, with longitudes from 0 to 360, of Greenwich.
        """
        longitude = self.X[:, 0]
        low, high = float(longitude.min()), float(longitude.max())
        if not self.is_geographic:
            return low, high
        around = np.sort((longitude + 180.0) % 360.0 - 180.0)
        gaps = np.diff(around, append=around[0] + 360.0)
        last = int(np.argmax(gaps))
        if gaps[last] <= 180.0 or 360.0 - gaps[last] > high - low - 1e-9:
            return low, high
        if last == len(gaps) - 1:
            return float(around[0]), float(around[-1])
        return float(around[last + 1]), float(around[last] + 360.0)

    def continuous(self, points: np.ndarray) -> np.ndarray:
        """Return points, (..., 2), whose longitudes do not jump within the rows, so that a trend does not either."""
        low, high = self.longitudes
        if low == self.X[:, 0].min() and high == self.X[:, 0].max():
            return points
        moved = points.copy()
        start = 0.5 * (low + high) - 180.0
        moved[..., 0] = (points[..., 0] - start) % 360.0 + start
        moved[..., 0] -= 360.0 * (moved[..., 0] > 360.0)  # kernels take no more, and no row lies there
        return moved

    @property
    def dims(self) -> tuple[str, str]:
        """Names of the dimensions of a map, from north to south and from west to east."""
        return ("latitude", "longitude") if self.is_geographic else ("y", "x")


def column(frame: Any, name: str) -> np.ndarray:
    """Return a column of a table as float64 numbers, one finite number for each row."""
    try:
        values = np.asarray(frame[name])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        msg = f"The table of Kriging has no column {name!r}; its columns are {', '.join(map(str, frame))}."
        raise InvalidInputError(msg) from error
    found = numbers(values, f"Column {name!r} of the table of Kriging")
    if found.ndim != 1:
        msg = f"Column {name!r} of the table of Kriging must hold one number for each row; got shape {found.shape}."
        raise InvalidInputError(msg)
    return found


def _of_points(geometry: Any) -> np.ndarray:
    kinds = np.asarray(geometry.geom_type, dtype=object)
    empty = np.asarray(geometry.is_empty | geometry.isna())
    wrong = np.flatnonzero((kinds != "Point") | empty)
    if len(wrong):
        row = int(wrong[0])
        got = "no geometry" if empty[row] else f"a {kinds[row]}"
        msg = f"The geometries of Kriging must be points; got {got} in row {row}. Use centroids, for example."
        raise InvalidInputError(msg)
    return np.stack([np.asarray(geometry.x, dtype=np.float64), np.asarray(geometry.y, dtype=np.float64)], 1)


def _is_geographic(crs: Any, *, named: bool) -> bool:
    if crs is None:
        return named
    if not crs.is_geographic:
        if named:
            msg = f"crs of Kriging must be one of degrees for columns of longitudes and latitudes; got {crs}."
            raise InvalidInputError(msg)
        return False
    units = {axis.unit_name for axis in crs.axis_info[:2]}
    if not units <= {"degree", "degree (supplier to define representation)"}:
        msg = f"A geographic crs of Kriging must be in degrees; got {crs} in {', '.join(sorted(units))}. Use to_crs."
        raise InvalidInputError(msg)
    return True
