"""A small table for notebooks, which show an object by its HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "") -> str:
    """Return a table as HTML, with every text escaped.

    >>> html_table(["layout"], [["<TP8>"]])
    '<table><thead><tr><th>layout</th></tr></thead><tbody><tr><td>&lt;TP8&gt;</td></tr></tbody></table>'
    """
    head = f"<thead>{_row(columns, 'th')}</thead>"
    body = f"<tbody>{''.join(_row(row, 'td') for row in rows)}</tbody>"
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{title}{head}{body}</table>"


def _row(cells: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"
