"""What an ingest can read, and which options go with it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from purgatory_udf.errors import UserError


class Form(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"
    REQUEST_LOG = "request-log"


# An option that is not named here goes with every form.
_ONLY_WITH = {
    "max_disorder_ms": {Form.JSONL, Form.PARQUET},
    "topics": {Form.REQUEST_LOG},
    "batches": {Form.REQUEST_LOG},
    "isr": {Form.REQUEST_LOG},
    "zone": {Form.REQUEST_LOG},
    "anonymise": {Form.REQUEST_LOG},
    "anonymise_key": {Form.REQUEST_LOG},
}


def require_fit(form: Form, given: Mapping[str, object]) -> None:
    """`given` are options by name; those that nobody gave are None or False."""
    for name, value in given.items():
        forms = _ONLY_WITH.get(name)
        if forms is not None and form not in forms and value is not None and value is not False:
            raise UserError(
                f"--{name.replace('_', '-')} goes with --from {' or '.join(sorted(forms))}, not with --from {form}"
            )
