"""A setting as a command line says it: `key=value`, or for some only `key[client_id=checkout-*,broker=2]=value`."""

from __future__ import annotations

import re
from typing import NamedTuple

NAMES = ("client_id", "topic", "group", "broker")
_SETTING = re.compile(r"([^\[=]+)(?:\[(.*)\])?=(.*)", re.DOTALL)


class SettingWords(NamedTuple):
    """`scope` is what the brackets say, None without brackets."""

    key: str
    scope: str | None
    value: str


def words_of(setting: str) -> SettingWords | None:
    """None of what is no setting."""
    match = _SETTING.fullmatch(setting)
    return None if match is None else SettingWords(match[1].strip(), match[2], match[3])


def is_scoped(setting: str) -> bool:
    words = words_of(setting)
    return words is not None and words.scope is not None


def fields_of(scope: str) -> dict[str, str | int]:
    """What a scope names, by name; of a broker its number, where it is one."""
    fields: dict[str, str | int] = {}
    for part in scope.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name not in NAMES:
            raise ValueError(f"[{scope}]: expected client_id=…, topic=…, group=… or broker=…, with commas between")
        fields[name] = int(value) if name == "broker" and value.isdigit() else value
    return fields
