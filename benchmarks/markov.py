"""Likelihood and gradient of many rows of one input by `inference.Markov`, beside Cholesky factors and peers.

    pip install celerite2 tinygp
    python benchmarks/markov.py --json benchmarks/results/markov.json
    python benchmarks/markov.py --rows 1200 12000 78888 --entities 12 --json benchmarks/results/markov_panels.json

One thread; the smallest CPU seconds of three evaluations at given hyperparameters, with random steps in time and no
mean. Cholesky factors stop at ``--exact`` rows. celerite2 (its likelihood; NumPy has no gradient there) and tinygp
(quasiseparable kernels, compiled by JAX, without the time of compilation) are measured on the kernels that they share,
if they are installed: every value is of the same likelihood. With ``--entities`` rows are the cells of a panel, whose
kernel has covariances of fast and of slow curves, offsets and a common curve.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from maps import cpu_seconds, write

from gigagp.inference.contract.objective import ExactObjective, TableObjective
from gigagp.inference.contract.table import TrainingTable
from gigagp.inference.markov.objective import MarkovObjective
from gigagp.inference.markov.states import Axis, States
from gigagp.kernels import Cosine, Group, IntegratedWiener, Kernel, Matern, Oscillator, Outputs, Periodic, Sum
from gigagp.model.means import ZeroMean
from gigagp.model.model import Model

KERNELS: dict[str, Callable[[], Kernel]] = {
    "Matern-1/2": lambda: Matern(0.5, 1.0, 1.0),
    "Matern-3/2": lambda: Matern(1.5, 1.0, 1.0),
    "Matern-5/2": lambda: Matern(2.5, 1.0, 1.0),
    "oscillator": lambda: Oscillator(1.0, 6.0, 4.0),
    "trend and cycle": lambda: IntegratedWiener(0.01) + Cosine(1.0, 6.0) * Matern(1.5, 10.0, 1.0),
    "Matern-3/2 and season": lambda: Matern(1.5, 1.0, 1.0) + Periodic(1.0, 1.0, 6.0),
}
NOISE = 0.09
#: Most rows times squared numbers of a state that are measured: some ten seconds.
LARGEST = 1e8


def measured(make: Callable[[], TableObjective], model: Model) -> dict[str, object]:
    """Return the least CPU seconds of a value, and of a value with its gradient, of three each."""
    value = min(cpu_seconds(lambda: make().quick_value(model))[1] for _ in range(3))
    found = [cpu_seconds(lambda: make().evaluate(model)) for _ in range(3)]
    return {"value": found[0][0].value, "value_cpu_s": value, "gradient_cpu_s": min(one[1] for one in found)}  # type: ignore[attr-defined]


def celerite(x: np.ndarray, y: np.ndarray) -> dict[str, object] | None:
    """Return the value and the CPU seconds of celerite2's likelihood with the oscillator."""
    try:
        import celerite2
        from celerite2 import terms
    except ImportError:
        return None

    def value() -> float:
        gp = celerite2.GaussianProcess(terms.SHOTerm(sigma=1.0, rho=6.0, Q=4.0), mean=0.0)
        gp.compute(x, diag=np.full(len(x), NOISE))
        return float(gp.log_likelihood(y))

    found = [cpu_seconds(value) for _ in range(3)]
    return {"value": found[0][0], "value_cpu_s": min(one[1] for one in found)}


#: The arguments of tinygp's quasiseparable kernels.
QUASISEPARABLE = {
    "Matern-1/2": ("Exp", {"scale": 1.0, "sigma": 1.0}),
    "Matern-3/2": ("Matern32", {"scale": 1.0, "sigma": 1.0}),
    "Matern-5/2": ("Matern52", {"scale": 1.0, "sigma": 1.0}),
    "oscillator": ("SHO", {"omega": 2 * np.pi / 6.0, "quality": 4.0, "sigma": 1.0}),
}


