"""Searches lines for a user's pattern in a process of its own: Python's re cannot be stopped, but a process can.

This file is that process too, so it needs nothing but Python's own modules.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

MOST_CPU_S = 10
"""Megabytes of log take a second or two; a pattern that needs more goes through every way to cut a line."""


class SearchError(Exception):
    """Report a search that came to no end."""


def search_apart(pattern: str, lines: Iterable[str], which: str) -> Sequence[str]:
    """Return what the pattern's group found, in order; of `which` "first" or "last" that one alone."""
    text = "\n".join(lines)
    if not text:
        return []
    asked = json.dumps({"pattern": pattern, "which": which, "most_cpu_s": MOST_CPU_S})
    sent = f"{asked}\n{text}".encode("utf-8", errors="surrogatepass")
    try:
        # In a group of its own, so that Ctrl-C at a terminal is for the tuner alone to take.
        done = subprocess.run([sys.executable, "-I", "-S", __file__], input=sent, capture_output=True, process_group=0)
    except OSError:  # no room for another process, or a Python without a program: a search without a limit is left
        return found(pattern, text.split("\n"), which)
    if done.returncode == -signal.SIGXCPU:
        raise SearchError(f"takes more than {MOST_CPU_S} s: write it without a repeat inside a repeat, as in (a+)+")
    if done.returncode != 0:
        raise SearchError(f"cannot be searched for: the search ended with code {done.returncode}")
    values: list[str] = json.loads(done.stdout)
    return values


def found(pattern: str, lines: Iterable[str], which: str) -> Sequence[str]:
    """Search here and now, for as long as it takes."""
    regex = re.compile(pattern)
    # An optional group that took no part in a match has found nothing.
    values = (match[1] for line in lines for match in regex.finditer(line) if match[1] is not None)
    if which == "first":
        return list(islice(values, 1))
    return list(deque(values, maxlen=1) if which == "last" else values)


def _answer() -> None:
    asked, _, text = sys.stdin.buffer.read().decode("utf-8", errors="surrogatepass").partition("\n")
    job = json.loads(asked)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # what ends it would leave a core file otherwise
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = job["most_cpu_s"]
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))
    print(json.dumps(found(job["pattern"], text.split("\n"), job["which"])))


if __name__ == "__main__":
    _answer()
