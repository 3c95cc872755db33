"""The HTML page of the comparison."""

from __future__ import annotations

from purgatory_udf.answers.fidelity_run import page
from purgatory_udf.common.console import Table


def test_page_is_complete_and_self_contained() -> None:
    tables = [Table("Answers", ("kind", "n"), [("a<b", 1_200), ("c", None)]), Table("Nothing", ("x",), [])]
    html = page("Fidelity of run & co", tables, "<svg>drawn</svg>")
    assert "<title>Fidelity of run &amp; co</title>" in html
    assert "<caption>Answers</caption>" in html
    assert '<td>a&lt;b</td><td class="number">1,200</td>' in html
    assert "<td>c</td><td>–</td>" in html
    assert "Nothing" not in html
    assert "<svg>drawn</svg>" in html
    assert "://" not in html
    assert "default-src 'none'" in html
