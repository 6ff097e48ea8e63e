"""Regression kriging: a map of temperatures that follows a raster of elevations, as a GeoTIFF and a picture.

pip install "gigagp[geo,plot]"
python examples/krige_covariates.py
"""

import numpy as np
import xarray

from gigagp.geo import Kriging

y, x = np.arange(5_249_500, 5_200_000, -1000.0), np.arange(400_500, 460_000, 1000.0)  # rows from north to south
hills = 800 + 600 * np.sin(x[None] / 9000) * np.cos(y[:, None] / 7000)
elevation = xarray.DataArray(hills, {"y": y, "x": x}, ("y", "x"))
source = np.random.default_rng(0)
places = source.uniform([400_000, 5_200_000], [460_000, 5_250_000], (120, 2))
heights = 800 + 600 * np.sin(places[:, 0] / 9000) * np.cos(places[:, 1] / 7000)
temperature = 15 - 0.0065 * heights + np.sin(places[:, 0] / 15_000) + 0.3 * source.normal(size=120)

model = Kriging(covariates=["elevation"], crs="EPSG:32633").fit(places, temperature, covariates=elevation)
maps = model.predict(covariates=elevation)  # its cells; resolution= or template= would give others
maps["mean"].rio.to_raster("temperature.tif")
model.plot(maps, "temperature.png")
