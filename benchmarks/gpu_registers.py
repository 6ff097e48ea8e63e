"""Registers of the GPU engine's kernels for each shape of tiles, as the compiler reports them; no GPU is needed.

    python benchmarks/gpu_registers.py --json benchmarks/results/gpu_registers.json

A tile whose sums do not fit the registers of a multiprocessor is kept in memory ("spills"): the product with 65 vectors
took 2,590 ms of an H100 with one that spills, and 87 ms with one that does not. Each shape is compiled for compute
capability 9.0 and 8.0, for float32 and float64 and for several numbers of vectors, and ptxas says how many registers a
thread has and how many bytes it spills. Shapes that `gigagp.products.triton_tiles` chooses are marked.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"

import torch
import triton
from checkout import commit
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from gigagp.kernels import Matern
from gigagp.products import LowRankWeights, triton_kernels, triton_tiles

SHAPES = [(64, 64, 4), (64, 64, 8), (64, 32, 4), (64, 32, 8), (128, 64, 8), (128, 32, 8), (32, 64, 4), (32, 32, 4)]
CAPABILITIES, VECTORS, INPUTS = (90, 80), (1, 4, 8, 17, 33, 65), 10
PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"


class Compiled:
    """A kernel that is compiled where it would be started."""

    def __init__(self, name: str, reports: list[dict[str, int]], capability: int) -> None:
        self.kernel, self.reports, self.capability = getattr(triton_kernels, name), reports, capability

    def __getitem__(self, grid: Any) -> Any:
        def compile(*arguments: Any, **settings: Any) -> None:
            made = self.kernel.warmup(*arguments, grid=grid, **settings)
            self.reports.append({**report(made.asm["ptx"], self.capability), "shared": made.metadata.shared})

        return compile


def report(ptx: str, capability: int) -> dict[str, int]:
    """Return what ptxas says of a program: registers of a thread, and bytes that it spills."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        architecture = f"sm_{capability}{'a' if capability == 90 else ''}"
        command = [PTXAS, "-v", f"--gpu-name={architecture}", source, "-o", Path(folder) / "kernel.cubin"]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    spills = re.findall(r"(\d+) bytes spill", said)
    registers = re.search(r"Used (\d+) registers", said)
    assert registers is not None, said
    return {"registers": int(registers[1]), "spilled": sum(map(int, spills))}


def compiled(capability: int, shape: tuple[int, int, int] | None, job: str, s: int, dtype: torch.dtype) -> Any:
    """Return the worst report of the kernels of a product or gradient; ``shape`` None: as chosen."""
    reports: list[dict[str, int]] = []

    class Kernels:
        INTERPRETED = False
        product_kernel = Compiled("product_kernel", reports, capability)
        gradient_kernel = Compiled("gradient_kernel", reports, capability)

    class Driver:
        get_current_target = staticmethod(lambda: GPUTarget("cuda", capability, 32))
        get_current_device = staticmethod(lambda: capability)  # programs are kept for each device
        get_current_stream = staticmethod(lambda device=0: 0)

    driver.set_active(Driver())
    triton_tiles._kernels = lambda: Kernels
    triton_tiles._check_runs_here = lambda X: None
    kernel = Matern(1.5, [1.0 + k for k in range(INPUTS)]).bind(INPUTS)
    X, V = torch.rand(256, INPUTS, dtype=dtype), torch.rand(256, s, dtype=dtype)
    engine = triton_tiles.TritonTiles(tiling=None if shape is None else triton_tiles.Tiling(*shape))
    if job == "product":
        engine.product(kernel, X, X, V, budget=2**24)
    else:
        engine.gradient(kernel, X, X, LowRankWeights(V, V), symmetric=True, budget=2**24)
    return max(reports, key=lambda one: (one["spilled"], one["registers"]))


def tried(job: str, s: int, dtype: torch.dtype) -> list[tuple[int, int, int]]:
    """Return the shapes that the engine tries at the first large job."""
    kernel = Matern(1.5, [1.0 + k for k in range(INPUTS)]).bind(INPUTS)
    triton_tiles._kernels = lambda: argparse.Namespace(INTERPRETED=False)
    like = torch.rand(4, INPUTS, dtype=dtype)
    found = triton_tiles.TritonTiles().variants(kernel, like, s if job == "product" else None)
    return [one.tiling.shape for one in found if one.tiling is not None]


def main() -> None:
    """Compile every shape, print a line for each, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--chosen", action="store_true", help="only the shapes that the engine chooses or tries")
    parser.add_argument("--jobs", nargs="+", default=["product", "gradient"])
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for capability in CAPABILITIES:
        for dtype in (torch.float32, torch.float64):
            for job, s in [*(("product", s) for s in VECTORS), ("gradient", 17)]:
                if job not in arguments.jobs:
                    continue
                for shape in [None, *(tried(job, s, dtype) if arguments.chosen else SHAPES)]:
                    row = {
                        "capability": capability / 10,
                        "dtype": str(dtype).removeprefix("torch."),
                        "job": job,
                        "vectors": s,
                        "tile": "chosen" if shape is None else list(shape),
                    }
                    try:
                        row |= compiled(capability, shape, job, s, dtype)
                    except Exception as error:  # a shape that the compiler refuses is a finding
                        row["failure"] = f"{type(error).__name__}: {str(error)[:100]}"
                    print(row, flush=True)
                    rows.append(row)
    if arguments.json is not None:
        found = {"commit": commit(), "triton": triton.__version__, "rows": rows}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
