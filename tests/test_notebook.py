"""The examples of notebook."""

from __future__ import annotations

from zenith_tune.notebook import html_table


def test_a_table_escapes_its_texts() -> None:
    assert (
        html_table(["layout"], [["<TP8>"]])
        == "<table><thead><tr><th>layout</th></tr></thead><tbody><tr><td>&lt;TP8&gt;</td></tr></tbody></table>"
    )
