"""From one line of a request log to a typed request, or to the reason why it is none.

Kafka 2.8 to 4.x write `Completed request:{json}`; log4j may put anything before it and after it, or wrap it into a
JSON object of its own (one field of which is then the message).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any

from purgatory_udf.contract.value_checks import shown
from purgatory_udf.sources.request_log.lines.log_files import timestamp_us
from purgatory_udf.sources.request_log.lines.logged_request import Place, Request

MARKER = "Completed request:"
NETWORK_THREAD = re.compile(r"network-thread-(\d+)-")
_DECODER = json.JSONDecoder()

# Kafka 2.8 may log a request under its number alone; only those that matter here have a name in this table.
API_NAMES = {
    0: "PRODUCE",
    1: "FETCH",
    3: "METADATA",
    6: "UPDATE_METADATA",
    8: "OFFSET_COMMIT",
    11: "JOIN_GROUP",
    12: "HEARTBEAT",
    13: "LEAVE_GROUP",
    14: "SYNC_GROUP",
    19: "CREATE_TOPICS",
    20: "DELETE_TOPICS",
    21: "DELETE_RECORDS",
    22: "INIT_PRODUCER_ID",
    24: "ADD_PARTITIONS_TO_TXN",
    25: "ADD_OFFSETS_TO_TXN",
    26: "END_TXN",
    27: "WRITE_TXN_MARKERS",
    28: "TXN_OFFSET_COMMIT",
    37: "CREATE_PARTITIONS",
    56: "ALTER_PARTITION",
    75: "DESCRIBE_TOPIC_PARTITIONS",
}
NO_BROKER = -1
# No request takes 30 years, no body nests so deep, and no name of a broker is so great.
MAX_MS = 1e12
MAX_DEPTH = 400
MAX_BROKER = 2**31 - 1
# What a request was called before.
RENAMED_APIS = {"ALTER_ISR": "ALTER_PARTITION"}


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that was meant to be a request and cannot be used: `rule` is the kind of fault, `raw` the line."""

    place: Place
    rule: str
    reason: str
    raw: str


# What reading a body raises that has not the shape its api and version have.
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError)


def malformed_line(request: Request, error: Exception) -> BadLine:
    """A request whose body cannot be read: of a version unknown here, or cut short."""
    reason = f"malformed: {request.api} {request.version}: {type(error).__name__}: {error}"
    return BadLine(request.place, "malformed", reason, json.dumps(request.body))


def _split_line(text: str) -> tuple[str, str] | None:
    """(what stands around the message, the message from its JSON on), or None for a line of another kind."""
    place = text.find(MARKER)
    if place < 0:
        return None
    if text.lstrip().startswith("{") and '\\"' in text[place : place + 40]:
        # A JSON layout: the message is a string within an object, its quotes escaped.
        try:
            fields = json.loads(text)
        except ValueError:
            return text[:place], text[place + len(MARKER) :]
        message = next((v for v in fields.values() if isinstance(v, str) and MARKER in v), None)
        if message is not None:
            around = json.dumps({k: v for k, v in fields.items() if v is not message})
            return around, message[message.find(MARKER) + len(MARKER) :]
    return text[:place], text[place + len(MARKER) :]


def _micros(body: dict[str, Any], field: str) -> int:
    value = body[field]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{field} is {value!r}, expected a number of milliseconds")
    if not -MAX_MS < value < MAX_MS:
        raise ValueError(f"{field} is {shown(value)}, expected a number of milliseconds")
    return round(value * 1000)


def _nests_deeper(value: Any, levels: int) -> bool:
    level = [value]
    while level and levels >= 0:
        inner = (node.values() if isinstance(node, dict) else node for node in level)
        level = [child for many in inner for child in many if isinstance(child, dict | list)]
        levels -= 1
    return bool(level)


def read_line(text: str, place: Place, zone: tzinfo = UTC) -> Request | BadLine | None:
    """A request, a bad line, or None when the line is not one of the request logger's at all."""
    parts = _split_line(text)
    if parts is None:
        return None
    around, message = parts

    def bad(rule: str, detail: str) -> BadLine:
        return BadLine(place, rule, f"{rule}: {detail}", text.rstrip("\r\n"))

    try:
        body, end = _DECODER.raw_decode(message)
    except ValueError as error:
        return bad("not JSON", str(error))
    except RecursionError:
        return bad("not JSON", "nested too deeply")
    if "\\u" in message and not _is_text(body):
        return bad("not JSON", "an escape is half a surrogate pair")
    if not isinstance(body, dict):
        return bad("not an object", f"expected an object, got {message[:20]!r}")
    # Nothing nests deeper than it has brackets, of which most lines have a dozen.
    if message.count("{") + message.count("[") > MAX_DEPTH and _nests_deeper(body, MAX_DEPTH):
        return bad("not JSON", "nested too deeply")
    # A time may also stand behind the message; before it is where every layout known to us puts it.
    written = timestamp_us(around, zone) or timestamp_us(message[end:], zone)
    if written is None:
        return bad("no time", "the log's layout must write a date and a time")
    thread = NETWORK_THREAD.search(around) or NETWORK_THREAD.search(message[end:])
    try:
        number = int(thread[1]) if thread else NO_BROKER
        if number > MAX_BROKER:
            raise ValueError(f"broker {shown(number)}, expected a number of 32 bits")
        return _request(body, place, written, number)
    except KeyError as error:
        return bad("missing field", str(error.args[0]))
    except MALFORMED as error:
        return bad("impossible value", str(error))


def _is_text(value: Any) -> bool:
    """Half a surrogate pair can be escaped in JSON, but is no text that a table can hold."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True


def _request(body: dict[str, Any], place: Place, written: int, broker: int) -> Request:
    header = body["requestHeader"]
    total, queue = _micros(body, "totalTimeMs"), _micros(body, "requestQueueTimeMs")
    local, remote = _micros(body, "localTimeMs"), _micros(body, "remoteTimeMs")
    after = _micros(body, "responseQueueTimeMs") + _micros(body, "sendTimeMs")
    number: Any = header["requestApiKey"] if not header.get("requestApiKeyName") else None
    api: Any = header.get("requestApiKeyName") or API_NAMES.get(number, str(number))
    if not isinstance(body["request"], dict):
        raise TypeError("request is not an object")
    version, client = int(header["requestApiVersion"]), header.get("clientId")
    if not -(2**31) <= version < 2**31:
        raise ValueError(f"requestApiVersion is {shown(version)}, expected a number of 32 bits")
    if client is not None and not isinstance(client, str):
        raise TypeError(f"clientId is {shown(client)}, expected a string")
    if not isinstance(api, str):
        raise TypeError(f"requestApiKeyName is {shown(api)}, expected a string")
    # Where no answer was owed (acks 0) the log holds null or an empty text.
    answer = body.get("response")
    answer = answer if isinstance(answer, dict) else None
    arrival = written - total
    return Request(
        broker=broker,
        place=place,
        api=RENAMED_APIS.get(api, api),
        version=version,
        client_id=client,
        connection=str(body.get("connection", "")),
        listener=str(body.get("listener", "")),
        forwarded=bool(body.get("isForwarded", False)),
        arrival_us=arrival,
        start_us=arrival + queue,
        local_us=arrival + queue + local,
        remote_us=remote,
        # Where nothing waited, handling goes on after the answer was made: the answer is dated from the line's end.
        answered_us=arrival + queue + local + remote if remote else min(arrival + queue + local, written - after),
        written_us=written,
        body=body["request"],
        answer=answer,
    )
