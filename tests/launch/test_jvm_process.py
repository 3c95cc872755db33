"""A job's process with a JVM as its child: neither outlives the other."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from purgatory_udf.launch import jvm

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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the command of another process")
def test_next_start_uses_recorded_command_instead_of_scripts(tmp_path: Path) -> None:
    # The scripts set a variable, and replace themselves by the JVM.
    program = f"{WRITES_ADDRESS} echo $SPARK_SET_BY_SCRIPTS; {WAITS_FOR_STDIN}"
    (tmp_path / "jvm").write_text(program)
    scripts = "echo scripts; export SPARK_SET_BY_SCRIPTS=yes; exec sh jvm org.apache.spark.deploy.SparkSubmit"
    file = tmp_path / "a.start.json"
    code = STARTED.replace(
        "dict(os.environ))", f"dict(os.environ, SPARK_SECRET='s'), jvm.StartRecord(Path({str(file)!r})))"
    )
    code = f"from pathlib import Path\n{code}jvm.wait_until_ready()\n"

    def output() -> str:
        return subprocess.run(
            [sys.executable, "-c", code, scripts], capture_output=True, text=True, cwd=tmp_path, check=False
        ).stdout

    assert output() == "scripts\nyes\nended\n"
    assert json.loads(file.read_text())["variables"] == {"SPARK_SET_BY_SCRIPTS": "yes"}
    assert file.stat().st_mode & 0o777 == 0o600
    assert output() == "yes\nended\n"
    # A Java that has been removed.
    file.write_text(json.dumps({"command": [str(tmp_path / "java")], "variables": {}}))
    assert output() == "scripts\nyes\nended\n"
    assert output() == "yes\nended\n"
    # A command that fails: the next start uses the scripts.
    file.write_text(json.dumps({"command": ["false"], "variables": {}}))
    assert output() == ""
    assert output() == "scripts\nyes\nended\n"
    file.write_text("{}")
    assert output() == "scripts\nyes\nended\n"


def test_record_depends_on_options_and_variables_of_scripts(tmp_path: Path) -> None:
    archive = jvm.ClassArchive(tmp_path, "a")
    variables = {"SPARK_HOME": "/spark", "PWD": "/here"}
    record = jvm.StartRecord.of(archive, ["spark-submit"], variables)
    assert record == jvm.StartRecord.of(archive, ["spark-submit"], {**variables, "PWD": "/there"})
    others = [
        jvm.StartRecord.of(archive, ["spark-submit", "--master", "local"], variables),
        jvm.StartRecord.of(archive, ["spark-submit"], {**variables, "JAVA_HOME": "/java"}),
        jvm.StartRecord.of(jvm.ClassArchive(tmp_path, "b"), ["spark-submit"], variables),
    ]
    assert len({record, *others}) == 4


def test_job_continues_after_its_jvm_has_ended(tmp_path: Path) -> None:
    then = "jvm.wait_until_ready()\nprint(jvm.shut_down(), flush=True)\nprint('later', file=sys.stderr)"
    assert _job(WRITES_ADDRESS + WAITS_FOR_STDIN, then, tmp_path).communicate() == ("ended\nTrue\n", "later\n")


def test_job_without_jvm_is_unaffected() -> None:
    then = "from purgatory_udf.launch import jvm; jvm.wait_until_ready()"
    code = f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); {then}; print(jvm.GATEWAY_PORT in os.environ)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
