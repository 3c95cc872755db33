"""The JSON Schemas of settings and scenarios are current, and editors find them by the first line of each file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from purgatory_udf.common.configuration import load_config
from purgatory_udf.common.errors import UserError
from tests.generate import configuration_schema as generated
from tests.generate.event_schema import schema_text

CONF = generated.CONF


@pytest.mark.parametrize(
    ("file", "schema"),
    [(generated.SETTINGS, generated.settings_schema), (generated.SCENARIOS, generated.scenario_schema)],
)
def test_schema_file_is_current(file: Path, schema: Any) -> None:
    assert file.read_text(encoding="utf-8") == schema_text(schema())
    Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("file", [*CONF.glob("*.yaml"), *CONF.glob("scenarios/*.yaml")], ids=lambda file: file.stem)
def test_yaml_file_names_schema_that_accepts_it(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    comment, equals, name = text.split("\n", 1)[0].partition("=")
    assert (comment, equals) == ("# yaml-language-server: $schema", "=")
    schema = json.loads((file.parent / name).read_text(encoding="utf-8"))
    assert [error.message for error in Draft202012Validator(schema).iter_errors(yaml.safe_load(text))] == []


@pytest.mark.parametrize(
    "text",
    [
        *("produce.timeout_ms: 5000", "group: {consumer.max_size: 3}", "group.consumer: {max_size: 3}", "{}"),
        *("fetch: {max_wait_ms: x0.5}", "fetch: {max_wait_ms: ' 20 '}", "grouping: shard", "drain: false"),
        "what_if: [{topic: orders, settings: {fetch.min_bytes: 1}}, {broker: 1, settings: {produce: {timeout_ms: 1}}}]",
        *("produce: {timeout: 5}", "produce.timeout: 5", "fetch: {max_wait_ms: fast}", "fetch: {max_wait_ms: -1}"),
        *("grouping: host", "max_rejected: 101", "group: {consumer: {max_size: 0}}", "what_if: [{topic: orders}]"),
        *("produce: 5", "what_if: [{settings: {}}]", "unknown: 1", "remote_fetch: {reads: none}", "drain: [1]"),
    ],
)
def test_schema_and_models_agree(text: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    try:
        load_config(file)
        accepted = True
    except UserError:
        accepted = False
    assert Draft202012Validator(generated.settings_schema()).is_valid(yaml.safe_load(text)) == accepted
