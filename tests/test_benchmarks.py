"""Benchmarks are run by hand. Here their imports are checked, and they are run on a few dozen rows."""

import ast
import importlib
import json
import math
import shlex
import sys
from pathlib import Path

import pytest
import torch

from benchmark_data import make_folder

#: A small run of each driver. DATA is a folder of made tables, SRC that of the package, and OUT an empty one.
#: What it writes must be finite JSON.
RUNS = {
    "beside_peers": "--data DATA --tables diabetes --packages gigagp 'boosted trees' --json OUT/rows.json",
    "classes": "--data DATA --tables wine --methods default logistic --share 0.5 --json OUT/rows.json",
    "computation_aware_checks": "--problems 3 --draws 2 --actions 1 4",
    "computation_aware_memory": "--rows 300 --actions 8 --inputs 3 --json OUT/rows.json",
    "computation_aware_table": "--data DATA --table parkinsons --rows 60 --epochs 2 --lbfgs-steps 2 --actions 8"
    " --inducing 8 --json OUT/rows.json",
    "computational_uncertainty": "--data DATA --rows 60 --budget 2 --block-size 20 --capacity 40 --exact"
    " --json OUT/rows.json",
    "correlated_outputs": "--simulators 'forrester, 2 levels' --seeds 1 --json OUT/rows.json",
    "default_fit": "--data DATA --tables kin40k --rows 60 --json OUT/rows.json",
    "distributed": "--rows 300 --processes 1 --jobs product --json OUT/rows.json",
    "exact_mean": "elevation --data DATA --rows 90 --json OUT/rows.json",
    "far_rows": "--cases 'one row at 1e6' --methods default --rows 90 --json OUT/rows.json",
    "forecasts": "--data DATA --tables kin40k --rows 60 --budgets 5 --methods auto --json OUT/rows.json",
    "gpu": "products steps --device cpu --smoke --json OUT/rows.json",
    "grid_determinants": "--rows 300 --problems 1 --probes 4 --steps 10",
    "grid_holes": "elevation --data DATA --window 14 12 --kept 90 --nu 1.5 --json OUT/rows.json",
    "grid_maps": "sound --data DATA --size 30 --json OUT/rows.json",
    "grid_pass": "--rows 2000 --shape 14 12 11 --slow-rows 200 --probes 2 --threads 1 --out OUT/rows.json",
    "grid_scaling": "sound --data DATA --nodes 12 20 --columns 3 --rank 4 --probes 2 --json OUT/rows.json",
    "grouped_conditioning": "--data DATA --tables elevation kin40k --rows 80 --json OUT/rows.json",
    "interval_coverage": "--data DATA --tables kin40k --splits 1 --json OUT/rows.json",
    "irish_wind": "--gaps random VAL --days 40 --models kriging panel stacked --json OUT/rows.json",
    "iterative_table": "--data DATA --rows 60 --steps 2 --probes 4 --block-size 20 --json OUT/rows.json",
    "kernel_choice": "--data DATA --tables kin40k --rows 40 --json OUT/rows.json",
    "latent_errors": "--data DATA --tables kin40k --methods QuadruplyStochastic --rows 60 --json OUT/rows.json",
    "laplace_noise": "--data DATA --tables kin40k --kinds laplace --rows 60 --json OUT/rows.json",
    "learning_curves": "--sets made --shares 0.1 --models product --curves 60 --json OUT/rows.json",
    "large_tables": "--data DATA --tables kin40k --rows 60 --skip-svgp --json OUT/rows.json",
    "markov": "--rows 40 --exact 40 --json OUT/rows.json",
    "memory": "--rows 300 --inputs 3 --test-rows 50 --json OUT/rows.json",
    "mixed_precision": "--data DATA --tables pol --rows 60 --json OUT/rows.json",
    "mixed_table": "--rows 60 --test-rows 20 --ways dummies trees --json OUT/rows.json",
    "model_choice": "--data DATA --tables kin40k noise --rows 40 --models plain rq auto boosting --json OUT/rows.json",
    "more_rows": "--functions 'one scale' --rows 30 60 --json OUT/rows.json",
    "noise_free": "--data DATA --cases smooth --methods Exact --rows 60 --json OUT/rows.json",
    "paired_fits": "--before SRC --cases 'default, 60 rows' --runs 1 --json OUT/rows.json",
    "panel_sizes": "--here --sizes 200",
    "panel_preconditioners": "--entities 60 --times 30 --noises 0.1 --json OUT/rows.json",
    "pictures": "--out OUT",
    "preconditioners": "--data DATA --tables kin40k elevation --rows 60 --cap 20 --json OUT/rows.json",
    "price_list": "--json OUT/rows.json --markdown",
    "quadruply_bounds": "--rows 40 --m 60 --batches 20 60 --repeats 3 --steps 5 --out OUT/rows.json",
    "quadruply_streaming": "--rows 60 120 --files 2 --m 40 --basis-batch 10 --row-batch 8 --turns 1",
    "quadruply_table": "table --data DATA --tables kin40k --ways QSGP QSGP-0 SVGP-512 --m 60 --row-batch 20"
    " --basis-batch 20 --hyper-rows 30 --steps 5 --svgp 3 --out OUT/rows.json",
    "real_tables": "--tables made --settings plain default --json OUT/rows.json",
    "regret": "curves --functions Branin --seeds 1 --observations 12 --json OUT/rows.json",
    "search": "--json OUT/rows.json",
    "search_regret": "run --functions Branin 'Training (mixed)' --methods gigagp 'Optuna TPE' --seeds 1 --trials 14"
    " --json OUT/rows.json",
    "small_fits": "--most 30 --runs 1 --json OUT/rows.json",
    "space_time_recovery": "--seeds 1 --json OUT/rows.json",
    "sparse_variational": "--rows 200 --inputs 3 --inducing 16 --batch 32 --repetitions 1 --json OUT/rows.json",
    "starts": "--data DATA --rows 40 --match 'wiggly 50 0' 'temperature 40 0' --restarts 1 --json OUT/rows.json",
    "stored_products": "--rows 200 --columns 2 4 --json OUT/rows.json",
    "strip_products": "--rows 60 200 --json OUT/rows.json",
    "student_noise": "run --data DATA --tables kin40k --rows 60 --splits 0 --out OUT/rows.json",
    "target_transforms": "run --data DATA --tables kin40k --rows 60 --splits 0 --out OUT/rows.json",
    "training_step": "--data DATA --rows 60 --repetitions 1 --threads 1 --json OUT/rows.json",
    "truncation_baselines": "--data DATA --tables pol --rows 60 --size 20 --json OUT/rows.json",
    "truncation_predictions": "--data DATA --tables pol --rows 40 --start-rows 30 --json OUT/rows.json",
    "truncation_table": "--data DATA --tables pol --rows 40 --steps 2 --iterations 20 --curves 2 --json OUT/rows.json"
    " --plots OUT --plot-rows 40 --plot-draws 2 --plot-steps 1",
    "truncation_variance": "--data DATA --table pol --rows 40 --draws 3 --probes 2 --json OUT/rows.json",
    "vecchia_conditioning": "elevation --data DATA --rows 150 --splits random --kernels half --ways 'nearest 30'"
    " '30 + 30 by 8' '30 + 30 sectors' 'joint 60' exact --json OUT/rows.json",
    "vecchia_laplace": "--data DATA --rows 60 --kinds labels counts --ways vecchia --json OUT/rows.json",
    "vecchia_maps": "elevation --data DATA --rows 150 --splits random --kernels half --json OUT/rows.json",
    "vecchia_peers": "elevation --data DATA --rows 100 --json OUT/rows.json",
    "vecchia_rows": "--rows 3000 --jobs 'partial_fit of 1 %' --json OUT/rows.json",
}
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.rglob("*.py"))


