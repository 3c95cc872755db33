"""docs/kafka-rules.md names every delayed operation, every value of `completed_by`, and every error."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from purgatory_udf.rules.coordinator.group_operations import GroupOperation
from purgatory_udf.rules.purgatory.delayed_operation import TIMEOUT, DelayedOperation
from purgatory_udf.rules.reference.event_handlers import REQUESTS
from tests.docs import pages

PAGE = pages.text("docs/kafka-rules.md")
NAMED = pages.words_in_code(PAGE)
PACKAGES = [pages.ROOT / "purgatory_udf" / "rules" / name for name in ("purgatory", "reference", "coordinator")]
SOURCES = sorted(source for package in PACKAGES for source in package.glob("*.py"))

# Functions with rules as text arguments, and functions that return rules.
_CALLED_WITH_RULE = {"complete_by", "PartitionResult", "restart", "complete_removed", "_answer_syncs"}
_RETURNS_RULE = {"completion_rule", "heartbeat_satisfied_by"}
_ERROR = re.compile(r"[A-Z]+(_[A-Z]+)+")


def _subclasses(base: type[Any]) -> Iterator[type[Any]]:
    for each in base.__subclasses__():
        yield each
        yield from _subclasses(each)


@cache
def _operations() -> set[type]:
    for source in SOURCES:
        importlib.import_module(f"purgatory_udf.rules.{source.parent.name}.{source.stem}")
    return {each for each in _subclasses(DelayedOperation) if each.__module__.startswith("purgatory_udf.")}


def _texts(node: ast.AST) -> set[str]:
    return {leaf.value for leaf in ast.walk(node) if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)}


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@cache
def _rules() -> frozenset[str]:
    """Return the values of `completed_by` in the reference and the coordinator."""
    words: set[str] = {TIMEOUT}
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _called(node) in _CALLED_WITH_RULE:
                words |= set().union(*(_texts(argument) for argument in node.args))
            elif isinstance(node, ast.FunctionDef) and node.name in _RETURNS_RULE:
                returned = (each for each in ast.walk(node) if isinstance(each, ast.Return))
                words |= set().union(*map(_texts, returned))
            elif isinstance(node, ast.ClassDef) and node.name == "ReplicaStatus":
                words |= set().union(*(_texts(each) for each in node.body if isinstance(each, ast.Assign)))
            elif isinstance(node, ast.Assign) and _texts(node) and "_RULES" in ast.unparse(node.targets[0]):
                words |= _texts(node.value)
    # Requests that renew a session complete it under the name of their API.
    words |= {
        each.api
        for each in _subclasses(importlib.import_module("purgatory_udf.rules.coordinator.group_requests").GroupRequest)
    }
    return frozenset(rule for rule in words if re.fullmatch(r"[a-z]+(_[a-z]+)*", rule))


@cache
def _errors() -> frozenset[str]:
    trees = (ast.parse(source.read_text(encoding="utf-8")) for source in SOURCES)
    return frozenset(text for tree in trees for text in _texts(tree) if _ERROR.fullmatch(text))


def test_page_names_every_operation() -> None:
    kinds = {*REQUESTS, *(each.kind for each in _operations() if issubclass(each, GroupOperation))} - {""}
    assert {"produce", "fetch", "join", "heartbeat"} <= kinds
    assert kinds - NAMED == set()


def test_page_names_every_rule() -> None:
    assert {"timeout", "high_watermark", "min_bytes", "not_leader", "all_joined", "awaiting_sync"} <= _rules()
    assert _rules() - NAMED == set()


def test_page_names_every_error() -> None:
    assert {"REQUEST_TIMED_OUT", "NOT_LEADER_OR_FOLLOWER", "ILLEGAL_GENERATION"} <= _errors()
    assert _errors() - NAMED == set()


def test_page_names_no_unknown_rule() -> None:
    columns = [table for table in pages.tables(PAGE) if table.columns[0] == "completed by"]
    named = {word for table in columns for row in table.rows for word in re.findall(r"`(\w+)`", row["completed by"])}
    assert len(columns) == 8
    assert named - _rules() == set()


MODULES = {row["module"] for table in pages.tables(PAGE) if "module" in table.columns for row in table.rows}


@pytest.mark.parametrize("source", sorted(MODULES))
def test_named_modules_exist(source: str) -> None:
    named = re.findall(r"`([\w/]+\.py)`", source)
    assert named
    assert [name for name in named if not any((package / name).is_file() for package in PACKAGES)] == []
