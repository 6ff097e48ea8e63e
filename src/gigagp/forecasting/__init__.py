"""Forecasts of time series, by models chosen by how well they forecast; start with `gigagp.forecast`."""

from gigagp.forecasting.choice import Chosen, Tried
from gigagp.forecasting.door import forecast
from gigagp.forecasting.result import Band, Forecast, Forecasts

__all__ = ["Band", "Chosen", "Forecast", "Forecasts", "Tried", "forecast"]
