"""Settings that the code of sparse variational inference reads; `gigagp.inference.SparseVariational` documents them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gigagp.settings.fields import Count, Settings, ShareBelowOne

#: Choice of the initial inducing points; see `gigagp.inference.sparse_variational.objective`.
StartRule = Literal["kmeans++", "greedy", "random"]


@dataclass(frozen=True)
class SparseSettings(Settings):
    """Fields of `gigagp.inference.SparseVariational`, in a class that the other modules of this package can import."""

    n_inducing: Count = 512
    batch_size: Count | None = None
    start: StartRule = "kmeans++"
    learn_inducing_points: bool = True
    jitter: ShareBelowOne = 1e-8

    @property
    def method(self) -> str:
        """Name of the method: ``"SGPR"`` or ``"SVGP"``."""
        return "SGPR" if self.batch_size is None else "SVGP"
