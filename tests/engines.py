"""Every engine that can run here behind one face, for tests that hold for all of them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import pytest
import torch
from torch import Tensor

from gigagp.products import LowRankWeights, NativeTiles, TorchTiles, TritonTiles
from gigagp.products.triton_tiles import OLDEST
from helpers import largest_tensor

BUDGET = 2**24


@dataclass(frozen=True)
class MatrixWeights:
    """Weights from a whole matrix; can be pickled."""

    matrix: Tensor

    def __call__(self, rows: slice, columns: slice) -> Tensor:
        return self.matrix[rows, columns]


@dataclass(frozen=True)
class Same(MatrixWeights):
    """The same answer whatever is asked for."""

    def __call__(self, rows: slice, columns: slice) -> Tensor:
        return self.matrix


class EngineUnderTest:
    """An engine, called in this process with CPU tensors."""

    #: whether it is slow here: tests then take fewer points
    slow = False

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def call(self, method: str, *arguments: Any, **settings: Any) -> Any:
        return getattr(self.engine, method)(*arguments, **settings)

    def product(self, kernel: Any, X: Tensor, Z: Tensor, V: Tensor, *, budget: int = BUDGET) -> Tensor:
        return self.call("product", kernel, X, Z, V, budget=budget)

    def dense(self, kernel: Any, X: Tensor, Z: Tensor | None = None, *, budget: int = BUDGET) -> Tensor:
        return self.call("dense", kernel, X, Z, budget=budget)

    def gradient(
        self, kernel: Any, X: Tensor, Z: Tensor, weights: Any, *, symmetric: bool, budget: int = BUDGET
    ) -> dict[str, Tensor]:
        return self.call("gradient", kernel, X, Z, weights, symmetric=symmetric, budget=budget)

    def largest(self, method: str, *arguments: Any, **settings: Any) -> int:
        """Return the elements of the largest tensor that a call makes."""
        with largest_tensor() as spy:
            self.call(method, *arguments, **settings)
        return spy.elements


class OnCuda(EngineUnderTest):
    """An engine on the GPU; arguments travel there, results back."""

    def call(self, method: str, *arguments: Any, **settings: Any) -> Any:
        moved: dict[int, Any] = {}
        for argument in arguments:  # the same tensor stays the same
            moved.setdefault(id(argument), _to_cuda(argument))
        found = getattr(self.engine, method)(*(moved[id(argument)] for argument in arguments), **settings)
        return found.cpu() if isinstance(found, Tensor) else found


def _to_cuda(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument.cuda()
    if isinstance(argument, LowRankWeights):
        return LowRankWeights(argument.left.cuda(), argument.right.cuda())
    if isinstance(argument, MatrixWeights):
        return type(argument)(argument.matrix.cuda())
    return argument


class Interpreted(EngineUnderTest):
    """TritonTiles under Triton's interpreter, in a process of its own.

    The interpreter is switched on by an environment variable that triton reads when it is first imported, and the
    process that runs the tests may have imported it otherwise.
    """

    slow = True
    _pool: ProcessPoolExecutor | None = None

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def call(self, method: str, *arguments: Any, **settings: Any) -> Any:
        return self._submit(method, arguments, settings)[0]

    def largest(self, method: str, *arguments: Any, **settings: Any) -> int:
        return self._submit(method, arguments, settings, spied=True)[1] // 8  # it copies float64 tensors as bytes

    def _submit(self, method: str, arguments: Any, settings: Any, spied: bool = False) -> tuple[Any, int]:
        if Interpreted._pool is None:
            context = multiprocessing.get_context("spawn")
            Interpreted._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_switch_the_interpreter_on)
        payload = pickle.dumps((self.settings, method, arguments, settings, spied))
        return pickle.loads(Interpreted._pool.submit(_serve, payload).result())

    @classmethod
    def stop(cls) -> None:
        if cls._pool is not None:
            cls._pool.shutdown()
            cls._pool = None


def _switch_the_interpreter_on() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)
    from triton.runtime.interpreter import InterpretedFunction

    # Every call of a function within a kernel would patch triton's modules once more, which takes most of the time.
    InterpretedFunction.__call__ = lambda self, *arguments, **settings: self.rewrite()(*arguments, **settings)


def _serve(payload: bytes) -> bytes:
    from gigagp.products.triton_tiles import TritonTiles

    settings, method, arguments, keywords, spied = pickle.loads(payload)
    engine = EngineUnderTest(TritonTiles(**settings))
    if spied:
        return pickle.dumps((None, engine.largest(method, *arguments, **keywords)))
    return pickle.dumps((engine.call(method, *arguments, **keywords), 0))


def has_triton() -> bool:
    """Whether `TritonTiles` takes the installed triton, which is not imported before the interpreter is switched on."""
    try:
        version = metadata.version("triton")
    except metadata.PackageNotFoundError:
        return False
    return tuple(int(part) for part in version.split(".")[:2]) >= OLDEST


NO_EXTENSION = "gigagp's compiled extension was not built"
NO_TRITON = "no triton that the engine takes is installed"
HAS_TRITON = has_triton()
#: For what only compiled code does: neighbours as a guide, in forecasts and in variances, and `NativeTiles` themselves.
needs_extension = pytest.mark.skipif(not NativeTiles.available(), reason=NO_EXTENSION)
#: name: how to make it. TorchTiles have tiles of 32 by 32, so that every test crosses borders.
MAKERS: dict[str, Callable[[], EngineUnderTest]] = {
    "torch": lambda: EngineUnderTest(TorchTiles(tile_bytes=1)),
    **{name: (lambda name=name: EngineUnderTest(NativeTiles(name))) for name in NativeTiles.instruction_sets()},
    "triton": Interpreted,
    "torch on CUDA": lambda: OnCuda(TorchTiles()),
    "triton on CUDA": lambda: OnCuda(TritonTiles()),
}


def parameters() -> list[Any]:
    """Return the names of the engines for `pytest.mark.parametrize`, those that cannot run here with the reason.

    GPU engines are not among them where there is no GPU: hundreds of skipped tests would hide others.
    """
    on_cuda = torch.cuda.is_available()
    found = []
    for name in [*MAKERS, *([] if NativeTiles.available() else ["native"])]:
        reason = NO_EXTENSION if name == "native" else NO_TRITON if "triton" in name and not HAS_TRITON else ""
        marks = [pytest.mark.skip(reason=reason)] if reason else []
        if "CUDA" in name:
            if on_cuda:
                found.append(pytest.param(name, marks=[*marks, pytest.mark.gpu]))
        elif name != "triton" or not on_cuda:  # the interpreter is for machines without a GPU
            found.append(pytest.param(name, marks=marks))
    return found
