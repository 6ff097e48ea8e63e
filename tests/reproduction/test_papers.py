"""The harness of ``python -m benchmarks.papers``, on a made paper."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from benchmarks.papers import command, pages, records, runner
from benchmarks.papers.experiment import Published, settings

import made_paper

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests"  # no cell of the made paper reads it
MODULE = ["made_paper"]


@pytest.fixture
def log(tmp_path, monkeypatch):
    path = tmp_path / "log"
    monkeypatch.setenv("MADE_PAPER_LOG", str(path))
    return lambda: path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def run(results, **options):
    """Run cells in this process, silently."""
    return runner.run(MODULE, "quick", None, results, **{"apart": False, "say": lambda _: None, **options})


def kept(results):
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in results.rglob("*.json")}


def test_a_record_says_what_made_it(tmp_path):
    run(tmp_path, only=["table-1"], stop_after=0)
    assert kept(tmp_path) == {}
    made_row = made_paper.TABLE.rows[0]
    runner.run(MODULE, "smoke", None, tmp_path, only=["table-1"], apart=False, say=lambda _: None)
    record = records.read(records.path_of(tmp_path, "made", made_paper.TABLE, "smoke", made_row, 0))
    assert record["numbers"] == {"score": 1.0, "bad": None, "rows": 12}
    assert record["settings"] == {"limit": 600, "rows": 12}
    assert (record["status"], record["seed"], record["level"]) == ("done", 0, "smoke")
    assert {"gigagp", "torch", "numpy"} <= set(record["versions"])
    assert record["cpu_seconds"] >= 0
    assert record["commit"]
    assert records.plain({"a": (np.pi, np.arange(2)), 3: float("inf")}) == {"a": [3.1415927, [0, 1]], "3": None}
    assert json.loads(records.text_of(record)) == record


def test_a_failed_dead_or_slow_cell_is_recorded_and_the_others_run(tmp_path, capfd):
    said = []
    failures = run(tmp_path, only=["table-1"], apart=True, say=said.append)
    found = {name: (record["status"], record.get("error")) for name, record in kept(tmp_path).items()}
    assert found == {
        "made--one-row--0": ("done", None),
        "made--far-off--0": ("done", None),
        "made--fails--0": ("failed", "ValueError: a made error"),
        "made--dies--0": ("failed", "the process ended with exit code 3"),
        "made--too-slow--0": ("out of time", "stopped after 1 s"),
        "other--quick-only--0": ("done", None),
    }
    assert failures == 3
    assert len(said) == 6
    assert "a made error" in capfd.readouterr().err


def test_resume_runs_only_what_is_missing_or_has_other_settings(tmp_path, log, monkeypatch):
    monkeypatch.setattr(made_paper, "PAPER", made_paper.Paper("made", "", "", (made_paper.NAPS,)))
    monkeypatch.setattr(made_paper.time, "sleep", lambda _: None)
    run(tmp_path)
    assert len(log()) == 8
    run(tmp_path, resume=True)
    assert len(log()) == 8
    path = records.path_of(tmp_path, "made", made_paper.NAPS, "quick", made_paper.NAPS.rows[2], 0)
    path.unlink()
    other = records.path_of(tmp_path, "made", made_paper.NAPS, "quick", made_paper.NAPS.rows[5], 0)
    other.write_text(other.read_text(encoding="utf-8").replace('"rows": 12', '"rows": 13', 1), encoding="utf-8")
    run(tmp_path, resume=True)
    assert log()[8:] == ["nap-2 0", "nap-5 0"]
    run(tmp_path)
    assert len(log()) == 18


def test_resume_takes_what_another_experiment_has_computed(tmp_path, log, monkeypatch):
    first = made_paper.Experiment(**{**vars(made_paper.NAPS), "name": "first", "rows": made_paper.TABLE.rows[:1]})
    same = made_paper.Row("another name", "made")
    others = (made_paper.Row("other data"), made_paper.Row("other settings", "made", settings={"rows": 13}))
    second = made_paper.Experiment(**{**vars(first), "name": "second", "rows": (same, *others)})
    monkeypatch.setattr(made_paper, "PAPER", made_paper.Paper("made", "", "", (first, second)))
    run(tmp_path, resume=True)
    assert log() == ["made--one-row 0", "other-data 0", "made--other-settings 0"]
    taken = records.read(records.path_of(tmp_path, "made", second, "quick", same, 0))
    assert (taken["experiment"], taken["row"], taken["computed_for"]) == ("second", "another name", "first")
    source = records.read(records.path_of(tmp_path, "made", first, "quick", first.rows[0], 0))
    assert taken["numbers"] == source["numbers"]
    run(tmp_path)
    assert log()[3:] == ["made--one-row 0", "made--another-name 0", "other-data 0", "made--other-settings 0"]


def test_failures_are_run_again_only_when_asked(tmp_path, log, monkeypatch, capsys):
    rows = made_paper.TABLE.rows[:3]
    short = made_paper.Experiment(**{**vars(made_paper.TABLE), "rows": rows})
    monkeypatch.setattr(made_paper, "PAPER", made_paper.Paper("made", "", "", (short,)))
    assert run(tmp_path) == 1
    assert run(tmp_path, resume=True) == 0
    assert run(tmp_path, resume=True, retry=True) == 1
    assert log()[3:] == ["made--fails 0"]


@pytest.mark.slow
def test_a_killed_run_keeps_what_is_done_and_resumes(tmp_path, log):
    code = (
        "from benchmarks.papers import runner; from pathlib import Path;"
        f"runner.run(['made_paper'], 'quick', None, Path({str(tmp_path)!r}), only=['naps'], resume=True)"
    )
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("src", "tests", "."))
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths})
    waited = time.monotonic()
    while len(list(tmp_path.rglob("*.json"))) < 2 and time.monotonic() - waited < 120:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert 2 <= len(done) < 8
    assert all(record["status"] == "done" for record in kept(tmp_path).values())
    assert len(log()) <= len(done) + 1  # one cell at most is lost
    run(tmp_path, only=["naps"], resume=True)
    assert len(kept(tmp_path)) == 8
    assert done == {path: path.stat().st_mtime_ns for path in done}


def test_a_cell_ends_with_the_process_that_waits_for_it(tmp_path, monkeypatch):
    """Nobody would see what it still computes."""
    monkeypatch.setenv("MADE_PAPER_LOG", str(tmp_path / "cells.txt"))
    code = (
        "from benchmarks.papers import runner;"
        "runner.compute_apart(runner.Job('made_paper', 'table-1', 'made--too-slow', 'quick', 0, None), 100)"
    )
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("src", "tests", "."))
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths})
    written = tmp_path / "cells.pid"

    def runs() -> bool:
        return Path(f"/proc/{written.read_text(encoding='utf-8')}").exists()

    try:
        until(lambda: written.exists() and written.read_text(encoding="utf-8") and runs())
    finally:
        process.kill()
        process.wait()
    until(lambda: not runs())  # the cell would sleep for a minute


def until(condition) -> None:
    """Wait for a condition; fail after half a minute."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < 30
        time.sleep(0.05)


