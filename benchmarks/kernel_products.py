"""Compare products with a Matern-3/2 ARD kernel matrix, and gradients of y'Ky: our engines, peers, the machine's limit.

    python benchmarks/kernel_products.py --n 16k --d 18 --s 1 17 65 --dtypes float32 --threads 1 --json out.json

All peers run in one process, in turns. Ratios are medians over rounds of the costs per matrix entry of two calls in the
same round, in CPU time (of all threads, which is robust on a busy machine) and in wall time. The engines multiply with
the whole matrix and use its symmetry. The others run on as many of its rows, with all columns, as ``--seconds`` and
``--memory`` allow (scikit-learn's gradient on a leading square). Before it is timed, each peer is compared with
float64: products on a few rows, and gradients completely.

With more than one thread on a shared machine, set ``OMP_WAIT_POLICY=passive``: otherwise threads that wait for a core
by spinning cost several times the actual work, here and in every library.

The limit is ``n^2 (2d + 2s) / GEMM rate + n^2 / exp rate``, where symmetry halves the n^2 terms of distance and exp.
Both rates are measured in every round with the same threads (``machine_limit.py``).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import statistics
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from kernel_peers import JAX_COLUMNS, JAX_ROWS, PEERS, Call, Peer, Problem, make
from machine_limit import MachineLimit, Rates, timed

from gigagp import __version__
from gigagp.errors import InvalidInputError
from gigagp.products import NativeTiles
from gigagp.runtime.memory import resolve_budget

#: Number of rows of a product that are compared with float64.
CHECKED_ROWS = 32
#: Largest relative errors (in norm) of products and gradients, which are sums of n rounded numbers in any order.
TOLERANCES = {"float32": (1e-4, 1e-3), "float64": (1e-10, 1e-9)}
#: Positions in a pair of measured seconds.
CPU, WALL = 0, 1
#: Suffix of an engine's name for its product with one column, which is timed together with its gradient.
PRODUCT = ", product"


@dataclass
class Runner:
    """One peer in one case, ready for timing."""

    name: str
    peer: Peer
    call: Call
    rows: int
    columns: int
    error: float
    first_call: float
    costs: list[tuple[float, float]] = field(default_factory=list)  # CPU and wall seconds per entry in each round

    def time(self) -> None:
        """Add one measurement."""
        cpu, wall = timed(self.call)
        entries = self.rows * self.columns
        self.costs.append((cpu / entries, wall / entries))

    def median(self, kind: int) -> float:
        """Return the median seconds per entry."""
        return statistics.median(cost[kind] for cost in self.costs)

    def ratio(self, other: Runner, kind: int) -> float:
        """Return the median over rounds of the ratio of this cost to the other runner's."""
        return statistics.median(
            mine[kind] / theirs[kind] for mine, theirs in zip(self.costs, other.costs, strict=True)
        )


@dataclass(frozen=True)
class Case:
    """The computation: a product with s columns, or the gradient (s = 1)."""

    n: int
    d: int
    s: int
    dtype: str
    gradient: bool

    @property
    def title(self) -> str:
        """The case in words."""
        what = "gradient of y'Ky" if self.gradient else f"product, s = {self.s}"
        return f"{what}, n = {self.n:,}, d = {self.d}, {self.dtype}"


def reference_product(problem: Problem, rows: np.ndarray) -> np.ndarray:
    """Return selected rows of ``K V`` in float64, with distances from differences."""
    Z = problem.X.astype(np.float64) * (3**0.5 / problem.lengthscale)
    V = problem.V.astype(np.float64)
    found = []
    for row in rows:
        t = np.sqrt(np.square(Z - Z[row]).sum(1))
        found.append(problem.variance * ((1 + t) * np.exp(-t)) @ V)
    return np.array(found)


@cache
def reference_gradient(n: int, d: int, dtype: str, rows: int, columns: int) -> np.ndarray:
    """Return the gradient of ``y[:rows]' K[:rows, :columns] y[:columns]`` in float64, by its formula."""
    problem = Problem.random(n, d, 1, dtype)
    Z = torch.from_numpy(problem.X.astype(np.float64) * (3**0.5 / problem.lengthscale))
    y = torch.from_numpy(problem.y.astype(np.float64))
    by_log, value = torch.zeros(d, dtype=torch.float64), 0.0
    for i in range(0, rows, JAX_ROWS):
        here, left = Z[i : i + JAX_ROWS], y[i : i + JAX_ROWS]
        for j in range(0, columns, JAX_COLUMNS):
            part = slice(j, min(j + JAX_COLUMNS, columns))
            t = torch.cdist(here, Z[part])
            decay = torch.exp(-t)
            value += float(left @ (((1 + t) * decay) @ y[part]))
            weights = left[:, None] * decay * y[part]  # dk / dlog lengthscale_k = exp(-t) (difference of z_k)^2
            by_log += weights.sum(1) @ here.square() + weights.sum(0) @ Z[part].square()
            by_log -= 2 * (here * (weights @ Z[part])).sum(0)
    natural = problem.variance * by_log.numpy() / problem.lengthscale
    return np.array([*natural, value, problem.noise_gradient(rows)])


