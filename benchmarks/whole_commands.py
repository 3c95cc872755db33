"""Whole commands as a user enters them: seconds, CPU seconds and peak memory, including their start.

    python -m benchmarks.whole_commands                                 # 2,000,000 events
    python -m benchmarks.whole_commands --events 20000000 --work /tmp/large --json now.json
    python -m benchmarks.whole_commands --runs 5 --only demo small

The commands are the demo, a replay of the sample from JSON Lines, and for a trace of the open loop (1,000 partitions,
fetches of four partitions, 40 % of the requests from consumer groups) its simulation, its replay, and `metrics`,
`audit` and `report` over the tables. Medians of the runs are printed; the simulation and the large replay run once.
Memory is the largest sum over a command's processes, among which shared memory is divided (Linux only).
"""

from __future__ import annotations

import argparse
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

from benchmarks import saved_figures
from benchmarks.saved_figures import Figures

ROOT = Path(__file__).resolve().parents[1]
SUBMIT = str(ROOT / "spark-submit.sh")
SAMPLE = str(ROOT / "conf" / "sample" / "trace.jsonl")
# Seconds between two readings of a command's memory.
_INTERVAL = 0.2


@dataclass(frozen=True)
class Measurement:
    """Seconds, CPU seconds and peak memory in gigabytes of a command."""

    seconds: float
    cpu: float
    gigabytes: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the commands and print one line each."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--events", type=int, default=2_000_000, help="events of the open loop [default: 2000000]")
    options.add_argument("--work", type=Path, help="folder for the tables, which are kept [default: a temporary one]")
    options.add_argument("--runs", type=int, default=3, help="runs of each; medians are printed [default: 3]")
    options.add_argument(
        "--only", nargs="+", choices=("demo", "small", "large"), default=("demo", "small", "large"), metavar="PART"
    )
    saved_figures.add_options(options)
    given = options.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        work = given.work or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        repeated = {}
        if "demo" in given.only:
            repeated["demo"] = [SUBMIT]
        if "small" in given.only:
            repeated["replay of the sample"] = [
                *(SUBMIT, "replay", "--trace", SAMPLE, "--out", str(work / "small"), "--overwrite")
            ]
        figures: Figures = {}
        if "large" in given.only:
            out = str(work / "large")
            simulate = [SUBMIT, "simulate", "--open-loop", "--events", str(given.events), "--out", out, "--overwrite"]
            replay = [SUBMIT, "replay", "--events", f"{out}/events", "--out", out, "--overwrite"]
            for name, words in (("simulate", simulate), ("replay", replay)):
                figures[f"{name}, {given.events:,} events"] = show(name, [run(words, work)])
            repeated |= {name: [SUBMIT, name, "--out", out] for name in ("metrics", "audit", "report")}
        taken: dict[str, list[Measurement]] = {name: [] for name in repeated}
        for _ in range(given.runs):
            for name, words in repeated.items():
                taken[name].append(run(words, work))
        figures |= {name: show(name, runs) for name, runs in taken.items()}
    saved_figures.finish(figures, given, ("seconds", "cpu", "gigabytes"))
    return 0


def run(command: Sequence[str], work: Path) -> Measurement:
    """Run a command to its end, and return what it took; its output goes to a file of `work`."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), monotonic()
    log = work / "output.txt"
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(command, cwd=work, stdout=output, stderr=subprocess.STDOUT)
        ended, peak = threading.Event(), [0]
        watcher = threading.Thread(target=_watch_memory, args=(process.pid, ended, peak))
        watcher.start()
        status = process.wait()
        ended.set()
        watcher.join()
    if status:
        raise SystemExit(f"{' '.join(command)}: exit status {status}\n{log.read_text(encoding='utf-8')}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measurement(monotonic() - began, cpu, peak[0] / 1e9)


def _watch_memory(root: int, ended: threading.Event, peak: list[int]) -> None:
    """Keep the largest sum of the bytes of the process and its descendants in `peak` until `ended` is set."""
    known: set[int] = set()
    while not ended.wait(_INTERVAL):
        total, found, waiting = 0, set(), [root]
        while waiting:
            pid = waiting.pop()
            found.add(pid)
            with suppress(OSError):
                # A process that was just forked shares all memory with its parent.
                share = re.search(r"^Pss: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
                # Until it executes another program, a JVM's child may use the memory of the JVM, which counts twice.
                total += 1024 * int(share[1]) if share and pid in known else 0
                for children in Path(f"/proc/{pid}/task").glob("*/children"):
                    waiting += map(int, children.read_text().split())
        known = found
        peak[0] = max(peak[0], total)


def show(name: str, runs: Sequence[Measurement]) -> dict[str, float]:
    """Print the medians of the runs of a command, and return them."""
    median = Measurement(
        statistics.median(each.seconds for each in runs),
        statistics.median(each.cpu for each in runs),
        statistics.median(each.gigabytes for each in runs),
    )
    print(f"{name}: {median.seconds:.1f} s, CPU {median.cpu:.1f} s, {median.gigabytes:.2f} GB", flush=True)
    return asdict(median)


if __name__ == "__main__":
    sys.exit(main())