def test_a_page_has_a_number_or_a_reason_for_every_row(tmp_path):
    run(tmp_path, only=["table-1"], apart=True)
    text = pages.page(made_paper.PAPER, tmp_path)
    lines = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("|")}
    assert "1.10 ± 0.05 | 1.000 |" in lines["one row"]
    assert lines["one row"].endswith("| - | a |")
    assert "a: training rows 12 (paper: all)." in text
    assert "quick size failed: ValueError: a made error" in lines["fails"]
    assert "quick size out of time: stopped after 1 s" in lines["too slow"]
    assert "Left out: data set absent is not to be had (1 row)." in text
    assert "large" not in lines
    assert "not run at this size" in lines["nap 3"]
    assert "3 rows have numbers." in text
    assert all(cell.strip() or line.endswith("|") for line in lines.values() for cell in line.split("|")[1:-2])


def test_full_results_come_before_quick_ones_and_are_judged(tmp_path):
    runner.run(MODULE, "quick", DATA, tmp_path, only=["table-1"], apart=False, say=lambda _: None, stop_after=0)
    for split in range(3):
        for k, status in ((0, "done"), (1, "done" if split else "failed")):
            row = made_paper.TABLE.rows[k]
            record = {
                "split": split,
                "level": "full",
                "settings": {"rows": None},
                "status": status,
                "error": "made",
                "numbers": {"score": 1 + 0.1 * split},
            }
            path = records.path_of(tmp_path, "made", made_paper.TABLE, "full", row, split)
            records.write(path, json.dumps(record))
    text = pages.page(made_paper.PAPER, tmp_path)
    assert "| one row | 1.10 ± 0.05 | 1.100 ± 0.058 | - | 3 | yes |  |" in text
    assert (
        "| far off | 7.3 ± 0.1 | 1.150 ± 0.050 | - | 2 | no: score | 2 of 3 splits; full size failed: made; the paper"
        in text
    )
    index = pages.index([made_paper.PAPER], tmp_path)
    assert "| table 1: made numbers | 7 | 2 | 0 | 1 | 0 | 4 |" in index
    counts = "Of 5 rows with a printed number, 1 agree with it, 1 do not, 0 ran with settings of their own"
    assert f"{counts}, 0 have no known spread, and 3 were not run." in index


