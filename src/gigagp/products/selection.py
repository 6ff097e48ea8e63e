"""Which engine multiplies with a kernel on a device."""

from __future__ import annotations

import torch
from torch import Tensor

from gigagp.kernels import Kernel
from gigagp.products.engine import Engine
from gigagp.products.measured_tiles import MeasuredTiles
from gigagp.products.native_tiles import NativeTiles
from gigagp.products.panel import panel_of
from gigagp.products.shared_tiles import SharedTiles
from gigagp.products.torch_tiles import TorchTiles
from gigagp.products.triton_tiles import TritonTiles
from gigagp.runtime.run import current_run


def select(
    kernel: Kernel,
    device: torch.device | str,
    dtype: torch.dtype,
    *,
    rows: Tensor | None = None,
    alone: bool = False,
) -> Engine:
    """Return the engine for a bound kernel, a device and a dtype.

    The rule: kernels that have a program (`gigagp.products.program.supports`) run on the native engine on a CPU where
    it was built, and on CUDA, where triton is installed, on the quicker of Triton and torch tiles, once Triton has
    passed a self-test. Everything else runs on torch tiles, which take every kernel on every device. For products with
    ``rows`` that are a panel, one of these computes the factors (`gigagp.products.panel`). In a distributed
    fit, its processes share the work of the engine (`gigagp.products.shared_tiles`), unless one computes ``alone``.
    """
    engine = _select(kernel, device, dtype)
    if rows is not None:
        engine = panel_of(kernel, rows, engine) or engine
    return engine if alone or current_run().processes is None else SharedTiles(engine)


def product_entries(kernel: Kernel, X: Tensor) -> float:
    """Return the multiplications with each column in a product with the rows X: n * n, or fewer for a panel."""
    panel = panel_of(kernel, X, TorchTiles())
    return float(len(X)) ** 2 if panel is None else float(panel.operations(kernel))


def _select(kernel: Kernel, device: torch.device | str, dtype: torch.dtype) -> Engine:
    if torch.device(device).type == "cpu" and NativeTiles.supports(kernel):
        return NativeTiles()
    if TritonTiles.supports(kernel, device):
        return MeasuredTiles(kernel, device, dtype)
    return TorchTiles()
