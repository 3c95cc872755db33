"""Spark's JVM as a child of the job's process.

spark-submit first starts its JVM, then the job's Python process, and waits until that has imported its modules. Here
the job starts the JVM and continues, so that both start at the same time. They connect when the job first needs Spark.

A JVM maps an AppCDS archive of the classes that it loads at every start into memory instead of parsing them. This
saves a quarter of the time of a small job. A run of the demo creates the archive, once for each Java and set of jars,
in the background after the first job without one. The JVM checks its own version and every jar against the archive and
ignores it if they differ. It does not detect a truncated file, so the file's name contains its size.

Spark's scripts start another JVM, which prints the command of the JVM that they start in the end. That takes 0.3 s, so
the command is recorded and reused as long as archive, options and environment are the same (`StartRecord`).
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from purgatory_udf.backend import spark_workers
from purgatory_udf.common.errors import UserError

# The primary resource that spark-submit uses for an interactive Python process.
PYSPARK_SHELL = "pyspark-shell"
# With these variables set, pyspark connects to a running JVM.
GATEWAY_PORT, GATEWAY_SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_POLL_SECONDS = 0.01
# How long a JVM may take to exit after its stdin is closed.
_JVM_EXIT_TIMEOUT_SECONDS = 30
# It does not notice while it imports modules.
_WORKERS_EXIT_TIMEOUT_SECONDS = 1
_PR_SET_PDEATHSIG = 1
# With one of these options set, the user controls class sharing.
_SHARING_OPTIONS = ("-Xshare", "-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-XX:AOT")
JVM_OPTION_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
# Set to any value, no archive is used or created.
DISABLE_VARIABLE = "PURGATORY_NO_ARCHIVE"
# With one of these set, Spark's class path differs.
_CLASS_PATH_VARIABLES = (
    "SPARK_CONF_DIR",
    "SPARK_PREPEND_CLASSES",
    "SPARK_DIST_CLASSPATH",
    "HADOOP_CONF_DIR",
    "YARN_CONF_DIR",
)
# An archive has 200 MB. Older ones belong to a Java or to jars that were replaced.
_ARCHIVES_KEPT = 3
_RETRY_AFTER_SECONDS = 86_400
# The class that the scripts start, and how the variables start that they read or set.
_SUBMIT_CLASS = "org.apache.spark.deploy.SparkSubmit"
_SCRIPT_VARIABLES = ("SPARK_", "PYSPARK_", "PYTHONHASHSEED", "JAVA_", "JDK_", "HADOOP_", "YARN_")
_RECORD_SUFFIX = ".start.json"


@dataclass(frozen=True)
class StartRecord:
    """The command and the environment of a JVM, recorded when Spark's scripts started it. The file may not exist yet.

    It names the class archive, because with other jars or another Java there is another one.
    """

    file: Path

    @classmethod
    def of(cls, archive: ClassArchive, command: Sequence[str], environ: Mapping[str, str]) -> StartRecord:
        """Return the record of a start with this command of Spark's scripts, in the environment `environ`."""
        used = sorted((name, value) for name, value in environ.items() if name.startswith(_SCRIPT_VARIABLES))
        digest = hashlib.sha256(json.dumps([list(command), used]).encode()).hexdigest()[:16]
        return cls(archive.folder / f"{archive.name}-{digest}{_RECORD_SUFFIX}")

    def read(self) -> tuple[list[str], dict[str, str]] | None:
        """Return the command and the variables that the scripts set; None if none is recorded."""
        try:
            record = json.loads(self.file.read_bytes())
            return record["command"], record["variables"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, process: int, environ: Mapping[str, str]) -> None:
        """Record the command of a JVM that the scripts have started in the environment `environ`.

        Only Linux shows it, so elsewhere nothing is recorded. Only the user can read the file, because options may
        contain passwords.
        """
        try:
            command, variables = ([*map(os.fsdecode, _words_of(process, name))] for name in ("cmdline", "environ"))
            if _SUBMIT_CLASS not in command:
                return
            pairs = (variable.partition("=") for variable in variables)
            added = {
                name: value
                for name, _, value in pairs
                if name.startswith(_SCRIPT_VARIABLES) and environ.get(name) != value
            }
            draft = self.file.with_suffix(f".{process}")
            draft.touch(mode=0o600)
            draft.write_text(json.dumps({"command": command, "variables": added}), encoding="utf-8")
            draft.replace(self.file)
        except OSError:
            return


def _words_of(process: int, name: str) -> list[bytes]:
    return Path(f"/proc/{process}/{name}").read_bytes().split(b"\0")[:-1]


