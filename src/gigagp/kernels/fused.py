"""The profiles that compiled engines know, by number."""

from __future__ import annotations

from enum import IntEnum


class Profile(IntEnum):
    """A function g of the squared distance p that the native and the Triton engine have compiled.

    The numbers are codes that Python passes to compiled code. ``products/native/kernels.h`` lists the same names in the
    same order, and ``tests/products/test_codes.py`` compares the two. The formulas are in
    ``products/native/profiles.h`` and ``products/triton_kernels.py``.
    """

    #: ``exp(-p)``
    RBF = 0
    #: ``exp(-t)``, with ``t = sqrt(p)`` here and below
    MATERN_12 = 1
    #: ``(1 + t) exp(-t)``
    MATERN_32 = 2
    #: ``(1 + t + t^2 / 3) exp(-t)``
    MATERN_52 = 3
    #: ``(1 + p)^(-alpha)``
    RATIONAL_QUADRATIC = 4
    #: the inner product of the points instead of a function of their distance
    DOT = 5
