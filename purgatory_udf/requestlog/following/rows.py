"""Rows of one step on their way between its tasks, and of what it keeps for the next."""

from __future__ import annotations

import pyarrow as pa

from purgatory_udf.requestlog.importing.rows import CHANGES, PARTS

# What is kept besides facts and operations: a session's state and a partition's, as JSON in `event`; `kind` names the
# session.
SESSION, SWEEP = "session", "sweep"

# `settled`: it comes from a request that begins before the end of the step, and will not be read again.
TAKEN_APART = PARTS.append(pa.field("settled", pa.bool_()))

# Facts are among them: what is kept of a partition.
SAID = CHANGES.append(pa.field("packed", pa.binary()))

# All that is kept but requests.
KEPT = PARTS
