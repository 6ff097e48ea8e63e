"""The engine on a CUDA device: Triton's where it agrees with torch tiles and is quicker, which the first use finds out.

The tests run it on the CPU: with Triton's interpreter, and with engines that simulate a mismatch, a compiler's error
and a slow Triton.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from gigagp.errors import GigaGPError, GigaGPWarning, warn
from gigagp.kernels import Kernel
from gigagp.products.arguments import check_points, check_vectors, check_weights
from gigagp.products.engine import Engine, LowRankWeights, Weights, weights_of
from gigagp.products.program import compile_kernel
from gigagp.products.tile_memory import TileMemory, default_path
from gigagp.products.torch_tiles import TorchTiles
from gigagp.products.triton_tiles import Tiling, TritonTiles

Result = TypeVar("Result", Tensor, dict[str, Tensor])
#: What a job is run with: the whole of it, or the part of it that is timed.
Job = Callable[[Engine], Result]

#: Jobs with fewer entries of the kernel matrix run on torch tiles: Triton's compiler takes seconds.
SMALLEST_JOB = 2**22
#: Jobs of at least so many entries are worth a trial of other shapes of tiles, each of which has to be compiled.
LARGE_JOB = 2**30
#: Rows and columns of the part of a job that is timed.
TIMED_SIDE = 8192
#: Runs of each engine, of which the fastest counts.
TIMED_RUNS = 3
#: Rows and columns of the self-test; no multiples of a block.
TEST_SHAPE = (150, 97)
#: Largest error of the self-test relative to the largest number, and how much more a job's own numbers may leave.
TOLERANCE, OWN_NUMBERS = {torch.float32: 1e-4, torch.float64: 1e-9}, 100.0


@dataclass
class Findings:
    """What a process has found out about Triton.

    ``failures`` says in words that follow "Triton" what it did on a device where it is no longer used. ``tested`` has
    the devices, dtypes and structures of programs that have passed the self-test. ``speedups`` has for each of these,
    and then for each class of jobs, the time of torch tiles over that of Triton. ``quickest`` has the engine with the
    quickest shape of tiles for large jobs of a class.
    """

    failures: dict[str, str] = field(default_factory=dict)
    tested: set[tuple[Any, ...]] = field(default_factory=set)
    speedups: dict[tuple[Any, ...], dict[tuple[Any, ...], float]] = field(default_factory=dict)
    quickest: dict[tuple[Any, ...], TiledEngine] = field(default_factory=dict)


#: Of this process.
FINDINGS = Findings()


class TiledEngine(Engine, Protocol):
    """An engine whose tiles have one of several shapes."""

    @property
    def tiling(self) -> Tiling | None:
        """The shape of its tiles; None: as it chooses."""
        ...

    def variants(self, kernel: Kernel, like: Tensor, vectors: int | None) -> Sequence[TiledEngine]:
        """Return engines with the shapes worth measuring; see `TritonTiles.variants`."""
        ...


class _MismatchError(Exception):
    """Two engines gave different numbers."""


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return the time that a call takes on a device."""
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.synchronize(device)
    begin = time.perf_counter()
    call()
    if on_cuda:
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


