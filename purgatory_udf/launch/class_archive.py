"""The archive of the classes that Spark's JVM loads at every start, and its creation.

A JVM maps an AppCDS archive into memory instead of parsing the classes, which saves a quarter of the time of a small
job. A run of the demo creates the archive, once for each Java and set of jars, in the background after the first job
without one. The JVM checks its own version and every jar against the archive and ignores it if they differ. It does not
detect a truncated file, so the file's name contains its size.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
        "purgatory_udf.launch.class_archive",
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
