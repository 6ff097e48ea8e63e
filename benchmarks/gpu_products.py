"""Measure products with a Matern-3/2 ARD kernel matrix on a GPU: our engines, KeOps, GPyTorch, and the card's limit.

    python benchmarks/gpu_products.py                     # n = 131,072, d = 10, s = 1, 17, 65, float32
    TRITON_INTERPRET=1 python benchmarks/gpu_products.py --device cpu --n 256 --rounds 1     # does the script run?

This script has never run on a GPU: it was written without one, and checked with the second command.

All contenders run in one process, in turns. Times are medians over rounds (CUDA events), and ratios are medians of
ratios within a round. Before it is timed, each contender is compared with float64 on a few rows. The limit of the card
is ``n^2 (2d + 2s) / GEMM rate + n^2 / exp rate``, from the rate of a float32 `torch.mm` without TF32 and that of exp in
registers, both measured in the same run. No engine here uses symmetry on a GPU, so neither does the limit (with it, the
n^2 terms of distance and exp would be halved). The last line of a case is the engine that `select` chooses, and why.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gigagp import __version__
from gigagp.kernels import Matern
from gigagp.products import LowRankWeights, MeasuredTiles, TorchTiles
from gigagp.products.triton_tiles import TritonTiles

Call = Callable[[], Any]
#: Number of rows that are compared with float64, and the largest relative error (in norm) that counts as correct.
CHECKED_ROWS, TOLERANCE = 32, 1e-3
BUDGET = 8 * 2**30
EXPONENTIALS = 512


@triton.jit
def exponentials(out, TIMES: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Apply exp TIMES times to numbers that stay in registers."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = at.to(tl.float32) * 1e-9
    for _ in range(TIMES):
        x = tl.exp(-x)
    tl.store(out + at, x)


def seconds(call: Call, device: str) -> float:
    """Return the time of a call on the device in seconds."""
    if device == "cpu":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def rates(device: str) -> tuple[float, float]:
    """Return the number of floating-point operations of matrix products, and of exps, per second."""
    side, blocks = (8192, 2**14) if device == "cuda" else (256, 4)
    A, out = torch.randn(side, side, device=device), torch.empty(blocks * 1024, device=device)
    times = EXPONENTIALS if device == "cuda" else 2
    product, exps = [], []
    for _ in range(6):
        product.append(seconds(lambda: A @ A, device))
        exps.append(seconds(lambda: exponentials[(blocks,)](out, TIMES=times, BLOCK=1024), device))
    return 2 * side**3 / min(product), blocks * 1024 * times / min(exps)


def keops(kernel: Matern, X: Tensor, V: Tensor) -> Call:
    """Return a call of KeOps' own product."""
    from pykeops.torch import LazyTensor

    Z = (X * (3**0.5 / kernel.value("lengthscale", X))).contiguous()
    distance = (LazyTensor(Z[:, None, :]) - LazyTensor(Z[None, :, :])).norm2()
    K = (1 + distance) * (-distance).exp() * float(kernel.value("variance"))
    return lambda: K @ V


def gpytorch_with_keops(kernel: Matern, X: Tensor, V: Tensor) -> Call:
    """Return a call of GPyTorch's product with its KeOps kernel."""
    import pykeops  # noqa: F401 (without it GPyTorch would silently compute something else)
    from gpytorch.kernels import ScaleKernel
    from gpytorch.kernels.keops import MaternKernel

    peer = ScaleKernel(MaternKernel(nu=1.5, ard_num_dims=X.shape[1])).to(X)
    peer.base_kernel.lengthscale = kernel.value("lengthscale", X)
    peer.outputscale = float(kernel.value("variance"))

    def call() -> Tensor:
        with torch.no_grad():
            return peer(X) @ V

    return call


def contenders(kernel: Matern, X: Tensor, V: Tensor) -> dict[str, Callable[[], Call]]:
    """Return a function for each contender that prepares its call."""
    found: dict[str, Callable[[], Call]] = {}
    for distances in ("ieee", "bf16x3", "tf32"):
        engine = TritonTiles(distances)  # type: ignore[arg-type]
        found[engine.name] = lambda engine=engine: lambda: engine.product(kernel, X, X, V, budget=BUDGET)
    found["torch tiles"] = lambda: lambda: TorchTiles().product(kernel, X, X, V, budget=BUDGET)
    found["KeOps"] = lambda: keops(kernel, X, V)
    found["GPyTorch with KeOps"] = lambda: gpytorch_with_keops(kernel, X, V)
    return found


