"""The stress harness finds planted bugs, and survives its own attacks."""

from __future__ import annotations

import itertools
import signal

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sklearn_kernels
from stress.areas import kills
from stress.areas.ends import limited_time
from stress.command import Schedule, table
from stress.draw import Draw
from stress.oracle import kernel as formulas
from stress.oracle.kriging import Problem, solve
from stress.outcome import HANG, LOST, REFUSED, RIGHT, TRACEBACK, WRONG, Result, Wrong
from stress.plants import PLANTS, plant
from stress.pool import Job, Pool
from stress.worker import run_case

#: Number of cases in which a planted bug has to be found. Only about one damage in eighty changes a number that
#: predictions depend on and leaves a file that is valid in every other way.
_CASES, _CASES_OF = 60, {"no-checksum": 200}


@pytest.mark.few(2)
@pytest.mark.parametrize("name", [name for name, (area, _) in PLANTS.items() if area not in ("kills", "copies")])
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = None
    area = PLANTS[name][0]
    cases = _CASES_OF.get(name, _CASES)
    for case in range(cases):
        if run_case(area, 0, case).is_failure:
            continue  # a case that fails without the bug shows nothing
        with monkeypatch.context() as patch:
            plant(name, patch.setattr)
            outcome = run_case(area, 0, case).outcome
        if outcome == WRONG:
            found = case
            break
    assert found is not None, f"{cases} cases of {area} did not find {name}"


@pytest.mark.slow
def test_a_save_that_a_kill_can_cut_is_found() -> None:
    saves = [case for case in range(80) if kills.kind_of(Draw("kills", 0, case)) == "save"]
    jobs = itertools.chain((Job("kills", 0, case, 30.0) for case in saves), itertools.repeat(None))
    causes = [result.cause for result in Pool(1, "half-files").run(lambda: next(jobs)) if result.outcome == LOST]
    assert any("the model is gone" in cause for cause in causes)


@pytest.mark.slow
def test_a_copy_that_differs_is_found() -> None:
    """In a worker, because some copies are made in forks, which need a process with one thread."""
    jobs = itertools.chain((Job("copies", 0, case, 100.0) for case in range(_CASES)), itertools.repeat(None))
    assert any(result.outcome == WRONG for result in Pool(1, "rounded-file").run(lambda: next(jobs)))


@pytest.mark.slow
def test_every_outcome_is_told_from_the_others() -> None:
    jobs = itertools.chain((Job("selftest", 0, case, 2.0) for case in range(8)), itertools.repeat(None))
    found = {result.case: result.outcome for result in Pool(2, warm=False).run(lambda: next(jobs))}
    assert found == {0: RIGHT, 1: REFUSED, 2: WRONG, 3: TRACEBACK, 4: HANG, 5: LOST, 6: TRACEBACK, 7: RIGHT}


def test_what_takes_too_much_processor_time_is_found() -> None:
    def endless() -> None:
        try:
            while True:
                pass
        except Exception:  # what takes an error for an answer cannot hide it
            pass

    before = signal.getsignal(signal.SIGPROF)
    with pytest.raises(Wrong, match=r"fit did not end in 0\.1 s"), limited_time("fit", 0.1):
        endless()
    with limited_time("fit", 60.0):
        pass
    assert signal.getsignal(signal.SIGPROF) == before
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_a_case_is_a_function_of_seed_area_and_number() -> None:
    def numbers(area: str, seed: int, case: int) -> list[float]:
        draw = Draw(area, seed, case)
        return [draw.real(0, 1), draw.whole(0, 10**6)]

    assert numbers("tables", 1, 2) == numbers("tables", 1, 2)
    assert (
        len(
            {
                tuple(numbers(*which))
                for which in (("tables", 1, 2), ("models", 1, 2), ("tables", 0, 2), ("tables", 1, 3))
            }
        )
        == 4
    )
    first, again = (run_case("tables", 0, 5) for _ in range(2))
    assert (first.outcome, first.cause) == (again.outcome, again.cause)


def test_the_oracle_agrees_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    X, new, y = rng.normal(size=(30, 2)), rng.normal(size=(7, 2)), rng.normal(size=(30, 1))
    spec = {"kernel": "Matern", "nu": 1.5, "lengthscale": [0.7, 1.3], "variance": 2.0}
    theirs = 2.0 * sklearn_kernels.Matern([0.7, 1.3], nu=1.5)
    peer = GaussianProcessRegressor(theirs, alpha=0.1, optimizer=None).fit(X, y[:, 0])
    mean, std = peer.predict(new, return_std=True)
    none = np.zeros((30, 0))
    between, cross = formulas.block(spec, X, X), formulas.block(spec, X, new)
    problem = Problem(between, cross, formulas.diagonal(spec, new), np.full(30, 0.1), none, none[:7], y)
    answer = solve(problem, 2.2e-16, np.full(7, 1e-14))
    assert answer is not None
    np.testing.assert_allclose(answer.mean[:, 0], mean, atol=1e-10)
    np.testing.assert_allclose(answer.variance, std**2, atol=1e-10)
    assert answer.value == pytest.approx(peer.log_marginal_likelihood_value_, abs=1e-8)
    assert (answer.mean_error < 1e-8).all()


def test_universal_kriging_is_the_limit_of_a_vague_prior() -> None:
    rng = np.random.default_rng(1)
    X, new, y = rng.normal(size=(12, 1)), rng.normal(size=(4, 1)), rng.normal(size=(12, 2))
    spec = {"kernel": "RBF", "lengthscale": [1.0], "variance": 1.0}
    vague = {"kernel": "Sum", "parts": [spec, {"kernel": "Constant", "variance": 1e6}]}

    def problem(chosen: dict, basis: int) -> Problem:
        ones, own = np.ones((12, basis)), formulas.diagonal(chosen, new)
        blocks = formulas.block(chosen, X, X), formulas.block(chosen, X, new)
        return Problem(*blocks, own, np.full(12, 0.3), ones, np.ones((4, basis)), y)

    learned, limit = solve(problem(spec, 1), 2e-16, np.zeros(4)), solve(problem(vague, 0), 2e-16, np.zeros(4))
    assert learned is not None
    assert limit is not None
    np.testing.assert_allclose(learned.mean, limit.mean, atol=1e-5)
    np.testing.assert_allclose(learned.variance, limit.variance, atol=1e-5)
    assert (learned.variance > learned.variance_at_coefficients).all()


def test_areas_share_the_time() -> None:
    schedule = Schedule(["tables", "kills"], 1000.0, 40, 0, 0)
    ran = []
    while (job := schedule.next_job()) is not None:
        ran.append(job.area)
        schedule.ended(Result(job.area, 0, job.case, RIGHT, seconds=0.1 if job.area == "tables" else 1.0))
    assert ran.count("tables") == ran.count("kills") == 40
    early = ran[:30]
    assert early.count("tables") > 5 * early.count("kills")  # kills take ten times as long and have a smaller share


def test_the_table_counts() -> None:
    results = [Result("tables", 0, 0, RIGHT), Result("tables", 0, 1, WRONG, "x"), Result("kills", 0, 0, LOST)]
    lines = table(["tables", "kills"], results).splitlines()
    assert [cell.strip() for cell in lines[0].split("|")] == [
        *("area", "cases", "right", "refused", "wrong", "traceback", "hang", "lost")
    ]
    assert [cell.strip() for cell in lines[2].split("|")] == ["tables", "2", "1", "0", "1", "0", "0", "0"]
    assert [cell.strip() for cell in lines[3].split("|")] == ["kills", "1", "0", "0", "0", "0", "0", "1"]
