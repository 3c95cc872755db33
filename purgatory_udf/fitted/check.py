"""The fit's own check: the unchanged scenario, simulated, beside what was recorded, client by client.

What it does not reproduce it says, and a prediction for that client is not to be trusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from purgatory_udf.fitted.diary import PRODUCE
from purgatory_udf.fitted.figures import NAMES, Figures
from purgatory_udf.printing import Cell, Table
from purgatory_udf.simulate.fitted import Fitted

# What is as near as two recordings of the same cluster are: shares by their difference, rates by a share, times by a
# share or these milliseconds.
SHARE, RATE, FETCH_TIME, PRODUCE_TIME, TIME_MS = 0.05, 0.10, 0.15, 0.20, 5.0
JUDGED = ("per_s", "waited", "expired", "p50_ms", "p95_ms")


@dataclass(frozen=True)
class Checked:
    """`far`: which figures of whom, by (client, api), are not reproduced; `doubts`: other reasons, by client."""

    recorded: Figures
    simulated: Figures
    far: dict[tuple[str, str], tuple[str, ...]]
    doubts: Mapping[str, str]

    @property
    def judged(self) -> int:
        return sum(len(JUDGED) for apis in self.recorded.values() for _ in apis)

    @property
    def near(self) -> int:
        return self.judged - sum(map(len, self.far.values()))

    def trusts(self, who: str) -> bool:
        return who not in self.doubts and not any(client == who for client, _ in self.far)

    def reasons(self) -> list[str]:
        """Why whose prediction is not to be trusted."""
        said = [f"{who}: {', '.join(names)} of its {api} not reproduced" for (who, api), names in self.far.items()]
        return [*said, *(f"{who}: {why}" for who, why in self.doubts.items())]

    def table(self) -> Table:
        rows: list[tuple[Cell, ...]] = []
        for who, apis in self.recorded.items():
            for api, recorded in apis.items():
                simulated = self.simulated.get(who, {}).get(api)
                far = self.far.get((who, api), ())
                verdict = "yes" if self.trusts(who) else f"no: {', '.join(far)}" if far else "no"
                for source, figures in (("recorded", recorded), ("simulated", simulated)):
                    values = [None if figures is None else round(figures[name], 3) for name in NAMES]
                    rows.append((who, api, source, *values, verdict if source == "simulated" else ""))
        return Table("Recorded and simulated", ("who", "api", "", *NAMES, "to be trusted"), rows)

    def lines(self) -> list[str]:
        said = [f"{self.near} of {self.judged} figures are reproduced"]
        reasons = self.reasons()
        if reasons:
            said += ["Not to be trusted:", *(f"  {reason}" for reason in reasons)]
        return [*self.table().lines(), "", *said]

    def verdict(self) -> list[str]:
        """How far a prediction can be trusted."""
        reasons = self.reasons()
        doubts = ["Not to be trusted, for the unchanged scenario misses it:", *(f"  {reason}" for reason in reasons)]
        near = f"The unchanged scenario reproduces {self.near} of {self.judged} recorded figures"
        return [near, *(doubts if reasons else [])]


def check(fitted: Fitted, simulated: Figures) -> Checked:
    recorded: Figures = {
        who: {api: figures.model_dump() for api, figures in apis.items()} for who, apis in fitted.recorded.items()
    }
    far = {}
    for who, apis in recorded.items():
        for api, figures in apis.items():
            played = simulated.get(who, {}).get(api)
            missed = tuple(
                name for name in JUDGED if played is None or not is_near(name, api, played[name], figures[name])
            )
            if missed:
                far[who, api] = missed
    doubts = {"follower" if client in _followers(fitted) else client: why for client, why in fitted.doubts.items()}
    return Checked(recorded, simulated, far, doubts)


def is_near(name: str, api: str, figure: float, expected: float) -> bool:
    """Whether a figure is as near to another as two recordings' figures are."""
    error = abs(figure - expected)
    if name in ("waited", "expired"):
        return error <= SHARE
    if name.endswith("_ms"):
        return error <= max(TIME_MS, (PRODUCE_TIME if api == PRODUCE else FETCH_TIME) * expected)
    return error <= RATE * expected


def _followers(fitted: Fitted) -> set[str]:
    return {client for client, reader in fitted.readers.items() if reader.replica >= 0}
