"""The worker process: it reads one case per line and writes one result per line, so that a crash costs one case."""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import sys
import time
import traceback
import warnings
from typing import Any

from stress.draw import Draw
from stress.outcome import LOST, REFUSED, RIGHT, TRACEBACK, WRONG, Lost, Result, Wrong

#: Address space of a worker in bytes; allocations beyond it fail without harm to the machine.
ADDRESS_SPACE = 12 * 2**30


def run_case(area: str, seed: int, case: int) -> Result:
    """Run one case in this process."""
    from gigagp.errors import GigaGPError

    module = importlib.import_module(f"stress.areas.{area}")
    draw = Draw(area, seed, case)
    began = time.perf_counter()
    outcome, cause, seen = RIGHT, "", ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outcome = module.run(draw)
        except GigaGPError as error:
            outcome, seen = REFUSED, str(error)
        except Wrong as error:
            outcome, seen = WRONG, str(error)
            cause = seen.split(":")[0]
        except Lost as error:
            outcome, seen = LOST, str(error)
            cause = seen.split(":")[0]
        except Exception as error:
            outcome, seen = TRACEBACK, "".join(traceback.format_exception(error)[-6:])
            cause = f"{type(error).__name__} at {_place(error)}"
    detail = "\n".join([*draw.notes, seen])
    if outcome in (RIGHT, REFUSED) and not os.environ.get("STRESS_DETAIL"):
        detail = ""
    return Result(area, seed, case, outcome, cause, detail[:6000], time.perf_counter() - began)


def _place(error: BaseException) -> str:
    """Return the innermost line of the package in an error's traceback."""
    if hasattr(error, "stress_place"):  # the error came from a child process
        return str(error.stress_place)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/gigagp/" in frame.filename] or list(frames)
    place = own[-1] if own else None
    return "?" if place is None else f"{place.filename.split('/gigagp/')[-1]}:{place.lineno} ({place.name})"


def main() -> None:
    """Serve cases from standard input until its end."""
    replies = os.fdopen(os.dup(1), "w")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)  # output of a case is not a reply
    if not os.environ.get("STRESS_STDERR"):
        os.dup2(quiet, 2)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, resource.RLIM_INFINITY))
    import torch

    torch.set_num_threads(1)  # a process can fork safely while it has no other threads
    import gigagp
    import gigagp.classification
    import gigagp.estimators.fitting  # noqa: F401

    plant = os.environ.get("STRESS_PLANT")
    if plant:
        from stress.plants import plant as put

        put(plant)
    _reply(replies, {"ready": True})
    for count, line in enumerate(sys.stdin, 1):
        job = json.loads(line)
        _reply(replies, run_case(job["area"], job["seed"], job["case"]).to_dict())
        if count % 200 == 0:
            gc.collect()


def _warm_up() -> None:
    """Import the modules that cases need, before the time of the first case starts."""
    import torch

    torch.set_num_threads(1)  # a process can fork safely while it has no other threads
    import gigagp.classification
    import gigagp.estimators.fitting  # noqa: F401


def _reply(replies: Any, data: dict[str, Any]) -> None:
    replies.write(json.dumps(data) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
