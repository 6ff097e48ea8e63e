"""The encoder beside encodings made by hand and by scikit-learn's encoders."""

from __future__ import annotations

import datetime as dt
import json
import re
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from gigagp import kernels
from gigagp.errors import EncodingWarning, InvalidInputError, MemoryBudgetError, ModelFileError
from gigagp.kernels.units import Units
from gigagp.tables.encoding import TableEncoder
from gigagp.tables.encoding.columns import Categories, Dates, LeftOut, Numbers

GENERATOR = np.random.default_rng(0)
N = 60


def frame() -> pd.DataFrame:
    number = GENERATOR.normal(size=N)
    number[[3, 8]] = np.nan
    city = GENERATOR.choice(["Oslo", "Rome", "Bern"], N, p=[0.6, 0.3, 0.1]).astype(object)
    city[:3] = "Oslo", "Rome", "Bern"
    city[5] = None
    day = pd.Timestamp("2020-02-01") + pd.to_timedelta(GENERATOR.integers(0, 800, N), unit="D")
    return pd.DataFrame({"number": number, "city": city, "day": day, "flag": np.arange(N) % 3 == 0})


def test_columns_beside_encoders_of_scikit_learn():
    X = frame()
    encoder = TableEncoder.fit(X)
    found = encoder.transform(X)
    number, city, day, flag = encoder.columns
    assert isinstance(number, Numbers)
    expected = SimpleImputer(strategy="median", add_indicator=True).fit_transform(X[["number"]])
    np.testing.assert_array_equal(found[:, :2], expected)
    # the most frequent category comes first, then missing cells, then everything else
    assert city == Categories("city", ("Oslo", "Rome", "Bern"), 1, 0)
    one_hot = OneHotEncoder(categories=[["Oslo", "Rome", "Bern", "-"]], sparse_output=False)
    expected = one_hot.fit_transform(X[["city"]].fillna("-"))
    np.testing.assert_array_equal(found[:, 2:6], expected)
    assert not found[:, 6].any()
    days = (X["day"] - X["day"].min()) / pd.Timedelta(days=1)
    np.testing.assert_allclose(found[:, 7], days, rtol=0, atol=1e-9)
    assert isinstance(day, Dates)
    assert (day.season, day.clock) == (True, False)
    np.testing.assert_allclose(np.hypot(found[:, 8], found[:, 9]), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(found[:, 10:12], np.stack([~X["flag"], X["flag"]], 1))
    assert flag.describe() == "2 categories (false, true)"
    assert encoder.labels == ["number", "number missing", "city", "day days", "day season", "flag"]
    np.testing.assert_array_equal(np.flatnonzero(encoder.is_scaled), [0, 7])


def test_the_season_returns_and_the_day_does_not():
    days = np.array(["2019-03-01", "2020-03-01", "2019-09-01", "2021-01-01"], dtype="datetime64[D]")
    found = TableEncoder.fit(days[:, None]).transform(days[:, None])
    assert np.linalg.norm(found[0, 1:] - found[1, 1:]) < 0.03
    assert np.linalg.norm(found[0, 1:] - found[2, 1:]) > 1.9
    np.testing.assert_array_equal(found[:, 0], [0, 366, 184, 672])


def test_dates_in_units_of_numpy():
    months = np.array(["2020-01", "2020-02", "2021-06"], dtype="datetime64[M]")[:, None]
    encoder = TableEncoder.fit(months)
    np.testing.assert_array_equal(encoder.transform(months)[:, 0], [0, 31, 517])
    spans = pd.DataFrame({"span": pd.to_timedelta([12, 36, 60], unit="h")})
    np.testing.assert_array_equal(TableEncoder.fit(spans).transform(spans)[:, 0], [0.5, 1.5, 2.5])


def test_a_table_beyond_the_memory_budget_is_refused():
    X = frame()
    encoder = TableEncoder.fit(X)
    with pytest.raises(MemoryBudgetError, match="encoded as 13 columns"):
        encoder.transform(X, memory_budget=1000)


@pytest.mark.parametrize(
    "convert",
    [
        lambda X: X,
        lambda X: X.astype({"city": "category", "flag": "boolean"}),
        lambda X: pa.Table.from_pandas(X),
        lambda X: X.astype({"number": object, "flag": object}),
        lambda X: X.assign(
            day=X["day"].dt.strftime("%Y-%m-%d"), number=[repr(v) if v == v else "" for v in X["number"]]
        ),
        lambda X: X.assign(day=[one.date() for one in X["day"]]),
        lambda X: X.assign(day=X["day"].dt.tz_localize("Europe/Oslo")),
        lambda X: X.assign(city=X["city"].fillna("")),
    ],
)
def test_every_container_gives_the_same(convert):
    X = frame()
    encoder = TableEncoder.fit(X)
    other = convert(X)
    np.testing.assert_array_equal(encoder.transform(other), encoder.transform(X))
    assert TableEncoder.fit(other) == encoder


def test_polars_gives_the_same():
    polars = pytest.importorskip("polars")
    X = frame()
    other = polars.from_pandas(X)
    assert TableEncoder.fit(other) == TableEncoder.fit(X)


def test_arrays_and_lists_of_rows():
    rows = [["a", 1.5, None], ["b", 2.0, True], ["a", None, False], ["b", 3.0, True]]
    one = TableEncoder.fit(rows)
    other = TableEncoder.fit(np.array(rows, dtype=object))
    assert one == other
    assert [type(column) for column in one.columns] == [Categories, Numbers, Categories]
    expected = np.array([[1, 0, 0, 1.5, 0, 0, 0, 1, 0], [0, 1, 0, 2, 0, 1, 0, 0, 0]])
    np.testing.assert_array_equal(one.transform(rows)[:2], expected)


def test_columns_without_information_are_left_out_and_named():
    X = frame().assign(id=[f"row {k}" for k in range(N)], same="x", one=1.0, empty=None)
    with pytest.warns(EncodingWarning, match="'id' is left out: every cell has a different text") as caught:
        encoder = TableEncoder.fit(X)
    assert len(caught) == 1
    assert all(f"{name!r} is left out" in str(caught[0].message) for name in ("same", "one", "empty"))
    assert [column.label for column in encoder.columns if isinstance(column, LeftOut)] == ["id", "same", "one", "empty"]
    np.testing.assert_array_equal(
        encoder.transform(X),
        TableEncoder.fit(X[["number", "city", "day", "flag"]]).transform(X[["number", "city", "day", "flag"]]),
    )
    with pytest.raises(InvalidInputError, match="no column to learn from"):
        TableEncoder.fit(X[["id", "same"]])


def test_unseen_categories_are_as_far_from_all_others():
    X = frame()
    encoder = TableEncoder.fit(X)
    new = X.iloc[:4].assign(city=["Oslo", "Rome", "Paris", "Lima"])
    with pytest.warns(
        EncodingWarning, match=r"'city' has categories that the fit has not seen: 'Paris', 'Lima'"
    ) as caught:
        found = encoder.transform(new)[:, 2:7]
    assert len(caught) == 1
    distances = np.square(found[:, None] - found[None]).sum(2)
    np.testing.assert_array_equal(distances, [[0, 2, 2, 2], [2, 0, 2, 2], [2, 2, 0, 0], [2, 2, 0, 0]])


def test_missing_cells_in_columns_that_had_none():
    X = frame().dropna()
    encoder = TableEncoder.fit(X)
    new = X.iloc[:3].copy()
    new.loc[new.index[0], "number"], new.loc[new.index[1], "city"], new.loc[new.index[2], "day"] = np.nan, None, pd.NaT
    with pytest.warns(EncodingWarning, match=r"'number' has 1 missing cell, but had none.*a missing cell.*'day' has 1"):
        found = encoder.transform(new)
    assert found[0, 0] == np.median(X["number"])
    assert found[1, 4 if X["city"].nunique() == 3 else 3] == 1
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["a", dt.date(2024, 1, 1), "b", None], r"'a' \(str\) in column 'c', row 0.*\(date\) in column 'c', row 1"),
        ([1.0, np.inf, 2.0, 3.0], "infinity in column 'c', row 1"),
        ([1 + 2j, 2.0, 3.0, 4.0], "Complex data not supported"),
        ([[1], [2], [3], [4]], "list"),
        ([b"a", b"b", b"c", b"c"], "binary"),
        ([dt.time(1), dt.time(2), dt.time(3), dt.time(4)], "time"),
    ],
)
def test_cells_of_no_use_are_refused(cells, message):
    table = pd.DataFrame({"c": pd.Series(cells, dtype=object)})
    with pytest.raises(InvalidInputError, match=message):
        TableEncoder.fit(table)


