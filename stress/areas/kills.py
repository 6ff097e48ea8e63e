"""Signals at random times: in fits with a checkpoint, in saves over an old model, and in fits of streamed tables."""

from __future__ import annotations

import functools
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from stress.draw import Draw
from stress.drawn import fitted
from stress.outcome import RIGHT, Lost, Wrong
from stress.processes import Child
from stress.scratch import check_nothing_left, scratch

_PATIENCE = 40.0


def run(draw: Draw) -> str:
    """Run one case with one signal, and check what it leaves."""
    kind = kind_of(draw)
    draw.note(kind)
    return {"fit": _fit, "stream": _stream, "save": _save, "interrupt": _interrupt}[kind](draw)


def kind_of(draw: Draw) -> str:
    """Return the activity that a case interrupts, which is its first random choice."""
    return draw.weighted({"fit": 0.4, "stream": 0.25, "save": 0.25, "interrupt": 0.1})


def write_at_every_step() -> None:
    """Make this process write its checkpoints at every step instead of once a minute."""
    from gigagp.estimators import checkpoint
    from gigagp.inference.grid import streamed

    made = checkpoint.Checkpoint.__init__

    def make(self: Any, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        self._writes.interval = 0.0

    checkpoint.Checkpoint.__init__ = make  # type: ignore[method-assign]
    streamed._INTERVAL = 0.0


def _estimator(name: str) -> Any:
    from gigagp import GPRegressor, inference, kernels, optimization

    return {
        "exact, auto": lambda: GPRegressor(kernels.Matern(nu=1.5)),
        "exact, Adam": lambda: GPRegressor(optimizer=optimization.Adam(steps=30)),
        "exact, L-BFGS": lambda: GPRegressor(optimizer=optimization.LBFGS(steps=12)),
        "iterative, Adam": lambda: GPRegressor(
            inference=inference.Iterative(n_samples=4), optimizer=optimization.Adam(steps=8)
        ),
        "iterative, auto": lambda: GPRegressor(kernels.Matern(nu=1.5), inference=inference.Iterative(n_samples=4)),
        "neighbours": lambda: GPRegressor(kernels.Matern(nu=1.5), inference=inference.Vecchia(5, 8)),
        "neighbours, gross outliers": lambda: GPRegressor(inference=inference.Vecchia(5, 8), likelihood="student-t"),
        "sparse, auto": lambda: GPRegressor(inference=inference.SparseVariational(n_inducing=6)),
        "aware, Adam": lambda: GPRegressor(
            inference=inference.ComputationAware(n_actions=4), optimizer=optimization.Adam(steps=12)
        ),
        "grid": lambda: GPRegressor(inference=inference.Grid(size=10, n_samples=4)),
        "quadruply": lambda: GPRegressor(
            inference=inference.QuadruplyStochastic(n_basis=10, row_batch=8, basis_batch=5),
            optimizer=optimization.SparseAdam(steps=30),
        ),
    }[name]()


FITS = (
    *(
        "exact, auto",
        "exact, Adam",
        "exact, L-BFGS",
        "iterative, Adam",
        "iterative, auto",
        "neighbours",
        "neighbours, gross outliers",
        "sparse, auto",
        "aware, Adam",
    ),
    *("grid", "quadruply"),
)


def _learn(name: str, checkpoint: Path | None) -> Any:
    X, y = fitted.rows(24)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _estimator(name).fit(X, y, checkpoint=checkpoint)


def _digest(gp: Any) -> list[bytes]:
    """Return everything in which two fits can differ, to the bit."""
    return [fitted.answers(gp).tobytes(), repr(gp.kernel_.to_dict()).encode(), np.float64(gp.noise_variance_).tobytes()]


def _write_table(folder: Path) -> None:
    """Write the table of `_learn_stream`, in the process that is not killed."""
    np.save(folder / "table.npy", np.column_stack(fitted.rows(200)))


@functools.lru_cache(maxsize=64)
def _undisturbed(kind: str, name: str) -> tuple[list[bytes], float]:
    """Return the digest and the time of an undisturbed fit, in a child process like the killed ones."""
    began = time.monotonic()
    with scratch() as folder:
        _write_table(folder)
        learn = _LEARN[kind]
        ending = Child(lambda send: _digest(learn(name, folder))).join(_PATIENCE)
    if ending.value is None:
        raise RuntimeError(f"the undisturbed fit {name} failed: {ending.text}")
    return ending.value, time.monotonic() - began


def _learn_rows(name: str, folder: Path) -> Any:
    write_at_every_step()
    return _learn(name, folder / "fit.checkpoint")


def _learn_stream(name: str, folder: Path) -> Any:
    from gigagp import GPRegressor, inference, optimization

    write_at_every_step()
    path = folder / "table.npy"
    way: Any = inference.Grid(size=10, n_samples=4)
    optimizer: Any = "auto"
    if name == "neighbours, streamed":
        way = inference.Vecchia(5, 8)
    elif name == "quadruply, streamed":
        way = inference.QuadruplyStochastic(n_basis=10, row_batch=16, basis_batch=5)
        optimizer = optimization.SparseAdam(steps=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GPRegressor(inference=way, optimizer=optimizer).fit_table(
            path, "column3", checkpoint=folder / "fit.checkpoint", chunk_rows=16
        )


_LEARN: dict[str, Callable[[str, Path], Any]] = {"fit": _learn_rows, "stream": _learn_stream}


def _fit(draw: Draw) -> str:
    return _kill_and_resume(draw, "fit", draw.one_of(FITS))


def _stream(draw: Draw) -> str:
    return _kill_and_resume(
        draw, "stream", draw.one_of(["grid, streamed", "neighbours, streamed", "quadruply, streamed"])
    )


def _kill_and_resume(draw: Draw, kind: str, name: str) -> str:
    """Kill a fit, possibly twice; the same call must then end as if nothing had happened."""
    expected, seconds = _undisturbed(kind, name)
    learn = _LEARN[kind]
    with scratch() as folder:
        _write_table(folder)
        for _ in range(draw.whole(1, 2)):
            number = draw.one_of([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
            delay = draw.real(0, 1.05 * seconds)
            draw.note(f"{name}: {number.name} after {delay:.3f} of {seconds:.3f} s")
            child = Child(lambda send: _digest(learn(name, folder)))
            time.sleep(delay)
            child.kill(number)
            ending = child.join(_PATIENCE)
            if ending.error is not None:
                raise Lost(f"a killed fit raised ({kind}, {name}): {ending.text[-800:]}")
        ending = Child(lambda send: _digest(learn(name, folder))).join(_PATIENCE)
        if ending.error is not None:
            raise Lost(f"a killed fit cannot be resumed ({kind}, {name}): {ending.text[-800:]}")
        if ending.value != expected:
            raise Wrong(f"a resumed fit differs from an undisturbed one ({kind}, {name})")
        check_nothing_left(folder, {"table.npy"}, f"after a kill and the same call ({kind}, {name})")
    return RIGHT


def _save(draw: Draw) -> str:
    """Kill a process that saves over an old model; one of the two models must be there, intact."""
    import gigagp

    kind = draw.one_of(fitted.KINDS[:-1])
    old, new = fitted.model(kind), fitted.model(kind, seed=1)
    whole = [fitted.answers(one).tobytes() for one in (old, new)]
    with scratch() as folder:
        path = folder / "model.gp"
        old.save(path)

        def save_for_ever(send: Callable[[Any], None]) -> None:
            send("ready")
            while True:
                new.save(path)
                old.save(path)

        child = Child(save_for_ever)
        child.wait_for_message(_PATIENCE)
        time.sleep(draw.real(0, 0.03))
        child.kill(draw.one_of([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
        child.join(_PATIENCE)
        try:
            found = fitted.answers(gigagp.load(path)).tobytes()
        except gigagp.errors.ModelFileError as error:
            raise Lost(f"the model is gone after a kill in save: {error}") from error
        if found not in whole:
            raise Wrong("after a kill in save the model is neither the old one nor the new one")
        new.save(path)
        if fitted.answers(gigagp.load(path)).tobytes() != whole[1]:
            raise Wrong("the save after a kill did not save")
        check_nothing_left(folder, {"model.gp"}, "after a kill in save and the next save")
    return RIGHT


def _interrupt(draw: Draw) -> str:
    """Check that, after a step on all rows, Ctrl-C in a fit gives a fitted model, and SIGTERM leaves the checkpoint."""
    name = draw.one_of([one for one in FITS if one not in ("quadruply", "grid")])
    _, seconds = _undisturbed("fit", name)
    number = draw.one_of([signal.SIGINT, signal.SIGINT, signal.SIGTERM])
    with scratch() as folder:
        path = folder / "fit.checkpoint"

        def learn(send: Callable[[Any], None]) -> bool:
            from gigagp.estimators.checkpoint import Checkpoint

            record, remove = Checkpoint.record, Checkpoint.remove

            def recorded(self: Any, *arguments: Any, **named: Any) -> None:
                record(self, *arguments, **named)
                send("step")

            def removed(self: Any) -> None:
                send("complete")
                remove(self)

            Checkpoint.record = recorded  # type: ignore[method-assign]
            Checkpoint.remove = removed  # type: ignore[method-assign]
            return bool(np.isfinite(fitted.answers(_learn(name, path))).all())

        child = Child(learn)
        child.wait_for_message(_PATIENCE)
        delay = draw.real(0, 0.5 * seconds)
        draw.note(f"{name}: {number.name}, {delay:.3f} s after the first step of {seconds:.3f} s")
        time.sleep(delay)
        child.kill(number)
        ending = child.join(_PATIENCE)
        left = path.exists()
    if ending.value is True or "complete" in ending.messages:
        return RIGHT  # it ended before, or was ended with its best state
    if number == signal.SIGINT:
        raise Lost(f"Ctrl-C lost the fit: {name}, {len(ending.messages)} steps, {ending.text[-300:]}")
    if not left:
        raise Lost(f"SIGTERM left no checkpoint: {name}, {len(ending.messages)} steps")
    return RIGHT
