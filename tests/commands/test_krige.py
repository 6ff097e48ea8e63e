"""``gigagp krige``: every kind of file in, GeoTIFF, NetCDF and a picture out, and one line for what cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from gigagp import GPRegressor, geo, kernels
from gigagp.errors import GigaGPWarning

NEEDED = 'the extra "geo" is not installed'
geopandas = pytest.importorskip("geopandas", reason=NEEDED)
rioxarray = pytest.importorskip("rioxarray", reason=NEEDED)
xarray = pytest.importorskip("xarray", reason=NEEDED)
pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def frame():
    source = np.random.default_rng(0)
    X = source.uniform([4e5, 5.2e6], [4.3e5, 5.22e6], (50, 2)).round(1)
    zinc = (300 + 100 * np.sin(X[:, 0] / 4e3) + 20 * source.normal(size=50)).round(3)
    return geopandas.GeoDataFrame({"zinc": zinc}, geometry=geopandas.points_from_xy(*X.T), crs=32633)


@pytest.fixture(scope="module")
def files(frame, tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    frame.to_file(folder / "s.gpkg")
    frame.to_crs(4326).to_file(folder / "degrees.geojson")
    frame.to_parquet(folder / "s.parquet")
    table = frame.drop(columns="geometry").assign(east=frame.geometry.x, north=frame.geometry.y)
    table.to_csv(folder / "s.csv", index=False)
    table.iloc[:1].to_csv(folder / "one.csv", index=False)
    table.iloc[:0].to_csv(folder / "empty.csv", index=False)
    x, y = np.arange(399_500.0, 431_000, 1000), np.arange(5_221_500.0, 5_199_000, -1000)
    height = np.cos(x / 3e3)[None] * np.sin(y / 3e3)[:, None]
    height[2, 3] = -1e9
    raster = xarray.DataArray(height, coords={"y": y, "x": x}, dims=("y", "x")).rio.write_crs(32633)
    raster.rio.write_nodata(-1e9).rio.to_raster(folder / "height.tif")
    raster.where(raster > -1e9, 0.0).to_dataset(name="h").to_netcdf(folder / "again.nc", engine="scipy")
    raster.rio.write_crs(3857).rio.to_raster(folder / "other.tif")
    (folder / "broken.gpkg").write_bytes(b"no places")
    return folder


def bands(path):
    with rioxarray.open_rasterio(path) as found:
        return found.load()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "given",
    [
        ["s.gpkg"],
        ["s.parquet", "--kernel", "matern32"],
        ["s.csv", "--x", "east", "--y", "north", "--crs", "EPSG:32633", "--kernel", "matern32"],
    ],
    ids=lambda g: g[0],
)
def test_a_geotiff_is_the_map_of_the_class(run, files, frame, given, tmp_path):
    out = tmp_path / "map.tif"
    code, text, error = run("krige", files / given[0], *given[1:], "--value", "zinc", "--cell", 2500, "-o", out, "-q")
    assert (code, error) == (0, "")
    plain = GPRegressor(kernels.Matern(ard=False)) if "matern32" in given else None
    expected = geo.Kriging(plain).fit(frame, "zinc").predict(resolution=2500)
    found = bands(out)
    assert found.attrs["long_name"] == tuple(expected[name].attrs["long_name"] for name in ("mean", "std"))
    assert np.allclose(found.values, [expected["mean"], expected["std"]], rtol=1e-9)
    assert (found.y.values == expected.y.values).all()
    assert found.rio.crs == 32633
    assert np.isnan(found.rio.nodata)
    assert text.startswith("Kriging of 'zinc' at 50 places in EPSG:32633: ")
    assert text.endswith(f"Wrote mean and std of 8 x 12 cells to {out}, and {out.with_suffix('.png')}.\n")
    assert out.with_suffix(".png").stat().st_size > 5000


def test_degrees_and_netcdf(run, files, tmp_path):
    out = tmp_path / "map.nc"
    command = ("krige", files / "degrees.geojson", "--value", "zinc", "--cell", 0.05, "-o", out, "--kernel", "matern12")
    code, text, error = run(*command, "--no-picture", "--folds", 3, "-q")
    assert (code, error) == (0, "")
    assert "metric='haversine'" in text
    assert "\n3 folds of 50 rows: RMSE " in text
    with xarray.open_dataset(out, engine="scipy", decode_coords="all") as found:
        assert found.rio.crs == 4326
        assert set(found.data_vars) == {"mean", "std"}
        assert found.sizes == {"latitude": 4, "longitude": 8}
        assert np.isfinite(found["std"].values).all()
    assert not out.with_suffix(".png").exists()


def test_a_map_of_one_row_of_cells_lies_where_it_should(run, files, tmp_path):
    line = tmp_path / "line.csv"
    line.write_text("x,y,z\n" + "".join(f"{1000 * k},500,{k % 3}\n" for k in range(8)), encoding="utf-8")
    out = tmp_path / "map.tif"
    command = ("krige", line, "--value", "z", "--cell", 500, "-o", out, "--kernel", "matern32", "-q")
    code, _, error = run(*command)
    assert (code, error) == (0, "")
    found = bands(out)
    assert found.x.values.tolist() == [250.0 + 500 * k for k in range(14)]
    assert found.y.values.tolist() == [750.0]


def test_covariates_are_taken_from_rasters(run, files, frame, tmp_path):
    out = tmp_path / "map.tif"
    rasters = ("--covariate", files / "height.tif", "--covariate", files / "again.nc")
    plain = ("--kernel", "matern32", "--no-picture", "-q")
    code, text, error = run("krige", files / "s.gpkg", "--value", "zinc", *rasters, "-o", out, *plain)
    assert code == 0
    assert error == "gigagp: warning: 1 of 736 cells have no value of height or again, and none in the map.\n"
    assert text.endswith(f"Wrote mean and std of 23 x 32 cells to {out}.\n")
    found = bands(out)
    assert np.argwhere(np.isnan(found.values)).tolist() == [[0, 2, 3], [1, 2, 3]]
    given = {
        "height": bands(files / "height.tif"),
        "again": bands(files / "height.tif").where(lambda one: one > -1e9, 0),
    }
    model = geo.Kriging(GPRegressor(kernels.Matern(ard=False)), covariates=list(given))
    with pytest.warns(GigaGPWarning, match="1 of 736 cells"):
        expected = model.fit(frame, "zinc", covariates=given).predict(covariates=given)
    assert np.allclose(found.values, [expected["mean"], expected["std"]], rtol=1e-9, equal_nan=True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["s.gpkg", "--value", "zink", "--cell", 1e3], "has no column 'zink'. Did you mean 'zinc'? Its columns are: "),
        (["s.csv", "--value", "zinc", "--cell", 1e3, "--crs", "EPSG:99999"], "pyproj knows, such as EPSG:4326; got"),
        (["s.gpkg", "--value", "zinc", "--covariate", "height.tif", "--out", "height.tif"], "would be replaced"),
        (["s.gpkg", "--value", "zinc"], "--cell must give the size of the cells of the map"),
        (["s.gpkg", "--value", "zinc", "--cell", -1], "--cell must be a positive number; got -1"),
        (["s.gpkg", "--value", "zinc", "--cell", 1e-3], "cells; at most 25,000,000"),
        (["s.gpkg", "--value", "zinc", "--cell", 1e3, "--out", "map.jpg"], "ends in .tif or .nc; got map.jpg"),
        (["s.gpkg", "--value", "zinc", "--cell", 1e3, "--out", "no/map.tif"], "does not exist"),
        (["s.gpkg", "--value", "zinc", "--cell", 1e3, "--bounds", "1,2,3"], "must be four numbers"),
        (["s.gpkg", "--value", "zinc", "--cell", 1, "--bounds", "14,46,15,47"], "bounds of Kriging must overlap"),
        (["s.gpkg", "--value", "zinc", "--cell", 1e3, "--kernel", "spherical"], "--kernel must be one of matern12"),
        (["s.gpkg", "--value", "zinc", "--covariate", "other.tif"], "crs of the rows, EPSG:32633; got EPSG:3857"),
        (["degrees.geojson", "--value", "zinc", "--covariate", "height.tif"], "EPSG:4326; got EPSG:32633"),
        (["s.gpkg", "--value", "zinc", "--covariate", "s.csv"], "s.csv cannot be read as a raster"),
        (["s.csv", "--value", "zinc", "--cell", 1e3], "or be given with x and y; its columns are zinc, east, north"),
        (["one.csv", "--value", "zinc", "--cell", 1e3, "--x", "east", "--y", "north"], "two places or more; got 1"),
        (["s.gpkg", "--value", "zinc", "--cell", "inf"], "--cell must be a positive number; got inf"),
        (["empty.csv", "--value", "zinc", "--cell", 1e3, "--x", "east", "--y", "north"], "must have rows; got none"),
        (["s.gpkg", "--value", "zinc", "--cell", 1e3, "--folds", 51], "number of different places, 50; got 51"),
        (["none.gpkg", "--value", "zinc", "--cell", 1e3], "none.gpkg does not exist"),
        (["broken.gpkg", "--value", "zinc", "--cell", 1e3], "cannot be read as a table of places"),
    ],
    ids=lambda part: part[0] if isinstance(part, list) else None,
)
def test_what_cannot_be_is_refused_before_the_fit(refused, files, given, words, monkeypatch):
    monkeypatch.setattr(GPRegressor, "fit", lambda *_: pytest.fail("it was fitted"))
    arguments = [files / one if str(one) in {path.name for path in files.iterdir()} else one for one in given]
    if given[0] == "none.gpkg":
        arguments[0] = files / "none.gpkg"
    assert words in refused("krige", *arguments)
