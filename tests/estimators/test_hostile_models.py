"""Model files with a correct checksum and invalid content: each gives one clear error or a sound model."""

from __future__ import annotations

import copy
import json
import os
import random
import tracemalloc
import warnings

import numpy as np
import pytest
import torch

import gigagp
from gigagp import GPClassifier, GPRegressor, actions, inference, kernels, optimization
from gigagp.errors import MemoryBudgetError, ModelFileError
from gigagp.estimators.saving.persistence import load_state, save_state

GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-2, 2, (40, 2))
Y = np.stack([np.sin(X[:, 0]), np.cos(X[:, 1])], 1) + 0.1 * GENERATOR.normal(size=(40, 2))
NEW = GENERATOR.uniform(-1.5, 1.5, (7, 2))
QS = inference.QuadruplyStochastic
MODELS = {
    "exact": GPRegressor(kernels.RBF() * kernels.Periodic(columns=[0]) + kernels.White(0.1), optimizer=None),
    "outputs": GPRegressor(optimizer=None),
    "known noise": GPRegressor(optimizer=None, noise_variance=np.full(40, 0.1), mean="linear"),
    "mixture": GPRegressor(kernel="average"),
    "iterative": GPRegressor(inference=inference.Iterative(n_samples=4), optimizer=optimization.Adam(steps=1)),
    "vecchia": GPRegressor(inference=inference.Vecchia(4, 6), optimizer=None),
    "random features": GPRegressor(inference=inference.RandomFeatures(20), optimizer=None),
    "blocks": GPRegressor(inference=inference.ComputationAware(5), optimizer=None),
    "rows": GPRegressor(inference=inference.ComputationAware(5, actions.UnitVectors()), optimizer=None),
    "dense": GPRegressor(inference=inference.ComputationAware(5, actions.TopEigenvectors()), optimizer=None),
    "sparse": GPRegressor(inference=inference.SparseVariational(8), optimizer=None),
    "grid": GPRegressor(inference=inference.Grid(size=9, n_samples=4, exact_nodes=0), optimizer=None),
    "fourier": GPRegressor(
        kernels.RBF(), inference=QS(40, basis="fourier"), optimizer=optimization.SparseAdam(steps=3), mean="zero"
    ),
    "inducing": GPRegressor(
        kernels.RBF(), inference=QS(20, basis="inducing"), optimizer=optimization.SparseAdam(steps=3), mean="zero"
    ),
    "classes": GPClassifier(inference=QS(20), optimizer=optimization.SparseAdam(steps=3)),
}


def answers(model):
    """Return a model's predictions at its original rows, which a changed file may have moved."""
    scaling = (model.latent_ if isinstance(model, GPClassifier) else model.estimators_[0]).scaling_
    points = scaling.x_centre + NEW / X.std(0) * scaling.x_scale
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if isinstance(model, GPClassifier):
            return [model.predict_proba(points)]
        return list(model.predict(points, return_std=True))


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """Return kind, tensors and header of a saved model of every kind."""
    found, path = {}, tmp_path_factory.mktemp("models") / "model.gp"
    for name, model in MODELS.items():
        targets = Y if name in ("exact", "sparse", "dense", "outputs") else Y[:, 0]
        if name != "outputs" and targets.ndim == 2:
            model.set_params(outputs="shared")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, np.where(targets > 0, "up", "down") if name == "classes" else targets)
        model.save(path)
        found[name] = load_state(path)
    return found


def outcome(path, kind, tensors, header, allowed=(ModelFileError,)):
    """Write a state with a correct checksum; return the error of loading it, or the model's answers."""
    save_state(path, kind, tensors, header)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = gigagp.load(path)
        except allowed as error:
            return error
    found = answers(model)
    for values in found:
        assert np.isfinite(values).all()
    return found


# Known changes --------------------------------------------------------------------------------------------------------


@pytest.mark.few(5)
@pytest.mark.parametrize("name", MODELS)
def test_an_unharmed_state_gives_the_same_bits(states, tmp_path, name):
    for one, other in zip(outcome(tmp_path / "m", *states[name]), answers(MODELS[name]), strict=True):
        np.testing.assert_array_equal(one, other)


