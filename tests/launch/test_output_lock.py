"""Two jobs of a kind do not write one output; a lock does not outlive its process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from purgatory_udf.common.errors import UserError
from purgatory_udf.storage.output_folder import alone

HOLDER = """
import sys
from purgatory_udf.storage.output_folder import alone
with alone(sys.argv[1], "replay"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_is_told_who_writes_there_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, out], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        sentence = (
            rf"^{re.escape(out)}: process {holder.pid}, since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d, is writing there; wait "
            r"until that replay has ended, or stop it, or choose another --out$"
        )
        for _ in range(2):
            with pytest.raises(UserError, match=sentence), alone(out, "replay"):
                pass
        with alone(out, "ingest"):  # An import may go on beside it.
            pass
        holder.kill()
    with alone(out, "replay"), pytest.raises(UserError), alone(out, "replay"):
        pass


def test_where_nothing_can_be_written_it_is_said_before_anything_is_done(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "out"
    sentence = (
        rf"^{out}: cannot be written: Not a directory; put that right, or choose another --out, and give the same "
    )
    with pytest.raises(UserError, match=sentence), alone(str(out), "replay"):
        pass


def test_what_is_not_this_machines_is_not_locked() -> None:
    with alone("hdfs://there/out", "replay"), alone("hdfs://there/out", "replay"):
        pass
