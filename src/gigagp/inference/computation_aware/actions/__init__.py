"""Actions: linear combinations of the rows on which computation-aware inference conditions, and their policies."""

from gigagp.inference.computation_aware.actions.base import Actions, LearnableActions
from gigagp.inference.computation_aware.actions.block import BlockActions, balanced_bounds
from gigagp.inference.computation_aware.actions.dense import DenseActions, RowActions
from gigagp.inference.computation_aware.actions.information import (
    grassmann_distance,
    largest_mutual_information,
    mutual_information,
    posterior_entropy,
)
from gigagp.inference.computation_aware.actions.policies import (
    Choice,
    ConjugateGradients,
    Lanczos,
    Learned,
    Policy,
    PseudoInputs,
    Random,
    SequentialPolicy,
    TopEigenvectors,
    UnitVectors,
)
from gigagp.inference.computation_aware.actions.sequence import Sequence, Stop

__all__ = [
    "Actions",
    "BlockActions",
    "Choice",
    "ConjugateGradients",
    "DenseActions",
    "Lanczos",
    "LearnableActions",
    "Learned",
    "Policy",
    "PseudoInputs",
    "Random",
    "RowActions",
    "Sequence",
    "SequentialPolicy",
    "Stop",
    "TopEigenvectors",
    "UnitVectors",
    "balanced_bounds",
    "grassmann_distance",
    "largest_mutual_information",
    "mutual_information",
    "posterior_entropy",
]
