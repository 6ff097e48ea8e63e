"""Kriging at points: from a GeoDataFrame of measurements to one of predictions, and the same with arrays.

pip install "gigagp[geo]"
python examples/krige_points.py
"""

import geopandas
import numpy as np

from gigagp.geo import Kriging

source = np.random.default_rng(0)
lon, lat = source.uniform(5, 15, 200), source.uniform(45, 52, 200)
rain = 900 + 150 * np.sin(lon / 1.5) * np.cos(lat) + 20 * source.normal(size=200)
stations = geopandas.GeoDataFrame({"rain": rain}, geometry=geopandas.points_from_xy(lon, lat), crs="EPSG:4326")
towns = geopandas.GeoDataFrame(
    {"town": ["Bern", "Ulm"]}, geometry=geopandas.points_from_xy([7.45, 9.99], [46.95, 48.4])
)

print(Kriging().fit(stations, "rain").predict(towns))  # the table with the columns mean and std
mean, std = Kriging(crs="EPSG:4326").fit(np.c_[lon, lat], rain).predict([[7.45, 46.95], [9.99, 48.4]], return_std=True)
print(mean.round(), std.round())