DEEP = json.loads('{"a":' * 400 + "1" + "}" * 400)
#: From a place in the header of the exact model to an invalid value and a word of the error.
HEADERS = [
    (("kernel", "parts", 1, "n_inputs"), 2147483648, "n_inputs"),
    (("kernel", "parts", 0, "parts", 0, "n_inputs"), 10**30, "n_inputs"),
    (("kernel",), {"kernel": "RBF", "n_inputs": None}, "bound to 2 inputs"),
    (("kernel",), {"kernel": "os.system", "custom": "os.system"}, "not gigagp's"),
    (("kernel",), {"kernel": ["RBF"]}, "must name one of"),
    (("kernel",), [1], "table of names"),
    (("kernel", "parts"), DEEP, "table of names"),
    (("settings", "kernel"), {"tuple": [DEEP]}, "class and settings"),
    (("settings", "kernel", "kernel", "parts", 1, "n_inputs"), 2147483648, "n_inputs"),
    (("settings", "memory_budget"), -1, "memory_budget"),
    (("settings", "device"), "meta", "device"),
    (("settings", "dtype"), 3, "dtype"),
    (("settings", "no such argument"), 3, "no such argument"),
    (("posterior", "kind"), "os.system", "unknown kind"),
    (("posterior",), [], "table of names"),
    (("history", "stage"), [3], "text"),
    (("history", "seconds"), {}, "list"),
    (("feature_names",), ["x" * 10_000] * 1000, "0 or 2"),
    (("feature_names",), [1, 2], "text"),
    (("one_target",), 1, "true or false"),
    (("mean",), {"mean": None}, "mean"),
    (("mean",), {"mean": "constant", "custom": "os.system"}, "not gigagp's"),
]


@pytest.mark.parametrize(("place", "value", "match"), HEADERS)
def test_a_header_that_says_what_cannot_be(states, tmp_path, place, value, match):
    kind, tensors, header = copy.deepcopy(states["exact"])
    at = header
    for name in place[:-1]:
        at = at[name]
    at[place[-1]] = value
    tracemalloc.start()
    error = outcome(tmp_path / "m", kind, tensors, header)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(error, ModelFileError)
    assert match in str(error)
    assert peak < 2**26


@pytest.mark.parametrize("likelihood", [None, "gaussian", "laplace"])
def test_classes_need_a_likelihood_of_classes(states, tmp_path, likelihood):
    kind, tensors, header = copy.deepcopy(states["classes"])
    del header["settings"]["likelihood"]
    if likelihood is not None:
        header["settings"]["likelihood"] = likelihood
    error = outcome(tmp_path / "m", kind, tensors, header)
    assert isinstance(error, ModelFileError)
    assert "likelihood" in str(error)


@pytest.mark.few(5)
@pytest.mark.parametrize("name", MODELS)
def test_every_missing_name_of_a_header_and_every_missing_tensor_is_an_error(states, tmp_path, name):
    kind, tensors, header = states[name]
    later = {"custom_values", "gap", "interrupted", "kernel_choice", "n_rows", "notes", "plan", "warnings"}
    for key in header:
        if key not in later:  # files of earlier versions do not have these
            rest = {one: value for one, value in header.items() if one != key}
            assert isinstance(outcome(tmp_path / "m", kind, tensors, rest), ModelFileError), key
    for key in tensors:
        rest = {one: value for one, value in tensors.items() if one != key}
        if key != "statistics.weight_sums":  # without weights, earlier versions did not write them
            assert isinstance(outcome(tmp_path / "m", kind, rest, header), ModelFileError), key


def test_the_sums_of_weights_are_needed_with_weights(tmp_path):
    known = np.linspace(0.1, 0.2, len(X))
    gp = GPRegressor(inference=inference.Grid(9), optimizer=None, noise_variance=known).fit(X, Y[:, 0])
    gp.save(tmp_path / "m")
    kind, tensors, header = load_state(tmp_path / "m")
    assert not isinstance(outcome(tmp_path / "m", kind, tensors, header), ModelFileError)
    del tensors["statistics.weight_sums"]
    assert isinstance(outcome(tmp_path / "m", kind, tensors, header), ModelFileError)
    extra = {**tensors, "more": torch.zeros(2)}
    assert isinstance(outcome(tmp_path / "m", kind, extra, header), ModelFileError)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", MODELS)