def test_later_cells_must_be_what_the_fit_had():
    X = frame()
    encoder = TableEncoder.fit(X)
    with pytest.raises(InvalidInputError, match="the text 'x' in column 'number', row 0"):
        encoder.transform(X.assign(number="x"))
    with pytest.raises(InvalidInputError, match="must have dates in column 'day', as the table of the fit"):
        encoder.transform(X.assign(day=1.0))
    with pytest.raises(InvalidInputError, match=r"must hold a date.*'soon' in column 'day', row 0"):
        encoder.transform(X.assign(day="soon"))
    with pytest.raises(InvalidInputError, match="must have 4 columns"):
        encoder.transform(X[["number", "city"]])
    flags = X.assign(flag=["True" if one else "False" for one in X["flag"]])  # any spelling
    np.testing.assert_array_equal(encoder.transform(flags), encoder.transform(X))


def test_plain_data_make_the_same_encoder():
    X = frame()
    encoder = TableEncoder.fit(X)
    data = json.loads(json.dumps(encoder.to_plain()))
    assert TableEncoder.from_plain(data, encoder.n_encoded) == encoder


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ((), {}),
        ((0,), 3),
        ((0, "column"), "os.system"),
        ((0, "fill"), float("nan")),
        ((0, "fill"), "1"),
        ((0, "missing"), -1),
        ((0, "varies"), 1),
        ((1, "categories"), []),
        ((1, "categories"), ["a", "a"]),
        ((1, "categories"), ["a", ""]),
        ((1, "categories"), ["a", 3]),
        ((1, "categories"), [str(k) for k in range(100_000)]),
        ((1, "others"), 2**70),
        ((1, "label"), None),
        ((2, "origin"), float("inf")),
        ((2, "season"), None),
        ((2, "season"), False),  # fewer columns than the scaling has
    ],
)
def test_hostile_data_are_refused(place, value):
    encoder = TableEncoder.fit(frame())
    data = encoder.to_plain()
    at = data
    for step in place[:-1]:
        at = at[step]
    if place:
        at[place[-1]] = value
    else:
        data = value
    with pytest.raises(ModelFileError, match=r"header\.encoder"):
        TableEncoder.from_plain(data, encoder.n_encoded)


