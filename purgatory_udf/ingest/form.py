"""What an ingest can read, and which options go with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from purgatory_udf.errors import UserError


class Form(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"
    REQUEST_LOG = "request-log"
    KAFKA = "kafka"


_LOGS = frozenset({Form.REQUEST_LOG, Form.KAFKA})
# An option that is not named here goes with every form.
_ONLY_WITH = {
    "max_disorder_ms": frozenset({Form.JSONL, Form.PARQUET, Form.KAFKA}),
    **dict.fromkeys(("topics", "batches", "isr", "zone", "anonymise", "anonymise_key", "kafka_version"), _LOGS),
    **dict.fromkeys(
        ("bootstrap", "topic", "messages", "client", "client_file", "follow", "hold_ms"), frozenset({Form.KAFKA})
    ),
}


def require_fit(form: Form, paths: Sequence[str] | None, given: Mapping[str, object]) -> None:
    """`given` are options by name; those that nobody gave are None or False."""
    for name, value in given.items():
        forms = _ONLY_WITH.get(name)
        if forms is not None and form not in forms and value is not None and value is not False:
            raise UserError(f"{_option(name)} goes with --from {' or '.join(sorted(forms))}, not with --from {form}")
    if form is Form.KAFKA:
        if paths:
            raise UserError(f"{paths[0]}: a topic is read by --bootstrap and --topic, without files")
        for name in ("bootstrap", "topic"):
            if given.get(name) is None:
                raise UserError(f"--from kafka needs {_option(name)}")
    elif not paths:
        raise UserError(f"--from {form} needs the PATH of a file or folder")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
