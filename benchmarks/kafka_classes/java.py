"""Kafka's side: Maven compiles it against Kafka's published jars, and a JVM runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from purgatory_udf.launch import runtimes

_FOLDER = Path(__file__).parent
_CLASS_PATH = "target/class-path"
_GOALS = ("compile", "dependency:build-classpath", f"-Dmdep.outputFile={_CLASS_PATH}")


class UnavailableError(Exception):
    """Kafka's classes cannot be run on this machine; the message has the reason."""


def class_path() -> str:
    """Compile the sources, and return a class path of them and Kafka's jars.

    Maven works offline once it has fetched the jars.

    Raises:
        UnavailableError: There is no JDK or no Maven, or Maven failed.
    """
    compiler, maven = _jdk(), shutil.which("mvn")
    if maven is None:
        raise UnavailableError("no Maven (`mvn`) on PATH; it fetches Kafka's jars")
    environment = os.environ | {"JAVA_HOME": str(compiler.parent.parent)}
    for offline in (["--offline"], []):
        command = [maven, "--quiet", "--batch-mode", *offline, "--file", str(_FOLDER / "pom.xml"), *_GOALS]
        maven_run = subprocess.run(command, cwd=_FOLDER, env=environment, capture_output=True, text=True)
        if maven_run.returncode == 0:
            return f"{_FOLDER / 'target/classes'}:{(_FOLDER / _CLASS_PATH).read_text().strip()}"
    raise UnavailableError(f"Maven failed:\n{maven_run.stdout[-2000:]}{maven_run.stderr[-2000:]}")


def _jdk() -> Path:
    runtime = runtimes.find_java()
    if runtime is None:
        raise UnavailableError(f"no Java {runtimes.OLDEST_JAVA} or newer found")
    compiler = runtime.resolve().parent / "javac"
    if not compiler.exists():
        raise UnavailableError(f"{runtime} has no compiler next to it; a JDK is needed, not only a runtime")
    return compiler


class Kafka:
    """A JVM that replays traces with Kafka's own classes; methods send it commands and wait for the answer."""

    def __init__(self, classes: str, heap: str = "4g") -> None:
        command = [str(_jdk().parent / "java"), f"-Xmx{heap}", "-cp", classes, "replay.Main"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def load(self, trace: Path) -> int:
        """Load a trace; return its number of operations."""
        return int(self._answer_to(f"load {trace}"))

    def seconds(self) -> float:
        """Replay the whole trace once; return the seconds that it took."""
        return int(self._answer_to("run")) / 1e9

    def write(self, outcomes: Path) -> None:
        """Write how every operation ended in the last run, by arrival."""
        self._answer_to(f"write {outcomes}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer_to(self, command: str) -> str:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(command + "\n")
        stdin.flush()
        answer = stdout.readline().strip()
        if not answer:
            raise RuntimeError(f"Kafka's side exited at the command `{command}`")
        return answer
