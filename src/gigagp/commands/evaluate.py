"""``gigagp evaluate``: scores of a model; ``gigagp compare``: those of several models, beside simple methods."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Column
from rich.table import Table as Grid

import gigagp
from gigagp.commands import options
from gigagp.commands.blocks import Blocks
from gigagp.commands.problem import (
    known_target,
    limits,
    naming_rows,
    read_problem,
    require_one_target,
    resolve_column,
)
from gigagp.errors import InvalidInputError
from gigagp.estimators import metrics
from gigagp.estimators.saving.persistence import load_notes, save
from gigagp.model.likelihoods import Gaussian, resolve_likelihood
from gigagp.runtime.progress import meter_for
from gigagp.storage.figures import check_plot
from gigagp.storage.files import check_folder
from gigagp.tables.beside import known_targets
from gigagp.tables.files import CsvStyle
from gigagp.tables.files.labels import Labels


def evaluate(
    model: options.ModelPath,
    table: options.TablePath,
    target: Annotated[
        str | None,
        typer.Option(help="The column with the true values; by default the target of the fit."),
    ] = None,
    noise_column: Annotated[
        str | None,
        typer.Option(help="The column with each row's noise variance; by default that of the fit."),
    ] = None,
    exposure: Annotated[
        str | None,
        typer.Option(help="The column with each row's exposure or trials; by default that of the fit."),
    ] = None,
    columns: options.Columns = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
    header: options.Header = None,
    decimal: options.Decimal = ".",
    comment: options.Comment = None,
    quiet: options.Quiet = False,
) -> None:
    """Score the predictions for a table whose targets are known."""
    regressor = gigagp.load(model)
    notes = load_notes(model)
    noise_column = notes.get("noise_column") if noise_column is None else noise_column
    exposure = notes.get("exposure") if exposure is None else exposure
    target = known_target(model, target)
    blocks = Blocks.of(table, header, CsvStyle(decimal, comment))
    target = resolve_column(target, blocks.names, str(table))
    chosen = options.split_names(columns)
    with meter_for(options.verbosity(quiet, False, "evaluation"), job="evaluation"):
        if isinstance(regressor, gigagp.GPClassifier):
            result, n_rows = _class_scores(regressor, blocks, chosen, target)
        else:
            require_one_target(regressor, model)
            if noise_column is not None:
                noise_column = resolve_column(noise_column, blocks.names, str(table))
            if exposure is not None:
                exposure = resolve_column(exposure, blocks.names, str(table))
            if regressor.likelihood_.has_limits:
                upper = resolve_column(str(notes.get("upper") or target), blocks.names, str(table))
                result, n_rows = _score_of_limits(regressor, blocks, chosen, target, upper)
            else:
                result, n_rows = _regressor_scores(regressor, blocks, chosen, target, noise_column, exposure)
    if as_json:
        typer.echo(json.dumps({"rows": n_rows, "target": target, **result}))
    else:
        typer.echo(f"{n_rows:,} rows of {table}, target {target}")
        Console().print(_grid(result))


def compare(
    table: options.TablePath,
    target: options.Target,
    columns: options.Columns = None,
    exposure: options.Exposure = None,
    likelihood: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME...]",
            help="Likelihoods, as for gigagp fit, of which each is a model; auto among them. By default targets have "
            "Gaussian noise, and with --exposure the likelihood is chosen.",
            show_default=False,
        ),
    ] = None,
    time_budget: Annotated[str, typer.Option("--time", help='Time of each model, such as "1min".')] = "1min",
    held_out: Annotated[float, typer.Option(help="Share of the rows that is held out, at most 10,000 rows.")] = 0.2,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Fit the best model again, to all rows, and save it.", show_default=False),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="File of a plot: .png, .pdf or .svg.", show_default=False)] = None,
    seed: options.Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
    header: options.Header = None,
    strict: options.Strict = False,
    decimal: options.Decimal = ".",
    comment: options.Comment = None,
    quiet: options.Quiet = False,
) -> None:
    """Compare models in equal times, together with the mean, linear regression, neighbours and boosted trees."""
    if out is not None:
        check_folder(out)
    if plot is not None:
        check_plot(plot)
    names = options.split_names(likelihood, "--likelihood") or []
    no_numbers = {*options.OF_CLASSES, *options.WITH_LIMITS}
    if not {*names} <= {*options.LIKELIHOODS} - no_numbers:
        offered = ", ".join(one for one in options.LIKELIHOODS if one not in no_numbers)
        raise InvalidInputError(f"--likelihood of compare must be names among {offered}; got {likelihood!r}.")
    style = CsvStyle(decimal, comment)
    X, y, (target, *counted_over), known = read_problem(table, target, columns, header, style, strict, exposure)
    for name in names:
        with naming_rows(table, target, *counted_over):
            known_targets(resolve_likelihood(name), y, len(y), **(known if name != "auto" else {}))

    encode: Literal["strict", "auto"] = "strict" if strict else "auto"
    comparison = gigagp.compare(
        X,
        y,
        {name: gigagp.GPRegressor(likelihood=name, encode=encode) for name in names} or None,
        time_budget=time_budget,
        held_out=held_out,
        encode=encode,
        random_state=seed,
        verbose=options.verbosity(quiet, False, "comparison"),
        **known,
    )
    if as_json:
        listed = [asdict(one) for one in comparison.models]
        sizes = {"rows": comparison.n_rows, "held_out": comparison.n_held_out}
        typer.echo(json.dumps({"best": comparison.best, **sizes, "models": listed}))
    else:
        typer.echo(str(comparison))
    if plot is not None:
        comparison.plot(plot)
    if out is not None:
        model = comparison.model.set_params(verbose=options.verbosity(quiet, False, "fit")).fit(X, y, **known)
        beside = {"exposure": counted_over[0]} if known else {}
        save(model, out, notes={"target": target, "noise_column": None, **beside, "rows": len(y)})
        typer.echo(f"{comparison.best} fitted to all rows; saved to {out}.", err=as_json)


def _regressor_scores(
    regressor: gigagp.GPRegressor,
    blocks: Blocks,
    columns: list[str] | None,
    target: str,
    noise_column: str | None,
    exposure: str | None,
) -> tuple[dict[str, Any], int]:
    """Return the scores of the predictions, and the number of rows."""
    likelihood = regressor.likelihood_
    if noise_column is not None and not likelihood.adds_noise:
        msg = f"--noise-column does not apply to the {likelihood.name} likelihood, which has no noise variances."
        raise InvalidInputError(msg)
    has_distribution = (
        not regressor.target_transform_.is_identity
        or not likelihood.adds_noise
        or (likelihood.is_scale_mixture and not noise_column)
    )
    is_gaussian = isinstance(likelihood, Gaussian)
    others = [target, *(one for one in (noise_column, exposure) if one is not None)]
    found: list[tuple[np.ndarray, ...]] = []
    for block in blocks.read(regressor, columns, others):
        assert block.others is not None
        measured = block.others.values[:, 0]
        # Measured targets contain noise, so the intervals for them include it.
        includes = noise_column is None
        if has_distribution:
            known = {} if exposure is None else {"exposure": block.others.values[:, -1]}
            with naming_rows(blocks.path, target, exposure, before=sum(len(part[0]) for part in found)):
                found.append(_distribution(regressor, block.inputs, measured, known))
            continue
        mean, std = regressor.predict(block.inputs, return_std=True, include_noise=includes)
        latent = std
        if includes and not is_gaussian:
            latent = regressor.predict(block.inputs, return_std=True)[1]
        if noise_column is not None:
            noise = block.others.values[:, 1]
            if np.any(noise < 0):
                row = sum(len(part[0]) for part in found) + int(np.argmax(noise < 0)) + 1
                raise InvalidInputError(f"{blocks.path}: column {noise_column!r} must not be negative; row {row} is.")
            std = np.sqrt(latent**2 + noise)
        found.append((measured, mean, latent, std))
    if has_distribution:
        measured, mean, density, inside = (np.concatenate(parts) for parts in zip(*found, strict=True))
        shares = {str(level): float(inside[:, k].mean()) for k, level in enumerate(metrics.INTERVALS)}
        result = {"rmse": metrics.rmse(measured, mean), "nll": -float(density.mean()), "coverage": shares}
        return result, len(measured)
    measured, mean, latent, std = (np.concatenate(parts) for parts in zip(*found, strict=True))
    if is_gaussian:
        return scores(measured, mean, std), len(measured)
    y, m, s, whole = (torch.from_numpy(np.asarray(one, dtype=float)) for one in (measured, mean, latent, std))
    with naming_rows(blocks.path, target):
        likelihood.check_targets(y)
    logs = likelihood.predictive_log_density(y, m, s, whole.square() - s.square())
    return {"rmse": metrics.rmse(measured, mean), "nll": -float(logs.mean())}, len(measured)


def _score_of_limits(
    regressor: gigagp.GPRegressor, blocks: Blocks, columns: list[str] | None, target: str, upper: str
) -> tuple[dict[str, Any], int]:
    """Return the log score of targets within limits, and the number of rows."""
    y = limits(blocks.whole(), target, upper, str(blocks.path))
    with naming_rows(blocks.path, f"{target}' and '{upper}"):
        known_targets(regressor.likelihood_, y, len(y))
    found: list[np.ndarray] = []
    for block in blocks.read(regressor, columns):
        start = sum(map(len, found))
        found.append(regressor.predictive_log_density(block.inputs, y[start : start + len(block.inputs)]))
    return {"nll": -float(np.concatenate(found).mean())}, len(y)


def _distribution(
    regressor: gigagp.GPRegressor, X: Any, y: np.ndarray, known: dict[str, Any]
) -> tuple[np.ndarray, ...]:
    """Return measurements, means, log densities, and whether central intervals hold the measurement, by level."""
    density = regressor.predictive_log_density(X, y, **known)  # refuses targets before the longer work
    ends = np.array([0.5 - 0.5 * level for level in metrics.INTERVALS])
    quantiles = regressor.predict_quantile(X, np.concatenate([ends, 1 - ends]), **known)
    lower, upper = np.split(quantiles, 2, axis=1)
    inside = (lower <= y[:, None]) & (y[:, None] <= upper)  # counts are often at an end
    return y, regressor.predict(X, **known), density, inside


def _class_scores(
    classifier: gigagp.GPClassifier, blocks: Blocks, columns: list[str] | None, target: str
) -> tuple[dict[str, float], int]:
    """Return accuracy, log loss and calibration error of the probabilities, and the number of rows."""
    labels = Labels(classifier.classes_)
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for block in blocks.read(classifier, columns, [target], {target: labels}):
        assert block.others is not None
        found.append((block.others.values[:, 0].astype(np.int64), classifier.predict_proba(block.inputs)))
    codes, probability = (np.concatenate(parts) for parts in zip(*found, strict=True))
    result = {
        "accuracy": float(np.mean(probability.argmax(1) == codes)),
        "log_loss": metrics.log_loss(codes, probability),
        "calibration_error": metrics.calibration_error(codes, probability),
    }
    return result, len(codes)


def scores(measured: np.ndarray, mean: np.ndarray, std: np.ndarray) -> dict[str, Any]:
    """Return RMSE, NLL, CRPS and, for each nominal level, the coverage of the central intervals."""
    return {
        "rmse": metrics.rmse(measured, mean),
        "nll": metrics.gaussian_nll(measured, mean, std),
        "crps": metrics.gaussian_crps(measured, mean, std),
        "coverage": {str(level): metrics.coverage(measured, mean, std, level) for level in metrics.INTERVALS},
    }


#: Label, form and meaning of each score.
_MEANINGS = {
    "accuracy": ("accuracy", ".2%", "rows whose most probable class is the true one"),
    "log_loss": ("log loss", ".4f", "negative log probability of the true class, nats per row"),
    "calibration_error": ("calibration", ".4f", "mean gap between confidence and accuracy, ten bins"),
    "rmse": ("RMSE", ".5g", "error of the mean, in the target's units"),
    "nll": ("NLL", ".4f", "negative log density, nats per row"),
    "crps": ("CRPS", ".5g", "error of the distribution, in the target's units"),
}


def _grid(result: dict[str, Any]) -> Grid:
    grid = Grid("score", Column("value", justify="right"), "meaning")
    for name, (label, form, meaning) in _MEANINGS.items():
        if name in result:
            grid.add_row(label, format(result[name], form).replace("%", " %"), meaning)
    for level, share in result.get("coverage", {}).items():
        nominal = f"{100 * float(level):.0f} %"
        grid.add_row(f"coverage {nominal}", f"{100 * share:.1f} %", f"rows inside the {nominal} interval")
    return grid
