"""The variants of the command line: `--variant half produce.timeout_ms=x0.5 fetch.max_wait_ms=x0.5 --variant …`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from purgatory_udf.common.configuration import Config, load_config
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.overrides import has_scope

BASELINE = "baseline"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Variant:
    """A configuration to replay the trace under, and its name."""

    name: str
    config: Config


@dataclass
class _Words:
    name: str
    settings: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


def variants(words: Iterable[str], config: Path | None, settings: list[str]) -> list[Variant]:
    """Return the baseline and the variants; the settings of a variant override those of the baseline.

    A word with `=` is a setting, a word with the suffix .yaml or .yml is a file of settings, and any other word is the
    name of the next variant.
    """
    named: list[_Words] = []
    for word in words:
        if "=" not in word and not word.endswith((".yaml", ".yml")):
            named.append(_Words(word))
        elif not named:
            raise UserError(f"--variant {word}: a variant's name comes first (--variant NAME key=value…)")
        elif "=" in word:
            named[-1].settings.append(word)
        else:
            named[-1].files.append(word)
    for each in named:
        _check(each, named)
    baseline = Variant(BASELINE, load_config(config, settings))
    return [baseline, *(_variant(each, config, settings) for each in named)]


def _check(words: _Words, named: list[_Words]) -> None:
    if not _NAME.fullmatch(words.name) or words.name == BASELINE:
        raise UserError(f"--variant {words.name}: expected a name of letters, digits, . _ -, other than {BASELINE}")
    if sum(other.name == words.name for other in named) > 1:
        raise UserError(f"--variant {words.name}: named twice")
    if not words.settings and not words.files:
        raise UserError(f"--variant {words.name}: no setting follows (--variant NAME key=value…)")
    if len(words.files) > 1 or (words.files and words.settings):
        raise UserError(f"--variant {words.name}: give either one file of settings or settings")


def _variant(words: _Words, config: Path | None, settings: list[str]) -> Variant:
    try:
        if words.files:
            load_config(words.files[0])
            return Variant(words.name, _over(config, settings, Path(words.files[0])))
        # The first matching rule applies, so rules of the variant come before those of the baseline.
        rules = [setting for setting in words.settings if has_scope(setting)]
        plain = [setting for setting in words.settings if not has_scope(setting)]
        return Variant(words.name, load_config(config, [*rules, *settings, *plain]))
    except UserError as error:
        raise UserError(f"--variant {words.name}: {error}") from None


def _over(config: Path | None, settings: list[str], file: Path) -> Config:
    """Return the baseline's settings, overridden by the file; rules of the file come before those of the baseline."""
    given = load_config(file).model_dump(mode="json", exclude_unset=True)
    rules = given.pop("what_if", [])
    flat = [f"{key}={value}" for key, value in _flat(given)]
    over = load_config(config, [*settings, *flat])
    if not rules:
        return over
    both = [*rules, *over.model_dump(mode="json", exclude_unset=True)["what_if"]] if over.what_if else rules
    return load_config(
        config, [*(setting for setting in settings if not has_scope(setting)), *flat, f"what_if={json.dumps(both)}"]
    )


def _flat(values: dict[str, object], at: str = "") -> Iterable[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", "" if value is None else value
