"""Model files whose transform of the target is not one: each gives one clear error."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

import gigagp
from gigagp import GPRegressor
from gigagp.errors import ModelFileError
from gigagp.estimators.saving.persistence import load_state, save_state

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (60, 1))
Y = np.exp(X[:, 0] + 0.2 * RNG.normal(size=60))
MISSING = object()
BIG = 1.7e308


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("states"), {}
    for kind in ("none", "log", "yeo-johnson", "spline", "auto"):
        GPRegressor(target_transform=kind, optimizer=None).fit(X, Y).save(folder / kind)
        found[kind] = load_state(folder / kind)
    return found


def loaded(path, state, place, value):
    kind, tensors, header = copy.deepcopy(state)
    at = header
    for name in place[:-1]:
        at = at[name]
    if value is MISSING:
        del at[place[-1]]
    else:
        at[place[-1]] = value
    save_state(path, kind, tensors, header)
    return gigagp.load(path)


HERE = ("target_transform",)
CASES = [
    ("log", HERE, MISSING, "target_transform"),
    ("auto", HERE, MISSING, "target_transform"),
    ("log", HERE, None, "table of names"),
    ("log", HERE, [], "table of names"),
    ("log", (*HERE, "kind"), MISSING, "kind"),
    ("log", (*HERE, "kind"), "os.system", "one of"),
    ("log", (*HERE, "kind"), ["log"], "one of"),
    ("log", (*HERE, "kind"), "spline", "targets"),
    ("log", (*HERE, "kind"), "none", "must be that of the settings"),
    ("log", (*HERE, "note"), 3, "text"),
    ("log", ("settings", "target_transform"), "square", "one of"),
    ("log", ("settings", "target_transform"), None, "one of"),
    ("log", ("settings", "target_transform"), "yeo-johnson", "must be that of the settings"),
    ("log", ("settings", "target_transform"), "none", "must be that of the settings"),
    ("log", ("settings", "likelihood"), "laplace", "none for this"),
    ("none", HERE, {"kind": "log", "note": ""}, "must be that of the settings"),
    ("yeo-johnson", (*HERE, "power"), MISSING, "power"),
    ("yeo-johnson", (*HERE, "power"), -0.1, "from 0 to 2"),
    ("yeo-johnson", (*HERE, "power"), 2.1, "from 0 to 2"),
    ("yeo-johnson", (*HERE, "power"), "1", "number"),
    ("yeo-johnson", (*HERE, "power"), True, "number"),
    ("yeo-johnson", (*HERE, "power"), 10**400, "number"),
    ("yeo-johnson", (*HERE, "scale"), 0.0, "positive"),
    ("yeo-johnson", (*HERE, "scale"), -1, "positive"),
    ("yeo-johnson", (*HERE, "centre"), None, "number"),
    ("spline", (*HERE, "values"), [1.0], "knots"),
    ("spline", (*HERE, "targets"), [], "knots"),
    ("spline", (*HERE, "targets"), list(range(100_000)), "knots"),
    ("spline", (*HERE, "targets"), {"0": 1}, "list"),
    ("spline", (*HERE, "targets", 1), 1e9, "strictly increasing"),
    ("spline", (*HERE, "values", 0), 1e9, "strictly increasing"),
    ("spline", (*HERE, "values", 0), "0", "number"),
    ("spline", (*HERE, "values"), [[1.0, 2.0]], "number"),
]


@pytest.mark.parametrize(("kind", "place", "value", "match"), CASES)
def test_a_transform_that_cannot_be_is_refused(states, tmp_path, kind, place, value, match):
    with pytest.raises(ModelFileError, match=match):
        loaded(tmp_path / "m", states[kind], place, value)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    ("kind", "place"), [("yeo-johnson", ("power",)), ("yeo-johnson", ("scale",)), ("spline", ("values", 2))]
)
def test_numbers_that_are_not_finite_are_refused(states, tmp_path, kind, place, number):
    with pytest.raises(ModelFileError):
        loaded(tmp_path / "m", states[kind], (*HERE, *place), number)


def test_knots_whose_slope_is_no_number_are_refused(states, tmp_path):
    for targets, values in (
        ([-BIG, BIG], [0, 1]),
        ([0, 5e-324], [0, 1.0]),
        ([0, 1], [-BIG, BIG]),
        ([0, BIG], [0, 5e-324]),
    ):
        data = {"kind": "spline", "note": "", "targets": targets, "values": values}
        with pytest.raises(ModelFileError, match="strictly increasing"):
            loaded(tmp_path / "m", states["spline"], HERE, data)


def test_a_transform_needs_one_target_and_one_noise_variance(tmp_path):
    y = np.stack([Y, Y], 1)
    for gp in (
        GPRegressor(optimizer=None, outputs="shared").fit(X, y),
        GPRegressor(optimizer=None, noise_variance=np.full(60, 0.1)).fit(X, Y),
    ):
        gp.save(tmp_path / "m")
        kind, tensors, header = load_state(tmp_path / "m")
        header["settings"]["target_transform"] = "log"
        header["target_transform"] = {"kind": "log", "note": ""}
        save_state(tmp_path / "m", kind, tensors, header)
        with pytest.raises(ModelFileError, match="must be none for this"):
            gigagp.load(tmp_path / "m")


def test_a_file_without_the_setting_loads_as_one_without_a_transform(states, tmp_path):
    gp = loaded(tmp_path / "m", states["none"], ("settings", "target_transform"), MISSING)
    assert gp.target_transform == gp.target_transform_.kind == "none"
    assert "target_transform" not in states["none"][2]


def test_an_argument_that_is_changed_after_the_fit_changes_no_file(tmp_path):
    gp = GPRegressor(target_transform="log", optimizer=None).fit(X, Y)
    for kind in ("none", "spline", "auto"):
        gp.set_params(target_transform=kind).save(tmp_path / "m")
        again = gigagp.load(tmp_path / "m")
        assert again.target_transform_ == gp.target_transform_
        assert np.array_equal(again.predict(X), gp.predict(X))


def test_unharmed_states_and_whole_numbers_load(states, tmp_path):
    for kind in ("log", "yeo-johnson", "spline", "auto"):
        assert json.dumps(states[kind][2]["target_transform"])
        loaded(tmp_path / "m", states[kind], ("target_transform", "note"), "anything")
    gp = loaded(tmp_path / "m", states["yeo-johnson"], ("target_transform", "power"), 1)
    assert gp.target_transform_.power == 1.0
