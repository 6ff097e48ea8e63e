"""Random Fourier features of whole kernel trees.

A kernel is multiplied out into a sum of products of leaves. Each leaf offers a random amplitude and phase with
``E[amplitude(x) amplitude(z) cos(phase(x) - phase(z))] = k(x, z)``; in a product of independent leaves amplitudes
multiply and phases add. The features of a term are then ``sqrt(1 / m) * amplitude * [sin phase, cos phase]``, and
those of a sum stand side by side (Rahimi and Recht 2007, Random features for large-scale kernel machines).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from gigagp.errors import InvalidInputError
from gigagp.kernels.base import Kernel
from gigagp.kernels.draws import FeatureDraw
from gigagp.kernels.elementary import Constant, Linear
from gigagp.kernels.leaf import Leaf
from gigagp.kernels.local_variance import LocalScale
from gigagp.kernels.outputs import Outputs

#: Kernels of finitely many functions, which are the columns of ``scale``.
_FINITE = (Linear, LocalScale, Outputs)


def _is_exact(term: tuple[Leaf, ...]) -> bool:
    """Whether a term has finitely many features: constants, times at most one kernel of finitely many functions."""
    others = [leaf for leaf in term if not isinstance(leaf, Constant)]
    return not others or (len(others) == 1 and isinstance(others[0], _FINITE))


def draw_features(kernel: Kernel, n_features: int, generator: torch.Generator, *, law: str = "balanced") -> FeatureDraw:
    """Draw the randomness of random Fourier features for a bound kernel; see `Kernel.draw_features`."""
    if n_features < 2 or n_features % 2:
        msg = f"n_features must be an even number, 2 or more (pairs of sine and cosine); got {n_features!r}."
        raise InvalidInputError(msg)
    if law not in {"balanced", "joint", "independent"}:
        raise InvalidInputError(f'law of random features must be "balanced", "joint" or "independent"; got {law!r}.')
    terms = kernel.correlated_terms()
    unknown = {type(leaf).__name__ for term in terms for leaf in term if not leaf.has_spectrum}
    if unknown:
        msg = f"Random features of {sorted(unknown)} are not known. Use exact prior samples or another kernel."
        raise InvalidInputError(msg)
    return FeatureDraw(
        n_features=n_features,
        law=law,
        terms=tuple(
            () if _is_exact(term) else tuple(leaf.draw_frequencies(n_features // 2, generator, law) for leaf in term)
            for term in terms
        ),
    )


def features(kernel: Kernel, X: Tensor, draw: FeatureDraw) -> Tensor:
    """Return the features of a bound kernel; see `Kernel.features`."""
    columns = [_columns(*wave) for wave in waves(kernel, X, draw)]
    return torch.cat(columns, dim=1) if columns else X.new_zeros(X.shape[0], 0)


def waves(kernel: Kernel, X: Tensor, draw: FeatureDraw) -> list[tuple[Tensor, Tensor | None]]:
    """Return for each term amplitudes, shape (n, m) or (1, m), and phases, shape (n, m).

    The features are amplitudes times sines and cosines of the phases, or the amplitudes where there are no phases.
    """
    m = draw.n_features // 2
    return [
        (_exact_features(term, X), None) if _is_exact(term) else _wave(term, X, drawn, m)
        for term, drawn in _drawn_terms(kernel, draw)
    ]


def feature_product(kernel: Kernel, X: Tensor, draw: FeatureDraw, weights: Tensor) -> Tensor:
    """Return ``features(kernel, X, draw) @ weights`` without forming the table of features.

    One column needs one wave for each frequency instead of two, since ``a sin p + b cos p = |(a, b)| sin(p + q)`` with
    the angle q of (a, b).
    """
    total = X.new_zeros(X.shape[0], weights.shape[1])
    for term in feature_products(kernel, X, draw, weights):
        total = total + term
    return total


def feature_products(kernel: Kernel, X: Tensor, draw: FeatureDraw, weights: Tensor) -> Iterator[Tensor]:
    """Iterate over the parts of `feature_product` for each of `Kernel.correlated_terms`, each of shape (n, s)."""
    start, m = 0, draw.n_features // 2
    for amplitude, phase in waves(kernel, X, draw):
        if phase is None:
            width = amplitude.shape[1]
            yield (amplitude @ weights[start : start + width]).expand(len(X), -1)
        else:
            width = 2 * m
            yield _wave_product(amplitude, phase, *weights[start : start + width].split(m))
        start += width


def _wave_product(amplitude: Tensor, phase: Tensor, of_sine: Tensor, of_cosine: Tensor) -> Tensor:
    """Return ``amplitude sin(phase) @ of_sine + amplitude cos(phase) @ of_cosine``."""
    if amplitude.shape[0] == 1:  # the same for all rows: there are fewer weights than waves
        of_sine, of_cosine, amplitude = of_sine * amplitude.T, of_cosine * amplitude.T, amplitude.new_ones(())
    if of_sine.shape[1] > 1:
        return (amplitude * phase.sin()) @ of_sine + (amplitude * phase.cos()) @ of_cosine
    shifted = phase + torch.atan2(of_cosine, of_sine).T
    return (amplitude * shifted.sin()) @ torch.hypot(of_sine, of_cosine)


def nested_columns(kernel: Kernel, draw: FeatureDraw, n_frequencies: int) -> tuple[Tensor, Tensor]:
    """Return which columns of `features` belong to the first frequencies, and by which factors their scale differs.

    ``features(kernel, X, draw)[:, columns] * factors`` is ``features(kernel, X, draw.first(n_frequencies))``. So one
    table of features, and one matrix of their inner products, is enough for every smaller number of frequencies. The
    factors of constant and linear terms, which are exact, are 1.
    """
    total, row = draw.n_features // 2, _any_row(kernel)
    columns, factors, start = [torch.zeros(0, dtype=torch.long)], [torch.zeros(0, dtype=torch.float64)], 0
    for term, drawn in _drawn_terms(kernel, draw):
        if _is_exact(term):
            width = _exact_features(term, row).shape[1]
            chosen, factor = torch.arange(width), 1.0
        else:  # sines, then cosines; a product of linear kernels has one column for each frequency
            width = _columns(*_wave(term, row, drawn, total)).shape[1]
            chosen = torch.cat([torch.arange(n_frequencies) + offset for offset in range(0, width, total)])
            factor = math.sqrt(total / n_frequencies)
        columns.append(start + chosen)
        factors.append(torch.full((len(chosen),), factor, dtype=torch.float64))
        start += width
    return torch.cat(columns), torch.cat(factors)


@torch.no_grad()
def count_columns(kernel: Kernel, draw: FeatureDraw) -> int:
    """Return the number of columns of `features`."""
    return features(kernel, _any_row(kernel), draw).shape[1]


def _any_row(kernel: Kernel) -> Tensor:
    return kernel.admitted(torch.zeros(1, kernel.n_inputs or 1, dtype=torch.float64))


def _drawn_terms(kernel: Kernel, draw: FeatureDraw) -> list[tuple[tuple[Leaf, ...], tuple[dict[str, Tensor], ...]]]:
    """Return the terms that are functions, each with its draws."""
    terms = kernel.correlated_terms()
    fits = len(terms) == len(draw.terms) and all(
        not drawn if _is_exact(term) else len(drawn) == len(term) for term, drawn in zip(terms, draw.terms, strict=True)
    )
    if not fits:
        raise InvalidInputError("draw belongs to a kernel of another structure; draw features from this kernel.")
    return list(zip(terms, draw.terms, strict=True))


def _exact_features(term: tuple[Leaf, ...], X: Tensor) -> Tensor:
    columns = X.new_ones(X.shape[0], 1)
    for leaf in term:
        columns = columns * (leaf.scale(X) if isinstance(leaf, _FINITE) else leaf.value("variance", X).sqrt())
    return columns


def _wave(
    term: tuple[Leaf, ...], X: Tensor, drawn: tuple[dict[str, Tensor], ...], n_frequencies: int
) -> tuple[Tensor, Tensor | None]:
    """Return amplitudes, shape (n, m) or (1, m), and phases, shape (n, m); None where a term has no waves."""
    amplitude = X.new_full((1, n_frequencies), math.sqrt(1 / n_frequencies))
    phase: Tensor | None = None
    for leaf, numbers in zip(term, drawn, strict=True):
        factor, angle = leaf.amplitude_and_phase(X, numbers)
        amplitude = amplitude * factor
        if angle is not None:
            phase = angle if phase is None else phase + angle
    return amplitude, phase


def _columns(amplitude: Tensor, phase: Tensor | None) -> Tensor:
    """Return the features of a term."""
    if phase is None:  # a product of linear kernels has no waves, so the sine half would be zero
        return amplitude
    return torch.cat([amplitude * torch.sin(phase), amplitude * torch.cos(phase)], dim=1)
