"""The documents: an index of the papers, and a page for each with its tables and figures."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.papers import records
from benchmarks.papers.claims import CLAIMS, verdict
from benchmarks.papers.experiment import LEVELS, Column, Experiment, Paper, Results, Row, load, settings

_HEAD = """<!-- Written by `python -m benchmarks.papers --write` from benchmarks/results/papers/. Do not edit. -->
"""
_KEY = (
    'A number of ours is the mean over splits, ± its standard error where there are several. "Agrees" says whether'
    " the difference from the paper's number is within two standard errors, by the paper's own spread between splits"
    " (and half a unit of the last printed digit of both, for rounding); -: the cell ran with settings of its own, or"
    " no spread is known. Settings are those that the paper states; what it leaves open, such as its splits, is ours."
    " Letters refer to the settings below a table."
)
#: Kinds of a row with a printed number; the first say more.
_KINDS = ("no", "yes", "unknown", "settings", "lacking")
#: How settings are named on a page.
_WORDS = {"rows": "training rows", "steps": "optimizer steps", "probes": "probe vectors"}


@dataclass(frozen=True)
class Found:
    """What is known of a row at its best level: records that are done, and the others."""

    level: str
    settings: Mapping[str, Any]
    done: list[dict[str, Any]]
    missed: list[dict[str, Any]]
    planned: int


def find(results: Path, paper: str, experiment: Experiment, row: Row, most: str = LEVELS[-1]) -> Found | None:
    """Return a row's records at the largest level at which a cell is done, or else at the largest that has any.

    Levels larger than ``most`` are left out.
    """
    known = []
    for level in reversed(LEVELS[: LEVELS.index(most) + 1]):
        folder = records.path_of(results, paper, experiment, level, row, 0).parent
        every = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob(f"{row.key}--[0-9]*.json")]
        every.sort(key=lambda record: record["split"])
        if every:
            done = [record for record in every if record["status"] == "done"]
            done = [record for record in done if _made_alike(record, done[0])]  # others are older
            missed = [record for record in every if record["status"] != "done"]
            planned = (settings(experiment, row, level) or {"splits": len(every)})["splits"]
            known.append(Found(level, (done or missed)[0]["settings"], done, missed, planned))
    if not known:
        return None
    best = next((k for k, found in enumerate(known) if found.done), 0)
    larger = [record for found in known[:best] for record in found.missed]  # failures stay in sight
    return replace(known[best], missed=larger + known[best].missed)


def _made_alike(record: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two records have the same settings, apart from the time that they were given."""
    return {**record["settings"], "limit": None} == {**other["settings"], "limit": None}


def differences(experiment: Experiment, row: Row, found: Found) -> str:
    """Return how the settings of records differ from the paper's, in words."""
    differing = []
    for name, theirs in {**experiment.paper_settings, **row.paper_settings}.items():
        ours = found.settings.get(name)
        if ours != theirs and not _unreached(experiment, name, found):
            differing.append(f"{_WORDS.get(name, name.replace('_', ' '))} {_shown(ours)} (paper: {_shown(theirs)})")
    return ", ".join(differing)


def _unreached(experiment: Experiment, name: str, found: Found) -> bool:
    """Whether a setting is a limit that no record came to: the runs ended before it by themselves."""
    limit, counted = found.settings.get(name), experiment.limits.get(name)
    if counted is None or limit is None or not found.done:
        return False
    return all(record["numbers"].get(counted, limit) < limit for record in found.done)


def _shown(value: Any) -> str:
    if value is None:
        return "all"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def values_of(found: Found | None, column: Column) -> list[float]:
    """Return the values of a column over the splits that are done."""
    if found is None:
        return []
    values = [record["numbers"].get(column.key) for record in found.done]
    return [value for value in values if value is not None]


def number(values: Sequence[float], digits: int) -> str:
    """Return a mean, with its standard error where there are several values."""
    if not values:
        return "-"
    mean = float(np.mean(values))
    if len(values) == 1 and isinstance(values[0], int):
        return f"{values[0]:,}"
    places = digits - 1 - int(np.floor(np.log10(abs(mean)))) if mean else digits
    places = min(max(places, 0), 6)
    if len(values) == 1:
        return f"{mean:,.{places}f}"
    return f"{mean:,.{places}f} ± {np.std(values, ddof=1) / np.sqrt(len(values)):,.{places}f}"


def judgement(experiment: Experiment, row: Row, found: Found | None) -> str:
    """Return "yes", the titles of columns that do not agree, or "-" where nothing can be judged."""
    if found is None or not found.done or differences(experiment, row, found):
        return "-"
    judged = {
        column.title: row.paper[column.key].agrees(values_of(found, column))
        for column in experiment.columns
        if column.judged and column.key in row.paper
    }
    known = {title: agrees for title, agrees in judged.items() if agrees is not None}
    off = [title for title, agrees in known.items() if not agrees]
    return "-" if not known else "no: " + ", ".join(off) if off else "yes"


