"""Mistakes in a scenario file: one line with the file and the key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
import yaml
from pydantic import BaseModel

from purgatory_udf.common.errors import UserError
from purgatory_udf.simulation.scenario import Scenario, load_scenario, scenarios_folder

TOPICS = [{"name": "orders"}]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"durations": 3}, "durations: unknown key"),
        ({"shows": None}, "shows: Input should be a valid string (got None)"),
        ({"producers": [{"name": "p", "topics": ["orders"], "linger": 5}]}, "producers.0.linger: unknown key"),
        ({"producers": [{"name": "p"}]}, "producers.0.topics: missing"),
        ({"producers": [{"name": "p", "topics": ["order"]}]}, "p: no topic order in the scenario (it has: orders)"),
        (
            {"consumers": [{"name": "c", "topics": ["orders"], "pattern": "o.*"}]},
            "consumers.0: expected exactly one of topics, pattern, assign",
        ),
        (
            {"consumers": [{"name": "c", "pattern": "("}]},
            "consumers.0.pattern: not a regular expression: missing ), unterminated subpattern at position 0 (got '(')",
        ),
        ({"brokers": {"count": 2}}, "topic orders: replication 3 exceeds the number of brokers (2)"),
        (
            {"brokers": {"network": {"median_ms": 2, "p75_ms": 1}}},
            "brokers.network: p75_ms is below median_ms (2)",
        ),
        (
            {"incidents": [{"what": "crash-broker", "broker": 4, "at_s": 1, "for_s": 1}]},
            "crash-broker: no broker 4 in the scenario (it has: 1, 2, 3)",
        ),
        (
            {"incidents": [{"what": "pause-consumer", "consumer": "c-1", "at_s": 1, "for_s": 1}]},
            "pause-consumer: no consumer c-1 in the scenario (it has: none)",
        ),
        (
            {"producers": [{"name": "a", "topics": ["orders"]}, {"name": "a", "topics": ["orders"]}]},
            "two clients are named a; rename one",
        ),
    ],
)
def test_mistake_names_file_and_key(values: dict[str, object], message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"shows": "Something.", "topics": TOPICS, **values}), encoding="utf-8")
    with pytest.raises(UserError) as error:
        load_scenario(str(file))
    assert str(error.value) == f"{file}: {message}"


def test_unknown_incident_lists_known_ones(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("shows: Something.\nincidents: [{what: flood, at_s: 1}]\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"mine\.yaml: incidents\.0: .*'flood'.*'stall-follower'"):
        load_scenario(str(file))


def test_invalid_file_is_named(tmp_path: Path) -> None:
    broken, text = tmp_path / "broken.yaml", tmp_path / "text.yaml"
    broken.write_text("shows: [", encoding="utf-8")
    text.write_text("steady", encoding="utf-8")
    with pytest.raises(UserError, match=r"broken\.yaml: not YAML: .* line 1, column 9"):
        load_scenario(str(broken))
    with pytest.raises(UserError, match=r"text\.yaml: expected a mapping of keys to values, got str"):
        load_scenario(str(text))
    with pytest.raises(UserError, match=r"gone\.yaml: cannot be read: No such file or directory"):
        load_scenario(str(tmp_path / "gone.yaml"))


def test_unknown_name_lists_scenarios() -> None:
    with pytest.raises(UserError, match="--scenario stedy: not a file and not one of cold-consumers, create-topics, "):
        load_scenario("stedy")


def test_scale_multiplies_clients() -> None:
    """A factor below 1 leaves at least one client of each kind."""
    scenario = load_scenario("steady")
    counts = [
        [*(producer.count for producer in scaled.producers), *(consumer.count for consumer in scaled.consumers)]
        for scaled in map(scenario.scaled, (2, 0.01))
    ]
    assert counts == [[8, 4, 6, 4], [1, 1, 1, 1]]


def _keys(model: type[BaseModel]) -> set[str]:
    """Return the keys of a section and of its nested sections."""
    keys = set(model.model_fields)
    for field in model.model_fields.values():
        for kind in _models_in(field.annotation):
            keys |= _keys(kind)
    return keys


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def test_every_key_is_documented() -> None:
    """The README of the scenarios' folder documents every key."""
    described = set(re.findall(r"[a-z_0-9]+", (scenarios_folder() / "README.md").read_text(encoding="utf-8")))
    assert "preferred_again_after_s" in _keys(Scenario), "the keys of incidents are included"
    assert sorted(_keys(Scenario) - described) == []
