"""The choice of the last stage of a fit, once its hyperparameters are known, by a forecast of error and time."""

from gigagp.inference.automatic.inference import Automatic

__all__ = ["Automatic"]
