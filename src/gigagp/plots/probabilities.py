"""Probabilities of a class, from means and standard deviations of the latent functions of a classifier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.special import ndtri
from scipy.stats import qmc

from gigagp.model.likelihoods import Logistic, Probit

#: Base-two logarithm of the number of joint values of several latent functions; numbers held at a time.
_LOG2_DRAWS, _NUMBERS = 9, 4_000_000
#: Nodes for the second moment of a probability.
_NODES = 64
#: Smallest probability, as in `GPClassifier`.
_LEAST = 1e-300


class ClassProbability:
    """The probability of a class as a random function, because the latent functions are not known exactly.

    For more than two classes, the probabilities of one against the rest are scaled to sum to one, as
    `GPClassifier.predict_proba` does, and the latent functions are independent, as in the fit.

    Parameters
    ----------
    likelihood : Logistic or Probit
        Probability of a class given its latent function.
    target : int
        Number of the latent function of the class.
    """

    def __init__(self, likelihood: Logistic | Probit, target: int) -> None:
        self.likelihood, self.target = likelihood, target

    def means(self, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
        """Return probabilities averaged over the latent functions, as `GPClassifier.predict_proba` has them.

        Parameters
        ----------
        mean, std : ndarray of shape (m,) or (m, n_classes)
            Of the latent functions.

        Returns
        -------
        ndarray of shape (m,) or (m, n_classes)
        """
        found = self.likelihood.mean_probability(torch.from_numpy(mean), torch.from_numpy(std)).clamp_min(_LEAST)
        return (found if mean.ndim == 1 else found / found.sum(1, keepdim=True)).numpy()

    def stds(self, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
        """Return standard deviations of the probability of the class, shape (m,)."""
        if mean.ndim == 1:
            places, weights = np.polynomial.hermite_e.hermegauss(_NODES)
            values = self._of(mean[:, None] + std[:, None] * places)
            weights = weights / weights.sum()
            centre = values @ weights
            spread: np.ndarray = np.sqrt((values - centre[:, None]) ** 2 @ weights)
            return spread
        return np.concatenate([part.std(1) for part in self._draws(mean, std)])

    def quantiles(self, mean: np.ndarray, std: np.ndarray, levels: Sequence[float]) -> np.ndarray:
        """Return quantiles of the probability of the class, shape (m, len(levels)); exact for two classes."""
        if mean.ndim == 1:
            return self._of(mean[:, None] + std[:, None] * ndtri(np.asarray(levels)))
        return np.concatenate([np.quantile(part, levels, axis=1).T for part in self._draws(mean, std)])

    def of_samples(self, values: np.ndarray) -> np.ndarray:
        """Return the probability of the class, (m, s), in samples of the latent functions, (m, s) or (m, K, s)."""
        found = self._of(values)
        return found if values.ndim == 2 else found[:, self.target] / found.sum(1)

    def _draws(self, mean: np.ndarray, std: np.ndarray) -> list[np.ndarray]:
        """Return the probability of the class, (m, s), at the same joint values of the functions at each point."""
        count = mean.shape[1]
        # Evenly spread instead of random, and the same at each point: curves of quantiles have no jitter.
        values = ndtri(qmc.Sobol(count, rng=np.random.default_rng(0)).random_base2(_LOG2_DRAWS)).T  # (K, s)
        step = max(1, _NUMBERS // values.size)
        return [
            self.of_samples(mean[start : start + step, :, None] + std[start : start + step, :, None] * values)
            for start in range(0, len(mean), step)
        ]

    def _of(self, latent: np.ndarray) -> np.ndarray:
        return self.likelihood.probability(torch.from_numpy(np.asarray(latent))).clamp_min(_LEAST).numpy()
