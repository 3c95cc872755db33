"""The script of Vega is bundled once and kept in the user's cache folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import altair as alt
import pytest
import vl_convert

from purgatory_udf.answers import page_template as module
from purgatory_udf.answers.page_template import page, vega_bundle
from purgatory_udf.common.installation import user_cache_folder

Built = list[tuple[str, str]]
SCRIPT = "window.chart = '</script>';\r\n// \N{SNOWMAN}\n"
IN_PAGE = "window.chart = '<\\/script>';\r\n// \N{SNOWMAN}\n"


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Built]:
    """The arguments of each call of the bundler, which returns `SCRIPT`; the user's cache is empty."""
    calls: Built = []

    def bundle(snippet: str, version: str) -> str:
        calls.append((snippet, version))
        return SCRIPT

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(vl_convert, "javascript_bundle", bundle)
    vega_bundle.cache_clear()
    yield calls
    vega_bundle.cache_clear()


def in_new_process() -> str:
    vega_bundle.cache_clear()
    return vega_bundle()


def cached_file() -> Path:
    (file,) = user_cache_folder().iterdir()
    return file


def test_second_process_reads_the_file(built: Built) -> None:
    assert [in_new_process(), in_new_process()] == [IN_PAGE] * 2
    vega_lite = alt.SCHEMA_VERSION.removeprefix("v").rpartition(".")[0]
    assert built == [("window.vegaEmbed = vegaEmbed;", vega_lite)]
    assert cached_file().name == f"vega-lite-{vega_lite}-vl-convert-{version('vl-convert-python')}.js"


def test_page_has_the_script(built: Built) -> None:
    html = page("t", "", "", [], {})
    assert f"<script>{IN_PAGE}</script>" in html
    assert html == page("t", "", "", [], {})
    assert len(built) == 1


def test_versions_have_separate_files(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    in_new_process()
    monkeypatch.setattr(module, "version", {"vl-convert-python": "99.0.0"}.__getitem__)
    in_new_process()
    monkeypatch.setattr(alt, "SCHEMA_VERSION", "v99.1.0")
    in_new_process()
    assert [vega_lite for _, vega_lite in built][1:] == [built[0][1], "99.1"]
    assert len(list(user_cache_folder().iterdir())) == 3


@pytest.mark.parametrize(
    "damaged",
    [b"", b"\n", b"\xff\xfe", SCRIPT.encode(), b"0" * 64 + b"\n" + SCRIPT.encode()],
    ids=["empty", "one line", "not UTF-8", "no checksum", "wrong checksum"],
)
def test_damaged_file_is_replaced(built: Built, damaged: bytes) -> None:
    in_new_process()
    whole = cached_file().read_bytes()
    cached_file().write_bytes(damaged)
    assert in_new_process() == IN_PAGE
    assert cached_file().read_bytes() == whole
    assert in_new_process() == IN_PAGE
    assert len(built) == 2


def test_truncated_file_is_replaced(built: Built) -> None:
    in_new_process()
    whole = cached_file().read_bytes()
    cached_file().write_bytes(whole[:-1])
    assert in_new_process() == IN_PAGE
    assert cached_file().read_bytes() == whole


def test_unwritable_cache_is_no_error(built: Built, tmp_path: Path) -> None:
    """The parent of the folder is a file, so that not even root can create the folder."""
    (tmp_path / "cache").touch()
    assert [in_new_process(), in_new_process()] == [IN_PAGE] * 2
    assert len(built) == 2


def test_failed_write_leaves_no_file(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert in_new_process() == IN_PAGE
    assert list(user_cache_folder().iterdir()) == []


def test_real_bundle_is_kept_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = in_new_process()
    assert re.search(r"window\.vegaEmbed ?= ?", first)
    monkeypatch.setattr(vl_convert, "javascript_bundle", None)
    assert in_new_process() == first
