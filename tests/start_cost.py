"""Times judged beside that of a known command: a busy machine makes both of them dearer."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable

LIMIT_CPU_S = 0.4
REFERENCE = (
    "import asyncio, cProfile, ctypes, decimal, doctest, ftplib, html.parser, http.server, imaplib, logging.config, "
    "mailbox, multiprocessing.pool, pdb, pydoc, smtplib, sqlite3, tarfile, tomllib, unittest.mock, "
    "wsgiref.simple_server, xml.dom.minidom, xmlrpc.client, zipfile"
)
"""About 0.2 CPU seconds where nothing else runs: half of the limit."""
ATTEMPTS = 4


def assert_answers_quickly(run: Callable[[], object]) -> None:
    """Fails unless one of a few runs takes 0.4 CPU seconds or, on a busy machine, 2.5 times the reference."""
    costs_s = []
    for _ in range(ATTEMPTS):
        cost_s = _children_cpu_s(run)
        if cost_s < LIMIT_CPU_S:
            return
        reference_s = _children_cpu_s(_run_reference)
        if cost_s < 2.5 * reference_s:  # many small files are dearer than a few large ones beside others
            return
        costs_s.append((cost_s, reference_s))
    raise AssertionError(f"CPU seconds of the command and of the reference: {costs_s}")


def assert_passes_quickly(took_s: float, limit_s: float) -> None:
    """Fails unless a wall time keeps to its limit or, on a busy machine, to as many times it as the reference takes."""
    if took_s <= limit_s:
        return
    begin = time.monotonic()
    _run_reference()
    slowness = 2 * (time.monotonic() - begin) / LIMIT_CPU_S
    assert took_s <= limit_s * slowness, f"{took_s:.3f} s, but at most {limit_s:g} s, and {slowness:.1f} times as slow"


def cpu_dearness() -> float:
    """Return how many times as much CPU time things take now as where nothing else runs, 1 at least."""
    return max(1.0, 2 * _children_cpu_s(_run_reference) / LIMIT_CPU_S)


def _children_cpu_s(run: Callable[[], object]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _run_reference() -> None:
    subprocess.run([sys.executable, "-I", "-c", REFERENCE], check=True, capture_output=True)