class _Jvm:
    """A JVM that was started. The address of its gateway is known once it is up."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], record: StartRecord | None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="purgatory-")
        self._gateway_file = Path(self._folder.name, "gateway")
        self._workers_socket = str(Path(self._folder.name, "workers"))
        self._workers: spark_workers.Preloaded | None = None
        jvm_environ = {
            **environ,
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._gateway_file),
            spark_workers.SOCKET_VARIABLE: self._workers_socket,
        }
        parent, prctl = os.getpid(), getattr(ctypes.CDLL(None), "prctl", None)

        def bind_to_parent() -> None:
            # If this process is killed, the kernel kills the JVM, because the lock on the output is released too.
            # Without prctl the JVM exits when its stdin is closed, a moment later.
            if prctl is not None:
                prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        def start(words: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
            # The JVM exits when its stdin is closed.
            given = {**jvm_environ, **variables}
            return subprocess.Popen(words, env=given, stdin=subprocess.PIPE, preexec_fn=bind_to_parent)

        recorded = record.read() if record else None
        self._record, self._must_record, self._environ = record, recorded is None, jvm_environ
        try:
            self._process = start(*(recorded or (command, {})))
        except OSError:
            # The recorded Java has been removed.
            self._process, self._must_record = start(command, {}), True

    def preload_workers(self) -> None:
        if self._workers is None:
            self._workers = spark_workers.preload(self._workers_socket)

    def gateway_address(self) -> tuple[int, str]:
        """Wait until the JVM is up; return the port and the secret of its gateway.

        Raises:
            UserError: The JVM has exited.
        """
        while not self._gateway_file.exists():
            if self._process.poll() is not None:
                if self._record is not None:
                    # The next start uses Spark's scripts.
                    self._record.file.unlink(missing_ok=True)
                status = self._process.returncode
                raise UserError(f"Spark's JVM did not start; its exit status is {status}, and its messages are above")
            time.sleep(_POLL_SECONDS)
        if self._record is not None and self._must_record:
            self._record.write(self._process.pid, self._environ)
        written = self._gateway_file.read_bytes()
        (port,), rest = struct.unpack_from(">i", written), written[4:]
        (length,) = struct.unpack_from(">i", rest)
        return port, rest[4 : 4 + length].decode()

    def terminate(self) -> None:
        self._process.terminate()

    def shut_down(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_JVM_EXIT_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        workers, self._workers = self._workers, None
        if workers is not None:
            # As the daemon it has ended with the JVM.
            workers.end(_WORKERS_EXIT_TIMEOUT_SECONDS)
        self._folder.cleanup()


_jvm: _Jvm | None = None


def start(command: Sequence[str], environ: Mapping[str, str], record: StartRecord | None = None) -> None:
    """Start the JVM of this process and return.

    Args:
        command: The command of Spark's scripts.
        environ: The environment of the JVM; this process adopts it as well.
        record: The record of the JVM's own command, to use or to write.
    """
    global _jvm
    # Before the JVM starts, so that a signal during its start stops the job in the same order.
    atexit.register(_shut_down)
    signal.signal(signal.SIGTERM, _handle_sigterm)
    _jvm = _Jvm(command, environ, record)
    os.environ.update(environ)


def preload_workers() -> None:
    """Fork the process that becomes the daemon of the Python workers. It inherits the modules that are loaded."""
    if _jvm is not None:
        _jvm.preload_workers()


def wait_until_ready() -> None:
    """Wait until the JVM that was started is up, and set the variables by which pyspark connects to it."""
    if _jvm is not None and not is_ready():
        # Not before, so that it inherits this process's modules.
        _jvm.preload_workers()
        port, secret = _jvm.gateway_address()
        os.environ[GATEWAY_PORT], os.environ[GATEWAY_SECRET] = str(port), secret


def is_ready() -> bool:
    """Return whether the JVM is up, and Spark starts in it."""
    return GATEWAY_PORT in os.environ


def shut_down() -> bool:
    """End the JVM that this process has started, and wait for its end; return whether there is one."""
    if _jvm is None:
        return False
    _jvm.shut_down()
    return True


def _shut_down() -> None:
    _silence_stderr()
    shut_down()


def _handle_sigterm(number: int, _: object) -> NoReturn:
    _silence_stderr()
    if _jvm is not None:
        _jvm.terminate()
    sys.exit(128 + number)


def _silence_stderr() -> None:
    """Discard stderr: Spark's threads would report that the JVM does not respond."""
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115


