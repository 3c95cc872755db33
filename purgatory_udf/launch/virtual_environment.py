"""The tree's virtual environment `.venv`: created at the first start, updated when the pinned versions change.

This module needs only the standard library. An interrupted set-up is repeated from scratch, and concurrent set-ups wait
for each other. Only packages with a hash in the requirements files are installed; `.ci/pin` writes these files.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from purgatory_udf.common.errors import UserError
from purgatory_udf.common.installation import PROGRAM

# Build dependencies of the packages that come as sources. They are pinned and installed first, because pip would choose
# its own versions without checking hashes.
BUILD_REQUIREMENTS = "requirements-build.txt"

# Packages below `rules` with compiled functions.
_COMPILED = ("engine", "engine/jit", "engine/loop", "groups")

# Groups of requirements: the file, and the progress message of its installation.
REQUIREMENT_GROUPS = {
    "run": ("requirements.txt", "the pinned dependencies (Spark alone has over 400 MB; this can take several minutes)"),
    "test": ("requirements-test.txt", "the dependencies of the tests"),
    "java": ("requirements-java.txt", "a Java runtime from PyPI (none of version 17 or newer was found)"),
}


class VirtualEnvironment:
    """The virtual environment of one source tree. A stamp file marks each group of requirements that is installed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.folder = root / ".venv"
        self.python = self.folder / "bin" / "python"
        self._unfinished = self.folder / "unfinished"

    def is_active(self) -> bool:
        """Whether this process runs in the environment."""
        return self.folder.is_dir() and self.folder.samefile(sys.prefix)

    def ready(self, *groups: str) -> bool:
        """Return whether these groups are installed as pinned. It reads a few small files only."""
        return not self._unfinished.exists() and all(
            self._stamp(group) == self._required_digest(group) for group in groups
        )

    def set_up(self, *groups: str) -> None:
        """Create or repair the environment so that it has these groups; report progress on stderr."""
        if self.ready(*groups) and self._engine_is_compiled():
            return
        with self._lock():
            # The first group has all that the engine's compilation needs; it runs while the others are downloaded.
            self._install_all(groups[:1])
            with self._compiling_engine():
                self._install_all(groups)

    def _install_all(self, groups: tuple[str, ...]) -> None:
        if self.ready(*groups):  # Another process did it.
            return
        if self._unfinished.exists() or not self._is_usable():
            self._create()
        self._unfinished.touch()
        for group in groups:
            if self._stamp(group) != self._required_digest(group):
                self._install(group)
        self._unfinished.unlink()

    def _engine_is_compiled(self) -> bool:
        """Return whether the engine of this version was compiled in this environment, or the tree has none."""
        return not self._engine_sources() or self._stamp("engine") == self._engine_digest()

    @contextmanager
    def _compiling_engine(self) -> Iterator[None]:
        """Compile the engine in another process during the `with` block, and wait for that process at its end.

        A failure is ignored, because the engine is then compiled on first use.
        """
        if self._engine_is_compiled():
            yield
            return
        report_progress("Compiling the engine (once for each version; up to a minute)")
        command = [str(self.python), "-m", "purgatory_udf.rules.warm_up"]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, cwd=self._root, stdin=quiet, stdout=quiet, stderr=quiet) as compiling:
            try:
                yield
            except BaseException:
                compiling.kill()
                raise
            if compiling.wait() == 0:
                (self.folder / "engine.stamp").write_text(self._engine_digest(), encoding="utf-8")

    def _engine_sources(self) -> list[Path]:
        rules = self._root / "purgatory_udf" / "rules"
        return sorted(file for folder in _COMPILED for file in (rules / folder).glob("*.py"))

    def _engine_digest(self) -> str:
        digest = hashlib.sha256(self._required_digest("run").encode())
        for source in self._engine_sources():
            digest.update(source.read_bytes())
        return digest.hexdigest()

    def _is_usable(self) -> bool:
        try:
            return subprocess.run([self.python, "-c", "import pip"], capture_output=True, check=False).returncode == 0
        except OSError:
            return False

    def _create(self) -> None:
        report_progress(f"Setting up {self.folder} with Python {sys.version.split()[0]} (once)")
        # A virtual environment's Python cannot reliably create another one: use its base.
        base = getattr(sys, "_base_executable", sys.executable)
        self.folder.mkdir(exist_ok=True)
        self._unfinished.touch()
        made = subprocess.run(
            [base, "-m", "venv", "--clear", str(self.folder)], capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            raise UserError(
                f"{base} -m venv failed (on Debian and Ubuntu, install the package python3-venv):\n"
                f"{(made.stdout + made.stderr).strip()}"
            )

    def _install(self, group: str) -> None:
        file, what = REQUIREMENT_GROUPS[group]
        report_progress(f"Installing {what}")
        # All groups have the same build dependencies.
        for name, pins in (("build", BUILD_REQUIREMENTS), (group, file)):
            if self._stamp(name) != self._digest(pins):
                self._pip(pins)
                (self.folder / f"{name}.stamp").write_text(self._digest(pins), encoding="utf-8")

    def _pip(self, file: str) -> None:
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        done = subprocess.run(
            [*pip, "--require-hashes", "--no-build-isolation", "-r", str(self._root / file)],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            check=False,
        )
        if done.returncode != 0:
            raise UserError(f"{file} could not be installed into {self.folder}; see pip's message above")

    def _stamp(self, group: str) -> str | None:
        try:
            return (self.folder / f"{group}.stamp").read_text(encoding="utf-8")
        except OSError:
            return None

    def _required_digest(self, group: str) -> str:
        return self._digest(REQUIREMENT_GROUPS[group][0])

    def _digest(self, file: str) -> str:
        return hashlib.sha256((self._root / file).read_bytes()).hexdigest()

    @contextmanager
    def _lock(self) -> Iterator[None]:
        # The kernel releases the lock with the process, so no stale lock remains. The file is outside the environment,
        # which may be cleared under the lock.
        with open(self._root / ".venv.lock", "w", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report_progress(f"Waiting for another process that sets up {self.folder}")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def report_progress(sentence: str) -> None:
    """Print a sentence about progress to stderr, because stdout belongs to the job."""
    print(f"[{PROGRAM}] {sentence} …", file=sys.stderr, flush=True)


def set_up(root: Path, *groups: str) -> None:
    """Set up the environment for `.ci/test`; on failure exit with status 2 and a message."""
    try:
        VirtualEnvironment(root).set_up(*groups)
    except UserError as error:
        print(f"set-up: {error}", file=sys.stderr)
        sys.exit(2)
