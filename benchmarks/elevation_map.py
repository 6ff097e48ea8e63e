"""A map of elevation with blocks held out: from a GeoDataFrame to a GeoTIFF, with what the model says of itself.

    python benchmarks/elevation_map.py --data ../shared/data --json benchmarks/results/elevation_map.json \
        --plot docs/figures/elevation-map.png
    python benchmarks/elevation_map.py --rows 1000 --resolution 0.0069 --command \
        --json benchmarks/results/elevation_map_million.json

Random rows of the southern Rocky Mountains outside blocks of many sizes (`maps.blocks`) are the stations of
`geo.Kriging`. Scores are those of rows in the blocks, and of others outside. One thread; needs the extra ``geo``.
Memory is the peak resident memory of the process, before the map and with it. With ``--command``, `gigagp krige` makes
the same map too, in a process of its own, and its CPU seconds have the fit and the files in them.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import rioxarray
from maps import SIZES, blocks, line, read_map, scores, write
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gigagp import GPRegressor, geo, kernels

WEST, SOUTH, EAST, NORTH = -112.0, 36.0, -104.0, 42.0
KERNELS = {
    "Matern-1/2": lambda: kernels.Matern(nu=0.5, metric="haversine"),
    "Matern-3/2": lambda: kernels.Matern(nu=1.5, metric="haversine"),
}


def draw(model: geo.Kriging, maps: Any, X: np.ndarray, hidden: np.ndarray, path: Path) -> None:
    """Draw mean, deviation, variogram and standardized residuals."""
    figure = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2)
    for axes, name, title, colours in (
        (panels[0, 0], "mean", "mean, m", "cividis"),
        (panels[0, 1], "std", "standard deviation, m; blocks held out in white", "viridis"),
    ):
        maps[name].plot(ax=axes, cmap=colours, robust=True, cbar_kwargs={"label": "m"})
        axes.set(title=title, aspect=1 / np.cos(np.radians((SOUTH + NORTH) / 2)), xlabel="longitude", ylabel="latitude")
    panels[0, 1].plot(*X[hidden].T, ",", color="white", alpha=0.25)
    found, axes = model.variogram(n_bins=15), panels[1, 0]
    axes.plot(found.distance, found.semivariance, "o", color="0.3", label="pairs of rows")
    axes.plot(found.distance, found.model, color="tab:orange", label="model")
    axes.set(title="variogram", xlabel="distance, km", ylabel="semivariance, m²", ylim=(0, None))
    axes.legend()
    left_out, axes = model.leave_one_out()["standardized"], panels[1, 1]
    at = np.linspace(-4, 4, 33)
    axes.hist(np.clip(left_out, -4, 4), at, density=True, color="0.7", label="rows left out")
    axes.plot(at, np.exp(-0.5 * at**2) / np.sqrt(2 * np.pi), color="tab:orange", label="standard normal")
    axes.set(title="residuals over their standard deviations", xlabel="standardized residual")
    axes.legend()
    figure.savefig(path, dpi=90)


def peak(who: int = resource.RUSAGE_SELF) -> float:
    """Return the peak resident memory of this process, or of its children, in GiB."""
    return resource.getrusage(who).ru_maxrss / 2**20


def by_command(stations: geopandas.GeoDataFrame, resolution: float, expected: Any) -> dict[str, object]:
    """Return what `gigagp krige` takes for the map, and how much its mean differs from the expected one at most."""
    with tempfile.TemporaryDirectory() as name:
        folder, before = Path(name), resource.getrusage(resource.RUSAGE_CHILDREN)
        stations.to_file(folder / "stations.gpkg")
        command = [sys.executable, "-m", "gigagp", "krige", "stations.gpkg", "--value", "elevation", "--no-picture"]
        command += ["--kernel", "matern12", "--cell", str(resolution), "--out", "map.tif"]
        subprocess.run(command, cwd=folder, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        with rioxarray.open_rasterio(folder / "map.tif", masked=True) as again:
            difference = float(np.abs(again.values[0] - expected["mean"].values).max())
            cells = int(again[0].size)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cells": cells, "cpu_s": cpu, "peak_gib": peak(resource.RUSAGE_CHILDREN), "difference": difference}


def main() -> None:
    """Fit each kernel, score it, write the map of the first one, and read it again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--resolution", type=float, default=0.05, help="cells of the map, in degrees")
    parser.add_argument("--command", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    X, y = read_map(options.data, "elevation")
    inside = ((X > (WEST, SOUTH)) & (X < (EAST, NORTH))).all(1)
    X, y = X[inside], y[inside]
    hidden = blocks(X, SIZES["elevation"][:5], seed=0) >= 0
    order = np.random.default_rng(0).permutation(len(y))
    rows, near = np.split(order[~hidden[order]][: 2 * options.rows], 2)
    gaps = order[hidden[order]][: options.rows]
    places = geopandas.points_from_xy(*X[rows].T)
    stations = geopandas.GeoDataFrame({"elevation": y[rows]}, geometry=places, crs="EPSG:4326")
    results = []
    for name, kernel in KERNELS.items():
        began = time.process_time()
        model = geo.Kriging(GPRegressor(kernel())).fit(stations, "elevation")
        found: dict[str, object] = {"kernel": name, "rows": len(rows), "fit_cpu_s": time.process_time() - began}
        found["left_out_std"] = float(model.leave_one_out()["standardized"].std())
        for where, tested in (("near", near), ("gaps", gaps)):
            found[where] = scores(y[tested], *model.gp.predict(X[tested], return_std=True, include_noise=True))
            print(f"{name:12s} {where:5s} {line(found[where])}", flush=True)
        results.append(found)
        if len(results) > 1:
            continue
        found["peak_gib"], began = peak(), time.process_time()
        maps = model.predict(resolution=options.resolution)
        found |= {"cells": int(maps["mean"].size), "map_cpu_s": time.process_time() - began, "map_peak_gib": peak()}
        if options.command:
            found["command"] = by_command(stations, options.resolution, maps)
        with tempfile.TemporaryDirectory() as folder:
            maps["std"].rio.to_raster(Path(folder) / "std.tif")
            with rioxarray.open_rasterio(Path(folder) / "std.tif", masked=True) as again:
                found["tiff_error"] = float(np.nanmax(np.abs(again.values[0] - maps["std"].values)))
                assert again.rio.crs == "EPSG:4326"
        if options.plot is not None:
            draw(model, maps, X, hidden, options.plot)
    write(options.json, vars(options), results)


if __name__ == "__main__":
    main()
