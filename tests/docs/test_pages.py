"""Files, folders and pages that a page names exist, and its Python examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from deltalake import write_deltalake

from purgatory_udf.contract.tables import TABLES
from tests.docs import pages

_FOLDERS = tuple(
    f"{entry.name}/" for entry in pages.ROOT.iterdir() if entry.is_dir() and not entry.name.startswith(".")
)


def _named(name: str) -> list[str]:
    """Return the paths in inline code and links, without patterns and placeholders."""
    page = pages.text(name)
    words = (word.split()[0] for word in pages.words_in_code(page) if word.strip())
    paths = [word.rstrip(",.;") for word in words if word.startswith(_FOLDERS) and not re.search(r"[*…<>{}A-Z]", word)]
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", page) if "://" not in link]
    return paths + [str(Path(name).parent / link) for link in links if link]


def test_pages_name_files_and_pages() -> None:
    assert {"docs/recording.md", "docs/questions.md", "conf/local.yaml"} <= {
        path for name in pages.NAMES for path in _named(name)
    }


@pytest.mark.parametrize("name", pages.NAMES)
def test_named_paths_exist(name: str) -> None:
    assert [path for path in _named(name) if not (pages.ROOT / path).exists()] == []


@pytest.mark.parametrize("name", ["docs/questions.md", "notebooks/README.md"])
def test_example_reads_table_without_spark(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_deltalake(str(tmp_path / "out" / "expirations"), TABLES["expirations"].empty_table())
    (snippet,) = (block for block in pages.blocks(pages.text(name), "python") if "deltalake" in block)
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, name, "exec"), {})
