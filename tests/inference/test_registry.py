"""The registry of inference methods, which estimators and model files read, and user-defined methods."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pytest

import gigagp
from gigagp import GPRegressor, inference
from gigagp.commands import options
from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.inference import registry
from gigagp.inference.contract.exact_posterior import ExactPosterior, Factorised
from gigagp.inference.contract.objective import ExactObjective

X = np.random.default_rng(0).uniform(0, 5, size=(30, 2))
Y = np.sin(X[:, 0]) + 0.2 * X[:, 1]


class WidePosterior(ExactPosterior):
    """An exact posterior with twice the variance, and with its own kind."""

    kind = "wide"

    def mean_and_variance_given_trend(self, X, method="auto"):
        mean, variance = super().mean_and_variance_given_trend(X, method)
        return mean, 2 * variance


class WideObjective(ExactObjective):
    def posterior(self, model, generator=None):
        return WidePosterior(Factorised.of(model, self.table))


@dataclass(frozen=True)
class Wide(inference.Inference):
    strength: int = 1

    abilities = inference.Abilities("wide", "a few", options={"--strength": "strength"})
    posteriors = (WidePosterior,)

    def objective(self, table, generator, likelihood=None):
        return WideObjective(table)

    def describe(self):
        return "wide"


@pytest.fixture
def entries(monkeypatch):
    """Return the registry for a test to change; it is restored afterwards."""
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))


def test_the_package_registers_all_its_inferences():
    exported = {getattr(inference, name) for name in inference.__all__}
    kinds = {one for one in exported if isinstance(one, type) and issubclass(one, inference.Inference)}
    assert set(inference.registered().values()) == kinds - {inference.Inference}
    assert tuple(inference.registered()) == options.INFERENCES  # help texts do not read the registry


@pytest.mark.parametrize("name", options.INFERENCES)
def test_an_entry_says_what_is_there(name):
    kind = inference.registered()[name]
    assert kind.abilities.name == name
    assert set(kind.abilities.options.values()) <= {field.name for field in fields(kind)}
    assert kind.abilities.streams == (kind.stream is not inference.Inference.stream)
    assert all(registry.posterior_kinds()[one.kind] is one for one in kind.posteriors)
    assert options.choose_inference(name) == kind()


def test_an_option_belongs_to_those_that_declare_it():
    assert options.choose_inference("sparse-variational", given={"--inducing": 7}).n_inducing == 7
    assert options.choose_inference("vecchia", given={"--neighbors": 8}).n_neighbors == 8
    assert options.choose_inference("computation-aware", given={"--actions": 9}).n_actions == 9
    with pytest.raises(
        InvalidInputError, match=r"--inducing does not apply to --inference exact; it goes with .*sparse"
    ):
        options.choose_inference("exact", given={"--inducing": 7})
    with pytest.raises(InvalidInputError, match="--features cannot be combined with --truncation"):
        options.choose_inference("random-features", "40,10", {"--features": 100})


def test_the_posterior_of_a_fit_is_one_that_its_inference_names():
    for kind in (
        inference.Exact(),
        inference.Vecchia(5),
        inference.RandomFeatures(50),
        inference.RandomFeatures(50, prediction=inference.Exact()),
    ):
        gp = GPRegressor(inference=kind, optimizer=None).fit(X, Y)
        assert isinstance(gp.posterior_, kind.posteriors)


# An inference of one's own ----------------------------------------------------------------------------------------


def test_an_inference_that_is_not_registered_fits_and_comes_back_with_custom(tmp_path):
    gp = GPRegressor(inference=Wide(), optimizer=None).fit(X, Y)
    exact = GPRegressor(inference=inference.Exact(), optimizer=None).fit(X, Y)
    spread, expected = gp.predict(X, return_std=True)[1], exact.predict(X, return_std=True)[1]
    root = exact.posterior_.trend_root(exact.posterior_.X).square().sum(1).numpy() * exact.scaling_.y_scale**2
    np.testing.assert_allclose(spread**2, 2 * (expected**2 - root) + root, rtol=1e-9)
    gp.save(tmp_path / "wide.gp")
    again = gigagp.load(tmp_path / "wide.gp", custom=[Wide])
    assert isinstance(again.posterior_, WidePosterior)
    np.testing.assert_array_equal(again.predict(X, return_std=True)[1], spread)
    with pytest.raises(ModelFileError, match="names a setting that is not gigagp's: 'Wide'"):
        gigagp.load(tmp_path / "wide.gp")


def test_a_registered_inference_comes_back_by_name(tmp_path, entries):
    assert inference.register(Wide) is Wide
    assert inference.register(Wide) is Wide
    again = type("Wide", (Wide,), {"__module__": Wide.__module__, "__qualname__": Wide.__qualname__})
    assert inference.register(again) is again  # a cell of a notebook that ran twice
    assert inference.register(Wide) is Wide
    GPRegressor(inference=Wide(3), optimizer=None).fit(X, Y).save(tmp_path / "wide.gp")
    assert gigagp.load(tmp_path / "wide.gp").inference_ == Wide(3)
    assert options.choose_inference("wide", given={"--strength": 3}) == Wide(3)
    assert "`inference.Wide`" in registry.capability_table()


def test_what_cannot_be_registered_is_refused(entries):
    with pytest.raises(InvalidInputError, match="register of gigagp"):
        inference.register(int)

    class Nameless(inference.Inference):
        pass

    with pytest.raises(InvalidInputError, match="Nameless must declare abilities and posteriors"):
        inference.register(Nameless)

    class Taken(Wide):
        abilities = inference.Exact.abilities

    with pytest.raises(InvalidInputError, match="'exact' is already registered: Exact"):
        inference.register(Taken)

    class Impostor(ExactPosterior):
        pass

    class Double(Wide):
        posteriors = (Impostor,)

    with pytest.raises(InvalidInputError, match="posterior of kind 'exact' is already registered"):
        inference.register(Double)
    assert "wide" not in inference.registered()


def test_what_is_not_supported_is_refused_before_any_work():
    with pytest.raises(InvalidInputError, match="inference of GPRegressor must be"):
        GPRegressor(inference=object()).fit(X, Y)
    with pytest.raises(
        InvalidInputError, match=r"fit_table of GPRegressor works with inference\.Vecchia.* inference\.Wide does not"
    ):
        GPRegressor(inference=Wide()).fit_table((X, Y))
    with pytest.raises(InvalidInputError, match="inference for the poisson likelihood"):
        GPRegressor(inference=Wide(), likelihood="poisson").fit(X, np.ones(30))
    with pytest.raises(InvalidInputError, match='dtype of GPRegressor must be "float64" or "float32"'):
        GPRegressor(inference=Wide(), dtype="mixed").fit(X, Y)

    class Narrow(Wide):
        abilities = inference.Abilities("narrow", "a few", most_inputs=1, row_noise=False, devices="cpu")

    with pytest.raises(InvalidInputError, match="at most 1 input"):
        GPRegressor(inference=Narrow()).fit(X, Y)
    with pytest.raises(InvalidInputError, match="must be one number, or None, with inference"):
        GPRegressor(inference=Narrow(), noise_variance=np.ones(30)).fit(X[:, :1], Y)


# The table in the documentation -----------------------------------------------------------------------------------

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to-choose.md"


def table_of(page: str) -> str:
    """Return what stands between the comments of the capability table."""
    found = re.search(
        r"^<!-- capability table: printed from gigagp\.inference\.registry -->\n(.*?)\n<!-- end -->$", page, re.S | re.M
    )
    assert found is not None
    return found.group(1)


def test_the_page_shows_the_table_of_the_registry():
    assert table_of(PAGE.read_text(encoding="utf-8")) == registry.capability_table()


def test_a_changed_cell_of_the_page_is_found():
    page = PAGE.read_text(encoding="utf-8")
    changed = page.replace("| `inference.Grid` | any number", "| `inference.Grid` | a few", 1)
    assert changed != page
    assert table_of(changed) != registry.capability_table()


def test_an_inference_of_ones_own_is_not_on_the_page(entries):
    inference.register(Wide)
    assert table_of(PAGE.read_text(encoding="utf-8")) != registry.capability_table()
