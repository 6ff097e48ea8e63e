"""Columns of very many categories, whose effects are a group, beside fits to numbered levels."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import gigagp
from gigagp import GPClassifier, GPRegressor, inference, kernels
from gigagp.errors import EncodingWarning, InvalidInputError, ModelFileError
from gigagp.tables.encoding import TableEncoder
from gigagp.tables.encoding.columns import Categories, Levels

N, SHOPS = 150, 60
PLAIN = {"inference": inference.Exact(), "optimizer": None, "noise_variance": 0.04}


def rows() -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Return a table of texts, its shops as numbers, and a target."""
    random = np.random.default_rng(0)
    shop = np.concatenate([np.arange(SHOPS), random.integers(0, SHOPS, N - SHOPS)])
    x = random.uniform(0, 6, N)
    y = np.sin(x) + random.normal(size=SHOPS)[shop] + 0.2 * random.normal(size=N)
    return pd.DataFrame({"x": x, "shop": [f"shop {k}" for k in shop]}), shop, y


def test_levels_are_numbers_and_missing_and_new_ones_are_levels_of_their_own():
    table = rows()[0]
    table.loc[N - 1, "shop"] = None
    encoder = TableEncoder.fit(table)
    column = encoder.columns[1]
    assert isinstance(column, Levels)
    assert (len(column.levels), column.missing, encoder.level_columns) == (SHOPS + 1, 1, [1])
    codes = encoder.transform(table)[:, 1]
    np.testing.assert_array_equal(codes == 0, table["shop"].isna())
    for text in table["shop"].dropna().unique():
        assert set(codes[table["shop"] == text]) == {column.levels.index(text)}
    new = pd.DataFrame({"x": 0.0, "shop": ["here", "shop 7", "there", None, "here"]})
    found = encoder.transform(new)[:, 1]
    assert found[0] == found[4] > SHOPS < found[2] != found[0]
    assert (found[1], found[3]) == (column.levels.index("shop 7"), 0)
    assert "60 categories" in column.describe()
    assert "missing cells (1) are a level" in column.describe()


def test_kernels_of_all_columns_leave_them_out():
    encoder = TableEncoder.fit(rows()[0])
    kernel = encoder.kernel(kernels.Matern()).bind(2)
    assert tuple(kernel.active_columns) == (0,)
    with pytest.raises(InvalidInputError, match=r"must not include 'shop'.*kernels\.Group\(1\)"):
        encoder.kernel(kernels.Matern(columns=[1]))


def test_numbers_that_stand_for_categories_are_found_in_any_spelling():
    numbers = np.arange(SHOPS).repeat(2)
    encoder = TableEncoder.fit(pd.DataFrame({"shop": pd.Categorical(numbers)}))
    codes = encoder.transform(pd.DataFrame({"shop": pd.Categorical(numbers)}))
    np.testing.assert_array_equal(encoder.transform(pd.DataFrame({"shop": [f"{one}.0" for one in numbers]})), codes)


def test_plain_data_make_the_same_encoder_and_hostile_data_none():
    encoder = TableEncoder.fit(rows()[0])
    data = json.loads(json.dumps(encoder.to_plain()))
    assert TableEncoder.from_plain(data, 2) == encoder
    for levels in ([], [""], ["a", "b"], ["", "a", "a"], ["", "a", ""], ["", 3]):
        data[1]["levels"] = levels
        with pytest.raises(ModelFileError, match=r"header\.encoder"):
            TableEncoder.from_plain(data, 2)


def test_files_that_hold_fifty_categories_and_others_are_read():
    column = Categories("shop", ("a", "b"), 0, 7)
    encoder = TableEncoder.from_plain([column.to_plain()], 3)
    np.testing.assert_array_equal(encoder.transform(pd.DataFrame({"shop": ["b", "z"]})), [[0, 1, 0], [0, 0, 1]])


@pytest.mark.parametrize("kernel", [kernels.Matern(), kernels.Matern(columns=[0]) * kernels.Group(1)], ids=repr)
def test_a_fit_is_that_of_numbered_levels(kernel):
    table, shop, y = rows()
    gp = GPRegressor(kernel, encode="auto", **PLAIN).fit(table, y)
    numbers = np.column_stack([table["x"], shop])
    is_named = isinstance(kernel, kernels.Product)
    wanted = GPRegressor(kernel, groups=() if is_named else [1], **PLAIN).fit(numbers, y)
    new = pd.DataFrame({"x": [1.0, 2.0, 3.0], "shop": ["shop 5", "another", "shop 59"]})
    for found, dense in zip(
        gp.predict(new, return_cov=True), wanted.predict([[1, 5], [2, 99], [3, 59]], return_cov=True), strict=True
    ):
        np.testing.assert_allclose(found, dense, rtol=1e-9, atol=1e-9)
    control = GPRegressor(kernels.Matern(), **PLAIN).fit(table[["x"]], y)
    assert np.abs(gp.predict(new) - control.predict(new[["x"]])).max() > 0.1


