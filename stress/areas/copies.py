"""Copies of a fitted model: pickled, copied, cloned and fitted, saved and loaded, in other processes and threads."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone

from stress.areas.likelihoods import draw_targets
from stress.areas.outputs import draw_outputs
from stress.draw import Draw
from stress.drawn.means import QuadraticMean, ramp
from stress.drawn.settings import draw_inference, draw_optimizer
from stress.drawn.small import draw_places, draw_size, draw_values, points_around
from stress.outcome import RIGHT, Wrong
from stress.processes import Child
from stress.scratch import scratch

_ROOT = Path(__file__).resolve().parents[2]
#: What a fresh process runs: a model file, a file of points, and a file for the answers.
_PROGRAM = """
import pickle, sys, torch
torch.set_num_threads(1)
import gigagp
from stress.areas.copies import answers
from stress.drawn.means import QuadraticMean, ramp
model = gigagp.load(sys.argv[1], custom=[QuadraticMean, ramp])
new = pickle.load(open(sys.argv[2], "rb"))
pickle.dump(answers(model, new), open(sys.argv[3], "wb"))
"""


def run(draw: Draw) -> str:
    """Run one case."""
    model, X, y = _fitted(draw)
    new = points_around(draw, X)
    if "grid" in _kinds(model):
        new = new[:-2]
    before = answers(model, new)
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "pickled": lambda: answers(pickle.loads(pickle.dumps(model)), new),
        "copied": lambda: answers(copy.deepcopy(model), new),
        "cloned and fitted": lambda: answers(_silently(clone(model), X, y), new),
        "asked again": lambda: answers(model, new),
        "saved and loaded": lambda: _saved(model, new),
        "saved, loaded and pickled": lambda: _saved(model, new, again=True),
        "in a forked process": lambda: _forked(model, new, 1),
        "with another number of threads": lambda: _forked(model, new, 2),
        "in another process": lambda: _elsewhere(model, new),
    }
    shares = {name: 1.0 for name in ways} | {"in another process": 0.05}
    for way in {draw.weighted(shares) for _ in range(3)}:
        after = ways[way]()
        # a grid recomputes its evidence from its sums, whose memory layout a file does not preserve; sums over rows
        # have another order with other threads
        loose = 1e-6 if "threads" in way else 0.0
        for name, value in before.items():
            close = max(loose, 1e-10 if name == "evidence" else 0.0)
            if not _same(value, after[name], close, model):
                raise Wrong(f"another {name} {way}: {_kinds(model)}: {after[name]!r} for {value!r}")
    return RIGHT


def answers(model: Any, new: np.ndarray) -> dict[str, Any]:
    """Return what a model says at points, by name."""
    from gigagp.errors import InvalidInputError

    if hasattr(model, "classes_"):
        found = {"probabilities": model.predict_proba(new), "log-odds": model.decision_function(new)}
        latent = model.latent_
    else:
        mean, std = model.predict(new, return_std=True)
        found = {"mean": mean, "std": std, "samples": model.sample_y(new, 2, random_state=5)}
        found["covariance"] = model.predict(new, return_cov=True)[1]
        latent = model
        for name, ask in (
            ("quantiles", lambda: model.predict_quantile(new, [0.1, 0.8])),
            ("row left out", lambda: model.leave_one_out().mean),
        ):
            try:
                found[name] = ask()
            except InvalidInputError as error:
                found[name] = np.array([len(str(error))])
    found["latent mean"], found["latent std"] = latent.predict_latent(new, return_std=True)
    found["functions"] = latent.sample_functions(2, 3)(new)
    found["evidence"] = np.array(latent.log_marginal_likelihood(random_state=1).value)
    return found


def _same(one: Any, other: Any, close: float, model: Any) -> bool:
    if not close:
        return bool(np.array_equal(one, other))
    scale = float(np.abs(one).max(initial=0.0)) + float(np.max(np.abs(np.concatenate(_scales(model)))))
    dtype = 1e4 if getattr(model, "dtype", "float64") == "float32" else 1.0
    return bool(np.shape(one) == np.shape(other) and (np.abs(one - other) <= close * dtype * scale).all())


def _scales(model: Any) -> list[np.ndarray]:
    found = getattr(model, "latent_", model).scaling_
    return [one.y_scale for one in (found if isinstance(found, tuple) else (found,))]


def _kinds(model: Any) -> str:
    posterior = getattr(model, "latent_", model).posterior_
    return ", ".join(one.kind for one in (posterior if isinstance(posterior, tuple) else (posterior,)))


def _silently(model: Any, X: np.ndarray, y: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y)


def _saved(model: Any, new: np.ndarray, *, again: bool = False) -> dict[str, Any]:
    import gigagp

    with scratch() as folder:
        model.save(folder / "model.gp")
        loaded = gigagp.load(folder / "model.gp", custom=[QuadraticMean, ramp])
    return answers(pickle.loads(pickle.dumps(loaded)) if again else loaded, new)


def _forked(model: Any, new: np.ndarray, threads: int) -> dict[str, Any]:
    data = pickle.dumps(model)

    def there(send: Any) -> dict[str, Any]:
        torch.set_num_threads(threads)
        return answers(pickle.loads(data), new)

    ending = Child(there).join(150.0)
    ending.reraise()
    return dict(ending.value)


def _elsewhere(model: Any, new: np.ndarray) -> dict[str, Any]:
    with scratch() as folder:
        model.save(folder / "model.gp")
        (folder / "new").write_bytes(pickle.dumps(new))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), str(_ROOT / "src")])}
        files = [str(folder / name) for name in ("model.gp", "new", "answers")]
        subprocess.run([sys.executable, "-c", _PROGRAM, *files], check=True, env=environment, capture_output=True)
        return dict(pickle.loads((folder / "answers").read_bytes()))


def _fitted(draw: Draw) -> tuple[Any, np.ndarray, Any]:
    """Return a fitted model of any kind, with its rows."""
    from gigagp import GPClassifier, GPRegressor, inference, kernels

    n, d = draw_size(draw, 40), draw.whole(1, 3)
    X = draw_places(draw, n, d)
    kind = draw.weighted(
        {"noise": 0.5, "several": 0.12, "poisson": 0.08, "heavy": 0.12, "classes": 0.1, "warped": 0.08}
    )
    settings: dict[str, Any] = {
        "kernel": draw_values(draw, d) if draw.chance(0.8) else None,
        "optimizer": draw_optimizer(draw) if draw.chance(0.4) else None,
        "random_state": draw.whole(0, 3),
        "standardize": draw.chance(0.85),
        "hyperparameter_units": "standardized",
        "dtype": draw.weighted({"float64": 0.75, "float32": 0.25}),
    }
    chosen: Any = draw_inference(draw, d)
    if kind in ("poisson", "classes"):
        chosen = draw.one_of([inference.Vecchia(n), inference.Vecchia(5), inference.QuadruplyStochastic(n_basis=20)])
    if getattr(chosen, "batch_size", None) is not None:
        settings["optimizer"] = None
    if type(chosen).__name__ == "Grid" or kind != "noise":
        settings["dtype"] = "float64"
    settings["inference"] = chosen
    if kind == "classes":
        labels = np.array(["a", "b", "c"])[draw.rng.permutation(n) % draw.whole(2, 3)]
        draw.note(settings)
        return _silently(GPClassifier(**settings), X, labels), X, labels
    if kind == "poisson":
        y = draw_targets(draw, X, "poisson", 1)[:, 0]
        settings |= {"likelihood": "poisson", "mean": "zero"}
    elif kind == "heavy":
        y = draw_targets(draw, X, "student-t", 1)[:, 0]
        settings["likelihood"] = "student-t"
    else:
        y = draw_outputs(draw, X, 2) if kind == "several" else draw_outputs(draw, X, 1)[:, 0]
        if kind == "warped":
            settings["target_transform"] = draw.one_of(["yeo-johnson", "spline", "auto"])
        else:
            settings["mean"] = draw.one_of(["zero", "constant", "linear", QuadraticMean(), ramp])
        if kind == "several":
            settings["outputs"] = draw.one_of(["auto", "shared"])
    draw.note(f"{kind}, {settings}")
    return _silently(GPRegressor(**{"kernel": kernels.Matern(nu=1.5)} | settings), X, y), X, y
