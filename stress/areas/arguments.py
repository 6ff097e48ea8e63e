"""Valid and invalid settings of every exported class and arguments of the estimators, alone and together."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from stress.draw import Draw
from stress.drawn.attacks import placed, settings_classes
from stress.drawn.settings import draw_kernel
from stress.drawn.values import Value, a_function, draw_value, fields_of
from stress.oracle.answers import as_answered, check_regressor
from stress.outcome import RIGHT, Lost, Wrong
from stress.scratch import scratch


def run(draw: Draw) -> str:
    """Run one case."""
    kind = draw.weighted({"settings": 0.55, "estimator": 0.2, "kernel": 0.1, "method": 0.15})
    draw.note(kind)
    return {"settings": _settings, "estimator": _estimator, "kernel": _kernel, "method": _method}[kind](draw)


def _table(draw: Draw) -> tuple[np.ndarray, np.ndarray]:
    X = draw.rng.uniform(-2, 2, (24, draw.whole(1, 2)))
    return X, np.sin(2 * X[:, 0]) + 0.1 * draw.rng.normal(size=24)


def _settings(draw: Draw) -> str:
    """Give one settings class valid or invalid values, and use it."""
    room, name, kind = draw.one_of(settings_classes())
    fields = fields_of(kind)
    values: dict[str, Value] = {}
    hostile = draw.chance(0.65)
    for place in draw.rng.permutation(len(fields))[: draw.weighted({0: 0.05, 1: 0.4, 2: 0.3, 4: 0.15, 20: 0.1})]:
        field, annotation = fields[place]
        bad = hostile and (not values or draw.chance(0.3))
        if not bad and not annotation.is_plain:
            continue  # another settings object: keep its default
        values[field] = draw_value(draw, annotation, field, hostile=bad)
    return _use(draw, room, name, kind, values)


def _use(draw: Draw, room: str, name: str, kind: type, values: dict[str, Value]) -> str:
    draw.note(f"{name}({', '.join(f'{field}={value.value!r}' for field, value in values.items())})"[:500])
    never = [f"{name}({field}): {value.value!r}" for field, value in values.items() if value.never_right]
    made = kind(**{**_needed(name), **{field: value.value for field, value in values.items()}})
    return _fit(draw, placed(room, name, made), never)


def _stay(evaluate: Any, start: Any, bounds: Any) -> Any:
    """Return the start unchanged; defined at module level so that it can be pickled."""
    return start


def _needed(name: str) -> dict[str, Any]:
    """Return arguments for which a class has no default."""
    from gigagp import optimization, truncation

    law = truncation.ExponentialDecay(0.1, 3)
    return {
        "RussianRoulette": {"distribution": law},
        "SingleSample": {"distribution": truncation.OneOverJ(5, 20, 5)},
        "SubsetStart": {"then": optimization.Adam(steps=2)},
        "Minimiser": {"function": _stay},
        "ExponentialDecay": {"rate": 0.1, "minimum": 3},
        "Fixed": {"length": 5},
        "Geometric": {"ratio": 0.5, "minimum": 3},
        "OneOverJ": {"base": 5, "maximum": 20, "step": 5},
        "Uniform": {"minimum": 3, "maximum": 8},
        "Nystrom": {"rank": 4},
        "PivotedCholesky": {"rank": 4},
        "RandomlyPivotedCholesky": {"rank": 4},
        "TwoLevel": {"rank": 4, "block_size": 6},
    }.get(name, {})


def _estimator(draw: Draw) -> str:
    """Give the estimator valid and invalid arguments."""
    from gigagp import inference, kernels

    right: dict[str, list[Any]] = {
        "kernel": [None, kernels.RBF(), kernels.Matern(nu=2.5)],
        "inference": ["auto", inference.Exact()],
        "optimizer": [None, "auto"],
        "mean": ["zero", "constant", "linear", lambda X: X[:, 0]],
        "noise_variance": [None, 0.1, 1, np.full(24, 0.2), np.float32(0.1)],
        "standardize": [True, False],
        "dtype": ["float64", "float32", "mixed"],
        "device": ["auto", "cpu"],
        "memory_budget": [None, "1GiB", 2**30, 1e9],
        "verbose": [0],
        "random_state": [0, 7, None, np.random.default_rng(0), np.random.RandomState(0)],
        "likelihood": ["gaussian"],
    }
    wrong: dict[str, list[Any]] = {
        "kernel": [
            "rbf",
            5,
            kernels.RBF,
            kernels.RBF(lengthscale=[1.0, 2, 3]),
            kernels.RBF(columns=[7]),
            [],
            a_function,
        ],
        "inference": ["exact", 5, inference.Exact, None, [], inference.Grid(size=4) if False else "grid"],
        "optimizer": ["adam", 5, [], a_function, False],
        "mean": [
            "quadratic",
            5,
            None,
            lambda X: X,
            lambda X: np.full(len(X), np.nan),
            lambda X: 1.0,
            lambda X: None,
            [],
        ],
        "noise_variance": [
            0.0,
            -1,
            float("nan"),
            float("inf"),
            "a",
            np.zeros(24),
            np.ones(23),
            [],
            {},
            10**400,
            1j,
            np.ones((24, 1)),
            np.full(24, np.nan),
            object(),
        ],
        "standardize": ["yes", [], float("nan"), object()],
        "dtype": ["float16", np.float64, None, 5, [], "int"],
        "device": ["meta", "cuda:99", "gpu", 5, None, [], "cpu:7", "mps", ""],
        "memory_budget": [
            0,
            -1,
            "lots",
            float("nan"),
            float("inf"),
            ".",
            "5 parsecs",
            [],
            1e-5,
            "1e400GiB",
            "-1GiB",
            object(),
        ],
        "verbose": ["a", [], float("nan"), object()],
        "random_state": ["a", -(10**400), 10**400, 1.5, [], object(), 2**64 + 1],
        "likelihood": ["cauchy", 5, None, [], "logistic", "probit"],
    }
    values: dict[str, Value] = {}
    names = list(right)
    hostile = draw.chance(0.7)
    for place in draw.rng.permutation(len(names))[: draw.whole(1, 4)]:
        name = names[place]
        bad = hostile and not values
        values[name] = Value(draw.one_of(wrong[name] if bad else right[name]), bad)
    draw.note(f"GPRegressor({', '.join(f'{name}={value.value!r}' for name, value in values.items())})"[:500])
    never = [f"GPRegressor({name}): {value.value!r}" for name, value in values.items() if value.never_right]
    return _fit(draw, {"optimizer": None, **{name: value.value for name, value in values.items()}}, never)


def _kernel(draw: Draw) -> str:
    """Give a kernel valid and invalid values."""
    from gigagp import kernels

    name = draw.one_of(["RBF", "Matern", "RationalQuadratic", "Periodic", "Cosine", "Linear", "Constant", "White"])
    kind = getattr(kernels, name)
    pool = {"lengthscale": name not in ("Cosine", "Linear", "Constant", "White"), "variance": True}
    pool |= {"alpha": name == "RationalQuadratic", "period": name in ("Periodic", "Cosine"), "nu": name == "Matern"}
    pool |= {"columns": name not in ("Constant", "White"), "fixed": True, "ard": name not in ("Constant", "White")}
    open_names = [key for key, has in pool.items() if has]
    values: dict[str, Value] = {}
    for key in draw.rng.permutation(open_names)[: draw.whole(1, 3)]:
        bad = draw.chance(0.5)
        if key == "columns":
            options = [[-1], [9], [0, 0], "a", 5, [0.5], [], [None]] if bad else [None, [0], (0,), np.array([0])]
        elif key == "fixed":
            options = ["nonsense", ["x"], 5, [3], float("nan")] if bad else [(), True, False, ["variance"], "variance"]
        elif key == "ard":
            options = ["yes", float("nan"), object(), []] if bad else [True, False]
        elif key == "nu":
            options = [0.7, "a", None, float("nan"), [1.5], -0.5] if bad else [0.5, 1.5, 2.5]
        elif bad:
            options = [0.0, -1.0, float("nan"), float("inf"), "a", [], [1.0] * 9, [[1.0]], 1j, object(), 10**400, True]
        else:
            options = [None, 1e-3, 0.5, 1, 3.0, 100.0, np.float32(2), 1e-12, 1e12, 1e-300, 1e300]
        chosen = draw.one_of(options)
        values[str(key)] = Value(chosen, bad and chosen is not True)
    draw.note(f"{name}({', '.join(f'{key}={value.value!r}' for key, value in values.items())})"[:500])
    never = [f"{name}({key}): {value.value!r}" for key, value in values.items() if value.never_right]
    kernel = kind(**{key: value.value for key, value in values.items()})
    other = draw_kernel(draw)
    if other is not None:
        kernel = kernel + other if draw.chance(0.5) else other * kernel
    return _fit(draw, {"kernel": kernel, "optimizer": draw.one_of([None, "auto"])}, never)


def _fit(draw: Draw, arguments: dict[str, Any], never: list[str]) -> str:
    """Fit 24 rows; accepted settings must give right answers, and refused ones must not change the previous fit."""
    import gigagp

    X, y = _table(draw)
    estimator = gigagp.GPRegressor(optimizer=None)
    before: Any = None
    if draw.chance(0.2):
        before = estimator.fit(X, y).predict(X, return_std=True)
    estimator.set_params(**arguments)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            estimator.fit(X, y)
        except gigagp.errors.GigaGPError:
            if before is not None and not np.array_equal(estimator.predict(X, return_std=True), before):
                raise Lost("a refused refit changed the old fit") from None
            raise
    if never:
        raise Wrong(f"accepted {never[0]}")
    said = any(issubclass(one.category, gigagp.errors.GigaGPWarning) for one in caught)
    with scratch() as folder:
        # the dense program is of one set of hyperparameters
        mixes = not estimator._models and (estimator._uncertain is not None or estimator.posterior_.is_mixture)
        if estimator.mean in ("zero", "constant", "linear") and not mixes:
            check_regressor(estimator, X, as_answered(estimator, X, y), draw, warned=said, folder=folder)
        elif not np.isfinite(estimator.predict(X, return_std=True)).all():
            raise Wrong("mean or std not finite")
    return RIGHT


def _method(draw: Draw) -> str:
    """Give the methods of a fitted estimator valid and invalid arguments."""
    import gigagp
    from gigagp import inference

    X, y = _table(draw)
    way = draw.one_of(["auto", inference.Vecchia(3, 5)])
    gp = gigagp.GPRegressor(inference=way, optimizer=draw.one_of([None, "auto"])).fit(X, y)
    before = gp.predict(X, return_std=True)
    odd = [float("nan"), "a", [], None, object(), 2.5, -1, 0, 10**400, 1j, float("inf")]
    d = X.shape[1]
    bad_X = [
        None,
        "a",
        X[:, :0],
        np.zeros((3, d + 1)),
        X[0],
        np.nan * X,
        1j * X,
        [],
        [[]],
        5,
        X[:, :, None],
        X.astype(str),
    ]
    with scratch() as folder:
        calls = [
            ("predict", (draw.one_of(bad_X),), {}),
            ("predict", (X,), {"variance": draw.one_of(odd)}),
            ("predict", (X,), {"return_std": True, "return_cov": True}),
            ("predict", (X,), {"return_std": True, "return_parts": True}),
            ("predict", (X[:0],), {"return_std": True}),
            ("predict", (X,), {"return_std": True, "hyperparameters": draw.one_of([*odd, "laplace", "learned"])}),
            ("predict_quantile", (X, draw.one_of([0.5, [0.1, 0.9], *odd])), {"hyperparameters": "learned"}),
            ("predictive_log_density", (X, draw.one_of([y, y[:-1], None])), {}),
            ("leave_one_out", (), {}),
            ("posterior", (draw.one_of(bad_X),), {"variance": draw.one_of(["auto", *odd])}),
            ("sample_y", (X,), {"n_samples": draw.one_of(odd)}),
            ("sample_y", (X,), {"random_state": draw.one_of(["a", [], object(), 2.5, 10**400, 1j, -(10**400)])}),
            ("sample_functions", (draw.one_of(odd),), {}),
            ("score", (X, draw.one_of([None, "a", y[:-1], np.nan * y, 1j * y, [], y[:, None, None]])), {}),
            ("log_marginal_likelihood", (draw.one_of(["a", [], object(), 2.5, 10**400]),), {}),
            (
                "save",
                (draw.one_of([None, 5, folder, folder / "no" / "model.gp", "", b"\xff", "a\0b", "/dev/null", []]),),
                {},
            ),
            (
                "fit",
                (X, y),
                {
                    "validation": draw.one_of(
                        [5, (X,), (X, y[:-1]), (X[:, :0], y), "ab", (None, None), [], (X * np.nan, y)]
                    )
                },
            ),
            ("fit", (X, y), {"checkpoint": draw.one_of([5, folder, folder / "no" / "c", [], "", "a\0b", object()])}),
            (
                "fit_table",
                (draw.one_of([None, 5, "nowhere.csv", [], {}, object(), lambda: None, (X,), (X, y, y), iter([])]),),
                {},
            ),
            (
                "fit_table",
                ((X, y),),
                {"bounds": draw.one_of([5, (1,), ([0.0], [1.0]), (np.nan, np.nan), ("a", "b"), (X, y)])},
            ),
            ("fit_table", ((X, y),), {"chunk_rows": draw.one_of(odd)}),
            ("fit_table", ((X, y),), {"target": draw.one_of([5, "y", [], object()])}),
            ("partial_fit", (draw.one_of([X, *bad_X]), draw.one_of([y, y[:-1], None, np.nan * y])), {}),
            ("partial_fit", (X, y), {"noise_variance": draw.one_of(odd)}),
            ("condition_on", (draw.one_of([X, *bad_X]), draw.one_of([y, y[:-1], None, np.nan * y])), {}),
            ("condition_on", (X, y), {"refit": draw.one_of(odd)}),
        ]
        name, positional, named = draw.one_of(calls)
        draw.note(f"{name}(..., {named!r}) of {str(positional)[:150]}")
        try:
            found = getattr(gp, name)(*positional, **named)
        except gigagp.errors.GigaGPError:
            if not np.array_equal(gp.predict(X, return_std=True), before):
                raise Lost(f"a refused {name} changed the fit") from None
            raise
        except AttributeError:
            if name == "partial_fit":  # scikit-learn checks whether the method exists
                return RIGHT
            raise
    if name == "posterior":
        found = found.mean, found.stddev
    if found is not None and not hasattr(found, "fit") and not callable(found):
        parts = found if isinstance(found, tuple) else (found,)
        if not all(np.isfinite(np.asarray(part, dtype=float)).all() for part in parts):
            raise Wrong(f"answers of {name} not finite")
    return RIGHT
