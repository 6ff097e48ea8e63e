"""The effects of the levels of groups in the data's own units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gigagp.inference.contract.posterior import Posterior
from gigagp.kernels import Group
from gigagp.model.scaling import Scaling
from gigagp.tables.encoding import TableEncoder
from gigagp.tables.encoding.columns import Categories, Numbered


class GroupEffects(NamedTuple):
    """Effects of the levels of a group, of a single target, with one row for each level.

    ``level``, shape (q,) or (q, columns), has the levels in ascending order, or the categories of encoded columns, the
    most frequent first. The columns of ``effect`` and ``std``, shape (q,) or (q, 1 + slopes), are the effect and
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
            "group_effects_ of GPRegressor needs inference.Exact or Vecchia, a kernel with kernels.Group as a term, "
            f"and one target; this is a {posterior.kind} posterior of {posterior.n_targets} target(s). Predictions "
            "with and without groups differ by the effects."
        )
    found = {}
    for group, levels, effect, std in effects:
        units = scaling.y_scale[0] / np.concatenate([[1.0], _scales(group, scaling)])
        numbers = effect[:, :, 0].double().cpu().numpy() * units, std.double().cpu().numpy() * units
        found_levels, label = levels.cpu().numpy(), _label(group, names, len(scaling.x_scale))
        columns = _encoded(group, encoder)
        if columns:
            codes = np.stack([column.codes(found_levels[:, own]) for column, own in columns], 1)
            order = np.lexsort(codes.T[::-1])  # the most frequent category first
            each = [column.texts_of(codes[order, k]) for k, (column, _) in enumerate(columns)]
            found_levels, numbers = np.stack(each, 1), (numbers[0][order], numbers[1][order])
            label = ":".join(column.label for column, _ in columns)
        shown = [one[:, 0] if one.shape[1] == 1 else one for one in (found_levels, *numbers)]
        found[label] = GroupEffects(*shown)
    return found


def _encoded(group: Group, encoder: TableEncoder | None) -> list[tuple[Categories | Numbered, slice]]:
    """Return the text columns whose combinations are the levels of a group, with their places; none if not all."""
    if encoder is None:
        return []
    pairs = zip(encoder.columns, encoder.inputs, strict=True)
    texts = {parts[0][0]: (one, len(parts[0])) for one, parts in pairs if isinstance(one, Categories | Numbered)}
    found, start = [], 0
    while start < len(group.level_columns):
        first = group.level_columns[start]
        if first not in texts:
            return []
        column, width = texts[first]
        found.append((column, slice(start, start + width)))
        start += width
    return found


def _scales(group: Group, scaling: Scaling) -> np.ndarray:
    return scaling.x_scale[np.array([one for one in group.slope_columns if isinstance(one, int)], dtype=int)]


def _label(group: Group, names: Sequence[Any] | None, n_inputs: int) -> str:
    """Return the columns of levels by name, where the inputs are the columns of the table."""
    if names is None or len(names) != n_inputs:
        return group.label
    return ":".join(str(names[column]) for column in group.level_columns if isinstance(column, int))
