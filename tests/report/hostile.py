"""A study whose every text tries to be something else: markup, script, formulas, escapes, turned direction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.report.studies import Recorded, header, ok
from zenith_tune.study.parameters import CategoricalParameter, Parameter
from zenith_tune.study.trial import Outcome, Trial

SCRIPT = "<script>window.pwned=1</script>"
IMAGE = "<img src=x onerror='window.pwned=1'>"
CLOSING = "</script></style></textarea><svg onload=window.pwned=1>"
QUOTES = "\"'`${window.pwned=1}"
TURNED = "safe\u202egnp.exe\u2066"
LONG = "x" * 10_000
FORMULA = '=HYPERLINK("http://evil.example")'
LOG = f"\x1b[31mred\x1b[0m {SCRIPT}\n{CLOSING} {QUOTES}\n{TURNED}\n{LONG}\n<!-- \u2028 -->\n"


def write_hostile(root: Path) -> Recorded:
    """Write the study into `root`; its name is what a database would hold, not what a tuner would take."""
    about = header(
        root.parent,
        preset=IMAGE,
        args={SCRIPT: CLOSING, "long": LONG},
        command=f"echo {CLOSING} {QUOTES} {TURNED}",
        evaluator=IMAGE,
    )
    study = Recorded(root, "hostile", about)
    points = [{SCRIPT: IMAGE, "a": QUOTES}, {SCRIPT: CLOSING, "a": TURNED}, {SCRIPT: LONG, "a": FORMULA}]
    space: dict[str, Parameter] = {
        SCRIPT: CategoricalParameter([IMAGE, CLOSING, LONG, 1, 2]),
        "a": CategoricalParameter([QUOTES, TURNED, FORMULA, 2, 3]),
    }
    for index, point in enumerate(points):
        trial = replace(ok(1, 1, 1, 10.0 + index, why=IMAGE), params=point, unit=SCRIPT, command=f"{CLOSING} {index}")
        study.finish(study.start(trial, LOG, space), trial)
    broken = Trial(params={SCRIPT: 1, "a": 2}, outcome=Outcome.ERROR, failure=IMAGE, cause=f"{SCRIPT} {CLOSING} {LONG}")
    study.finish(study.start(broken, LOG, space), broken)
    study.start(Trial(params={SCRIPT: 2, "a": 3}, outcome=Outcome.OK, why=SCRIPT), LOG, space)
    study.record.close()
    return study
