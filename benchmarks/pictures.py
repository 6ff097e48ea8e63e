"""Draw the pictures of docs/pictures.md from made and public tables: `python benchmarks/pictures.py`."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_iris

from gigagp import GPClassifier, GPRegressor, kernels, plots
from gigagp.storage.figures import new_figure, save_figure, style

FIGURES = Path(__file__).parents[1] / "docs" / "figures"


def monthly(rng: np.random.Generator) -> tuple[pd.DataFrame, np.ndarray]:
    """Return 67 years of months with a trend and a season, as the concentration of CO2 has."""
    year = 1958.2 + np.arange(804) / 12
    season = 3 * np.sin(2 * np.pi * year) + 0.8 * np.cos(4 * np.pi * year)
    value = 315 + 0.8 * (year - 1958) + 0.0125 * (year - 1958) ** 2 + season + rng.normal(0, 0.3, 804)
    return pd.DataFrame({"year": year}), value


def stations(rng: np.random.Generator) -> tuple[pd.DataFrame, np.ndarray]:
    """Return temperatures of 250 stations, with a hole in the map."""
    lon, lat = rng.uniform(5, 15, 400), rng.uniform(45, 55, 400)
    kept = np.flatnonzero(np.hypot(lon - 9, lat - 51) > 1.6)[:250]
    lon, lat = lon[kept], lat[kept]
    value = 14 - 0.7 * (lat - 45) + 2 * np.sin(lon) + rng.normal(0, 0.4, len(kept))
    return pd.DataFrame({"lon": lon, "lat": lat}), value


def houses(rng: np.random.Generator, n: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return prices of houses with four columns, one of which has no influence."""
    area, age, rooms = rng.uniform(40, 200, n), rng.uniform(0, 80, n), rng.integers(1, 7, n)
    city = rng.choice(["Bern", "Oslo", "Rome"], n)
    price = 3 * area - 2 * age + 0.02 * age**2 + 60 * (city == "Rome") + rng.normal(0, 25, n)
    return pd.DataFrame({"area": area, "age": age, "rooms": rooms, "city": city}), price


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FIGURES, help="folder of the pictures")
    out = parser.parse_args().out
    rng = np.random.default_rng(0)
    kernel = kernels.RBF(30.0, 2000.0) + kernels.Periodic(lengthscale=1.0, variance=9.0, period=1.0)
    GPRegressor(kernel).fit(*monthly(rng)).plot(path=out / "pictures-curve.png", upper=2040, label="CO2 (ppm)")
    GPRegressor(kernels.Matern(nu=1.5)).fit(*stations(rng)).plot(
        path=out / "pictures-map.png", label="temperature (°C)"
    )
    gp = GPRegressor(encode="auto").fit(*houses(rng, 300))
    gp.plot(path=out / "pictures-inputs.png", label="price (thousands)")
    X, y = houses(rng, 300)
    with style():
        figure = new_figure(10, 4.4)
        left, right = figure.subplots(1, 2)
        plots.residuals(gp, X, y, ax=left, label="price (thousands)")
        plots.calibration(gp, X, y, ax=right)
    save_figure(figure, out / "pictures-checks.png")
    iris = load_iris(as_frame=True)
    X, labels = iris.data[["petal length (cm)", "petal width (cm)"]], iris.target_names[iris.target]
    GPClassifier().fit(X, labels).plot(X, labels, path=out / "pictures-classes.png", lower=[0.5, 0.0], upper=[7.5, 3.0])
    tumours = load_breast_cancer(as_frame=True)
    X, labels = tumours.data, tumours.target_names[tumours.target]
    classifier = GPClassifier().fit(X[::2], labels[::2])
    with style():
        figure = new_figure(10, 4.4)
        left, right = figure.subplots(1, 2)
        plots.confusion(classifier, X[1::2], labels[1::2], ax=left)
        plots.reliability(classifier, X[1::2], labels[1::2], ax=right)
    save_figure(figure, out / "pictures-reliability.png")


if __name__ == "__main__":
    main()
