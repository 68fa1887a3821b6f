"""What notebooks show: tables as HTML, and as data frames."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zenith_tune.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd


def data_frame(rows: Iterable[Mapping[str, Any] | Sequence[Any]], columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Return rows as a data frame of pandas, which is imported now."""
    try:
        import pandas
    except ImportError as error:
        hint = "pip install 'zenith-tune[pandas]'"
        raise UsageError("to_dataframe needs pandas, which is not installed", hint=hint) from error
    return pandas.DataFrame(list(rows), columns=columns)


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "") -> str:
    """Return a table as HTML, with every text escaped."""
    head = f"<thead>{_row(columns, 'th')}</thead>"
    body = f"<tbody>{''.join(_row(row, 'td') for row in rows)}</tbody>"
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{title}{head}{body}</table>"


def _row(cells: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"
