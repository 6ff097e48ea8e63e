"""What the papers claim, beside what our numbers show: the table that the index of the papers begins with.

A claim is a sentence of a paper and a rule that reads its verdict from the results of one experiment, so that a verdict
changes with the records and not by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from benchmarks.papers import iterative_figures
from benchmarks.papers.experiment import Results

#: What a rule returns: what was found in words, and whether the claim holds (None: in part).
Shown = tuple[str, bool | None]


@dataclass(frozen=True)
class Claim:
    """A claim of a paper.

    Attributes
    ----------
    text : str
    experiment : str
        Name of the experiment that tells.
    show : callable
        The rule; ``show(results)`` is called where the experiment has results, and raises LookupError where these do
        not have the rows that it reads.
    """

    text: str
    experiment: str
    show: Callable[[Results], Shown]


def verdict(shown: Shown | None, *, smaller: bool) -> str:
    """Return the verdict in words; ``smaller``: some rows ran with settings that are not the paper's."""
    if shown is None:
        return "lacks data"
    words = {True: "reproduced", False: "not reproduced", None: "in part"}[shown[1]]
    return f"{words}, on smaller runs" if smaller else words


def _all(held: Sequence[bool]) -> bool | None:
    """Return True or False where all cases agree, else None."""
    if not held:
        raise LookupError("no rows to judge by")
    return None if any(held) and not all(held) else all(held)


def _ends_of(values: Sequence[float]) -> tuple[float, float]:
    """Return the smallest and the largest value."""
    if not values:
        raise LookupError("no rows to judge by")
    return min(values), max(values)


def _cells(results: Results, name: str, data: str = "") -> list[dict[str, Any]]:
    for row, numbers in results:
        if row.name == name and (not data or row.data == data):
            return numbers
    raise LookupError(f"no row {name}")


def _cell(results: Results, name: str, data: str = "") -> dict[str, Any]:
    return _cells(results, name, data)[0]


def _mean(numbers: list[dict[str, Any]], key: str) -> float:
    return float(np.mean([one[key] for one in numbers]))


def _printed(results: Results, key: str) -> Shown:
    """Compare means with printed numbers, by the paper's own spread."""
    judged = [
        (row, row.paper[key].agrees([one[key] for one in numbers if one[key] is not None]))
        for row, numbers in results
        if key in row.paper
    ]
    known = [agrees for _, agrees in judged if agrees is not None]
    return f"{sum(known)} of {len(known)} rows are within two standard errors of the printed number", _all(known)


# Lin et al. 2024


def _faster(results: Results) -> Shown:
    theirs = {"cg": 1.9, "ap": 72.1, "sgd": 7.2}
    ours = {}
    for solver in theirs:
        ratios = []
        for data in iterative_figures.datasets(results):
            cold, warm = (
                iterative_figures.select(results, data=data, solver=solver, estimator=one, start=other)
                for one, other in (("standard", "cold"), ("pathwise", "warm"))
            )
            if cold and warm:
                ratios.append(_mean(cold[0][1], "epochs") / _mean(warm[0][1], "epochs"))
        if not ratios:
            raise LookupError(f"no pair of {solver}")
        ours[solver] = float(np.mean(ratios))
    words = ", ".join(f"{solver.upper()} {ours[solver]:.1f} (paper: {theirs[solver]})" for solver in theirs)
    return f"times fewer epochs: {words}", _all([ours[solver] > 0.5 * theirs[solver] for solver in theirs])


def _unbiased_starts(results: Results) -> Shown:
    paths = [np.abs(path).ravel() for _, path in iterative_figures.exact_paths(results)]
    if not paths:
        raise LookupError("no row has an exact one on the same rows")
    off = np.concatenate(paths)
    share = np.quantile(off, 0.95)
    return f"differences of log hyperparameters: median {np.median(off):.2g}, 95 % below {share:.2g}", bool(share < 0.1)


def _rows_of_distances(results: Results) -> Shown:
    words, held = [], []
    for data in iterative_figures.datasets(results):
        cell = _cell(results, "pathwise, cold", data)
        ratio = cell["rms_distance"] ** 2 / cell["rows"]
        words.append(f"{data} {ratio:.3f}")
        held.append(abs(ratio - 1) < 0.05)
    return f"squared distance over the number of rows: {', '.join(words)}", _all(held)


