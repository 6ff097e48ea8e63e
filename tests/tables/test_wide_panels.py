"""Panels of pandas and xarray as long tables, and back."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gigagp import GPRegressor, panels
from gigagp.errors import InvalidInputError

xarray = pytest.importorskip("xarray")

SHAPE = (4, 6)


def values() -> np.ndarray:
    draw = np.random.default_rng(0)
    found = draw.normal(size=SHAPE)
    found[draw.random(SHAPE) < 0.3] = np.nan
    found[2] = np.nan
    return found


def panel(kind: str):
    Y, masts = values(), list("dbca")
    if kind == "array":
        coords = {
            "mast": masts,
            "height": ("mast", [5.0, 1, 3, 2]),
            "rain": (("hour", "mast"), np.arange(24.0).reshape(6, 4)),
        }
        return xarray.DataArray(Y, dims=("mast", "hour"), coords=coords)
    frame = pd.DataFrame(Y, index=pd.Index(masts, name="mast"), columns=pd.Index(range(6), name="hour"))
    return frame if kind == "frame" else frame.stack()


@pytest.mark.parametrize("kind", ["frame", "series", "array"])
def test_long_tables_and_back(kind):
    data, Y = panel(kind), values()
    X, y = panels.long(data)
    every = panels.cells(data)
    assert list(X.columns)[:2] == list(every.columns)[:2] == ["mast", "hour"]
    assert len(y) == len(X) == np.isfinite(Y).sum()
    for row in (0, 5, len(y) - 1):
        place = "dbca".index(X["mast"][row])
        assert y[row] == Y[place, X["hour"][row]]
        if kind == "array":
            assert X["height"][row] == [5, 1, 3, 2][place]
            assert X["rain"][row] == 4 * X["hour"][row] + place
    marks = np.arange(float(len(every)))
    again = panels.like(data, marks)
    assert type(again) is type(data)
    for number in (0, 7, len(every) - 1):
        mast, hour = every["mast"][number], every["hour"][number]
        found = again.sel(mast=mast, hour=hour) if kind == "array" else None
        found = again.loc[(mast, hour)] if kind == "series" else found
        found = again.loc[mast, hour] if kind == "frame" else found
        assert float(found) == number
    with pytest.raises(InvalidInputError, match="one for each cell"):
        panels.like(data, marks[1:])


def test_names_that_there_are_not():
    bare = pd.DataFrame(values())
    assert list(panels.cells(bare).columns) == ["entity", "time"]
    array = xarray.DataArray(values(), dims=("a", "b"))
    assert panels.cells(array)["b"].tolist()[:7] == [0, 1, 2, 3, 4, 5, 0]


def test_what_is_no_panel_is_refused():
    for data, words in (
        (values(), "DataFrame of entities by times"),
        (pd.Series([1.0, 2.0]), "MultiIndex of two levels"),
        (xarray.DataArray(np.zeros(3), dims="a"), "two dimensions"),
        (pd.DataFrame([[np.inf, 1.0]]), "1 are infinite"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            panels.long(data)


def test_all_kinds_are_one_model_and_gaps_are_filled():
    found = []
    for kind in ("frame", "series"):
        data = panel(kind)
        X, y = panels.long(data)
        gp = GPRegressor(panel=("mast", "hour"), optimizer=None).fit(X, y)
        filled = panels.like(data, gp.predict(panels.cells(data)))
        filled = filled.unstack() if kind == "series" else filled
        found.append(filled.loc[list("abd"), list(range(6))].to_numpy())
    np.testing.assert_allclose(*found, atol=1e-10)
