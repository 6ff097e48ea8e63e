"""Input tables: every kind of table gives the same fit, and every public function names a cell that is not a number."""

from __future__ import annotations

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
import torch
from sklearn.exceptions import DataConversionWarning

from gigagp import GPClassifier, GPRegressor, grids, inference, kernels, metrics, optimization
from gigagp.errors import InvalidInputError, MemoryBudgetError
from gigagp.tables import intake

RNG = np.random.default_rng(0)
X = np.round(RNG.normal(size=(30, 2)), 3)
Y = X[:, 0] - X[:, 1] ** 2
NAMES = ["height", "width"]
QUICK = {"optimizer": None}
CLASSIFIER = {"inference": inference.QuadruplyStochastic(n_basis=20), "optimizer": None}


def masked(values, place=(4, 1)):
    found = np.ma.array(values, copy=True)
    found[place[: found.ndim]] = np.ma.masked
    assert found.mask.sum() == 1
    return found


GRID = inference.Grid(size=12)
ON_GRIDS = {"inference": GRID, "kernel": kernels.RBF(3.0), **QUICK}
FITTED = GPRegressor(**QUICK).fit(X, Y)
ON_GRID = GPRegressor(**ON_GRIDS).fit(X, Y)
CLASSES = GPClassifier(**CLASSIFIER).fit(X, Y > 0)
COLLECTOR = grids.GridCollector(grids.RegularGrid.around([-5.0, -5.0], [5.0, 5.0], (9, 9)))

#: Every public function that takes numbers, as a function of inputs, targets and noise variances.
FRONT_DOORS = {
    "fit": lambda X, y: GPRegressor(**QUICK).fit(X, y),
    "predict": lambda X, y: FITTED.predict(X),
    "score": lambda X, y: FITTED.score(X, y),
    "sample_y": lambda X, y: FITTED.sample_y(X),
    "sample_functions": lambda X, y: FITTED.sample_functions(1)(X),
    "validation": lambda X, y: GPRegressor(optimizer=optimization.Adam(steps=1)).fit(
        np.ma.getdata(X) if isinstance(X, np.ma.MaskedArray) else X, np.ma.getdata(y), validation=(X, y)
    ),
    "fit_table": lambda X, y: GPRegressor(**ON_GRIDS).fit_table((X, y)),
    "fit_table of chunks": lambda X, y: GPRegressor(**ON_GRIDS).fit_table(lambda: [(X, y)]),
    "partial_fit": lambda X, y: ON_GRID.partial_fit(X, y),
    "classifier's fit": lambda X, y: GPClassifier(**CLASSIFIER).fit(X, y > 0),
    "classifier's predict": lambda X, y: CLASSES.predict(X),
    "classifier's score": lambda X, y: CLASSES.score(X, y > 0),
    "statistics": lambda X, y: COLLECTOR.add(X, y),
}
ONLY_INPUTS = {"predict", "sample_y", "sample_functions", "classifier's predict"}


@pytest.mark.parametrize("door", FRONT_DOORS)
def test_a_masked_cell_is_refused_in_every_front_door(door):
    use = FRONT_DOORS[door]
    with pytest.raises(InvalidInputError, match="X must be finite; got a masked cell in column 1, row 4"):
        use(masked(X), Y)
    if door not in ONLY_INPUTS:
        with pytest.raises(InvalidInputError, match=r"(y|Y) must be finite; got a masked cell in row 4"):
            use(X, masked(Y))
    use(np.ma.array(X), np.ma.array(Y))  # here no cell is masked


def test_masks_are_seen_wherever_they_hide():
    for hidden in (list(masked(X)), [list(row) for row in masked(X)], masked(X).astype(object), masked(X).T.copy().T):
        with pytest.raises((InvalidInputError, UserWarning), match=r"column 1, row 4|masked element to nan"):
            GPRegressor(**QUICK).fit(hidden, Y)
    with pytest.raises(InvalidInputError, match="noise_variance of GPRegressor must be finite; got a masked cell"):
        GPRegressor(noise_variance=masked(np.ones(30)), **QUICK).fit(X, Y)
    with pytest.raises(InvalidInputError, match="masked cell"):
        metrics.rmse(masked(Y), Y)
    with pytest.raises(InvalidInputError, match="A mean function must return"):
        GPRegressor(mean=lambda X: masked(X[:, 0]), **QUICK).fit(X, Y)
    with pytest.raises(InvalidInputError, match="masked cell in row 4"):
        GPClassifier(**CLASSIFIER).fit(X, masked(np.where(Y > 0, "a", "b")))
    with pytest.raises(InvalidInputError, match="lower corner, must be finite; got a masked cell"):
        GPRegressor(**ON_GRIDS).fit_table(iter([(X, Y)]), bounds=(masked(X.min(0), (1,)), X.max(0)))


