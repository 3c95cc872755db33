"""The lock on an output folder: one job of a kind at a time, released when its process ends."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from purgatory_udf.common.errors import UserError
from purgatory_udf.storage.output_folder import output_lock

HOLDER = """
import sys
from purgatory_udf.storage.output_folder import output_lock
with output_lock(sys.argv[1], "replay"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_second_job_is_refused_until_first_ends(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, out], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        sentence = (
            rf"^{re.escape(out)}: process {holder.pid}, since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d, is writing to it; wait "
            r"until that replay has finished, or stop it, or choose another --out$"
        )
        for _ in range(2):
            with pytest.raises(UserError, match=sentence), output_lock(out, "replay"):
                pass
        with output_lock(out, "ingest"):  # An import may run at the same time.
            pass
        holder.kill()
    with output_lock(out, "replay"), pytest.raises(UserError), output_lock(out, "replay"):
        pass


def test_unwritable_output_is_reported_first(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "out"
    sentence = (
        rf"^{out}: cannot be written: Not a directory; fix this, or choose another --out, and repeat the command$"
    )
    with pytest.raises(UserError, match=sentence), output_lock(str(out), "replay"):
        pass


def test_remote_output_is_not_locked() -> None:
    with output_lock("hdfs://there/out", "replay"), output_lock("hdfs://there/out", "replay"):
        pass
