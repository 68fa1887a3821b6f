"""The report's page with the script that keeps it up to date, and the page that says why there is none."""

from __future__ import annotations

import html
import json
from functools import cache
from importlib import resources
from typing import Any

from zenith_tune.report.html.page import render_page

Json = dict[str, Any]


def live_page(data: Json, server: Json) -> str:
    """Return the page of a study; `server` is what its script must know to ask for more."""
    return render_page({**data, "server": server}, more_script=_script(), connect="'self'")


def problem_page(problem: str) -> str:
    """Return a page that says why a study cannot be shown, and looks again by itself."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>zenithtune</title></head>'
        f'<body><main><h1>The study cannot be shown</h1><p role="alert">{html.escape(problem)}</p>'
        "<p>This page looks again every five seconds.</p></main></body></html>\n"
    )


@cache
def _script() -> str:
    return f"const LIVE_STYLE = {json.dumps(_asset('live.css'))};\n{_asset('live.js')}"


def _asset(name: str) -> str:
    return resources.files("zenith_tune.serve").joinpath("assets", name).read_text(encoding="utf-8")
