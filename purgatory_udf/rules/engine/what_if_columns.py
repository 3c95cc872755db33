"""What-if settings on columns of events: the timeout, max_wait and min_bytes that each request has with them.

The engine applies them before anything else, so all later steps see one value per operation. `contract.overrides`
defines the settings; the reference applies them to one request at a time (`rules.reference.event_handlers`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.common.configuration import Config, fetch_keys
from purgatory_udf.contract.overrides import (
    COORDINATOR_KEY,
    INT32_MAX,
    INTERNAL_TOPICS,
    MARKER_SENDERS,
    ScopeRule,
    matches_pattern,
)
from purgatory_udf.rules.engine.loop.codes import UNKNOWN

Array = npt.NDArray[Any]

# The last configuration that changes no column: all batches of a stream have the same one.
_without_effect: list[Config] = []


def effective_settings(columns: Mapping[str, pa.Array], config: Config) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the columns `timeout_ms`, `max_wait_ms` and `min_bytes` with the what-if settings applied.

    Args:
        columns: The columns of a table of events, each as one array.
        config: The configuration with the what-if settings.
    """
    timeouts, waits, min_bytes = recorded = [columns[name] for name in ("timeout_ms", "max_wait_ms", "min_bytes")]
    if _without_effect and _without_effect[0] is config:
        return timeouts, waits, min_bytes
    for kind, listed in (("produce", "partitions"), ("delete_records", "partitions"), ("create_topics", "topics")):
        timeouts = _override(columns, timeouts, config, (f"{kind}.timeout_ms",), listed, kind)
    for follower in (True, False):
        waits = _override(columns, waits, config, fetch_keys("max_wait_ms", follower), "partitions", "fetch", follower)
        min_bytes = _override(
            columns, min_bytes, config, fetch_keys("min_bytes", follower), "partitions", "fetch", follower
        )
    if all(map(operator.is_, recorded, (timeouts, waits, min_bytes))):
        _without_effect[:] = [config]
    return timeouts, waits, min_bytes


def _override(
    columns: Mapping[str, pa.Array],
    recorded: pa.Array,
    config: Config,
    keys: tuple[str, ...],
    listed: str,
    kind: str,
    follower: bool | None = None,
) -> pa.Array:
    """Apply what-if settings to one column of the requests of one kind.

    Args:
        columns: The events.
        recorded: The column as recorded.
        config: The configuration with the what-if settings.
        keys: The names of the settings that change the column.
        listed: The column with the requests' partitions or topics.
        kind: The kind of requests.
        follower: For fetches: whether to change those of followers, or those of consumers.

    Returns:
        The changed column. Rows of other requests stay as recorded.
    """
    plain = config.plain(keys)
    if plain is None and not any(key in rule.settings for rule in config.what_if for key in keys):
        return recorded
    values = pc.fill_null(recorded, UNKNOWN).to_numpy()
    effective = _RequestColumns(columns, columns[listed]).effective(values, config.what_if, keys, plain)
    selected = pc.equal(columns["type"], kind).to_numpy(zero_copy_only=False)
    if follower is not None:
        selected &= (pc.fill_null(columns["replica_id"], UNKNOWN).to_numpy() >= 0) == follower
    return pa.array(np.where(selected, effective, values), pa.int64())


def _apply_override_to_all(recorded: Array, setting: int | str | None) -> Array:
    """Apply one setting to many recorded values, as `apply_override` does to one."""
    if setting is None:
        return recorded
    if isinstance(setting, int):
        return np.full(len(recorded), setting, dtype=np.int64)
    return np.minimum(INT32_MAX, recorded * float(setting[1:])).astype(np.int64)


class _RequestColumns:
    """The properties of many requests of one type, by which rules select them."""

    def __init__(self, columns: Mapping[str, pa.Array], lists: pa.Array) -> None:
        """Store the columns of events, and the items of their `partitions` or `topics` with the row of each item."""
        self._columns, self._items = columns, pc.list_flatten(lists)
        self._parents = np.repeat(np.arange(len(lists)), pc.fill_null(pc.list_value_length(lists), 0).to_numpy())

    def __len__(self) -> int:
        return len(self._columns["type"])

    def matching(self, rule: ScopeRule) -> Array:
        """Return a mask of the requests in the scope of the rule."""
        mask = np.ones(len(self), dtype=bool)
        if rule.broker is not None:
            mask &= pc.equal(pc.fill_null(self._columns["broker"], 0), rule.broker).to_numpy(zero_copy_only=False)
        if rule.client_id is not None:
            mask &= _matching(self._columns["client_id"], rule.client_id)
        if rule.topic is not None:
            named = _matching(pc.struct_field(self._items, "topic"), rule.topic)
            mask &= np.bincount(self._parents[named], minlength=len(self)).astype(bool)
        return mask

    def effective(
        self, recorded: Array, rules: Iterable[ScopeRule], keys: Sequence[str], plain: int | str | None
    ) -> Array:
        """Return the effective values: by the first matching rule for `keys`, otherwise by the `plain` setting.

        The timeout of a coordinator's write changes only by a rule that names a topic.

        Args:
            recorded: The recorded value of each request.
            rules: Rules in order of precedence.
            keys: Keys that apply to this field, most specific first.
            plain: The setting without a scope, or None.
        """
        coordinators = self._coordinator_writes() if COORDINATOR_KEY in keys else np.zeros(len(self), dtype=bool)
        values, undecided = (
            np.where(coordinators, recorded, _apply_override_to_all(recorded, plain)),
            np.ones(len(self), dtype=bool),
        )
        for rule in rules:
            key = next((key for key in keys if key in rule.settings), None)
            if key is None:
                continue
            matched = undecided & self.matching(rule)
            if rule.topic is None:
                matched &= ~coordinators
            values = np.where(matched, _apply_override_to_all(recorded, rule.settings[key]), values)
            undecided &= ~matched
        return values

    def _coordinator_writes(self) -> Array:
        """Return a mask of the writes of coordinators; see `RequestContext.is_coordinator_write`."""
        internal = pc.is_in(pc.struct_field(self._items, "topic"), pa.array(INTERNAL_TOPICS))
        others = self._parents[~internal.to_numpy(zero_copy_only=False)]
        named = np.bincount(self._parents, minlength=len(self)) > 0
        written = named & (np.bincount(others, minlength=len(self)) == 0)
        return written | _matching(self._columns["client_id"], MARKER_SENDERS)


def _matching(column: pa.Array, pattern: str) -> Array:
    """Return a mask of the values that match; each distinct value is compared once."""
    coded = column.dictionary_encode()
    mask = np.array([*(matches_pattern(pattern, name) for name in coded.dictionary.to_pylist()), False])
    return mask[pc.fill_null(coded.indices, len(mask) - 1).to_numpy(zero_copy_only=False)]
