"""Signals from outside, sent at random times to whole processes and to the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import gigagp
from gigagp.estimators.saving.persistence import load_state

#: A script that fits without end unless it is stopped, and then checks that its state is intact.
FIT = """
import os, sys, warnings
import numpy as np
import gigagp.estimators.checkpoint
from gigagp import GPRegressor, errors, gradients, inference, optimization
from gigagp.runtime import interruption

name, folder = sys.argv[1:]
rng = np.random.default_rng(0)
X = rng.normal(size=(300, 2))
y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=300)
long = 10**6
inferences = {
    "exact": (inference.Exact(), optimization.Adam(1e-3, steps=long)),
    "iterative": (
        inference.Iterative(gradient=gradients.Pathwise(n_probes=4, n_features=40), n_samples=4),
        optimization.Adam(1e-3, steps=long),
    ),
    "sparse": (inference.SparseVariational(n_inducing=20, batch_size=50), optimization.Adam(1e-3, steps=long)),
    "quadruply": (
        inference.QuadruplyStochastic(n_basis=100, row_batch=20, basis_batch=20),
        optimization.SparseAdam(1e-3, steps=long),
    ),
}
method, optimizer = inferences[name]
estimator = GPRegressor(inference=method, optimizer=optimizer)
gigagp.estimators.checkpoint.INTERVAL = 0.05  # seconds between two writes
places = 0


def announced(self, original=interruption.Interruption.keep):
    global places
    places += 1
    if places == 5:
        print("learning", flush=True)
    return original(self)


interruption.Interruption.keep = announced
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        estimator.fit(X, y, checkpoint=os.path.join(folder, "fit.part"))
    except KeyboardInterrupt:
        assert not hasattr(estimator, "posterior_")
        sys.exit(7)