def remark(experiment: Experiment, row: Row, found: Found | None, notes: list[str], level: str) -> str:
    """Return the last cell of a row; new differences of settings are added to ``notes``."""
    if found is None:
        return "not run yet" if settings(experiment, row, level) else "not run at this size"
    said = []
    differing = differences(experiment, row, found)
    if differing:
        if differing not in notes:
            notes.append(differing)
        said.append(chr(ord("a") + notes.index(differing)))
    if found.done and len(found.done) < found.planned:
        said.append(f"{len(found.done)} of {found.planned} splits")
    said += sorted({f"{record['level']} size {record['status']}: {record['error']}" for record in found.missed})
    if row.why:
        said.append(row.why)
    return "; ".join(said)


def table(results: Path, paper: str, experiment: Experiment, rows: Sequence[Row]) -> list[str]:
    """Return the table of rows with one data set, and the settings below it."""
    found = {row.key: find(results, paper, experiment, row) for row in rows}
    published = {column.key for column in experiment.columns for row in rows if column.key in row.paper}
    heads = ["row"]
    for column in experiment.columns:
        heads += [f"{column.title}, paper", "ours"] if column.key in published else [column.title]
    judged = any(column.judged and column.key in published for column in experiment.columns)
    heads += ["splits", *(["agrees"] if judged else []), "remark"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    notes: list[str] = []
    for row in rows:
        here = found[row.key]
        cells = [row.name]
        for column in experiment.columns:
            if column.key in published:
                cells.append(row.paper[column.key].text if column.key in row.paper else "-")
            cells.append(number(values_of(here, column), column.digits))
        cells.append(str(len(here.done)) if here else "-")
        if judged:
            cells.append(judgement(experiment, row, here))
        lines.append("| " + " | ".join([*cells, remark(experiment, row, here, notes, "full")]) + " |")
    for k, note in enumerate(notes):
        lines += ["", f"{chr(ord('a') + k)}: {note}."]
    return lines


def left_out(rows: Sequence[Row]) -> str:
    """Return a sentence on the rows that cannot be run, with the reasons."""
    reasons = Counter(row.lacks for row in rows if row.lacks)
    said = "; ".join(f"{reason} ({count} {'row' if count == 1 else 'rows'})" for reason, count in reasons.items())
    return f"Left out: {said}."


def results_of(results: Path, paper: Paper, experiment: Experiment) -> Results:
    """Return the rows of an experiment, or of its source, that have numbers, with the numbers of their cells.

    They are compared, so that all are of one level: the largest at which no row is left that has only a smaller one.
    """
    return _numbers(_of_one_level(results, paper, experiment))


def _numbers(known: list[tuple[Row, Found]]) -> Results:
    return [(row, [record["numbers"] for record in found.done]) for row, found in known]


def _of_one_level(results: Path, paper: Paper, experiment: Experiment) -> list[tuple[Row, Found]]:
    if experiment.source:
        experiment = next(one for one in paper.experiments if one.name == experiment.source)

    def known(most: str) -> list[tuple[Row, Found]]:
        pairs = [(row, find(results, paper.name, experiment, row, most)) for row in experiment.rows]
        return [(row, found) for row, found in pairs if found and found.done]

    best = known(LEVELS[-1])
    return known(min((found.level for _, found in best), key=LEVELS.index, default=LEVELS[-1]))


def page(paper: Paper, results: Path) -> str:
    """Return the page of a paper."""
    lines = [_HEAD, f"# {paper.title}", "", paper.reference]
    stated = claims(paper, results, "")
    if stated:
        lines += ["", "## Claims", "", *stated]
    lines += ["", "## Rows", "", f"{verdicts([paper], results)} {_KEY}"]
    for experiment in paper.experiments:
        lines += ["", f"## {_heading(experiment)}"]
        if experiment.note:
            lines += ["", experiment.note]
        known = results_of(results, paper, experiment)
        if known and experiment.finding is not None:
            lines += ["", experiment.finding(known)]
        if experiment.source:
            lines += ["", f"From the results of {experiment.source.replace('-', ' ')}."]
        if known and experiment.draw is not None:
            lines += ["", f"![{experiment.title}]({paper.name}/{experiment.name}.png)"]
        kept = [row for row in experiment.rows if not row.lacks]
        for data in dict.fromkeys(row.data for row in kept):
            rows = [row for row in kept if row.data == data]
            lines += [*(["", f"### {data}"] if data else []), "", *table(results, paper.name, experiment, rows)]
        if len(kept) < len(experiment.rows):
            lines += ["", left_out(experiment.rows)]
    return "\n".join(lines) + "\n"


def _heading(experiment: Experiment) -> str:
    return f"{experiment.name.replace('-', ' ').capitalize()}: {experiment.title}"


def _anchor(heading: str) -> str:
    """Return the address of a heading within its page, as GitHub and MyST have it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def claims(paper: Paper, results: Path, page: str) -> list[str]:
    """Return the table of a paper's claims, with what was found, the verdict, and links to headings of ``page``."""
    lines = ["| claim | found here | verdict |", "|---|---|---|"]
    for claim in CLAIMS.get(paper.name, ()):
        experiment = next(one for one in paper.experiments if one.name == claim.experiment)
        known = _of_one_level(results, paper, experiment)
        try:
            shown = claim.show(_numbers(known)) if known else None
        except LookupError:
            shown = None
        smaller = any(found.level != "full" or differences(experiment, row, found) for row, found in known)
        link = f"[{experiment.name.replace('-', ' ')}]({page}#{_anchor(_heading(experiment))})"
        lines.append(f"| {claim.text} | {shown[0] if shown else '-'} ({link}) | {verdict(shown, smaller=smaller)} |")
    return lines if len(lines) > 2 else []


def index(papers: Sequence[Paper], results: Path) -> str:
    """Return the index of the papers: what each claims, and how many rows of each experiment have numbers."""
    lines = [
        _HEAD,
        "# The papers, reproduced",
        "",
        "Every table and figure of the five papers that gigagp builds on, beside our own numbers:"
        " `python -m benchmarks.papers --full --resume` runs what is missing and writes these pages. Each number is the"
        " mean over the JSON files of its row in `benchmarks/results/papers/`, which name the commit, settings, seed,"
        " versions and CPU seconds.",
        "",
        "First the claims of each paper, in a sentence each. A rule reads each verdict from the records"
        " (`benchmarks/papers/claims.py`): reproduced; in part, where some cases hold and others do not; not"
        ' reproduced; lacks data. "On smaller runs": rows, steps or other settings are not the paper\'s.',
        "",
        verdicts(papers, results),
    ]
    for paper in papers:
        stated = claims(paper, results, f"papers/{paper.name}.md")
        if stated:
            lines += ["", f"## Claims: [{paper.title}](papers/{paper.name}.md)", "", *stated]
    heads = ("experiment", "rows", "full", "quick", "lacking, with a reason", "failed", "not run yet")
    for paper in papers:
        lines += ["", f"## [{paper.title}](papers/{paper.name}.md)", "", paper.reference, ""]
        lines += [verdicts([paper], results), ""]
        lines += ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
        for experiment in paper.experiments:
            states = [state(results, paper.name, experiment, row) for row in experiment.rows]
            counts = [str(states.count(name)) for name in ("full", "quick", "lacking", "failed", "open")]
            if experiment.source:
                counts = [f"from {experiment.source.replace('-', ' ')}", *[""] * 4]
            shown = [f"{experiment.name.replace('-', ' ')}: {experiment.title}", str(len(states)), *counts]
            lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def verdicts(papers: Sequence[Paper], results: Path) -> str:
    """Return a sentence with the numbers of rows that agree with a printed number, that do not, and of the others.

    Where two experiments have the same row of a paper, at two sizes, it counts once, by the run that says more.
    """
    kinds: dict[tuple[Any, ...], str] = {}
    for paper in papers:
        for experiment in paper.experiments:
            judged = {column.key for column in experiment.columns if column.judged}
            for row in experiment.rows:
                if judged & set(row.paper):
                    found = None if row.lacks else find(results, paper.name, experiment, row)
                    printed = tuple(sorted((key, number.text) for key, number in row.paper.items()))
                    same = paper.name, row.data, row.name, printed
                    kinds[same] = min(kinds.get(same, "lacking"), _verdict(experiment, row, found), key=_KINDS.index)
    counts = Counter(kinds.values())
    return (
        f"Of {counts.total()} rows with a printed number, {counts['yes']} agree with it, {counts['no']} do not,"
        f" {counts['settings']} ran with settings of their own, {counts['unknown']} have no known spread,"
        f" and {counts['lacking']} were not run."
    )


def _verdict(experiment: Experiment, row: Row, found: Found | None) -> str:
    """Return the kind of a row with a printed number: "yes", "no", "settings", "unknown" or "lacking"."""
    if found is None or not found.done:
        return "lacking"
    if differences(experiment, row, found):
        return "settings"
    return {"yes": "yes", "-": "unknown"}.get(judgement(experiment, row, found), "no")


def state(results: Path, paper: str, experiment: Experiment, row: Row) -> str:
    """Return "full" or "quick" for a row with numbers of that size, "failed", "lacking" or "open"."""
    if row.lacks:
        return "lacking"
    found = find(results, paper, experiment, row)
    if found is None:
        return "open"
    return found.level if found.done else "failed"


def texts(modules: Sequence[str], results: Path) -> dict[str, str]:
    """Return the documents by their path below the folder of documents."""
    papers = [load(module) for module in modules]
    return {"papers.md": index(papers, results)} | {f"papers/{one.name}.md": page(one, results) for one in papers}


def write(modules: Sequence[str], results: Path, docs: Path) -> None:
    """Write the documents; draw figures where matplotlib is installed."""
    for name, text in texts(modules, results).items():
        records.write(docs / name, text)
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    for paper in map(load, modules):
        for experiment in paper.experiments:
            known = results_of(results, paper, experiment)
            if known and experiment.draw is not None:
                path = docs / "papers" / paper.name / f"{experiment.name}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                figure = experiment.draw(plt, known)
                figure.savefig(path, dpi=80, metadata={"Software": None})
                plt.close(figure)
