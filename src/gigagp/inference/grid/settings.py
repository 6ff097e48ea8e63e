"""The numbers that grid inference reads; `gigagp.inference.Grid` documents them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from gigagp.fields import Count, CountOrZero, Fraction, Length, Range, Settings, Words

Outside = Literal["refuse", "clamp", "prior"]
#: Fewer nodes have no room for the margins and a cell between them.
_Nodes = Annotated[int, Range(least=6)]
_Size = Annotated[
    Literal["auto"] | _Nodes | Annotated[Sequence[_Nodes], Length(1)],
    Words('"auto", or nodes an input, each at least 6'),
]


@dataclass(frozen=True)
class GridSettings(Settings):
    """The fields of `gigagp.inference.Grid`, for what works below it."""

    size: _Size = "auto"
    interpolation: Literal["cubic", "linear"] = "cubic"
    outside: Outside = "refuse"
    tolerance: Fraction = 1e-3
    final_tolerance: Fraction = 1e-4
    max_iterations: Count = 1000
    preconditioner: Literal["auto", "circulant", "holes", "long_waves", "none"] = "auto"
    n_probes: Count = 16
    n_samples: Count = 32
    variance: Literal["samples", "low_rank", "solve"] = "samples"
    rank: Count = 100
    exact_nodes: CountOrZero = 1500
    seed: CountOrZero = 0
    distributed: bool = False

    @property
    def n_collected(self) -> int:
        """Noise probes that a pass over the rows collects: as many as any solve of the fit needs.

        What is not collected has to be drawn from ``W'W``, which is slower and less exact.
        """
        return max(self.n_probes, self.n_samples)
