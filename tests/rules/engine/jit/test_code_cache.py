"""Where the compiled loop is kept: by all of its sources, beside them or wherever something can be written."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

import purgatory_udf
from purgatory_udf.rules import warm_up
from purgatory_udf.rules.engine.jit import code_cache as keeping

_SOURCES = Path(purgatory_udf.__file__).parent
_WHERE = """
from purgatory_udf.rules.engine.loop import event_loop
kept = getattr(event_loop.run, "_cache", None)
print(getattr(getattr(kept, "_impl", None), "locator", None) and kept._impl.locator.get_cache_path())
"""


def _archive(folder: Path, changed: str = "") -> Path:
    """The package as `--py-files` brings it to a worker; `changed` is added to a helper's source."""
    archive = folder / "purgatory.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for file in sorted(_SOURCES.rglob("*.py")):
            text = file.read_text() + (changed if file.name == "waiter_queues.py" else "")
            packed.writestr(str(file.relative_to(_SOURCES.parent)), text)
    return archive


def _kept_in(package: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", _WHERE],
        env={"PYTHONPATH": str(package), "PATH": "/usr/bin:/bin", **environment},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_from_an_archive_it_is_kept_in_the_users_cache_by_all_of_its_sources(tmp_path: Path) -> None:
    first = _kept_in(_archive(tmp_path), HOME=str(tmp_path))
    assert Path(first).parent == tmp_path / ".cache/purgatory-replay"
    assert Path(first).name == f"loop-{keeping.fingerprint()}"
    second = _kept_in(_archive(tmp_path, changed="# A helper is not what it was.\n"), HOME=str(tmp_path))
    assert Path(second).parent == Path(first).parent
    assert second != first


@pytest.mark.parametrize(("temporary", "kept"), [("tmp", True), ("/proc/none", False)])
def test_where_the_home_cannot_be_written_it_is_kept_with_temporary_files_or_not_at_all(
    tmp_path: Path, temporary: str, kept: bool
) -> None:
    (tmp_path / "tmp").mkdir()
    places = {"TMPDIR": str(tmp_path / temporary), "HOME": "/proc/none", "TEMP": "/proc/none", "TMP": "/proc/none"}
    folder = _kept_in(_archive(tmp_path), **places)
    assert folder.startswith(f"{tmp_path}/tmp/purgatory-replay-") if kept else not folder.startswith(str(tmp_path))


def test_a_folder_that_the_user_names_comes_first(tmp_path: Path) -> None:
    assert _kept_in(_SOURCES.parent, NUMBA_CACHE_DIR=str(tmp_path)) == f"{tmp_path}/loop-{keeping.fingerprint()}"


def test_where_anybody_may_write_nothing_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    place = tmp_path / f"purgatory-replay-{os.getuid()}"
    (place / "loop").mkdir(parents=True)
    (place / "loop" / "whole").touch()
    assert keeping._folder([place], "loop") == place / "loop"
    place.chmod(0o777)
    assert keeping._folder([place], "loop") is None


_BY_ANOTHER = """
import os
import sys
from importlib import import_module

from purgatory_udf.rules import warm_up
from purgatory_udf.rules.engine.jit import code_cache, compiled_functions

@compiled_functions.entry
def nobody_has_compiled_this(number):
    return number + 1

assert not os.access(code_cache.FOLDER, os.W_OK), code_cache.FOLDER
assert nobody_has_compiled_this(1) == 2
warm_up.main()
print(code_cache.FOLDER)
for name in sys.argv[1:]:
    module, _, function = name.rpartition(".")
    used = getattr(import_module(f"purgatory_udf.{module}"), function)
    print(name, len(used.signatures), len(used.stats.cache_misses))
"""


def _bow_to_modes() -> None:
    """Even if this is root: `PR_CAPBSET_DROP` of `CAP_DAC_OVERRIDE`, for what is begun next."""
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)


def test_who_may_only_read_what_was_compiled_whole_compiles_nothing() -> None:
    """And whole it is: every entry of the sources has been used."""
    warm_up.main()
    entries = [
        f"rules.{package}.{file.stem}.{function}"
        for package in ("engine.columns", "groups", "engine.loop")
        for file in sorted(_SOURCES.joinpath("rules", *package.split(".")).glob("*.py"))
        for function in re.findall(r"^@entry\ndef (\w+)", file.read_text(), re.M)
    ]
    assert "rules.engine.loop.event_loop.run" in entries
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / Path(str(keeping.FOLDER)).name
        shutil.copytree(str(keeping.FOLDER), kept)
        script = Path(folder) / "script.py"
        script.write_text(_BY_ANOTHER)
        names = sorted(file.name for file in kept.iterdir())
        for file in (*kept.iterdir(), script):
            file.chmod(0o444)
        for place in (kept, Path(folder)):
            place.chmod(0o555)
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-B", str(script), *entries],
                env={"PYTHONPATH": str(_SOURCES.parent), "PATH": "/usr/bin:/bin", "NUMBA_CACHE_DIR": folder},
                cwd="/",
                capture_output=True,
                text=True,
                check=False,
                preexec_fn=_bow_to_modes,
            )
        finally:
            for place in (Path(folder), kept):
                place.chmod(0o755)
        assert done.stdout.splitlines() == [str(kept), *(f"{name} 1 0" for name in entries)], done.stderr
        assert sorted(file.name for file in kept.iterdir()) == names


@pytest.mark.long
def test_what_lacks_is_compiled_by_two_processes_and_marked_whole_when_both_are_done(tmp_path: Path) -> None:
    warm_up.main()
    kept = tmp_path / Path(str(keeping.FOLDER)).name
    shutil.copytree(str(keeping.FOLDER), kept)
    names = {file.name for file in kept.iterdir()}
    lacking = {name for name in names if name.startswith(("call_cleanup.link", "outcome_tables.flatten-", "whole"))}
    assert len(lacking) == 5
    for name in lacking:
        (kept / name).unlink()

    def compile_(*words: str) -> set[str]:
        command = [sys.executable, "-P", "-m", "purgatory_udf.rules.warm_up", *words]
        subprocess.run(command, env=os.environ | given, cwd="/", capture_output=True, check=True)
        return {file.name for file in kept.iterdir()}

    given = {"PYTHONPATH": str(_SOURCES.parent), "NUMBA_CACHE_DIR": str(tmp_path)}
    # The other process has the rules only, and says nothing of the rest.
    assert names - compile_("rules") == {name for name in lacking if not name.startswith("call_cleanup.link")}
    assert compile_() == names
