"""The compiled extension (``native/``), or None where gigagp was installed without a compiler."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["native"]

try:
    native: Any = import_module("gigagp.products._native")
except ImportError:
    native = None
