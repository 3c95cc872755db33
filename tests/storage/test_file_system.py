"""`write_whole` replaces a file atomically."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from purgatory_udf.backend.file_system import write_whole


def test_failed_write_keeps_old_contents(tmp_path: Path) -> None:
    page = tmp_path / "pages" / "report.html"
    write_whole(page, "before")
    with pytest.raises(UnicodeEncodeError):
        write_whole(page, "x" * 100_000 + "\ud800")
    assert [(file.name, file.read_text()) for file in page.parent.iterdir()] == [("report.html", "before")]
    write_whole(page, "after")
    assert [(file.name, file.read_text()) for file in page.parent.iterdir()] == [("report.html", "after")]


def test_write_through_link_keeps_link(tmp_path: Path) -> None:
    page, link = tmp_path / "page.html", tmp_path / "link.html"
    link.symlink_to(page)
    write_whole(link, "told")
    assert link.is_symlink() and page.read_text() == "told"


def test_write_to_pipe_keeps_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "told")
    reader.join()
    assert (read, pipe.is_fifo()) == (["told"], True)