def test_further_rows_of_new_levels_are_those_of_a_fit_to_all(tmp_path):
    table, _, y = rows()
    more = pd.DataFrame({"x": [1.0, 4.0, 2.0], "shop": ["new", "newer", "new"]})
    gp = GPRegressor(kernels.Matern(), encode="auto", standardize=False, **PLAIN).fit(table, y)
    gp.save(tmp_path / "model.gp")
    assert (gigagp.load(tmp_path / "model.gp").predict(more) == gp.predict(more)).all()
    grown = gp.condition_on(more, [3.0, -1.0, 2.5])
    whole = GPRegressor(kernels.Matern(), encode="auto", standardize=False, **PLAIN)
    whole.fit(pd.concat([table, more], ignore_index=True), np.concatenate([y, [3.0, -1.0, 2.5]]))
    np.testing.assert_allclose(grown.predict(more), whole.predict(more), rtol=1e-8, atol=1e-8)
    assert np.abs(grown.predict(more) - gp.predict(more)).max() > 0.1


def test_effects_have_the_names_of_the_categories():
    table, _, y = rows()
    gp = GPRegressor(kernels.Matern(), inference.Vecchia(), encode="auto", optimizer=None).fit(table, y)
    effects = gp.group_effects_["shop"]
    assert set(effects.level) == set(table["shop"])
    new = pd.DataFrame({"x": np.ones(SHOPS), "shop": effects.level})
    np.testing.assert_allclose(gp.predict(new) - gp.predict(new, groups=False), effects.effect, atol=1e-9)


def test_groups_of_few_categories_have_names_too():
    """Such columns are one-hot; a combination of two has a name for each."""
    table, _, y = rows()
    table = table.assign(shop=[f"s{int(one.split()[1]) % 7}" for one in table["shop"]], day=np.arange(len(table)) % 3)
    table["day"] = table["day"].map({0: "Mon", 1: "Tue", 2: "Wed"})
    groups = kernels.Group("shop") + kernels.Group(["day", "shop"])
    gp = GPRegressor(kernels.Matern() + groups, inference.Exact(), encode="auto", optimizer=None).fit(table, y)
    effects, nested = gp.group_effects_["shop"], gp.group_effects_["day:shop"]
    assert effects.level[0] == table["shop"].value_counts().index[0]
    assert set(effects.level) == set(table["shop"])
    assert {tuple(one) for one in nested.level} == set(zip(table["day"], table["shop"], strict=True))
    new = pd.DataFrame({"x": np.ones(len(nested.level)), "shop": nested.level[:, 1], "day": nested.level[:, 0]})
    of_shop = dict(zip(effects.level, effects.effect, strict=True))
    expected = nested.effect + [of_shop[shop] for shop in nested.level[:, 1]]
    np.testing.assert_allclose(gp.predict(new) - gp.predict(new, groups=False), expected, atol=1e-9)


def test_a_kernel_that_takes_their_numbers_for_places_is_refused():
    table, _, y = rows()
    with pytest.raises(InvalidInputError, match=r"must not include 'shop', which has 60 categories.*Group\(1\)"):
        GPRegressor(kernels.Matern(columns=[0, 1]), encode="auto").fit(table, y)
    with pytest.raises(InvalidInputError, match="needs a kernel without groups, also of an encoded column"):
        GPRegressor(encode="auto").plan(table, y)


def test_default_fits_and_classes_have_the_group():
    table, shop, y = rows()
    alone = GPRegressor(encode="auto").fit(table[["shop"]], y)
    assert isinstance(alone.kernel_, kernels.Group)
    means = np.array([y[shop == k].mean() for k in range(SHOPS)])
    found = alone.predict(pd.DataFrame({"shop": [f"shop {k}" for k in range(SHOPS)]}))
    assert np.corrcoef(found, means)[0, 1] > 0.9
    assert found.std() < means.std()  # shrunk
    labels = GPClassifier(encode="auto", optimizer=None).fit(table, y > 0)
    assert any(isinstance(leaf, kernels.Group) for leaf in labels.latent_.kernel_.leaves())
    with pytest.warns(EncodingWarning, match="every cell has a different text"):
        GPRegressor(kernels.Matern(), encode="auto", optimizer=None).fit(table[:50], y[:50])


def test_a_panel_has_effects_of_what_its_entities_have():
    random = np.random.default_rng(1)
    kind = np.concatenate([np.arange(51), random.integers(0, 51, 13)])
    effect = random.normal(size=51)
    cells = [(f"e{i}", t, f"kind {kind[i]}") for i in range(len(kind)) for t in range(4)]
    panel = pd.DataFrame(cells, columns=["entity", "time", "kind"])
    y = np.array([effect[kind[i]] + 0.1 * t for i in range(len(kind)) for t in range(4)])
    y += 0.05 * random.normal(size=len(y))
    gp = GPRegressor(panel=("entity", "time"), encode="auto").fit(panel, y)
    new = pd.DataFrame({"entity": "new", "time": 1, "kind": [f"kind {k}" for k in range(51)]})
    assert np.corrcoef(gp.predict(new), effect)[0, 1] > 0.9
