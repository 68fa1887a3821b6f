"""One HTML file that needs nothing but a browser: template, style, script and data in one, and no network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from functools import cache
from importlib import resources
from string import Template

from zenith_tune.study.files import Json

SCRIPTS = (
    *("dom", "zoom", "chart", "study_plots", "memory_plot", "space_plots", "parallel_plot", "trial_plots"),
    *("layout_plots", "table", "study_headline", "study_page", "plan_page", "compare_page", "list_page"),
    *("planner_page", "app"),
)
"""In the order in which they run, all in one scope."""
_IN_JSON = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def render_page(data: Json, *, more_script: str = "", connect: str = "'none'") -> str:
    """Return the page that shows `data`, of the kind that it names.

    A server that shows a study as it runs adds a script of its own, which calls `zenithtune.update(data)`, and says by
    `connect` where that may ask.
    """
    script = f"{_script()}\n{more_script}" if more_script else _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()  # a browser runs it and no other
    policy = (
        f"default-src 'none'; img-src data:; connect-src {connect}; base-uri 'none'; form-action 'none'; "
        f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )
    return Template(_asset("page.html")).substitute(
        policy=html.escape(policy, quote=False),
        title=html.escape(str(data["title"])),
        style=_asset("style.css"),
        script=script,
        data=data_text(data),
    )


def data_text(data: Json) -> str:
    """Return data as JSON that no HTML parser finds anything in."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), default=str)
    for character, escape in _IN_JSON.items():
        text = text.replace(character, escape)
    return text


@cache
def _script() -> str:
    lines = (line.strip() for name in SCRIPTS for line in _asset(f"{name}.js").splitlines())
    code = "\n".join(line for line in lines if line and not line.startswith("//"))  # a fifth less to send
    return f'(() => {{\n"use strict";\n{code}\n}})();'


@cache
def _asset(name: str) -> str:
    return resources.files("zenith_tune.report.html").joinpath("assets", name).read_text(encoding="utf-8")
