"""The step rules of sparse ascent: AdaGrad, Adam and plain gradient ascent of the entries that a step sampled."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gigagp.optimization.sampled import Place
from gigagp.optimization.sparse_ascent import USUAL_STEPS, SparseAscent
from gigagp.settings.fields import Count, Positive, PositiveShare, ShareBelowOne


@dataclass(frozen=True)
class SparseAdaGrad(SparseAscent):
    """AdaGrad that touches only the sampled entries (Duchi, Hazan and Singer 2011), as in Evans and Nair 2020.

    Every entry has its own learning rate, divided by the root of the sum of its squared gradients. An entry that is not
    sampled costs nothing, so the cost of a step does not depend on the number of entries.

    When to use: to reproduce the paper. `SparseAdam` gets further in the same number of steps.

    Parameters
    ----------
    learning_rate : float, default 0.1
        The largest first step of any entry, in prior standard deviations of the weight; for an entry of a dense column,
        in these over the root of the number of functions.
    steps : int or None, default None
        None: as many as gain something (`gigagp.optimization.sparse_ascent`). Where all rows and functions can be used
        at once, there are no steps: the optimum is computed, as with ``optimizer="auto"``.
    final_share : float, default 0.01
        Learning rate of the last step as a share of the first. The rate falls exponentially, or without a number of
        steps each time that nothing is gained.
    hyper_learning_rate : float, default 1e-3
        Step of Adam in the logarithms of the hyperparameters (variances as standard deviations); 0 keeps them.
    hyper_start : float, default 0.1
        Share of the steps (of 5,000 without a number of steps) before the hyperparameters move.
    tail_share : float, default 0.25
        Share of the steps, the last ones, whose mean is the result (without a number of steps: those at the last rate).
        0: the result is that of the last step. Steps on samples end in a cloud about the optimum, whose centre is
        nearer to it.
    epsilon : float, default 1e-10
        Added to the roots.

    References
    ----------
    https://jmlr.org/papers/v12/duchi11a.html; Evans and Nair 2020, "Quadruply stochastic Gaussian processes",
    arXiv:2006.03015, section 6 (its rates are 0.1 and 1e-5).
    """

    epsilon: Positive = 1e-10

    def direction(self, gradient: Tensor, name: str, place: Place, state: dict[str, Tensor]) -> Tensor:
        """Return the gradient over the root of the sum of squares."""
        squares = place.read(state[name]) + gradient.square()
        place.write(state[name], squares)
        return gradient / (squares.sqrt() + self.epsilon)

    def start_state(self, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: torch.zeros_like(value) for name, value in arrays.items()}


@dataclass(frozen=True)
class SparseAdam(SparseAscent):
    """Adam that touches only the sampled entries: the averages of an entry move when it is drawn.

    Where many functions move together, the first steps overshoot, and AdaGrad never forgets their large gradients, so
    it is slow from then on. The averages of Adam do forget them. Steps are short during the warm-up, when the averages
    do not know the scale of the gradients yet.

    When to use: ``optimizer="auto"`` ends with it for `gigagp.inference.QuadruplyStochastic`. Construct it for another
    number of steps.

    Parameters
    ----------
    learning_rate : float, default 0.01
        The largest step of any entry, in prior standard deviations of the weight; for an entry of a dense column, in
        these over the root of the number of functions. From a mean of zero (``start_rows=0``) 0.05 is quicker; a good
        start would be lost in the first steps of that length.
    steps : int or None, default None
        As for `SparseAdaGrad`.
    final_share : float, default 0.03
        Learning rate of the last step as a share of the largest. The rate falls exponentially, or without a number of
        steps each time that nothing is gained.
    hyper_learning_rate, hyper_start, tail_share
        As for `SparseAdaGrad`.
    beta1, beta2 : float, default 0.95 and 0.99
        Weights of earlier gradients in the averages, counted in an entry's own draws.
    warm_up : float, default 0.05
        Share of the steps (of 5,000 without a number of steps) in which the learning rate rises linearly to its
        largest.
    epsilon : float, default 1e-10

    References
    ----------
    Kingma and Ba 2015, https://arxiv.org/abs/1412.6980. The warm-up takes the place of the correction of the averages'
    starts, and the averages of the squares start at the first square.
    """

    learning_rate: Positive = 0.01
    steps: Count | None = None
    final_share: PositiveShare = 0.03
    beta1: ShareBelowOne = 0.95
    beta2: ShareBelowOne = 0.99
    warm_up: ShareBelowOne = 0.05
    epsilon: Positive = 1e-10

    def rate(self, step: int) -> float:
        rising = self.warm_up * (self.steps or USUAL_STEPS)
        return super().rate(step) * (min(1.0, step / rising) if rising else 1.0)

    def direction(self, gradient: Tensor, name: str, place: Place, state: dict[str, Tensor]) -> Tensor:
        """Return the average gradient over the root of the average square."""
        firsts, seconds = state[f"first.{name}"], state[f"second.{name}"]
        # An index can be touched because of another array: entries without a gradient stay as they are.
        drawn, known, before = gradient != 0, place.read(firsts), place.read(seconds)
        square = gradient.square()
        second = torch.where(before == 0, square, torch.lerp(square, before, self.beta2))
        first = torch.lerp(gradient, known, self.beta1)
        place.write(firsts, torch.where(drawn, first, known))
        place.write(seconds, torch.where(drawn, second, before))
        return torch.where(drawn, first / (second.sqrt() + self.epsilon), 0.0)

    def start_state(self, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            f"{kind}.{name}": torch.zeros_like(value) for kind in ("first", "second") for name, value in arrays.items()
        }


@dataclass(frozen=True)
class SparseSGD(SparseAscent):
    """Plain stochastic gradient ascent that touches only the sampled entries; it keeps no state.

    When to use: to study convergence. The learning rate must suit the problem: below two over the largest curvature.

    Parameters
    ----------
    learning_rate, steps, final_share, hyper_learning_rate, hyper_start, tail_share
        As for `SparseAdaGrad`.
    """

    learning_rate: Positive = 1e-4

    def direction(self, gradient: Tensor, name: str, place: Place, state: dict[str, Tensor]) -> Tensor:
        return gradient

    def start_state(self, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        return {}
