"""The memory budget: its resolution, checks against it, and errors for failed allocations."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from gigagp.errors import InvalidInputError, MemoryBudgetError
from gigagp.runtime.run import current_run
from gigagp.settings.fields import number_with_unit, shown

#: Share of the free memory that a model may use if it is given no budget.
DEFAULT_SHARE = 0.5
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def free_bytes(device: torch.device | str = "cpu") -> int:
    """Return the number of bytes that can be allocated now on ``device``, as reported by the system or the driver."""
    device = torch.device(device)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    meminfo = Path("/proc/meminfo")
    free = 4 * 2**30  # nothing is known: assume a modest laptop
    if meminfo.exists():
        match = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text(encoding="utf-8"))
        if match:
            free = int(match.group(1)) * 1024
    elif hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    limit = Path("/sys/fs/cgroup/memory.max")  # a container may allow less than the machine has
    used = Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and limit.read_text(encoding="utf-8").strip().isdigit():
        free = min(free, max(int(limit.read_text(encoding="utf-8")) - int(used.read_text(encoding="utf-8")), 0))
    return free


def resolve_budget(memory_budget: float | str | None, device: torch.device | str = "cpu") -> int:
    """Return a budget in bytes, given in bytes, as a string such as ``"2GiB"``, or as None.

    None is half of the memory of the device that is free now; in a distributed fit, the smallest of such shares of all
    processes.
    """
    if memory_budget is None:
        processes = current_run().processes
        if processes is None:
            return max(int(DEFAULT_SHARE * free_bytes(device)), 2**26)
        return processes.least(max(int(DEFAULT_SHARE * free_bytes(device)) // processes.here, 2**26))
    if isinstance(memory_budget, str):
        size = number_with_unit(memory_budget, _UNITS)
        if size is None:
            raise InvalidInputError(f'memory_budget must be bytes or a string like "2GiB"; got {memory_budget!r}.')
        memory_budget = size
    if not 0 < memory_budget < 2**63:  # also rejects NaN
        raise InvalidInputError(f"memory_budget must be positive, and below 2^63 bytes; got {shown(memory_budget)}.")
    return int(memory_budget)


def size_in_words(n_bytes: float) -> str:
    """Return a number of bytes with its largest sensible unit, such as ``"1.5 GiB"`` or ``"40 MiB"``."""
    for size, unit in ((2.0**30, "GiB"), (2.0**20, "MiB")):
        if n_bytes >= size:
            return f"{n_bytes / size:.2g} {unit}" if n_bytes < 99.5 * size else f"{n_bytes / size:,.0f} {unit}"
    return f"{n_bytes / 2**10:.2g} KiB"


def require(needed: int, budget: int, what: str, remedy: str) -> None:
    """Raise `MemoryBudgetError` if ``what`` needs more than the budget, before it is allocated."""
    if needed > budget:
        raise MemoryBudgetError(f"{what} needs {needed:,} bytes, but the memory budget is {budget:,}. {remedy}")


#: Messages of a plain RuntimeError by which torch and the C++ library report a failed allocation.
_NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory|bad_alloc|can't start new thread", re.I)


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether an error of any library reports that the machine or the device has no memory left."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None


@contextmanager
def memory_is_budget() -> Iterator[None]:
    """Turn a failed allocation in the block (by torch, NumPy or C++) into `MemoryBudgetError`; also a decorator."""
    try:
        yield
    except MemoryBudgetError:
        raise
    except (MemoryError, RuntimeError) as error:
        if not is_lack_of_memory(error):
            raise
        tried = re.search(r"tried to allocate ([0-9]+) bytes", str(error))
        size = f" ({int(tried.group(1)):,} bytes could not be allocated)" if tried else ""
        msg = f'The memory ran out{size}. Give a smaller memory_budget, such as "1GiB", or fewer rows.'
        raise MemoryBudgetError(msg) from error
