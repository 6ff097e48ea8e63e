"""``gigagp krige``: from a table of places to a map in a file, with its uncertainty."""

from __future__ import annotations

import math
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from gigagp.commands import options
from gigagp.errors import InvalidInputError
from gigagp.storage.figures import check_plot
from gigagp.storage.files import check_apart, check_folder, replacing
from gigagp.tables.files import FORMATS, CsvStyle, read_columns
from gigagp.tables.files.folders import PARQUET, checked_path

#: Endings of files that geopandas reads, and of maps.
_VECTORS = {".gpkg", ".geojson", ".json", ".shp", ".fgb"}
_GEOTIFF, _NETCDF = {".tif", ".tiff"}, {".nc"}
_KERNELS = ("matern12", "matern32", "matern52", "rbf")


def krige(
    places: Annotated[
        Path,
        typer.Argument(
            metavar="PLACES",
            help=f"The measurements: GeoPackage, GeoJSON, GeoParquet, Shapefile, or a table with columns of "
            f"coordinates: {FORMATS}.",
            show_default=False,
        ),
    ],
    value: Annotated[str, typer.Option(help="Column to map.", show_default=False)],
    cell: Annotated[
        float | None,
        typer.Option(
            help="Size of the cells of the map, in degrees or the unit of the reference system. With covariates, those "
            "of the first raster by default.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File of the map, mean and std: .tif (GeoTIFF) or .nc (NetCDF).")
    ] = Path("map.tif"),
    covariate: Annotated[
        list[Path] | None,
        typer.Option(
            help="Raster of a covariate, such as the elevation, in which places and cells of the map take their "
            "values; may be repeated.",
            show_default=False,
        ),
    ] = None,
    x: Annotated[
        str | None, typer.Option(help="Column of longitudes or eastings, if its name is not lon, easting or x.")
    ] = None,
    y: Annotated[str | None, typer.Option(help="Column of latitudes or northings.")] = None,
    crs: Annotated[
        str | None,
        typer.Option(help="Reference system of these columns, such as EPSG:28992.", show_default=False),
    ] = None,
    bounds: Annotated[
        str | None,
        typer.Option(metavar="W,S,E,N", help="Extent of the map; by default that of the places.", show_default=False),
    ] = None,
    kernel: Annotated[
        str,
        typer.Option(help=f"{', '.join(_KERNELS)} (the exponential covariance is matern12), or auto: the data choose."),
    ] = "auto",
    mean: Annotated[
        str, typer.Option(help="constant (ordinary kriging) or linear (slopes of the coordinates too).")
    ] = "constant",
    include_noise: Annotated[
        bool, typer.Option("--include-noise", help="Give the std of a new measurement instead of the function.")
    ] = False,
    picture: Annotated[
        bool, typer.Option("--picture/--no-picture", help="Also draw the map, as a PNG of the same name.")
    ] = True,
    folds: Annotated[
        int | None,
        typer.Option(help="Also leave out blocks of places in this many folds, and print the errors.", min=2),
    ] = None,
    seed: options.Seed = 0,
    header: options.Header = None,
    decimal: options.Decimal = ".",
    comment: options.Comment = None,
    quiet: options.Quiet = False,
) -> None:
    """Map measurements at places by kriging, with the standard deviation of each cell."""
    if out.suffix.lower() not in _GEOTIFF | _NETCDF:
        raise InvalidInputError(f"a map must be a file that ends in .tif or .nc; got {out}.")
    check_folder(out)
    check_apart(out, places, *(covariate or []))
    drawn = out.with_suffix(".png") if picture else None
    if drawn is not None:
        check_plot(drawn)
    if kernel not in ("auto", *_KERNELS):
        raise InvalidInputError(f"--kernel must be one of {', '.join(_KERNELS)}, or auto; got {kernel!r}.")
    if cell is None and not covariate:
        raise InvalidInputError(
            "--cell must give the size of the cells of the map, or --covariate a raster with cells."
        )
    if cell is not None and not 0 < cell < math.inf:
        raise InvalidInputError(f"--cell must be a positive number; got {cell:g}.")
    corners = None if bounds is None else _corners(bounds, cell)

    from gigagp import GPRegressor
    from gigagp.geo import BlockKFold, Kriging
    from gigagp.geo.places import Places, needed
    from gigagp.geo.rasters import Raster
    from gigagp.kernels.rebuilding import rebuilt

    needed("rioxarray", "A map")
    table = _read_places(places, header, CsvStyle(decimal, comment))
    rasters = _read_rasters(covariate or [])
    rows = Places.of(table, x, y, crs)
    if cell is not None:
        Raster.of(rows, cell, corners)  # refuses it before the fit
    splitter = None if folds is None else BlockKFold(folds)
    if splitter is not None:
        splitter.blocks(rows.continuous(rows.X))  # likewise
    form = {"metric": "haversine"} if rows.is_geographic else {"ard": False}
    regressor = GPRegressor(
        None if kernel == "auto" else rebuilt(options.choose_kernel(kernel), form),
        mean=mean,
        random_state=seed,
        verbose=options.verbosity(quiet, False, f"kriging of {value}"),
    )
    model = Kriging(regressor, x=x, y=y, crs=crs, covariates=list(rasters) or None)
    given = rasters or None
    model.fit(table, value, covariates=given)
    typer.echo(f"{model!r}, noise variance {model.gp.noise_variance_:.4g}")
    if splitter is not None:
        typer.echo(str(model.cross_validate(splitter)))
    maps = model.predict(resolution=cell, bounds=corners, covariates=given, include_noise=include_noise)
    _write(maps, out, cell)
    if drawn is not None:
        model.plot(maps, drawn)
    n_y, n_x = maps["mean"].shape
    beside = "" if drawn is None else f", and {drawn}"
    typer.echo(f"Wrote mean and std of {n_y:,} x {n_x:,} cells to {out}{beside}.")