FRAME = pd.DataFrame(X, columns=NAMES)
SAME = {
    "list": X.tolist(),
    "tuple of arrays": tuple(X),
    "objects": X.astype(object),
    "texts": X.astype(str),
    "decimals": [[Decimal(repr(float(cell))) for cell in row] for row in X],
    "big-endian": X.astype(">f8"),
    "longdouble": X.astype(np.longdouble),
    "masked": np.ma.array(X, mask=False),
    "matrix order": np.asfortranarray(X),
    "tensor": torch.from_numpy(X),
    "tensor with gradients": torch.from_numpy(X).requires_grad_(),
    "list of tensors": list(torch.from_numpy(X)),
    "negated view": torch._neg_view(torch.from_numpy(-X)),
    "sparse tensor": torch.from_numpy(X).to_sparse(),
    "pandas": FRAME,
    "nullable pandas": FRAME.convert_dtypes(),
    "pandas on pyarrow": FRAME.convert_dtypes(dtype_backend="pyarrow"),
    "pyarrow": pa.table(dict(zip(NAMES, X.T, strict=True))),
    "pyarrow batch": pa.record_batch(dict(zip(NAMES, X.T, strict=True))),
    "pyarrow dictionary": pa.table([pa.array(part).dictionary_encode() for part in X.T], names=NAMES),
    "pyarrow decimals": pa.table(dict(zip(NAMES, X.T, strict=True))).cast(
        pa.schema([(name, pa.decimal128(9, 3)) for name in NAMES])
    ),
    **{kind: getattr(scipy.sparse, kind)(X) for kind in ("csr_array", "coo_array", "dok_array", "csc_matrix")},
}  # fmt: skip


@pytest.mark.few(9)
@pytest.mark.parametrize("kind", SAME)
def test_every_kind_of_table_gives_the_same_fit(kind):
    expected = FITTED.predict(X)
    gp = GPRegressor(**QUICK).fit(SAME[kind], list(Y))
    np.testing.assert_allclose(gp.predict(SAME[kind]), expected, rtol=1e-12, atol=1e-12)
    # Also fit in chunks, if the source can be split.
    if hasattr(SAME[kind], "shape") and intake.frame_names(SAME[kind]) is None:
        streamed = GPRegressor(**ON_GRIDS).fit_table((SAME[kind], Y), chunk_rows=7)
        expected = GPRegressor(**ON_GRIDS).fit_table((X, Y), chunk_rows=7).predict(X)
        np.testing.assert_allclose(streamed.predict(X), expected, rtol=1e-12, atol=1e-12)


def test_bfloat16_and_booleans_are_numbers():
    assert intake.numbers(torch.tensor([0.5, 1.5], dtype=torch.bfloat16), "X").tolist() == [0.5, 1.5]
    assert intake.numbers([True, False], "X").tolist() == [1.0, 0.0]
    assert intake.numbers(np.array([True, np.float32(0.5), 2, Decimal("1.5")], dtype=object), "X").tolist() == [
        1,
        0.5,
        2,
        1.5,
    ]


@pytest.mark.parametrize(
    "cell", ["1_000", "٣", "1,5", "1,000", "tall", "0x10", "1e5_0", "\uff11", "\u22121", "1 000", "\u00a01"]
)
def test_what_python_takes_for_a_number_and_tables_do_not(cell):
    words = X.astype(object)
    words[3, 1] = cell
    for table in (words, words.tolist(), pd.DataFrame(words, columns=NAMES)):
        with pytest.raises(InvalidInputError, match=r"got the text .* in column (1|'width'), row 3"):
            GPRegressor(**QUICK).fit(table, Y)


BAD_CELLS = [
    (10**400, r"\(too large for float64\) in column 1, row 3"),
    (None, r"an empty cell \(NoneType\) in column 1, row 3"),
    (pd.NA, r"an empty cell \(NAType\) in column 1, row 3"),
    (pd.NaT, r"an empty cell \(NaTType\) in column 1, row 3"),
    (Decimal("NaN"), "NaN in column 1, row 3"),
    (Decimal("1e400"), "infinity in column 1, row 3"),
    (" ", "an empty text in column 1, row 3"),
    (b"1", "type bytes in column 1, row 3"),
    (1j, "got 1j in column 1, row 3"),
    (datetime.date(2020, 1, 1), "type date in column 1, row 3"),
    (datetime.timedelta(1), "type timedelta in column 1, row 3"),
    (np.datetime64("2020-01-01"), "type datetime64 in column 1, row 3"),
    ({"a": 1}, "type dict in column 1, row 3"),
    ([1.0, 2.0], "2 cells in column 1, row 3"),
]


