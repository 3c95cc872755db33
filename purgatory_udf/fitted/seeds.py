"""Many plays at once, each with a seed of its own, on all cores that this process may use."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from purgatory_udf.fitted.figures import Figures, medians, ranges, simulated_figures
from purgatory_udf.fitted.plan import ClusterPlan
from purgatory_udf.fitted.play import play
from purgatory_udf.fitted.side_effects import Effects, effects

SEEDS = 5
# So many seconds of a reader's fetches are played before another process would have begun.
BRIEF_S = 500


@dataclass(frozen=True)
class PlayedSeeds:
    """What one plan came to, under each seed."""

    figures: Sequence[Figures]
    effects: Sequence[Effects]

    @property
    def median(self) -> Figures:
        return medians(self.figures)

    @property
    def range(self) -> tuple[Figures, Figures]:
        return ranges(self.figures)

    @property
    def median_effects(self) -> Effects:
        names = self.effects[0]
        return {
            name: sorted(effect.get(name, 0.0) for effect in self.effects)[len(self.effects) // 2] for name in names
        }


def play_all(
    plans: Mapping[str, ClusterPlan], seeds: int = SEEDS, said: Callable[[str], None] | None = None
) -> dict[str, PlayedSeeds]:
    """Each plan under the seeds 1, 2, …: the same plan and seed play the same, in whatever process."""
    tasks = [(name, plan, seed) for name, plan in plans.items() for seed in range(1, seeds + 1)]
    workers = min(len(tasks), _cores())
    played: dict[str, list[tuple[Figures, Effects]]] = {name: [] for name in plans}
    length_s = sum(plan.duration_ms / 1000 * len(plan.readers) for _, plan, _ in tasks)
    if workers == 1 or length_s < BRIEF_S:
        for name, plan, seed in tasks:
            played[name].append(play_once(plan, seed))
    else:
        # A child that is forked from a process with a JVM's threads may hang: it is started afresh.
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            waiting = [(name, pool.submit(play_once, plan, seed)) for name, plan, seed in tasks]
            for name, future in waiting:
                played[name].append(future.result())
                if said and len(played[name]) == seeds:
                    said(f"played {name}")
    return {
        name: PlayedSeeds([of_seed[0] for of_seed in mine], [of_seed[1] for of_seed in mine])
        for name, mine in played.items()
    }


def play_once(plan: ClusterPlan, seed: int) -> tuple[Figures, Effects]:
    diary = play(plan, seed)
    seconds = plan.duration_ms / 1000
    return simulated_figures(diary, seconds), effects(diary, seconds)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
