"""The command line: ``gigagp fit``, ``predict``, ``evaluate``, ``plot``, ``demo``, ``diagnose``.

Errors are one line on standard error and exit code 2, without a traceback; Ctrl-C exits with 130.
"""

from gigagp.commands.app import main

__all__ = ["main"]
