"""Maps: kriging of points with a coordinate reference system; the extra ``geo`` installs what it needs.

Example
-------
::

    from gigagp import geo

    model = geo.Kriging().fit(stations, "rain")  # a GeoDataFrame of points
    model.predict(towns)  # a GeoDataFrame too: with the columns mean and std
    maps = model.predict(resolution=0.1)  # an xarray.Dataset: mean and std
    maps["mean"].rio.to_raster("rain.tif")

`Variogram` and `variogram` need nothing beyond the default install.
"""

from gigagp.geo.kriging import Kriging
from gigagp.geo.validation import BlockKFold, CrossValidation
from gigagp.geo.variograms import Variogram, variogram

__all__ = ["BlockKFold", "CrossValidation", "Kriging", "Variogram", "variogram"]
