"""The processes of ``torch.distributed`` that share one computation, as one of them sees them.

Before results meet, the processes tell each other where they are (`Processes.meet`). A process that has failed sends
its message there, so that none waits for it, and processes that are out of step find out before numbers of
different kinds are mixed.
"""

from __future__ import annotations

import platform
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError, ProcessFailedError

#: Most parts of the rows of a result, and the fewest rows of a part. Where a row has a known number of kernel entries,
#: a part has at least this many of them, about 8 ms: each part of a product compiles the kernel anew, in half of one.
_ROW_PARTS, _PART_ROWS, _PART_ENTRIES = 64, 256, 2**22
#: Numbers in a header: whether the process has failed, how often it has met, what for, and with which numbers.
_HEADER = 4


class Processes:
    """The processes of the default group of ``torch.distributed``, as one of them sees them.

    This one has the number ``rank`` of ``count``; ``here`` of them run on this machine.
    """

    def __init__(self) -> None:
        import torch.distributed as dist

        self._dist = dist
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self._device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
        self._meetings = 0
        self.here = self._everywhere(platform.node()).count(platform.node())

    # Results --------------------------------------------------------------------------------------------------------

    def rows(
        self,
        out: Tensor,
        compute: Callable[[slice], Tensor],
        what: str,
        given: Tensor | None = None,
        entries: int | None = None,
    ) -> Tensor:
        """Fill a contiguous result whose rows are independent of each other, and return it.

        ``compute`` returns the rows of a slice. ``what`` says what is computed, and ``given`` is what from; both have
        to be the same in all processes. ``entries`` are the kernel entries of a row, if these are computed.
        """
        edges = row_edges(len(out), entries)
        parts = len(edges) - 1
        for part in self.share(parts):
            rows = slice(edges[part], edges[part + 1])
            out[rows] = compute(rows)
        self.meet(f"{what} {tuple(out.shape)}", given)
        for rank in range(self.count):
            share = self.share(parts, rank)
            if len(share):
                self._broadcast(out[edges[share.start] : edges[share.stop]], rank)
        return out

    def total(
        self, like: Tensor, parts: int, compute: Callable[[int], Tensor], what: str, given: Tensor | None = None
    ) -> Tensor:
        """Return a sum of terms like a given tensor, added along a binary tree.

        ``parts`` is their number, a power of two. ``compute`` returns a term, which may be overwritten. For the rest
        see `rows`.
        """
        mine = [_subtree(level, place, compute) for level, place in _nodes(self.share(parts))]
        self.meet(f"{what} {tuple(like.shape)} {parts}", given)
        waiting: list[tuple[int, int, Tensor]] = []
        for rank in range(self.count):
            for k, (level, place) in enumerate(_nodes(self.share(parts, rank))):
                value = mine[k] if rank == self.rank else torch.empty_like(like)
                self._broadcast(value, rank)
                while place % 2 and waiting[-1][0] == level:  # its left neighbour in the tree
                    value = waiting.pop()[2].add_(value)
                    level, place = level + 1, place // 2
                waiting.append((level, place, value))
        return waiting[0][2]

    def share(self, parts: int, rank: int | None = None) -> range:
        """Return which of the parts a process computes; None: this one."""
        rank = self.rank if rank is None else rank
        return range(parts * rank // self.count, parts * (rank + 1) // self.count)

    def _broadcast(self, values: Tensor, rank: int) -> None:
        sent = values.to(self._device).contiguous()
        with one_message():
            self._dist.broadcast(sent, rank)
        if sent is not values:
            values.copy_(sent)

    # Agreement ------------------------------------------------------------------------------------------------------

    def meet(self, what: str, given: Tensor | None = None, failure: str | None = None) -> None:
        """Wait for all processes, and end if one of them has failed, with its message, or has come to another place."""
        content = 0 if given is None else zlib.crc32(given.detach().cpu().contiguous().numpy().data)
        self._meetings += 1
        header = torch.tensor([failure is not None, self._meetings, zlib.crc32(what.encode()), content])
        header = header.to(self._device)
        found = [torch.empty_like(header) for _ in range(self.count)]
        with one_message():
            self._dist.all_gather(found, header)
        headers = [one.tolist() for one in found]
        if any(one[0] for one in headers):
            messages = self._everywhere(failure)
            rank = next(k for k, message in enumerate(messages) if message is not None)
            raise ProcessFailedError(f"process {rank} of {self.count}: {messages[rank]}")
        if any(one != headers[0] for one in headers):
            raise ProcessFailedError(
                f"the processes are out of step (process {self.rank} is at: {what}). Their numbers, rows or "
                "arguments are not the same."
            )

    def least(self, value: int) -> int:
        """Return the smallest of the values that the processes give."""
        self.meet("least")
        return int(min(self._everywhere(value)))

    def require_same(self, values: Mapping[str, object]) -> None:
        """Refuse, in all processes, values that are not the same in all of them; their names are for the message."""
        self.meet("require_same")
        everywhere: list[Mapping[str, object]] = self._everywhere(dict(values))
        for rank, theirs in enumerate(everywhere):
            for name, value in everywhere[0].items():
                if theirs.get(name) != value:
                    raise InvalidInputError(
                        f"process {rank} of {self.count} has a different {name} than process 0: "
                        f"{theirs.get(name)}, not {value}. A distributed fit runs the same program on the same rows."
                    )

    def _everywhere(self, value: Any) -> list[Any]:
        """Return the values of all processes."""
        found: list[Any] = [None] * self.count
        with one_message():
            self._dist.all_gather_object(found, value)
        return found


def row_edges(n: int, entries: int | None = None) -> list[int]:
    """Return the bounds of the parts of n rows, with this many kernel entries each if these are known.

    They do not depend on the processes. The number of parts is a power of two.
    """
    most = n // _PART_ROWS if entries is None else min(n // _PART_ROWS, n * entries // _PART_ENTRIES)
    parts = 2 ** (min(max(most, 1), _ROW_PARTS).bit_length() - 1)
    return [n * part // parts for part in range(parts + 1)]


def _nodes(parts: range) -> Iterator[tuple[int, int]]:
    """Iterate over the largest subtrees of the tree of all parts that lie in a range: their level and place."""
    first = parts.start
    while first < parts.stop:
        level = 0
        while first % 2 ** (level + 1) == 0 and first + 2 ** (level + 1) <= parts.stop:
            level += 1
        yield level, first >> level
        first += 2**level


def _subtree(level: int, place: int, compute: Callable[[int], Tensor]) -> Tensor:
    """Return the sum of the parts of a subtree."""
    if level == 0:
        return compute(place)
    return _subtree(level - 1, 2 * place, compute).add_(_subtree(level - 1, 2 * place + 1, compute))


@contextmanager
def one_message() -> Iterator[None]:
    """Turn the errors of ``torch.distributed`` about lost processes into `ProcessFailedError`."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        msg = f"another process has ended or does not answer ({reason})."
        raise ProcessFailedError(msg, lost=True) from error
