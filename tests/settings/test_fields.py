"""Every field of every settings class accepts what its type allows, and rejects everything else by name."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import pickle
import types
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
import pytest
import torch

from gigagp import (
    GPRegressor,
    actions,
    diagnostics,
    gradients,
    inference,
    kernels,
    metrics,
    optimization,
    presets,
    solvers,
    truncation,
)
from gigagp.errors import InvalidInputError
from gigagp.estimators.saving.configuration import from_plain, to_plain
from gigagp.settings.fields import (
    Count,
    CountOrZero,
    Even,
    Length,
    Positive,
    Range,
    Remedy,
    Settings,
    Words,
    checked,
    checks_arguments,
    describe,
    field_hints,
    shown,
)
from gigagp.solvers import preconditioners

ROOMS = (actions, gradients, inference, optimization, preconditioners, solvers, truncation)
EXPORTED = {
    item
    for room in ROOMS
    for name in room.__all__
    if inspect.isclass(item := getattr(room, name)) and dataclasses.is_dataclass(item) and not inspect.isabstract(item)
}
#: Classes that computations return; nobody constructs them.
RECORDS = {
    inference.Abilities,
    gradients.PathwiseProbes,
    optimization.Evaluation,
    optimization.History,
    optimization.SolveRecord,
    optimization.Step,
    solvers.Solution,
    solvers.Start,
    solvers.Truncated,
}
CLASSES = sorted(EXPORTED - RECORDS, key=lambda cls: (cls.__module__, cls.__name__))
#: Fields without a default.
NEEDED: dict[type, dict[str, Any]] = {
    optimization.Minimiser: {"function": math.hypot},
    optimization.Unsaved: {"description": "of mine"},
    optimization.SubsetStart: {"then": optimization.Adam()},
    truncation.ExponentialDecay: {"rate": 0.05},
    truncation.Fixed: {"length": 3},
    truncation.RussianRoulette: {"distribution": truncation.Geometric()},
    truncation.SingleSample: {"distribution": truncation.Geometric()},
}
#: Further arguments for fields that depend on each other.
COMPANIONS: dict[tuple[type, str], dict[str, Any]] = {
    (inference.QuadruplyStochastic, "augment"): {"basis": "inducing"},
    (inference.QuadruplyStochastic, "prior_control"): {"basis": "inducing", "n_support": 5},
    (inference.QuadruplyStochastic, "n_columns"): {"n_basis": 2**40},
    (inference.QuadruplyStochastic, "basis_batch"): {"n_basis": 2**40},
    (inference.QuadruplyStochastic, "column_batch"): {"n_basis": 2**40, "n_columns": 2**40},
    (inference.RelevanceVectorMachine, "n_columns"): {"n_basis": 2**40},
    (inference.RelevanceVectorMachine, "basis_batch"): {"n_basis": 2**40},
    (truncation.OneOverJ, "maximum"): {"base": 0},
}
#: Fields with a single valid value, inherited from a class in which they have more.
CLOSED = {
    (inference.RelevanceVectorMachine, "order"),
    (inference.RelevanceVectorMachine, "basis"),
    (inference.RelevanceVectorMachine, "augment"),
    (inference.RelevanceVectorMachine, "prior_control"),
    (inference.RelevanceVectorMachine, "column_batch"),
}
WRONG = [
    None,
    True,
    np.True_,
    -1,
    0,
    1,
    3,
    2.5,
    -0.5,
    math.nan,
    math.inf,
    -math.inf,
    np.float32("nan"),
    10**400,
    -(10**400),
    10**5000,
    2**63,
    1 + 2j,
    "",
    "no such word",
    b"auto",
    [],
    (),
    {},
    [None],
    (1, "a"),
    ("a", "b", "c"),
    object(),
    object,
    lambda: 1,
    np.zeros(3),
    np.array(0.5),
    torch.zeros(2),
    torch.tensor(1.0, requires_grad=True),
]


def is_right(value: Any, hint: Any) -> bool:
    """Whether a type allows a value, written independently of `gigagp.settings.fields`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return is_right(value, arguments[0]) and all(_keeps(value, mark) for mark in arguments[1:])
    if origin in (Union, types.UnionType):
        return any(is_right(value, arm) for arm in arguments)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if origin in (tuple, Sequence):
        if type(value) not in (tuple, list):
            return False
        kinds = arguments if origin is tuple and arguments[-1] is not Ellipsis else arguments[:1] * len(value)
        return len(kinds) == len(value) and all(map(is_right, value, kinds))
    if hint is bool:
        return type(value) in (bool, np.bool_)
    if hint is int:
        return type(value) in (int, np.int64) and -(2**63) < value < 2**63
    if hint is float:
        if type(value) is np.float32:
            value = float(value)
        return type(value) in (int, float, Fraction) and -(10**308) < value < 10**308
    if origin is Callable:
        return callable(value)
    return value is None if hint is type(None) else isinstance(value, hint)