def test_a_row_has_settings_of_the_paper_of_its_own(tmp_path, monkeypatch):
    rows = (made_paper.Row("short", "made"), made_paper.Row("as printed", "made", paper_settings={"rows": 12}))
    table = made_paper.Experiment(**{**vars(made_paper.TABLE), "rows": rows})
    monkeypatch.setattr(made_paper, "PAPER", made_paper.Paper("made", "", "", (table,)))
    run(tmp_path)
    lines = pages.page(made_paper.PAPER, tmp_path).splitlines()
    ends = {line.split(" | ")[0].strip("| "): line.split(" | ")[-1] for line in lines if line.startswith("|")}
    assert ends["short"] == "a |"
    assert ends["as printed"].strip(" |") == ""


def keep(results, row, numbers, table=made_paper.TABLE, split=0, level="full", **settings):
    """Write the record of a cell."""
    record = {"split": split, "level": level, "settings": {"rows": None, **settings}, "status": "done"}
    path = records.path_of(results, "made", table, level, row, split)
    records.write(path, json.dumps({**record, "numbers": {"score": 1.0, **numbers}}))


def made_with(**changes):
    """Return the made table with changes."""
    return made_paper.Experiment(**{**vars(made_paper.TABLE), **changes})


@pytest.mark.parametrize(("taken", "difference"), [(79, ""), (80, "steps 80 (paper: 2,000)")])
def test_a_limit_that_was_not_reached_is_no_difference(taken, difference, tmp_path):
    row = made_paper.TABLE.rows[0]
    table = made_with(paper_settings={"rows": None, "lbfgs_steps": 2000}, limits={"lbfgs_steps": "evaluations"})
    keep(tmp_path, row, {"evaluations": taken}, table, lbfgs_steps=80)
    found = pages.find(tmp_path, "made", table, row)
    assert pages.differences(table, row, found).removeprefix("lbfgs ") == difference
    assert pages.judgement(table, row, found) == ("-" if difference else "yes")


def test_a_limit_that_no_record_counts_towards_is_a_difference(tmp_path):
    row = made_paper.TABLE.rows[0]
    table = made_with(paper_settings={"lbfgs_steps": 2000}, limits={"lbfgs_steps": "evaluations"})
    keep(tmp_path, row, {}, table, lbfgs_steps=80)
    keep(tmp_path, made_paper.TABLE.rows[1], {"evaluations": 3}, table)  # and no limit of its own
    for one in made_paper.TABLE.rows[:2]:
        assert pages.differences(table, one, pages.find(tmp_path, "made", table, one))


def test_splits_that_ran_with_other_settings_are_not_averaged(tmp_path):
    row = made_paper.TABLE.rows[0]
    for split, start, limit in ((0, 1000, 60), (1, 4000, 60), (2, 1000, 90)):
        keep(tmp_path, row, {"score": float(split)}, split=split, start=start, limit=limit)
    found = pages.find(tmp_path, "made", made_paper.TABLE, row)
    assert [record["split"] for record in found.done] == [0, 2]
    assert found.settings["start"] == 1000


def test_rows_that_are_compared_are_of_one_size(tmp_path):
    """The rows of a figure, of a finding and of a claim; a table shows each at its largest size."""
    one, other = made_paper.TABLE.rows[:2]
    keep(tmp_path, one, {"score": 1.0}, level="quick")
    keep(tmp_path, one, {"score": 2.0}, level="full")
    assert pages.results_of(tmp_path, made_paper.PAPER, made_paper.TABLE) == [(one, [{"score": 2.0}])]
    keep(tmp_path, other, {"score": 3.0}, level="quick")
    assert pages.results_of(tmp_path, made_paper.PAPER, made_paper.TABLE) == [
        (one, [{"score": 1.0}]),
        (other, [{"score": 3.0}]),
    ]
    assert pages.find(tmp_path, "made", made_paper.TABLE, one).level == "full"
    keep(tmp_path, other, {"score": 4.0}, level="full")
    found = pages.results_of(tmp_path, made_paper.PAPER, made_paper.TABLE)
    assert [numbers[0]["score"] for _, numbers in found] == [2.0, 4.0]


