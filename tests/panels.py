"""Rows that are cells of a panel with gaps of many kinds, and kernels whose parts are of its entities or its times."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.kernels import RBF, Constant, Linear, Matern, Periodic, White
from helpers import generator

ENTITIES, TIMES = 50, 16
PLACE, TIME = [0, 1], [2]
KERNELS = {
    "product": Matern(1.5, columns=PLACE) * Matern(0.5, columns=TIME),
    "own and shared": (
        Matern(1.5, columns=PLACE) * Matern(0.5, columns=TIME, fixed=["variance"])
        + Matern(2.5, columns=PLACE)
        + RBF(columns=TIME)
        + White(0.2)
        + Constant(0.3)
    ),
    "alone": Matern(1.5, columns=PLACE) + Matern(0.5, columns=TIME),
    "two products": (
        Matern(1.5, columns=PLACE) * Matern(0.5, columns=TIME)
        + RBF(2.0, columns=PLACE) * RBF(columns=TIME)
        + Matern(2.5, columns=PLACE)
    ),
    "sums of factors": (Matern(1.5, columns=PLACE) + RBF(columns=[1]))
    * (Periodic(columns=TIME) + Linear(columns=TIME)),
    "three sets": Matern(1.5, columns=[0]) * RBF(columns=[1]) * Matern(0.5, columns=TIME),
}


def cells(how: str, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the rows of a panel: which cells are missing, and whether some are repeated."""
    place = torch.randn(ENTITIES, 2, generator=generator(1), dtype=torch.float64)
    time = torch.rand(TIMES, 1, generator=generator(2), dtype=torch.float64) * 3
    rows = torch.cat([place.repeat_interleave(TIMES, 0), time.repeat(ENTITIES, 1)], 1).to(dtype)
    n = len(rows)
    order = torch.randperm(n, generator=generator(3))
    kept = {
        "complete": torch.ones(n, dtype=torch.bool),
        "at random": torch.rand(n, generator=generator(4)) < 0.75,
        "cut short": torch.arange(n) % TIMES
        < torch.randint(8, TIMES, (ENTITIES,), generator=generator(5)).repeat_interleave(TIMES),
        "whole rows and columns": (torch.arange(n) // TIMES > 4) & (torch.arange(n) % TIMES != 3),
        "one cell of an entity": (torch.arange(n) // TIMES > 0) | (torch.arange(n) == 5),
    }.get(how, torch.ones(n, dtype=torch.bool))
    found = rows[order][kept[order]]
    if how == "repeated":
        found = torch.cat([found, found[:40], found[:40]])
    return found.contiguous()


GAPS = ["complete", "at random", "cut short", "whole rows and columns", "one cell of an entity", "repeated"]
