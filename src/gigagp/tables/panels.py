"""Panels as pandas and xarray have them, to long tables and back.

A panel is a table of entities by times: a DataFrame with a row for each entity and a column for each time, an
`xarray.DataArray` of two dimensions, or a Series with a MultiIndex of two levels. NaN is a cell that was not observed.
The first axis is that of the entities.

>>> import numpy as np, pandas as pd
>>> from gigagp import GPRegressor, panels
>>> hours = pd.Index(np.arange(12.0), name="hour")
>>> wind = pd.DataFrame(np.sin(hours.to_numpy() / 3)[None] + [[0.0], [1.0], [2.0]], columns=hours)
>>> wind.index = pd.Index(["a", "b", "c"], name="mast")
>>> wind.iloc[0, 6:] = np.nan
>>> X, y = panels.long(wind)
>>> gp = GPRegressor(panel=("mast", "hour")).fit(X, y)
>>> filled = panels.like(wind, gp.predict(panels.cells(wind)))
>>> bool(abs(filled.loc["a", 11.0] - np.sin(11 / 3)) < 0.2)
True
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from gigagp.errors import InvalidInputError
from gigagp.tables import intake

__all__ = ["cells", "like", "long"]


def long(data: Any) -> tuple[Any, np.ndarray]:
    """Return the observed cells of a panel as a long table and its targets.

    Parameters
    ----------
    data : pandas.DataFrame, pandas.Series or xarray.DataArray
        A panel. Of a DataArray, other coordinates along one dimension or both are columns of the table too.

    Returns
    -------
    X : pandas.DataFrame
        A row for each cell that is not NaN: the entity, the time, and the other coordinates. The names of the first two
        are those of the axes, or ``"entity"`` and ``"time"`` where these have none.
    y : ndarray of shape (n,)

    Raises
    ------
    InvalidInputError
        If this is no panel, or one of its values is infinite.
    """
    table = _series(data).to_frame() if _is_series(data) else cells(data)
    values = intake.numbers(data if _is_series(data) else data.to_numpy(), "data", finite=False).reshape(-1)
    if np.isinf(values).any():
        raise InvalidInputError(
            f"data must be numbers, or NaN where nothing was observed; {int(np.isinf(values).sum())} are infinite."
        )
    seen = ~np.isnan(values)
    return table[seen].reset_index(drop=True), values[seen]


def cells(data: Any) -> Any:
    """Return a row for each cell of a panel, observed or not, as a long table; the arguments are those of `long`.

    The cells of the first entity come first. Reindex a panel to ask for other entities or times. The cells of a Series
    are all of its entities at all of its times, both sorted.
    """
    if _is_series(data):
        return _series(data, whole=True).to_frame(index=False)
    if hasattr(data, "dims") and hasattr(data, "coords"):
        return _cells_of_array(data)
    if not hasattr(data, "iloc") or np.ndim(data) != 2:
        raise InvalidInputError(
            "data must be a DataFrame of entities by times, a Series with a MultiIndex of both, or a DataArray of two "
            f"dimensions; got {type(data).__name__}."
        )
    names = _names([data.index.name, data.columns.name])
    return _pandas().MultiIndex.from_product([data.index, data.columns], names=names).to_frame(index=False)


def like(data: Any, values: Any) -> Any:
    """Return a value for each row of ``cells(data)`` as a panel like data.

    Parameters
    ----------
    data : pandas.DataFrame, pandas.Series or xarray.DataArray
        A panel.
    values : array-like of shape (m,)
        Values of its cells, such as means or standard deviations.

    Returns
    -------
    pandas.DataFrame, pandas.Series or xarray.DataArray
    """
    index = _series(data, whole=True) if _is_series(data) else None
    shape = (len(index),) if index is not None else data.shape
    found = intake.numbers(values, "values", finite=False)
    if found.shape != (int(np.prod(shape)),):
        msg = f"values must have shape ({int(np.prod(shape))},), one for each cell of the panel; got {found.shape}."
        raise InvalidInputError(msg)
    if index is not None:
        return type(data)(found, index=index, name=data.name)
    if hasattr(data, "coords"):
        return data.copy(data=found.reshape(shape))
    return type(data)(found.reshape(shape), index=data.index, columns=data.columns)


def _is_series(data: Any) -> bool:
    return hasattr(data, "iloc") and np.ndim(data) == 1


def _series(data: Any, *, whole: bool = False) -> Any:
    """Return the index of a Series with names, or that of all its entities at all its times."""
    index = data.index
    if getattr(index, "nlevels", 1) != 2:
        raise InvalidInputError(
            "data must have a MultiIndex of two levels, the entity and the time; the index of this Series has "
            f"{getattr(index, 'nlevels', 1)}."
        )
    index = index.set_names(_names(index.names))
    if not whole:
        return index
    return _pandas().MultiIndex.from_product([index.get_level_values(k).unique().sort_values() for k in (0, 1)])


def _cells_of_array(data: Any) -> Any:
    """Return the cells of an xarray.DataArray, with its coordinates."""
    if len(data.dims) != 2:
        msg = f"data must have two dimensions, the entity and the time; this DataArray has {len(data.dims)}."
        raise InvalidInputError(msg)
    shape = data.shape
    axes = {name: data[name].to_numpy() for name in data.dims}
    others = {name: one for name, one in data.coords.items() if name not in axes and one.dims}
    columns = {}
    for name, values, dims in [
        *((name, values, (name,)) for name, values in axes.items()),
        *((name, one.to_numpy(), one.dims) for name, one in others.items()),
    ]:
        placed = values if len(dims) == 1 else (values if dims == data.dims else values.T)
        if len(dims) == 1:
            placed = placed[:, None] if dims[0] == data.dims[0] else placed[None, :]
        columns[str(name)] = np.broadcast_to(placed, shape).reshape(-1)
    return _pandas().DataFrame(columns)


def _pandas() -> Any:
    """Return pandas, which whoever has a panel has too; the package does not need it."""
    return importlib.import_module("pandas")


def _names(given: Any) -> list[str]:
    return [default if name is None else str(name) for name, default in zip(given, ("entity", "time"), strict=True)]
