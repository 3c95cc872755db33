"""A page is there as a whole, or as it was."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from purgatory_udf.backend.file_system import write_whole


def test_who_cannot_finish_a_file_leaves_what_was_there(tmp_path: Path) -> None:
    page = tmp_path / "pages" / "report.html"
    write_whole(page, "before")
    with pytest.raises(UnicodeEncodeError):
        write_whole(page, "x" * 100_000 + "\ud800")
    assert [(file.name, file.read_text()) for file in page.parent.iterdir()] == [("report.html", "before")]
    write_whole(page, "after")
    assert [(file.name, file.read_text()) for file in page.parent.iterdir()] == [("report.html", "after")]


def test_a_link_goes_on_to_lead_where_it_led(tmp_path: Path) -> None:
    page, link = tmp_path / "page.html", tmp_path / "link.html"
    link.symlink_to(page)
    write_whole(link, "told")
    assert link.is_symlink() and page.read_text() == "told"


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "told")
    reader.join()
    assert (read, pipe.is_fifo()) == (["told"], True)
