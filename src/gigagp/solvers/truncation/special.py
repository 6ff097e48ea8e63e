"""Functions whose textbook forms lose digits by cancellation, in forms that keep their relative precision."""

from __future__ import annotations

import math

#: Bernoulli numbers B_2, B_4, ..., B_14.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
#: From this argument on, the asymptotic series of the digamma function is accurate to the last digit.
_FAR = 12


def harmonic(start: float, count: int) -> float:
    """Return ``sum_{i < count} 1 / (start + i)``, that is ``digamma(start + count) - digamma(start)``.

    The difference of two digamma functions would lose the digits that they share. The parts of the asymptotic series
    (Abramowitz & Stegun 1964, eq. 6.3.18) are therefore subtracted one by one.
    """
    near = min(count, max(0, math.ceil(_FAR - start)))
    total = math.fsum(1 / (start + i) for i in range(near))
    if near == count:
        return total
    x, y = start + near, start + count
    far = math.log1p((y - x) / x) + (y - x) / (2 * x * y)
    for n, bernoulli in enumerate(_BERNOULLI, start=1):
        far += bernoulli / (2 * n) * (x ** (-2 * n) - y ** (-2 * n))
    return total + far


def geometric_mean(a: float) -> float:
    """Return ``1 / (e^a - 1) - 1 / a``, the mean of a geometric variable without its pole at zero."""
    if a > 0.5:
        return 1 / math.expm1(a) - 1 / a if a < 700 else -1 / a
    return -0.5 + math.fsum(b * a ** (2 * n - 1) / math.factorial(2 * n) for n, b in enumerate(_BERNOULLI, start=1))


def geometric_variance(a: float) -> float:
    """Return ``1 / (4 sinh(a / 2)^2) - 1 / a^2``, the variance of a geometric variable without its pole at zero."""
    if a > 0.5:
        return (0.5 / math.sinh(a / 2)) ** 2 - 1 / a**2 if a < 700 else -1 / a**2
    return -math.fsum(
        (2 * n - 1) * b * a ** (2 * n - 2) / math.factorial(2 * n) for n, b in enumerate(_BERNOULLI, start=1)
    )
