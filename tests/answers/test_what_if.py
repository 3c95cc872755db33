"""What-if: operations with other outcomes under other settings, compared with counts of both replays by DuckDB."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from jobs import what_if as what_if_job
from purgatory_udf.answers import what_if as what_if_module
from purgatory_udf.answers.variants import CERTAINTY, Variant, variants
from purgatory_udf.answers.what_if import HELD_FIXED, WhatIf, what_if
from purgatory_udf.common.configuration import load_config
from purgatory_udf.common.errors import NeedsSparkError, UserError
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.storage.output_folder import output_lock
from purgatory_udf.streaming.run_resumption import ReplayOptions
from tests.answers.pages import Page, marks
from tests.support.delta_lake import Lake
from tests.support.outcome_folder import sample_with_group, write_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from purgatory_udf.backend.backend import Session

SURE, CLIENT, FOLLOWER = CERTAINTY.values()
HALF = ["half", "produce.timeout_ms=x0.5", "fetch.max_wait_ms=x0.5", "fetch.follower.max_wait_ms=x0.5"]
# Different settings with the same effect: every recorded value times 1.
UNCHANGED = ["unchanged", "produce.timeout_ms=x1"]
SIDES = ("baseline", "half")
ENDS = ("completions", "expirations", "watches", "purgatory_gauges")
GROUPED = ["grouped", "grouping=shard"]


@pytest.fixture(scope="module")
def replayed(session: Session) -> list[ReplayOptions]:
    """The replays of the fixture `comparison`, in order."""
    return []


@pytest.fixture(scope="module")
def comparison(session: Session, story_folder: Path, replayed: list[ReplayOptions]) -> WhatIf:
    """The story under three variants, replayed by the reference implementation, which is faster than Spark."""

    def replay(_: Session, options: ReplayOptions) -> None:
        replayed.append(options)
        write_folder(Path(options.out), sample_with_group(), options.config, options.events)

    # Variants that were replayed with the other session.
    shutil.rmtree(story_folder / "_what_if", ignore_errors=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(what_if_module, "run_replay", replay)
        chosen = variants([*HALF, *UNCHANGED, *GROUPED], None, [])
        page = story_folder / "what-if.html"
        return what_if(session, str(story_folder / "events"), str(story_folder), chosen, page)


def test_existing_and_equivalent_replays_are_reused(
    comparison: WhatIf, replayed: list[ReplayOptions], story_folder: Path
) -> None:
    out = str(story_folder)
    assert comparison.folders == {
        "baseline": out,
        "half": f"{out}/_what_if/half",
        "unchanged": f"{out}/_what_if/unchanged",
        "grouped": out,
    }
    assert [(each.out, each.overwrite) for each in replayed] == [
        (f"{out}/_what_if/half", False),
        (f"{out}/_what_if/unchanged", False),
    ]


def test_differences_are_matched_by_operation(comparison: WhatIf, story_folder: Path) -> None:
    here, there = Lake(story_folder), Lake(story_folder / "_what_if" / "half")
    ends = "SELECT operation_id, {} FROM {}"
    what = "wait_ms, completed_by, bytes"

    def all_ends(lake: Lake) -> dict[int, tuple[Any, ...]]:
        tables = (("completions", "false"), ("expirations", "true"))
        rows = [row for table, expired in tables for row in lake.rows(ends.format(f"{expired}, {what}", table))]
        return {row[0]: row[1:] for row in rows}

    before, after = all_ends(here), all_ends(there)
    differ = {number for number in before.keys() | after.keys() if before.get(number) != after.get(number)}
    table = here.rows("SELECT operation_id, baseline_expired, variant_expired, change FROM what_if")
    assert len(table) == len(differ) > 100
    assert {row[0] for row in table} == differ
    both = before.keys() & after.keys()
    turned = Counter(row[3] for row in table if row[0] in both and row[1] != row[2])
    assert turned["expiration appears"] == sum(after[number][0] and not before[number][0] for number in both) > 0
    assert turned["expiration vanishes"] == sum(before[number][0] and not after[number][0] for number in both)
    assert turned.total() == turned["expiration appears"] + turned["expiration vanishes"]
    assert here.rows("SELECT DISTINCT variant FROM what_if") == [("half",)]


def test_equivalent_variant_has_no_difference(comparison: WhatIf) -> None:
    lines = list(comparison.lines())
    assert "unchanged: nothing changes." in lines[:3] and lines[4] == HELD_FIXED
    half = next(line for line in lines if line.startswith("half: "))
    assert re.fullmatch(
        r"half: \d+ instead of \d+ operations expire, [\d.]+ s less waiting in all; \d+ of [\d,]+ operations change\.",
        half,
    )
    operations = half.split("; ")[1].split(" of ")[1].split()[0]
    assert f"unchanged: no difference in any of {operations} operations" in lines
    assert f"grouped: no difference in any of {operations} operations" in lines


def test_certain_outcomes_precede_changed_responses(comparison: WhatIf, story_folder: Path) -> None:
    """The expected counts are computed from the tables of both folders in Python."""
    here, there = Lake(story_folder), Lake(story_folder / "_what_if" / "half")
    columns = "operation_id, kind, broker, coalesce(client_id, ''), epoch_ms(started_at), wait_ms, completed_by, bytes"

    def all_ends(lake: Lake) -> dict[int, tuple[Any, ...]]:
        return {
            row[0]: row[1:]
            for table in ("completions", "expirations")
            for row in lake.rows(f"SELECT {columns} FROM {table}")
        }

    followers = {row[0] for row in here.rows("SELECT seq FROM events WHERE type = 'fetch' AND replica_id >= 0")}
    before, after = all_ends(here), all_ends(there)
    first: dict[Any, int] = {}
    for number in before.keys() | after.keys():
        sides = [side[number] for side in (before, after) if number in side]
        if len(sides) == 2 and sides[0][4] == sides[1][4]:
            continue
        ended = sides[0][3] + min(side[4] for side in sides)
        for recipient in [sides[0][1:3], *([sides[0][1]] if number in followers else [])]:
            first[recipient] = min(ended, first.get(recipient, ended))
    counts: Counter[tuple[str, str, str]] = Counter()
    for number in before.keys() | after.keys():
        sides = [side[number] for side in (before, after) if number in side]
        kind, broker, client, started = sides[0][:4]
        ended = started + min(side[4] for side in sides)
        reason = SURE
        if started >= first.get((broker, client), started + 1):
            reason = CLIENT
        elif number not in followers and ended > first.get(broker, ended):
            reason = FOLLOWER
        counts[kind, "all", reason] += 1
        counts[kind, "different", reason] += before.get(number) != after.get(number)
    (table,) = [each for each in comparison.ends if each.title.startswith("half: certainty")]
    printed = {
        (row[0], row[1], reason): row[2 + at]
        for row in table.rows
        for at, reason in enumerate((SURE, CLIENT, FOLLOWER))
    }
    assert {key: n for key, n in printed.items() if n} == {key: n for key, n in counts.items() if n}
    assert {reason for (_, _, reason), n in counts.items() if n} == {SURE, CLIENT, FOLLOWER}


def test_page_has_charts_of_variants(comparison: WhatIf, story_folder: Path) -> None:
    page = Page((story_folder / "what-if.html").read_text(encoding="utf-8"))
    above = [text.strip() for text in page.texts[: page.texts.index(comparison.ends[0].title)]]
    assert [text for text in above if text in (HELD_FIXED, *comparison.headlines)] == [
        *comparison.headlines,
        HELD_FIXED,
    ]
    assert page.figures == list(page.specs) == ["expired", "waits", "sizes"]
    assert {name: marks(spec) > 5 for name, spec in page.specs.items()} == dict.fromkeys(page.specs, True)
    assert any(HELD_FIXED in text for text in page.texts)


def test_variant_overrides_baseline_settings(tmp_path: Path) -> None:
    file = tmp_path / "patient.yaml"
    file.write_text("fetch:\n  max_wait_ms: 900\n", encoding="utf-8")
    chosen = variants(["a", "fetch.min_bytes=10", "b", str(file)], None, ["produce.timeout_ms=700"])
    common = ["produce.timeout_ms=700"]
    assert chosen == [
        Variant("baseline", load_config(None, common)),
        Variant("a", load_config(None, [*common, "fetch.min_bytes=10"])),
        Variant("b", load_config(None, [*common, "fetch.max_wait_ms=900"])),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["half", "produce.timeout=3"], "--variant half: --set produce.timeout=3: produce.timeout: unknown key"),
        (["produce.timeout_ms=3"], "--variant produce.timeout_ms=3: a variant's name comes first"),
        (["half"], "--variant half: has no settings"),
        (["baseline", "drain=true"], "--variant baseline: expected a name of letters"),
        (["../x", "drain=true"], r"--variant \.\./x: expected a name of letters"),
        (["a", "drain=true", "a", "drain=false"], "--variant a: duplicate name; choose another"),
        (["a", "no-such.yaml"], "--variant a: no-such.yaml: cannot be read"),
    ],
)
def test_invalid_variant_is_user_error(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        variants(words, None, [])


def _written(out: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the table `what_if` and of the tables of the replays, except of `runs`, which has times."""
    tables = [out / name for name in ("what_if", *(f"_what_if/{side}/{end}" for side in SIDES for end in ENDS))]
    return {
        table.relative_to(out).as_posix(): sorted(DeltaTable(str(table)).to_pyarrow_table().to_pylist(), key=repr)
        for table in tables
    }