@pytest.mark.parametrize(("cell", "message"), BAD_CELLS, ids=[repr(cell)[:20] for cell, _ in BAD_CELLS])
def test_cells_that_are_no_numbers_are_named(cell, message):
    bad = X.astype(object)
    bad[3, 1] = cell
    for use in (lambda: GPRegressor(**QUICK).fit(bad, Y), lambda: FITTED.predict(bad)):
        with pytest.raises(InvalidInputError, match=message):
            use()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (5.0, "Expected 2D array, got scalar"),
        (X[0], "Expected 2D array, got 1D"),
        (X[None], "Expected 2D array, got 3D"),
        (X[:0], r"0 sample\(s\)|has no rows"),
        (X[:, :0], r"0 feature\(s\)"),
        (None, "X must be an array, a table or a list of numbers; got NoneType"),
        ({"a": [1]}, "got dict"),
        ("table.csv", "got the text 'table.csv'"),
        ([[1.0, 2.0], [3.0]], "Rows must have the same number of cells"),
        (X.astype("M8[ns]"), "dates .* in column 0, row 0"),
        (X.astype("m8[ns]"), "time spans"),
        (X + 1j, "real numbers; got complex128. Complex"),
        (torch.from_numpy(X + 1j), "real numbers; got torch.complex128. Complex"),
        (torch.empty(3, 2, device="meta"), "device meta, which has a shape but no data"),
        ([[1.0, "a"], [2.0]], "Rows must have the same number of cells"),
        (X.view([("a", "f8"), ("b", "f8")]), "records"),
        (FRAME.assign(day=pd.Timestamp("2020-01-01")), "dates .* in column 'day', row 0"),
        (FRAME.assign(day=pd.Timestamp("2020-01-01", tz="Europe/Berlin")), "type Timestamp in column 'day', row 0"),
        (FRAME.assign(city="Rome"), "got the text 'Rome' in column 'city', row 0"),
        (FRAME.assign(city="Rome").astype({"city": "category"}), "got the text 'Rome' in column 'city', row 0"),
        (FRAME.set_axis(["a", "a"], axis=1), "X has two columns named 'a'"),
        (FRAME.assign(n=pd.array([1] * 29 + [None], dtype="Int64")), "NaN in column 'n', row 29"),
        (pa.table({"a": [1, None, 3]}), "an empty cell .* in column 'a', row 1"),
        (pa.table({"a": [1.0], "day": [datetime.date(2020, 1, 1)]}), "type date in column 'day', row 0"),
        (pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), "two columns named 'a'"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_used_are_refused(table, message):
    rows = len(table) if hasattr(table, "__len__") else 1
    with pytest.raises(InvalidInputError, match=message):
        GPRegressor(**QUICK).fit(table, np.arange(rows))
    with pytest.raises(InvalidInputError, match=message):
        GPRegressor(**QUICK).fit_table(lambda: [(table, np.arange(rows))], bounds=([0, 0], [1, 1]))


def test_a_sparse_matrix_is_dense_within_the_memory_budget():
    wide = scipy.sparse.eye_array(400, 100_000, format="csr")
    for use in (
        lambda: GPRegressor(kernels.Matern(nu=1.5), memory_budget="100MiB").fit(wide, np.arange(400)),
        lambda: GPRegressor(memory_budget="100MiB", **QUICK).fit(X, Y).predict(wide),
    ):
        with pytest.raises(MemoryBudgetError, match=r"X, a sparse matrix .* needs 640,000,000 bytes, .* 104,857,600"):
            use()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", 1] * 15, "must be of one type; got 'a' in row 0 .* and 1 in row 1"),
        ([True, 2] * 15, "must be of one type; got True"),
        (["a", None] * 15, "an empty cell .NoneType. in row 1"),
        (["a", pd.NA] * 15, "an empty cell .NAType. in row 1"),
        ([1.0, np.nan] * 15, "NaN in row 1"),
        ([0.5, 1.0] * 15, "0.5 in row 0 .* is not a class label"),
        ([b"a", b"b"] * 15, "Unknown label type: bytes"),
        (np.array(["2020-01-01", "2020-01-02"] * 15, dtype="M8[D]"), "Unknown label type: datetime64"),
        (np.zeros((30, 2)), "one column of labels"),
        (["a"] * 30, "one class, 'a'"),
        (["a", "b"], "same number of rows; .* .30, 2"),
        (None, "the target y is None"),
    ],
)
def test_labels_that_cannot_be_used_are_refused(labels, message):
    with pytest.raises(InvalidInputError, match=message):
        GPClassifier(**CLASSIFIER).fit(X, labels)