def error_of(found: Tensor, kernel: Matern, X: Tensor, V: Tensor) -> float:
    """Return the relative error of a product on a few rows."""
    rows = torch.linspace(0, len(X) - 1, min(CHECKED_ROWS, len(X)), device=X.device).long()
    Z = X.double() * (3**0.5 / kernel.value("lengthscale", X.double()))
    t = torch.cdist(Z[rows], Z, compute_mode="donot_use_mm_for_euclid_dist")
    expected = float(kernel.value("variance")) * ((1 + t) * torch.exp(-t)) @ V.double()
    return float((found[rows].double() - expected).norm() / expected.norm())


def run(kernel: Matern, X: Tensor, V: Tensor, arguments: argparse.Namespace) -> dict[str, Any]:
    """Check and time every contender with the vectors V; return times in seconds, errors and failures."""
    calls: dict[str, Call] = {}
    errors: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name, make in contenders(kernel, X, V).items():
        try:
            call = make()
            errors[name] = error_of(call(), kernel, X, V)
            if not errors[name] < TOLERANCE:
                raise ArithmeticError(f"wrong: relative error {errors[name]:.2g}")
            calls[name] = call
        except Exception as error:  # a missing or failing peer becomes a line of the table
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    engine, weights = TritonTiles(), LowRankWeights(V, V)
    calls["gradient, triton tiles"] = lambda: engine.gradient(kernel, X, X, weights, symmetric=True, budget=BUDGET)
    calls["gradient, triton tiles"]()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(arguments.rounds):
        for name, call in calls.items():
            times[name].append(seconds(call, arguments.device))
    return {"times": times, "errors": errors, "failed": failed}


def main() -> None:
    """Run all cases, print a table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=131_072)
    parser.add_argument("--d", type=int, default=10)
    parser.add_argument("--s", type=int, nargs="+", default=[1, 17, 65])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "gpu_products.json")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(arguments.n, arguments.d, generator=generator).to(arguments.device)
    kernel = Matern(1.5, [(arguments.d * (1 + k / arguments.d)) ** 0.5 for k in range(arguments.d)], 1.3).bind(
        arguments.d
    )
    card = torch.cuda.get_device_name() if arguments.device == "cuda" else "Triton's interpreter: times are meaningless"
    multiplied, exps = rates(arguments.device)
    versions = {"gigagp": __version__, "torch": torch.__version__, "triton": triton.__version__}
    print(f"{card}; n = {arguments.n:,}, d = {arguments.d}, float32; {versions}")
    print(f"GEMM {multiplied / 1e12:.1f} TFLOP/s, exp {exps / 1e12:.2f} T/s")
    cases = []
    for s in arguments.s:
        V = torch.randn(arguments.n, s, generator=generator).to(arguments.device)
        limit = arguments.n**2 * ((2 * arguments.d + 2 * s) / multiplied + 1 / exps)
        found = run(kernel, X, V, arguments)
        ours = found["times"].get("triton tiles")
        print(f"\ns = {s}: limit {limit * 1e3:.2f} ms\n{'':32}{'ms':>10}{'of limit':>10}{'x triton':>10}{'error':>10}")
        for name, times in found["times"].items():
            median = statistics.median(times)
            ratio = statistics.median(t / o for t, o in zip(times, ours, strict=True)) if ours else float("nan")
            error = found["errors"].get(name, float("nan"))
            print(f"{name:32}{median * 1e3:10.2f}{limit / median:10.0%}{ratio:10.2f}{error:10.1e}")
        for name, reason in found["failed"].items():
            print(f"{name:32}{reason}")
        chooser = MeasuredTiles(kernel, arguments.device, X.dtype)
        chooser.product(kernel, X, X, V, budget=BUDGET)
        print(f"{'chosen':32}{chooser.name}")
        cases.append({"s": s, "limit": limit, "chosen": chooser.name, **found})
    settings = {name: str(value) for name, value in vars(arguments).items()}
    result = {
        "card": card,
        "settings": settings,
        "versions": versions,
        "gemm": multiplied,
        "exp": exps,
        "cases": cases,
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(result, indent=1), encoding="utf-8")
    print(f"\nwritten to {arguments.json}")


if __name__ == "__main__":
    main()
