"""The planner's page, on which a plan is asked for, and the answers: those of `zenithtune plan --json`."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache

from zenith_tune import __version__
from zenith_tune.describe.cluster_catalog import load_cluster, names_catalog_cluster
from zenith_tune.describe.gpu_catalog import known_gpus, public_price
from zenith_tune.describe.model_catalog import known_models
from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.presets.formats import FORMATS
from zenith_tune.report.html.page import render_page
from zenith_tune.serve.access import Access
from zenith_tune.serve.answer import HTML, JSON, Answer
from zenith_tune.serve.routes import Request, Routes, Watching
from zenith_tune.serve.study_index import StudyIndex

OPTIONS = ("model", "cluster", "gbs", "seq", "emit", "precision")
"""What of `zenithtune plan` can be asked for; none names a file or a host."""
MAX_GPUS = 16_384
LIMIT_S = 30.0
"""For how long a plan may take; most take a second."""
WAIT_S = 10.0
"""For how long a request waits for others."""
_PLAIN = re.compile(r"[\w.-]{1,80}", re.ASCII)
_TURNS = threading.BoundedSemaphore(2)


def planner_page(choices: Mapping[str, Sequence[str]] | None = None, points: str = "") -> str:
    """Return the page; `points` are answers computed ahead, packed, of these `choices` alone."""
    free = {"model": known_models(), "gpu": known_gpus(), "gpus": [], "gbs": [], "seq": [], "emit": list(FORMATS)}
    data = {
        "kind": "planner",
        "made_by": f"zenithtune {__version__}",
        "title": "Planner",
        "place": "",
        "now_s": time.time(),
        "choices": choices or free,
        "prices": {gpu: public_price(gpu) for gpu in known_gpus()},
        "points": points,
    }
    return render_page(data, connect="'none'" if points else "'self'")


def answered(arguments: Mapping[str, str]) -> bytes:
    """Return what `zenithtune plan --json` prints with these options; raise where they are not for a page."""
    for name, value in arguments.items():
        if name not in OPTIONS:
            raise UnknownNameError("option", name, OPTIONS)
        if not _PLAIN.fullmatch(value):
            raise UsageError(f"{name} must be a name or a number, but got {value[:40]!r}", hint="change it")
    model, cluster = arguments.get("model", ""), arguments.get("cluster", "")
    if model not in known_models():
        raise UnknownNameError("model", model, known_models())
    if not names_catalog_cluster(cluster):
        problem = f"cluster must be a GPU of the catalog and a count, but got {cluster!r}"
        raise UsageError(problem, hint="write e.g. h100x64")
    if (count := load_cluster(cluster).num_gpus) > MAX_GPUS:
        problem = f"a plan is made here for at most {MAX_GPUS:,} GPUs, but got {count:,}"
        raise UsageError(problem, hint="zenithtune plan itself has no such limit")
    return _planned(tuple(f"--{name}={value}" for name, value in arguments.items()))


@lru_cache(maxsize=256)
def _planned(options: tuple[str, ...]) -> bytes:
    """Plan in a process of its own, which is ended when it takes too long."""
    command = [sys.executable, "-m", "zenith_tune.cli.main", "plan", "--json", *options]
    if not _TURNS.acquire(timeout=WAIT_S):
        raise TimeoutError("other plans are being made: ask again")
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"this plan takes more than {LIMIT_S:g} s: run zenithtune plan itself") from None
    finally:
        _TURNS.release()
    if not done.stdout:
        raise UsageError(done.stderr.decode(errors="replace").strip().removeprefix("zenithtune: "))
    return done.stdout


class PlannerRoutes(Routes):
    """The answers of a server of the planner alone."""

    def __init__(self, access: Access) -> None:
        super().__init__(StudyIndex(None, None), access)

    def _get(self, request: Request) -> Answer | Watching:
        if request.path == "/":
            return Answer(body=planner_page().encode(), kind=HTML)
        if request.path != "/plan":
            return Answer.line(404, "there is no such page")
        try:
            return Answer(body=answered(request.arguments()), kind=JSON)
        except UsageError as error:
            return Answer.line(400, str(error))
        except TimeoutError as error:
            return Answer.line(503, str(error))
