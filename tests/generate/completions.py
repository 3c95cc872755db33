"""The completion scripts in `conf/completion`, from the jobs and their options.

python -m tests.generate.completions
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from purgatory_udf.launch.command_line import COMPLETION_OPTION, FLAG_OPTIONS, SHELLS, VALUE_OPTIONS, list_jobs
from purgatory_udf.simulation.scenario import scenario_names

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "conf" / "completion"
NAMES = ("purgatory-replay", "spark-submit.sh")
_HEAD = "# Completions of purgatory-replay and spark-submit.sh. Written by tests/generate/completions.py.\n"


@dataclass(frozen=True)
class Option:
    """An option: its name, its help, whether it takes a value, and the values that are possible if these are known."""

    name: str
    help: str
    takes_value: bool
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Command:
    """A job with its summary and its options."""

    name: str
    summary: str
    options: tuple[Option, ...]


def commands() -> list[Command]:
    """Return all jobs."""
    return [Command(entry.name, entry.summary, tuple(_options(entry.file.stem))) for entry in list_jobs(ROOT)]


def _options(module: str) -> Iterator[Option]:
    for parameter in import_module(f"jobs.{module}").main.parameters():
        if parameter.param_type_name != "option" or parameter.hidden:
            continue
        choices = tuple(_choices(parameter.type_descriptor.annotation))
        if parameter.name in ("scenario", "closed_loop"):
            choices = tuple(scenario_names())
        help_text = " ".join((parameter.help or "").split())
        for name in (*parameter.opts, *parameter.secondary_opts):
            yield Option(name, help_text, not parameter.is_flag, choices)
    yield Option("--help", "Show this message and exit.", takes_value=False)


def _choices(annotation: Any) -> list[str]:
    """Return the possible values of a type, none if it has any number of them."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [str(member.value) for member in annotation]
    return [value for each in get_args(annotation) for value in ([each] if isinstance(each, str) else _choices(each))]


def _first_options() -> list[Option]:
    """Return the options before the name of a job."""
    spark = [Option(name, "Option of Spark.", name in VALUE_OPTIONS) for name in sorted(VALUE_OPTIONS | FLAG_OPTIONS)]
    ours = [
        Option("--help", "List the jobs.", takes_value=False),
        Option("--version", "Show the version.", takes_value=False),
    ]
    return [
        *ours,
        Option(COMPLETION_OPTION, "Print completions for a shell.", takes_value=True, choices=SHELLS),
        *spark,
    ]


def bash() -> str:
    """Return the script for bash."""
    jobs = commands()
    cases = [f"    {job.name}) words={shlex.quote(_joined(job.options))} ;;" for job in jobs]
    values = [
        f"    {job}:{option.name}) words={shlex.quote(' '.join(option.choices))} ;;"
        for job, options in [("", _first_options()), *((job.name, job.options) for job in jobs)]
        for option in options
        if option.choices
    ]
    names = "|".join(job.name for job in jobs)
    first = shlex.quote(f"{' '.join(job.name for job in jobs)} {_joined(_first_options())}")
    return f"""{_HEAD}
_purgatory_replay() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} job= words= at
  for ((at = 1; at < COMP_CWORD; at++)); do
    case ${{COMP_WORDS[at]}} in
    {names}) job=${{COMP_WORDS[at]}}; break ;;
    esac
  done
  COMPREPLY=()
  case $job:$before in
{chr(10).join(values)}
  esac
  if [[ -z $words && ( -z $job || $word == -* ) ]]; then
    case $job in
    "") words={first} ;;
{chr(10).join(cases)}
    esac
  fi
  # Without words, bash completes file names.
  [[ -z $words ]] || COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _purgatory_replay {" ".join(NAMES)}
"""


def _joined(options: tuple[Option, ...] | list[Option]) -> str:
    return " ".join(option.name for option in options)


def zsh() -> str:
    """Return the script for zsh."""
    jobs = commands()
    listed = "\n".join(f"    {_zsh(f'{job.name}:{_plain(job.summary)}')}" for job in jobs)
    cases = "\n".join(
        f"    {job.name})\n      _arguments \\\n{_zsh_options(job.options)}        '*:file:_files'\n      ;;"
        for job in jobs
    )
    return f"""#compdef {" ".join(NAMES)}
{_HEAD}
_purgatory_replay() {{
  local context state line
  local -a jobs
  jobs=(
{listed}
  )
  _arguments -C \\
{_zsh_options(_first_options())}    '1:job:->job' '*::options:->options'
  case $state in
  job) _describe job jobs ;;
  options)
    case $words[1] in
{cases}
    esac
    ;;
  esac
}}

if [[ $funcstack[1] == _purgatory_replay ]]; then
  _purgatory_replay "$@"
else
  compdef _purgatory_replay {" ".join(NAMES)}
fi
"""


def _zsh_options(options: tuple[Option, ...] | list[Option]) -> str:
    lines = []
    for option in options:
        value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files"
        lines.append(
            f"        {_zsh(f'*{option.name}[{_plain(option.help)}]' + (value if option.takes_value else ''))} \\\n"
        )
    return "".join(lines)


def _zsh(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _plain(text: str) -> str:
    """Return a help text without the characters that separate parts in zsh."""
    return text.replace("[", "(").replace("]", ")").replace(":", " -").replace("`", "").replace("\\", "")


def fish() -> str:
    """Return the script for fish."""
    jobs = commands()
    lines = [f"complete -c {{name}} -n '{_no_job(jobs)}' -f -a {job.name} -d {_quoted(job.summary)}" for job in jobs]
    lines += [_fish(option, _no_job(jobs)) for option in _first_options()]
    lines += [_fish(option, f"__fish_seen_subcommand_from {job.name}") for job in jobs for option in job.options]
    return _HEAD + "".join(f"{line.replace('{name}', name)}\n" for name in NAMES for line in lines)


def _no_job(jobs: list[Command]) -> str:
    return f"not __fish_seen_subcommand_from {' '.join(job.name for job in jobs)}"


def _fish(option: Option, condition: str) -> str:
    name = f"-l {option.name[2:]}" if option.name.startswith("--") else f"-s {option.name[1:]}"
    value = f" -r -a {_quoted(' '.join(option.choices))}" if option.choices else " -r" if option.takes_value else ""
    return f"complete -c {{name}} -n '{condition}' {name}{value} -d {_quoted(option.help)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS = {"bash": bash, "zsh": zsh, "fish": fish}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for shell, script in SCRIPTS.items():
        (FOLDER / f"purgatory-replay.{shell}").write_text(script(), encoding="utf-8")
