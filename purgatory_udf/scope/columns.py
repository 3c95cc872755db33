"""Rules applied to many requests at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.scope.override import INT32_MAX
from purgatory_udf.scope.rule import COORDINATED, INTERNAL_TOPICS, MARKER_SENDERS, ScopeRule, fits

Array = npt.NDArray[Any]


def scaled(recorded: Array, setting: int | str | None) -> Array:
    if setting is None:
        return recorded
    if isinstance(setting, int):
        return np.full(len(recorded), setting, dtype=np.int64)
    return np.minimum(INT32_MAX, recorded * float(setting[1:])).astype(np.int64)


class Subjects:
    """Requests as rules see them: columns of one type's events, and the topics that their items name."""

    def __init__(self, events: pa.Table, items: pa.Array, parents: Array) -> None:
        """`parents` has for each item the place of its request."""
        self._events, self._items, self._parents = events, items, parents

    def __len__(self) -> int:
        return len(self._events)

    def matching(self, rule: ScopeRule) -> Array:
        mask = np.ones(len(self), dtype=bool)
        if rule.broker is not None:
            mask &= pc.equal(pc.fill_null(self._events["broker"], 0), rule.broker).to_numpy(zero_copy_only=False)
        if rule.client_id is not None:
            mask &= _fitting(self._events["client_id"], rule.client_id)
        if rule.topic is not None:
            named = _fitting(pc.struct_field(self._items, "topic"), rule.topic)
            mask &= np.bincount(self._parents[named], minlength=len(self)).astype(bool)
        return mask

    def asked(self, recorded: Array, rules: Iterable[ScopeRule], keys: Sequence[str], plain: int | str | None) -> Array:
        """The recorded values as the settings want them: the first rule's that matches, else the plain setting's. Of a
        coordinator's own produce only a rule by topic changes the time-out."""
        coordinators = self._of_coordinators() if COORDINATED in keys else np.zeros(len(self), dtype=bool)
        asked, open_still = np.where(coordinators, recorded, scaled(recorded, plain)), np.ones(len(self), dtype=bool)
        for rule in rules:
            said = next((key for key in keys if key in rule.settings), None)
            if said is None:
                continue
            mine = open_still & self.matching(rule)
            if rule.topic is None:
                mine &= ~coordinators
            asked = np.where(mine, scaled(recorded, rule.settings[said]), asked)
            open_still &= ~mine
        return asked

    def _of_coordinators(self) -> Array:
        """See `Subject.is_coordinators`."""
        internal = pc.is_in(pc.struct_field(self._items, "topic"), pa.array(INTERNAL_TOPICS))
        others = self._parents[~internal.to_numpy(zero_copy_only=False)]
        named = np.bincount(self._parents, minlength=len(self)) > 0
        written = named & (np.bincount(others, minlength=len(self)) == 0)
        return written | _fitting(self._events["client_id"], MARKER_SENDERS)


def _fitting(column: pa.Array | pa.ChunkedArray, pattern: str) -> Array:
    """Which texts fit; each is looked at once, however often it occurs."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    coded = column.dictionary_encode()
    fitting = np.array([*(fits(pattern, name) for name in coded.dictionary.to_pylist()), False])
    return fitting[pc.fill_null(coded.indices, len(fitting) - 1).to_numpy(zero_copy_only=False)]