def _nearer_starts(results: Results) -> Shown:
    words, held = [], []
    for data in iterative_figures.datasets(results):
        for kind in ("standard", "pathwise"):
            cold, warm = (_cell(results, f"{kind}, {start}", data)["rms_distance"] for start in ("cold", "warm"))
            words.append(f"{data}, {kind} {cold / warm:.1f}")
            held.append(warm < cold)
    return f"cold over warm distances: {', '.join(words)}", _all(held)


def _budgets(results: Results) -> Shown:
    pairs = []
    for row, numbers in results:
        if row.settings.get("estimator") == "standard" and row.settings["start"] == "cold":
            chosen = {name: row.settings[name] for name in ("solver", "max_epochs")}
            warm = iterative_figures.select(results, data=row.data, estimator="pathwise", start="warm", **chosen)
            pairs += [(numbers[0]["residual_probes_last"], other[0]["residual_probes_last"]) for _, other in warm]
    smaller = sum(warm < cold for cold, warm in pairs)
    return f"smaller residuals in {smaller} of {len(pairs)} pairs", _all([warm < cold for cold, warm in pairs])


def _large_tables(results: Results) -> Shown:
    words, ratios = [], []
    for solver in ("CG", "AP", "SGD"):
        cold, warm = (_cell(results, f"{solver}, pathwise, {one}") for one in ("cold", "warm"))
        pairs = [(cold[key], warm[key]) for key in ("residual_targets", "residual_probes")]
        words.append(f"{solver} {' and '.join(f'{before / after:.1f}' for before, after in pairs)}")
        ratios += [before / after for before, after in pairs]
    held = [max(ratios) > 3.5, *(ratio > 1 for ratio in ratios)]
    return f"cold over warm residuals of targets and probes, on protein: {', '.join(words)}", _all(held)


def _fewer_epochs(results: Results) -> Shown:
    words, held = [], []
    for data in iterative_figures.datasets(results):
        standard, pathwise = (_cell(results, f"{kind}, cold", data)["epochs"] for kind in ("standard", "pathwise"))
        words.append(f"{data} {standard:.0f} and {pathwise:.0f}")
        held.append(pathwise < standard)
    return f"epochs of AP, standard and pathwise: {', '.join(words)}", _all(held)


def _cost_of_probes(results: Results) -> Shown:
    few, many = (_cell(results, f"{probes} probe vectors")["cpu_seconds"] for probes in (16, 64))
    return f"{many / few - 1:+.0%} CPU seconds", bool(many < 1.2 * few)


def _exact_draws(results: Results) -> Shown:
    words, held = [], []
    for data in iterative_figures.datasets(results):
        features, exact = (
            _cell(results, f"pathwise, {name}, warm", data)["largest_difference"]
            for name in ("features of the paper's law", "exact prior")
        )
        words.append(f"{data} {features:.3f} and {exact:.3f}")
        held.append(exact < features)
    return f"largest log difference, features and exact draws: {', '.join(words)}", _all(held)


def _more_probes(results: Results) -> Shown:
    words, held = [], []
    for data in iterative_figures.datasets(results):
        for kind in ("standard", "pathwise"):
            few, many = (
                float(np.mean([abs(one["nats_below"]) for one in _cells(results, f"{kind}, warm, {n} probes", data)]))
                for n in (4, 256)
            )
            words.append(f"{data}, {kind} {few:.2g} and {many:.2g}")
            held.append(many < few)
    return f"nats from exact gradients with 4 and 256 probes: {'; '.join(words)}", _all(held)


# Potapczynski et al. 2021


def _signs(method: str, sign: int) -> Callable[[Results], Shown]:
    def show(results: Results) -> Shown:
        cell = _cell(results, method)
        fit, determinant = cell["fit_first"], cell["determinant_first"]
        words = f"errors at the shortest length: data fit {fit:+.0f} nats, log-determinant {determinant:+.0f} nats"
        return words, _all([sign * fit < 0, sign * determinant > 0])

    return show


def _unbiased_terms(results: Results) -> Shown:
    scores = {
        name: max(_cell(results, name)[key] for key in ("fit_score", "determinant_score"))
        for name in ("RR-CG", "SS-RFF")
    }
    words = ", ".join(f"{name} {score:.1f}" for name, score in scores.items())
    return f"largest difference from the exact terms in standard errors: {words}", _all(
        [s < 3 for s in scores.values()]
    )


