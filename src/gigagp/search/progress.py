"""The picture of a search: values in the order in which they were told, and the best so far."""

from __future__ import annotations

from typing import Any

import numpy as np

from gigagp.storage.figures import BLUE, GUIDE, INK, axes_or_new, style


def draw_progress(y: np.ndarray, *, maximize: bool, n_initial: int, ax: Any) -> Any:
    """Draw values (n,) in their order and the best one so far, with a line after the first ``n_initial``."""
    best = (np.maximum if maximize else np.minimum).accumulate(y)
    order = np.arange(1, len(y) + 1)
    with style():
        ax = axes_or_new(ax)
        ax.plot(order, y, "o", color=INK, markersize=3, alpha=0.5, label="told")
        ax.step(order, best, where="post", color=BLUE, label="best so far")
        if n_initial < len(y):
            ax.axvline(n_initial + 0.5, color=GUIDE, linewidth=0.8, linestyle=":", label="end of the first points")
        ax.set(xlabel="evaluations", ylabel="value")
        ax.legend()
    return ax
