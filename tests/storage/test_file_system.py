"""`replace_file` replaces a file atomically."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from purgatory_udf.backend.file_system import replace_file


def test_failed_write_keeps_old_contents(tmp_path: Path) -> None:
    page = tmp_path / "pages" / "report.html"
    replace_file(page, "before")
    with pytest.raises(UnicodeEncodeError):
        replace_file(page, "x" * 100_000 + "\ud800")
    assert [(file.name, file.read_text()) for file in page.parent.iterdir()] == [("report.html", "before")]
    replace_file(page, "after")
    assert [(file.name, file.read_text()) for file in page.parent.iterdir()] == [("report.html", "after")]


def test_write_through_link_keeps_link(tmp_path: Path) -> None:
    page, link = tmp_path / "page.html", tmp_path / "link.html"
    link.symlink_to(page)
    replace_file(link, "new")
    assert link.is_symlink() and page.read_text() == "new"


def test_error_names_given_path() -> None:
    with pytest.raises(OSError, match=r": '/proc/page\.html'$"):
        replace_file(Path("/proc/page.html"), "new")


def test_write_to_pipe_keeps_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    replace_file(pipe, "new")
    reader.join()
    assert (read, pipe.is_fifo()) == (["new"], True)