def tinygp(name: str, x: np.ndarray, y: np.ndarray) -> dict[str, object] | None:
    """Return the value and the CPU seconds of tinygp's likelihood, and of its gradient in all hyperparameters."""
    try:
        import jax
        from tinygp import GaussianProcess
        from tinygp.kernels import quasisep
    except ImportError:
        return None
    jax.config.update("jax_enable_x64", True)
    kernel, given = QUASISEPARABLE[name]

    def likelihood(values: dict[str, float]) -> object:
        noise = values["noise"]
        own = {key: one for key, one in values.items() if key != "noise"}
        return GaussianProcess(getattr(quasisep, kernel)(**own), x, diag=noise).log_probability(y)

    seconds = []
    for function in (jax.jit(likelihood), jax.jit(jax.value_and_grad(likelihood))):
        jax.block_until_ready(function(given | {"noise": NOISE}))
        found = [cpu_seconds(lambda: jax.block_until_ready(function(given | {"noise": NOISE}))) for _ in range(3)]  # noqa: B023
        seconds.append(min(one[1] for one in found))
    value = float(jax.jit(likelihood)(given | {"noise": NOISE}))
    return {"value": value, "value_cpu_s": seconds[0], "gradient_cpu_s": seconds[1]}


def panel_of(n_entities: int, n_cells: int) -> tuple[np.ndarray, Kernel]:
    """Return the cells (entity, time) of a complete panel, time by time, and its kernel."""
    times = Matern(0.5, 5.0, 1.0, columns=[1], fixed=["variance"])
    slow = Matern(0.5, 150.0, 1.0, columns=[1], fixed=["variance"])
    each = Outputs(n_entities, columns=[0])
    kernel = Sum(each * times, each * slow, Group(0), Matern(0.5, 50.0, 1.0, columns=[1]))
    return np.stack([np.arange(n_cells) % n_entities, np.arange(n_cells) // n_entities], 1).astype(float), kernel


def panels(rows: list[int], n_entities: int, exact: int) -> Iterator[dict[str, object]]:
    """Time the likelihood of panels of some numbers of cells."""
    for n in rows:
        X, kernel = panel_of(n_entities, n)
        y, mean = np.random.default_rng(0).normal(size=(n, 1)), ZeroMean()
        table = TrainingTable(torch.from_numpy(X), torch.from_numpy(y), mean, 2**35)
        model = Model(kernel.bind(2), mean, torch.tensor(NOISE, dtype=torch.float64))
        ways = {"Markov": measured(lambda: MarkovObjective(table, model), model)}  # noqa: B023
        if n <= exact:
            ways["Cholesky"] = measured(lambda: ExactObjective(table), model)  # noqa: B023
        for method, found in ways.items():
            yield {"rows": n, "entities": n_entities, "method": method, **found}


def main() -> None:
    """Time all kernels on all numbers of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[300, 1000, 3000, 100_000, 1_000_000])
    parser.add_argument("--exact", type=int, default=3000, help="most rows of a Cholesky factor")
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS), choices=list(KERNELS))
    parser.add_argument("--entities", type=int, default=None, help="of panels")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = []
    if arguments.entities is not None:
        for found in panels(arguments.rows, arguments.entities, arguments.exact):
            rows.append(found)
            print(found, flush=True)
            write(arguments.json, vars(arguments), rows)
        return
    for n in arguments.rows:
        draw = np.random.default_rng(0)
        x = np.cumsum(draw.exponential(0.1, n))
        y = np.sin(x) + np.sqrt(NOISE) * draw.normal(size=n)
        mean = ZeroMean()
        table = TrainingTable(torch.from_numpy(x)[:, None], torch.from_numpy(y)[:, None], mean, 2**35)
        for name in arguments.kernels:
            model = Model(KERNELS[name]().bind(1), mean, torch.tensor(NOISE, dtype=torch.float64))
            if n * States(model.kernel, Axis.of_one_input()).size ** 2 > LARGEST:
                continue
            ways: dict[str, object] = {"Markov": measured(lambda: MarkovObjective(table), model)}  # noqa: B023
            if n <= arguments.exact:
                ways["Cholesky"] = measured(lambda: ExactObjective(table), model)  # noqa: B023
            if name == "oscillator" and (peer := celerite(x, y)) is not None:
                ways["celerite2"] = peer
            if name in QUASISEPARABLE and (peer := tinygp(name, x, y)) is not None:
                ways["tinygp"] = peer
            for method, found in ways.items():
                rows.append({"rows": n, "kernel": name, "method": method, **found})  # type: ignore[dict-item]
                print(rows[-1], flush=True)
                write(arguments.json, vars(arguments), rows)


if __name__ == "__main__":
    main()
