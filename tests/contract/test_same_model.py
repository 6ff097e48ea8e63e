"""The same model gives the same bits: by its seed, from a file, pickled, copied, cloned, or killed and resumed."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone

import gigagp
from contract.fits import GAUSSIAN, differing, everything, fitted
from contract.problems import known_mean, problem
from contract.systems import KINDS
from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.estimators import checkpoint

STREAMED = [system for system in KINDS if system.streamed]
HELD = [system for system in KINDS if not system.streamed]


@pytest.mark.few(2)
@pytest.mark.parametrize("system", KINDS, ids=repr)
def test_seeds(system):
    """The same seed gives the same bits whatever else runs; another seed gives another draw."""
    gp, cell = fitted(system.name)
    first = everything(gp, cell.table.new)
    torch.manual_seed(123)
    np.random.seed(123)
    states = torch.get_rng_state().clone(), np.random.get_state()[1].copy()
    again = system.fit(cell)
    assert differing(first, everything(again, cell.table.new)) == []
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])
    new = cell.table.new
    for count in (1, 3, 70):
        assert not np.array_equal(gp.sample_y(new, count, 0), gp.sample_y(new, count, 1)), f"{count} samples"
    assert not np.array_equal(gp.sample_functions(2, 0)(new), gp.sample_functions(2, 1)(new))
    other = system.fit(cell, random_state=1)
    left, right = gp.predict(new, return_std=True), other.predict(new, return_std=True)
    same = all(np.allclose(a, b, rtol=1e-7) for a, b in zip(left, right, strict=True))
    assert system.random is None or system.random != same


@pytest.mark.each
@pytest.mark.filterwarnings("ignore:Weights of relevance vectors")  # of float32, for which the fit takes float64
@pytest.mark.filterwarnings("ignore:Squared errors")  # few functions, given noise
@pytest.mark.parametrize("dtype", ["float64", "float32", "mixed"])
@pytest.mark.parametrize("mean", ["zero", "constant", "linear", "function"])
@pytest.mark.parametrize("system", KINDS, ids=repr)
def test_files(system, mean, dtype, tmp_path):
    """A loaded model predicts the same bits as the saved one; a user's own function must be passed to `load`."""
    if dtype in system.refuses:
        with pytest.raises(InvalidInputError):
            system.fit(problem(GAUSSIAN, "one", mean, "one", dtype))
        return
    targets = "one" if dtype == "float64" else "several"
    gp, cell = fitted(system.name, mean=mean, dtype=dtype, targets=targets)
    path = tmp_path / "model.gp"
    gp.save(path)
    own = [known_mean] if mean == "function" else []
    if own:
        with pytest.raises(ModelFileError, match="known_mean"):
            gigagp.load(path)
    loaded = gigagp.load(path, custom=own)
    before, after = everything(gp, cell.table.new), everything(loaded, cell.table.new)
    # a grid recomputes its evidence from its sums, whose memory layout a file does not preserve
    assert np.allclose(before.pop("evidence"), after.pop("evidence"), rtol=1e-11)
    assert differing(before, after) == []
    for name, value in gp.kernel_.parameters().items():
        assert torch.equal(value, loaded.kernel_.parameters()[name])
    assert gp.noise_variance_ == loaded.noise_variance_


@pytest.mark.few(3)
@pytest.mark.filterwarnings("ignore:Weights of relevance vectors")  # of float32, for which the fit takes float64
@pytest.mark.filterwarnings("ignore:Squared errors")  # few functions, given noise
@pytest.mark.parametrize("system", KINDS, ids=repr)
def test_copies(system):
    gp, cell = fitted(system.name, targets="several")
    before = everything(gp, cell.table.new)
    for made in (pickle.loads(pickle.dumps(gp)), copy.deepcopy(gp)):
        assert differing(before, everything(made, cell.table.new)) == []
    cloned = clone(gp)
    assert not hasattr(cloned, "posterior_")
    refitted = system.fit_to(cloned, cell.table.X, cell.y)
    assert differing(before, everything(refitted, cell.table.new)) == []
    assert differing(before, everything(gp, cell.table.new)) == []  # and the original has not changed


class Killed(BaseException):
    """Exception that stands for a kill."""


@pytest.mark.few(3)
@pytest.mark.parametrize("system", HELD, ids=repr)
def test_a_killed_fit_resumes_to_the_same_bits(system, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)
    cell, path = problem(GAUSSIAN, "one", "constant", "one", "float64"), tmp_path / "fit.checkpoint"
    whole = system.fit(cell, optimizer=system.learns)
    written = []

    def killing(self, write=checkpoint.Checkpoint.write):
        write(self)
        written.append(1)
        if len(written) == 2:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Checkpoint, "write", killing)
        with pytest.raises(Killed):
            system.fit_to(system.estimator(cell, optimizer=system.learns), cell.table.X, cell.y, checkpoint=path)
    assert path.exists()
    resumed = system.fit_to(system.estimator(cell, optimizer=system.learns), cell.table.X, cell.y, checkpoint=path)
    assert not path.exists()
    assert differing(everything(whole, cell.table.new), everything(resumed, cell.table.new)) == []
    moved = [
        not torch.equal(whole.kernel_.parameters()[k], v) for k, v in cell.table.kernel.bind(2).parameters().items()
    ]
    assert any(moved) or system.name == "relevance vectors"  # the control: something was learned


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("system", STREAMED, ids=repr)
def test_a_killed_pass_resumes_to_the_same_bits(system, tmp_path):
    """Rows come from files; the last one is damaged at first."""
    cell, path = problem(GAUSSIAN, "one", "constant", "one", "float64"), tmp_path / "fit.checkpoint"
    folder = tmp_path / "rows"
    folder.mkdir()
    for place, rows in enumerate(np.array_split(np.concatenate([cell.table.X, cell.Y], 1), 3)):
        text = "\n".join(",".join(repr(float(one)) for one in row) for row in rows)
        (folder / f"part{place}.csv").write_text("a,b,y\n" + text + "\n", encoding="utf-8")
    whole = system.estimator(cell).fit_table(folder, "y")
    last = folder / "part2.csv"
    sound = last.read_text(encoding="utf-8")
    last.write_text(sound.replace("\n", "\nspoilt,", 2), encoding="utf-8")
    with pytest.raises(InvalidInputError, match="part2"):
        system.estimator(cell).fit_table(folder, "y", checkpoint=path)
    last.write_text(sound, encoding="utf-8")
    resumed = system.estimator(cell).fit_table(folder, "y", checkpoint=path)
    assert not path.exists()
    assert differing(everything(whole, cell.table.new), everything(resumed, cell.table.new)) == []