def _lengthscales(results: Results) -> Shown:
    cg, rff = _cell(results, "CG"), _cell(results, "RFF")
    words = f"log ratios at the shortest and longest length: CG {cg['first']:+.2f}, {cg['last']:+.2f}; RFF"
    return f"{words} {rff['first']:+.2f}, {rff['last']:+.2f}", _all(
        [cg["first"] > 0.05, rff["first"] < 0, rff["last"] < 0]
    )


def _ends(near: Sequence[str], off: Sequence[str]) -> Callable[[Results], Shown]:
    """Return the rule that methods end within 0.01 nats a row of exact learning, and others further away.

    Where none of the first kind ends there, the claim does not hold in part either.
    """

    def show(results: Results) -> Shown:
        exact = _cell(results, "Cholesky")["loss"]
        gaps = {name: _cell(results, name)["loss"] - exact for name in (*near, *off)}
        words = ", ".join(f"{name} {gap:+.4f}" for name, gap in gaps.items())
        close, away = ([abs(gaps[name]) < 0.01 for name in names] for names in (near, off))
        held = _all([*close, *(not one for one in away)]) if any(close) else False
        return f"loss a row above that of exact learning: {words}", held

    return show


def _randomized(results: Results) -> Shown:
    """Compare RR-CG and CG; NLL up to 0.01 higher is "similar", which is the paper's spread between splits."""
    by = {(row.data, row.settings["method"]): numbers for row, numbers in results}
    sets = [data for data, method in by if method == "rr-cg"]
    gaps = {data: _mean(by[data, "rr-cg"], "nll") - _mean(by[data, "cg"], "nll") for data in sets}
    words = ", ".join(f"{data} {gap:+.4f}" for data, gap in gaps.items())
    return f"NLL of RR-CG above that of CG: {words}", _all([gap < 0.01 for gap in gaps.values()])


def _gains(results: Results) -> Shown:
    words, held = [], []
    for data, theirs in (("keggdirected", 1.299), ("pol", 0.104)):
        cg, randomized = (_mean(_cells(results, name, data), "nll") for name in ("CG", "RR-CG"))
        words.append(f"{data} {cg - randomized:.3f} (paper: {theirs:g})")
        held.append(cg - randomized > theirs / 2)
    return f"nats a row gained over CG: {', '.join(words)}", _all(held)


def _overhead(results: Results) -> Shown:
    by = {(row.data, row.settings["method"]): numbers for row, numbers in results}
    times = [
        _mean(by[data, "rr-cg"], "minutes") / _mean(by[data, "cg"], "minutes")
        for data, method in by
        if method == "rr-cg" and (data, "cg") in by
    ]
    low, high = _ends_of(times)
    return f"{low - 1:+.0%} to {high - 1:+.0%}", _all([time < 1.2 for time in times])


def _few_iterations(results: Results) -> Shown:
    """Compare NLL with Cholesky's: more than 0.01 nats a row is worse, and less is the same."""
    nll = {row.name: _mean(numbers, "nll") for row, numbers in results}
    exact, poor = (nll.pop(name) for name in ("Cholesky", "CG, 20 iterations"))
    _, off = _ends_of([abs(value - exact) for name, value in nll.items() if name.startswith("RR-CG")])
    words = f"NLL above Cholesky's: CG, 20 iterations {poor - exact:+.4f}; RR-CG at most {off:.4f} away"
    return words, _all([poor - exact > 0.01, off < 0.01])


# Wenger et al. 2024


def _noise(results: Results) -> Shown:
    svgp, exact = _cell(results, "SVGP")["noise"], _cell(results, "exact")["noise"]
    return f"noise {svgp:.3f}, and {exact:.3f} by exact inference", bool(svgp > 1.5 * exact)


def _gap(results: Results) -> Shown:
    gaps = {name: _cell(results, name)["gap"] for name in ("CaGP-CG", "CaGP-Opt", "SVGP", "exact")}
    words = ", ".join(f"{name} {gap:.2f}" for name, gap in gaps.items())
    return f"standard deviation in the gap: {words}", _all(
        [gaps[one] > gaps["SVGP"] for one in ("CaGP-CG", "CaGP-Opt")]
    )


