"""Exact inference for one input in linear time: a Kalman filter over the states of a kernel."""

from gigagp.inference.markov.inference import Markov

__all__ = ["Markov"]
