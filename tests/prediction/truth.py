"""Which predicted figures come as near to what happened as two recordings of the same cluster come to each other."""

from __future__ import annotations

from purgatory_udf.prediction.fit_check import Figures, is_within_tolerance

JUDGED = ("per_s", "expired", "p50_ms", "p95_ms")


def missed(simulated: Figures, happened: Figures) -> list[str]:
    """Those that do not."""
    return [
        f"{who} {name}: {simulated[who][api][name]}, not {figures[name]}"
        for who, apis in happened.items()
        for api, figures in apis.items()
        for name in JUDGED
        if not is_within_tolerance(name, api, simulated[who][api][name], figures[name])
    ]
