"""Two recordings compared: which findings are new or heavier, and which usual waits have become longer.

A finding is unusual within its own recording. A wait that is longer all the time is usual there, so only the comparison
with another recording shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from purgatory_udf.answers.diagnosis.finding import Finding, culprit_of

if TYPE_CHECKING:
    from purgatory_udf.answers.diagnosis.diagnosis_run import Diagnosis, UsualWait

# A finding is heavier if it costs this many times as much waiting per minute of the recording.
_HEAVIER = 1.5
# A usual wait is longer if its 95th percentile is this many times as long, and this many milliseconds longer.
_LONGER, _LEAST_MS, _LEAST_PARTS = 2.0, 5, 20
# Waits for data and timers are set by clients.
_BY_DESIGN = ("no_data", "below_min_bytes", "initial_delay", "member_silent")


def heavier_findings(now: Diagnosis, then: Diagnosis) -> list[tuple[Finding, float]]:
    """Return the findings that are new or heavier, and how many times as heavy each is; infinity for new ones."""
    before: dict[tuple[str, str], float] = {}
    for finding in then.findings:
        key = (finding.kind, culprit_of(finding))
        before[key] = before.get(key, 0.0) + finding.excess_wait_s / then.minutes
    result = []
    for finding in now.findings:
        usual = before.get((finding.kind, culprit_of(finding)))
        rate = finding.excess_wait_s / now.minutes
        factor = float("inf") if usual is None else rate / max(usual, 1e-9)
        if factor >= _HEAVIER:
            result.append((finding, factor))
    return result


def longer_waits(now: Diagnosis, then: Diagnosis) -> list[tuple[UsualWait, UsualWait]]:
    """Return the kinds of waits that are longer now, as pairs of now and then; those with the most added first."""
    before = {wait.key: wait for wait in then.usual_waits}
    pairs = [(wait, before[wait.key]) for wait in now.usual_waits if wait.key in before]
    longer = [
        (wait, earlier)
        for wait, earlier in pairs
        if wait.cause not in _BY_DESIGN
        and min(wait.parts, earlier.parts) >= _LEAST_PARTS
        and wait.p95_ms >= max(_LONGER * earlier.p95_ms, earlier.p95_ms + _LEAST_MS)
    ]
    return sorted(longer, key=lambda pair: (pair[1].p95_ms - pair[0].p95_ms) * pair[0].parts)


def comparison(now: Diagnosis, then: Diagnosis) -> Iterator[str]:
    """Yield the lines that `diagnose --baseline` prints."""
    heavier, longer = heavier_findings(now, then), longer_waits(now, then)
    yield (
        f"Compared with {then.run_id}: {now.excess_wait_s / now.minutes:,.1f} s of excess waiting a minute, "
        f"{then.excess_wait_s / then.minutes:,.1f} s then"
    )
    if not heavier and not longer:
        yield "  nothing is worse than then"
    for finding, factor in heavier:
        more = "new" if factor == float("inf") else f"{factor:,.1f} times as heavy"
        yield f"  {more}: {finding.kind} by {culprit_of(finding)}, {finding.excess_wait_s:,.1f} s of excess waiting"
    for wait, earlier in longer:
        yield f"  longer: {wait.name}, 95th percentile {earlier.p95_ms:,.0f} ms then, {wait.p95_ms:,.0f} ms now"


def as_json(now: Diagnosis, then: Diagnosis) -> dict[str, Any]:
    """Return the comparison as the object `baseline` in the JSON of `diagnose`."""
    return {
        "run_id": then.run_id,
        "excess_wait_s": round(then.excess_wait_s, 3),
        "minutes": round(then.minutes, 3),
        "heavier": [
            {
                "kind": each.kind,
                "culprit": culprit_of(each),
                "factor": None if factor == float("inf") else round(factor, 2),
            }
            for each, factor in heavier_findings(now, then)
        ],
        "longer": [
            {"wait": wait.name, "p95_ms": wait.p95_ms, "baseline_p95_ms": earlier.p95_ms}
            for wait, earlier in longer_waits(now, then)
        ],
    }
