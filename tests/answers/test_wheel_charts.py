"""The steps and charts of the notebook on the timing wheel."""

from __future__ import annotations

from purgatory_udf.answers.charts import draw_lists, draw_wheel, list_steps, wheel_steps


def test_task_moves_to_finer_wheels_until_deadline() -> None:
    steps = wheel_steps([1404], start_ms=1003)
    assert steps.to_records(index=False).tolist() == [
        (1404, 1003, 1200),
        (1404, 1200, 1400),
        (1404, 1400, 1404),
        (1404, 1404, 1404),
    ]
    assert draw_wheel(steps).to_dict()["layer"]


def test_ended_operations_stay_listed_until_purge() -> None:
    steps = list_steps(operations=40, keys=3, purge_interval=20)
    ms, size, delayed, purged = (steps[name].tolist() for name in steps.columns)
    assert [(at, gone) for at, gone in zip(ms, purged, strict=True) if gone] == [(240, 63)]
    assert (size[23], delayed[23], size[24], delayed[24]) == (72, 3, 12, 4)
    assert draw_lists(steps).to_dict()["layer"]
