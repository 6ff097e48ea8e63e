"""The randomness of random Fourier features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gigagp.errors import InvalidInputError


@dataclass(frozen=True)
class FeatureDraw:
    """The randomness of random Fourier features, which does not depend on hyperparameters.

    Attributes
    ----------
    n_features : int
        Sine and cosine columns of each random term.
    law : str
        ``"balanced"``, ``"joint"``, or ``"independent"``; see `Kernel.draw_features`.
    terms : tuple
        Draws by name, for each leaf of each term of the multiplied-out kernel, without white terms.
    """

    n_features: int
    law: str
    terms: tuple[tuple[dict[str, Tensor], ...], ...]

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors by name and the rest as plain values, for a file; `from_state` reads them."""
        tensors = {
            f"{place}.{part}.{name}": value
            for place, leaves in enumerate(self.terms)
            for part, leaf in enumerate(leaves)
            for name, value in leaf.items()
        }
        names = [[sorted(leaf) for leaf in leaves] for leaves in self.terms]
        return tensors, {"n_features": self.n_features, "law": self.law, "names": names}

    def first(self, n_frequencies: int) -> FeatureDraw:
        """Return the draw of the first frequencies alone; `nested_columns` says which columns the two share."""
        if not 1 <= n_frequencies <= self.n_features // 2:
            msg = f"n_frequencies must be between 1 and {self.n_features // 2}, those drawn; got {n_frequencies!r}."
            raise InvalidInputError(msg)
        terms = tuple(
            tuple({name: value[:n_frequencies] for name, value in leaf.items()} for leaf in leaves)
            for leaves in self.terms
        )
        return FeatureDraw(2 * n_frequencies, self.law, terms)

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> FeatureDraw:
        """Return the draw that `state` has described."""
        terms = tuple(
            tuple({name: tensors[f"{place}.{part}.{name}"] for name in leaf} for part, leaf in enumerate(leaves))
            for place, leaves in enumerate(header["names"])
        )
        return cls(header["n_features"], header["law"], terms)