def test_a_row_of_two_tables_counts_once_by_the_run_that_says_more(tmp_path):
    rows = made_paper.TABLE.rows[:2]
    whole = made_with(name="table-1-whole", rows=rows[:1])
    paper = made_paper.Paper("made", "", "", (made_with(rows=rows), whole))
    for row in rows:
        keep(tmp_path, row, {}, made_paper.TABLE, rows=12)
    said = "Of 2 rows with a printed number, {} agree with it, 0 do not, {} ran with settings of their own"
    assert pages.verdicts([paper], tmp_path).startswith(said.format(0, 2))
    keep(tmp_path, rows[0], {}, whole)
    assert pages.verdicts([paper], tmp_path).startswith(said.format(1, 1))


def test_a_failure_at_full_size_is_said_beside_quick_numbers(tmp_path):
    row = made_paper.TABLE.rows[0]
    for level, status in (("full", "out of time"), ("quick", "done")):
        record = {"split": 0, "level": level, "settings": {"rows": 12}, "status": status, "error": "stopped"}
        path = records.path_of(tmp_path, "made", made_paper.TABLE, level, row, 0)
        records.write(path, json.dumps({**record, "numbers": {"score": 1.0}}))
    text = pages.page(made_paper.PAPER, tmp_path)
    assert "| one row | 1.10 ± 0.05 | 1.000 | - | 1 | - | a; full size out of time: stopped |" in text


def test_documents_and_figures_are_written(tmp_path):
    pytest.importorskip("matplotlib")
    runner.run(MODULE, "smoke", None, tmp_path, apart=False, say=lambda _: None)
    pages.write(MODULE, tmp_path, tmp_path / "docs")
    text = (tmp_path / "docs" / "papers" / "made.md").read_text(encoding="utf-8")
    for name in ("table-1", "figure-1"):
        assert (tmp_path / "docs" / "papers" / "made" / f"{name}.png").stat().st_size > 1000
        assert f"(made/{name}.png)" in text


def test_published_numbers_agree_with_draws_of_their_own_spread_and_not_with_others():
    random = np.random.default_rng(0)
    agree = []
    for _ in range(1000):
        paper, ours = random.normal(2.0, 0.3, 10), random.normal(2.0, 0.3, 3)
        text = f"{paper.mean():.6f} ± {0.3 / np.sqrt(10):.6f}"
        agree.append(Published(text, 10).agrees(list(ours)))
        assert Published(f"{paper.mean():.6f} ± 0.300000", 10, deviation=True).agrees(list(ours)) == agree[-1]
        assert not Published(text, 10).agrees(list(ours + 2.0))
    assert 0.93 < np.mean(agree) < 0.975
    assert Published("> 24 h").agrees([1.0]) is None
    assert Published("1.27").agrees([1.27]) is None  # one split, no spread
    assert Published("1.27").agrees([1.272, 1.271])
    assert Published("0.001 ± 0.000", 5, deviation=True).agrees([0.0014])
    # a deviation that is printed as zero may be 0.0005
    assert Published("0.001 ± 0.000", 5, deviation=True).agrees([0.0025])
    assert not Published("0.001 ± 0.000", 5, deviation=True).agrees([0.0027])


def test_settings_of_a_row_override_those_of_a_level():
    row = made_paper.Row("x", settings={"rows": 3}, at={"full": {"rows": 4}, "quick": None})
    assert settings(made_paper.TABLE, row, "full") == {"splits": 3, "limit": 600, "rows": 4}
    assert settings(made_paper.TABLE, row, "smoke")["rows"] == 3
    assert settings(made_paper.TABLE, row, "quick") is None
    assert settings(made_paper.TABLE, made_paper.TABLE.rows[5], "full") is None


def test_the_command_refuses_what_there_is_not(tmp_path, capsys):
    for arguments in (["--quick", "--only", "table-99"], ["--quick", "--data", str(tmp_path)], []):
        with pytest.raises(SystemExit):
            command.main(arguments)
    assert "table-99" in capsys.readouterr().err