def test_every_wrong_dtype_shape_and_nan_of_every_tensor_is_an_error(states, tmp_path, name):
    kind, tensors, header = states[name]
    for key, tensor in tensors.items():
        changes = [tensor.bool(), tensor.to(torch.int32), tensor[None]]
        if tensor.is_floating_point() and tensor.numel():
            changes += [torch.full_like(tensor, torch.nan), tensor.half()]
        if tensor.ndim:
            changes += [tensor[..., None], torch.cat([tensor, tensor[:1]])] if tensor.numel() else [tensor[..., None]]
        for changed in changes:
            found = outcome(tmp_path / "m", kind, {**tensors, key: changed}, header)
            assert isinstance(found, ModelFileError), (key, changed.dtype, changed.shape)


# Random changes -------------------------------------------------------------------------------------------------------

VALUES = (None, True, -1, 0, 1, 1.5, 1e-300, 1e300, 2**31, 2**63, 10**400, float("nan"), float("inf"), "", "x" * 500)
VALUES = (*VALUES, [], {}, [[]], {"a": 1}, {"tuple": [1]}, {"kernel": 3}, {"class": "Auto", "settings": {}}, DEEP)


def places(data, place=()):
    """Iterate over all places in plain data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, value in items:
        yield (*place, name)
        yield from places(value, (*place, name))


def changed_header(header, chance):
    """Return a header with one random change, and its place."""
    header = copy.deepcopy(header)
    place = chance.choice(list(places(header)))
    at = header
    for name in place[:-1]:
        at = at[name]
    way = chance.randrange(6)
    if way == 0:
        del at[place[-1]]
    elif way == 1 and isinstance(at, list):
        at.append(at[place[-1]])
    elif way == 2 and isinstance(at[place[-1]], int | float):
        at[place[-1]] = at[place[-1]] * chance.choice((-1, 0, 2, 1e9, 0.5)) + chance.choice((0, 1, -1))
    else:
        at[place[-1]] = copy.deepcopy(chance.choice(VALUES))
    return header, place


def changed_tensors(tensors, chance):
    """Return tensors with one of them changed."""
    name = chance.choice(sorted(tensors))
    tensor = tensors[name].clone()
    way = chance.randrange(9)
    flat = tensor.reshape(-1)
    if way == 0:
        tensor = tensor.to(chance.choice((torch.float32, torch.float64, torch.int64, torch.bool, torch.uint8)))
    elif way == 1:
        tensor = tensor.T.contiguous() if tensor.ndim == 2 else tensor[None]
    elif way == 2 and tensor.ndim:
        tensor = tensor[: chance.randrange(len(tensor) + 1)]
    elif way == 3 and tensor.ndim and len(tensor):
        tensor = tensor[torch.randint(len(tensor), (len(tensor) + chance.randrange(3),))]
    elif flat.numel() and tensor.dtype != torch.bool:
        whole = (-1, 0, 1, 2**31, 2**62, -(2**62))
        numbers = (0.0, -1.0, 1e-300, 1e10, -1e10, 1e300, float("nan"), float("inf"), -float("inf"))
        flat[chance.randrange(flat.numel())] = chance.choice(numbers if tensor.is_floating_point() else whole)
    return {**tensors, name: tensor}, name


#: Number of cases for each kind; the stress harness runs more.
CASES = int(os.environ.get("GIGAGP_HOSTILE_CASES", "40"))


@pytest.mark.few(4)
@pytest.mark.parametrize("name", MODELS)
def test_whatever_is_changed_is_one_error_or_a_sound_model(states, tmp_path, name):
    chance, errors = random.Random(name), 0
    kind, tensors, header = states[name]
    for case in range(CASES):
        own, other, place = tensors, header, ("header",)
        if case % 2:
            own, place = changed_tensors(tensors, chance)
        else:
            other, place = changed_header(header, chance)
        # A budget that is too small for a model gives an error in bytes, as in a fit.
        allowed = (ModelFileError, MemoryBudgetError) if "memory_budget" in place else (ModelFileError,)
        try:
            found = outcome(tmp_path / "m", kind, own, other, allowed)
        except Exception as error:
            raise AssertionError((name, case, place)) from error
        errors += isinstance(found, Exception)
    assert errors > CASES / 4