def _corners(text: str, cell: float | None) -> list[float]:
    """Return the four numbers of ``--bounds``."""
    if cell is None:
        raise InvalidInputError("--bounds needs --cell, the size of the cells.")
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) != 4:
        raise InvalidInputError(f"--bounds must be four numbers, west,south,east,north; got {text!r}.")
    return found


def _read_places(path: Path, header: bool | None, style: CsvStyle) -> Any:
    """Return a GeoDataFrame, or a table with columns of coordinates."""
    from gigagp.geo.places import needed

    ending = checked_path(path).suffix.lower()
    has_geometry = ending in _VECTORS or (ending in PARQUET and path.is_file() and _is_geoparquet(path))
    if not has_geometry:
        return read_columns(path, header, style)
    geopandas = needed("geopandas", f"Reading {path}")
    try:
        found = geopandas.read_parquet(path) if ending in PARQUET else geopandas.read_file(path)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InvalidInputError(f"{path} cannot be read as a table of places: {reason}.") from error
    if not isinstance(found, geopandas.GeoDataFrame):
        raise InvalidInputError(f"{path} has no geometries. Convert it to a table with columns of coordinates.")
    return found


def _is_geoparquet(path: Path) -> bool:
    from pyarrow import ArrowException, parquet

    try:
        return b"geo" in (parquet.read_schema(path).metadata or {})
    except (ArrowException, OSError):
        return False  # reading it as a table says what is wrong


def _read_rasters(paths: list[Path]) -> dict[str, Any]:
    """Return an xarray.DataArray for each file, by the name of the file without its ending."""
    import rioxarray
    import xarray

    found: dict[str, Any] = {}
    for path in paths:
        read: Any
        try:
            if checked_path(path).suffix.lower() in _NETCDF:
                read = xarray.load_dataset(path, engine="scipy", decode_coords="all")
            else:
                read = rioxarray.open_rasterio(path, mask_and_scale=True)
        except (OSError, RuntimeError, ValueError) as error:
            if isinstance(error, InvalidInputError):
                raise
            reason = str(error).splitlines()[0].rstrip(".")
            raise InvalidInputError(f"{path} cannot be read as a raster: {reason}.") from error
        variables = list(read.data_vars.values()) if isinstance(read, xarray.Dataset) else [read]
        if len(variables) != 1 or variables[0].squeeze().ndim != 2:
            raise InvalidInputError(f"{path} must be a raster of one variable with one band. Take one out of it.")
        if path.stem in found:
            raise InvalidInputError(f"--covariate must have files with different names; got {path.stem} twice.")
        found[path.stem] = variables[0]
    return found


def _write(maps: Any, out: Path, cell: float | None) -> None:
    """Write a map to a GeoTIFF or NetCDF file, whole or not at all; cells without a value are NaN, which is nodata."""
    if cell is not None and 1 in maps["mean"].shape:  # one centre does not tell the size of its cell
        from affine import Affine

        y, x = (maps[name].values for name in maps["mean"].dims)
        maps = maps.rio.write_transform(Affine(cell, 0.0, x[0] - cell / 2, 0.0, -cell, y[0] + cell / 2))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / out.name
        if out.suffix.lower() in _NETCDF:
            maps.to_netcdf(file, engine="scipy")
        else:
            for name in maps.data_vars:
                maps[name] = maps[name].rio.write_nodata(float("nan"))
            maps.rio.to_raster(file, compress="deflate")
        with file.open("rb") as source, replacing(out) as target:
            shutil.copyfileobj(source, target)
