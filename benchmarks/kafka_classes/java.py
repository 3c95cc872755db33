"""The Java side: compiled from its sources here and Kafka's published jars by Maven, and then told what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from purgatory_udf.launch import runtimes

_HERE = Path(__file__).parent
_CLASS_PATH = "target/class-path"
_GOALS = ("compile", "dependency:build-classpath", f"-Dmdep.outputFile={_CLASS_PATH}")


class UnavailableError(Exception):
    """Why Kafka's classes cannot be run here."""


def class_path() -> str:
    """Of the compiled sources, and then Kafka's jars. What Maven has fetched once it finds again without a network."""
    compiler, maven = _jdk(), shutil.which("mvn")
    if maven is None:
        raise UnavailableError("there is no Maven (`mvn`) on PATH to fetch Kafka's jars with")
    environment = os.environ | {"JAVA_HOME": str(compiler.parent.parent)}
    for offline in (["--offline"], []):
        command = [maven, "--quiet", "--batch-mode", *offline, "--file", str(_HERE / "pom.xml"), *_GOALS]
        made = subprocess.run(command, cwd=_HERE, env=environment, capture_output=True, text=True)
        if made.returncode == 0:
            return f"{_HERE / 'target/classes'}:{(_HERE / _CLASS_PATH).read_text().strip()}"
    raise UnavailableError(f"Maven failed:\n{made.stdout[-2000:]}{made.stderr[-2000:]}")


def _jdk() -> Path:
    runtime = runtimes.find_java()
    if runtime is None:
        raise UnavailableError(f"there is no Java {runtimes.OLDEST_JAVA} or newer")
    compiler = runtime.resolve().parent / "javac"
    if not compiler.exists():
        raise UnavailableError(f"{runtime} has no compiler beside it (a JDK is needed, not only a runtime)")
    return compiler


class Kafka:
    """A Java machine that replays one trace after another, round after round."""

    def __init__(self, classes: str, heap: str = "4g") -> None:
        command = [str(_jdk().parent / "java"), f"-Xmx{heap}", "-cp", classes, "replay.Main"]
        self._running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def load(self, trace: Path) -> int:
        """How many operations it has."""
        return int(self._answer_to(f"load {trace}"))

    def seconds(self) -> float:
        """One round over the whole trace."""
        return int(self._answer_to("run")) / 1e9

    def write(self, outcomes: Path) -> None:
        """How every operation ended in the last round, by arrival."""
        self._answer_to(f"write {outcomes}")

    def close(self) -> None:
        assert self._running.stdin is not None
        self._running.stdin.close()
        self._running.wait()

    def _answer_to(self, command: str) -> str:
        given, answers = self._running.stdin, self._running.stdout
        assert given is not None and answers is not None
        given.write(command + "\n")
        given.flush()
        answer = answers.readline().strip()
        if not answer:
            raise RuntimeError(f"Kafka's side ended at `{command}`")
        return answer
