"""The tree's own virtual environment: made on first use, brought up to date when the pinned versions change.

Runs on a bare Python. A set-up that was cut short is begun anew, and two at once wait for each other. Nothing is
installed whose hash the tree's requirements do not name (`.ci/pin` writes them).
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

# Some packages come as sources. What builds them is pinned as they are, and installed before: pip's own choice of it,
# for each package apart, would be checked by nobody.
BUILD = "requirements-build.txt"

# What can be installed, and what there is to know while one waits.
GROUPS = {
    "run": ("requirements.txt", "the pinned dependencies (Spark alone is over 400 MB; this can take some minutes)"),
    "test": ("requirements-test.txt", "what the tests need"),
    "java": ("requirements-java.txt", "a Java runtime from PyPI (none of version 17 or newer was found)"),
}


class Environment:
    """`.venv` in a tree, with a stamp for each group of requirements that is installed in full."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.folder = root / ".venv"
        self.python = self.folder / "bin" / "python"
        self._unfinished = self.folder / "unfinished"

    def ready(self, *groups: str) -> bool:
        """Whether these groups are installed as the tree's requirements say; only a few small files are read."""
        return not self._unfinished.exists() and all(self._stamp(group) == self._wanted(group) for group in groups)

    def set_up(self, *groups: str) -> None:
        """Make or repair the environment so that it is ready for these groups; says what it does on stderr."""
        if self.ready(*groups) and self._compiled():
            return
        with self._alone():
            # The first is what the engine is compiled with; meanwhile the others come from far away.
            self._install_all(groups[:1])
            with self._compiling():
                self._install_all(groups)

    def _install_all(self, groups: tuple[str, ...]) -> None:
        if self.ready(*groups):  # Another start may have done it while we waited.
            return
        if self._unfinished.exists() or not self._works():
            self._create()
        self._unfinished.touch()
        for group in groups:
            if self._stamp(group) != self._wanted(group):
                self._install(group)
        self._unfinished.unlink()

    def _compiled(self) -> bool:
        """Whether this version's engine has been compiled by this environment; a tree without one needs none."""
        return not self._engine() or self._stamp("engine") == self._engine_wanted()

    @contextmanager
    def _compiling(self) -> Iterator[None]:
        """So that no worker has to. It is no mistake if this fails: whoever needs the engine compiles it."""
        if self._compiled():
            yield
            return
        say("Compiling the engine (once for each version; up to a minute)")
        command = [str(self.python), "-m", "purgatory_udf.rules.warm_up"]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, cwd=self._root, stdin=quiet, stdout=quiet, stderr=quiet) as compiling:
            try:
                yield
            except BaseException:
                compiling.kill()
                raise
            if compiling.wait() == 0:
                (self.folder / "engine.stamp").write_text(self._engine_wanted(), encoding="utf-8")

    def _engine(self) -> list[Path]:
        return sorted((self._root / "purgatory_udf" / "loop").glob("*.py"))

    def _engine_wanted(self) -> str:
        digest = hashlib.sha256(self._wanted("run").encode())
        for source in self._engine():
            digest.update(source.read_bytes())
        return digest.hexdigest()

    def _works(self) -> bool:
        try:
            return subprocess.run([self.python, "-c", "import pip"], capture_output=True, check=False).returncode == 0
        except OSError:
            return False

    def _create(self) -> None:
        say(f"Setting up {self.folder} with Python {sys.version.split()[0]} (once)")
        # A virtual environment cannot reliably be made with another one's interpreter: go back to the base.
        base = getattr(sys, "_base_executable", sys.executable)
        self.folder.mkdir(exist_ok=True)
        self._unfinished.touch()
        made = subprocess.run(
            [base, "-m", "venv", "--clear", str(self.folder)], capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            raise UserError(
                f"{base} -m venv failed; on Debian and Ubuntu install the package python3-venv. It said:\n"
                f"{(made.stdout + made.stderr).strip()}"
            )

    def _install(self, group: str) -> None:
        file, what = GROUPS[group]
        say(f"Installing {what}")
        # What builds the others is the same for all groups.
        for name, pins in (("build", BUILD), (group, file)):
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
            raise UserError(f"{file} could not be installed into {self.folder}: see pip's message above")

    def _stamp(self, group: str) -> str | None:
        try:
            return (self.folder / f"{group}.stamp").read_text(encoding="utf-8")
        except OSError:
            return None

    def _wanted(self, group: str) -> str:
        return self._digest(GROUPS[group][0])

    def _digest(self, file: str) -> str:
        return hashlib.sha256((self._root / file).read_bytes()).hexdigest()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        # The kernel drops the lock with the process, however it ends: no stale lock can be left behind. The file
        # lies outside the environment, which may be cleared under the lock.
        with open(self._root / ".venv.lock", "w", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("Another set-up of this tree is under way: waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def say(sentence: str) -> None:
    """Tell the user what takes time; stdout belongs to the job."""
    print(f"[spark-submit.sh] {sentence} …", file=sys.stderr, flush=True)


def set_up(root: Path, *groups: str) -> None:
    """For `.ci/test`: ends with status 2 and a sentence if that fails."""
    try:
        Environment(root).set_up(*groups)
    except UserError as error:
        print(f"set-up: {error}", file=sys.stderr)
        sys.exit(2)
