"""How near comparisons of a run come to their tolerances: what the rounding of another machine would fail first.

    PYTHONPATH=tests python -m pytest -q -n 2 -p margins --margins=margins.txt

It writes one line for each comparison of floats that used more than `SHARE` of a tolerance of at most `ROUNDING`: that
share, the tolerance, the test and the line of the comparison. A test has to allow what rounding may do on any machine,
so that such a line asks for a bound: a small multiple of rounding times the condition of the problem (`helpers.close`).
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SHARE, ROUNDING = 0.2, 1e-4
HERE = Path(__file__).parent

_current = ""
_lines: set[str] = set()


class _Error(float):
    """An error that notes what it is compared with."""

    def __lt__(self, limit: float) -> bool:
        _note(float(self), limit, limit)
        return float(self) < limit

    __le__ = __lt__


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--margins", metavar="FILE", help="write how near comparisons come to their tolerances")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--margins"):
        return
    import torch

    import helpers  # once conftest.py has set the number of threads, because it imports torch

    ApproxScalar = type(pytest.approx(1.0))

    watched = (np.testing, "assert_allclose"), (np, "allclose"), (torch, "allclose"), (torch.testing, "assert_close")
    for owner, name in watched:
        setattr(owner, name, _watched(getattr(owner, name)))
    relative_error, equal = helpers.relative_error, ApproxScalar.__eq__
    helpers.relative_error = lambda found, expected: _Error(relative_error(found, expected))

    def approximately(self: Any, actual: Any) -> bool:
        if isinstance(actual, float) and isinstance(self.expected, float):
            tolerance = float(self.tolerance)
            _note(abs(actual - self.expected), tolerance, tolerance / (abs(self.expected) or 1.0))
        return equal(self, actual)

    ApproxScalar.__eq__ = approximately


def pytest_unconfigure(config: pytest.Config) -> None:
    name = config.getoption("--margins")
    if name and _lines:
        path = Path(name)
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        path.with_name(f"{path.stem}{worker}{path.suffix}").write_text(
            "".join(sorted(_lines, reverse=True)), encoding="utf-8"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global _current
    _current = item.nodeid
    return (yield)


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        signature = inspect.signature(function)
    except ValueError:  # torch.allclose is compiled
        signature = inspect.signature(lambda input, other, rtol=1e-5, atol=1e-8, equal_nan=False: None)

    @wraps(function)
    def watched(*arguments: Any, **named: Any) -> Any:
        given = signature.bind(*arguments, **named)
        given.apply_defaults()
        got, expected, *_ = given.arguments.values()
        several = isinstance(got, (tuple, list)) and any(hasattr(one, "detach") for one in got)
        for pair in zip(got, expected, strict=False) if several else [(got, expected)]:
            a, b = (np.asarray(one.detach().cpu().to_dense() if hasattr(one, "detach") else one) for one in pair)
            if a.dtype.kind == "f" and b.dtype.kind == "f":
                rtol, atol = given.arguments["rtol"], given.arguments["atol"]
                if rtol is None:  # what torch.testing takes
                    rtol, atol = (1.3e-6, 1e-5) if "float32" in (a.dtype.name, b.dtype.name) else (1e-7, 1e-7)
                with np.errstate(all="ignore"):
                    shares = np.abs(a - b) / (atol + rtol * np.abs(b))
                _note(float(np.max(shares, where=np.isfinite(shares), initial=0.0)), 1.0, max(rtol, atol))
        return function(*arguments, **named)

    return watched


def _note(error: float, limit: float, tolerance: float) -> None:
    """Note an error and its limit, whose size relative to the numbers is ``tolerance``."""
    frame = sys._getframe(2)
    of_a_test = Path(frame.f_code.co_filename).is_relative_to(HERE)  # libraries compare numbers too
    if of_a_test and tolerance <= ROUNDING and SHARE * limit < error:
        _lines.add(f"{error / limit:.3f} {tolerance:.1e} {_current} line {frame.f_lineno}\n")
