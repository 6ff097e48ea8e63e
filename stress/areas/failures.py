"""Failures of the k-th write and the k-th large allocation, for every k until one succeeds, and full disks."""

from __future__ import annotations

import errno
import tempfile
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from stress.areas import kills
from stress.draw import Draw
from stress.drawn import fitted
from stress.faults import FailingAllocations, Fault, failing_writes, limited_files, small_disk
from stress.outcome import REFUSED, RIGHT, Lost, Wrong
from stress.processes import Child
from stress.scratch import check_nothing_left, scratch

_MOST = 40


def run(draw: Draw) -> str:
    """Run one case."""
    kind = draw.weighted({"write": 0.45, "allocation": 0.35, "disk": 0.2})
    draw.note(kind)
    # Run in a child process: patches of the file system must not reach the worker.

    def work(send: Callable[[Any], None]) -> str:
        try:
            return {"write": _writes, "allocation": _allocations, "disk": _disk}[kind](draw)
        finally:
            send(draw.notes)

    ending = Child(work).join(50.0)
    draw.notes = ending.messages[-1] if ending.messages else draw.notes
    if ending.error is not None:
        draw.note(ending.text[-3000:])
    ending.reraise()
    if ending.value is None:
        raise RuntimeError(f"the child died: {ending.code}")
    return str(ending.value)


def _writes(draw: Draw) -> str:
    """Make the k-th write of a save or of a checkpointed fit fail."""
    job = draw.one_of([_saving, _checkpointing, _streaming])
    code = draw.one_of([errno.ENOSPC, errno.EIO, errno.EDQUOT])
    stays = draw.chance(0.7)
    draw.note(f"{job.__name__}, {errno.errorcode[code]}, {'for good' if stays else 'once'}")
    for k in range(1, _MOST):
        fault = Fault(k, stays=stays)
        job(draw, lambda fault=fault: failing_writes(fault, code), f"write {k}")
        if not fault.struck:
            return RIGHT
        if job is _checkpointing and k >= 4:  # it writes hundreds of times: test a sample of the others
            job(draw, lambda: failing_writes(Fault(draw.whole(5, 200), stays=stays), code), "a later write")
            return RIGHT
    return RIGHT


def _disk(draw: Draw) -> str:
    """Limit the size of files, or of the whole disk."""
    job = draw.one_of([_saving, _checkpointing])
    size = draw.one_of([0, 1, 100, 1000, 4096])
    if draw.chance(0.5):
        draw.note(f"{job.__name__}, files of at most {size} bytes")
        job(draw, lambda: limited_files(size), f"files of {size} bytes")
        return RIGHT
    with scratch() as folder, small_disk(folder, 4096 * draw.whole(1, 6)) as mounted:
        if not mounted:
            return REFUSED
        draw.note(f"{job.__name__} on a small disk")
        job(draw, nullcontext, "a small disk", folder)
    return RIGHT


Faulty = Callable[[], Any]


def _saving(draw: Draw, faulty: Faulty, what: str, where: Path | None = None) -> None:
    """Check that a failed save leaves the old model, no other file, and raises one of our errors."""
    import gigagp

    kind = draw.one_of(fitted.KINDS)
    old, new = fitted.model(kind), fitted.model(kind, seed=1)
    whole = [fitted.answers(one) for one in (old, new)]
    with nullcontext(where) if where else scratch() as folder:
        path = folder / "model.gp"
        try:
            old.save(path)
        except gigagp.errors.ModelFileError:
            check_nothing_left(folder, set(), f"by a failed save ({what})")
            return
        saved = True
        with faulty():
            try:
                new.save(path)
            except gigagp.errors.ModelFileError:
                saved = False
        found = fitted.answers(gigagp.load(path))
        if not np.allclose(found, whole[saved]):
            raise Lost(f"after a failed save another model is there ({what})")
        check_nothing_left(folder, {"model.gp"}, f"by a failed save ({what})")
        path.unlink()


