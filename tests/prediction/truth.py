"""Finds predicted figures that differ from recorded ones by more than the tolerance."""

from __future__ import annotations

from purgatory_udf.prediction.fit_check import Figures, is_within_tolerance

JUDGED = ("per_s", "expired", "p50_ms", "p95_ms")


def missed(simulated: Figures, recorded: Figures) -> list[str]:
    """Return the figures out of tolerance, with both values."""
    return [
        f"{who} {name}: {simulated[who][api][name]}, not {figures[name]}"
        for who, apis in recorded.items()
        for api, figures in apis.items()
        for name in JUDGED
        if not is_within_tolerance(name, api, simulated[who][api][name], figures[name])
    ]
