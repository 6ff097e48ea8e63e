"""The command line: ``gigagp fit``, ``predict``, ``evaluate``, ``plot``, ``krige``, ``demo``, ``diagnose``.

An error is one line on standard error with exit code 2, without a traceback. Ctrl-C exits with 130. If the reader of a
pipe closes it (``| head``), the command ends silently with 141, as shell commands do. If standard output is closed, the
command does its work and shows nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NoReturn

from gigagp.commands.interrupts import leaving_at_once

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; see `gigagp.commands.app.main`."""
    # By default PyTorch's threads spin while they wait for each other, which makes a small fit several times as slow
    # where other programs use the cores. Its OpenMP library reads this when it is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with leaving_at_once():
        from gigagp.commands import app

        app.main(arguments)
