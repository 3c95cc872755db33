"""A job's process with a JVM as its child: neither outlives the other."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

STARTED = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import jvm
jvm.start(["sh", "-c", sys.argv[1]], dict(os.environ))
"""
# Write the connection file as Spark's gateway does.
WRITES_ADDRESS = r"""printf '\0\0\1\2\0\0\0\6secret' > there; mv there "$_PYSPARK_DRIVER_CONN_INFO_PATH"; """
# Runs until its stdin is closed, as a JVM that serves a Python process does.
WAITS_FOR_STDIN = "cat > /dev/null; echo ended"


def _job(jvm: str, then: str, tmp_path: Path) -> subprocess.Popen[str]:
    """Start a job whose JVM shares its stdout, so that reading to the end waits for both."""
    command = [sys.executable, "-c", STARTED + then, jvm]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path)


def test_job_connects_to_jvm_and_stops_it(tmp_path: Path) -> None:
    then = "jvm.wait_until_ready()\nprint(os.environ[jvm.GATEWAY_PORT], os.environ[jvm.GATEWAY_SECRET], flush=True)"
    job = _job(WRITES_ADDRESS + WAITS_FOR_STDIN, then, tmp_path)
    assert job.communicate() == ("258 secret\nended\n", "")
    assert job.returncode == 0


def test_jvm_that_fails_to_start_is_user_error(tmp_path: Path) -> None:
    then = "\ntry:\n    jvm.wait_until_ready()\nexcept UserError as error:\n    print(error)"
    error = "Spark's JVM did not start; its exit status is 7, and its messages are above\n"
    assert _job("exit 7", then, tmp_path).communicate()[0] == error


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_job_kills_its_jvm(number: signal.Signals, tmp_path: Path) -> None:
    # This child ignores its stdin.
    job = _job("echo up; exec sleep 1000", "signal.pause()", tmp_path)
    assert job.stdout is not None and job.stdout.readline() == "up\n"
    job.send_signal(number)
    assert job.communicate() == ("", "")
    assert job.returncode == (-number if number == signal.SIGKILL else 128 + number)


def test_job_without_jvm_is_unaffected() -> None:
    then = "from purgatory_udf.launch import jvm; jvm.wait_until_ready()"
    code = f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); {then}; print(jvm.GATEWAY_PORT in os.environ)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
