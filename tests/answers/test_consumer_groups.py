"""Two groups of a recorded cluster (KIP-848), from the request log to what users see of their members."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from jobs import explain, fidelity, ingest, metrics, replay, what_if
from purgatory_udf.launch.backend_choice import open_local
from tests.support import recorded

FOLDER = "traces", "W9-kip848"
FIRST, SECOND = "DgX4Mu2mQviiBO4GxqoPnQ", "CdCFuPUfT2SaxKxfB2JL9g"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Group kC, in which kC-1 stops when it has to revoke partitions, and kM, which is a consumer group for a while."""
    folder = str(tmp_path_factory.mktemp("out"))
    logs = [str(recorded.data_file(*FOLDER, f"request-{broker}.log")) for broker in (1, 2)]
    metadata = str(recorded.data_file(*FOLDER, "cluster-metadata.txt"))
    assert ingest.main.status(["--from", "request-log", *logs, "--isr", metadata, "--out", folder], open_local) == 0
    assert replay.main.status(["--events", f"{folder}/events", "--out", folder], open_local) == 0
    return folder


def test_every_response_is_as_recorded(out: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fidelity.main.status(["--out", out], open_local) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["all"])
    assert line.split() == ["all", "208", "208", "100.0"]


def test_table_has_members_transitions(out: str) -> None:
    rows = DeltaTable(f"{out}/member_transitions").to_pyarrow_table().to_pylist()
    of_group = sorted((row for row in rows if row["group"] == "kC"), key=lambda row: row["at"])
    shown = [
        (
            f"{row['at']:%S.%f} {'first' if row['member_id'] == FIRST else 'second'}",
            f"{row['from_state']} {row['to_state']} {row['epoch']}",
            *("".join(str(part["partition"]) for part in row[name]) for name in ("assigned", "revoking", "held_by")),
        )
        for row in of_group
    ]
    assert shown[:6] == [
        ("03.829453 first", "None STABLE 2", "012345", "", ""),
        ("22.151590 second", "None UNRELEASED_PARTITIONS 3", "", "", "345"),
        ("22.248713 first", "STABLE UNREVOKED_PARTITIONS 2", "012", "345", ""),
        ("29.248000 first", "UNREVOKED_PARTITIONS REMOVED 2", "", "", ""),
        ("29.824364 second", "UNRELEASED_PARTITIONS STABLE 4", "012345", "", ""),
        ("38.147578 first", "None UNRELEASED_PARTITIONS 5", "", "", "345"),
    ]
    assert of_group[3]["reason"] == f"reconciliation of {FIRST} expired"
    assert {part["member_id"] for part in of_group[1]["held_by"]} == {FIRST}
    gone = sorted(
        (row for row in rows if row["group"] == "kM" and row["to_state"] == "REMOVED"), key=lambda row: row["at"]
    )
    assert gone[0]["reason"] == f"leave_group of {gone[0]['member_id']}"
    became_classic = {row["classic"]: row["reason"].partition(" ")[2] for row in gone[1:]}
    assert became_classic == dict.fromkeys((False, True), "left: the group became a classic one")


