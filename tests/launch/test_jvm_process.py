"""A job's own process with a JVM beside it: whichever of the two ends, the other does not stay."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

BEGUN = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import jvm_process
jvm_process.begin(["sh", "-c", sys.argv[1]], dict(os.environ))
"""
# As Spark's gateway tells where it is.
UP = r"""printf '\0\0\1\2\0\0\0\6secret' > there; mv there "$_PYSPARK_DRIVER_CONN_INFO_PATH"; """
# Until its stdin ends, as a JVM does that waits for its Python.
WAITS = "cat > /dev/null; echo ended"


def _job(jvm: str, then: str, tmp_path: Path) -> subprocess.Popen[str]:
    """Whose stdout the JVM has too: it is read to its end only when both are gone."""
    command = [sys.executable, "-c", BEGUN + then, jvm]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path)


def test_the_job_learns_where_its_jvm_is_and_ends_it_in_order(tmp_path: Path) -> None:
    then = "jvm_process.arrive(); print(os.environ[jvm_process.PORT], os.environ[jvm_process.SECRET], flush=True)"
    job = _job(UP + WAITS, then, tmp_path)
    assert job.communicate() == ("258 secret\nended\n", "")
    assert job.returncode == 0


def test_a_jvm_that_is_not_needed_any_more_ends_before_the_job(tmp_path: Path) -> None:
    job = _job(WAITS, "jvm_process.release(); jvm_process._jvm._process.wait(); print('still here')", tmp_path)
    assert job.communicate()[0] == "ended\nstill here\n"


def test_a_jvm_that_does_not_start_is_a_mistake_of_its_options(tmp_path: Path) -> None:
    then = "\ntry:\n    jvm_process.arrive()\nexcept UserError as error:\n    print(error)"
    assert _job("exit 7", then, tmp_path).communicate()[0] == "Spark's JVM did not start (its status was 7)\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_job_that_is_killed_takes_its_jvm_with_it(number: signal.Signals, tmp_path: Path) -> None:
    # It would not hear of its stdin's end.
    job = _job("echo up; exec sleep 1000", "signal.pause()", tmp_path)
    assert job.stdout is not None and job.stdout.readline() == "up\n"
    job.send_signal(number)
    assert job.communicate() == ("", "")
    assert job.returncode == (-number if number == signal.SIGKILL else 128 + number)


def test_a_job_without_one_is_as_it_was() -> None:
    then = "from purgatory_udf.launch import jvm_process as jvm; jvm.arrive(); jvm.release()"
    code = f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); {then}; print(jvm.PORT in os.environ)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
