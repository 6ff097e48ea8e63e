"""Hostile options and endings of commands: one line and exit code 2, never a traceback."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import gigagp

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(gigagp.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
COMMAND = [sys.executable, "-m", "gigagp"]

#: Values that are hostile to all options.
ODD = [
    "", ".", "-", "--", "nan", "inf", "-1", "0", "1e400", "9" * 400, "1_000", "٣", "2**64", "18446744073709551615",
    "18446744073709551616", "-9223372036854775809", "meta", "cuda:99", "cpu:-1", "mps", "1.2.3", "4GiB ", "1e3GiB",
    ",", ",,", "a,a", "1,", "40,", "0,0", "nan,1", "rbf*", "+", "rbf**rbf", "\udc80", "x" * 5000, "../", "y",
    "{}", "9" * 30 + "GiB",
]  # fmt: skip
OPTIONS = {
    "fit": [
        "--target", "--out", "--columns", "--noise-column", "--kernel", "--inference", "--likelihood", "--functions",
        "--grid-size", "--truncation", "--optimizer", "--steps", "--mean", "--rows", "--seed", "--device", "--dtype",
        "--memory", "--checkpoint",
    ],
    "predict": ["--out", "--samples", "--columns", "--seed"],
    "evaluate": ["--target", "--noise-column", "--columns"],
}  # fmt: skip


def ended(code, error):
    """Whether a command ended in an allowed way: successfully, or with one line."""
    if code == 0:
        return "Traceback" not in error
    lines = [line for line in error.splitlines() if not line.startswith("gigagp: warning:")]
    return code == 2 and len(lines) == 1 and lines[0].startswith("gigagp: ")


@pytest.mark.slow
def test_hostile_values_of_options_end_in_one_line(run, csv, tmp_path, monkeypatch, stand_in):
    monkeypatch.chdir(tmp_path)
    assert run("fit", csv, "--target", "y", "--out", "m.gp")[0] == 0
    rng = random.Random(0)
    codes = {0: 0, 2: 0}
    for _ in range(300):
        command = rng.choice(list(OPTIONS))
        arguments = [command, *(["m.gp"] if command != "fit" else []), str(csv)]
        if command == "fit":
            arguments += ["--target", "y", "--optimizer", "none"]
        if command == "predict":
            arguments += ["--out", "p.csv"]
        for option in rng.sample(OPTIONS[command], rng.choice([1, 1, 2])):
            arguments.append(f"{option}={rng.choice(ODD)}")
        if any(argument.startswith(("--out=/dev", "--checkpoint=")) for argument in arguments):
            continue
        code, _, error = run(*arguments)
        assert ended(code, error), (arguments, code, error)
        codes[code] += 1
    assert codes[2] > 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--device", "meta"), "device of GPRegressor must be .* got 'meta'"),
        (("--memory", "."), "memory_budget must be bytes or a string"),
        (("--memory", "1.2.3"), "memory_budget must be bytes or a string"),
        (("--seed", str(2**64)), "--seed"),
        (("--seed", "-1"), "--seed"),
    ],
)
def test_values_that_got_through_are_refused(refused, csv, tmp_path, options, message):
    import re

    line = refused("fit", csv, "--target", "y", "--optimizer", "none", "--out", tmp_path / "m.gp", *options)
    assert re.search(message, line)


def test_the_largest_seed_is_a_seed(run, refused, csv, tmp_path):
    for method in ("exact", "grid"):
        out = tmp_path / f"{method}.gp"
        options = ("--inference", method, "--seed", str(2**63 - 1), "--optimizer", "none", "--quiet")
        assert run("fit", csv, "--target", "y", "--columns", "a,b", "--out", out, *options)[0] == 0
        assert run("predict", out, csv, "--samples", "2", "--seed", str(2**63 - 1), "--out", tmp_path / "p.csv")[0] == 0
    assert "63" in refused("fit", csv, "--target", "y", "--seed", str(2**64 - 1), "--out", tmp_path / "m.gp")


# Endings --------------------------------------------------------------------------------------------------------------


def started(arguments, **streams):
    return subprocess.Popen([*COMMAND, *arguments], env=ENVIRONMENT, text=True, stderr=subprocess.PIPE, **streams)


def test_a_reader_that_has_gone_ends_a_command_quietly():
    reader, writer = os.pipe()
    os.close(reader)
    command = started(["fit", "--help"], stdout=writer)
    os.close(writer)
    assert (command.communicate()[1], command.returncode) == ("", 141)


@pytest.mark.slow
def test_closed_standard_output_is_no_error(tmp_path):
    code = "import os, sys; os.close(1); os.execv(sys.argv[1], sys.argv[1:])"
    closed = subprocess.run(
        [sys.executable, "-c", code, *COMMAND, "--version"],
        env=ENVIRONMENT,
        text=True,
        capture_output=True,
        check=False,
    )
    assert (closed.returncode, closed.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_standard_output_is_one_line():
    with open("/dev/full", "w", encoding="utf-8") as full:
        command = started(["--version"], stdout=full)
        assert ended(2, error := command.communicate()[1]), error
    assert command.returncode == 2


def test_an_interrupt_while_modules_are_imported_is_one_line():
    # A slow module in place of typer, the first module that the commands import.
    code = (
        "import sys, time, types\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer':\n"
        "            print('importing', flush=True)\n"
        "            time.sleep(60)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "from gigagp.commands import main\n"
        "main(['--version'])\n"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", code], env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert command.stdout.readline() == "importing\n"
    time.sleep(0.05)
    command.send_signal(signal.SIGINT)
    assert (command.communicate(timeout=30)[1], command.returncode) == ("gigagp: stopped.\n", 130)


@pytest.mark.slow
def test_an_interrupt_while_arguments_are_parsed_is_not_lost():
    # Compiled code that parses can print and ignore a KeyboardInterrupt.
    code = (
        "import os, signal, typer\n"
        "parser = typer.main.get_command\n"
        "def parse(app):\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    except KeyboardInterrupt:\n"
        "        print('ignored')\n"
        "    return parser(app)\n"
        "typer.main.get_command = parse\n"
        "from gigagp.commands import main\n"
        "main(['--version'])\n"
    )
    command = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, text=True, capture_output=True)
    assert (command.stdout, command.stderr, command.returncode) == ("", "gigagp: stopped.\n", 130)


@pytest.mark.slow
def test_cells_of_any_length_and_damaged_headers_are_one_line(refused, run, tmp_path):
    table = tmp_path / "t.csv"
    rows = "".join(f"{k},{'x' * 140_000},{k % 3}\n" for k in range(5))
    table.write_text(f"a,note,y\n{rows}", encoding="utf-8")
    options = ("--target", "y", "--optimizer", "none", "--quiet", "--out", tmp_path / "m.gp")
    assert run("fit", table, "--columns", "a", *options)[0] == 0
    assert "column 'note', row 1" in refused("fit", table, "--strict", *options)
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': %s, }"
    for shape in (
        b"((((3, 2)",
        b"(99999999999999, 2)",
        *([b"(-3, 2)"] if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else []),  # read as (3, 2) before
        b"('3', 2)",
        b"(3, 2, 1)",
        b"[3, 2]",
        b"(3" + b"," * 50,
    ):
        path = tmp_path / "t.npy"
        path.write_bytes(b"\x93NUMPY\x01\x00v\x00" + (header % shape).ljust(118) + b"x" * 48)
        for method in ("exact", "grid"):
            assert "t.npy" in refused("fit", path, "--target", "1", "--inference", method, "--out", tmp_path / "m.gp")
