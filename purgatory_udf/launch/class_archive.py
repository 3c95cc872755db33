"""The classes that Spark and Delta load at every start on one machine, kept as a JVM has them in memory: to map them in
place of parsing them takes a quarter off what a small job costs.

A run of the demo makes the archive, once for each Java and each set of jars, in the background and after the first job
that had none: nobody waits for it. A JVM itself holds it against its own version and against every jar, and goes on
without it where they differ; what it does not see is that a file was cut short, so a file's name tells its size.
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

# Who says anything of this is left alone.
_THEIRS = ("-Xshare", "-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-XX:AOT")
_SPOKEN_IN = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
# For who wants none.
OFF = "PURGATORY_NO_ARCHIVE"
# Where Spark is given more to load, in other places of the class path.
_OTHERWISE = ("SPARK_CONF_DIR", "SPARK_PREPEND_CLASSES", "SPARK_DIST_CLASSPATH", "HADOOP_CONF_DIR", "YARN_CONF_DIR")
# So many archives are kept, of 200 MB each; others than the newest are of a Java or of jars that were replaced.
_KEPT = 3
_A_DAY_SECONDS = 86_400


@dataclass(frozen=True)
class Archive:
    """Where the archive of a Java and of a class path is, or would be."""

    folder: Path
    name: str

    def found(self) -> Path | None:
        """The file, if it is there as it was made."""
        return next((file for file in self._files() if file.name == f"{self.name}-{file.stat().st_size}.jsa"), None)

    def used(self) -> str | None:
        """The JVM's options; why an archive does not suit it after all is nothing that a user could put right."""
        file = self.found()
        # Spark's scripts take the options apart at blanks.
        return None if file is None or " " in str(file) else f"-XX:SharedArchiveFile={file} -Xlog:cds*=off"

    def wanted(self) -> bool:
        """Whether to make it: not again for a day where that has failed, nor where nothing can be written."""
        if self.found() or " " in str(self.folder):
            return False
        if self.failed.exists() and time.time() - self.failed.stat().st_mtime < _A_DAY_SECONDS:
            return False
        return os.access(self.folder if self.folder.exists() else self.folder.parent, os.W_OK)

    @property
    def failed(self) -> Path:
        return self.folder / f"{self.name}.failed"

    @property
    def draft(self) -> Path:
        """The folder of an archive in the making, and of the demo that makes it."""
        return self.folder / f"{self.name}.draft"

    def making(self) -> str:
        """The options of the JVM that makes it."""
        return f"-XX:ArchiveClassesAtExit={self.draft / 'archive'}"

    def keep(self) -> None:
        """The finished draft, whole on the disk before it has its name; the oldest are let go."""
        made = self.draft / "archive"
        with made.open("rb") as written:
            os.fsync(written.fileno())
        made.replace(self.folder / f"{self.name}-{made.stat().st_size}.jsa")
        oldest_first = sorted(self.folder.glob("*.jsa"), key=lambda file: file.stat().st_mtime_ns)
        for file in oldest_first[:-_KEPT]:
            file.unlink(missing_ok=True)

    def _files(self) -> Iterable[Path]:
        return self.folder.glob(f"{self.name}-*.jsa")


def archive_for(
    folder: Path, runtime: Path, spark_home: Path, jars: Sequence[Path], environ: Mapping[str, str]
) -> Archive | None:
    """None where none is wanted, and where a JVM could not use it: its class path is the jars, then Spark's, and no
    folder with files."""
    if environ.get(OFF):
        return None
    spoken = " ".join(environ.get(name, "") for name in _SPOKEN_IN)
    if any(word in spoken for word in _THEIRS) or any(environ.get(name) for name in _OTHERWISE):
        return None
    if (spark_home / "conf").exists():
        return None
    # The archive is put on this, which a small Java may lack; and by it a Java is told from the one that it replaces.
    base = runtime.resolve().parent.parent / "lib" / "server" / "classes.jsa"
    told = hashlib.sha256()
    try:
        for file in (runtime.resolve(), base, *jars, *sorted((spark_home / "jars").iterdir())):
            known = file.stat()
            told.update(f"{file}\0{known.st_size}\0{known.st_mtime_ns}\0".encode())
    except OSError:
        return None
    return Archive(folder, told.hexdigest()[:16])


def make_afterwards(archive: Archive, command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Once this process has ended, or whatever it becomes: `command` is the demo, with the options of `making`."""
    words = [
        sys.executable,
        "-P",
        "-m",
        "purgatory_udf.launch.class_archive",
        str(archive.folder),
        archive.name,
        *command,
    ]
    given = {name: value for name, value in environ.items() if name not in _SPOKEN_IN[:2]}
    ended, running = os.pipe()
    quiet = subprocess.DEVNULL
    subprocess.Popen(words, env=given, stdin=ended, stdout=quiet, stderr=quiet, start_new_session=True)
    os.close(ended)
    # Goes over to what this process becomes, and is closed with that, however it ends.
    os.set_inheritable(running, True)


def main(folder: str, name: str, *command: str) -> int:
    """Wait until whoever started this has ended, then make the archive."""
    sys.stdin.buffer.read()
    archive = Archive(Path(folder), name)
    archive.folder.mkdir(exist_ok=True)
    # The kernel drops the lock with the process: who comes second goes away, and none is left behind.
    with (archive.folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 0
        if not archive.wanted():
            return 0
        os.nice(19)
        return _make(archive, command)


def _make(archive: Archive, command: Sequence[str]) -> int:
    shutil.rmtree(archive.draft, ignore_errors=True)
    archive.draft.mkdir()
    try:
        status = subprocess.run(command, cwd=archive.draft, check=False).returncode
        if status == 0:
            archive.keep()
        else:
            archive.failed.touch()
        return status
    except OSError:
        archive.failed.touch()
        raise
    finally:
        shutil.rmtree(archive.draft, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
