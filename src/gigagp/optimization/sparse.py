"""The step rules of sparse ascent: AdaGrad, Adam and plain gradient ascent of the entries that a step sampled."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.fields import Count, Positive, PositiveShare, ShareBelowOne
from gigagp.optimization.sparse_ascent import USUAL_STEPS, SparseAscent


@dataclass(frozen=True)
class SparseAdaGrad(SparseAscent):
    """AdaGrad that touches only what a step sampled (Duchi, Hazan and Singer 2011), as Evans and Nair 2020 have it.

    Every number has a learning rate of its own, over the root of the squared gradients that it has seen. An entry that
    is not sampled costs nothing, so neither a step nor its state depends on how many there are.

    When to use: to do as the paper does. `SparseAdam` gets further in the same number of steps.

    Parameters
    ----------
    learning_rate : float, default 0.1
        The largest first step of any number, in units of its prior standard deviation; for an entry of a dense column,
        of that over the root of the number of functions.
    steps : int or None, default None
        None: as many as gain something (`gigagp.optimization.plateau`): none where all rows and functions can be used
        at once, and the optimum is computed as with ``optimizer="auto"``.
    final_share : float, default 0.01
        Learning rate of the last step as a share of the first; it falls exponentially, or without a number of steps
        each time that nothing is gained.
    hyper_learning_rate : float, default 1e-3
        Step of Adam in the logarithms of the hyperparameters (variances as standard deviations); 0 keeps them.
    hyper_start : float, default 0.1
        Share of the steps (without their number: of 5,000) that pass before the hyperparameters move.
    tail_share : float, default 0.25
        Share of the steps, the last ones, whose mean is the result (without their number: the steps at the last rate);
        0: the last step's is. Steps on samples end in a cloud about the optimum, whose middle is nearer to it.
    epsilon : float, default 1e-10
        Added to the roots.

    References
    ----------
    https://jmlr.org/papers/v12/duchi11a.html; Evans and Nair 2020, "Quadruply stochastic Gaussian processes",
    arXiv:2006.03015, section 6 (its rates are 0.1 and 1e-5).
    """

    epsilon: Positive = 1e-10

    def direction(self, gradient: Tensor, name: str, index: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Return the gradient over the root of accumulated squares."""
        squares = state[name][index] + gradient.square()
        state[name][index] = squares
        return gradient / (squares.sqrt() + self.epsilon)

    def start_state(self, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return zeros."""
        return {name: torch.zeros_like(value) for name, value in arrays.items()}


@dataclass(frozen=True)
class SparseAdam(SparseAscent):
    """Adam that touches only what a step sampled: an entry's averages move when it is drawn.

    AdaGrad never forgets the large gradients of its first steps, which overshoot where many functions move together,
    and is slow from then on. The averages here forget them. As long as a step knows nothing of the scale, it is short.

    When to use: it is what ``optimizer="auto"`` ends with for `gigagp.inference.QuadruplyStochastic`; construct it for
    another number of steps.

    Parameters
    ----------
    learning_rate : float, default 0.01
        The largest step of any number, in units of its prior standard deviation; for an entry of a dense column, of
        that over the root of the number of functions. From a mean of zero
        (``start_rows=0``) 0.05 is quicker; from a good start it is lost in the first steps.
    steps : int or None, default None
        As for `SparseAdaGrad`.
    final_share : float, default 0.03
        Learning rate of the last step as a share of the largest; it falls exponentially, or without a number of steps
        each time that nothing is gained.
    hyper_learning_rate, hyper_start, tail_share
        As for `SparseAdaGrad`.
    beta1, beta2 : float, default 0.95 and 0.99
        Weights of the past in the averages, counted in an entry's own draws.
    warm_up : float, default 0.05
        Share of the steps (without their number: of 5,000) in which the learning rate rises to its largest, linearly.
    epsilon : float, default 1e-10

    References
    ----------
    Kingma and Ba 2015, https://arxiv.org/abs/1412.6980, without the correction of the averages' starts: the warm-up is
    in its place, and the averages of the squares start at the first square.
    """

    learning_rate: Positive = 0.01
    steps: Count | None = None
    final_share: PositiveShare = 0.03
    beta1: ShareBelowOne = 0.95
    beta2: ShareBelowOne = 0.99
    warm_up: ShareBelowOne = 0.05
    epsilon: Positive = 1e-10

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 1, as a share of the largest."""
        rising = self.warm_up * (self.steps or USUAL_STEPS)
        return super().rate(step) * (min(1.0, step / rising) if rising else 1.0)

    def direction(self, gradient: Tensor, name: str, index: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Return the average gradient over the root of the average square."""
        firsts, seconds = state[f"first.{name}"], state[f"second.{name}"]
        # An index can be among the touched for the sake of another array: what has no gradient stays as it is.
        drawn, known, before = gradient != 0, firsts[index], seconds[index]
        square = gradient.square()
        second = torch.where(before == 0, square, torch.lerp(square, before, self.beta2))
        first = torch.lerp(gradient, known, self.beta1)
        firsts[index], seconds[index] = torch.where(drawn, first, known), torch.where(drawn, second, before)
        return torch.where(drawn, first / (second.sqrt() + self.epsilon), 0.0)

    def start_state(self, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return zeros."""
        return {
            f"{kind}.{name}": torch.zeros_like(value) for kind in ("first", "second") for name, value in arrays.items()
        }


@dataclass(frozen=True)
class SparseSGD(SparseAscent):
    """Plain stochastic gradient ascent that touches only what a step sampled; it keeps no state.

    When to use: to study convergence. Its learning rate has to fit the problem: below two over the largest curvature.

    Parameters
    ----------
    learning_rate, steps, final_share, hyper_learning_rate, hyper_start, tail_share
        As for `SparseAdaGrad`.
    """

    learning_rate: Positive = 1e-4

    def direction(self, gradient: Tensor, name: str, index: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Return the gradient."""
        return gradient

    def start_state(self, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return nothing."""
        return {}
