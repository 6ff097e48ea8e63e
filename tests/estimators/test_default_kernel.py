"""``GPRegressor()``: a kernel is chosen where that can be had, and the plain one is kept elsewhere, to the bit."""

import numpy as np
import pytest
from sklearn.base import clone
from typer.testing import CliRunner

import gigagp
from gigagp import GPRegressor, inference, kernels, optimization
from gigagp.commands import app
from gigagp.estimators.choices import kernel_rules
from gigagp.search import Search

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (60, 2))
Y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * RNG.normal(size=60)
NEW = RNG.uniform(-2, 2, (9, 2))
PLAIN = kernels.Matern(nu=1.5)


def same_bits(one: GPRegressor, other: GPRegressor, new: np.ndarray = NEW) -> bool:
    found, expected = (gp.predict(new, return_std=True) for gp in (one, other))
    return all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.fixture(scope="module")
def chosen() -> GPRegressor:
    return GPRegressor().fit(X, Y)


def test_the_default_is_auto(chosen):
    assert chosen.kernel is None
    assert chosen.kernel_choice_.rule == "average"
    assert same_bits(chosen, GPRegressor("auto").fit(X, Y))
    assert not same_bits(chosen, GPRegressor(PLAIN).fit(X, Y))
    assert "kernels tried averaged" in chosen.describe()


@pytest.mark.slow
def test_manners(chosen, tmp_path):
    again = clone(chosen)
    assert again.get_params(deep=False) == GPRegressor().get_params(deep=False)
    assert same_bits(again.fit(X, Y), chosen)
    chosen.save(tmp_path / "m.gp")
    loaded = gigagp.load(tmp_path / "m.gp")
    assert loaded.kernel is None
    assert loaded.kernel_choice_ == chosen.kernel_choice_
    assert loaded.describe() == chosen.describe()
    assert same_bits(loaded, chosen)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        ({"optimizer": None, "noise_variance": 0.01}, 60),
        ({"optimizer": optimization.LBFGS(steps=3)}, 60),
        ({"likelihood": "student-t"}, 60),
        ({"inference": inference.Vecchia(5, 8)}, 60),
        ({"inference": inference.SparseVariational(30)}, 60),
        ({"outputs": "shared"}, 60),
        ({"memory_budget": 5 * 60 * 60 * 8}, 60),
        ({}, 15),
    ],
)
def test_the_plain_kernel_is_kept(arguments, rows):
    """Where no rule works, or where what it gains or costs is not known."""
    y = np.stack([Y, -Y], 1) if "outputs" in arguments else Y
    arguments = {"hyperparameters": "learned", **arguments}
    gp, plain = (GPRegressor(kernel, **arguments).fit(X[:rows], y[:rows]) for kernel in (None, PLAIN))
    assert gp.kernel_choice_ is None or len(gp.kernel_choice_.tried) == 1
    assert not gp.posterior_.is_mixture
    assert same_bits(gp, plain)


def test_the_plain_kernel_is_kept_with_a_checkpoint_and_for_streams(tmp_path):
    plain = GPRegressor(PLAIN).fit(X, Y)
    assert same_bits(GPRegressor().fit(X, Y, checkpoint=tmp_path / "c"), plain)
    grid = inference.Grid()
    streamed = (GPRegressor(kernel, inference=grid).fit_table((X, Y)) for kernel in (None, PLAIN))
    assert same_bits(*streamed)


def test_one_input_keeps_the_plain_kernel_up_to_where_a_choice_begins(monkeypatch):
    """States are so quick that a choice would take several times as long."""
    x = np.sort(RNG.uniform(0, 30, 1100))[:, None]
    y = np.sin(x[:, 0]) + 0.1 * RNG.normal(size=len(x))
    plain = GPRegressor(PLAIN).fit(x, y)
    assert isinstance(plain.inference_, inference.Markov)
    assert same_bits(GPRegressor().fit(x, y), plain, x[::50] + 0.01)
    monkeypatch.setattr(kernel_rules, "AVERAGED_ROWS", 1000)
    large = GPRegressor().fit(x, y)
    assert large.kernel_choice_.rule == "choose"
    assert isinstance(large.inference_, inference.Markov)


def test_a_search_keeps_its_own_kernel():
    """Its steps take milliseconds."""
    search = Search([(0.0, 1.0)], regressor=GPRegressor(random_state=1))
    assert isinstance(search._regressor.kernel, kernels.Matern)


def test_a_plan_and_a_fit_have_one_default(monkeypatch):
    monkeypatch.setattr(kernel_rules, "AVERAGED_ROWS", 50)
    seen, pick = [], kernel_rules.pick

    def noted(kernel, *others):
        seen.append(kernel)
        return pick(kernel, *others)

    monkeypatch.setattr(kernel_rules, "pick", noted)
    GPRegressor().plan(X, Y)
    GPRegressor(inference=inference.Vecchia(5, 8)).fit(X, Y)
    assert seen == ["auto", "auto"]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "rule"), [([], "average"), (["--inference", "exact"], "average"), (["--optimizer", "none"], None)]
)
def test_the_command_line_has_the_same_default(options, rule, tmp_path):
    table = tmp_path / "t.csv"
    np.savetxt(table, np.column_stack([X, Y]), delimiter=",", header="a,b,y", comments="")
    out = str(tmp_path / "m.gp")
    result = CliRunner().invoke(app.app, ["fit", str(table), "--target", "y", "-o", out, "-q", *options])
    assert result.exit_code == 0, result.output
    gp = gigagp.load(out)
    assert gp.kernel is None
    assert (gp.kernel_choice_ and gp.kernel_choice_.rule) == rule
