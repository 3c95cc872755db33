"""The variants of the command line: `--variant half produce.timeout_ms=x0.5 fetch.max_wait_ms=x0.5 --variant …`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from purgatory_udf.common.configuration import Config, load_config
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.overrides import has_scope

BASELINE = "baseline"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


# Prefix of the keys of a variant that describe simulated brokers (`what-if --closed-loop`).
_BROKERS = "brokers."


@dataclass(frozen=True)
class Variant:
    """A configuration to replay the trace under, and its name.

    `brokers` has the changed keys of the scenario's brokers, as text; only simulations use them.
    """

    name: str
    config: Config
    brokers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _VariantArguments:
    name: str
    settings: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


def variants(arguments: Iterable[str], config: Path | None, settings: list[str]) -> list[Variant]:
    """Return the baseline and the variants; the settings of a variant override those of the baseline.

    A word with `=` is a setting, a word with the suffix .yaml or .yml is a file of settings, and any other word is the
    name of the next variant. Settings `brokers.KEY=VALUE` change the scenario of a simulation.

    Raises:
        UserError: A name is missing or repeated, or a setting is invalid.
    """
    named: list[_VariantArguments] = []
    for argument in arguments:
        if "=" not in argument and not argument.endswith((".yaml", ".yml")):
            named.append(_VariantArguments(argument))
        elif not named:
            raise UserError(f"--variant {argument}: a variant's name comes first (--variant NAME key=value…)")
        elif "=" in argument:
            named[-1].settings.append(argument)
        else:
            named[-1].files.append(argument)
    for each in named:
        _check(each, named)
    baseline = Variant(BASELINE, load_config(config, settings))
    return [baseline, *(_variant(each, config, settings) for each in named)]


def _check(arguments: _VariantArguments, named: list[_VariantArguments]) -> None:
    if not _NAME.fullmatch(arguments.name) or arguments.name == BASELINE:
        raise UserError(f"--variant {arguments.name}: expected a name of letters, digits, . _ -, other than {BASELINE}")
    if sum(other.name == arguments.name for other in named) > 1:
        raise UserError(f"--variant {arguments.name}: duplicate name; choose another")
    if not arguments.settings and not arguments.files:
        raise UserError(f"--variant {arguments.name}: has no settings; give at least one (--variant NAME key=value…)")
    if len(arguments.files) > 1 or (arguments.files and arguments.settings):
        raise UserError(f"--variant {arguments.name}: give either one YAML file of settings, or settings as key=value")


def _variant(arguments: _VariantArguments, config: Path | None, settings: list[str]) -> Variant:
    try:
        if arguments.files:
            load_config(arguments.files[0])
            return Variant(arguments.name, _over(config, settings, Path(arguments.files[0])))
        # The first matching rule applies, so rules of the variant come before those of the baseline.
        rules = [setting for setting in arguments.settings if has_scope(setting)]
        plain = [setting for setting in arguments.settings if not has_scope(setting)]
        of_brokers = [setting for setting in plain if setting.startswith(_BROKERS)]
        changed = dict(setting.removeprefix(_BROKERS).split("=", 1) for setting in of_brokers)
        kept = [setting for setting in plain if setting not in of_brokers]
        return Variant(arguments.name, load_config(config, [*rules, *settings, *kept]), changed)
    except UserError as error:
        raise UserError(f"--variant {arguments.name}: {error}") from None


def _over(config: Path | None, settings: list[str], file: Path) -> Config:
    """Return the baseline's settings, overridden by those of a file.

    What-if rules of the file take precedence over the baseline's.
    """
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
