"""Which files a path means."""

from __future__ import annotations

from pathlib import Path

import pytest

from purgatory_udf.common.errors import UserError
from purgatory_udf.sources.trace_files.input_files import JSON_LINES, PARQUET, find_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """
    a.jsonl  b.json.gz  c.ndjson.zst  notes.txt  _SUCCESS.json  .hidden.json
    day 1/x.jsonl  day 1/_temporary/y.jsonl  day 2/x.jsonl  table/part.parquet
    """
    for name in (
        "b.json.gz",
        "a.jsonl",
        "c.ndjson.zst",
        "notes.txt",
        "_SUCCESS.json",
        ".hidden.json",
        "day 1/x.jsonl",
        "day 1/_temporary/y.jsonl",
        "day 2/x.jsonl",
        "table/part.parquet",
    ):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    return tmp_path


def names(*given: str, endings: tuple[str, ...] = JSON_LINES) -> list[str]:
    return [file.name for file in find_files(given, endings)]


def test_a_folder_is_searched_to_its_depth_by_name_without_what_is_hidden(folder: Path) -> None:
    assert names(f"{folder}/") == [
        f"{folder}/{name}" for name in ("a.jsonl", "b.json.gz", "c.ndjson.zst", "day 1/x.jsonl", "day 2/x.jsonl")
    ]
    assert names(str(folder), endings=PARQUET) == [f"{folder}/table/part.parquet"]


def test_files_keep_the_order_in_which_they_are_given_and_come_once(folder: Path) -> None:
    given = [f"{folder}/day 2", f"{folder}/b.json.gz", f"{folder}/day*", f"{folder}/b.json.gz"]
    assert names(*given) == [f"{folder}/{name}" for name in ("day 2/x.jsonl", "b.json.gz", "day 1/x.jsonl")]


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("*.jsonl", ["a.jsonl"]),
        ("**/*.jsonl", ["a.jsonl", "day 1/x.jsonl", "day 2/x.jsonl"]),
        ("day ?/x.jsonl", ["day 1/x.jsonl", "day 2/x.jsonl"]),
        ("day [2-9]/*", ["day 2/x.jsonl"]),
        ("*.txt", ["notes.txt"]),
    ],
)
def test_a_pattern_means_what_it_matches(folder: Path, pattern: str, matches: list[str]) -> None:
    assert names(f"{folder}/{pattern}") == [f"{folder}/{name}" for name in matches]


def test_a_file_that_is_named_itself_may_have_any_name(folder: Path) -> None:
    odd = folder / "broker 1 [2024-01-01T10:00:00]*.log"
    odd.write_text("")
    given = [f"{folder}/notes.txt", f"{folder}/.hidden.json", str(odd)]
    assert names(*given) == given


def test_a_path_may_be_a_uri(folder: Path) -> None:
    uri = (folder / "day 1").as_uri()
    assert "%20" in uri
    (file,) = find_files([uri], JSON_LINES)
    assert (file.name, file.path, file.size) == (f"{uri}/x.jsonl", f"{folder}/day 1/x.jsonl", len("day 1/x.jsonl"))


def test_a_relative_path_keeps_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert names("a.jsonl", "day 1", "day 2/*", "*.gz") == ["a.jsonl", "day 1/x.jsonl", "day 2/x.jsonl", "b.json.gz"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("nothing.jsonl", "nothing.jsonl: no such file or folder"),
        ("nothing*.jsonl", "nothing*.jsonl: no file matches"),
        ("table", "table: no *.jsonl, *.jsonl.gz, *.jsonl.zst, *.jsonl.bz2, *.jsonl.xz, *.json, *.json.gz, "),
        ("ftp://host/a.jsonl", "ftp://host/a.jsonl: cannot be reached: Unrecognized filesystem type in URI"),
    ],
)
def test_what_cannot_be_found_is_named_as_it_was_given(
    folder: Path, given: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(UserError) as caught:
        find_files([given], JSON_LINES)
    assert str(caught.value).startswith(sentence)
