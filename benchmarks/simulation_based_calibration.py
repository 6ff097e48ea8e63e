r"""Simulation-based calibration of every inference method: ranks of the truth among posterior samples.

    python benchmarks/simulation_based_calibration.py --json benchmarks/results/simulation_based_calibration.json \
        --plot docs/figures/simulation-based-calibration.png

With ``--only vecchia`` the rows of some methods are computed again and put into the same files.

Functions and targets are drawn from the prior, with 24 rows per problem, and every inference method conditions on them
at the hyperparameters from which they were drawn (`tests/contract/calibration.py`). If the samples come from the
posterior, the ranks of the truth among them are uniform. The first jobs are the methods of the contract
(`tests/contract/systems.py`) at their exact limits, none of which should be rejected at 1 %; features and grids get
functions for which they are exact. The next jobs are approximations without such limits, among them Laplace's
approximation for targets that are not Gaussian, with as many neighbours as rows. Then comes the control: exact
samples with 15 % less spread. ``spread`` is the mean square of the truth's normal scores: samples are too narrow above
1 and too wide below. The last part is computation-aware inference with few actions. It reports its variance minus the
exact one at every point, and the mean square of the mean's errors in its own standard deviations, which should not
exceed 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from checkout import commit

from contract.calibration import (  # the table of all inferences is that of the tests
    NO_PRIOR,
    OWN_PRIOR,
    Ranks,
    learned_spread,
    simulate,
)
from contract.problems import LIKELIHOODS
from contract.systems import BY_NAME, SYSTEMS, System
from gigagp import __version__, actions, inference
from gigagp.errors import GigaGPWarning

BINS, LEVEL = 16, 0.01
EXACT = BY_NAME["exact"]
GAUSSIAN, *OTHERS = LIKELIHOODS
APPROXIMATE: tuple[System, ...] = (
    *(BY_NAME[name] for name in (*OWN_PRIOR[:2], *NO_PRIOR)),
    replace(EXACT, name="random features, 40", make=lambda p: inference.RandomFeatures(40)),
    replace(EXACT, name="vecchia, 5 neighbours", make=lambda p: inference.Vecchia(5, 8)),
    replace(EXACT, name="SGPR, 8 points", make=lambda p: inference.SparseVariational(8, learn_inducing_points=False)),
    replace(EXACT, name="grid of 14 nodes", make=lambda p: inference.Grid(14)),
    replace(EXACT, name="quadruply, 8 points", make=lambda p: inference.QuadruplyStochastic(8, basis="inducing")),
)
POLICIES: dict[str, actions.Policy] = {
    "learned": actions.Learned(),
    "CG": actions.ConjugateGradients(),
    "random": actions.Random(),
    "rows": actions.UnitVectors(),
}
COUNTS = (2, 4, 8, 16)


def report(name: str, kind: str, found: Ranks, seconds: float) -> dict[str, Any]:
    """Print one line and return it."""
    p = found.p_values(BINS)
    verdict = "rejected" if p["all"] < LEVEL else ""
    print(
        f"{kind:12s} {name:24s} {found.ranks.size:6d} {p['histogram']:10.3g} {p['location']:10.3g} {p['spread']:10.3g} "
        f"{p['all']:10.3g} {found.spread:7.3f} {seconds:8.1f}  {verdict}",
        flush=True,
    )
    histogram = found.histogram(BINS).tolist()
    numbers = {"ranks": int(found.ranks.size), "histogram": histogram, "p": p, "spread": found.spread}
    return {"name": name, "kind": kind, **numbers, "rejected": bool(verdict), "seconds": seconds}


def ranks(problems: int, mean: str, only: list[str]) -> list[dict[str, Any]]:
    """Simulate every inference method, the approximations and the control, or those whose names begin as given."""
    print(
        f"{'':12s} {'':24s} {'ranks':>6s} {'histogram':>10s} {'location':>10s} {'spread p':>10s} {'all':>10s} "
        f"{'spread':>7s} {'seconds':>8s}"
    )
    jobs = [("exact limit", one, 1.0, GAUSSIAN) for one in SYSTEMS if one.name not in NO_PRIOR]
    jobs += [("approximate", one, 1.0, GAUSSIAN) for one in APPROXIMATE]
    by_laplace = BY_NAME["vecchia"]
    jobs += [("approximate", replace(by_laplace, name=f"vecchia, {one}"), 1.0, one) for one in OTHERS]
    jobs += [("control", replace(EXACT, name="exact, 15 % narrower"), 0.85, GAUSSIAN)]
    rows = []
    for kind, system, shrink, likelihood in jobs:
        if only and not system.name.startswith(tuple(only)):
            continue
        began = time.perf_counter()
        with warnings.catch_warnings():
            if kind == "approximate":  # coarse grids issue warnings
                warnings.simplefilter("ignore", GigaGPWarning)
            own = kind == "exact limit" and system.name in OWN_PRIOR
            given = mean if likelihood == GAUSSIAN else "zero"  # counts and signs have no trend
            found = simulate(system, problems, mean=given, shrink=shrink, own_prior=own, likelihood=likelihood)
        rows.append(report(system.name, kind, found, time.perf_counter() - began))
    return rows


def never_overconfident(problems: int, mean: str) -> list[dict[str, Any]]:
    """Compare variances with few actions with the exact ones, and errors with these variances."""
    print(f"\n{'policy':10s} {'actions':>7s} {'least gain':>11s} {'median':>9s} {'error^2/variance':>17s} {'s.e.':>6s}")
    rows = []
    for name, policy in POLICIES.items():
        for count in COUNTS:
            chosen = inference.ComputationAware(count, policy)
            found = simulate(replace(EXACT, name=name, make=lambda p, chosen=chosen: chosen), problems, mean=mean)
            squares = (found.scores**2).mean(1)
            row = {
                "policy": name,
                "actions": count,
                "least_gain": float(found.gains.min()),
                "median_gain": float(np.median(found.gains)),
                "squared_score": float(squares.mean()),
                "standard_error": float(squares.std() / len(squares) ** 0.5),
            }
            print(
                f"{name:10s} {count:7d} {row['least_gain']:11.2g} {row['median_gain']:9.2g} "
                f"{row['squared_score']:17.3f} {row['standard_error']:6.3f}",
                flush=True,
            )
            rows.append(row)
    return rows


def with_learning(problems: int) -> list[dict[str, Any]]:
    """Compare samples at learned and at uncertain hyperparameters."""
    print(f"\n{'hyperparameters':16s} {'problems':>8s} {'spread':>7s} {'s.e.':>6s}")
    rows = []
    for hyperparameters in ("learned", "laplace"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GigaGPWarning)  # learning ends early on some tables of pure noise
            found = learned_spread(problems, hyperparameters)
        row = {"hyperparameters": hyperparameters, "problems": problems, "spread": float(found.mean())}
        row["standard_error"] = float(found.std() / problems**0.5)
        print(f"{hyperparameters:16s} {problems:8d} {row['spread']:7.3f} {row['standard_error']:6.3f}", flush=True)
        rows.append(row)
    return rows


def merged(earlier: dict[str, Any], rows: list[dict[str, Any]], where: str) -> dict[str, Any]:
    """Return earlier figures with some rows replaced by new ones of another commit, in the order of kinds."""
    both = [*earlier["ranks"], *({**row, "commit": where} for row in rows)]
    every = {(row["kind"], row["name"]): row for row in both}
    kinds = ["exact limit", "approximate", "control"]
    return {**earlier, "ranks": sorted(every.values(), key=lambda row: kinds.index(row["kind"]))}


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Plot the histograms of ranks, one panel each, with the band that contains uniform ranks."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from scipy import stats

    columns = 6
    height = -(-len(rows) // columns)
    figure = Figure(figsize=(2.1 * columns, 1.5 * height + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(height, columns, squeeze=False).ravel()
    colours = {"exact limit": "C0", "approximate": "C1", "control": "C3"}
    for panel, row in zip(panels, rows, strict=False):
        low, high = stats.binom.interval(0.99, row["ranks"], 1 / BINS)
        panel.axhspan(low, high, color="0.88")
        panel.bar(range(BINS), row["histogram"], width=0.9, color=colours[row["kind"]])
        panel.set_title(f"{row['name']}\np = {row['p']['all']:.2g}", fontsize=7)
        panel.set_xticks([])
        panel.set_yticks([])
        panel.set_ylim(0, max(2.2 * row["ranks"] / BINS, 1.05 * max(row["histogram"])))
    for panel in panels[len(rows) :]:
        panel.remove()
    figure.suptitle("Ranks of the truth among samples; grey: 99 % of uniform ranks. Blue: exact limits", fontsize=9)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Print the tables; write JSON and the plot if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--problems", type=int, default=200, help="number of problems per inference method, with six ranks each"
    )
    parser.add_argument(
        "--aware-problems", type=int, default=100, help="number of problems per policy and number of actions"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        help="beginnings of names, or hyperparameters; their rows are replaced in the JSON, or added to it",
    )
    parser.add_argument("--mean", choices=["zero", "constant", "linear"], default="linear")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    began, where = time.perf_counter(), commit()
    print(f"gigagp {__version__} at {where}: {options.problems} problems, mean {options.mean}, {BINS} bins")
    rows = ranks(options.problems, options.mean, options.only)
    aware = [] if options.only else never_overconfident(options.aware_problems, options.mean)
    learned = []
    if not options.only or "hyperparameters" in options.only:
        learned = with_learning(options.problems)
    seconds = time.perf_counter() - began
    limits = [row for row in rows if row["kind"] == "exact limit"]
    rejected = [row["name"] for row in limits if row["rejected"]]
    names = ", ".join(rejected) or "none"
    print(f"\nrejected at {LEVEL:.0%} over exact limits: {names} of {len(limits)}; {seconds:.0f} s")
    if options.json:
        settings = {"problems": options.problems, "aware_problems": options.aware_problems, "mean": options.mean}
        found = {"version": __version__, "commit": where, "settings": settings, "bins": BINS, "seconds": seconds}
        found |= {"ranks": rows, "never_overconfident": aware, "learned": learned}
        if options.only:
            found = merged(json.loads(options.json.read_text(encoding="utf-8")), rows, where)
            if learned:
                found["learned"] = [{**row, "commit": where} for row in learned]
            rows = found["ranks"]
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
