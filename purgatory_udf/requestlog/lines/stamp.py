"""The moment at which a log line was written, from whatever log4j layout put before (or around) the message.

Known layouts: ISO 8601 with blank or T, comma or point, any number of decimals (`[2026-11-21 02:54:27,702]`,
`2026-11-21T02:54:27.702834Z`), log4j's DATE (`21 Nov 2026 02:54:27,702`), and a count of milliseconds since the epoch.
A time without a zone is taken as UTC unless another zone is given: Kafka's own default layout writes local time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo

_MONTHS = {
    month: number
    for number, month in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), start=1
    )
}

_CLOCK = r"(?P<h>\d{2}):(?P<mi>\d{2}):(?P<s>\d{2})(?:[.,](?P<f>\d{1,9}))?\s?(?P<z>Z|[+-]\d{2}:?\d{2})?"
_ISO = re.compile(r"(?P<y>\d{4})-(?P<mo>\d{2})-(?P<d>\d{2})[T ]" + _CLOCK)
_DATE = re.compile(r"(?P<d>\d{1,2}) (?P<name>[A-Za-z]{3}) (?P<y>\d{4}) " + _CLOCK)
# Thirteen digits are milliseconds from 2001 to 2286: nothing else in a prefix looks like that.
_EPOCH_MS = re.compile(r"(?<![\d.])(?P<ms>\d{13})(?![\d.])")


def zone_of(text: str) -> tzinfo:
    """`+01:00` or `UTC` as a zone. Raises ValueError for anything else."""
    if text.upper() in ("UTC", "Z"):
        return UTC
    match = re.fullmatch(r"([+-])(\d{2}):?(\d{2})", text)
    if match is None:
        raise ValueError(f"{text!r} is not a zone: expected UTC or an offset such as +01:00")
    minutes = int(match[2]) * 60 + int(match[3])
    return timezone(timedelta(minutes=-minutes if match[1] == "-" else minutes))


def stamp_us(text: str, zone: tzinfo = UTC) -> int | None:
    """Microseconds since the epoch of the first time in `text`, or None when it holds none (or an impossible one)."""
    match = _ISO.search(text) or _DATE.search(text)
    if match is None:
        epoch = _EPOCH_MS.search(text)
        return int(epoch["ms"]) * 1000 if epoch else None
    month = match.groupdict().get("mo")
    number = int(month) if month else _MONTHS.get(match["name"].lower(), 0)
    micros = int((match["f"] or "0").ljust(6, "0")[:6])
    try:
        moment = datetime(int(match["y"]), number, int(match["d"]), int(match["h"]), int(match["mi"]), int(match["s"]))
        offset = zone_of(match["z"]) if match["z"] else zone
    except ValueError:
        return None
    whole = int(moment.replace(tzinfo=offset).timestamp())
    return whole * 1_000_000 + micros