def _spans(results: Results) -> Shown:
    last = {name: _cell(results, name)["last"] for name in ("CaGP-CG", "CaGP-Opt", "random blocks")}
    words = ", ".join(f"{name} {distance:.2f}" for name, distance in last.items())
    return f"distance after training: {words}", last["CaGP-CG"] < last["CaGP-Opt"] < last["random blocks"]


def _projected(results: Results) -> Shown:
    projected, elbo = (_cell(results, f"CaGP-CG, {loss}") for loss in ("projected likelihood", "ELBO"))
    words = f"CaGP-CG: NLL {projected['nll']:.2f} and noise {projected['noise']:.2g} (truth: 0.05); with the ELBO"
    held = projected["nll"] > elbo["nll"] and projected["noise"] > 10 * elbo["noise"]
    return f"{words} {elbo['nll']:.2f} and {elbo['noise']:.2g}", held


def _far_points(results: Results) -> Shown:
    inputs = [(numbers[0]["inputs"], numbers[0]["distance"]) for _, numbers in results]
    distances = [distance for _, distance in inputs]
    words = ", ".join(f"{distance:.2f} with {number}" for number, distance in inputs)
    grows = [after > before for before, after in pairwise(distances)]
    return f"distance of learned points from the data, by the number of inputs: {words}", _all(grows)


def _coverage(results: Results) -> Shown:
    words, held = [], []
    for data in dict.fromkeys(row.data for row, _ in results):
        ours, svgp = (_cell(results, name, data)["last"] for name in ("CaGP-Opt", "SVGP"))
        words.append(f"{data} {ours:.3f} and {svgp:.3f}")
        held.append(ours < svgp)
    return f"coverage errors of CaGP-Opt and SVGP: {', '.join(words)}", _all(held)


def _order(results: Results) -> Shown:
    words, held = [], []
    for data in dict.fromkeys(row.data for row, _ in results):
        rows = {row.name: (row, numbers) for row, numbers in results if row.data == data}
        ours, theirs = [], []
        for name in ("CaGP-Opt, Adam", "SVGP, Adam"):
            row, numbers = rows[name]
            ours.append(_mean(numbers, "best_nll"))
            theirs.append(row.paper["best_nll"].number()[0])  # type: ignore[index]
        words.append(f"{data} {ours[0]:.2f} and {ours[1]:.2f} (paper: {theirs[0]:g} and {theirs[1]:g})")
        held.append((ours[0] < ours[1]) == (theirs[0] < theirs[1]))
    return f"NLL of CaGP-Opt and SVGP: {'; '.join(words)}", _all(held)


# Yadav et al. 2021


def _iterates(results: Results) -> Shown:
    _, most = _ends_of([numbers[0]["difference"] for _, numbers in results])
    return f"after 20 iterations they differ by at most {most:.0e} of the largest number", bool(most < 1e-5)


def _smaller_grids(results: Results, key: str) -> tuple[float, float]:
    """Return the ends of a ratio over grids with fewer nodes than half of the rows."""
    own = [numbers[0] for row, numbers in results if "gram" not in row.settings]
    return _ends_of([cell[key] for cell in own if cell["m"] < cell["n"] / 2])


def _iterations(results: Results) -> Shown:
    low, high = _smaller_grids(results, "time_ratio")
    return f"{1 / high:.1f} to {1 / low:.0f} times faster where m is below half of n", high < 1


def _memory(results: Results) -> Shown:
    low, high = _smaller_grids(results, "bytes_ratio")
    return f"{1 / high:.1f} to {1 / low:.0f} times fewer bytes where m is below half of n", high < 1


def _by_rows(results: Results) -> Shown:
    ratios = {row.name: _mean(numbers, "last_ratio") for row, numbers in results}
    words = ", ".join(f"m = {name} {1 / ratio:.1f} times" for name, ratio in ratios.items())
    return f"faster at the largest n: {words}", _all([ratio < 1 for ratio in ratios.values()])


def _accuracy(results: Results) -> Shown:
    cells = [numbers[0] for _, numbers in results if "ski_error_shown" in numbers[0]]
    _, off = _ends_of([abs(cell["grid_error_shown"] / cell["ski_error_shown"] - 1) for cell in cells])
    least, most = _ends_of([cell["ratio_shown"] for cell in cells])
    words = f"errors differ by at most {off:.1%} of their size, in {least:.1f} to {most:.1f} times less time"
    return words, off < 1e-2 and least > 1


