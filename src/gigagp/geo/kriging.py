"""`Kriging`: a `GPRegressor` between tables of places and maps."""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import clone

from gigagp.errors import InvalidInputError
from gigagp.geo.blocks import means_of_cells, means_of_polygons
from gigagp.geo.places import Places, column, needed
from gigagp.geo.rasters import Raster
from gigagp.geo.variograms import Variogram, variogram
from gigagp.kernels import Matern
from gigagp.regression import GPRegressor
from gigagp.settings.fields import Count, Positive, checks_arguments
from gigagp.settings.random import RandomState


class Kriging:
    """Kriging of a column of a table of places: maps, variogram, left-out residuals and block means.

    This is a `GPRegressor` of two inputs, longitude and latitude or easting and northing, with tables and maps around
    it. Its range, sill and nugget are learned by the likelihood: they are the lengthscale, the variance and the noise
    variance of ``gp``.

    Parameters
    ----------
    regressor : GPRegressor, optional
        Its arguments are those of the model, and it is left alone. None: a Matern-3/2 kernel with one lengthscale,
        which is in km where coordinates are degrees, and a constant mean (ordinary kriging).
        ``GPRegressor(kernels.Matern(metric="rotated"))`` has an anisotropy with an angle, and ``mean="linear"`` is
        universal kriging.
    x, y : str, optional
        Columns of coordinates, where `fit` gets no GeoDataFrame and they have no name such as ``lon`` and ``lat``.
    crs : optional
        Coordinate reference system of these columns, as pyproj reads it: ``"EPSG:25832"``.

    Attributes
    ----------
    gp : GPRegressor
        The fitted model. Where the rows are on both sides of the date line, it was fitted to longitudes that go on
        beyond 180 degrees.
    places : Places
        Coordinates ``X`` of the rows and their ``crs``.
    values : ndarray of shape (n,)
        The measurements.
    target : str
        Their column.

    Examples
    --------
    >>> import numpy as np
    >>> from gigagp.geo import Kriging
    >>> source = np.random.default_rng(0)
    >>> table = {"easting": source.uniform(0, 9, 80), "northing": source.uniform(0, 9, 80)}
    >>> table["rain"] = np.sin(table["easting"]) + np.cos(table["northing"])
    >>> model = Kriging().fit(table, "rain")
    >>> model.variogram(n_bins=3).count.sum() > 500
    np.True_
    """

    def __init__(
        self, regressor: GPRegressor | None = None, *, x: str | None = None, y: str | None = None, crs: Any = None
    ) -> None:
        if regressor is not None and not isinstance(regressor, GPRegressor):
            msg = f"regressor of Kriging must be a GPRegressor or None; got {type(regressor).__name__}."
            raise InvalidInputError(msg)
        self.regressor, self.x, self.y, self.crs = regressor, x, y, crs

    def fit(self, frame: Any, target: str) -> Self:
        """Learn the model of a column.

        Parameters
        ----------
        frame : GeoDataFrame of points, DataFrame or mapping of str to array
        target : str
            Column to map.

        Returns
        -------
        Kriging
            Itself.

        Raises
        ------
        InvalidInputError
            If a place or a measurement is not a finite number, or not in the range of its reference system.
        """
        places, values = Places.of(frame, self.x, self.y, self.crs), column(frame, target)
        if self.regressor is None:
            kernel = Matern(metric="haversine") if places.is_geographic else Matern(ard=False)
            gp = GPRegressor(kernel)
        else:
            gp = clone(self.regressor)
        gp.fit(places.continuous(places.X), values)
        self.gp, self.places, self.values, self.target = gp, places, values, target
        return self

    def _fitted(self) -> GPRegressor:
        if not hasattr(self, "gp"):
            raise InvalidInputError("This Kriging is not fitted yet. Call fit(table, column) first.")
        return self.gp

    def predict(
        self,
        *,
        resolution: Any = None,
        bounds: Any = None,
        template: Any = None,
        x: Any = None,
        y: Any = None,
        include_noise: bool = False,
    ) -> Any:
        """Return a map of means and standard deviations at the centres of cells.

        Parameters
        ----------
        resolution : float or (float, float), optional
            Size of the cells along x and y, in degrees or the unit of the reference system. Cells cover ``bounds``
            from the south-west corner.
        bounds : (west, south, east, north), optional
            Extent for ``resolution``. None: that of the rows.
        template : xarray.DataArray or xarray.Dataset, optional
            A map whose cells are taken instead.
        x, y : array-like, optional
            Centres of the cells, instead.
        include_noise : bool
            Whether the standard deviation is that of a measurement.

        Returns
        -------
        xarray.Dataset
            ``mean`` and ``std`` with dimensions ``(y, x)``, or ``(latitude, longitude)`` for degrees, from north to
            south where ``resolution`` was given, with the reference system of the rows.
            ``maps["mean"].rio.to_raster("mean.tif")`` writes a GeoTIFF.

        Raises
        ------
        InvalidInputError
            If the arguments make no grid, or a package of the extra ``geo`` is missing.
        """
        gp = self._fitted()
        raster = Raster.of(self.places, resolution, bounds, template, x, y)
        needed("xarray", "A map")
        mean, std = gp.predict(self.places.continuous(raster.points()), return_std=True, include_noise=include_noise)
        return raster.dataset({"mean": mean, "std": std}, self._attributes("at the centres of cells"))

    @checks_arguments
    def block_means(
        self,
        cells: Any = None,
        *,
        resolution: Any = None,
        bounds: Any = None,
        template: Any = None,
        n_points: Count = 4,
    ) -> Any:
        """Return means of the latent function over cells or polygons, with their standard deviations.

        When to use: where the mean over an area is asked for, as the ore of a block or the rain of a basin. Its
        standard deviation is smaller than that at a point, because errors within the area partly cancel. Block kriging
        is another name of it. `Kriging.predict` gives values at the centres of cells.

        Parameters
        ----------
        cells : GeoDataFrame or GeoSeries of polygons, optional
            In the reference system of the rows, or in another one that is known.
        resolution, bounds, template
            As for `predict`, instead of ``cells``; centres must be evenly spaced.
        n_points : int
            Points along each side of a cell, or of the bounds of a polygon, at which the function is taken. Take more
            if a lengthscale is shorter than a cell.

        Returns
        -------
        GeoDataFrame or xarray.Dataset
            Columns ``mean`` and ``std`` beside the geometries, or a map as that of `predict`.

        Raises
        ------
        InvalidInputError
            As for `predict`; also if the fit has a target transform, whose function is not normal.
        """
        gp = self._fitted()
        if cells is None:
            raster = Raster.of(self.places, resolution, bounds, template)
            needed("xarray", "A map")
            low, high = raster.cells()
            mean, std = means_of_cells(gp, low, high, n_points, self.places)
            return raster.dataset({"mean": mean, "std": std}, self._attributes("over cells"))
        if resolution is not None or bounds is not None or template is not None:
            msg = "block_means of Kriging takes either cells or a grid (resolution, bounds or template)."
            raise InvalidInputError(msg)
        geopandas = needed("geopandas", "Means over polygons")
        polygons = getattr(cells, "geometry", None)
        if polygons is None:
            msg = f"cells of Kriging must be a GeoDataFrame or GeoSeries of polygons; got {type(cells).__name__}."
            raise InvalidInputError(msg)
        moved = polygons
        if self.places.crs is not None and polygons.crs is not None and polygons.crs != self.places.crs:
            moved = polygons.to_crs(self.places.crs)
        mean, std = means_of_polygons(gp, moved, n_points, self.places)
        return geopandas.GeoDataFrame({"mean": mean, "std": std}, geometry=polygons, index=polygons.index)

    def _attributes(self, where: str) -> dict[str, dict[str, str]]:
        return {
            "mean": {"long_name": f"mean of {self.target} {where}"},
            "std": {"long_name": f"standard deviation of {self.target} {where}"},
        }

    def variogram(
        self,
        *,
        n_bins: Count = 15,
        max_distance: Positive | None = None,
        estimator: Literal["matheron", "cressie"] = "matheron",
        max_rows: Count = 2000,
        random_state: RandomState = 0,
    ) -> Variogram:
        """Return the empirical variogram of the measurements, and that of the model over the same pairs.

        A linear mean is subtracted before: the variogram is of what the kernel and the noise describe. Arguments are
        those of `gigagp.geo.variogram`; distances are great-circle distances in km where coordinates are degrees.

        Raises
        ------
        InvalidInputError
            If an argument is invalid; or the noise differs from row to row, or the target was transformed, so that the
            model has no variogram of the measurements.
        """
        gp = self._fitted()
        noise = np.asarray(gp.noise_variance_)
        if noise.ndim or not gp.target_transform_.is_identity:
            msg = "variogram of Kriging needs one noise variance and no target_transform; use gigagp.geo.variogram."
            raise InvalidInputError(msg)
        return variogram(
            self.places.X,
            self.values - self._trend(),
            n_bins=n_bins,
            max_distance=max_distance,
            estimator=estimator,
            metric="haversine" if self.places.is_geographic else "euclidean",
            kernel=gp.kernel_,
            noise_variance=float(noise),
            max_rows=max_rows,
            random_state=random_state,
        )

    def _trend(self) -> np.ndarray:
        """Return the learned mean at the rows, in the target's units."""
        posterior, scaling = self.gp.posterior_, self.gp.scaling_
        X = self.places.continuous(self.places.X)
        points = torch.from_numpy(scaling.inputs(X)).to(dtype=posterior.dtype, device=posterior.device)
        trend: np.ndarray = scaling.original(posterior.trend(points).double().cpu().numpy())[:, 0]
        return trend + posterior.model.mean.offset(X)

    def leave_one_out(self) -> Any:
        """Return a table of the rows as they are predicted from all others.

        Returns
        -------
        GeoDataFrame or dict of str to ndarray
            ``observed``, ``mean`` and ``std`` of the measurement given the others, ``residual`` (observed - mean) and
            ``standardized``, the residual over the standard deviation, beside the places. Without geopandas a
            dictionary of these columns, with ``x`` and ``y``.

        Raises
        ------
        InvalidInputError
            As for `gigagp.GPRegressor.leave_one_out`.
        """
        found = self._fitted().leave_one_out()
        residual = self.values - found.mean
        columns = {
            "observed": self.values,
            "mean": found.mean,
            "std": found.std,
            "residual": residual,
            "standardized": residual / found.std,
        }
        try:
            import geopandas
        except ImportError:
            return {**columns, "x": self.places.X[:, 0], "y": self.places.X[:, 1]}
        return geopandas.GeoDataFrame(
            columns, geometry=geopandas.points_from_xy(self.places.X[:, 0], self.places.X[:, 1]), crs=self.places.crs
        )

    def __repr__(self) -> str:
        """Return the state in words."""
        if not hasattr(self, "gp"):
            return f"Kriging({'' if self.regressor is None else repr(self.regressor)})"
        return f"Kriging of {self.target!r} at {len(self.values):,} places in {self.places.crs}: {self.gp.kernel_!r}"
