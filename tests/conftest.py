from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import hypothesis.strategies
import pytest

from tests.forked_workers import pytest_addoption, pytest_runtestloop  # noqa: F401  (hooks of pytest)
from tests.quick_databases import make_databases_quick
from tests.requirements import is_required
from tests.started_processes import end_started
from tests.thoroughness import examples
from tests.warm_process import COMMANDS, ENGINES, TORCH, run_command, start_server

if TYPE_CHECKING:
    from tests.report.browser.browsers import Browser

ROOT = Path(__file__).resolve().parent.parent
FAKE_TRAINER = ROOT / "examples" / "fake_megatron_train.py"

# How long an example takes says how busy the machine is. The same examples every time: a run that fails, fails again.
hypothesis.settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    max_examples=examples(100),
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
hypothesis.settings.load_profile("steady")


def pytest_configure() -> None:
    """Undo what `nohup` or `&` made this process ignore, so that what tests start can be interrupted."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for signum in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, lambda *_: None)  # still without effect here, but not inherited


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a file of which `-m slow` or `-m "not slow"` would leave out every test."""
    if collection_path.suffix != ".py":
        return None
    text = collection_path.read_text()
    has_slow = "mark.slow" in text or "few_quick" in text
    is_slow = re.search(r"^pytestmark = .*mark\.slow", text, re.MULTILINE) is not None
    return {"slow": not has_slow, "not slow": is_slow}.get(config.option.markexpr) or None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let the processes that tests are forked from load while tests are collected, which is the work of one core."""
    option = session.config.option
    if option.workers > 1 and not option.collectonly:
        start_server(COMMANDS)
        if importlib.util.find_spec("torch"):
            start_server(TORCH)
            start_server(ENGINES)


IMPORTED = ("torch", "accelerate", "cmaes")
"""What many tests import in the middle, and takes long."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import and prepare once what the workers would each import and prepare."""
    option = session.config.option
    if option.workers < 2 or option.collectonly:
        return
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    make_databases_quick()
    _draw_an_example()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # the workers share the cores


@hypothesis.settings(max_examples=1, database=None)
@hypothesis.given(hypothesis.strategies.text())
def _draw_an_example(_: str) -> None:
    """Have Hypothesis read what it draws from: a table of all characters, and constants of the modules."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Look for no garbage among what is collected, neither now nor during the tests: all of it is kept."""
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    return result


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let each worker begin with tests that are given more time: one that begins last leaves the other cores idle.

    Each first gets as many tests as another, in their order.
    """

    def timeout_s(item: pytest.Item) -> float:
        mark = item.get_closest_marker("timeout")
        return 0.0 if mark is None else float(mark.args[0])

    timeouts = {item: timeout for item in items if (timeout := timeout_s(item)) > 300}
    files: dict[Path, list[pytest.Item]] = {}  # tests of one file share what they set up
    for item in sorted(timeouts, key=lambda item: timeouts[item], reverse=True):
        files.setdefault(item.path, []).append(item)
    long = list(files.values())
    others = [item for item in items if item not in timeouts]
    num_workers = config.option.workers
    ends = [len(items) * worker // num_workers for worker in range(num_workers + 1)]
    items.clear()
    for worker, end in enumerate(ends[1:]):
        items += [item for file in long[worker::num_workers] for item in file]
        count = max(end - len(items), 0)
        items += others[:count]
        del others[:count]
    items += others


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Turn a skip into a failure where CI has promised that everything is there."""
    report = yield
    if report.skipped and is_required("all") and item.get_closest_marker("own_environment") is None:
        report.outcome = "failed"
        report.longrepr = f"ZENITHTUNE_REQUIRE=all, but the test was skipped: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Skip the test modules of a sibling package that is not installed: its torch may have no wheel for this Python."""
    report = yield
    missing = re.search(r"No module named '(zenith_\w+)'", str(report.longrepr)) if report.failed else None
    if missing is not None and not is_required("engines"):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {missing[1]} is not installed")
    return report


@pytest.fixture(autouse=True, scope="session")
def nothing_is_kept_on_this_machine(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what studies learn away from the user's own files, also in the processes that tests start."""
    os.environ["ZENITHTUNE_HOME"] = str(tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True)
def nothing_is_learned_from_another_test(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give each test a place of its own for what studies learn."""
    home = tmp_path_factory.getbasetemp() / "homes" / hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    monkeypatch.setenv("ZENITHTUNE_HOME", str(home))


@pytest.fixture(autouse=True, scope="session")
def quick_databases() -> None:
    """Make databases faster."""
    make_databases_quick()


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """End the processes that a test started."""
    yield
    end_started()


@pytest.fixture
def zenithtune(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in a process and an empty folder of its own."""

    def run(*args: str, timeout: float = 500, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return run_command(args, tmp_path, {**os.environ, **(env or {})}, timeout)

    return run


@pytest.fixture(scope="session")
def _chromium() -> Iterator[Browser]:
    from tests.report.browser.browsers import Browser

    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def browser(_chromium: Browser) -> Iterator[Browser]:
    """Return the browser; whatever a test does, the console must stay empty."""
    _chromium.complaints()
    yield _chromium
    _chromium.driver.get("about:blank")
    assert _chromium.complaints() == []
