"""Topic ids and their names: from a file the operator gives, else from what the log itself says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from purgatory_udf.errors import UserError
from purgatory_udf.requestlog.lines.bodies import NO_TOPIC_ID
from purgatory_udf.requestlog.lines.files import read_text
from purgatory_udf.requestlog.lines.request import Request

# Answers that carry a topic's id beside its name.
NAMING = frozenset({"METADATA", "CREATE_TOPICS", "DESCRIBE_TOPIC_PARTITIONS", "DELETE_TOPICS"})

_DESCRIBED = re.compile(r"^\s*Topic:\s*(\S+)\s+TopicId:\s*(\S+)")
_PAIR = re.compile(r"^\s*([A-Za-z0-9_-]{22})[\s,;=:]+(\S+)\s*$")


def names_in(request: Request) -> dict[str, str]:
    """id → name, from one answer of the log."""
    if request.api not in NAMING or not request.answer:
        return {}
    topics = request.answer.get("topics") or request.answer.get("responses") or []
    return {
        str(topic["topicId"]): str(topic["name"])
        for topic in topics
        if topic.get("topicId") and topic["topicId"] != NO_TOPIC_ID and topic.get("name")
    }


def names_in_file(path: str | Path) -> dict[str, str]:
    """id → name, from a JSON list of {name, topicId}, a JSON object, `kafka-topics --describe`, or lines `id name`."""
    text = read_text(path)
    try:
        names = _from_json(json.loads(text)) if text.lstrip()[:1] in ("[", "{") else _from_lines(text.splitlines())
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a list of topics: {error}") from None
    if not names:
        raise UserError(f"{path}: no topic id found; expected JSON with topicId and name, or lines `id name`")
    return names


def _from_json(value: Any) -> dict[str, str]:
    if isinstance(value, dict):
        return {str(topic_id): str(name) for topic_id, name in value.items()}
    return {str(topic["topicId"]): str(topic["name"]) for topic in value}


def _from_lines(lines: Iterable[str]) -> dict[str, str]:
    names = {}
    for line in lines:
        if described := _DESCRIBED.match(line):
            names[described[2]] = described[1]
        elif pair := _PAIR.match(line):
            names[pair[1]] = pair[2]
    return names
