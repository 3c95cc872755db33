"""The environment as one archive, for workers that have nothing of ours: what is pinned, the package, a way in.

    purgatory.json   of which sources it was made, for which Python
    bin/python       finds a Python of that version on the machine and gives it what lies in lib/
    lib/             every package of requirements.txt but those that a worker has or has no use for, and ours, compiled

A virtual environment names its Python by a path of the machine it was made on; `bin/python` here looks for one where it
is run, so the archive may be unpacked anywhere.
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

# The package as a zip for Spark's workers: the same bytes for the same sources, made again when they change.


PACKAGES = ("purgatory_udf", "jobs")


def bundle_sources(root: Path) -> dict[str, bytes]:
    """The tree's packages, file by file."""
    return {
        file.relative_to(root).as_posix(): file.read_bytes()
        for package in PACKAGES
        for file in sorted((root / package).rglob("*.py"))
    }


def bundle_digest(files: Mapping[str, bytes]) -> str:
    """By which the same sources are known."""
    total = hashlib.sha256()
    for name, text in files.items():
        total.update(f"{name}\0{len(text)}\0".encode())
        total.update(text)
    return total.hexdigest()[:16]


def build_bundle(root: Path, folder: Path) -> Path:
    """The zip of the tree's packages in `folder`, named after its content."""
    files = bundle_sources(root)
    bundle = folder / f"purgatory-{bundle_digest(files)}.zip"
    if not bundle.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        draft = bundle.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(draft, "w") as archive:
            for name, text in files.items():
                archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
                # A worker imports from the zip at every start, and would compile each time. Another Python
                # version ignores these and compiles the source.
                archive.writestr(zipfile.ZipInfo(f"{name}c"), _compiled(name, root / name), zipfile.ZIP_DEFLATED)
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
# A worker runs within Spark, which has the first; the others do without Spark, where a command is given.
_NOT_SENT = frozenset({"pyspark", "py4j", "arro3-core", "deltalake", "deprecated", "duckdb", "wrapt"})
# A module that compiles what is compiled on first use, and leaves it beside the sources.
WARM = "purgatory_udf.rules.warm_up"
# Where that is, in a folder that is named after the sources by this.
_COMPILED = Path("purgatory_udf", "compiling", "__pycache__")
_FINGERPRINT = "from purgatory_udf.rules.engine.jit.code_cache import fingerprint; print(fingerprint())"
# Of every file of ours: what is kept compiled knows its source by size and time, and an archive keeps whole seconds.
_MADE_AT = 1_000_000_000

_FIND_PYTHON = """\
#!/bin/sh
# A Python {version} of this machine, with the packages of this archive.
here=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd -P)
for python in "${{PURGATORY_PYTHON:-}}" python{version} python3 python; do
  if [ -n "$python" ] && "$python" -c 'import sys; sys.exit(sys.version_info[:2] != {tuple})' 2>/dev/null; then
    export PYTHONPATH="$here/lib${{PYTHONPATH:+:$PYTHONPATH}}"
    exec "$python" -s "$@"
  fi
done
echo "$(hostname): no Python {version} here, for which this archive was made: install one, or name it in" \\
  "PURGATORY_PYTHON (spark.executorEnv.PURGATORY_PYTHON), or make the archive with the Python that is here" >&2
exit 1
"""


def make(root: Path, file: Path) -> Path:
    """Write the archive of the tree at `root`; whole or not at all."""
    if not file.parent.is_dir():
        raise UserError(f"{file}: there is no folder {file.parent}")
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as folder:
        environment = Path(folder, "environment")
        lay_out(root, environment)
        warm(root, environment)
        draft = Path(folder, "draft")
        with tarfile.open(draft, "w:gz", compresslevel=1) as archive:
            # What it is stands first: whoever asks need not unpack the rest.
            for name in (MANIFEST, "bin", "lib"):
                archive.add(environment / name, name)
        draft.replace(file)
    return file


def lay_out(root: Path, environment: Path) -> None:
    """The archive's files, in a folder."""
    lib = environment / "lib"
    lib.mkdir(parents=True)
    for name in _pinned(root / "requirements.txt"):
        _copy(metadata.distribution(name), lib)
    _copy_own(root, lib)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    script = environment / PYTHON
    script.parent.mkdir()
    script.write_text(_FIND_PYTHON.format(version=version, tuple=tuple(sys.version_info[:2])), encoding="utf-8")
    script.chmod(0o755)
    (environment / MANIFEST).write_text(json.dumps(_manifest(root, version), indent=1), encoding="utf-8")


def warm(root: Path, environment: Path) -> bool:
    """Let what is compiled on first use be compiled now, in the folder that is packed; whether there is any. What the
    tree has compiled of the same sources is taken over, for it takes half a minute."""
    lib = environment / "lib"
    if not (lib / Path(*WARM.split("."))).with_suffix(".py").is_file():
        return False
    sources = _run(environment, "-c", _FINGERPRINT)
    for compiled in (root / _COMPILED).glob(f"*-{sources}"):
        shutil.copytree(compiled, lib / _COMPILED / compiled.name, dirs_exist_ok=True)
    _run(environment, "-m", WARM)
    return True


def _run(environment: Path, *words: str) -> str:
    """What the packed Python said."""
    given = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    given["PURGATORY_PYTHON"] = sys.executable
    done = subprocess.run([str(environment / PYTHON), *words], env=given, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"{WARM} failed in the environment that was to be packed:\n{done.stderr.strip()}")
    return done.stdout.strip()


def sources_of(archive: Path) -> str | None:
    """Of which sources an archive was made; None if it is none of ours."""
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


def _pinned(requirements: Path) -> list[str]:
    names = re.findall(r"^([A-Za-z0-9._-]+)==", requirements.read_text(encoding="utf-8"), re.MULTILINE)
    return [name for name in names if name not in _NOT_SENT]


def _copy(package: metadata.Distribution, lib: Path) -> None:
    """The files that the package's own record lists, without its scripts: these name their Python by its path."""
    for file in package.files or ():
        source = Path(str(package.locate_file(file)))
        if ".." not in file.parts and source.is_file():
            target = lib / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _copy_own(root: Path, lib: Path) -> None:
    for name, text in bundle_sources(root).items():
        target = lib / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text)
        os.utime(target, (_MADE_AT, _MADE_AT))
    for package in PACKAGES:
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(lib / package, quiet=2, stripdir=str(lib), invalidation_mode=unchecked)
