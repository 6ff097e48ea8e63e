"""Places of a table: coordinates of its rows, and their coordinate reference system."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gigagp.errors import GigaGPWarning, InvalidInputError, warn
from gigagp.tables.files import find_column
from gigagp.tables.intake import frame_names, numbers

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


def system_of(crs: Any) -> Any:
    """Return the pyproj.CRS that anything that pyproj reads describes, such as ``EPSG:25832``."""
    pyproj = needed("pyproj", "A coordinate reference system")
    try:
        return pyproj.CRS.from_user_input(crs)
    except pyproj.exceptions.CRSError:
        msg = f"crs of Kriging must be a coordinate reference system that pyproj knows, such as EPSG:4326; got {crs!r}."
        raise InvalidInputError(msg) from None


def system_name(crs: Any) -> str:
    """Return the short name of a reference system, such as ``EPSG:25832``."""
    authority = None if crs is None else system_of(crs).to_authority()
    return str(crs) if authority is None else ":".join(authority)


@dataclass(frozen=True)
class Places:
    """Where the rows of a table are: X (n, 2), longitudes and latitudes in degrees, or eastings and northings.

    Those are in the unit of ``crs``, a pyproj.CRS, or None where it is not known. ``names`` are their columns, if a
    table had them.
    """

    X: np.ndarray
    crs: Any
    is_geographic: bool
    names: tuple[Any, Any] | None = None

    @classmethod
    def of(cls, table: Any, x: Any = None, y: Any = None, crs: Any = None) -> Places:
        """Return the places of a GeoDataFrame of points, of a table with columns of coordinates, or of an array.

        ``x`` and ``y`` name these columns. None: the points of a GeoDataFrame, else columns with known names. The first
        two columns of an array are coordinates. ``crs`` is anything that pyproj reads. None: that of the GeoDataFrame,
        or EPSG:4326 for columns with names such as ``lon``.
        """
        if (x is None) != (y is None):
            msg = f"x and y of Kriging must both name a column, or both be None; got {x!r} and {y!r}."
            raise InvalidInputError(msg)
        system = None if crs is None else system_of(crs)
        if hasattr(table, "dims") and hasattr(table, "coords"):
            msg = "The places of Kriging must be a table or an array, and not a raster. A map may have it as template."
            raise InvalidInputError(msg)
        named, names = False, None
        if x is None and hasattr(table, "geometry") and hasattr(table, "crs"):
            if system is not None and table.crs is not None and system != table.crs:
                own = system_name(table.crs)
                msg = f"crs of Kriging must be that of the GeoDataFrame, {own}; got {crs}. Use frame.to_crs."
                raise InvalidInputError(msg)
            system, X = table.crs if system is None else system, _of_points(table.geometry)
        elif is_table(table):
            names, named = ((x, y), False) if x is not None else _known_names(table)
            if named and system is None:
                system = system_of(_DEGREES)
            X = columns(table, names)
        else:
            X = array_of_places(table)[:, :2]
        if not len(X):
            raise InvalidInputError("The places of Kriging must have rows; got none.")
        return cls(X, system, _is_geographic(system, named=named), names)

    def require_plausible(self) -> None:
        """Refuse rows whose x and y are swapped, and warn of degrees under the name of a system in metres.

        The numbers show it only where no row is within the area in which the system is used.
        """
        swapped, in_degrees = _doubts(self.X, self.crs)
        if swapped:
            raise InvalidInputError(swapped)
        if in_degrees:
            warn(in_degrees, GigaGPWarning)

    def require_plausible_points(self, points: np.ndarray) -> None:
        """Refuse points (m, 2) to predict that are swapped or in degrees, while the rows are where they should be."""
        if self.is_geographic:
            near = (*(self.X.min(0) - 1.0), *(self.X.max(0) + 1.0))
            if not _within(points, near).any() and _within(points[:, ::-1], near).all():
                raise InvalidInputError(
                    f"All points of Kriging, such as ({points[0, 0]:.7g}, {points[0, 1]:.7g}), are far from the rows, "
                    "but among them if x and y are swapped. Longitude comes first, and then latitude."
                )
        elif (box := _area(self.crs)) is not None and _within(self.X, box).any():
            for doubt in _doubts(points, self.crs):
                if doubt:
                    raise InvalidInputError(doubt)

    def moved(self, table: Any) -> np.ndarray:
        """Return the places of other points, (m, 2), in the reference system of these rows.

        A table has the columns of these rows, or known names. What says nothing about its system is in that of the
        rows.
        """
        if self.names is not None and is_table(table) and set(self.names) <= set(column_names(table)):
            found = Places.of(table, *self.names, self.crs)
        else:
            found = Places.of(table)
        if self.crs is None and found.is_geographic != self.is_geographic:
            msg = "The points of Kriging are in degrees, and the rows in an unknown plane. Give Kriging a crs."
            raise InvalidInputError(msg)
        if found.crs is None or self.crs is None or found.crs == self.crs:
            return found.X
        pyproj = needed("pyproj", "Another coordinate reference system")
        turn = pyproj.Transformer.from_crs(found.crs, self.crs, always_xy=True)
        X = np.stack(turn.transform(found.X[:, 0], found.X[:, 1]), 1)
        wrong = np.flatnonzero(~np.isfinite(X).all(1))
        if len(wrong):
            row = int(wrong[0])
            where = f"{found.X[row].tolist()} in {system_name(found.crs)}"
            msg = f"Row {row} of the points of Kriging, {where}, has no coordinates in {system_name(self.crs)}."
            raise InvalidInputError(msg)
        return X

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


def array_of_places(values: Any) -> np.ndarray:
    """Return an array of float64 whose columns are x, y and, it may be, covariates."""
    found = numbers(values, "The array of places of Kriging")
    if found.ndim != 2 or found.shape[1] < 2:
        raise InvalidInputError(
            "An array of places of Kriging must have a row for each place and columns for x and y, as np.c_[x, y] "
            f"makes them; got shape {found.shape}."
        )
    return found


def is_table(values: Any) -> bool:
    """Whether values are a data frame of any kind, a mapping of names to columns, or a GeoSeries of points."""
    return isinstance(values, Mapping) or hasattr(values, "geom_type") or frame_names(values) is not None


def column_names(table: Any) -> list[Any]:
    """Return the names of the columns of a table, as it has them."""
    if isinstance(table, Mapping):
        return list(table)
    return list(getattr(table, "column_names", getattr(table, "columns", ())))


def columns(table: Any, names: Sequence[Any]) -> np.ndarray:
    """Return columns of a table, (n, number of names), as finite float64 numbers."""
    found = [column(table, name) for name in names]
    lengths = {name: len(one) for name, one in zip(names, found, strict=True)}
    if len(set(lengths.values())) > 1:
        named, counts = (", ".join(map(str, part)) for part in (lengths, lengths.values()))
        raise InvalidInputError(f"Columns {named} of the table of Kriging must have one length; got {counts}.")
    return np.stack(found, 1)


def column(table: Any, name: Any, *, finite: bool = True) -> np.ndarray:
    """Return a column of a table as float64 numbers, one for each row; NaN and infinity pass unless ``finite``."""
    if not is_table(table):
        msg = f"target of Kriging names the column {name!r} of an array, which has no names. Give the values instead."
        raise InvalidInputError(msg)
    if name not in column_names(table):
        known = {str(one): one for one in column_names(table)}
        name = known[find_column(str(name), list(known), "The table of Kriging")]
    found = numbers(table[name], f"Column {name!r} of the table of Kriging", finite=finite)
    if found.ndim != 1:
        msg = f"Column {name!r} of the table of Kriging must hold one number for each row; got shape {found.shape}."
        raise InvalidInputError(msg)
    return found


def with_columns(table: Any, added: dict[str, np.ndarray]) -> Any:
    """Return a copy of a table with further columns, in place of those of the same names."""
    if hasattr(table, "assign"):
        return table.assign(**added)
    if hasattr(table, "geom_type"):  # a GeoSeries
        return needed("geopandas", "A table of points").GeoDataFrame(added, geometry=table, index=table.index)
    if isinstance(table, Mapping):
        return {**table, **added}
    if hasattr(table, "with_columns"):
        return table.with_columns(**added)
    kept = table.select([name for name in table.column_names if name not in added])
    for name, values in added.items():
        kept = kept.append_column(name, [values])
    return kept


def _known_names(table: Any) -> tuple[tuple[Any, Any], bool]:
    """Return the columns of coordinates by their names, and whether these are longitudes and latitudes."""
    names = {str(name).lower(): name for name in column_names(table)}
    for x, y, named in _KNOWN:
        if {x, y} <= names.keys():
            return (names[x], names[y]), named
    pairs = ", ".join(f"{one[0]} and {one[1]}" for one in _KNOWN)
    raise InvalidInputError(
        f"The table of Kriging must be a GeoDataFrame, have columns {pairs}, or be given with x and y; its columns are "
        f"{', '.join(map(str, names.values()))}."
    )


def _within(points: np.ndarray, box: Sequence[float]) -> np.ndarray:
    """Return whether points (n, 2) are within the box (west, south, east, north)."""
    inside = (points >= np.asarray(box[:2])) & (points <= np.asarray(box[2:]))
    return np.all(inside, axis=1)


def _area(crs: Any) -> tuple[float, float, float, float] | None:
    """Return the box (west, south, east, north) in which a reference system is used, in its unit, if that is known."""
    area = None if crs is None else crs.area_of_use
    if area is None or area.west > area.east:  # across the date line
        return None
    if crs.is_geographic:
        return area.bounds
    turn = needed("pyproj", "A coordinate reference system").Transformer.from_crs(crs.geodetic_crs, crs, always_xy=True)
    box = turn.transform_bounds(*area.bounds)
    return box if np.isfinite(box).all() else None


def _doubts(X: np.ndarray, crs: Any) -> tuple[str, str]:
    """Return sentences on places (n, 2) out of the area of their system: x and y are swapped; these are degrees."""
    box = _area(crs)
    if box is None or _within(X, box).any():
        return "", ""
    extent = f"x from {box[0]:.7g} to {box[2]:.7g} and y from {box[1]:.7g} to {box[3]:.7g}"
    start = f"All places of Kriging are outside the area of {system_name(crs)}, {extent}, and"
    swapped = in_degrees = ""
    if _within(X[:, ::-1], box).all():
        swapped = f"{start} inside if x and y are swapped. Give x (longitude, easting) first, and then y."
    if not crs.is_geographic and _within(X, (-180, -90, 360, 90)).all():
        in_degrees = (
            f"{start} could be longitudes and latitudes in degrees. If they are, say so with "
            'crs="EPSG:4326", and move them with to_crs.'
        )
    return swapped, in_degrees


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
            got = system_name(crs)
            msg = f"crs of Kriging must be one of degrees for columns of longitudes and latitudes; got {got}."
            raise InvalidInputError(msg)
        return False
    units = {axis.unit_name for axis in crs.axis_info[:2]}
    if not units <= {"degree", "degree (supplier to define representation)"}:
        got = f"{system_name(crs)} in {', '.join(sorted(units))}"
        raise InvalidInputError(f"A geographic crs of Kriging must be in degrees; got {got}. Use to_crs.")
    return True