@pytest.mark.few(3)
@pytest.mark.parametrize("values", [["no", "yes"], [False, True], [3, 7], [-1.0, 1.0], [2**60, 2**60 + 1], [0, 10**30]])
def test_labels_come_back_as_they_were(values):
    given = [values[int(sign)] for sign in Y > 0]
    for labels in (given, np.array(given), np.array(given, dtype=object), pd.Series(given), tuple(given)):
        gp = GPClassifier(**CLASSIFIER).fit(X, labels)
        assert gp.classes_.tolist() == values
        assert set(gp.predict(X).tolist()) <= set(values)
    with pytest.warns(DataConversionWarning):
        GPClassifier(**CLASSIFIER).fit(X, np.array(given)[:, None])


@pytest.mark.parametrize("method", [GRID, inference.QuadruplyStochastic(n_basis=20)], ids=["grid", "sampled"])
def test_chunks_of_another_width_are_refused(method):
    def use(*chunks):
        GPRegressor(inference=method, **QUICK).fit_table(lambda: list(chunks))

    with pytest.raises(InvalidInputError, match="first 30 have 1 inputs and 1 targets; those before have 2 and 1"):
        use((X, Y), (X[:, :1], Y))
    with pytest.raises(InvalidInputError, match="first 30 have 2 inputs and 2 targets; those before have 2 and 1"):
        use((X, Y), (X, np.column_stack([Y, Y])))
    with pytest.raises(InvalidInputError, match="must yield pairs"):
        use((X, Y), (X, Y, Y))


def test_integers_beyond_53_bits_are_rounded_to_float64_and_no_more():
    stamps = np.array([2**53 + 1, 1_700_000_000_123_456_789], dtype=np.int64)
    np.testing.assert_array_equal(intake.numbers(stamps, "X"), [2.0**53, 1_700_000_000_123_456_768.0])


def test_the_layout_of_a_table_changes_no_bit():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 4)), rng.normal(size=(20, 2))

    def answers(table, targets):
        gp = GPRegressor(kernels.Matern(1.5, 0.5), optimizer=None, outputs="shared")
        return gp.fit(table, targets).predict(X[:5])

    right = answers(X, y)
    for table, targets in ((np.asfortranarray(X), y), (X, np.asfortranarray(y)), (scipy.sparse.csc_array(X), y)):
        assert np.array_equal(answers(table, targets), right)


@pytest.mark.filterwarnings("ignore:Sparse")  # a word of torch about its own support
@pytest.mark.parametrize("layout", ["to_sparse_coo", "to_sparse_csr"])
def test_a_sparse_tensor_is_the_dense_one(layout):
    values = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    np.testing.assert_array_equal(intake.numbers(getattr(values, layout)(), "X"), values.numpy())
    wide = torch.sparse_coo_tensor(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0), (400, 100_000))
    with pytest.raises(MemoryBudgetError, match="needs 640,000,000 bytes"):
        intake.numbers(wide, "X", memory_budget="100MiB")


@pytest.mark.parametrize(
    ("y", "words"),
    [(np.zeros((3, 2, 2)), r"must have shape \(n,\) or \(n, n_targets\)"), (np.zeros((3, 0)), "n_targets")],
)
def test_targets_of_another_shape_are_refused(y, words):
    with pytest.raises(InvalidInputError, match=words):
        intake.targets(y)


def test_an_object_that_fails_to_become_an_array_is_refused():
    class Odd:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("no")

    with pytest.raises(InvalidInputError, match="X must be an array"):
        intake.numbers(Odd(), "X")


def test_a_text_as_a_target_is_not_advised_to_be_left_out():
    for call in (lambda X, y: GPRegressor().fit(X, y), FITTED.score):
        with pytest.raises(InvalidInputError, match=r"or leave these rows out\. GPClassifier takes classes"):
            call(X, ["red"] * len(X))
    with pytest.raises(InvalidInputError, match="or leave the column out"):
        FITTED.predict(np.full((2, X.shape[1]), "red"))
