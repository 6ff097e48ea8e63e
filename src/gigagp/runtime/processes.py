"""Fits in several processes of ``torch.distributed``: who computes what, and how the results meet.

Every process holds the rows, draws the same random numbers and runs the same fit. Only large computations are shared.
They are cut into parts whose bounds depend on the rows alone. Each process computes some of the parts, and all of them
receive all results::

    with joined(True):
        ...
        processes = current_run().processes
        if processes is not None:
            processes.rows(out, rows_of, "what")            # rows_of(rows) returns these rows of the result
            processes.total(like, parts, term, "what")      # term(part) returns one of the terms of a sum

`fill_rows` and `sum_of_rows` do the same, and compute at once where no processes share the block, or the job is small.
Rows are copied, and sums are added along one binary tree of the parts. So the bits do not depend on the number of
processes. Outside of the block, and without ``torch.distributed``, `Run.processes` is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from gigagp.errors import GigaGPError, InvalidInputError, ProcessFailedError
from gigagp.runtime.group import Processes
from gigagp.runtime.run import current_run, running

#: Fewest numbers of all rows for which a sum over rows is shared, the fewest rows of one of its terms, and most terms.
_SUM_NUMBERS, _SUM_ROWS, _SUM_TERMS = 2**17, 32, 64


def require_same(values: Mapping[str, object]) -> None:
    """Refuse processes that differ; see `Processes.require_same`. A process alone accepts everything."""
    processes = current_run().processes
    if processes is not None:
        processes.require_same(values)


def is_first() -> bool:
    """Whether this process shows and writes what processes share; true for a process alone."""
    processes = current_run().processes
    return processes is None or processes.rank == 0


def sum_of_rows(
    compute: Callable[[slice], Sequence[Tensor]],
    like: Sequence[Tensor],
    n_rows: int,
    width: int,
    what: str,
    given: Tensor | None = None,
) -> list[Tensor]:
    """Return sums over rows, which the processes of the block share; a process alone computes them at once.

    ``compute`` returns the sums over the rows of a slice, which are like ``like`` and may be overwritten. ``width``
    numbers are computed for each row; where there are few in all, each process computes all. For the rest see
    `Processes.rows`.
    """
    processes = current_run().processes if n_rows * width >= _SUM_NUMBERS else None
    if processes is None:
        return list(compute(slice(0, n_rows)))
    terms = 2 ** (min(max(n_rows // _SUM_ROWS, 1), _SUM_TERMS).bit_length() - 1)

    def term(part: int) -> Tensor:
        found = compute(slice(n_rows * part // terms, n_rows * (part + 1) // terms))
        return torch.cat([one.reshape(-1).to(flat) for one in found])

    flat = torch.empty(sum(one.numel() for one in like), dtype=torch.float64, device=like[0].device)
    parts = processes.total(flat, terms, term, what, given).split([one.numel() for one in like])
    return [part.reshape(one.shape).to(one) for part, one in zip(parts, like, strict=True)]


def fill_rows(
    out: Tensor, compute: Callable[[slice], Tensor], width: int, what: str, given: Tensor | None = None
) -> Tensor:
    """Return a result whose rows are independent of each other, which the processes of the block share.

    A process alone returns ``compute`` of all rows. For the arguments see `Processes.rows` and `sum_of_rows`.
    """
    processes = current_run().processes if len(out) * width >= _SUM_NUMBERS else None
    return compute(slice(0, len(out))) if processes is None else processes.rows(out, compute, what, given)


@contextmanager
def joined(distributed: bool) -> Iterator[None]:
    """Share large computations in a block with the other processes, all of which run the same block.

    A block in another one changes nothing. `ProcessFailedError` has the message of another process that failed in the
    block, or says that one does not answer.
    """
    if not distributed or current_run().processes is not None:
        yield
        return
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        raise InvalidInputError(
            "distributed of GPRegressor, or of inference.Grid, needs torch.distributed: call "
            "torch.distributed.init_process_group in every process before the fit (torchrun starts them), or leave "
            "distributed out."
        )
    processes = Processes()
    try:
        with running(processes=processes):
            processes.require_same(_versions())
            yield
            processes.meet("the end")
    except ProcessFailedError:
        raise
    except Exception as error:
        message = f"{error}" if isinstance(error, GigaGPError) else f"{type(error).__name__}: {error}"
        with suppress(ProcessFailedError):
            processes.meet("a failure", failure=message)
        raise


def _versions() -> dict[str, object]:
    """Return what has to be the same for the same bits."""
    import gigagp

    return {
        "version of gigagp": gigagp.__version__,
        "version of torch": torch.__version__,
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "number of threads": torch.get_num_threads(),
    }