def error_of(case: Case, problem: Problem, found: Any, rows: int, columns: int) -> float:
    """Return the relative error of a result; raise an error if it is not due to rounding."""
    found = np.asarray(found, dtype=np.float64)
    shape = (case.d + 2,) if case.gradient else (rows, case.s)
    if found.shape != shape:
        raise ArithmeticError(f"the result has shape {found.shape} instead of {shape}")
    if case.gradient:
        expected = reference_gradient(case.n, case.d, case.dtype, rows, columns)
        groups = [slice(0, case.d), slice(case.d, case.d + 1), slice(case.d + 1, None)]
    else:
        some = np.unique(np.linspace(0, rows - 1, CHECKED_ROWS).astype(int))
        found, expected = found[some], reference_product(problem, some)
        groups = [slice(None)]
    error = max(float(np.linalg.norm(found[g] - expected[g]) / np.linalg.norm(expected[g])) for g in groups)
    tolerance = TOLERANCES[case.dtype][case.gradient]
    if not error <= tolerance:
        raise ArithmeticError(f"wrong: relative error {error:.2g} is more than {tolerance:g}")
    return error


def first(call: Call) -> tuple[Any, float]:
    """Return the result of a first call and its CPU seconds, including those of compilers that it starts."""

    def spent() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    started = spent()
    result = call()
    return result, spent() - started


