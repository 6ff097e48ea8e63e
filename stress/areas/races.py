"""Concurrent work: readers during replacements, fits with one checkpoint, threads and forks with one model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from stress.areas import kills
from stress.draw import Draw
from stress.drawn import fitted
from stress.outcome import RIGHT, Lost, Wrong
from stress.processes import Child
from stress.scratch import check_nothing_left, scratch


def run(draw: Draw) -> str:
    """Run one case."""
    kind = draw.weighted({"readers": 0.3, "checkpoint": 0.25, "threads": 0.25, "forks": 0.2})
    draw.note(kind)
    return {"readers": _readers, "checkpoint": _checkpoint, "threads": _threads, "forks": _forks}[kind](draw)


def _readers(draw: Draw) -> str:
    """Check that every load during repeated replacements of a file gives one of the two models."""
    import gigagp

    kind = draw.one_of(fitted.KINDS[:-1])
    old, new = fitted.model(kind), fitted.model(kind, seed=1)
    whole = [fitted.answers(one) for one in (old, new)]
    with scratch() as folder:
        path = folder / "model.gp"
        old.save(path)

        def save_for_a_while(send: Callable[[Any], None]) -> None:
            send("ready")
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                new.save(path)
                old.save(path)

        child = Child(save_for_a_while)
        child.wait_for_message(20.0)
        for count in range(30):
            try:
                found = fitted.answers(gigagp.load(path))
            except gigagp.errors.ModelFileError as error:
                raise Lost(f"a sound file could not be loaded while it was replaced: load {count}, {error}") from error
            if not any(np.array_equal(found, one) for one in whole):
                raise Wrong(f"load {count} during replacements gave neither model ({kind})")
        child.kill()
        child.join(20.0)
    return RIGHT


def _checkpoint(draw: Draw) -> str:
    """Check that two fits with the same checkpoint give the right results, or that one raises a clear error."""
    from gigagp.errors import GigaGPError

    name = draw.one_of(kills.FITS[:4])
    expected, seconds = kills._undisturbed("fit", name)
    draw.note(name)
    with scratch() as folder:

        def learn(send: Callable[[Any], None]) -> Any:
            time.sleep(delay)
            return kills._digest(kills._learn_rows(name, folder))

        delay = 0.0
        children = [Child(learn)]
        delay = draw.real(0, seconds / 2)
        children.append(Child(learn))
        endings = [child.join(40.0) for child in children]
        for ending in endings:
            if ending.error is not None and not isinstance(ending.error, GigaGPError):
                draw.note(ending.text[-1500:])
                ending.reraise()
            if ending.error is None and ending.value != expected:
                raise Wrong(f"a fit beside another one with the same checkpoint differs ({name})")
        if all(ending.error is not None for ending in endings):
            raise Lost(f"both fits with one checkpoint failed: {endings[0].error}")
        check_nothing_left(folder, {"fit.checkpoint"}, "by two fits with one checkpoint")
    return RIGHT


def _threads(draw: Draw) -> str:
    """Check that threads that use one model get the same results as one thread."""
    kind = draw.one_of(fitted.KINDS[:-1])
    model = fitted.model(kind)
    alone = fitted.answers(model)
    found: list[np.ndarray] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            found.extend(fitted.answers(model) for _ in range(5))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    if not all(np.allclose(one, alone, rtol=1e-12, atol=1e-12) for one in found):
        raise Wrong(f"threads predict something else than one thread ({kind})")
    return RIGHT


def _forks(draw: Draw) -> str:
    """Check that forked children predict what their parent does."""
    kind = draw.one_of(fitted.KINDS[:-1])
    model = fitted.model(kind)
    alone = fitted.answers(model)
    children = [Child(lambda send: fitted.answers(model)) for _ in range(2)]
    for child in children:
        ending = child.join(30.0)
        ending.reraise()
        if ending.value is None or not np.array_equal(ending.value, alone):
            raise Wrong(f"a forked child predicts something else ({kind})")
    return RIGHT
