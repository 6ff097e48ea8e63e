"""Threads that stand for the processes of ``torch.distributed``, so that what processes share is tested in no time."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist


class _Threads:
    """The functions of ``torch.distributed`` for threads; results meet where all have come."""

    def __init__(self, count: int) -> None:
        self.count, self.here = count, threading.local()
        self._meetings: dict[int, dict[int, Any]] = {}
        self._met, self._has_ended = threading.Condition(), False

    def everywhere(self, value: Any) -> list[Any]:
        with self._met:
            self.here.meetings += 1
            meeting = self._meetings.setdefault(self.here.meetings, {})
            meeting[self.here.rank] = copy.deepcopy(value)  # which may change before all have read it
            self._met.notify_all()
            self._met.wait_for(lambda: len(meeting) == self.count or self._has_ended)
            if len(meeting) < self.count:
                raise RuntimeError("Connection closed by peer")
            return [copy.deepcopy(meeting[rank]) for rank in range(self.count)]

    def all_gather(self, found: list[torch.Tensor], value: torch.Tensor) -> None:
        for one, theirs in zip(found, self.everywhere(value), strict=True):
            one.copy_(theirs)

    def all_gather_object(self, found: list[Any], value: Any, group: None = None) -> None:
        found[:] = self.everywhere(value)

    def broadcast(self, value: torch.Tensor, rank: int) -> None:
        value.copy_(self.everywhere(value)[rank])

    def all_reduce(self, value: torch.Tensor, op: Any, group: None = None) -> None:
        stacked = torch.stack(self.everywhere(value))
        how = {dist.ReduceOp.SUM: torch.sum, dist.ReduceOp.MIN: torch.amin, dist.ReduceOp.MAX: torch.amax}[op]
        value.copy_(how(stacked, 0))

    def end(self) -> None:
        with self._met:
            self._has_ended = True
            self._met.notify_all()


def in_threads(patch: pytest.MonkeyPatch, work: Callable[[int], Any], count: int = 2) -> list[Any]:
    """Return what ``work(rank)`` returns or raises in each of the threads; one that ends early is a lost process."""
    threads = _Threads(count)
    results: list[Any] = [None] * count
    stands_for = {
        "get_rank": lambda: threads.here.rank,
        "get_world_size": lambda group=None: count,
        "get_backend": lambda: "gloo",
        "is_initialized": lambda: True,
        "init_process_group": lambda *_, **__: None,
        "destroy_process_group": lambda: None,
    } | {name: getattr(threads, name) for name in ("all_gather", "all_gather_object", "broadcast", "all_reduce")}

    def run(rank: int) -> None:
        threads.here.rank, threads.here.meetings = rank, 0
        try:
            results[rank] = work(rank)
        except BaseException as error:
            results[rank] = error
        finally:
            threads.end()

    with patch.context() as patched:
        for name, function in stands_for.items():
            patched.setattr(dist, name, function)
        running = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
        for one in running:
            one.start()
        for one in running:
            one.join()
    return results
