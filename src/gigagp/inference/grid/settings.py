"""Settings that the code of grid inference reads; `gigagp.inference.Grid` documents them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from gigagp.settings.fields import Count, CountOrZero, Fraction, Length, Range, Settings, Words

Outside = Literal["refuse", "clamp", "prior"]
#: Smallest number of nodes per input that leaves a cell between the two margins.
_Nodes = Annotated[int, Range(least=6)]
_Size = Annotated[
    Literal["auto"] | _Nodes | Annotated[Sequence[_Nodes], Length(1)],
    Words('"auto", or numbers of nodes per input, each at least 6'),
]


@dataclass(frozen=True)
class GridSettings(Settings):
    """Fields of `gigagp.inference.Grid`, in a class that the other modules of this package can import."""

    size: _Size = "auto"
    interpolation: Literal["cubic", "linear"] = "cubic"
    outside: Outside = "refuse"
    tolerance: Fraction = 1e-3
    final_tolerance: Fraction = 1e-4
    max_iterations: Count = 1000
    preconditioner: Literal["auto", "circulant", "holes", "long_waves", "vecchia", "none"] = "auto"
    n_probes: Count = 16
    n_samples: Count = 32
    variance: Literal["samples", "low_rank", "solve"] = "samples"
    rank: Count = 100
    exact_nodes: CountOrZero = 1500
    seed: CountOrZero = 0
    distributed: bool = False

    @property
    def n_collected(self) -> int:
        """Number of noise probes that a pass over the rows collects: the largest number that a solve of the fit needs.

        Further probes would have to be drawn from ``W'W``, which is slower and less accurate.
        """
        return max(self.n_probes, self.n_samples)