@dataclass(frozen=True)
class ClassArchive:
    """The archive for one Java and one class path. It may not exist yet."""

    folder: Path
    name: str

    def find(self) -> Path | None:
        """Return the path of the archive if its file is complete, else None."""
        return next((file for file in self._files() if file.name == f"{self.name}-{file.stat().st_size}.jsa"), None)

    def jvm_options(self) -> str | None:
        """Return the JVM options that use the archive, None without one.

        Warnings are off, because users cannot fix an archive that does not match.
        """
        file = self.find()
        # Spark's scripts split the options at blanks.
        return None if file is None or " " in str(file) else f"-XX:SharedArchiveFile={file} -Xlog:cds*=off"

    def should_create(self) -> bool:
        """Return whether to create the archive.

        It must be missing, its folder writable, and the last failed attempt at least a day ago.
        """
        if self.find() or " " in str(self.folder):
            return False
        if self.failure_marker.exists() and time.time() - self.failure_marker.stat().st_mtime < _RETRY_AFTER_SECONDS:
            return False
        return os.access(next(each for each in (self.folder, *self.folder.parents) if each.exists()), os.W_OK)

    @property
    def failure_marker(self) -> Path:
        """A marker file; its modification time is that of the last failed attempt."""
        return self.folder / f"{self.name}.failed"

    @property
    def draft(self) -> Path:
        """The folder in which the archive is being created, with the output of the demo run that creates it."""
        return self.folder / f"{self.name}.draft"

    def creation_options(self) -> str:
        """Return the JVM options that create the archive at exit."""
        return f"-XX:ArchiveClassesAtExit={self.draft / 'archive'}"

    def publish(self) -> None:
        """Rename the finished draft after syncing it to disk; delete the oldest archives."""
        made = self.draft / "archive"
        with made.open("rb") as written:
            os.fsync(written.fileno())
        made.replace(self.folder / f"{self.name}-{made.stat().st_size}.jsa")
        # Records of starts that may use an older archive.
        for record in self.folder.glob(f"*{_RECORD_SUFFIX}"):
            record.unlink(missing_ok=True)
        oldest_first = sorted(self.folder.glob("*.jsa"), key=lambda file: file.stat().st_mtime_ns)
        for file in oldest_first[:-_ARCHIVES_KEPT]:
            file.unlink(missing_ok=True)

    def _files(self) -> Iterable[Path]:
        return self.folder.glob(f"{self.name}-*.jsa")


def class_archive_for(
    folder: Path, runtime: Path, spark_home: Path, jars: Sequence[Path], environ: Mapping[str, str]
) -> ClassArchive | None:
    """Return the archive for these jars; None if archives are disabled or the JVM could not use one.

    The class path is the jars, then Spark's jars; a class path with folders cannot be archived.

    Args:
        folder: Folder of the archives.
        runtime: The `java` executable.
        spark_home: Folder of Spark.
        jars: Jars that precede Spark's on the class path.
        environ: Environment of the job.
    """
    if environ.get(DISABLE_VARIABLE):
        return None
    jvm_options = " ".join(environ.get(name, "") for name in JVM_OPTION_VARIABLES)
    if any(word in jvm_options for word in _SHARING_OPTIONS) or any(
        environ.get(name) for name in _CLASS_PATH_VARIABLES
    ):
        return None
    if (spark_home / "conf").exists():
        return None
    # The JDK's own archive is the base of ours, and some small runtimes lack it. Its size and time identify a Java
    # that replaced another at the same path.
    base = runtime.resolve().parent.parent / "lib" / "server" / "classes.jsa"
    digest = hashlib.sha256()
    try:
        for file in (runtime.resolve(), base, *jars, *sorted((spark_home / "jars").iterdir())):
            known = file.stat()
            digest.update(f"{file}\0{known.st_size}\0{known.st_mtime_ns}\0".encode())
    except OSError:
        return None
    return ClassArchive(folder, digest.hexdigest()[:16])


def create_in_background(archive: ClassArchive, command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Start a process that creates the archive when this process, or the program that replaces it, has ended.

    `command` runs the demo with `creation_options`.
    """
    words = [
        sys.executable,
        "-P",
        "-m",
        "purgatory_udf.launch.jvm",
        str(archive.folder),
        archive.name,
        *command,
    ]
    given = {name: value for name, value in environ.items() if name not in JVM_OPTION_VARIABLES[:2]}
    ended, running = os.pipe()
    quiet = subprocess.DEVNULL
    subprocess.Popen(words, env=given, stdin=ended, stdout=quiet, stderr=quiet, start_new_session=True)
    os.close(ended)
    # Inherited by the program that replaces this process, and closed when that exits.
    os.set_inheritable(running, True)


def main(folder: str, name: str, *command: str) -> int:
    """Wait until the starting process has ended, then create the archive."""
    sys.stdin.buffer.read()
    archive = ClassArchive(Path(folder), name)
    archive.folder.mkdir(parents=True, exist_ok=True)
    # The kernel releases the lock with the process, so no stale lock remains. A second creator exits.
    with (archive.folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 0
        if not archive.should_create():
            return 0
        os.nice(19)
        return _create_archive(archive, command)


def _create_archive(archive: ClassArchive, command: Sequence[str]) -> int:
    shutil.rmtree(archive.draft, ignore_errors=True)
    archive.draft.mkdir()
    try:
        status = subprocess.run(command, cwd=archive.draft, check=False).returncode
        if status == 0:
            archive.publish()
        else:
            archive.failure_marker.touch()
        return status
    except OSError:
        archive.failure_marker.touch()
        raise
    finally:
        shutil.rmtree(archive.draft, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
