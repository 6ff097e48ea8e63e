"""Options and files of the command line: exit code 0, 2 or 130, one line of error, never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from stress.draw import Draw
from stress.drawn import fitted
from stress.drawn.damage import damage
from stress.outcome import REFUSED, RIGHT, Lost, Wrong
from stress.processes import Child
from stress.scratch import check_nothing_left, scratch

_ODD = [
    "",
    " ",
    "nan",
    "-1",
    "0",
    "1e999",
    "9" * 400,
    "a,b",
    ",",
    "../..",
    "\x00"[:0],
    "ü",
    "--",
    "-",
    "*",
    "1_000",
    "٣",
    "0x10",
]


def run(draw: Draw) -> str:
    """Run one case."""
    with scratch() as folder:
        _write_files(draw, folder)
        kind = draw.weighted({"options": 0.6, "files": 0.25, "signal": 0.08, "pipe": 0.07, "program": 0.01})
        if kind == "files":
            victim = draw.one_of(sorted(path for path in folder.iterdir() if path.is_file()))
            draw.note(f"{victim.name} {damage(draw, victim)}")
        arguments = _arguments(draw, folder, tame=kind in ("signal", "pipe", "files", "program"))
        draw.note(f"gigagp {' '.join(map(repr, arguments))}")
        before = {path.name for path in folder.iterdir()} | {
            "model.gp",
            "out.csv",
            "predictions.csv",
            "out.gp",
            "fit.checkpoint",
            "plot.png",
        }
        old = (folder / "fitted.gp").read_bytes()
        outcome = _program(draw, folder, arguments) if kind == "program" else _run(draw, folder, arguments, kind)
        check_nothing_left(folder, before, f"by gigagp {arguments[:1]}")
        if (folder / "fitted.gp").read_bytes() != old and "--out" not in arguments:
            raise Lost(f"gigagp {arguments[:1]} changed the model it was given")
        return outcome


def _run(draw: Draw, folder: Path, arguments: list[str], kind: str) -> str:
    from gigagp.commands import main

    out, err = folder / ".stdout", folder / ".stderr"
    output = "file"
    if kind == "pipe":
        output = draw.one_of(["closed pipe", "closed", "full"])
        draw.note(f"standard output: {output}")

    def command(send: Any) -> None:
        os.chdir(folder)
        _redirect(out, err, output)
        send("ready")
        main(arguments)

    child = Child(command)
    if kind == "signal":
        child.wait_for_message(20.0)
        delay = draw.real(0, 0.3)
        draw.note(f"SIGINT after {delay:.3f} s")
        time.sleep(delay)
        child.kill(signal.SIGINT)
    ending = child.join(50.0)
    said = err.read_text(errors="replace")
    draw.note(f"exit code {ending.code}; {said[-1500:]}")
    out.unlink(missing_ok=True)
    err.unlink(missing_ok=True)
    if ending.error is not None:
        draw.note(ending.text[-1500:])
        if not isinstance(ending.error, Exception):  # KeyboardInterrupt
            ending.error = RuntimeError(f"{type(ending.error).__name__} from the command line")
        ending.reraise()
    if "Traceback" in said:
        raise RuntimeError("a traceback on standard error")
    allowed = (0, 2, 130) if kind == "signal" else (0, 2, 141) if kind == "pipe" else (0, 2)
    if ending.code not in allowed:
        raise Wrong(f"exit code {ending.code}: gigagp {arguments[:1]}, {kind}")
    lines = [
        line for line in said.splitlines() if line.startswith("gigagp: ") and not line.startswith("gigagp: warning")
    ]
    if ending.code == 2 and len(lines) != 1:
        raise Wrong(f"an error of {len(lines)} lines: {said[:300]!r}")
    if ending.code == 0 and lines:
        raise Wrong(f"an error and exit code 0: {lines[0]}")
    return REFUSED if ending.code == 2 else RIGHT


def _program(draw: Draw, folder: Path, arguments: list[str]) -> str:
    """Start the program in a new process and stop it by Ctrl-C, possibly during its imports."""
    program = subprocess.Popen(
        [sys.executable, "-m", "gigagp", *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    delay = draw.real(0.05, 4.0)
    draw.note(f"python -m gigagp, SIGINT after {delay:.3f} s")
    try:
        said = program.communicate(timeout=delay)[1]
    except subprocess.TimeoutExpired:
        program.send_signal(signal.SIGINT)
        said = program.communicate(timeout=50.0)[1]
    draw.note(f"exit code {program.returncode}; {said[-1500:]}")
    if "Traceback" in said:
        raise RuntimeError("a traceback after Ctrl-C in the program")
    if program.returncode == -signal.SIGINT:
        return RIGHT  # the interpreter has no handler at its start and at its end
    if program.returncode not in (0, 2, 130):
        raise Wrong(f"exit code {program.returncode} of the program after Ctrl-C")
    return RIGHT


def _redirect(out: Path, err: Path, output: str) -> None:
    error = os.open(err, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(error, 2)
    if output == "closed pipe":
        reading, writing = os.pipe()
        os.close(reading)
        os.dup2(writing, 1)
    elif output == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
    elif output == "closed":
        os.close(1)
    else:
        os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    sys.stdout = os.fdopen(1, "w", closefd=False) if output != "closed" else None  # type: ignore[assignment]
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", closefd=False)  # type: ignore[misc]


def _write_files(draw: Draw, folder: Path) -> None:
    X, y = fitted.rows(20, seed=draw.whole(0, 3))
    lines = ["a,b,c", *(",".join(map(repr, row)) for row in np.column_stack([X, y]).tolist())]
    if draw.chance(0.2):
        lines[draw.whole(1, 10)] = draw.one_of(
            ["1,2", "1,2,3,4", "x,y,z", ",,", "nan,1,2", '"1,2', "1e999,0,0", "9" * 140000]
        )
        draw.note("a strange line")
    (folder / "table.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    np.save(folder / "table.npy", np.column_stack([X, y]))
    (folder / "table.txt").write_text("not a table", encoding="utf-8")
    fitted.model("named").save(folder / "fitted.gp")


def _arguments(draw: Draw, folder: Path, *, tame: bool) -> list[str]:
    command = draw.weighted(
        {"fit": 0.5, "predict": 0.2, "evaluate": 0.15, "plot": 0.05, "diagnose": 0.05, "other": 0.05}
    )
    tables = (
        ["table.csv", "table.npy"]
        if tame
        else ["table.csv", "table.npy", "table.txt", ".", "nowhere.csv", "fitted.gp", "-", ""]
    )
    table = tables[0] if draw.chance(0.6) else draw.one_of(tables)
    odd = "" if tame else draw.one_of(_ODD)
    if command == "other":
        return draw.one_of(
            [
                ["--version"],
                ["--help"],
                [],
                ["fi"],
                ["fit"],
                ["fit", "--help"],
                ["--nonsense"],
                ["demo", "--table", odd or "x"],
            ]
        )
    if command == "fit":
        target = "c" if table.endswith(".csv") else "3"
        arguments = [
            "fit",
            table,
            "--target",
            target if tame or draw.chance(0.8) else odd,
            "--out",
            "out.gp",
            "--quiet",
        ]
        options = {
            "--kernel": ["rbf", "matern12", "rbf*periodic+linear", "white", odd],
            "--inference": ["exact", "iterative", "random-features", "grid", "auto", odd],
            "--optimizer": ["auto", "none", "lbfgs", "adam", odd],
            "--steps": ["2", odd],
            "--mean": ["zero", "linear", odd],
            "--rows": ["10", "2", odd],
            "--seed": ["0", "7", str(2**64 - 1), odd],
            "--device": ["cpu", "meta", "cuda:9", odd],
            "--dtype": ["float32", "mixed", odd],
            "--memory": ["1GiB", ".", "0", "1", odd],
            "--grid-size": ["8", "8,8", "8,8,8,8,8", odd],
            "--truncation": ["5", "5,2", odd],
            "--columns": ["a", "a,b", "a,a", "c", odd],
            "--noise-column": ["b", odd],
            "--checkpoint": ["fit.checkpoint", "no/where", ".", odd],
            "--likelihood": ["gaussian", "laplace", "student-t", "poisson", "logistic", odd],
            "--functions": ["10", odd],
        }
    elif command == "diagnose":
        arguments, options = ["diagnose", draw.one_of(["bias", "nonsense"]), table, "--target", "c"], {"--rows": ["10"]}
    else:
        model = "fitted.gp" if draw.chance(0.8) else draw.one_of(["table.csv", "nowhere.gp", ".", ""])
        arguments = [command, model, table]
        options = {
            "predict": {"--out": ["out.csv", "no/where.csv", ".", "/dev/null", odd], "--columns": ["a,b", "b", odd]},
            "evaluate": {"--target": ["c", "zz", odd], "--columns": ["a,b", odd]},
            "plot": {"--out": ["plot.png", odd]},
        }[command]
    count = draw.whole(0, 1) if tame else draw.whole(0, 3)
    for name in draw.rng.permutation(sorted(options))[:count]:
        choices = options[str(name)]
        arguments += [str(name), draw.one_of(choices[:-1] or choices if tame else choices)]
    return arguments
