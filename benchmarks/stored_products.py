"""Products of a stored matrix with a few columns, by compiled code and by the linear algebra behind torch.

    python benchmarks/stored_products.py --json benchmarks/results/stored_products.json

One thread; the smallest CPU seconds of three products.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from maps import cpu_seconds, write

from gigagp.products.dense import tall_product
from gigagp.products.stored import stored_product


def main() -> None:
    """Time both for each precision and number of columns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--columns", type=int, nargs="+", default=[2, 4, 8, 16, 18, 24, 32, 48, 66])
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: list[dict[str, object]] = []
    for dtype in (torch.float64, torch.float32):
        matrix = torch.randn(arguments.rows, arguments.rows, dtype=dtype)
        for s in arguments.columns:
            vectors = torch.randn(arguments.rows, s, dtype=dtype)
            ours, theirs = (
                min(cpu_seconds(lambda: product(matrix, vectors))[1] for _ in range(3))  # noqa: B023
                for product in (stored_product, tall_product)
            )
            found.append({"dtype": str(dtype), "columns": s, "compiled_cpu_s": ours, "torch_cpu_s": theirs})
            print(f"{dtype} {s:3d} columns: {ours:.3f} s, torch {theirs:.3f} s, ratio {ours / theirs:.2f}", flush=True)
    write(arguments.json, vars(arguments), found)


if __name__ == "__main__":
    main()
