"""Draw the picture of the first page: a map of elevation with holes, its mean, and how sure the mean is.

    python benchmarks/front_picture.py --data ../shared/data

The rows are those of the southern Rocky Mountains outside blocks of several sizes. One thread.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import time
from pathlib import Path

import numpy as np
from maps import blocks, line, read_map, scores, write

from gigagp import GPRegressor
from gigagp.storage.figures import new_figure, save_figure, style

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
WEST, SOUTH, EAST, NORTH = -109.0, 37.0, -104.0, 41.0
#: Half-sizes of the holes, in degrees, and the share of the rows that they hide.
HOLES, SHARE = ((0.1,), (0.2,), (0.35,)), 0.2
#: Size of all type, in points.
_TYPE = 14


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=FIGURES / "front.png")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    X, y = read_map(options.data, "elevation")
    inside = ((X > (WEST, SOUTH)) & (X < (EAST, NORTH))).all(1)
    X, y = X[inside], y[inside]
    hidden = blocks(X, HOLES, seed=1, hidden_share=SHARE) >= 0
    began = time.process_time()
    gp = GPRegressor(kernel="auto", random_state=0).fit(X[~hidden], y[~hidden])
    mean, std = gp.predict(X, return_std=True, include_noise=True)
    found = {"rows": int((~hidden).sum()), "cpu_s": time.process_time() - began, "kernel": str(gp.kernel_)}
    found["holes"] = scores(y[hidden], mean[hidden], std[hidden])
    print(line(found["holes"]))
    given = np.where(hidden, np.nan, y)
    low, high = np.percentile(y, (1, 99))
    with style():
        figure = new_figure(9, 3.4)  # seen at 380 px too, where 14 points are 8 px high
        panels = figure.subplots(1, 3, sharey=True)
        for axes, values, title, colours, limits in (
            (panels[0], given, f"{found['rows']:,} measurements", "cividis", (low, high)),
            (panels[1], mean, "prediction (m)", "cividis", (low, high)),
            (panels[2], std, "standard deviation (m)", "magma", (0, np.percentile(std, 99))),
        ):
            picture = image(X, values)
            extent = (WEST, EAST, SOUTH, NORTH)
            drawn = axes.imshow(picture, extent=extent, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto")
            axes.set_title(title, fontsize=_TYPE)
            axes.locator_params(nbins=3)
            axes.tick_params(labelsize=_TYPE)
            if axes is not panels[0]:
                bar = figure.colorbar(drawn, ax=axes)
                bar.ax.locator_params(nbins=4)
                bar.ax.tick_params(labelsize=_TYPE)
    save_figure(figure, options.out)
    write(options.json, vars(options), [found])


def image(X: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return values at the places of a lattice as a picture whose first row is the north."""
    columns, rows = (np.unique(column.round(6), return_inverse=True) for column in X.T)
    picture = np.full((len(rows[0]), len(columns[0])), np.nan)
    picture[rows[1], columns[1]] = values
    return picture[::-1]


if __name__ == "__main__":
    main()
