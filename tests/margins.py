"""How near each comparison of a run comes to its tolerance: what another machine's rounding would fail first.

    python -m pytest -q -n 2 -p margins --margins margins.txt -o enable_assertion_pass_hook=true

It writes one line for each comparison of floats that used more than `SHARE` of a tolerance below `ROUNDING`: that
share, the tolerance, the test and the line of the comparison. A test has to allow what rounding may do on any machine,
so that such a line asks for a bound: a small multiple of rounding times the condition of the problem (`helpers.close`).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

SHARE, ROUNDING = 0.2, 1e-4
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
SMALLER = re.compile(rf"^\(*({NUMBER})\)* <=? \(?({NUMBER}(?: [*/] {NUMBER})?)\)?\n?")

_current = ""
_lines: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--margins", metavar="FILE", help="write how near comparisons come to their tolerances")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--margins"):
        for owner, name in ((np.testing, "assert_allclose"), (np, "allclose"), (torch, "allclose")):
            setattr(owner, name, _watched(getattr(owner, name), torch if owner is torch else np))


def pytest_unconfigure(config: pytest.Config) -> None:
    name = config.getoption("--margins")
    if name and _lines:
        path = Path(name)
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        path.with_name(f"{path.stem}{worker}{path.suffix}").write_text("".join(sorted(_lines, reverse=True)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global _current
    _current = item.nodeid
    return (yield)


def pytest_assertion_pass(item: pytest.Item, lineno: int, orig: str, expl: str) -> None:
    found = SMALLER.match(expl)
    if found is not None:
        limit = eval(found.group(2))  # two numbers and a sign at most, by the pattern
        _note(float(found.group(1)), float(limit), lineno)


def _watched(function: Callable[..., Any], library: Any) -> Callable[..., Any]:
    defaults = {"assert_allclose": (1e-7, 0.0)}.get(function.__name__, (1e-5, 1e-8))

    def watched(got: Any, expected: Any, rtol: float = defaults[0], atol: float = defaults[1], **named: Any) -> Any:
        a, b = (np.asarray(one.detach() if isinstance(one, torch.Tensor) else one) for one in (got, expected))
        if a.dtype.kind == "f" and b.dtype.kind == "f" and max(rtol, atol) > 0:
            with np.errstate(all="ignore"):
                allowed = atol + rtol * np.abs(b)
                shares = np.abs(a - b) / allowed
            worst = float(np.max(np.where(np.isfinite(shares), shares, 0), initial=0))
            _note(worst, 1.0, sys._getframe(1).f_lineno, rtol, atol)
        return function(got, expected, rtol=rtol, atol=atol, **named)

    return watched


def _note(found: float, limit: float, line: int, *tolerances: float) -> None:
    small = max(tolerances) <= ROUNDING if tolerances else 0 < limit <= ROUNDING
    if small and found > SHARE * limit:
        said = " ".join(map(str, tolerances)) if tolerances else str(limit)
        _lines.add(f"{found / limit:.3f} {said} {_current} line {line}\n")
