from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.long_first import long_first
from tests.requirements import is_required

ROOT = Path(__file__).resolve().parent.parent
FAKE_TRAINER = ROOT / "examples" / "fake_megatron_train.py"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the longest tests begin first, those of one file, which may share what they start, on one worker."""
    long: dict[Path, list[pytest.Item]] = {}
    rest = []
    for item in items:
        if item.get_closest_marker("long"):
            long.setdefault(item.path, []).append(item)
        else:
            rest.append(item)
    items[:] = long_first(rest, list(long.values()), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Turn a skip into a failure where CI has promised that everything is there."""
    report = yield
    if report.skipped and is_required("all"):
        report.outcome = "failed"
        report.longrepr = f"ZENITHTUNE_REQUIRE=all, but the test was skipped: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Collect no garbage in a doctest: it walks linecache, from which SQLAlchemy's dying classes take their lines."""
    if not isinstance(item, pytest.DoctestItem):
        return (yield)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(autouse=True, scope="session")
def nothing_is_kept_on_this_machine(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what studies learn away from the user's own files, also in the processes that tests start."""
    os.environ["ZENITHTUNE_HOME"] = str(tmp_path_factory.mktemp("home"))


@pytest.fixture
def zenithtune(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the real command line in an empty folder."""

    def run(*args: str, timeout: float = 240, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "zenith_tune.cli.main", *args],
            cwd=tmp_path,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run