def prepare(name: str, peer: Peer, case: Case, problem: Problem, seconds: float, memory: int) -> Runner | None:
    """Choose the number of rows, make the first call and check its result."""
    start = peer.gradient if case.gradient else peer.product
    rows = peer.most_rows(case.n, case.d, problem.X.itemsize, memory, gradient=case.gradient)
    rows = rows if peer.whole else rows // JAX_ROWS * JAX_ROWS
    if not rows:
        raise MemoryError(f"{JAX_ROWS} rows do not fit into --memory")
    compilation = 0.0
    if not peer.whole:
        trial = start(problem, JAX_ROWS)
        if trial is None:
            return None
        _, compilation = first(trial)
        columns = peer.columns(case.n, JAX_ROWS, gradient=case.gradient)
        entries = seconds / (timed(trial)[CPU] / (JAX_ROWS * columns))
        affordable = entries / case.n if columns == case.n else entries**0.5
        rows = max(min(rows, int(affordable) // JAX_ROWS * JAX_ROWS), JAX_ROWS)
    call = start(problem, rows)
    assert call is not None
    result, first_call = first(call)
    columns = peer.columns(case.n, rows, gradient=case.gradient)
    error = error_of(case, problem, result, rows, columns)
    return Runner(name, peer, call, rows, columns, error, max(first_call, compilation))


class Benchmark:
    """Runs cases and stores their results.

    Parameters
    ----------
    peers : list of str
        Names of the peers.
    repeats : int
        Number of rounds, each of which times every peer once.
    seconds : float
        CPU seconds of a call by peers that do not use the whole matrix.
    memory : int
        Bytes available for the dense matrices of a call.
    """

    def __init__(self, peers: list[str], repeats: int, seconds: float, memory: int) -> None:
        self.repeats, self.seconds, self.memory = repeats, seconds, memory
        self.peers: dict[str, Peer] = {}
        self.absent: dict[str, str] = {}
        self.failed: list[str] = []
        self.limits: dict[str, MachineLimit] = {}
        self.best: dict[str, Rates] = {}
        self.records: list[dict[str, Any]] = []
        for name in peers:
            try:
                self.peers[name] = make(name)
            except (ImportError, InvalidInputError) as error:
                self.absent[name] = str(error)

    def run(self, case: Case) -> None:
        """Prepare all peers, time them in turns and print the table."""
        problem = Problem.random(case.n, case.d, case.s, case.dtype)
        print(f"\n{case.title}; load average {os.getloadavg()[0]:.1f}", flush=True)
        runners = self._runners(case, problem)
        limit = self.limits.setdefault(case.dtype, MachineLimit(case.dtype))
        rates = []
        for turn in range(self.repeats):
            rates.append(limit.measure())
            for runner in runners if turn % 2 == 0 else reversed(runners):
                runner.time()
            self.best[case.dtype] = rates[-1].best(self.best.get(case.dtype))
        record = self._record(case, runners, rates)
        self.records.append(record)
        print_table(record)

    def _runners(self, case: Case, problem: Problem) -> list[Runner]:
        runners = []
        product = replace(case, gradient=False)
        for name, peer in self.peers.items():
            for this in [case, product] if case.gradient and peer.whole else [case]:
                try:
                    runner = prepare(name, peer, this, problem, self.seconds, self.memory)
                except Exception as error:  # a failing peer must not stop the others
                    traceback.print_exc(limit=-3)
                    self.failed.append(f"{name}, {this.title}: {type(error).__name__}: {error}")
                    continue
                if runner is not None:
                    runner.name += "" if this == case else PRODUCT
                    runners.append(runner)
        return runners

    def _record(self, case: Case, runners: list[Runner], rates: list[Rates]) -> dict[str, Any]:
        """Return medians, ratios to the first peer, and shares of the limit."""
        best = self.best[case.dtype]
        products = {r.name.removesuffix(PRODUCT): r for r in runners if r.name.endswith(PRODUCT)}
        limits = None if case.gradient else [r.limit(case.d, case.s, symmetric=True) for r in [best, *rates]]
        results = []
        for runner in runners:
            result = {
                "peer": runner.name,
                "note": runner.peer.note,
                "rows": runner.rows,
                "columns": runner.columns,
                "relative_error": runner.error,
                "first_call_cpu_seconds": runner.first_call,
                "seconds_an_entry": runner.costs,
            }
            for kind, name in ((CPU, "cpu"), (WALL, "wall")):
                result[f"{name}_ns"] = 1e9 * runner.median(kind)
                result[f"{name}_ratio"] = runner.ratio(runners[0], kind)
                if limits is not None:
                    shares = [limit[kind] / cost[kind] for limit, cost in zip(limits[1:], runner.costs, strict=True)]
                    result[f"{name}_share_of_limit"] = limits[0][kind] / runner.median(kind)
                    result[f"{name}_share_of_limit_by_round"] = statistics.median(shares)
                if runner.name in products:
                    result[f"{name}_gradient_over_product"] = runner.ratio(products[runner.name], kind)
            results.append(result)
        return {
            **asdict(case),
            "title": case.title,
            "load_average": os.getloadavg(),
            "exponential_of": self.limits[case.dtype].exponential_of,
            "best_rates": asdict(best),
            "rates": [asdict(rate) for rate in rates],
            "limit_ns": None if limits is None else [1e9 * seconds for seconds in limits[0]],
            "limit_ns_without_symmetry": [1e9 * x for x in best.limit(case.d, case.s, symmetric=False)],
            "results": results,
        }


def print_table(record: dict[str, Any]) -> None:
    """Print the results of one case."""
    gemm, exponential = (record["best_rates"][name] for name in ("gemm", "exponential"))
    print(
        f"  GEMM {gemm[CPU] / 1e9:.1f} GFLOP/s, exp {exponential[CPU] / 1e9:.2f} G/s of CPU time; "
        f"wall {gemm[WALL] / 1e9:.1f} and {exponential[WALL] / 1e9:.2f}; exp of {record['exponential_of']}"
    )
    print(
        f"  {'':22s} {'rows x columns':>16s} {'ns per entry':>18s} {'ratio':>16s} {'share of limit':>15s}"
        f" {'rel. error':>10s} {'first call':>10s}"
    )
    pair = f"{'CPU':>8s}{'wall':>7s}"
    print(f"  {'':22s} {'':16s} {'CPU':>9s}{'wall':>9s}  {pair} {pair} {'':10s} {'CPU s':>10s}")
    if record["limit_ns"] is not None:
        print(f"  {'limit, symmetric':22s} {'':16s} {record['limit_ns'][CPU]:9.3f}{record['limit_ns'][WALL]:9.3f}")
    for result in record["results"]:
        shape = f"{result['rows']:,} x {result['columns']:,}"
        share = ""
        if record["limit_ns"] is not None:
            share = f"{result['cpu_share_of_limit']:8.0%}{result['wall_share_of_limit']:7.0%}"
        print(
            f"  {result['peer']:22s} {shape:>16s} {result['cpu_ns']:9.3f}{result['wall_ns']:9.3f}  "
            f"{result['cpu_ratio']:8.2f}{result['wall_ratio']:7.2f} {share:15s} {result['relative_error']:10.1e} "
            f"{result['first_call_cpu_seconds']:10.1f}  {result['note']}",
            flush=True,
        )
    for result in record["results"]:
        if "cpu_gradient_over_product" in result:
            ratios = (
                f"{result['cpu_gradient_over_product']:.2f} (CPU), {result['wall_gradient_over_product']:.2f} (wall)"
            )
            print(f"  {result['peer']}: gradient over product with one column {ratios}", flush=True)


def size(text: str) -> int:
    """Return a number of points; 16k is 16,384."""
    n = int(text[:-1]) * 1024 if text.endswith("k") else int(text)
    if n < JAX_COLUMNS or n % JAX_COLUMNS:
        raise argparse.ArgumentTypeError(f"must be a multiple of {JAX_COLUMNS} (tiles of JAX), got {text}")
    return n


def with_environment(threads: int, keep_memory: bool) -> None:
    """Restart this program if the environment variables that its libraries read at start are not set."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC")  # the last one is read by XLA
    wanted = {name: str(threads) for name in names}
    if keep_memory:  # glibc: do not map large arrays separately, and return nothing to the system
        wanted |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_TOP_PAD_": str(2**28)}
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **wanted})
    torch.set_num_threads(threads)


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def main() -> None:
    """Run the requested cases and write the JSON after each of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, nargs="+", default=[4, 18, 90])
    parser.add_argument("--s", type=int, nargs="+", default=[1, 17, 65])
    parser.add_argument("--n", type=size, nargs="+", default=[16384, 65536], help="numbers of points; 16k is 16,384")
    parser.add_argument("--dtypes", nargs="+", choices=list(TOLERANCES), default=list(TOLERANCES))
    parser.add_argument("--operations", nargs="+", choices=["product", "gradient"], default=["product", "gradient"])
    parser.add_argument(
        "--peers",
        nargs="+",
        default=list(PEERS),
        help=f"some of {', '.join(PEERS)}, and native:NAME for one of the instruction sets "
        f"{', '.join(NativeTiles.instruction_sets())}; ratios are to the first one",
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5, help="number of rounds")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="CPU seconds per call of peers that use only some rows"
    )
    parser.add_argument("--memory", default="2GiB", help="memory for the dense matrices of these peers")
    parser.add_argument(
        "--keep-memory",
        action="store_true",
        help="keep freed memory in the process (glibc), which avoids page faults of peers that allocate whole matrices",
    )
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    unknown = [name for name in arguments.peers if name not in PEERS and not name.startswith("native:")]
    if unknown:
        parser.error(f"unknown peers: {', '.join(unknown)}")
    if min(arguments.threads, arguments.repeats, *arguments.d, *arguments.s) < 1 or not arguments.seconds > 0:
        parser.error("--d, --s, --threads, --repeats and --seconds must be positive")
    with_environment(arguments.threads, arguments.keep_memory)

    packages = ["torch", "gpytorch", "pykeops", "jax", "scikit-learn", "numpy"]
    settings = {
        "arguments": {name: str(value) if name == "json" else value for name, value in vars(arguments).items()},
        "versions": {"gigagp": __version__, **{name: version(name) for name in packages}},
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY"),
    }
    memory = "kept by the process" if arguments.keep_memory else "as the allocator does by default"
    print(f"{settings['platform']}, {os.cpu_count()} CPUs, {arguments.threads} threads; {settings['versions']}")
    print(f"freed memory: {memory}")
    benchmark = Benchmark(arguments.peers, arguments.repeats, arguments.seconds, resolve_budget(arguments.memory))
    for name, reason in benchmark.absent.items():
        print(f"absent: {name} ({reason})")
    if not benchmark.peers:
        parser.error("none of the peers is installed")
    for dtype, n, d in itertools.product(arguments.dtypes, arguments.n, arguments.d):
        cases = [Case(n, d, s, dtype, False) for s in arguments.s] if "product" in arguments.operations else []
        cases += [Case(n, d, 1, dtype, True)] if "gradient" in arguments.operations else []
        for case in cases:
            benchmark.run(case)
            if arguments.json is not None:
                kept = {"absent": benchmark.absent, "failed": benchmark.failed, "cases": benchmark.records}
                arguments.json.write_text(json.dumps({"settings": settings, **kept}, indent=1), encoding="utf-8")
    for failure in benchmark.failed:
        print(f"FAILED: {failure}")
    sys.exit(1 if benchmark.failed else 0)


if __name__ == "__main__":
    main()
