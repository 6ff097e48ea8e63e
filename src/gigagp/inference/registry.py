"""Registry of all inference methods by name, for estimators, the command line and model files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor

from gigagp.errors import InvalidInputError, ModelFileError
from gigagp.inference.computation_aware import ComputationAware
from gigagp.inference.contract.base import Inference
from gigagp.inference.contract.posterior import Posterior
from gigagp.inference.contract.saved import Saved
from gigagp.inference.curves import Curves
from gigagp.inference.exact.exact import Exact
from gigagp.inference.grid import Grid
from gigagp.inference.iterative.iterative import Iterative
from gigagp.inference.markov import Markov
from gigagp.inference.quadruply_stochastic import QuadruplyStochastic, RelevanceVectorMachine
from gigagp.inference.random_features.random_features import RandomFeatures
from gigagp.inference.sparse_variational import SparseVariational
from gigagp.inference.vecchia import Vecchia

_ENTRIES: dict[str, type[Inference]] = {}


def register(kind: type[Inference]) -> type[Inference]:
    """Register an inference method of your own, so that the command line and model files know its name.

    When to use: where the class is defined; it also works as a decorator. A class that is defined again, as in a cell
    of a notebook, replaces the earlier one. An estimator accepts an inference method without registration.

    Parameters
    ----------
    kind : type
        Subclass of `Inference` with `abilities` and `posteriors`.

    Returns
    -------
    type
        The class, unchanged.

    Raises
    ------
    InvalidInputError
        If it is not such a class, or if another class has the same name or a posterior of the same kind.
    """
    if not (isinstance(kind, type) and issubclass(kind, Inference)):
        msg = f"register of gigagp.inference takes a subclass of gigagp.inference.Inference; got {kind!r}."
        raise InvalidInputError(msg)
    missing = [name for name in ("abilities", "posteriors") if not hasattr(kind, name)]
    if missing:
        msg = f"{kind.__name__} must declare {' and '.join(missing)} to be registered; see gigagp.inference.Inference."
        raise InvalidInputError(msg)
    name = kind.abilities.name
    if not _is_same(_ENTRIES.get(name, kind), kind):
        raise InvalidInputError(f"an inference named {name!r} is already registered: {_ENTRIES[name].__name__}.")
    known = posterior_kinds()
    for posterior in kind.posteriors:
        if not _is_same(known.get(posterior.kind, posterior), posterior):
            msg = f"a posterior of kind {posterior.kind!r} is already registered; rename that of {posterior.__name__}."
            raise InvalidInputError(msg)
    _ENTRIES[name] = kind
    return kind


def _is_same(one: type, other: type) -> bool:
    """Return whether two classes have the same definition, as after a module or a cell of a notebook ran twice."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def registered() -> Mapping[str, type[Inference]]:
    """Return all registered inference methods by name."""
    return MappingProxyType(_ENTRIES)


def posterior_kinds(more: Iterable[type[Inference]] = ()) -> dict[str, type[Posterior]]:
    """Return the classes of posteriors by their `kind`, including those of further, unregistered methods."""
    kinds = (*_ENTRIES.values(), *more)
    return {posterior.kind: posterior for kind in kinds for posterior in kind.posteriors}


def restore_posterior(
    header: Mapping[str, Any], tensors: dict[str, Tensor], saved: Saved, more: Iterable[type[Inference]] = ()
) -> Posterior:
    """Return the posterior stored in a model file, of registered methods or of ``more``.

    The header and the tensors are those of the posterior's state. Raises `ModelFileError` if they are not valid.
    """
    kind, kinds = header["kind"], posterior_kinds(more)
    found = kinds.get(kind) if isinstance(kind, str) else None
    if found is None:
        raise ModelFileError(f"the model file holds a posterior of unknown kind: {str(kind)[:60]!r}.")
    return found.from_state(tensors, dict(header), saved._replace(kinds=kinds))


def streaming_names() -> str:
    """Return the names of the methods that work on streamed rows, for messages."""
    return ", ".join(f"inference.{kind.__name__}" for kind in _ENTRIES.values() if kind.abilities.streams)


def adding_names() -> str:
    """Return the names of the methods that can add rows to a fit, for messages."""
    return ", ".join(f"inference.{kind.__name__}" for kind in _ENTRIES.values() if kind.abilities.adds_rows)


def capability_table() -> str:
    """Return the capabilities of all inference methods as a Markdown table."""
    lines = [
        "| inference | rows | kernels | likelihoods | noise of each row | `fit_table` | `condition_on` | precision |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in _ENTRIES.values():
        can = kind.abilities
        precisions = [*can.dtypes, *(["mixed"] if kind().mixes_precision else [])]
        cells = (
            f"`inference.{kind.__name__}`",
            can.rows,
            {"random features": "with a spectrum", "state space": "with a state space"}.get(can.kernels, can.kernels),
            {"gaussian": "Gaussian", "log-concave": "log-concave", "any": "all"}[can.likelihoods],
            *("yes" if one else "no" for one in (can.row_noise, can.streams, can.adds_rows)),
            ", ".join(precisions) + ("; CPU alone" if can.devices == "cpu" else ""),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


for _kind in (
    Exact,
    Markov,
    Curves,
    Iterative,
    Vecchia,
    Grid,
    SparseVariational,
    ComputationAware,
    QuadruplyStochastic,
    RelevanceVectorMachine,
    RandomFeatures,
):
    register(_kind)
