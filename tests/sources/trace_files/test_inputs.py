"""Finding the input files of a path."""

from __future__ import annotations

from pathlib import Path

import pytest

from purgatory_udf.common.errors import UserError
from purgatory_udf.sources.trace_files.input_files import JSON_LINES, PARQUET, find_files, skipped_links


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


def test_folder_is_searched_recursively(folder: Path) -> None:
    assert names(f"{folder}/") == [
        f"{folder}/{name}" for name in ("a.jsonl", "b.json.gz", "c.ndjson.zst", "day 1/x.jsonl", "day 2/x.jsonl")
    ]
    assert names(str(folder), endings=PARQUET) == [f"{folder}/table/part.parquet"]


def test_files_keep_given_order_without_duplicates(folder: Path) -> None:
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
def test_glob_patterns_match_files(folder: Path, pattern: str, matches: list[str]) -> None:
    assert names(f"{folder}/{pattern}") == [f"{folder}/{name}" for name in matches]


def test_linked_file_is_read_once(folder: Path) -> None:
    """Links to files, to folders, to the folder itself, and a second hard link."""
    (folder / "a link.jsonl").symlink_to(folder / "day 1/x.jsonl")
    (folder / "day 0").symlink_to(folder / "day 1", target_is_directory=True)
    (folder / "lost.jsonl").symlink_to(folder / "nothing")
    for name in ("loop 1", "loop 2"):
        (folder / "day 2" / name).symlink_to(folder, target_is_directory=True)
    (folder / "z.jsonl").hardlink_to(folder / "a.jsonl")
    links = ["a link.jsonl", "z.jsonl", "day 0", "day 2/loop 1", "day 2/loop 2", "lost.jsonl"]
    for given in (str(folder), f"{folder}/../{folder.name}"):
        skipped: list[str] = []
        found = find_files([given], JSON_LINES, skipped)
        assert [file.name for file in found] == [
            f"{given}/{name}" for name in ("a.jsonl", "b.json.gz", "c.ndjson.zst", "day 1/x.jsonl", "day 2/x.jsonl")
        ]
        assert sorted(skipped) == sorted(f"{given}/{name}" for name in links)
    lost = f"{folder}/lost.jsonl"
    assert skipped_links(["one", lost, "two"]) == [
        "skipped   links to files that were read already: one, two",
        f"skipped   links to missing files: {lost}",
    ]
    # A link that is given by its path or pattern, and whose target is not.
    assert names(f"{folder}/day 0", f"{folder}/a l*") == [f"{folder}/day 0/x.jsonl"]
    assert names(f"{folder}/**/x.jsonl") == [f"{folder}/{name}" for name in ("day 1/x.jsonl", "day 2/x.jsonl")]


def test_named_file_may_have_any_name(folder: Path) -> None:
    unusual = folder / "broker 1 [2024-01-01T10:00:00]*.log"
    unusual.write_text("")
    given = [f"{folder}/notes.txt", f"{folder}/.hidden.json", str(unusual)]
    assert names(*given) == given


def test_path_may_be_uri(folder: Path) -> None:
    uri = (folder / "day 1").as_uri()
    assert "%20" in uri
    (file,) = find_files([uri], JSON_LINES)
    assert (file.name, file.path, file.size) == (f"{uri}/x.jsonl", f"{folder}/day 1/x.jsonl", len("day 1/x.jsonl"))


def test_relative_path_keeps_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert names("a.jsonl", "day 1", "day 2/*", "*.gz") == ["a.jsonl", "day 1/x.jsonl", "day 2/x.jsonl", "b.json.gz"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("nothing.jsonl", "nothing.jsonl: no such file or folder"),
        ("nothing*.jsonl", "nothing*.jsonl: no file matches"),
        ("", "the name of an input is empty; `.` is the current folder"),
        ("table", "table: contains no *.jsonl, *.jsonl.gz, *.jsonl.zst, *.jsonl.bz2, *.jsonl.xz, *.json, *.json.gz, "),
        ("ftp://host/a.jsonl", "ftp://host/a.jsonl: cannot be reached: Unrecognized filesystem type in URI"),
    ],
)
def test_missing_path_is_reported_as_given(
    folder: Path, given: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(UserError) as caught:
        find_files([given], JSON_LINES)
    assert str(caught.value).startswith(error)
