"""Costs judged beside that of a known command in the same run: a busy machine makes both of them dearer."""

from __future__ import annotations

import functools
import resource
import subprocess
import sys
import time
from collections.abc import Callable

REFERENCE = (
    "import asyncio, cProfile, ctypes, decimal, doctest, ftplib, html.parser, http.server, imaplib, logging.config, "
    "mailbox, multiprocessing.pool, pdb, pydoc, smtplib, sqlite3, tarfile, tomllib, unittest.mock, "
    "wsgiref.simple_server, xml.dom.minidom, xmlrpc.client, zipfile"
)
"""About 0.2 CPU seconds where nothing else runs."""
MAX_RATIO = 2.5
"""Twice the reference is the aim; many small files are dearer than a few large ones beside others."""
ATTEMPTS = 4


def assert_answers_quickly(run: Callable[[], object]) -> None:
    """Fails unless one of a few runs takes at most 2.5 times the CPU time of the reference."""
    ratios = []
    for attempt in range(ATTEMPTS):
        reference_s = reference_cpu_s() if attempt else _first_reference_cpu_s()
        ratios.append(_children_cpu_s(run) / reference_s)
        if ratios[-1] < MAX_RATIO:
            return
    raise AssertionError(f"times the CPU time of the reference: {ratios}")


def reference_cpu_s() -> float:
    """Return the CPU seconds of the reference as of now."""
    return _children_cpu_s(_run_reference)


def reference_wall_s() -> float:
    """Return the wall seconds of the reference as of now."""
    begin = time.monotonic()
    _run_reference()
    return time.monotonic() - begin


@functools.cache
def _first_reference_cpu_s() -> float:
    return reference_cpu_s()


def _children_cpu_s(run: Callable[[], object]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _run_reference() -> None:
    subprocess.run([sys.executable, "-I", "-c", REFERENCE], check=True, capture_output=True)
