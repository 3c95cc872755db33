"""The complete parser of log lines: converts any line to a request, or to a bad line with the reason.

Kafka 2.8 to 4.x write `Completed request:{json}`. The log4j layout may put any text before and after it, or write a
JSON object in which one field is the message. Most lines have Kafka's own layout, which `fast_parser` reads; it leaves
the others to this parser.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, tzinfo
from typing import Any

from purgatory_udf.contract.value_types import abbreviated_json
from purgatory_udf.sources.request_log.log_files import timestamp_us
from purgatory_udf.sources.request_log.logged_request import (
    API_NAMES,
    MALFORMED,
    MARKER,
    MAX_BROKER,
    MAX_DEPTH,
    MAX_MS,
    NETWORK_THREAD,
    NO_BROKER,
    RENAMED_APIS,
    BadLine,
    Place,
    Request,
)

# Start of a message in the text format of Kafka before 2.8 (KIP-673 changed it to JSON), and before 0.11.
_TEXT_MESSAGE = re.compile(r"\s*(RequestHeader\(|Name:)")
TEXT_FORMAT = "text format"
_DECODER = json.JSONDecoder()
_WHITE_SPACE = " \t\n\r"


def _split_line(text: str) -> tuple[str, str] | None:
    """Split a line into (text around the message, JSON of the message and the text after it); None for other lines."""
    place = text.find(MARKER)
    if place < 0:
        return None
    if text.lstrip().startswith("{") and '\\"' in text[place : place + 40]:
        # JSON layout: the message is a string field with escaped quotes.
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
    """Convert a field from milliseconds to microseconds. Raises ValueError if it is not a number in range."""
    value = body[field]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{field} is {value!r}, expected a number of milliseconds")
    if not -MAX_MS < value < MAX_MS:
        raise ValueError(f"{field} is {abbreviated_json(value)}, expected a number of milliseconds")
    return round(value * 1000)


def _nests_deeper(value: Any, levels: int) -> bool:
    """Return whether a JSON value nests deeper than `levels`, without recursion."""
    level = [value]
    while level and levels >= 0:
        inner = (node.values() if isinstance(node, dict) else node for node in level)
        level = [child for many in inner for child in many if isinstance(child, dict | list)]
        levels -= 1
    return bool(level)


def read_line(text: str, place: Place, zone: tzinfo = UTC) -> Request | BadLine | None:
    """Parse a line of the request log.

    Args:
        text: The line.
        place: File and line number.
        zone: Time zone of timestamps without one.

    Returns:
        A request, a bad line, or None for a line of another logger.
    """
    parts = _split_line(text)
    if parts is None:
        return None
    around, message = parts

    def bad(rule: str, detail: str) -> BadLine:
        return BadLine(place, rule, f"{rule}: {detail}", text.rstrip("\r\n"))

    try:
        # The decoder does not skip white space before the JSON.
        body, end = _DECODER.raw_decode(message, len(message) - len(message.lstrip(_WHITE_SPACE)))
    except ValueError as error:
        if _TEXT_MESSAGE.match(message):
            return bad(TEXT_FORMAT, "written by Kafka before 2.8; only the JSON of Kafka 2.8 and newer can be imported")
        return bad("not JSON", str(error))
    except RecursionError:
        return bad("not JSON", "nested too deeply")
    if "\\u" in message and not _is_text(body):
        return bad("not JSON", "an escape is half a surrogate pair")
    if not isinstance(body, dict):
        return bad("not an object", f"expected an object, got {message[:20]!r}")
    # A message has at most as many levels as opening brackets; most lines have a dozen.
    if message.count("{") + message.count("[") > MAX_DEPTH and _nests_deeper(body, MAX_DEPTH):
        return bad("not JSON", "nested too deeply")
    # Most layouts write the time before the message, but it may come after it.
    written = timestamp_us(around, zone)
    if written is None:
        written = timestamp_us(message[end:], zone)
    if written is None:
        return bad("no time", "the log's layout must write a date and a time")
    thread = NETWORK_THREAD.search(around) or NETWORK_THREAD.search(message[end:])
    try:
        number = int(thread[1]) if thread else NO_BROKER
        if number > MAX_BROKER:
            raise ValueError(f"broker id is {abbreviated_json(number)}, expected a 32-bit integer")
        return _request(body, place, written, number)
    except KeyError as error:
        return bad("missing field", str(error.args[0]))
    except MALFORMED as error:
        return bad("invalid value", str(error))


def _is_text(value: Any) -> bool:
    """Return whether all strings can be encoded as UTF-8; JSON can escape unpaired surrogates, which cannot."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True


def _request(body: dict[str, Any], place: Place, written: int, broker: int) -> Request:
    """Build a request from the JSON of its message; `written` is the line's time in microseconds since the epoch.

    Raises one of `MALFORMED`.
    """
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
        raise ValueError(f"requestApiVersion is {abbreviated_json(version)}, expected a 32-bit integer")
    if client is not None and not isinstance(client, str):
        raise TypeError(f"clientId is {abbreviated_json(client)}, expected a string")
    if not isinstance(api, str):
        raise TypeError(f"requestApiKeyName is {abbreviated_json(api)}, expected a string")
    # A produce with acks 0 has no response: the log has null or an empty string.
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
        # Without a wait, handling may continue after the response: then the end of the line dates the response.
        answered_us=arrival + queue + local + remote if remote else min(arrival + queue + local, written - after),
        written_us=written,
        body=body["request"],
        answer=answer,
    )
