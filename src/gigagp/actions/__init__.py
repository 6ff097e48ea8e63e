"""Actions: linear combinations of the rows on which computation-aware inference conditions, and their policies."""

from gigagp.actions.base import Actions, LearnableActions
from gigagp.actions.block import BlockActions, balanced_bounds
from gigagp.actions.dense import DenseActions, RowActions
from gigagp.actions.information import (
    grassmann_distance,
    largest_mutual_information,
    mutual_information,
    posterior_entropy,
)
from gigagp.actions.policies import (
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
from gigagp.actions.sequence import Sequence, Stop

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