def _counts(results: Results) -> Shown:
    _, off = _ends_of([one["steps_difference"] for _, numbers in results for one in numbers])
    most = max(one["most_steps"] for _, numbers in results for one in numbers)
    return f"they differ by at most {off}, of up to {most}", off <= 3


def _set_up(results: Results) -> Shown:
    cells = [numbers[0] for _, numbers in results if "ski_set_up_s" in numbers[0]]
    low, high = _ends_of([cell["grid_set_up_s"] / cell["ski_set_up_s"] for cell in cells])
    return f"{low:.2f} to {high:.2f} times the set-up time of SKI", high > 3


# Evans and Nair 2020


def _flat(results: Results) -> Shown:
    low, high = _ends_of([numbers[0]["last_over_first"] for _, numbers in results])
    words = f"{low:.2f} to {high:.2f} times as long with the most functions as with the fewest"
    return words, high < 1.25


def _control(results: Results) -> Shown:
    left = {row.name: numbers[0]["at_300"] for row, numbers in results}
    words = ", ".join(f"{name} {share:.3f}" for name, share in left.items())
    return f"share of the variance that is left: {words}", _all([share < 0.15 for share in left.values()])


def _means(results: Results) -> Shown:
    _, most = _ends_of([numbers[0]["mean_difference"] for _, numbers in results])
    return f"means differ by at most {most:.1e}", bool(most < 1e-2)


def _augmented(results: Results) -> Shown:
    far = {row.name: numbers[0]["std_far"] for row, numbers in results if row.name != "exact"}
    words = ", ".join(f"{name} {std:.2f}" for name, std in far.items())
    held = [abs(std - ("augmented" in name)) < 0.05 for name, std in far.items()]
    return f"standard deviations far from the rows: {words}", _all(held)


def _vectors(results: Results) -> Shown:
    kept = {row.name: numbers[0]["kept"] for row, numbers in results}
    words = ", ".join(f"{name} {count}" for name, count in kept.items())
    recipe = [count for name, count in kept.items() if "the paper's recipe" in name]
    fewest, _ = _ends_of(recipe)
    return f"vectors kept: {words}", fewest <= 26


def _recipe(results: Results) -> Shown:
    words, held = [], []
    for row, numbers in results:
        if "the paper's settings" in row.name and "QSGP-0" in row.name and "rmse" in row.paper:
            theirs, ours = row.paper["rmse"].number()[0], _mean(numbers, "rmse")  # type: ignore[index]
            words.append(f"{row.data} {ours:.3f} (paper: {theirs:g})")
            held.append(ours < 1.1 * theirs)
    return f"RMSE: {', '.join(words)}", _all(held)


def _unread(_: Results) -> Shown:
    raise LookupError("no rule, as there were never results")