def missing_names(source: str) -> list[str]:
    """Return the names that a script imports from gigagp, anywhere in it, but that do not exist."""
    missing = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or node.module is None or node.module.split(".")[0] != "gigagp":
            continue
        try:
            module = importlib.import_module(node.module)
        except ModuleNotFoundError:
            missing.append(node.module)
            continue
        for alias in node.names:
            if not hasattr(module, alias.name):
                try:
                    importlib.import_module(f"{node.module}.{alias.name}")
                except ModuleNotFoundError:
                    missing.append(f"{node.module}.{alias.name}")
    return missing


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_benchmark_imports_only_what_the_package_has(script):
    assert missing_names(script.read_text(encoding="utf-8")) == []


def test_names_that_are_gone_are_found():
    source = "def main():\n    from gigagp.nowhere import x\n    from gigagp import GPRegressor, nothing\n"
    assert missing_names(source) == ["gigagp.nowhere", "gigagp.nothing"]


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("data"))


def run_driver(name: str, line: str, data: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a benchmark as from the command line, in this process; forget the modules that it imports by short names."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    for word, folder in (("DATA", data), ("SRC", BENCHMARKS.parent / "src"), ("OUT", out)):
        line = line.replace(word, str(folder))
    monkeypatch.setattr(sys, "argv", [name, *shlex.split(line)])
    threads = torch.get_num_threads()
    before, short = dict(sys.modules), ("load", *(path.stem for path in BENCHMARKS.glob("*.py")))
    try:
        for module in short:
            sys.modules.pop(module, None)
        importlib.import_module(name).main()
    finally:
        torch.set_num_threads(threads)
        for module in short:
            sys.modules.pop(module, None)
            if module in before:
                sys.modules[module] = before[module]


def numbers_in(value: object) -> list[float]:
    """Return all numbers of nested lists and dictionaries."""
    if isinstance(value, dict | list):
        return [
            number for part in (value.values() if isinstance(value, dict) else value) for number in numbers_in(part)
        ]
    return [float(value)] if isinstance(value, int | float) else []


@pytest.mark.slow
@pytest.mark.few(12)
@pytest.mark.filterwarnings("ignore::gigagp.errors.GigaGPWarning")
@pytest.mark.parametrize("name", sorted(RUNS))
def test_a_benchmark_runs(name, data_folder, tmp_path, monkeypatch):
    run_driver(name, RUNS[name], data_folder, tmp_path, monkeypatch)
    written = list(tmp_path.glob("*.json"))
    assert written or ".json" not in RUNS[name]
    assert any(tmp_path.iterdir()) or "OUT" not in RUNS[name]
    for path in written:
        found = numbers_in(json.loads(path.read_text(encoding="utf-8")))
        assert found
        assert all(map(math.isfinite, found))


#: Drivers that go on with an earlier run, with what else they need.
RESUMED = {"equal_budgets": "", "forecasts": "", "iterative_table": "--data DATA", "truncation_table": "--data DATA"}
CELLS = [(name, "--resume") for name in RESUMED] + [("equal_budgets", "--judge"), ("forecasts", "--judge")]


@pytest.mark.parametrize(("name", "option"), CELLS)
def test_an_earlier_run_that_is_not_named_ends_with_the_usage(name, option, tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run_driver(name, f"{RESUMED[name]} {option}", tmp_path, tmp_path, monkeypatch)
    assert f"{option} needs --json" in capsys.readouterr().err
    if option == "--judge":
        with pytest.raises(SystemExit):
            run_driver(name, f"{option} --json OUT/none.json", tmp_path, tmp_path, monkeypatch)
        assert "there is no" in capsys.readouterr().err
