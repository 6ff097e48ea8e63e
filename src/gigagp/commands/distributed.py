"""Commands that several processes run together, as ``torchrun`` starts them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import typer

from gigagp.errors import GigaGPWarning, InvalidInputError, ProcessFailedError

#: Exit code of a process whose error the first process reports.
_EXIT_REPORTED = 2
#: How long a process waits for the others, which may be in a long computation of their own.
_TIMEOUT = timedelta(minutes=30)


@contextmanager
def all_processes(distributed: bool) -> Iterator[bool]:
    """Run a block together with the other processes; the value is whether this one prints and saves.

    An error of any process ends the block in all of them, and one of them reports it: the first, or one that has lost
    contact with it.

    Parameters
    ----------
    distributed : bool
        False: this process runs the block alone.

    Raises
    ------
    InvalidInputError
        If ``torchrun`` has not started this process.
    """
    if not distributed:
        yield True
        return
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        msg = (
            "--distributed needs the processes that torchrun starts: torchrun --nproc-per-node 2 -m gigagp fit ... "
            "--distributed."
        )
        raise InvalidInputError(msg)
    import torch.distributed as dist

    from gigagp.runtime import processes

    _take_card()
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    first = dist.get_rank() == 0
    try:
        with warnings.catch_warnings():
            if not first:
                warnings.simplefilter("ignore", GigaGPWarning)
            with processes.joined(True):
                yield first
    except Exception as error:
        if first or (isinstance(error, ProcessFailedError) and error.lost):
            raise
        raise typer.Exit(_EXIT_REPORTED) from error
    finally:
        dist.destroy_process_group()


def _take_card() -> None:
    """Let each process of a machine with several GPUs compute on its own."""
    import torch

    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if cards > 1:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % cards)