def _checkpointing(draw: Draw, faulty: Faulty, what: str, where: Path | None = None) -> None:
    """Check that a fit whose checkpoint cannot be written completes with a warning."""
    name = draw.one_of(kills.FITS[:3])
    expected, _ = kills._undisturbed("fit", name)
    kills.write_at_every_step()
    with nullcontext(where) if where else scratch() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with faulty():
            try:
                gp = kills._learn(name, folder / "fit.checkpoint")
            except Exception as error:
                raise Lost(f"a checkpoint that could not be written ended the fit: {what}, {error!r}") from error
        if kills._digest(gp) != expected:
            raise Wrong(f"a failed checkpoint changed the fit ({what})")
        check_nothing_left(folder, set(), f"by a fit whose checkpoint failed ({what})")


def _streaming(draw: Draw, faulty: Faulty, what: str) -> None:
    """Fit a CSV file, whose rows have to be copied; a failure must raise one of our errors and leave no copy."""
    from gigagp import GPRegressor, inference
    from gigagp.errors import GigaGPError

    X, y = fitted.rows(60)
    with scratch() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tempfile.tempdir = str(folder)  # so that files left there are found
        path = folder / "table.csv"
        np.savetxt(path, np.column_stack([X, y]), delimiter=",", header="a,b,c", comments="")
        gp = GPRegressor(inference=inference.QuadruplyStochastic(n_basis=8), optimizer=None)
        with faulty():
            try:
                gp.fit_table(path, "c", chunk_rows=16)
            except GigaGPError:
                if hasattr(gp, "posterior_"):
                    raise Lost(f"a failed fit_table left half a fit ({what})") from None
        check_nothing_left(folder, {"table.csv"}, f"by fit_table ({what})")


def _allocations(draw: Draw) -> str:
    """Make some of the large allocations of a fit, a prediction or a load fail."""
    import gigagp

    kind = draw.one_of(fitted.KINDS)
    old = fitted.model(kind)
    before = fitted.answers(old)
    X, y = fitted.rows(30, seed=5)
    if kind == "classifier":
        y = np.where(y > 0, "up", "down")
    elif kind == "two targets":
        y = np.stack([y, y], 1)
    elif kind == "noise by row":
        old.set_params(noise_variance=np.full(30, 0.05))
    job = draw.one_of(["fit", "predict", "load"])
    with scratch() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = folder / "model.gp"
        old.save(path) if kind != "noise by row" else fitted.model("exact").save(path)
        jobs: dict[str, Callable[[], Any]] = {
            "fit": lambda: old.fit(X, y),
            "predict": lambda: old.predict(X),
            "load": lambda: gigagp.load(path),
        }
        if kind == "named":
            jobs["predict"] = lambda: fitted.answers(old)
        draw.note(f"{job}, {kind}")
        if job == "fit":  # a successful fit changes the model, so count on a copy
            import copy

            copied = copy.deepcopy(old)
            counted = Fault(0, stays=False)
            with FailingAllocations(counted):
                copied.fit(X, y)
        else:
            counted = Fault(0, stays=False)
            with FailingAllocations(counted):
                jobs[job]()
        total = counted.calls
        draw.note(f"{total} allocations")
        chosen = {1, total, *(draw.whole(1, max(1, total)) for _ in range(6))} if total else set()
        for k in sorted(chosen):
            try:
                with FailingAllocations(Fault(k, stays=draw.chance(0.5))):
                    jobs[job]()
            except gigagp.errors.GigaGPError:
                pass
            except MemoryError as error:
                raise Wrong(f"a MemoryError that is none of ours: {job}, {kind}: {error}") from error
            else:
                if job == "fit":
                    return RIGHT  # it managed without, and is a new model now
            if not np.array_equal(fitted.answers(old), before):
                raise Lost(f"after a failed allocation the model is another one ({job}, {kind}, allocation {k})")
    return RIGHT