def test_metrics_show_who_held_partitions_back(out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kafka's server log has the expired reconciliation too: 7,000 ms after the first member had to revoke."""
    file = tmp_path / "replay.prom"
    assert metrics.main.status(["--out", out, "--prometheus", str(file)], open_local) == 0
    printed = capsys.readouterr().out
    rebalances = [
        line.split() for line in printed.split("consumer groups (KIP-848)\n")[1].split("\n\n")[0].splitlines()
    ]
    assert [row[:5] + row[7:8] for row in rebalances if row[0] == "kC"] == [
        ["kC", "1", "4", "04:53:22.151", "7,673", "Stable"],
        ["kC", "1", "5", "04:53:38.147", "1,488", "Stable"],
        ["kC", "1", "6", "04:54:30.165", "518", "Stable"],
    ]
    lines = printed.split("Members that held partitions back\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[:7] for line in lines[1:]] == [
        ["kC", "1", "kC-1", "3", "kC-2", "04:53:22.151", "7,097"],
        ["kM", "2", "kM-2", "1", "kM-3", "04:53:36.143", "1,332"],
        ["kM", "2", "kM-1", "1", "kM-3", "04:53:36.143", "1,326"],
        ["kC", "1", "kC-2", "3", "kC-1", "04:53:38.147", "865"],
    ]
    lines = printed.split("Groups\n")[1].split("\n\n")[0].splitlines()
    assert {tuple(line.split()) for line in lines[1:]} == {
        ("kC", "1", "consumer", "3", "3,226.3", "7,673", "0", "1", "2", "7,962"),
        ("kM", "2", "classic", "3", "3,714.0", "6,032", "0", "0", "0", "0"),
        ("kM", "2", "consumer", "2", "1,465.5", "1,685", "0", "0", "2", "2,658"),
    }
    samples = set(file.read_text().splitlines())
    of_group = 'broker="1",group="kC"'
    assert {
        f'purgatory_replay_rebalances_total{{{of_group},ended="Stable"}} 3',
        f'purgatory_replay_time_to_stable_seconds_sum{{{of_group},protocol="consumer"}} 9.679',
        f'purgatory_replay_time_to_stable_seconds_count{{{of_group},protocol="consumer"}} 3',
        f'purgatory_replay_sessions_lost_total{{{of_group},protocol="consumer"}} 0',
        f'purgatory_replay_rebalance_timeouts_total{{{of_group},protocol="consumer"}} 1',
        f'purgatory_replay_held_back_seconds_total{{{of_group},client="kC-1"}} 7.097',
    } <= samples


def test_longer_rebalance_timeout_keeps_member_longer(out: str, tmp_path: Path) -> None:
    words = ["--events", f"{out}/events", "--out", str(tmp_path), "--variant", "slow", "group.rebalance_timeout_ms=x2"]
    assert what_if.main.status(words, open_local) == 0
    rows = DeltaTable(f"{tmp_path}/what_if").to_pyarrow_table().to_pylist()
    waits = {
        (row["kind"], row["variant_completed_by"]): (row["baseline_wait_ms"], row["variant_wait_ms"])
        for row in rows
        if row["change"] == "waits longer"
    }
    assert waits == {("reconciliation", "timeout"): (7000, 14_000), ("session", "fenced"): (7000, 14_000)}


def test_explain_tells_why_member_was_fenced(out: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.main.status(["--out", out, "--group", "kC", "--member", "kC-1"], open_local) == 0
    all_six = "w9c-0, w9c-1, w9c-2, w9c-3, w9c-4 and 1 more"
    assert capsys.readouterr().out.splitlines() == [
        f"member {FIRST} (kC-1) of group kC at broker 1",
        f"  04:53:03.829453  joined, STABLE, member epoch 2; assigned {all_six}",
        "  04:53:22.248713  UNREVOKED_PARTITIONS, member epoch 2; has to revoke w9c-3, w9c-4, w9c-5",
        "  04:53:29.248000  fenced: it did not revoke its partitions within its rebalance timeout; member epoch 2",
        f"  04:53:38.147578  joined, UNRELEASED_PARTITIONS, member epoch 5; waits for w9c-3, w9c-4, w9c-5 of {SECOND}",
        "  04:53:39.635182  STABLE, member epoch 5; assigned w9c-3, w9c-4, w9c-5",
        "  04:54:30.683293  STABLE, member epoch 6; assigned w9c-0, w9c-1, w9c-2",
        "  04:54:31.887994  left; member epoch 6",
        "  held partitions back: kC-2 waited 7,097 ms for w9c-3, w9c-4, w9c-5 of kC-1 from 04:53:22.151590, "
        f"ended by: reconciliation of {FIRST} expired",
    ]
    assert explain.main.status(["--out", out, "--group", "kM", "--top", "5"], open_local) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[4].startswith("  04:53:36.143207  Reconciling, group epoch 2: ")
    assert lines[5].endswith(
        " (kM-3) joined, UNRELEASED_PARTITIONS, member epoch 2; waits for w9m-4 of kM-1-"
        "00f0df95-1dc6-490d-accd-d8a4cfe4f25c; waits for w9m-5 of kM-2-"
        "98b615ab-1b40-4ecc-b59a-9a903fa556f5"
    )
    assert lines[6] == "  … and more changes; use --top to show more than 5"
    assert explain.main.status(["--out", out, "--member", "unknown"], open_local) == 2
