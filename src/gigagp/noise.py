"""The start of the noise variance in a fit, and the decision whether it is learned."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gigagp.checks import known_noise
from gigagp.kernels import Constant, Kernel, White


def start_noise(noise_variance: Any, kernel: Kernel, n_rows: int) -> torch.Tensor | None:
    """Return the noise variance at the start of a fit, in addition to that of the kernel.

    If only the sum of two variances has a meaning, they cannot both be learned. A `White` term of the kernel therefore
    represents all noise, unless ``noise_variance`` is given too.

    Parameters
    ----------
    noise_variance : float, array-like of shape (n_rows,) or None
        The argument of `GPRegressor`.
    kernel : Kernel
    n_rows : int

    Returns
    -------
    Tensor of shape () or (n_rows,), or None
        0: the variance stays fixed at zero. None: none was given, and it is initialised from the data.

    Raises
    ------
    InvalidInputError
        If the argument is none of these, or 0 without a `White` term, because nothing would then bound the condition
        number of the kernel matrix.
    """
    if has_white_term(kernel) and (noise_variance is None or (np.ndim(noise_variance) == 0 and noise_variance == 0)):
        return torch.zeros((), dtype=torch.float64)
    return known_noise(noise_variance, n_rows)


def has_white_term(kernel: Kernel) -> bool:
    """Whether the kernel adds the same white noise to every row; `White` times a function of the inputs does not."""
    return any(
        any(leaf.is_white for leaf in term) and all(isinstance(leaf, White | Constant) for leaf in term)
        for term in kernel.terms()
    )