@pytest.mark.nightly
@pytest.mark.spark
def test_results_without_spark_equal_those_of_spark(
    spark: SparkSession, story_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = []
    for open_backend in (None, open_local):
        out = tmp_path / "out"
        shutil.rmtree(out, ignore_errors=True)
        words = ["--events", f"{story_folder}/events", "--out", str(out)]
        assert what_if_job.main.status([*words, "--variant", *HALF], open_backend) == 0
        page = (out / "what-if.html").read_text(encoding="utf-8")
        results.append((capsys.readouterr().out, page, _written(out)))
    by_spark, local = results
    assert "operations have another outcome" in by_spark[0] and all(by_spark[2].values())
    assert local == by_spark


def test_variant_that_needs_spark_stops_before_first_replay(story_folder: Path, tmp_path: Path) -> None:
    words = ["--events", f"{story_folder}/events", "--out", str(tmp_path / "out")]
    for name, *settings in (HALF, ["small", "produce.timeout_ms=x2", "batch_events=10"]):
        words += ["--variant", name, *settings]
    with pytest.raises(NeedsSparkError, match="more than one batch"):
        what_if_job.main.status(words, open_local)
    assert [file.name for file in (tmp_path / "out").iterdir()] == [".what-if.lock"]


def test_other_table_is_no_table_of_events(
    story_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--events", f"{story_folder}/completions", "--out", str(tmp_path / "out"), "--variant", *HALF]
    assert what_if_job.main.status(words, open_local) == 2
    error = "not a table of events: it has no column seq"
    assert capsys.readouterr().err == f"what-if: {story_folder}/completions: {error}\n"


@pytest.mark.parametrize(("most", "inputs"), [(1 << 30, 1), (1, 0)])
def test_large_trace_needs_spark(
    most: int, inputs: int, story_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(what_if_job, "REPLAYED_BYTES", most)
    words = ["--events", f"{story_folder}/events", "--out", str(tmp_path / "out"), "--variant", *HALF]
    assert what_if_job.main.check(words) is None
    assert len(what_if_job.main.inputs) == inputs


def test_folder_in_use_or_not_writable_is_reported(
    story_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--events", str(story_folder / "events")], ["--closed-loop", "steady", "--duration", "1"]):
        command = [*words, "--variant", "half", "produce.timeout_ms=x0.5", "--out"]
        assert what_if_job.main.status([*command, "/proc/compared"], open_local) == 2
        assert capsys.readouterr().err.startswith("what-if: /proc/compared: cannot be written: ")
        with output_lock(str(tmp_path), "what-if"):
            assert what_if_job.main.status([*command, str(tmp_path)], open_local) == 2
        assert "wait until that what-if has finished" in capsys.readouterr().err