# Kernels --------------------------------------------------------------------------------------------------------------


def test_kernels_of_the_table_are_kernels_of_the_encoded_columns():
    encoder = TableEncoder.fit(frame())
    whole = encoder.kernel(kernels.Matern(nu=1.5)).bind(encoder.n_encoded)
    assert whole.parameters()["lengthscale"].shape == (6,)
    made = kernels.RBF(columns=[0]) * kernels.Categorical(columns=[1]) + kernels.Constant(2.0)
    found = encoder.kernel(made).bind(encoder.n_encoded)
    assert [leaf.columns for leaf in found.leaves()] == [(0, 1), (2, 3, 4, 5, 6), None]
    assert [value.numel() for value in found.parameters().values()] == [2, 1, 1, 1, 1]
    assert encoder.kernel(found) is found
    with pytest.raises(InvalidInputError, match="must be below 4"):
        encoder.kernel(kernels.RBF(columns=[4]))


def test_categories_in_a_product_are_the_overlap_kernel():
    X = frame()
    encoder = TableEncoder.fit(X)
    kernel = encoder.kernel(kernels.Categorical(0.7, 2.0, columns=[1]))
    scale = torch.full((encoder.n_encoded,), 0.1, dtype=torch.float64)  # however the columns are standardized
    points = torch.from_numpy(encoder.transform(X))
    standardized = kernel.standardized(Units(torch.zeros_like(scale), scale, 1.0))
    city = X["city"].fillna("-").to_numpy()
    expected = 2.0 * np.exp(-(city[:, None] != city[None]).astype(float) / 0.7**2)
    np.testing.assert_allclose(standardized.block(points / scale, points / scale), expected, rtol=1e-12)


# Numbers beside texts, and dates in other forms ---------------------------------------------------------------------


