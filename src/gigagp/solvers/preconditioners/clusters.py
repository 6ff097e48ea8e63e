"""Balanced clusters of rows, and a layout in which blocks of nearly equal size are handled as one batch."""

from __future__ import annotations

import torch


class Partition:
    """A partition of n rows into blocks of row indices, which are padded to the largest and stacked as one batch.

    ``slots`` has the position of each row in that layout, whose length is the number of blocks times ``size``, and
    ``rows`` the row at each position, which is the first of its block where that is padded.
    """

    def __init__(self, blocks: list[torch.Tensor]) -> None:
        self.blocks = blocks
        self.n = sum(len(rows) for rows in blocks)
        self.size = max(len(rows) for rows in blocks)
        self.slots = torch.empty(self.n, dtype=torch.long, device=blocks[0].device)
        first = torch.stack([rows[0] for rows in blocks])
        self.rows = first.repeat_interleave(self.size)
        for index, rows in enumerate(blocks):
            self.slots[rows] = torch.arange(len(rows), device=rows.device) + index * self.size
        self.rows[self.slots] = torch.arange(self.n, device=self.slots.device)

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def entries(self) -> int:
        """Number of matrix entries in all diagonal blocks."""
        return sum(len(rows) ** 2 for rows in self.blocks)

    def stack(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return vectors of shape (n, ...) as (blocks, size, ...), with zeros where a block is padded."""
        stacked = vectors.new_zeros(len(self) * self.size, *vectors.shape[1:])
        stacked[self.slots] = vectors
        return stacked.view(len(self), self.size, *vectors.shape[1:])

    def gather(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return vectors as `stack` does, with numbers of other rows where a block is padded."""
        return vectors[self.rows].view(len(self), self.size, *vectors.shape[1:])

    def unstack(self, stacked: torch.Tensor) -> torch.Tensor:
        """Return stacked vectors as (n, ...), the inverse of `stack`."""
        return stacked.reshape(len(self) * self.size, *stacked.shape[2:])[self.slots]


def number_of_blocks(n: int, block_size: int) -> int:
    """Return the number of blocks of at most ``block_size`` rows that n rows need."""
    return -(-n // block_size)


def contiguous(n: int, block_size: int, device: torch.device, order: torch.Tensor | None = None) -> Partition:
    """Split the rows (in ``order``) into blocks of exactly ``block_size`` rows; the last one may be shorter."""
    rows = torch.arange(n, device=device) if order is None else order.to(device)
    return Partition(list(rows.split(min(block_size, n))))


def clustered(points: torch.Tensor, block_size: int) -> Partition:
    """Partition rows into clusters of nearby points with at most ``block_size`` rows each; see `clustered_into`."""
    return clustered_into(points, number_of_blocks(len(points), block_size))


def clustered_into(points: torch.Tensor, count: int) -> Partition:
    """Partition rows into clusters of nearby points whose sizes differ by at most one, the larger ones first.

    The clusters are the leaves of a tree. Every node is split across its leading principal axis, in proportion to the
    number of leaves on each side (a median split if that number is even). Points are in units of the lengthscales, so
    that distances measure correlation. Clusters are found on the CPU, so that a GPU has the same ones.
    """
    n, device = len(points), points.device
    small, larger = divmod(n, count)
    sizes = [small + (index < larger) for index in range(count)]
    points = points.to("cpu", torch.float64)
    leaves: list[torch.Tensor] = []
    stack = [(torch.arange(n), 0, count)]
    while stack:
        rows, first, last = stack.pop()
        if last - first == 1:
            leaves.append(rows.sort().values)  # in data order, so that neighbours in memory stay neighbours
            continue
        middle = (first + last) // 2
        cut = sum(sizes[first:middle])
        order = (points[rows] @ _leading_axis(points[rows])).argsort(stable=True)
        stack.append((rows[order[cut:]], middle, last))
        stack.append((rows[order[:cut]], first, middle))
    return Partition([rows.to(device) for rows in leaves])


def _leading_axis(points: torch.Tensor) -> torch.Tensor:
    centred = points - points.mean(0)
    return torch.linalg.eigh(centred.T @ centred)[1][:, -1]
