"""`Kriging`: a `GPRegressor` between tables of places and maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.metrics import r2_score
from sklearn.model_selection import check_cv
from sklearn.utils.validation import check_is_fitted

from gigagp.errors import GigaGPWarning, InvalidInputError, warn
from gigagp.estimators.answers.correlated import observed_cells
from gigagp.geo.blocks import means_of_cells, means_of_polygons
from gigagp.geo.covariates import Layer, beside, layers_of, sampled
from gigagp.geo.pictures import draw_maps
from gigagp.geo.places import Places, column, is_table, needed, system_name, with_columns
from gigagp.geo.rasters import Raster
from gigagp.geo.validation import BlockKFold, CrossValidation, joined
from gigagp.geo.variograms import Variogram, variogram
from gigagp.kernels import Chosen, Kernel
from gigagp.kernels.composite import Composite
from gigagp.kernels.rebuilding import arguments_of, rebuilt
from gigagp.model.means import LinearMean
from gigagp.plots import predicted
from gigagp.regression import GPRegressor
from gigagp.runtime.progress import meter_for
from gigagp.settings.fields import Count, Positive, checks_arguments
from gigagp.settings.random import RandomState
from gigagp.tables import intake

#: Points that are predicted together, so that a map shows its progress.
_BLOCK = 2**15


class Kriging(RegressorMixin, BaseEstimator):
    """Kriging of measurements: predictions at points, maps, variogram, leave-one-out residuals and block means.

    This is a `GPRegressor` with two inputs, longitude and latitude or easting and northing, that reads tables and
    writes maps. Range, sill and nugget are learned by maximum likelihood: they are the lengthscale, the variance and
    the noise variance of ``gp``. The shape of the variogram is chosen from the data, too: how rough it is at short
    distances, whether there are a long and a short range, and whether the range depends on the direction.
    ``gp.describe()`` says what was tried; with few places, several kernels are averaged. It is a scikit-learn
    estimator.

    Parameters
    ----------
    regressor : GPRegressor, optional
        Template for the arguments of the model; it is not changed. None, or a GPRegressor whose kernel is None: the
        kernel is chosen from the data (`kernels.Chosen`). All candidates have one lengthscale for both coordinates, in
        km if these are degrees. For other coordinates, the best one is also tried with a range that depends on the
        direction (geometric anisotropy). ``GPRegressor(kernels.Matern(ard=False))``, or ``metric="haversine"`` for
        degrees, is the plain kernel alone. The default mean is a constant (ordinary kriging), and
        ``GPRegressor(mean="linear")`` is universal kriging.
    x, y : str, optional
        Columns of the coordinates, for tables that are not GeoDataFrames and do not use names such as ``lon`` and
        ``lat``.
    crs : optional
        Coordinate reference system of these columns, or of the coordinates in an array, in any form that pyproj reads:
        ``"EPSG:25832"``. An array of longitudes and latitudes needs ``"EPSG:4326"``.
    covariates : sequence of str, optional
        Quantities that are known everywhere, such as the elevation: columns of tables, and the columns of an array
        after its two coordinates. The mean has a slope for each (regression kriging, kriging with external drift),
        unless ``regressor`` has another mean than ``"constant"``; ``"linear"`` has slopes of the coordinates too.
        Kernels without ``columns`` use only the coordinates.

    Attributes
    ----------
    gp : GPRegressor
        The fitted model. Its inputs are the two coordinates and the covariates. If the rows are on both sides of the
        date line, it is fitted to longitudes that continue beyond 180 degrees.
    places : Places
        Coordinates ``X`` of the rows and their ``crs``.
    values : ndarray of shape (n,) or (n, k)
        The measurements.
    target : str
        Their column or columns.

    Examples
    --------
    >>> import numpy as np
    >>> from gigagp.geo import Kriging
    >>> source = np.random.default_rng(0)
    >>> table = {"easting": source.uniform(0, 9, 80), "northing": source.uniform(0, 9, 80)}
    >>> table["rain"] = np.sin(table["easting"]) + np.cos(table["northing"])
    >>> model = Kriging().fit(table, "rain")
    >>> mean, std = model.predict([[2.0, 3.0], [4.0, 5.0]], return_std=True)
    >>> model.variogram(n_bins=3).count.sum() > 500
    np.True_
    """

    def __init__(
        self,
        regressor: GPRegressor | None = None,
        *,
        x: str | None = None,
        y: str | None = None,
        crs: Any = None,
        covariates: Sequence[str] | None = None,
    ) -> None:
        self.regressor = regressor
        self.x = x
        self.y = y
        self.crs = crs
        self.covariates = covariates

    def fit(self, frame: Any, target: Any, *, covariates: Any = None) -> Self:
        """Learn the model of measurements.

        Parameters
        ----------
        frame : GeoDataFrame or GeoSeries of points, DataFrame, mapping of str to array, or array of shape (n, 2 + c)
            The places, and the covariates if there are any.
        target : str, sequence of str, or array-like of shape (n,) or (n, k)
            The measurements: a column of the table, or their values. Several columns mean cokriging: one model of all
            measurements and their correlations, in which each also helps to predict the others
            (``GPRegressor(outputs="correlated")``). NaN marks a missing measurement.
        covariates : xarray.Dataset, mapping of str to xarray.DataArray, or xarray.DataArray, optional
            Rasters to take covariates from, instead of columns: the values of the cells that contain the rows.

        Returns
        -------
        Kriging
            Itself.

        Raises
        ------
        InvalidInputError
            If a place, a covariate or a measurement is not a finite number; if rows are outside the range of their
            reference system; or if a raster has another reference system, or no value at a row.
        """
        names = self._covariates()
        if self.regressor is not None and not isinstance(self.regressor, GPRegressor):
            msg = f"regressor of Kriging must be a GPRegressor or None; got {type(self.regressor).__name__}."
            raise InvalidInputError(msg)
        places = Places.of(frame, self.x, self.y, self.crs)
        if len(places.X) < 2:
            raise InvalidInputError(f"Kriging.fit needs measurements at two places or more; got {len(places.X)}.")
        places.require_plausible()
        is_named, targets, values = _measurements(frame, target, len(places.X))
        layers = None if covariates is None else layers_of(covariates, names, places)
        X = _inputs(places, places.X, frame, names, layers)
        gp = self._model(places, len(names), values.ndim).fit(X, values)
        self.gp, self.places, self.values = gp, places, values
        self.target, self._targets = ", ".join(targets), targets
        self._inputs, self._names, self._answers_tables = X, names, is_named or not is_table(frame)
        return self

    def _covariates(self) -> list[str]:
        """Return the names of the covariates."""
        names = [] if self.covariates is None else self.covariates
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise InvalidInputError(f"covariates of Kriging must be a list of names of columns; got {names!r}.")
        return list(names)

    def _model(self, places: Places, n_covariates: int, n_axes: int = 1) -> GPRegressor:
        """Return the regressor that is fitted: its kernel sees the places, and its mean the covariates.

        ``n_axes`` is the number of axes of the measurements, of which several correlate.
        """
        gp = GPRegressor() if self.regressor is None else clone(self.regressor)
        if n_axes > 1 and gp.outputs == "auto":
            gp.outputs = "correlated"
        if gp.kernel is None:
            gp.kernel = Chosen(metric="haversine") if places.is_geographic else Chosen(ard=False)
        if n_covariates and isinstance(gp.kernel, Chosen) and gp.kernel.columns is None:
            gp.kernel = replace(gp.kernel, columns=(0, 1))
        elif n_covariates and isinstance(gp.kernel, Kernel):
            gp.kernel = _each_leaf(gp.kernel, _of_places)
        if n_covariates and gp.mean == "constant":
            gp.mean = LinearMean(tuple(range(2, 2 + n_covariates)))
        return gp

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "gp")

    def predict(
        self,
        points: Any = None,
        return_std: bool | None = None,
        *,
        resolution: Any = None,
        bounds: Any = None,
        template: Any = None,
        x: Any = None,
        y: Any = None,
        covariates: Any = None,
        include_noise: bool = False,
    ) -> Any:
        """Return means and standard deviations at points, or a map of them at the centres of cells.

        Parameters
        ----------
        points : GeoDataFrame or GeoSeries of points, DataFrame, mapping of str to array, or array, optional
            Where to predict, with the covariates of the fit. A table in another reference system is transformed to that
            of the rows; points without one are assumed to be in that of the rows. None: a map.
        return_std : bool, optional
            Whether to return two arrays, mean and standard deviation, or only the mean. None: a table for a table, and
            only the mean otherwise. After ``fit(table, values)``, the form of call that scikit-learn's tools use,
            always only the mean.
        resolution : float or (float, float), optional
            Size of the cells along x and y, in degrees or the unit of the reference system. Cells cover ``bounds``
            from the south-west corner.
        bounds : (west, south, east, north), optional
            Extent for ``resolution``. None: that of the rows.
        template : xarray.DataArray or xarray.Dataset, optional
            A map whose cells to use instead.
        x, y : array-like, optional
            Centres of the cells, instead.
        covariates : xarray.Dataset, mapping of str to xarray.DataArray, or xarray.DataArray, optional
            Rasters of the covariates; a point takes the value of the cell that contains it. If no other argument
            defines the map, it has the cells of the first raster. Cells without a value have none in the map.
        include_noise : bool
            Whether the standard deviation is that of a measurement.

        Returns
        -------
        table, ndarray of shape (m,), or two of these
            At points: a copy of the table with the columns ``mean`` and ``std`` (a GeoDataFrame for a GeoSeries), or
            arrays. For several measurements, columns are named such as ``mean_lead`` and ``std_lead``, and arrays have
            shape (m, k).
        xarray.Dataset
            A map: ``mean`` and ``std`` with dimensions ``(y, x)``, or ``(latitude, longitude)`` for degrees, from north
            to south where ``resolution`` was given, with the reference system of the rows.
            ``maps["mean"].rio.to_raster("mean.tif")`` writes a GeoTIFF.

        Raises
        ------
        InvalidInputError
            If points or covariates cannot be used, the arguments do not define a grid, or a package of the extra
            ``geo`` is missing.
        """
        check_is_fitted(self)
        grid = {"resolution": resolution, "bounds": bounds, "template": template, "x": x, "y": y}
        if points is not None:
            for name, value in grid.items():
                if value is not None:
                    raise InvalidInputError(f"predict of Kriging takes points or a map, and not points and {name}.")
            layers = None if covariates is None else self._layers(covariates)
            return self._at(points, layers, return_std, include_noise)
        layers = self._layers(covariates)
        if layers and resolution is None and template is None and x is None and y is None:
            grid["template"] = covariates[self._names[0]] if isinstance(covariates, Mapping) else covariates
        raster = Raster.of(self.places, **grid)
        needed("xarray", "A map")
        self.places.require_plausible_points(raster.corners())
        mean, std = self._predicted(
            raster.n_cells,
            lambda cells: _at_cells(self.places, raster.points(cells), layers),
            include_noise=include_noise,
            job="map",
        )
        missing = int(np.isnan(mean.reshape(raster.n_cells, -1)[:, 0]).sum())
        if missing == raster.n_cells:
            raise InvalidInputError(
                f"No cell of the map of Kriging has a value of {' and '.join(self._names)} in its raster."
            )
        if missing:
            what = f"{missing:,} of {raster.n_cells:,} cells"
            warn(f"{what} have no value of {' or '.join(self._names)}, and none in the map.", GigaGPWarning)
        return raster.dataset(self._each({"mean": mean, "std": std}), self._attributes("at the centres of cells"))

    def _layers(self, covariates: Any) -> list[Layer]:
        """Return the rasters of the covariates of a map."""
        if self._names and covariates is None:
            names = ", ".join(self._names)
            raise InvalidInputError(f"A map of Kriging with the covariates {names} needs their rasters, as covariates.")
        return [] if covariates is None else layers_of(covariates, self._names, self.places)

    def _at(self, points: Any, layers: Sequence[Layer] | None, return_std: bool | None, include_noise: bool) -> Any:
        """Return what is predicted at points."""
        where = self.places.moved(points)
        self.places.require_plausible_points(where)
        X = _inputs(self.places, where, points, self._names, layers)
        wants_table = return_std is None and self._answers_tables and is_table(points)
        options = {"include_noise": include_noise, "return_std": wants_table or bool(return_std)}
        found = self._predicted(len(X), X.__getitem__, job="prediction", **options)
        if wants_table:
            return with_columns(points, self._each({"mean": found[0], "std": found[1]}))
        return tuple(found) if return_std else found[0]

    def _predicted(
        self,
        count: int,
        inputs: Callable[[slice], np.ndarray],
        *,
        include_noise: bool,
        return_std: bool = True,
        job: str,
    ) -> np.ndarray:
        """Return means, and standard deviations, of points as rows, block by block; NaN where an input is NaN."""
        found = np.full((2 if return_std else 1, count, *self.values.shape[1:]), np.nan)
        with meter_for(self.gp.verbose, job=job) as meter:
            meter.phase("predicting", count, unit="point", then=0.0)
            for first in range(0, count, _BLOCK):
                rows = np.arange(first, min(first + _BLOCK, count))
                X = inputs(slice(first, first + len(rows)))
                known = np.isfinite(X).all(1)
                if known.any():
                    answer = self.gp.predict(X[known], return_std=return_std, include_noise=include_noise)
                    found[:, rows[known]] = answer if return_std else (answer,)
                meter.reached(first + len(rows))
        return found

    def score(self, frame: Any, target: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination of the means at rows, given as for `fit`."""
        values = column(frame, target) if isinstance(target, str) else intake.targets(target)
        return float(r2_score(values, self.predict(frame, return_std=False), sample_weight=sample_weight))

    @checks_arguments
    def block_means(
        self,
        cells: Any = None,
        *,
        resolution: Any = None,
        bounds: Any = None,
        template: Any = None,
        covariates: Any = None,
        n_points: Count = 4,
    ) -> Any:
        """Return means of the latent function over cells or polygons, with their standard deviations.

        When to use: for the mean over an area, such as the ore grade of a block or the rainfall of a basin. Its
        standard deviation is smaller than that at a point, because errors within the area partly cancel. This is block
        kriging. `Kriging.predict` gives values at the centres of cells.

        Parameters
        ----------
        cells : GeoDataFrame or GeoSeries of polygons, optional
            In the reference system of the rows, or in another known one.
        resolution, bounds, template
            As for `predict`, instead of ``cells``; centres must be evenly spaced.
        covariates
            Rasters as for `predict`, which must have values everywhere in the cells.
        n_points : int
            Points along each side of a cell, or of the bounds of a polygon, at which the function is evaluated. Use
            more if a lengthscale is shorter than a cell.

        Returns
        -------
        GeoDataFrame or xarray.Dataset
            Columns ``mean`` and ``std`` beside the geometries, or a map as from `predict`.

        Raises
        ------
        InvalidInputError
            As for `predict`; also if the fit has a target transform, whose function is not normal.
        """
        check_is_fitted(self)
        self._require_one("block_means")
        layers = self._layers(covariates)

        def inputs(points: np.ndarray) -> np.ndarray:
            X = _at_cells(self.places, points.reshape(-1, 2), layers)
            if not np.isfinite(X).all():
                raise InvalidInputError("The covariates of Kriging have no value in a part of a block.")
            return X.reshape(*points.shape[:-1], -1)

        on_sphere = self.places.is_geographic
        if cells is None:
            raster = Raster.of(self.places, resolution, bounds, template)
            needed("xarray", "A map")
            low, high = raster.cells()
            mean, std = means_of_cells(self.gp, inputs, low, high, n_points, is_geographic=on_sphere)
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
        mean, std = means_of_polygons(self.gp, inputs, moved, n_points, is_geographic=on_sphere)
        return geopandas.GeoDataFrame({"mean": mean, "std": std}, geometry=polygons, index=polygons.index)

    def _attributes(self, where: str) -> dict[str, dict[str, str]]:
        words = {"mean": "mean", "std": "standard deviation"}
        return {
            self._name(role, target): {"long_name": f"{word} of {target} {where}"}
            for role, word in words.items()
            for target in self._targets
        }

    def _name(self, role: str, target: str) -> str:
        """Return the name of a column for a measurement: of several it says which."""
        return role if self.values.ndim == 1 else f"{role}_{target}"

    def _each(self, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return columns (n,) by name, of which several measurements have one each."""
        if self.values.ndim == 1:
            return columns
        return {
            self._name(role, target): values[:, number]
            for role, values in columns.items()
            for number, target in enumerate(self._targets)
        }

    def _require_one(self, method: str) -> None:
        """Refuse several measurements where one is meant."""
        if self.values.ndim > 1:
            msg = f"{method} of Kriging is for one measurement; this model has {len(self._targets)}. Fit one of them."
            raise InvalidInputError(msg)

    def variogram(
        self,
        *,
        n_bins: Count = 15,
        max_distance: Positive | None = None,
        estimator: Literal["matheron", "cressie"] = "matheron",
        max_rows: Count = 2000,
        random_state: RandomState = 0,
    ) -> Variogram:
        """Return the empirical variogram of the measurements, and that of the model for the same pairs.

        A linear mean, including that of covariates, is subtracted first: the variogram is that of the part that the
        kernel and the noise describe. Arguments are those of `gigagp.geo.variogram`; distances are great-circle
        distances in km where coordinates are degrees.

        Raises
        ------
        InvalidInputError
            If an argument is invalid; or if the noise varies between rows or the target was transformed, so that the
            model has no variogram of the measurements.
        """
        check_is_fitted(self)
        self._require_one("variogram")
        gp = self.gp
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
            kernel=_each_leaf(gp.kernel_, _on_places) if self._names else gp.kernel_,
            noise_variance=float(noise),
            max_rows=max_rows,
            random_state=random_state,
        )

    def _trend(self) -> np.ndarray:
        """Return the learned mean at the rows, in the target's units."""
        posterior, scaling = self.gp.posterior_, self.gp.scaling_
        X = self._inputs
        points = torch.from_numpy(scaling.inputs(X)).to(dtype=posterior.dtype, device=posterior.device)
        trend: np.ndarray = scaling.original(posterior.trend(points).double().cpu().numpy())[:, 0]
        return trend + posterior.model.mean.offset(X)

    def leave_one_out(self) -> Any:
        """Return a table of the rows, each predicted from all others.

        Returns
        -------
        GeoDataFrame or dict of str to ndarray
            ``observed``, ``mean`` and ``std`` of the measurement given the others, ``residual`` (observed - mean) and
            ``standardized``, the residual divided by the standard deviation, and the places. Without geopandas a
            dictionary of these columns, with ``x`` and ``y``.

        Raises
        ------
        InvalidInputError
            As for `gigagp.GPRegressor.leave_one_out`.
        """
        check_is_fitted(self)
        found = self.gp.leave_one_out()
        return self._table(found.mean, found.std)

    def cross_validate(self, cv: Any = None) -> CrossValidation:
        """Predict the rows of each fold from a model that is fitted to the other rows.

        When to use: to see how good a map is away from the places. `leave_one_out` keeps the hyperparameters of all
        rows, and each place keeps its neighbours.

        Parameters
        ----------
        cv : int or splitter of scikit-learn, optional
            A number of folds, each of whole blocks as in `gigagp.geo.BlockKFold`; or ``BlockKFold(block_size=...)``, or
            any other splitter. None: five such folds.

        Returns
        -------
        CrossValidation
            ``table`` with a row for each place, scores, and ``plot()``.

        Raises
        ------
        InvalidInputError
            If rows are in no fold or in several, there are too few blocks, or a fold cannot be fitted.
        """
        check_is_fitted(self)
        self._require_one("cross_validate")
        splitter = _splitter(cv)
        rows = self.places if isinstance(splitter, BlockKFold) else self._inputs
        folds = list(splitter.split(rows, self.values))
        tested = [np.asarray(test) for _, test in folds]
        if not np.array_equal(np.sort(np.concatenate(tested)), np.arange(len(self.values))):
            msg = f"cv of Kriging.cross_validate must leave each row out once; got {splitter!r}."
            raise InvalidInputError(msg)
        parts = []
        with meter_for(self.gp.verbose, job="cross-validation") as meter:
            meter.phase("folds", len(folds), unit="fold", then=0.0)
            for train, test in folds:
                gp = self._model(self.places, len(self._names)).fit(self._inputs[train], self.values[train])
                parts.append(predicted(gp, self._inputs[test], self.values[test]))
                meter.step()
        found = joined(parts, tested)
        fold = np.empty(len(self.values), dtype=np.int64)
        for number, test in enumerate(tested):
            fold[test] = number
        return CrossValidation(self._table(found.mean, found.std, fold=fold), found, self.places, self.target)

    def _table(self, mean: np.ndarray, std: np.ndarray, **further: np.ndarray) -> Any:
        """Return a table of the rows beside what was predicted of their measurements."""
        residual = self.values - mean
        columns = {
            "observed": self.values,
            "mean": mean,
            "std": std,
            "residual": residual,
            "standardized": residual / std,
        }
        columns = {**self._each(columns), **further}
        x, y = self.places.X.T
        try:
            import geopandas
        except ImportError:
            return {**columns, "x": x, "y": y}
        return geopandas.GeoDataFrame(columns, geometry=geopandas.points_from_xy(x, y), crs=self.places.crs)

    def plot(self, maps: Any, path: str | PathLike[str] | None = None) -> Any:
        """Draw a map of `predict`: its mean with the measurements, and its standard deviation.

        Parameters
        ----------
        maps : xarray.Dataset
            Map returned by `predict` or `block_means`.
        path : str or path, optional
            File for the picture: PNG, PDF or SVG. None: the figure is shown as pyplot shows figures.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        InvalidInputError
            If matplotlib is not installed, or the file cannot be written.
        """
        check_is_fitted(self)
        self._require_one("plot")
        return draw_maps(maps, self.places, self.values, self.target, path)

    def __repr__(self) -> str:
        """Return the state in words."""
        if not hasattr(self, "gp"):
            return super().__repr__()
        where = "" if self.places.crs is None else f" in {system_name(self.places.crs)}"
        tried = [] if self.gp.kernel_choice_ is None else self.gp.kernel_choice_.tried
        mixed = sum(one.weight > 0 for one in tried) - 1
        others = f", averaged with {mixed} other kernel{'s' * (mixed > 1)}" if mixed > 0 else ""
        return f"Kriging of {self.target!r} at {len(self.values):,} places{where}: {self.gp.kernel_!r}{others}"


def _splitter(cv: Any) -> Any:
    """Return what makes the folds of a cross-validation."""
    if cv is None or isinstance(cv, int):
        return BlockKFold(5 if cv is None else cv)
    try:
        return check_cv(cv)
    except ValueError:
        msg = f"cv of Kriging.cross_validate must be a number of folds or a splitter of scikit-learn; got {cv!r}."
        raise InvalidInputError(msg) from None


def _measurements(frame: Any, target: Any, n_rows: int) -> tuple[bool, list[str], np.ndarray]:
    """Return whether columns of a table are named, the names of the measurements, and their values (n,) or (n, k).

    Of several, NaN is one that was not made.
    """
    several = isinstance(target, list | tuple) and bool(target) and all(isinstance(name, str) for name in target)
    if several and (is_table(frame) or len(target) != n_rows):
        names = [str(name) for name in target]
        if len(set(names)) < len(names):
            raise InvalidInputError(f"target of Kriging must name different columns; got {names}.")
        values = np.stack([column(frame, name, finite=len(names) == 1) for name in target], 1)
        return True, names, observed_cells(values, n_rows, "target") if len(names) > 1 else values[:, 0]
    if isinstance(target, str) or np.ndim(target) == 0:
        return True, [str(target)], column(frame, target)
    values = observed_cells(target, n_rows, "target")
    if values.ndim == 2 and values.shape[1] > 1:
        return False, intake.frame_names(target) or [str(number) for number in range(values.shape[1])], values
    name = str(getattr(target, "name", None) or "the target")
    return False, [name], intake.targets(target, n_rows, "target").reshape(-1)


def _inputs(
    places: Places, where: np.ndarray, table: Any, names: Sequence[str], layers: Sequence[Layer] | None
) -> np.ndarray:
    """Return the inputs of a model at the places of a table, with covariates of the table or else of rasters."""
    extra = beside(table, names, len(where)) if layers is None else sampled(layers, where)
    return np.concatenate([places.continuous(where), extra], 1)


def _at_cells(places: Places, points: np.ndarray, layers: Sequence[Layer]) -> np.ndarray:
    """Return the inputs of a model at points (m, 2), with NaN where a raster has no value."""
    return np.concatenate([places.continuous(points), *(layer.at(points)[:, None] for layer in layers)], 1)


def _each_leaf(kernel: Kernel, change: Callable[[Any], Kernel]) -> Kernel:
    """Return a kernel with its elementary parts changed."""
    if isinstance(kernel, Composite):
        parts = arguments_of(kernel).items()
        return rebuilt(kernel, {name: _each_leaf(part, change) for name, part in parts})
    return change(kernel)


def _of_places(kernel: Any) -> Kernel:
    """Return an elementary kernel of the two coordinates, unless it says of which columns it is."""
    takes_all = "columns" in arguments_of(kernel) and kernel.columns is None
    return rebuilt(kernel, {"columns": [0, 1]}) if takes_all else kernel


def _on_places(kernel: Any) -> Kernel:
    """Return a fitted elementary kernel for tables of the coordinates alone."""
    if not set(kernel.active_columns) <= {0, 1}:
        msg = f"variogram of Kriging needs a kernel of the places alone; got {kernel!r}, which sees covariates too."
        raise InvalidInputError(msg)
    return kernel.on_columns([0, 1])
