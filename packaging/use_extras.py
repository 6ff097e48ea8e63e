"""Import and use what an extra of pyproject.toml promises: ``python packaging/use_extras.py geo``.

`packaging/check_extras.sh` runs it in an environment that has this extra alone.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from gigagp import GPRegressor, inference, kernels

CHECKOUT = Path(__file__).resolve().parents[1]


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Run a command of this environment; its failure ends the program."""
    subprocess.run([sys.executable, *map(str, command)], cwd=cwd, check=True, stdout=subprocess.DEVNULL)


def made_fit(n_inputs: int = 1) -> GPRegressor:
    """Return a model of forty made rows."""
    random = np.random.default_rng(0)
    X = random.uniform(size=(40, n_inputs))
    y = np.sin(5 * X).sum(1) + 0.05 * random.normal(size=40)
    return GPRegressor(kernels.Matern(2.5), inference.Exact()).fit(X, y)


def plot(folder: Path) -> None:
    """Draw models in Python and on the command line, and write a report."""
    made_fit().plot(path=folder / "curve.png")
    made_fit(2).plot(path=folder / "map.png")
    random = np.random.default_rng(1)
    x = random.uniform(size=60)
    table = np.column_stack([x, np.sin(5 * x) + 0.05 * random.normal(size=60)])
    np.savetxt(folder / "rows.csv", table, delimiter=",", header="x,y", comments="")
    run("-m", "gigagp", "fit", "rows.csv", "--target", "y", "--out", "model.gp", cwd=folder)
    run("-m", "gigagp", "plot", "model.gp", "--out", "command.png", cwd=folder)
    run("-m", "gigagp", "report", "model.gp", "rows.csv", "--out", "report.html", cwd=folder)
    for name in ("curve.png", "map.png", "command.png", "report.html"):
        assert (folder / name).stat().st_size > 5000, name


def botorch(_folder: Path) -> None:
    """Maximize an acquisition function of BoTorch."""
    import torch
    from botorch.acquisition import qLogExpectedImprovement
    from botorch.optim import optimize_acqf

    from gigagp.botorch import GigaModel

    torch.manual_seed(0)
    acquisition = qLogExpectedImprovement(GigaModel(made_fit(2)), best_f=1.5)
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    candidates, value = optimize_acqf(acquisition, bounds, q=2, num_restarts=2, raw_samples=16)
    assert candidates.shape == (2, 2)
    assert torch.isfinite(value)


def geo(folder: Path) -> None:
    """Write maps of a GeoDataFrame, in Python as a GeoTIFF that is read again, and on the command line."""
    import geopandas
    import rioxarray

    from gigagp.geo import Kriging

    random = np.random.default_rng(0)
    lon, lat = random.uniform([8, 46], [10, 48], size=(60, 2)).T
    heights = 500 + 100 * np.sin(3 * lon) + random.normal(size=60)
    stations = geopandas.GeoDataFrame({"height": heights}, geometry=geopandas.points_from_xy(lon, lat), crs="EPSG:4326")
    maps = Kriging().fit(stations, "height").predict(resolution=0.2, bounds=(8, 46, 10, 48))
    maps["mean"].rio.to_raster(folder / "height.tif")
    with rioxarray.open_rasterio(folder / "height.tif") as written:
        assert written.rio.crs.to_epsg() == 4326
        np.testing.assert_allclose(written.values[0], maps["mean"].values, rtol=1e-6)
    stations.to_file(folder / "stations.gpkg")
    command = ("krige", "stations.gpkg", "--value", "height", "--cell", "0.2", "--out", "map.nc", "--no-picture")
    run("-m", "gigagp", *command, cwd=folder)
    assert (folder / "map.nc").stat().st_size > 1000


def onnx(folder: Path) -> None:
    """Write a model as an ONNX graph, which is evaluated on the way."""
    from gigagp.onnx import export

    export(made_fit(2), folder / "model.onnx")
    assert (folder / "model.onnx").stat().st_size > 5000


def optuna(_folder: Path) -> None:
    """Run a study of Optuna with the sampler."""
    import optuna

    from gigagp.search.optuna import GigaSampler

    study = optuna.create_study(sampler=GigaSampler())
    study.optimize(lambda trial: (trial.suggest_float("x", 0.0, 1.0) - 0.3) ** 2, n_trials=15)
    assert study.best_value < 1e-3


def bench(folder: Path) -> None:
    """Import every benchmark, and run the one that compares kernel products with those of other libraries."""
    scripts = CHECKOUT / "benchmarks"
    sys.path.insert(0, str(scripts))
    sys.path.insert(1, str(CHECKOUT))
    for path in sorted(scripts.glob("*.py")):
        importlib.import_module(path.stem)
    small = ["--n", "1024", "--d", "3", "--s", "1", "--dtypes", "float64", "--repeats", "1", "--seconds", "0.1"]
    run(scripts / "kernel_products.py", *small, "--json", folder / "products.json")
    absent = json.loads((folder / "products.json").read_text(encoding="utf-8"))["absent"]
    assert absent == {}, absent


def docs(folder: Path) -> None:
    """Build the site, and look at it in a browser if there is one; its pictures stay in build/screenshots."""
    run("-m", "sphinx", "-q", "-W", "--keep-going", "-j", "auto", CHECKOUT / "docs", folder / "site")
    run(CHECKOUT / "packaging/render_pages.py", folder / "pages")
    look = [CHECKOUT / "packaging/look_at_site.py", folder / "site", folder / "pages"]
    subprocess.run([sys.executable, *look, "--screenshots", CHECKOUT / "build/screenshots"], check=True)


def test(_folder: Path) -> None:
    """Import all tests, and run a few of them that need other packages; none may be skipped."""
    options = ["-q", "-p", "no:cacheprovider", "-o", "pythonpath=tests ."]
    run("-m", "pytest", *options, "--collect-only", cwd=CHECKOUT)
    names = ("tables/encoding/test_encoder", "kernels/test_gpytorch_translation", "test_examples", "test_packaging")
    files = [f"tests/{name}.py" for name in names]
    command = [sys.executable, "-m", "pytest", *options, *files]
    found = subprocess.run(command, cwd=CHECKOUT, text=True, stdout=subprocess.PIPE, check=False)
    assert found.returncode == 0, found.stdout
    skipped = [line for line in found.stdout.splitlines() if line.startswith("SKIPPED")]
    assert [line for line in skipped if "Ray is not installed" not in line] == [], found.stdout


USES: dict[str, Callable[[Path], None]] = {
    one.__name__: one for one in (plot, botorch, geo, onnx, optuna, bench, docs, test)
}


def main() -> int:
    """Use the extra that the command names."""
    with tempfile.TemporaryDirectory() as folder:
        USES[sys.argv[1]](Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