assert any(one.category is errors.FitInterruptedWarning for one in caught)
mean, std = estimator.predict(X[:5], return_std=True)
assert np.isfinite(mean).all() and np.isfinite(std).all()
assert estimator.history_.interrupted == "learning" and "Ctrl-C" in estimator.describe()
estimator.save(os.path.join(folder, "model.gp"))
assert np.allclose(gigagp.load(os.path.join(folder, "model.gp")).predict(X[:5]), mean)
sys.exit(3)
"""


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a fit and returns once it has learned something; the fixture ends all fits."""
    started = []

    def begin(name):
        process = subprocess.Popen(
            [sys.executable, "-c", FIT, name, str(tmp_path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        started.append(process)
        assert process.stdout.readline() == "learning\n"
        return process

    yield begin
    for process in started:
        with process:
            process.kill()


@pytest.mark.slow
@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["exact", "iterative", "sparse", "quadruply"])
def test_at_a_random_time(start, name):
    process = start(name)
    time.sleep(np.random.default_rng().uniform(0.0, 0.3))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert errors == ""


@pytest.mark.slow
def test_sigterm_leaves_a_checkpoint_that_the_same_call_goes_on_from(start, tmp_path):
    steps = []
    for ending in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        process = start("exact")
        time.sleep(0.3)  # time for some writes
        process.send_signal(ending)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == (3 if ending == signal.SIGINT else -signal.SIGTERM), errors
        steps.append(len(load_state(tmp_path / "fit.part")[2]["steps"]))
    assert 0 < steps[0] < steps[1] < steps[2]


#: A fit that would write its first checkpoint only after a minute.
SLOW = """
import sys
import numpy as np
from gigagp import GPRegressor, inference, optimization
from gigagp.estimators.checkpoint import Checkpoint

path, kind, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
record = Checkpoint.record


def recorded(self, *arguments):
    record(self, *arguments)
    print("step", flush=True)


Checkpoint.record = recorded
rng = np.random.default_rng(0)
X = rng.normal(size=(200, 2))
y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=200)
ways = {
    "exact": (inference.Exact(), optimization.Adam(steps=steps)),
    "sampled": (
        inference.QuadruplyStochastic(n_basis=100, row_batch=20, basis_batch=20),
        optimization.SparseAdam(steps=40 * steps),
    ),
}
way, optimizer = ways[kind]
gp = GPRegressor(inference=way, optimizer=optimizer).fit(X, y, checkpoint=path)
print(gp.predict(X[:3]).tobytes().hex())
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exact", "sampled"])
def test_sigterm_writes_the_checkpoint_first(tmp_path, kind):
    """The next write would be a minute away; the same call must then end with the same bits."""

    def run(name, *, stop):
        command = [sys.executable, "-c", SLOW, str(tmp_path / name), kind, "60"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        options = {"stdout": subprocess.PIPE, "text": True, "env": environment, "start_new_session": True}
        with subprocess.Popen(command, **options) as process:
            if stop:
                for _ in range(3):
                    assert process.stdout.readline() == "step\n"
                process.send_signal(signal.SIGTERM)
            lines = process.stdout.read().split("\n")  # communicate would lose what readline has read ahead
        return process.returncode, lines

    expected = run("never", stop=False)
    assert expected[0] == 0
    code, lines = run("fit.part", stop=True)
    assert code == -signal.SIGTERM
    kept = len(load_state(tmp_path / "fit.part")[2]["steps"])
    assert kept == 4 + lines.count("step")  # the last step was written but not printed
    code, lines = run("fit.part", stop=False)
    assert code == 0
    assert lines.count("step") == expected[1].count("step") - kept
    assert lines[-2] == expected[1][-2]
    assert not (tmp_path / "fit.part").exists()


#: A fit whose only write is its last, during which SIGTERM comes.
LAST_WRITE = """
import os, signal, sys
import numpy as np
import gigagp.estimators.checkpoint
from gigagp import GPRegressor, inference, optimization

save = gigagp.estimators.checkpoint.save_state


def save_during_sigterm(*arguments, **named):
    os.kill(os.getpid(), signal.SIGTERM)
    save(*arguments, **named)


gigagp.estimators.checkpoint.save_state = save_during_sigterm
rng = np.random.default_rng(0)
GPRegressor(inference=inference.Exact(), optimizer=optimization.Adam(steps=3)).fit(
    rng.normal(size=(30, 2)), rng.normal(size=30), checkpoint=sys.argv[1]
)
"""


def test_sigterm_waits_for_the_last_write(tmp_path):
    """A short fit writes only once, at its end: a process that ended within that write would leave nothing."""
    path = tmp_path / "fit.part"
    assert subprocess.run([sys.executable, "-c", LAST_WRITE, str(path)]).returncode == -signal.SIGTERM
    assert len(load_state(path)[2]["steps"]) == 3


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2500, 3))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=2500)
    path = tmp_path / "table.csv"
    np.savetxt(path, np.column_stack([X, y]), delimiter=",", header="a,b,c,y", comments="")
    return path


@pytest.mark.slow
def test_the_command_line_saves_what_it_has(table, tmp_path):
    """Check one line on standard error, nothing on standard output, a model, and the exit code of Ctrl-C."""
    command = [sys.executable, "-m", "gigagp", "fit", str(table), "--target", "y", "--out", str(tmp_path / "m.gp")]
    process = subprocess.Popen(
        [*command, "--kernel", "matern32", "--optimizer", "adam", "--steps", "100000", "-v"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    lines = [process.stderr.readline() for _ in range(3)]  # a step is shown before it is accepted
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    lines += errors.splitlines()
    assert process.returncode == 130, lines
    assert output == ""
    said = [line for line in lines if line.startswith("gigagp")]
    assert len(said) == 1
    assert "Ctrl-C ended the learning after" in said[0]
    assert said[0].endswith(f"Saved to {tmp_path / 'm.gp'}.")
    model = gigagp.load(tmp_path / "m.gp")
    assert model.history_.interrupted == "learning"
