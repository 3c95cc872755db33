"""Completions of the command line: the scripts are current, and bash proposes what is possible."""

from __future__ import annotations

import subprocess

import pytest

from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import command_line
from purgatory_udf.launch.command_line import SHELLS
from tests.generate import completions

COMPLETE = """source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _purgatory_replay
printf '%s\\n' "${COMPREPLY[@]}" """


@pytest.mark.parametrize("shell", SHELLS)
def test_script_is_current(shell: str) -> None:
    """`python -m tests.generate.completions` writes them after a change of an option."""
    assert command_line.completions(completions.ROOT, shell) == completions.SCRIPTS[shell]()


@pytest.mark.parametrize(
    ("words", "proposed"),
    [
        ("purgatory-replay re", "replay report"),
        ("./spark-submit.sh --master yarn ingest --from ", "jsonl parquet request-log kafka"),
        ("purgatory-replay replay --dr", "--drain"),
        ("purgatory-replay simulate --out o --scenario slow-f", "slow-follower"),
        ("purgatory-replay --show-completion ", "bash zsh fish"),
        # Nothing: bash completes file names.
        ("purgatory-replay audit --out ", ""),
    ],
)
def test_bash_proposes(words: str, proposed: str) -> None:
    script = str(completions.FOLDER / "purgatory-replay.bash")
    command = ["bash", "--norc", "-c", COMPLETE, "bash", script, *words.split(" ")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == (proposed.split(), "")


def test_unknown_shell_is_refused() -> None:
    assert command_line.parse(["--show-completion", "zsh"]).completion == "zsh"
    with pytest.raises(UserError, match=r"^--show-completion tcsh: expected bash, zsh, fish$"):
        command_line.completions(completions.ROOT, "tcsh")
