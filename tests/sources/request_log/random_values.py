"""Random choices that are the same for each version of Python: only the values of `Random.random` are guaranteed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random
from typing import Any


class RandomValues:
    """Random choices of one seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def below(self, bound: int) -> int:
        return int(self._random.random() * bound)

    def one_in(self, number: float) -> bool:
        return self._random.random() * number < 1

    def of(self, *values: Any) -> Any:
        return values[self.below(len(values))]

    def weighted(self, choices: Sequence[tuple[Callable[..., Any], float]]) -> Callable[..., Any]:
        """Return one of the functions, with probabilities in proportion to their weights."""
        bounds = list(accumulate(weight for _, weight in choices))
        at = self._random.random() * bounds[-1]
        return next(choice for (choice, _), bound in zip(choices, bounds, strict=True) if at < bound)