def of_column(cells: list) -> tuple[TableEncoder, str]:
    """Return the encoder of a table with one column beside a column of numbers, and what it has warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        encoder = TableEncoder.fit(pd.DataFrame({"n": np.arange(len(cells)), "c": pd.Series(cells, dtype=object)}))
    return encoder, "; ".join(str(one.message) for one in caught)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (
            ["32", "32A", "7", "32", "7", "7"],
            "such as '32A' in row 1 .*correct the 1 cell with text or leave them empty",
        ),
        (["1", "1 and 2", "2+", "1", "2", "2"], "such as '1 and 2' in row 1 .*correct the 2 cells with text"),
        ([3, 4, "4b", 3, None, 4.0], "such as '4b' in row 2"),
        (["1.5", "2.5", "3,5", "1.5", "", "2.5"], "such as '3,5' in row 2 .*A decimal point is needed"),
    ],
)
def test_numbers_beside_few_texts_are_texts_with_a_warning(cells, message):
    encoder, said = of_column(cells)
    assert re.search(message, said)
    column = encoder.columns[1]
    assert isinstance(column, Categories)
    assert column.missing == sum(cell in ("", None) for cell in cells)
    assert sum(column.categories.count(str(cell)) for cell in {str(c) for c in cells if c} - {"4.0"}) >= 3


def test_numbers_of_a_column_of_texts_are_the_same_in_any_spelling():
    encoder, _ = of_column(["32.50", "32A", "7", "32.50", "7", "7"])
    as_texts = encoder.transform(pd.DataFrame({"n": [0, 1], "c": ["32.50", "7"]}))
    for spelled in (["32.5", "7.0"], [32.5, 7.0], np.array([32.5, 7.0], dtype=np.float32)):
        np.testing.assert_array_equal(encoder.transform(pd.DataFrame({"n": [0, 1], "c": spelled})), as_texts)


def test_columns_of_numbers_alone_and_of_few_numbers_say_nothing():
    for cells in (["1", "2", "3.5", "4"], ["a", "b", "1", "a"], [1, 2.5, "3", None]):
        assert of_column(cells)[1] == ""


@pytest.mark.parametrize(
    ("cells", "order"),
    [
        (["12/1/2015", "12/31/2015", "1/2/2016", "3/4/2016"], "month/day/year"),
        (["1/12/2015", "31/12/2015", "2/1/2016", "4/3/2016"], "day/month/year"),
        (["1.12.2015", "31.12.2015", "02.01.2016", "4.3.2016"], "day/month/year"),
        (["12-1-2015 9:05", "12-31-2015 10:00", "1-2-2016 12:30", "3-4-2016 23:59"], "month/day/year"),
        (["2015/12/1", "2015/12/31", "2016/1/2", "2016/3/4"], ""),
        (["2015-12-1", "2015-12-31", "2016-1-2", "2016-03-04"], ""),
        (["1/1/2015", "2/2/2015", "3/3/2015", "3/3/2015"], "day/month/year"),
    ],
)
def test_dates_are_read_where_one_order_fits_all(cells, order):
    encoder, said = of_column(cells)
    column = encoder.columns[1]
    assert isinstance(column, Dates)
    assert (said, column.order) == ("", order)
    template = {"month/day/year": "%m/%d/%Y", "day/month/year": "%d/%m/%Y", "": "%Y/%m/%d"}[order]
    parsed = [dt.datetime.strptime(cell.split()[0].replace("-", "/").replace(".", "/"), template) for cell in cells]
    clocks = [cell.split()[1] if " " in cell else "0:00" for cell in cells]
    parsed = [
        one + dt.timedelta(hours=int(clock.split(":")[0]), minutes=int(clock.split(":")[1]))
        for one, clock in zip(parsed, clocks, strict=True)
    ]
    days = [(one - min(parsed)).total_seconds() / 86400 for one in parsed]
    np.testing.assert_allclose(encoder.transform(pd.DataFrame({"n": 0, "c": cells}))[:, 1], days, atol=1e-9)
    assert TableEncoder.from_plain(encoder.to_plain(), encoder.n_encoded) == encoder


def test_later_dates_are_read_in_the_order_of_the_fit():
    encoder, _ = of_column(["12/1/2015", "12/31/2015", "1/2/2016", "3/4/2016"])
    later = {"n": [0, 0, 0], "c": ["2/3/2016", "2016-02-03", "12/31/2015"]}
    np.testing.assert_allclose(encoder.transform(pd.DataFrame(later))[:, 1], [64, 64, 30])
    with pytest.raises(InvalidInputError, match=r"or month/day/year as in the fit.*'31/12/2015' in column 'c', row 0"):
        encoder.transform(pd.DataFrame({"n": [0], "c": ["31/12/2015"]}))
    iso, _ = of_column(["2015-12-01", "2015-12-31", "2016-01-02", "2016-03-04"])
    with pytest.raises(InvalidInputError, match=r"must hold a date.*'12/31/2015'"):
        iso.transform(pd.DataFrame({"n": [0], "c": ["12/31/2015"]}))


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        (["1/2/2015", "3/4/2015", "5/6/2015"], "'1/2/2015' and all others fit day/month/year and month/day/year"),
        (["1/2/2015", "3/4/2015", "5/6/2015"] * 2, "'1/2/2015' and all others fit day/month/year and month/day/year"),
        (
            ["31/12/2015", "12/31/2015", "5/6/2015"],
            "'12/31/2015' does not fit day/month/year and '31/12/2015' does not fit month/day/year",
        ),
        (["1/2/15", "3/4/15", "5/6/15"], "'1/2/15' does not fit day/month/year"),
    ],
)
def test_dates_of_no_one_meaning_are_not_read_and_the_message_says_how(cells, why):
    encoder, said = of_column(cells)
    assert not isinstance(encoder.columns[1], Dates)
    assert why in said
    assert "Write dates as 2024-03-31" in said
