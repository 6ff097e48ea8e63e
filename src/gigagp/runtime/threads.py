"""One thread where the operations are small."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

#: Rows up to which operations run in one thread. On two idle cores a second thread takes nothing off the time of a
#: fit of 300 rows, and a quarter off that of 500 rows of ten inputs. But the threads of PyTorch spin while they wait
#: for each other at the end of every operation: a small fit takes ten times as long where others use the cores.
_FEW_ROWS = 500


def enough_for(n_rows: int) -> AbstractContextManager[Any]:
    """Return a context in which operations of this thread on few rows do not start others."""
    # OpenMP's setting is of the thread that calls; those of other libraries would be changed for everybody.
    return _pools().limit(limits=1, user_api="openmp") if n_rows <= _FEW_ROWS else nullcontext()


@cache
def _pools() -> ThreadpoolController:
    return ThreadpoolController()
