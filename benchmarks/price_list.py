"""What a training step costs in time, memory and traffic, for 1e6 to 1e10 rows on 1 to 1,000 nodes.

    python benchmarks/price_list.py --json benchmarks/results/price_list.json

A model on paper, from the measurements of a process without others in ``benchmarks/results/distributed.json`` and the
rates of `gigagp.runtime.machine`. Before it is used, it is checked against the measurements of two processes there,
none of which it was fitted to: the bytes that each step receives, and the time of a step of exact inference from that
of its products. A node is assumed to have 16 cores of the speed of those of the benchmarks, used without loss, 64 GiB
of memory, and to receive 1.25 GB a second (10 Gbit). It runs one process. Broadcasts are taken to reach all nodes at
that rate; in gloo they pass through a tree of nodes, and may take as many times as long as it has levels. Nothing here
was measured on more than one machine. With ``--markdown`` it prints the table of ``docs/scale.md``.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from distributed import COLUMNS
from maps import write

from gigagp.products.shared_tiles import n_terms
from gigagp.runtime.group import row_edges
from gigagp.runtime.machine import MULTIPLICATION
from gigagp.runtime.processes import _SUM_TERMS

RESULTS = Path(__file__).parent / "results"
#: A node: cores, bytes of memory, and bytes that it receives in a second.
CORES, MEMORY, NETWORK = 16, 64 * 2**30, 1.25e9
ROWS = (10**6, 10**7, 10**8, 10**9, 10**10)
NODES = (1, 10, 100, 1000)
#: Inputs of a row, neighbours of a row, inducing points, and nodes of a grid.
INPUTS, NEIGHBOURS, INDUCING, GRID = 3, 30, 512, 10**6
#: Products of features with m x m matrices in a gradient of the collapsed bound, and numbers of a row in it.
POINT_PRODUCTS = 3
#: Vectors of length n beside the columns of a solve: solutions, residuals, directions, preconditioned ones.
COPIES = 4
MINUTE, DAY = 60.0, 86_400.0


@dataclass(frozen=True)
class Price:
    """A step of one method.

    Attributes
    ----------
    seconds : float
        Of computing, on the processes that have work.
    network : float
        Seconds of receiving.
    memory : float
        Bytes that each node holds.
    received : float
        Bytes that each node receives in a step.
    working : int
        Nodes that have work.
    """

    seconds: float
    network: float
    memory: float
    received: float
    working: int

    @property
    def breaks(self) -> str:
        """What makes the step impossible or not worth its nodes, the first that applies."""
        if self.memory > MEMORY:
            return "memory"
        if self.network > max(self.seconds, MINUTE):
            return "network"
        return "time" if self.step > DAY else ""

    @property
    def step(self) -> float:
        """Seconds of computing and receiving."""
        return self.seconds + self.network


def measured(job: str, processes: int) -> dict[str, float]:
    """Return the figures of a job in one of the processes; 0 processes: without others."""
    rows = json.loads((RESULTS / "distributed.json").read_text(encoding="utf-8"))["rows"]
    return next(one for one in rows if one["job"] == job and one["processes"] == processes)


def settings() -> int:
    """Return the rows of the measurements."""
    return int(json.loads((RESULTS / "distributed.json").read_text(encoding="utf-8"))["settings"]["rows"])


def sum_bytes(numbers: float, terms: int, nodes: int) -> float:
    """Return the bytes that a process receives of a sum: the largest subtrees of all other processes."""
    if nodes == 1:
        return 0.0
    working = min(nodes, terms)
    even = working & (working - 1) == 0
    subtrees = (
        working
        if even
        else sum(bin(terms * r // working ^ terms * (r + 1) // working).count("1") for r in range(working))
    )
    return 8.0 * numbers * max(subtrees - subtrees // working, 1)


def products_of_a_step() -> float:
    """Return the products of a step of exact inference, from the bytes that one received in two processes."""
    return measured("iterative, step", 2)["received_bytes"] / sum_bytes(settings() * COLUMNS, n_terms(settings()), 2)


def iterative(n: int, nodes: int) -> Price:
    """Return a step of exact inference by solves, with the products of a solve as measured."""
    terms, count = n_terms(n), products_of_a_step()
    working = min(nodes, terms)
    entry = measured("product", 0)["cpu_s"] / settings() ** 2
    gradient = measured("gradient", 0)["cpu_s"] / settings() ** 2
    received = count * sum_bytes(n * COLUMNS, terms, nodes)
    memory = 8.0 * n * (INPUTS + COPIES * COLUMNS + sums_alive(terms, working) * COLUMNS) + 24.0 * n * NEIGHBOURS
    return Price((count * entry + gradient) * n**2 / (working * CORES), received / NETWORK, memory, received, working)


def sums_alive(terms: int, working: int) -> int:
    """Return the partial sums that a process holds at once: one for each level of its part of the tree, and another."""
    return (terms // working).bit_length() + 1


def vecchia(n: int, nodes: int) -> Price:
    """Return a step of the likelihood by neighbours on all rows."""
    working = min(nodes, 16)
    row = measured("neighbours, step", 0)["cpu_s"] / settings()
    received = measured("neighbours, step", 2)["received_bytes"] / settings() * 2 * n * (1 - 1 / nodes)
    memory = 8.0 * n * (INPUTS + 2) + 12.0 * n * NEIGHBOURS
    return Price(row * n / (working * CORES), received / NETWORK, memory, received, working)


def inducing(n: int, nodes: int) -> Price:
    """Return a step of the collapsed bound of inducing points."""
    terms = _SUM_TERMS
    working = min(nodes, terms)
    received = sum_bytes(INDUCING**2, terms, nodes)
    memory = 8.0 * (n * (INPUTS + 3) + 26 * INDUCING**2)
    seconds = POINT_PRODUCTS * MULTIPLICATION * INDUCING**2 * n / (working * CORES)
    return Price(seconds, received / NETWORK, memory, received, working)


def grid(n: int, nodes: int) -> Price:
    """Return the one pass over the files of a grid: nothing else depends on the rows."""
    passes = json.loads((RESULTS / "grid_pass.json").read_text(encoding="utf-8"))
    rate = passes["rows_a_second"]["moments"] / passes["threads"]
    stencil = 7**INPUTS / 2
    received = 0.0 if nodes == 1 else 2 * 8.0 * GRID * stencil
    return Price(n / (rate * CORES * nodes), received / NETWORK, 2 * 8.0 * GRID * stencil, received, nodes)


METHODS = {"Iterative": iterative, "Vecchia": vecchia, "SparseVariational": inducing, "Grid": grid}


def checks() -> list[dict[str, object]]:
    """Return what the model says of the measurements in two processes, beside these."""
    n, found = settings(), []
    terms, count = n_terms(n), products_of_a_step()
    product, gradient = (measured(job, 2)["cpu_s"] for job in ("product", "gradient"))
    alone = count * measured("product", 0)["cpu_s"] + measured("gradient", 0)["cpu_s"]
    edges = row_edges(n)
    pairs = {
        "bytes of a product": (sum_bytes(n * COLUMNS, terms, 2), measured("product", 2)["received_bytes"]),
        "bytes of a search": (
            4.0 * NEIGHBOURS * (n - edges[len(edges) // 2]),
            measured("neighbours, search", 2)["received_bytes"],
        ),
        "CPU s of a step of Iterative, one process": (alone, measured("iterative, step", 0)["cpu_s"]),
        "CPU s of a step of Iterative, two processes": (
            count * product + gradient,
            measured("iterative, step", 2)["cpu_s"],
        ),
        "CPU s of a product, two processes, shared without loss": (measured("product", 0)["cpu_s"] / 2, product),
        "CPU s of a step of Vecchia, two processes, shared without loss": (
            measured("neighbours, step", 0)["cpu_s"] / 2,
            measured("neighbours, step", 2)["cpu_s"],
        ),
    }
    for what, (model, seen) in pairs.items():
        off, excess = model / seen - 1, seen / model - 1
        found.append({"method": "check", "check": what, "model": model, "measured": seen, "off": off, "excess": excess})
    return found


def markdown() -> str:
    """Return the table of the documentation, with the places of its numbers."""
    heads = "".join(f" {nodes:,} node{'s' * (nodes > 1)} |" for nodes in NODES)
    lines = [f"| method, rows |{heads} a node holds | breaks first |", "|---|" + "---|" * (len(NODES) + 2)]
    places = []
    for method in METHODS:
        for n in ROWS:
            costs = [METHODS[method](n, nodes) for nodes in NODES]
            shown = ["-" if one.breaks == "memory" else f"{one.step:,.0f} s" for one in costs]
            shown = [f"{one.step:.2g} s" if one.step < 10 else cell for one, cell in zip(costs, shown, strict=True)]
            worst = list(dict.fromkeys(one.breaks for one in costs if one.breaks))
            gib = costs[-1].memory / 2**30
            held = f"{gib:,.0f} GiB" if gib >= 10 else f"{gib:.2g} GiB"
            lines.append(
                f"| {method}, {n:.0e} | {' | '.join(shown)} | {held} | {', '.join(worst)} |".replace("e+", "e")
            )
            places.append(f"[method={method},rows={n}]/step,memory_gib")
    return "\n".join([*lines, "", "<!-- numbers: price_list.json/rows", *places, "-->"])


def main() -> None:
    """Check the model, and print its prices."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    found = checks()
    for one in found:
        print(f"{one['check']:64s} model {one['model']:.4g}, measured {one['measured']:.4g}, off by {one['off']:+.1%}")
    for name, price in METHODS.items():
        print(f"\n{name}\n{'rows':>8}{'nodes':>7}{'compute s':>12}{'network s':>12}{'GiB a node':>12}  breaks first")
        for n in ROWS:
            for nodes in NODES:
                cost = price(n, nodes)
                gib = cost.memory / 2**30
                print(f"{n:8.0e}{nodes:7d}{cost.seconds:12.3g}{cost.network:12.3g}{gib:12.3g}  {cost.breaks}")
                figures = {**vars(cost), "step": cost.step, "memory_gib": gib, "breaks": cost.breaks}
                found.append({"method": name, "rows": n, "nodes": nodes, **figures})
    if arguments.markdown:
        print(f"\n{markdown()}")
    assumed = {"cores": CORES, "memory": MEMORY, "bytes_a_second": NETWORK, "columns": COLUMNS}
    write(arguments.json, {**assumed, "products_of_a_step": products_of_a_step()}, found)


if __name__ == "__main__":
    main()