CLAIMS: dict[str, tuple[Claim, ...]] = {
    "iterative": (
        Claim(
            "Pathwise probes and warm starts together make solves to the tolerance up to 72 times faster.",
            "table-1",
            _faster,
        ),
        Claim(
            "The bias of warm starts is negligible: hyperparameters take the course of exact gradients.",
            "table-1",
            _unbiased_starts,
        ),
        Claim("The printed test errors (all training rows).", "table-1-whole", lambda r: _printed(r, "rmse")),
        Claim(
            "The printed log-likelihoods (all training rows).",
            "table-1-whole",
            lambda r: _printed(r, "log_likelihood"),
        ),
        Claim(
            "From zero, the expected squared distance to a pathwise solution is n at any hyperparameters.",
            "figure-3",
            _rows_of_distances,
        ),
        Claim("Pathwise probes take fewer epochs to the tolerance than standard ones.", "figure-3", _fewer_epochs),
        Claim("Warm starts begin nearer to the solution.", "figure-3", _nearer_starts),
        Claim("64 probes cost some 10 % more time than 16.", "figure-4", _cost_of_probes),
        Claim(
            "Deviations from exact gradients come from random features; exact draws of the prior have none.",
            "figure-5",
            _exact_draws,
        ),
        Claim(
            "With warm starts the optimum goes to the exact one as the number of probes grows (theorem 1).",
            "figure-5-probes",
            _more_probes,
        ),
        Claim(
            "With a budget of epochs, pathwise probes and warm starts leave smaller residuals.", "figure-9", _budgets
        ),
        Claim(
            "On large tables with ten epochs a step, warm starts leave residuals up to 7 times smaller.",
            "tables-7-10",
            _large_tables,
        ),
    ),
    "truncation": (
        Claim(
            "Stopped CG underestimates the data fit and overestimates the log-determinant.", "figure-1", _signs("CG", 1)
        ),
        Claim("Random features do the opposite.", "figure-1", _signs("RFF", -1)),
        Claim("With random truncation, CG (RR-CG) and features (SS-RFF) are unbiased.", "figure-1", _unbiased_terms),
        Claim("CG learns lengthscales that are too long, and RFF too short ones.", "figure-2", _lengthscales),
        Claim(
            "RR-CG and SS-RFF end at the optimum, and CG and RFF elsewhere.",
            "figure-3",
            _ends(("RR-CG", "SS-RFF"), ("CG", "RFF")),
        ),
        Claim(
            "SS-RFF ends near the optimum, after more than 100 times the steps; RFF does not.",
            "figure-4",
            _ends(("SS-RFF, 100 frequencies",), ("RFF, 100 frequencies",)),
        ),
        Claim(
            "With few iterations CG diverges; with 40, CG and RR-CG agree.",
            "figure-s3",
            _ends(("CG, 40 iterations", "RR-CG, 40 iterations"), ("CG, 10 iterations",)),
        ),
        Claim(
            "On bike, RR-CG ends at the optimum with 20 or 40 iterations, and CG diverges.",
            "figure-5",
            _ends(("RR-CG, 20 iterations", "RR-CG, 40 iterations"), ("CG, 20 iterations",)),
        ),
        Claim(
            "CG with 20 iterations predicts worse than Cholesky; RR-CG does not at any number.",
            "figure-s1",
            _few_iterations,
        ),
        Claim("RR-CG predicts as well as CG at the same number of iterations, or better.", "table-s1", _randomized),
        Claim("It gains most over CG on keggdirected and pol.", "table-s1", _gains),
        Claim("It takes 9 to 17 % more time than CG.", "table-s1", _overhead),
    ),
    "computation_aware": (
        Claim("SVGP takes what its inducing points cannot represent for noise.", "figure-1", _noise),
        Claim("Computation-aware inference keeps a larger variance where there are no data.", "figure-1", _gap),
        Claim(
            "The actions of CaGP-CG are nearest to the top eigenvectors, then those of CaGP-Opt.", "figure-2", _spans
        ),
        Claim(
            "Learning by the projected likelihood overestimates the noise; the ELBO does not.", "figure-s1", _projected
        ),
        Claim("With more inputs, learned inducing points lie further from the data.", "figure-s3", _far_points),
        Claim("After training, the intervals of CaGP-Opt are better than those of SVGP.", "figure-4", _coverage),
        Claim("The printed order of CaGP-Opt and SVGP by their NLL.", "table-1", _order),
        Claim("The printed NLL of every method.", "table-1", lambda r: _printed(r, "best_nll")),
    ),
    "grids": (
        Claim("Both ways have the same iterates.", "table-1", _iterates),
        Claim(
            "An iteration takes less time where the grid has fewer nodes than there are rows.", "table-1", _iterations
        ),
        Claim("It needs less memory there.", "table-1", _memory),
        Claim("The gain is large where m is far below n, and there is never a loss.", "figure-3", _by_rows),
        Claim("The same accuracy at equal m, in less time.", "figure-4", _accuracy),
        Claim("Numbers of iterations are close.", "figure-3", _counts),
        Claim("The set-up is up to six times slower.", "figure-7", _set_up),
    ),
    "quadruply": (
        Claim("The cost of a step does not depend on the number of functions.", "table-1", _flat),
        Claim("A control variate of rank 300 leaves about a tenth of the variance.", "figure-1", _control),
        Claim("The means of all posteriors of the toy coincide.", "figure-2", _means),
        Claim(
            "Without augmentation variances shrink to zero far from the rows, with it to the prior's.",
            "figure-2",
            _augmented,
        ),
        Claim("Of 500 rows of the sinc, 13 are kept.", "figure-3", _vectors),
        Claim("The printed errors of the mean-field method with 100,000 random functions.", "table-2", _recipe),
        Claim("Those with all rows as inducing points.", "table-3", _recipe),
        Claim("Odd and even digits are told apart (MNIST).", "classification", _unread),
    ),
}
