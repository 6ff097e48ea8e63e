"""Computation-aware inference (Wenger et al. 2024): settings, objective and posterior."""

from gigagp.inference.computation_aware.evidence import Evidence, Terms
from gigagp.inference.computation_aware.inference import ComputationAware, ComputationAwareObjective
from gigagp.inference.computation_aware.posterior import ComputationAwarePosterior
from gigagp.inference.computation_aware.recorded import RecordingMatrix

__all__ = [
    "ComputationAware",
    "ComputationAwareObjective",
    "ComputationAwarePosterior",
    "Evidence",
    "RecordingMatrix",
    "Terms",
]
