"""The variants of a prediction as a command line says them: `big fetch.consumer.min_bytes=20000 … small …`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from purgatory_udf.errors import UserError
from purgatory_udf.fitted.prediction import UNCHANGED
from purgatory_udf.fitted.settings import Setting, setting, setting_of
from purgatory_udf.mapping_file import read_mapping

# The section of a file of settings that has rules: for each setting the first that matches counts.
RULES = "what_if"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def variants_of(words: Iterable[str]) -> dict[str, list[Setting]]:
    """A word with `=` is a setting, one that ends in .yaml a file of settings, any other the next variant's name."""
    variants: dict[str, list[Setting]] = {}
    name: str | None = None
    for word in words:
        is_file = word.endswith((".yaml", ".yml"))
        if "=" not in word and not is_file:
            name = _named(word, variants)
            variants[name] = []
        elif name is None:
            raise UserError(f"--variant {word}: a variant's name comes first (--variant NAME key=value…)")
        else:
            try:
                variants[name] += _in_file(Path(word)) if is_file and "=" not in word else [setting(word)]
            except UserError as error:
                raise UserError(f"--variant {name}: {error}") from None
    if not variants:
        raise UserError("give at least one --variant NAME key=value…")
    for each, settings in variants.items():
        if not settings:
            raise UserError(f"--variant {each}: no setting follows (--variant NAME key=value…)")
    return variants


def _named(word: str, variants: dict[str, list[Setting]]) -> str:
    if not _NAME.fullmatch(word) or word == UNCHANGED:
        raise UserError(f"--variant {word}: expected a name of letters, digits, . _ -, other than {UNCHANGED}")
    if word in variants:
        raise UserError(f"--variant {word}: named twice")
    return word


def _in_file(path: Path) -> list[Setting]:
    values = read_mapping(path)
    rules = values.pop(RULES, [])
    if not isinstance(rules, list):
        raise UserError(f"{path}: {RULES}: expected a list of rules, got {type(rules).__name__}")
    plain = [setting_of(key, _text(value), {}) for key, value in _flat(values, "")]
    return [
        *plain,
        *(asked for number, rule in enumerate(rules) for asked in _of_rule(f"{path}: {RULES}.{number}", rule)),
    ]


def _of_rule(place: str, rule: Any) -> list[Setting]:
    """As a what-if over recorded arrivals has them: whose requests, and `settings`."""
    if not isinstance(rule, dict) or not isinstance(rule.get("settings"), dict) or len(rule) < 2:
        raise UserError(f"{place}: expected client_id, topic, group or broker, and settings, a mapping of keys")
    scope = {name: value for name, value in rule.items() if name != "settings"}
    return [setting_of(key, _text(value), scope) for key, value in _flat(rule["settings"], "")]


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _flat(values: dict[Any, Any], at: str) -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value
