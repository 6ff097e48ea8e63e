"""Forecasts of series in time, by models that are chosen on the future; `gigagp.forecast` is the door."""

from gigagp.forecasting.choice import Chosen, Tried
from gigagp.forecasting.door import forecast
from gigagp.forecasting.result import Band, Forecast, Forecasts

__all__ = ["Band", "Chosen", "Forecast", "Forecasts", "Tried", "forecast"]