class MeasuredTiles:
    """`TritonTiles` where they pass a self-test and are quicker than `TorchTiles`, else `TorchTiles`.

    `select` takes it on CUDA for kernels that Triton can run. The first job of a kind is preceded by two checks:

    1. Products, entries and gradients of the kernel's program on a small problem have to agree with torch tiles. So
       does a part of the job itself, on its own points.
    2. Both engines are timed on that part. The quicker one runs jobs of this kind from then on.

    The first large job of a kind also tries Triton with two or three shapes of tiles. The quickest is remembered for
    this kind of GPU in a file (`gigagp.products.tile_memory`), which later processes read in place of measuring.

    What they find holds for the process. It is kept by device, dtype, structure of the kernel, and class of job (the
    method, and the powers of two next to the numbers of rows, columns and vectors). Jobs of fewer than `SMALLEST_JOB`
    entries run on torch tiles without any check.

    Triton is no longer used on a device once it has disagreed, or has failed in its compiler or at run time. One
    warning says so, and `name` from then on.

    Two runs may choose differently, because times vary, and the engines differ by rounding errors. For the same bits in
    every run pass an engine to `operators.KernelMatrix`. Tests pass their own ``triton``, ``findings`` and ``clock``.
    """

    def __init__(
        self,
        kernel: Kernel,
        device: torch.device | str,
        dtype: torch.dtype,
        *,
        triton: TiledEngine | None = None,
        memory: TileMemory | None = None,
        findings: Findings = FINDINGS,
        clock: Callable[[Callable[[], object], torch.device], float] = seconds,
    ) -> None:
        device = torch.device(device)
        self._device = f"{device.type}:{device.index or 0}"
        self._structure = (self._device, dtype, _structure(kernel))
        self._triton: TiledEngine = TritonTiles() if triton is None else triton
        self._memory = TileMemory(default_path()) if memory is None else memory
        self._torch = TorchTiles()
        self._findings, self._clock = findings, clock

    @property
    def name(self) -> str:
        """What runs, in words, and why."""
        failure = self._findings.failures.get(self._device)
        if failure is not None:
            return f"{self._torch.name} (Triton {failure})"
        speedups = self._findings.speedups.get(self._structure, {}).values()
        if not speedups:
            return f"{self._torch.name} (Triton not tried: no job was large enough)"
        if all(ratio <= 1 for ratio in speedups):
            return f"{self._torch.name} (Triton was slower)"
        if all(ratio > 1 for ratio in speedups):
            return f"{self._triton.name} ({min(speedups):.3g} times as fast as {self._torch.name})"
        return f"{self._triton.name}, and {self._torch.name} for jobs where Triton was slower"

    def product(self, kernel: Kernel, X: Tensor, Z: Tensor, V: Tensor, *, budget: int) -> Tensor:
        """Return ``K(X, Z) @ V``; see `Engine.product`."""
        check_points(self.name, kernel, X, Z)
        check_vectors(self.name, V, Z)
        left, right = _part(X, Z, budget)
        return self._run(
            kernel,
            X,
            Z,
            ("product", Z is X, V.shape[1].bit_length()),
            # without signs the sums do not cancel
            lambda engine: engine.product(kernel, left, right, V[: len(right)].abs(), budget=budget),
            lambda engine: engine.product(kernel, X, Z, V, budget=budget),
            V.shape[1],
        )

    def dense(self, kernel: Kernel, X: Tensor, Z: Tensor | None = None, *, budget: int) -> Tensor:
        """Return the whole matrix; see `Engine.dense`."""
        columns = X if Z is None else Z
        check_points(self.name, kernel, X, columns)
        left, right = _part(X, columns, budget)
        return self._run(
            kernel,
            X,
            columns,
            ("dense", Z is None),
            lambda engine: engine.dense(kernel, left, None if Z is None else right, budget=budget),
            lambda engine: engine.dense(kernel, X, Z, budget=budget),
        )

    def gradient(
        self, kernel: Kernel, X: Tensor, Z: Tensor, weights: Weights, *, symmetric: bool, budget: int
    ) -> dict[str, Tensor]:
        """Return the gradient in all hyperparameters; see `Engine.gradient`."""
        check_points(self.name, kernel, X, Z)
        check_weights(self.name, weights, X, Z)
        left, right = _part(X, X if symmetric else Z, budget)

        def part(engine: Engine) -> dict[str, Tensor]:
            positive = _positive(weights, len(left), len(right))
            return engine.gradient(kernel, left, right, positive, symmetric=symmetric, budget=budget)

        def whole(engine: Engine) -> dict[str, Tensor]:
            return engine.gradient(kernel, X, Z, weights, symmetric=symmetric, budget=budget)

        vectors = weights.left.shape[1].bit_length() if isinstance(weights, LowRankWeights) else None
        return self._run(kernel, X, Z, ("gradient", symmetric, vectors), part, whole)

    # The choice -----------------------------------------------------------------------------------------------------

    def _run(
        self,
        kernel: Kernel,
        X: Tensor,
        Z: Tensor,
        kind: tuple[Any, ...],
        part: Job[Result],
        whole: Job[Result],
        vectors: int | None = None,
    ) -> Result:
        if len(X) * len(Z) < SMALLEST_JOB or self._device in self._findings.failures:
            return whole(self._torch)
        speedups = self._findings.speedups.setdefault(self._structure, {})
        kind = (*kind, *(min(len(points), TIMED_SIDE).bit_length() for points in (X, Z)))
        try:
            if kind not in speedups:
                self._self_test(kernel, X)
                speedups[kind] = self._speedup(part, X)
            if speedups[kind] > 1:
                is_large = len(X) * len(Z) >= LARGE_JOB
                return whole(self._quickest(kernel, X, kind, vectors, part) if is_large else self._triton)
        except GigaGPError:
            raise
        except torch.OutOfMemoryError:
            if kind in speedups:  # the job itself does not fit
                raise
        except Exception as error:  # whatever Triton, its compiler or the driver may raise
            self._give_up(error)
        return whole(self._torch)

    def _self_test(self, kernel: Kernel, like: Tensor) -> None:
        """Compare the engines on a small problem with moderate hyperparameters."""
        if self._structure in self._findings.tested:
            return
        generator = torch.Generator().manual_seed(0)

        def draw(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, generator=generator, dtype=torch.float64).to(like)

        (n, m), d, budget = TEST_SHAPE, like.shape[1], 2**28
        kernel = kernel.replace({name: _moderate(name, value, d) for name, value in kernel.parameters().items()})
        X, Z, few, many, other = draw(n, d), draw(m, d), draw(n, 3).abs(), draw(m, 17).abs(), draw(n, 17).abs()
        matrix = draw(n, m).abs()
        jobs: list[Job[Any]] = [
            lambda engine: engine.product(kernel, X, X, few, budget=budget),
            lambda engine: engine.product(kernel, X, Z, many, budget=budget),
            lambda engine: engine.dense(kernel, X, budget=budget),
            lambda engine: engine.gradient(kernel, X, X, LowRankWeights(few, few), symmetric=True, budget=budget),
            lambda engine: engine.gradient(kernel, X, Z, LowRankWeights(other, many), symmetric=False, budget=budget),
            lambda engine: engine.gradient(kernel, X, Z, weights_of(matrix), symmetric=False, budget=budget),
        ]
        for job in jobs:
            _require_agreement(job(self._triton), job(self._torch), TOLERANCE[like.dtype])
        self._findings.tested.add(self._structure)

    def _speedup(self, part: Job[Any], like: Tensor) -> float:
        """Return the time of torch tiles over that of Triton on a part of the job, on which they have to agree."""
        engines = (self._triton, self._torch)
        found, expected = (part(engine) for engine in engines)  # which also warms both up
        _require_agreement(found, expected, OWN_NUMBERS * TOLERANCE[like.dtype])
        times = [[self._clock(partial(part, engine), like.device) for engine in engines] for _ in range(TIMED_RUNS)]
        triton, plain = (min(column) for column in zip(*times, strict=True))
        return plain / max(triton, 1e-9)

    def _quickest(
        self, kernel: Kernel, like: Tensor, kind: tuple[Any, ...], vectors: int | None, part: Job[Any]
    ) -> Engine:
        """Return Triton's engine with the quickest shape of tiles for a kind of job, remembered or measured."""
        known = self._findings.quickest
        if kind[0] == "dense" or (*self._structure, *kind) in known:
            return known.get((*self._structure, *kind), self._triton)
        variants = self._triton.variants(kernel, like, vectors)
        key = json.dumps([machine_of(like.device), *map(str, self._structure[1:]), *kind])
        shape = self._memory.get(key)
        expected = part(self._torch)
        remembered = [one for one in variants if one.tiling is not None and one.tiling.shape == shape]
        found = self._first(remembered, part, expected, like) if remembered else None
        if found is None:
            found = self._first(variants, part, expected, like) or self._triton
            if found.tiling is not None:
                self._memory.put(key, found.tiling.shape)
        known[*self._structure, *kind] = found
        return found

    def _first(self, engines: Sequence[TiledEngine], part: Job[Any], expected: Any, like: Tensor) -> TiledEngine | None:
        """Return the quickest of some engines, without those that fail or disagree; None if all do."""
        seconds: dict[int, float] = {}
        for number, engine in enumerate(engines):
            try:
                _require_agreement(part(engine), expected, OWN_NUMBERS * TOLERANCE[like.dtype])
                seconds[number] = min(self._clock(partial(part, engine), like.device) for _ in range(TIMED_RUNS))
            except GigaGPError:
                raise
            except Exception:  # a shape that the compiler or the driver refuses, or that is wrong
                continue
        return engines[min(seconds, key=seconds.__getitem__)] if seconds else None

    def _give_up(self, error: Exception) -> None:
        """Use torch tiles alone on this device from now on, and say so once."""
        mismatch = isinstance(error, _MismatchError)
        what = "disagreed in its self-test" if mismatch else f"failed: {type(error).__name__}"
        self._findings.failures[self._device] = what
        lines = str(error).strip().splitlines() or [""]
        warn(
            f"Triton {what} on {self._device} ({lines[0][:200]}). For the rest of this process kernel products run on "
            "torch tiles there: the results are right, but may take longer. Another version of triton may help.",
            GigaGPWarning,
        )


