"""Transaction markers are appends without a producer."""

from __future__ import annotations

from purgatory_udf.prediction.recording import build_recording
from tests.prediction.imported import tables_of
from tests.sources.request_log.log_lines import fetch_line, parse
from tests.sources.request_log.test_transaction_markers import LINES, TWO_TRANSACTIONS
from tests.sources.request_log.translate import translate


def test_markers_are_appends_without_producer() -> None:
    follower = fetch_line(90, {0: 5}, replica=2, client="f", remote=0.0)
    recorded = build_recording(*tables_of(translate(parse([*LINES, follower]), TWO_TRANSACTIONS)))
    assert recorded.produces["client"].tolist() == []
    assert recorded.others["bytes"].tolist() == [78, 78, 78]
