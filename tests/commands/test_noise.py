"""``gigagp fit --noise``: noise that depends on the inputs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gigagp import kernels, load


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    draw = np.random.default_rng(0)
    x = draw.uniform(0, 10, 150)
    y = np.sin(x) + np.where(x > 5, 0.6, 0.05) * draw.normal(size=150)
    path = tmp_path_factory.mktemp("noise") / "table.csv"
    np.savetxt(path, np.stack([x, y], 1), delimiter=",", header="x,y", comments="")
    return path


def test_a_fit_learns_it(table, tmp_path, run):
    model = tmp_path / "m.gp"
    run("fit", table, "--target", "y", "--noise", "auto", "--kernel", "matern52", "-q", "-o", model)
    gp = load(model)
    assert any(isinstance(leaf, kernels.LocalVariance) for leaf in gp.kernel_.leaves())
    _, std = gp.predict(pd.DataFrame({"x": [2.0, 8.0]}), return_std=True, include_noise=True)
    assert std[1] > 3 * std[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--noise", "wild"), "--noise must be one of constant, varying, scaled, auto; got 'wild'"),
        (("--noise", "auto", "--likelihood", "student-t"), "does not apply to --likelihood student-t"),
        (("--noise", "auto", "--inference", "grid"), 'must be "constant" with inference.Grid'),
    ],
)
def test_bad_options_are_one_line(table, refused, options, words):
    refused(words, "fit", table, "--target", "y", *options)
