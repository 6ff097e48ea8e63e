"""Figures, colours and files of pictures; matplotlib is an optional extra, loaded when a picture is drawn."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from gigagp.errors import InvalidInputError
from gigagp.storage.files import check_folder, replacing

#: Colours that readers with any colour vision tell apart (Okabe and Ito 2008, https://jfly.uni-koeln.de/color/).
BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY)
#: Data points and lines that only guide the eye.
INK, GUIDE = "#222222", "#767676"
#: Colours of maps, of values and of uncertainty: lightness grows along both, so they can be told apart in grey too.
VALUES, SPREADS = "viridis", "magma"

_ENDINGS = (".png", ".pdf", ".svg")


def check_plot(path: str | os.PathLike[str]) -> None:
    """Raise `InvalidInputError` unless a plot can be written to this file; called before any expensive work."""
    if Path(path).suffix.lower() not in _ENDINGS:
        raise InvalidInputError(f"a plot must be a file that ends in {', '.join(_ENDINGS)}; got {os.fspath(path)}.")
    require_matplotlib()
    check_folder(path)


def require_matplotlib() -> None:
    """Raise `InvalidInputError` if matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401  (checks that it is installed)
    except ImportError as error:
        raise InvalidInputError('plots need matplotlib. Install it with pip install "gigagp[plot]".') from error


def new_figure(width: float, height: float, *, shown: bool = False) -> Any:
    """Return a figure of a size in inches.

    If it is ``shown``, pyplot knows it, so that notebooks and ``pyplot.show`` show it. Figures for files are not known
    to pyplot: they need no display and no clean-up, and may be drawn in any thread.
    """
    require_matplotlib()
    if shown:
        from matplotlib import pyplot

        return pyplot.figure(figsize=(width, height), layout="constrained")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def axes_or_new(ax: Any, width: float = 6.4, height: float = 4.0) -> Any:
    """Return the given axes, or those of a new figure that is shown."""
    return new_figure(width, height, shown=True).add_subplot() if ax is None else ax


def style() -> AbstractContextManager[None]:
    """Return a context in which pictures are drawn: no frame at the top and the right, and the same file each time."""
    import matplotlib

    return matplotlib.rc_context(
        {
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.formatter.useoffset": False,
            "axes.titlesize": "medium",
            "legend.frameon": False,
            "legend.fontsize": "small",
            "svg.hashsalt": "gigagp",
        }
    )


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure to a file, atomically; its extension determines the format."""
    kind = Path(path).suffix.lower().removeprefix(".")
    with replacing(path) as file, style():
        figure.savefig(file, format=kind, dpi=150, metadata=_metadata(kind))


def _metadata(kind: str) -> dict[str, None]:
    """Return what leaves the time out of a file, so that the same picture is the same file."""
    return {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
