"""Pictures of fitted models; matplotlib is an optional extra (``pip install "gigagp[plot]"``).

Every function takes a fitted model and draws on given axes, or on those of a new figure; `GPRegressor.plot` chooses
the picture by the number of inputs. The functions with ``values`` in their names return the numbers of a picture.
"""

from gigagp.plots.checks import calibration, residuals
from gigagp.plots.classes import confusion, reliability
from gigagp.plots.curves import curve
from gigagp.plots.dependence import PartialDependence, partial_dependence, partial_dependence_values
from gigagp.plots.front import plot
from gigagp.plots.importance import Relevance, relevance, relevance_values
from gigagp.plots.maps import MapValues, map_values
from gigagp.plots.measured import Predicted, predicted
from gigagp.plots.surfaces import surface

__all__ = [
    "MapValues",
    "PartialDependence",
    "Predicted",
    "Relevance",
    "calibration",
    "confusion",
    "curve",
    "map_values",
    "partial_dependence",
    "partial_dependence_values",
    "plot",
    "predicted",
    "relevance",
    "relevance_values",
    "reliability",
    "residuals",
    "surface",
]