def _keeps(value: Any, mark: Any) -> bool:
    if isinstance(mark, Range):
        low = -math.inf if mark.least is None else mark.least
        high = math.inf if mark.most is None else mark.most
        return (
            low <= value <= high
            and value != mark.above
            and value != mark.below
            and not ((mark.above is not None and value < mark.above) or (mark.below is not None and value > mark.below))
        )
    if isinstance(mark, Even):
        return value % 2 == 0
    return len(value) >= mark.least if isinstance(mark, Length) else isinstance(mark, Words | Remedy)


def right_values(hint: Any) -> list[Any]:
    """Return values that a type allows, including its bounds; none for a class."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        tried = right_values(arguments[0])
        for mark in arguments[1:]:
            if isinstance(mark, Range):
                bounds = [bound for bound in (mark.least, mark.above, mark.most, mark.below) if bound is not None]
                tried += [bound + step for bound in bounds for step in (-1, -0.25, 0, 0.25, 1, 2)]
        tried += [np.int64(value) for value in tried if type(value) is int]
        tried += [np.float32(value) for value in tried if type(value) is float]
        return [value for value in tried if is_right(value, hint)]
    if origin in (Union, types.UnionType):
        return [value for arm in arguments for value in right_values(arm)]
    if origin is Literal:
        return list(arguments)
    if origin in (tuple, Sequence):
        kinds = arguments if origin is tuple and arguments[-1] is not Ellipsis else arguments[:1] * 2
        items = [right_values(kind)[0] for kind in kinds]
        return [tuple(items), items]
    plain = {bool: [True, False, np.True_], int: [0, 1, 2], float: [0.5, 1, Fraction(1, 4), np.float32(0.5)]}
    return [None] if hint is type(None) else plain.get(hint, [])


def build(cls: type, name: str, value: Any) -> Any:
    return cls(**{**NEEDED.get(cls, {}), **COMPANIONS.get((cls, name), {}), name: value})


def identify(value: Any) -> str:
    return value.__name__ if inspect.isclass(value) else repr(value)


def test_every_exported_dataclass_is_settings_or_a_record():
    assert len(CLASSES) >= 35
    assert {cls.__name__ for cls in CLASSES if not issubclass(cls, Settings)} == set()
    assert {cls.__name__ for cls in RECORDS if issubclass(cls, Settings)} == set()


def test_every_field_says_what_it_holds():
    vague = [(cls, name) for cls in CLASSES for name, hint in field_hints(cls).items() if hint in (Any, object)]
    assert vague == []


@pytest.mark.parametrize("cls", CLASSES, ids=identify)
def test_wrong_values_are_refused_by_name(cls):
    refused = 0
    for name, hint in field_hints(cls).items():
        for value in WRONG:
            if is_right(value, hint):
                continue
            with pytest.raises(InvalidInputError, match=rf"^{name} of {cls.__name__} must be .*; got ") as caught:
                build(cls, name, value)
            assert len(str(caught.value)) < 800  # long values are shortened
            refused += 1
    assert refused >= 15 * len(field_hints(cls))


@pytest.mark.parametrize("cls", CLASSES, ids=identify)
def test_right_values_are_taken_as_pythons_own_and_come_back_from_a_file(cls):
    for name, hint in field_hints(cls).items():
        if (cls, name) in CLOSED:
            continue
        for value in right_values(hint):
            if name == "middle_size" and value == 1:  # refused: a table of one row
                continue
            made = build(cls, name, value)
            kept = getattr(made, name)
            assert type(kept) in (bool, int, float, str, tuple, type(None)), (name, value)
            assert kept == (tuple(value) if isinstance(value, list) else value)
            if cls is optimization.Minimiser:  # contains code, which files do not
                continue
            again = from_plain(json.loads(json.dumps(to_plain(made))))
            assert again == made
            assert repr(again) == repr(made)
            assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize("cls", CLASSES, ids=identify)
def test_defaults_are_right(cls):
    made = cls(**NEEDED.get(cls, {}))
    for name, hint in field_hints(cls).items():
        assert is_right(getattr(made, name), hint), name


@pytest.mark.parametrize(
    "make",
    [
        lambda: optimization.Adam(beta1=math.nan),
        lambda: optimization.Auto(max_subset_change=-1),
        lambda: optimization.Auto(subset_sizes=5),
        lambda: optimization.LBFGS(steps=math.inf),
        lambda: solvers.ConjugateGradients(nats=1),
        lambda: inference.Grid(seed=-1),
        lambda: inference.Iterative(n_samples=math.nan),
        lambda: optimization.Adam(steps=10**400),
        lambda: optimization.SubsetStart(then=5),
        lambda: inference.RandomFeatures(redraw="yes"),
        lambda: actions.Lanczos(ritz=2),
        lambda: truncation.RussianRoulette(truncation.Fixed(2), trust_convergence="no"),
    ],
)
def test_what_was_once_taken_in_silence(make):
    with pytest.raises(InvalidInputError, match=r"^\w+ of \w+ must be "):
        make()


# Messages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (Count, "an int of at least 1"),
        (Positive | Literal["auto"] | None, 'a positive number, "auto" or None'),
        (Annotated[float, Range(above=0, most=1)], "a number above 0 and at most 1"),
        (Annotated[float, Range(least=0, below=1)], "a number from 0 to below 1"),
        (Annotated[float, Range(above=0, below=1)], "a number between 0 and 1"),
        (Annotated[int, Range(least=2, most=9)], "an int from 2 to 9"),
        (Annotated[int, Range(least=2), Even()], "an even int of at least 2"),
        (Annotated[tuple[Count, ...], Length(1)], "a tuple, each item an int of at least 1, one item at least"),
        (tuple[int, str], "2 items (an int, a text)"),
        (bool | None, "True or False or None"),
        (kernels.Kernel | None, "one of gigagp.kernels or None"),
        (kernels.RBF, "RBF"),
        (Annotated[Count, Remedy("Fewer.")], "an int of at least 1"),
        (Annotated[int, Words("a lucky number")], "a lucky number"),
    ],
)
def test_types_in_words(hint, text):
    assert describe(hint) == text


def test_a_remedy_is_the_end_of_the_message():
    with pytest.raises(InvalidInputError, match=r"^steps of It must be an int of at least 1; got 0\. Rest\.$"):
        checked(0, Annotated[Count, Remedy("Rest.")], "steps", "It")


class _Mute:
    def __repr__(self):
        raise RuntimeError


def test_values_are_shown_on_one_short_line():
    assert shown(10**400) == "an int of 1,329 bits, more than the 63 that are supported"
    assert shown(_Mute()) == "an object of _Mute"
    text = shown(np.zeros((50, 50)))
    assert "\n" not in text
    assert len(text) < 250


class _Things:
    @checks_arguments
    def take(self, rows: Any, n: Count = 1, *, how: Literal["a", "b"] = "a") -> tuple[Any, int, str]:
        return rows, n, how

    @classmethod
    @checks_arguments
    def make(cls, n: Count) -> int:
        return n


def test_arguments_of_functions():
    rows = object()
    found = _Things().take(rows, np.int32(3), how="b")
    assert found == (rows, 3, "b")
    assert type(found[1]) is int
    with pytest.raises(InvalidInputError, match=r"^n of _Things\.take must be an int of at least 1; got 0\.$"):
        _Things().take(rows, 0)
    with pytest.raises(InvalidInputError, match=r'^how of _Things\.take must be "a" or "b"; got 1\.$'):
        _Things().take(rows, how=1)
    with pytest.raises(InvalidInputError, match=r"^n of _Things\.make must be"):
        _Things.make(None)
    with pytest.raises(TypeError, match="missing a required argument"):
        _Things().take()


# Other than dataclasses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lengthscale", [0, -1, True, math.nan, math.inf, 10**400, "1", [], {}, object(), [1, None], np.zeros((2, 2))]),
        ("variance", [0, -1, True, math.nan, 10**400, "1", [1, 2], object()]),
        ("nu", [None, True, 1, 2.0, math.nan, "1.5", [], [1.5], object(), 10**400]),
        ("ard", [None, 0, 1, "no", [], object()]),
        ("columns", [5, "a", [], [True], [0.5], [-1], [0, 0], object()]),
        ("fixed", [None, 5, "period", ["period"], [1], object(), {"variance": True}]),
    ],
)
def test_arguments_of_kernels(name, values):
    for value in values:
        with pytest.raises(InvalidInputError, match=rf"^{name} of Matern must be .*; got"):
            kernels.Matern(**{name: value})
    for number in (True, math.nan, -1, 10**400, Fraction(-1)):
        with pytest.raises(InvalidInputError, match="variance of Constant must be"):
            kernels.RBF() * number


X = np.linspace(0, 6, 20)[:, None]
FITTED = GPRegressor(optimizer=None).fit(X, np.sin(X[:, 0]))
#: A name, a function that passes it, and its type.
ARGUMENTS = [
    ("kernel", lambda value: GPRegressor(kernel=value).fit(X, X[:, 0]), kernels.Kernel | None),
    ("inference", lambda value: GPRegressor(kernels.Matern(nu=1.5), inference=value).fit(X, X[:, 0]), Literal["auto"]),
    (
        "optimizer",
        lambda value: GPRegressor(kernels.Matern(nu=1.5), optimizer=value).fit(X, X[:, 0]),
        Literal["auto"] | None,
    ),
    ("standardize", lambda value: GPRegressor(kernels.Matern(nu=1.5), standardize=value).fit(X, X[:, 0]), bool),
    ("dtype", lambda value: GPRegressor(kernels.Matern(nu=1.5), dtype=value).fit(X, X[:, 0]), Literal["float64"]),
    ("device", lambda value: GPRegressor(kernels.Matern(nu=1.5), device=value).fit(X, X[:, 0]), Literal["cpu"]),
    (
        "memory_budget",
        lambda value: GPRegressor(kernels.Matern(nu=1.5), memory_budget=value).fit(X, X[:, 0]),
        Positive | str | None,
    ),
    ("verbose", lambda value: GPRegressor(kernels.Matern(nu=1.5), verbose=value).fit(X, X[:, 0]), bool | CountOrZero),
    (
        "random_state",
        lambda value: GPRegressor(kernels.Matern(nu=1.5), random_state=value).fit(X, X[:, 0]),
        CountOrZero | None,
    ),
    ("n_samples", lambda value: FITTED.sample_y(X, n_samples=value), Count),
    ("n_samples", lambda value: FITTED.sample_functions(value), Count),
    ("random_state", lambda value: FITTED.sample_y(X, random_state=value), CountOrZero | None),
    ("return_std", lambda value: FITTED.predict(X, return_std=value), bool),
    ("include_noise", lambda value: FITTED.predict(X, include_noise=value), bool),
    ("variance", lambda value: FITTED.predict(X, variance=value), Literal["auto"]),
    ("chunk_rows", lambda value: GPRegressor().fit_table((X, X), chunk_rows=value), Count),
    ("level", lambda value: metrics.coverage(X, X, X + 1, value), Annotated[float, Range(above=0, below=1)]),
    ("n_bins", lambda value: metrics.calibration_error(np.zeros(3, int), np.eye(3), value), Count),
    ("resolution", lambda value: diagnostics.map_values(FITTED, resolution=value), Annotated[int, Range(least=2)]),
    ("steps", lambda value: presets.lin2024(steps=value), Count),
    ("warm_start", lambda value: presets.lin2024(warm_start=value), bool),
]


@pytest.mark.parametrize(("name", "use", "hint"), ARGUMENTS, ids=[name for name, _, _ in ARGUMENTS])
def test_arguments_of_estimators_and_functions(name, use, hint):
    for value in WRONG:
        if is_right(value, hint) or (name == "verbose" and isinstance(value, np.bool_)):
            continue
        if name in ("memory_budget", "device") and isinstance(value, str):
            continue  # strings are parsed by separate functions
        with pytest.raises(InvalidInputError, match=rf"^{name} of [\w.]+ must be .*; got "):
            use(value)