def machine_of(device: torch.device) -> str:
    """Return what times on a device depend on: the kind of GPU, and the version of Triton's compiler."""
    if device.type != "cuda":
        return device.type
    import triton

    return f"{torch.cuda.get_device_name(device)}, triton {triton.__version__}"


def _structure(kernel: Kernel) -> tuple[Any, ...]:
    """Return what Triton compiles a kernel by: the steps of its program, and profile and inputs of its terms."""
    nothing = torch.empty(0, kernel.n_inputs or 1, dtype=torch.float64)
    program = compile_kernel(kernel, nothing, nothing)
    steps = tuple((int(step.operation), step.a, step.b) for step in program.steps)
    return steps, tuple((int(term.profile), term.inputs) for term in program.terms)


def _part(X: Tensor, Z: Tensor, budget: int) -> tuple[Tensor, Tensor]:
    """Return the points of the part of a job that is timed."""
    side = min(TIMED_SIDE, max(math.isqrt(budget // (4 * X.element_size())), 1))
    left = X[:side]
    return left, left if Z is X else Z[:side]


def _positive(weights: Weights, n: int, m: int) -> Weights:
    """Return the absolute weights of the first n rows and m columns: without signs the sums do not cancel."""
    if isinstance(weights, LowRankWeights):
        return LowRankWeights(weights.left[:n].abs(), weights.right[:m].abs())
    return weights_of(weights(slice(0, n), slice(0, m)).abs())


def _moderate(name: str, value: Tensor, d: int) -> Tensor:
    """Return a value at which covariances of standard normal points are neither all zero nor all equal."""
    return torch.full_like(value, d**0.5 if name.rpartition(".")[2] == "lengthscale" else 1.0)


def _require_agreement(
    found: Tensor | Mapping[str, Tensor], expected: Tensor | Mapping[str, Tensor], tolerance: float
) -> None:
    """Raise `_MismatchError` where two results differ by more than a share of their largest number."""
    if isinstance(found, Tensor) or isinstance(expected, Tensor):
        found, expected = {"": found}, {"": expected}  # type: ignore[dict-item]  # both are tensors
    largest = max((float(value.abs().max()) for value in expected.values() if value.numel()), default=0.0)
    for name, value in expected.items():
        error = float((found[name].double() - value.double()).abs().max()) if value.numel() else 0.0
        if not error <= tolerance * largest:  # NaN is no agreement
            what = f"the derivative in {name}" if name else "a product"
            raise _MismatchError(f"{what} is off by {error:.2g}, where {tolerance * largest:.2g} is allowed")
