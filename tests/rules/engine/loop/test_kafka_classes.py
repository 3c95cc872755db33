"""The benchmark against Kafka's classes: both sides replay the same trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.kafka_classes import trace, trace_generator
from benchmarks.kafka_classes.java import UnavailableError, class_path
from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.engine.partition_engine import Engine, event_table, replay
from tests.support import oracle_traces, recorded


@pytest.mark.parametrize("name", ["tiny-1", "tiny-7", "purge20-1"])
def test_column_parser_equals_line_parser(name: str) -> None:
    read = trace.read(recorded.data_file("oracle", "traces", f"{name}.trace"))
    by_line = oracle_traces.load(name)
    events = event_table(by_line.events)
    numbers = {partition: number for number, partition in enumerate(read.partitions)}
    if numbers != by_line.numbers:
        # Requests of one kind are parsed together, so partitions may be numbered in another order.
        assert sorted(numbers) == sorted(by_line.numbers)
        events = event_table([_renumbered(event, by_line.numbers, numbers) for event in by_line.events])
    for column in events.column_names:
        given = read.events[column].to_pylist()[3 * len(numbers) :]
        assert given == events[column].to_pylist()[3 * len(numbers) :], column
    tables = replay([read.events], Engine(Config()))
    lines = trace.outcome_lines(tables.completions, tables.expirations, read.partitions)
    assert lines == ["\t".join(outcome) for outcome in by_line.outcomes]


def _renumbered(event: dict[str, object], numbers: dict[str, int], read: dict[str, int]) -> dict[str, object]:
    names = {number: name for name, number in numbers.items()}

    def with_number(part: dict[str, object]) -> dict[str, object]:
        number = part.get("partition")
        return part | ({"partition": read[names[number]]} if isinstance(number, int) else {})

    parts = event.get("partitions")
    listed = {"partitions": [with_number(part) for part in parts]} if isinstance(parts, list) else {}
    return with_number(event) | listed


@pytest.mark.parametrize("name", trace_generator.SHAPES)
def test_generated_trace_is_consistent(name: str) -> None:
    shape = replace(trace_generator.SHAPES[name], operations=300)
    lines = [line.rstrip("\n").split("\t") for line in trace_generator.lines(shape)]
    times = [int(line[1]) for line in lines]
    assert times == sorted(times)
    ends: dict[str, int] = {}
    for letter, _, partition, *rest in lines:
        if letter in "AT":
            end = ends.get(partition, 0)
            assert int(rest[0]) > end if letter == "A" else int(rest[0]) <= end
            ends[partition] = int(rest[0])
        elif letter in "HS":
            assert int(rest[0]) <= ends[partition]
    assert sum(line[0] in "PF" for line in lines) == 300


def test_missing_maven_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"no Maven|no Java|a JDK is needed"):
        class_path()
