"""`python -m tests.chaos.mutation`: measures the share of small defects (mutants) that the quick tests catch.

A mutant is a module of which one expression or statement was changed, such as `<` to `<=`. Its tests run in a fork of a
process that has imported and collected everything, and only tests that execute the changed line, quickest first. A
mutant is caught if a test fails or exceeds the time limit. Mutants are a random sample of the changes of lines that the
tests execute. Constants of modules and classes, defaults, assertions (`strict` of `zip` is one) and error messages are
not changed.

Surviving mutants that change no result are listed in `equivalent_mutants.tsv` with the reason. The engine runs
uncompiled (`NUMBA_DISABLE_JIT=1`). The exit status is 1 if a part has more than 5% of survivors.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import json
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.tsv")


@dataclass(frozen=True)
class Part:
    """Modules to change, and the tests that judge the changes: paths of folders or files, and names (pytest's `-k`).

    `with_long` includes tests marked `long`, of which only quick ones judge (`_LONGEST_TEST_S`). The tests
    of the files `last` judge every mutant that they execute, in addition to the quickest ones.
    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    keywords: str = ""
    with_long: bool = False
    last: tuple[str, ...] = ()


_REQUEST_LOG = ("purgatory_udf/sources/request_log",)
PARTS = {
    "reference": Part(
        ("purgatory_udf/rules/reference",),
        (
            "tests/rules/reference",
            "tests/rules/purgatory",
            "tests/rules/engine/loop/test_against_reference.py",
            "tests/streaming/test_share_rules.py",
        ),
    ),
    # The tests of `.ci/branches`, which reach every branch, and other short ones; the rest takes too long without
    # compilation.
    "engine": Part(
        ("purgatory_udf/rules/engine/loop",),
        tuple(
            f"tests/rules/engine/loop/test_{name}.py"
            for name in (
                *("every_branch", "against_oracle", "remote_oracle", "watches", "gauges", "state", "trimmed_logs"),
                "engine_call",
            )
        ),
        (("NUMBA_DISABLE_JIT", "1"),),
        "every_branch or corner or hand_made or watches or gauges or state or short_logs or engine_call",
    ),
    "coordinator": Part(("purgatory_udf/rules/coordinator",), ("tests/rules/coordinator", "tests/rules/groups")),
    # Most modules of these tests are marked `long` because of a few tests of whole recordings.
    "import": Part(
        _REQUEST_LOG,
        ("tests/sources/request_log",),
        with_long=True,
        last=tuple(
            f"tests/sources/request_log/test_{name}.py"
            for name in ("recorded_events", "random_logs", "random_timelines")
        ),
    ),
    "adapter": Part(
        tuple(
            f"purgatory_udf/streaming/{name}.py"
            for name in ("stateful_adapter", "partition_rules", "group_rules", "share_rules", "single_batch_replay")
        ),
        ("tests/streaming", "tests/rules/groups/test_group_adapter.py", "tests/rules/engine/loop/test_state.py"),
    ),
}

# Tests that take longer are left out: a survivor runs all of its tests.
_LONGEST_TEST_S = 4.0
# Assumed for tests that are newer than the measurement in use.
_NEW_TEST_S = 0.0
_MEMORY_BYTES = 6 << 30
_TARGET = 0.95

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


@dataclass(frozen=True)
class Mutant:
    """One change of a module.

    `site` is its position among all changes of the module, `unit` the name and first line of the outermost function.
    """

    path: str
    site: int
    unit: tuple[str, int]
    function: str
    line: int
    change: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.path, self.function, self.change


@dataclass
class _Site:
    unit: ast.AST
    unit_name: str
    function: str
    line: int
    change: str
    apply: Callable[[], None] = field(repr=False)


class _Sites(ast.NodeVisitor):
    """Collects all changes of a syntax tree, in the order of the text."""

    def __init__(self) -> None:
        self.sites: list[_Site] = []
        self._names: list[str] = []
        self._unit: tuple[ast.AST, str] | None = None
        self._statement_line = 0

    def _add(self, change: str, apply: Callable[[], None], node: Any) -> None:
        if self._unit is None:
            return
        unit, unit_name = self._unit
        shown = " ".join(change.split())
        self.sites.append(_Site(unit, unit_name, ".".join(self._names), node.lineno, shown[:160], apply))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                self.visit(statement)
        self._names.pop()

    def visit_FunctionDef(self, node: Any) -> None:
        is_unit = self._unit is None
        self._names.append(node.name)
        if is_unit:
            self._unit = (node, ".".join(self._names))
        body = node.body
        if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]
        self._statements(node, "body", body)
        if is_unit:
            self._unit = None
        self._names.pop()

    def _statements(self, owner: Any, name: str, statements: list[ast.stmt]) -> None:
        whole = getattr(owner, name)
        for statement in statements:
            self._removal(whole, statement)
            self.visit(statement)

    def _removal(self, whole: list[ast.stmt], statement: ast.stmt) -> None:
        is_call = isinstance(statement, ast.Expr) and not isinstance(statement.value, ast.Constant | ast.Yield)
        kinds = ast.Assign | ast.AugAssign | ast.Return | ast.Raise | ast.Break | ast.Continue | ast.Delete
        if (not is_call and not isinstance(statement, kinds)) or ast.unparse(statement).startswith("log."):
            return
        if isinstance(statement, ast.Return) and statement.value is None and statement is whole[-1] and len(whole) == 1:
            return

        def remove() -> None:
            # The compiler drops the statement, but keeps the scopes of the names in it.
            never = ast.If(ast.Constant(False), [statement], [])
            ast.copy_location(never, statement)
            ast.copy_location(never.test, statement)
            whole[whole.index(statement)] = never

        self._add(f"remove {ast.unparse(statement)}", remove, statement)

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assert | ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.keyword) and node.arg == "strict":
            return
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params", "args") and isinstance(
                node, ast.AnnAssign | ast.arg | ast.FunctionDef | ast.Lambda
            ):
                continue
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self._statements(node, name, value)
            elif isinstance(value, list):
                for inner in value:
                    if isinstance(inner, ast.AST):
                        self.visit(inner)
            elif isinstance(value, ast.AST):
                self.visit(value)

    def _set(self, node: Any, name: str, value: Any) -> None:
        old, before = getattr(node, name), ast.unparse(node)
        setattr(node, name, value)
        after = ast.unparse(node)
        setattr(node, name, old)
        self._add(f"{before} -> {after}", lambda: setattr(node, name, value), node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for place, operator in enumerate(node.ops):
            changed = [*node.ops]
            changed[place] = _COMPARISONS[type(operator)]()
            self._set(node, "ops", changed)
        self.generic_visit(node)

    def visit_BinOp(self, node: Any) -> None:
        other = _ARITHMETIC.get(type(node.op))
        texts = (getattr(node, "left", None), getattr(node, "right", None))
        if other is not None and not any(
            isinstance(text, ast.Constant | ast.JoinedStr) and not isinstance(getattr(text, "value", None), int)
            for text in texts
        ):
            self._set(node, "op", other())
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit_BinOp(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self._set(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            changed = ast.Call(ast.Name("bool", ast.Load()), [node.operand], [])
            twice = ast.copy_location(ast.UnaryOp(ast.Not(), node.operand), node)
            self._add(f"{ast.unparse(node)} -> {ast.unparse(changed)}", partial(setattr, node, "operand", twice), node)
        self.generic_visit(node)

    def _negation(self, node: Any) -> None:
        """Negate a condition that has no operator of its own."""
        if not isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant):
            negated = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
            test = node.test
            self._add(
                f"if {ast.unparse(test)} -> if not {ast.unparse(test)}", lambda: setattr(node, "test", negated), test
            )
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self._negation(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negation(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._set(node, "value", not node.value)
        elif isinstance(node.value, int):
            for step in (1, -1):
                self._set(node, "value", node.value + step)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in ("min", "max") and isinstance(node.ctx, ast.Load):
            self._set(node, "id", "max" if node.id == "min" else "min")


@cache
def _collect(path: str) -> tuple[ast.Module, list[_Site]]:
    """Return the syntax tree of a module, which `apply` changes in place, and its sites."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = _Sites()
    found.visit(tree)
    return tree, found.sites


def mutants_of(path: str) -> list[Mutant]:
    """Return all mutants of a module; repeated changes in a function are numbered."""
    _, sites = _collect(path)
    seen: Counter[tuple[str, str]] = Counter()
    mutants = []
    for number, site in enumerate(sites):
        seen[site.function, site.change] += 1
        count = seen[site.function, site.change]
        change = site.change if count == 1 else f"{site.change} (#{count})"
        decorators = getattr(site.unit, "decorator_list", [])
        first = min([site.unit.lineno, *(each.lineno for each in decorators)])  # type: ignore[attr-defined]
        mutants.append(Mutant(path, number, (site.unit_name, first), site.function, site.line, change))
    return mutants


def apply_mutant(mutant: Mutant, functions: dict[tuple[str, str, int], list[FunctionType]]) -> None:
    """Compile the changed module, and give the existing functions their new code. Call it once in a process."""
    file = ROOT / mutant.path
    tree, sites = _collect(mutant.path)
    sites[mutant.site].apply()
    changed = compile(ast.fix_missing_locations(tree), str(file), "exec", dont_inherit=True)
    unit = next(code for code in _codes(changed) if (code.co_qualname, code.co_firstlineno) == mutant.unit)
    # Closures that exist already have the code of the functions in the unit.
    for code in (unit, *_codes(unit)):
        for function in functions.get((str(file), code.co_qualname, code.co_firstlineno), ()):
            function.__code__ = code


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def python_files(paths: tuple[str, ...]) -> list[str]:
    files = [
        file for path in paths for file in ([ROOT / path] if path.endswith(".py") else (ROOT / path).rglob("*.py"))
    ]
    return sorted(str(file.relative_to(ROOT)) for file in files if file.name != "__init__.py")


def equivalents() -> dict[tuple[str, str, str], str]:
    """Return the reasons for mutants that change no result, by module, function and change."""
    rows = [line.split("\t") for line in EQUIVALENT.read_text(encoding="utf-8").splitlines()[1:]]
    return {(module, function, change): why for module, function, change, why in rows}


# CPU seconds of the tests that pass, the tests of each executed line, and the ids of the collected tests.
_Measured = tuple[dict[str, float], dict[tuple[str, int], list[str]], list[str]]


class Judge:
    """A pytest plugin that runs the collected tests once, and then the tests of each mutant in a fork."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.part = PARTS[options.part]
        self.results: dict[str, Any] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        _prepare(session)
        began = time.monotonic()
        durations, lines = self._baseline(session)
        files = python_files(self.part.modules)
        every = [mutant for file in files for mutant in mutants_of(file)]
        judged = [mutant for mutant in every if lines.get((mutant.path, mutant.line))]
        not_run = {(mutant.path, mutant.line) for mutant in every} - {(mutant.path, mutant.line) for mutant in judged}
        print(
            f"{self.options.part}: {len(durations)} tests of {sum(durations.values()):.0f} s; {len(judged):,} of "
            f"{len(every):,} changes are on executed lines; {len(not_run)} lines with changes are not executed",
            flush=True,
        )
        if self.options.lines:
            print("\n".join(f"  not executed: {path}:{line}" for path, line in sorted(not_run)))
        if self.options.survivors:
            keys = {
                tuple(key)
                for key in json.loads(Path(self.options.survivors).read_text())[self.options.part]["survivors"]
            }
            chosen = [mutant for mutant in judged if mutant.key in keys]
        else:
            chosen = random.Random(self.options.seed).sample(judged, min(self.options.mutants, len(judged)))
        functions = _functions(files)
        in_last = {number for number, item in enumerate(session.items) if item.nodeid.startswith(self.part.last)}
        reasons = equivalents()
        ends: Counter[str] = Counter()
        survivors = []
        for number, mutant in enumerate(chosen):
            tests = _affordable(lines[mutant.path, mutant.line], durations, self.options.seconds)
            last = [test for test in lines[mutant.path, mutant.line] if self.part.last and test in in_last]
            tests += [test for test in last if test not in tests]
            end = "equivalent" if mutant.key in reasons else self._judge(session, mutant, tests, durations, functions)
            ends[end] += 1
            if end == "survived":
                survivors.append(mutant)
                print(f"  survived: {mutant.path}:{mutant.line} {mutant.function}: {mutant.change}", flush=True)
            if self.options.progress and number % 20 == 19:
                print(
                    f"  {number + 1} of {len(chosen)} after {time.monotonic() - began:.0f} s {dict(ends)}", flush=True
                )
        self.results = {
            "tests": len(durations),
            "changes": len(every),
            "executed": len(judged),
            "lines_not_executed": len(not_run),
            "mutants": len(chosen),
            **{name: ends[name] for name in ("failed", "time_limit", "equivalent", "survived")},
            "seconds": round(time.monotonic() - began),
            "survivors": [mutant.key for mutant in survivors],
        }
        return True

    def _baseline(self, session: pytest.Session) -> tuple[dict[int, float], dict[tuple[str, int], list[int]]]:
        """Run all tests in a fork; return the durations of passing tests, and the tests of each executed line."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(self.options.baseline or Path(folder) / "baseline")
            if file.exists():
                return _numbered(session, pickle.loads(file.read_bytes()))
            process = os.fork()
            if process == 0:
                _silence()
                with contextlib.suppress(BaseException):
                    file.write_bytes(pickle.dumps(_measure(session, python_files(self.part.modules))))
                os._exit(0)
            os.waitpid(process, 0)
            return _numbered(session, pickle.loads(file.read_bytes()))

    def _judge(
        self,
        session: pytest.Session,
        mutant: Mutant,
        tests: list[int],
        durations: dict[int, float],
        functions: dict[tuple[str, str, int], list[FunctionType]],
    ) -> str:
        process = os.fork()
        if process == 0:
            _silence()
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
            # CPU seconds, so that other load does not matter; coverage made the measured durations longer.
            cpu_s = int(5 + 3 * sum(durations[test] for test in tests))
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
            try:
                apply_mutant(mutant, functions)
                failed = not all(_passes(session, test, after) for test, after in pairwise([*tests, None]))
            except BaseException:
                failed = True
            os._exit(3 if failed else 0)
        limit = time.monotonic() + 60 + 60 * sum(durations[test] for test in tests)
        while True:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                return "survived" if status == 0 else "time_limit" if os.WIFSIGNALED(status) else "failed"
            if time.monotonic() > limit:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process, signal.SIGKILL)
                os.waitpid(process, 0)
                return "time_limit"
            time.sleep(0.005)


def _prepare(session: pytest.Session) -> None:
    """Let property tests report the first failure without shrinking it, imports use one process; load the engine."""
    from hypothesis import Phase, settings

    from purgatory_udf.backend import process_pool
    from purgatory_udf.rules import warm_up

    process_pool.cores = lambda: 1
    if "NUMBA_DISABLE_JIT" not in os.environ:
        warm_up.load()
    for item in session.items:
        function: Any = getattr(getattr(item, "obj", None), "__func__", getattr(item, "obj", None))
        given = getattr(function, "_hypothesis_internal_use_settings", None)
        if given is not None:
            function._hypothesis_internal_use_settings = settings(
                given, phases=(Phase.explicit, Phase.generate), database=None
            )
    gc.collect()
    gc.freeze()


def _numbered(
    session: pytest.Session, measured: _Measured
) -> tuple[dict[int, float], dict[tuple[str, int], list[int]]]:
    """Replace the ids of tests by their numbers in this session. Tests that are new since then judge every mutant."""
    durations, lines, known = measured
    numbers = {item.nodeid: number for number, item in enumerate(session.items)}
    new = [number for name, number in numbers.items() if name not in known]
    seconds = {numbers[test]: duration for test, duration in durations.items() if test in numbers}
    return (
        seconds | dict.fromkeys(new, _NEW_TEST_S),
        {line: [*(numbers[test] for test in tests if test in numbers), *new] for line, tests in lines.items()},
    )


def _silence() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def _measure(session: pytest.Session, files: list[str]) -> _Measured:
    """Run all tests."""
    import coverage

    measure = coverage.Coverage(data_file=None, include=[str(ROOT / file) for file in files])
    measure.start()
    durations = {}
    for number, after in pairwise([*range(len(session.items)), None]):
        assert number is not None
        name = session.items[number].nodeid
        measure.switch_context(name)
        began = time.process_time()
        if _passes(session, number, after):
            durations[name] = time.process_time() - began
    measure.stop()
    data = measure.get_data()
    lines: dict[tuple[str, int], list[str]] = {}
    for file in data.measured_files():
        for line, names in data.contexts_by_lineno(file).items():
            lines[str(Path(file).relative_to(ROOT)), line] = [name for name in names if name in durations]
    return durations, lines, [item.nodeid for item in session.items]


def _passes(session: pytest.Session, number: int | None, after: int | None) -> bool:
    """Run one test; return whether nothing failed. Fixtures that the test `after` uses remain set up."""
    assert number is not None
    item = session.items[number]
    failed = session.testsfailed
    following = None if after is None else session.items[after]
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    return session.testsfailed == failed


def _affordable(tests: list[int], durations: dict[int, float], seconds: float) -> list[int]:
    """Return the quickest tests that together take at most `seconds`, and at least one."""
    chosen: list[int] = []
    total = 0.0
    for test in sorted(tests, key=durations.__getitem__):
        total += durations[test]
        if chosen and (total > seconds or durations[test] > _LONGEST_TEST_S):
            break
        chosen.append(test)
    return chosen


def _functions(files: list[str]) -> dict[tuple[str, str, int], list[FunctionType]]:
    """Return the functions that exist in this process, by file, qualified name and first line."""
    gc.unfreeze()
    names = {str(ROOT / file) for file in files}
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename in names:
            code = function.__code__
            found.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(function)
    gc.freeze()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.mutation", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--mutants", type=int, default=220, help="number of mutants per part")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random sample")
    parser.add_argument("--results", metavar="FILE", help="JSON file for counts and survivors, one entry per part")
    parser.add_argument("--seconds", type=float, default=8, help="CPU time of the tests of a mutant, at most")
    parser.add_argument("--baseline", metavar="FILE", help="keep the measured tests of one part for the next call")
    parser.add_argument("--survivors", metavar="FILE", help="judge only the survivors in this file of results")
    parser.add_argument("--lines", action="store_true", help="list the lines that no test executes")
    parser.add_argument("--progress", action="store_true", help="print counts every 20 mutants")
    options = parser.parse_args()
    if options.part == "all":
        words = [word for word in sys.argv[1:] if word not in ("--part", "all")]
        command = [sys.executable, "-m", "tests.chaos.mutation", *words, "--part"]
        return max(subprocess.run([*command, name], check=False, cwd=ROOT).returncode for name in PARTS)
    os.chdir(ROOT)
    judge = Judge(options)
    part = PARTS[options.part]
    os.environ.update(part.environment)
    quick = "not nightly and not spark and not kafka and not browser"
    if not part.with_long:
        quick += " and not long"
    chosen = ["-m", quick, "-k", part.keywords, *part.tests]
    disabled = [word for name in ("cacheprovider", "timeout", "xdist", "terminal") for word in ("-p", f"no:{name}")]
    status = pytest.main(["--capture=no", "-o", "addopts=", "--strict-markers", *disabled, *chosen], plugins=[judge])
    if not judge.results:
        return int(status) or 1
    return report(options, judge.results)


def report(options: argparse.Namespace, results: dict[str, Any]) -> int:
    """Print the counts of a part, and add them to the file of results; return the exit status."""
    if options.results:
        file = Path(options.results)
        every = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(every | {options.part: results}, indent=1))
    caught = results["failed"] + results["time_limit"]
    share = caught / max(caught + results["survived"], 1)
    print(
        f"{options.part}: {results['mutants']} mutants, {caught} caught ({results['time_limit']} by the time limit), "
        f"{results['equivalent']} equivalent, {results['survived']} survived: {share:.1%} caught; "
        f"{results['seconds']} s",
        flush=True,
    )
    return 0 if share >= _TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
