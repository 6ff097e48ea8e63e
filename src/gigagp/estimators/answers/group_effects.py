"""The effects of the levels of groups in the data's own units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gigagp.inference.contract.posterior import Posterior
from gigagp.kernels import Group
from gigagp.model.scaling import Scaling
from gigagp.tables.encoding import TableEncoder
from gigagp.tables.encoding.columns import Levels


class GroupEffects(NamedTuple):
    """Effects of the levels of a group, of a single target, with one row for each level.

    ``level``, shape (q,) or (q, columns), has the levels in ascending order, or the categories of an encoded column,
    the most frequent first. The columns of ``effect`` and ``std``, shape (q,) or (q, 1 + slopes), are the effect and
    then the slopes.
    """

    level: np.ndarray
    effect: np.ndarray
    std: np.ndarray


def effects_of_groups(
    posterior: Posterior, scaling: Scaling, names: Sequence[Any] | None, encoder: TableEncoder | None
) -> dict[str, GroupEffects]:
    """Return the effects of each group by its columns of levels; `AttributeError` if the posterior holds none."""
    effects = posterior.group_effects()
    if effects is None or posterior.n_targets > 1:
        raise AttributeError(
            "group_effects_ of GPRegressor needs inference.Vecchia, a kernel with kernels.Group as a term, and one "
            f"target; this is a {posterior.kind} posterior of {posterior.n_targets} target(s). Predictions with and "
            "without groups differ by the effects."
        )
    found = {}
    for group, levels, effect, std in effects:
        units = scaling.y_scale[0] / np.concatenate([[1.0], _scales(group, scaling)])
        numbers = effect[:, :, 0].double().cpu().numpy() * units, std.double().cpu().numpy() * units
        shown = [one[:, 0] if one.shape[1] == 1 else one for one in (levels.cpu().numpy(), *numbers)]
        label, column = _label(group, names, len(scaling.x_scale)), _encoded(group, encoder)
        if column is not None:
            label, shown[0] = column.label, np.array(column.levels, dtype=object)[shown[0]]
        found[label] = GroupEffects(*shown)
    return found


def _encoded(group: Group, encoder: TableEncoder | None) -> Levels | None:
    """Return the column of the table whose categories are the levels of a group; None if levels are numbers."""
    if encoder is None:
        return None
    pairs = zip(encoder.columns, encoder.inputs, strict=True)
    return next((one for one, parts in pairs if isinstance(one, Levels) and parts[0] == group.level_columns), None)


def _scales(group: Group, scaling: Scaling) -> np.ndarray:
    return scaling.x_scale[np.array([one for one in group.slope_columns if isinstance(one, int)], dtype=int)]


def _label(group: Group, names: Sequence[Any] | None, n_inputs: int) -> str:
    """Return the columns of levels by name, where the inputs are the columns of the table."""
    if names is None or len(names) != n_inputs:
        return group.label
    return ":".join(str(names[column]) for column in group.level_columns if isinstance(column, int))
