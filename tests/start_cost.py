"""The CPU time of a short command, judged beside a known one: a busy machine makes both of them dearer."""

from __future__ import annotations

import resource
import subprocess
import sys
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
    """Fails unless one of a few runs takes 0.4 CPU seconds or, on a busy machine, twice the reference beside it."""
    costs_s = []
    for _ in range(ATTEMPTS):
        cost_s = _children_cpu_s(run)
        if cost_s < LIMIT_CPU_S:
            return
        reference_s = _children_cpu_s(_run_reference)
        if cost_s < 2 * reference_s:
            return
        costs_s.append((cost_s, reference_s))
    raise AssertionError(f"CPU seconds of the command and of the reference: {costs_s}")


def _children_cpu_s(run: Callable[[], object]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _run_reference() -> None:
    subprocess.run([sys.executable, "-I", "-c", REFERENCE], check=True, capture_output=True)
