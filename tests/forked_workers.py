"""`pytest --workers 6`: several tests at a time, in processes forked once all tests are collected.

The workers of pytest-xdist each import and collect all tests anew and share nothing that was loaded, for which this
suite takes a minute longer on two cores. A test that kills its worker fails alone: another worker goes on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.config import create_terminal_writer

END_S = 10.0
"""How long workers get to end what their tests started, after an interrupt."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=1, help="how many tests run at a time, each in a forked process")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    option = session.config.option
    if option.workers < 2 or option.collectonly or (session.testsfailed and not option.continue_on_collection_errors):
        return None
    crew = _Crew(session)
    try:
        crew.run()
    finally:
        crew.end()
    return True


@dataclass
class _Worker:
    pid: int
    connection: Connection
    tests: deque[int]
    """What it will be asked to run: numbers of the session's items."""
    asked: deque[int]
    """What it was asked to run and has not finished."""


class _Crew:
    """The workers, each with a stretch of the tests; one that has done its own takes half of another's rest."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._temporary = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self._num_started = 0
        size = session.config.option.workers
        ends = [len(session.items) * worker // size for worker in range(size + 1)]
        self._workers = [self._start(deque(range(*ends[at : at + 2]))) for at in range(size)]

    def _start(self, tests: deque[int]) -> _Worker:
        ours, theirs = Pipe()
        self._num_started += 1
        pid = os.fork()
        if pid == 0:
            ours.close()
            _work(self._session, theirs, self._temporary / f"worker{self._num_started}")
        theirs.close()
        return _Worker(pid, ours, tests, deque())

    def run(self) -> None:
        while self._workers:
            ready = wait([worker.connection for worker in self._workers], timeout=1.0)
            for worker in list(self._workers):
                if worker.connection in ready:
                    try:
                        self._hear(worker, worker.connection.recv())
                    except EOFError:
                        self._replace(worker)
                elif os.waitpid(worker.pid, os.WNOHANG)[0] and not worker.connection.poll():
                    self._replace(worker)
            session = self._session
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)

    def _hear(self, worker: _Worker, heard: tuple[str, dict[str, Any]] | None) -> None:
        hook = self._session.config.hook
        if heard is None:
            test = self._next_test(worker)
            if test is not None:
                worker.asked.append(test)
            worker.connection.send(test)
            return
        name, given = heard
        if name == "pytest_runtest_logreport":
            report = hook.pytest_report_from_serializable(config=self._session.config, data=given)
            hook.pytest_runtest_logreport(report=report)
        else:
            getattr(hook, name)(**given)
            if name == "pytest_runtest_logfinish":
                worker.asked.popleft()

    def _next_test(self, worker: _Worker) -> int | None:
        if not worker.tests:
            longest = max((other.tests for other in self._workers), key=len)
            count = (len(longest) + 1) // 2
            worker.tests.extendleft(longest.pop() for _ in range(count))
        return worker.tests.popleft() if worker.tests else None

    def _replace(self, worker: _Worker) -> None:
        """Go on without a worker that ended: as asked, or in the middle of a test."""
        self._workers.remove(worker)
        worker.connection.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(worker.pid, 0)
        if worker.asked:
            item = self._session.items[worker.asked.popleft()]
            why = "the process that ran this test ended"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")
            self._session.config.hook.pytest_runtest_logreport(report=report)
            worker.tests.extendleft(reversed(worker.asked))
            self._workers.append(self._start(worker.tests))

    def end(self) -> None:
        """End the workers that are left after an interrupt or an error; they first end what their tests started."""
        deadline = time.monotonic() + END_S
        for worker in self._workers:
            worker.connection.close()
            os.kill(worker.pid, signal.SIGINT)
        for worker in self._workers:
            with contextlib.suppress(ChildProcessError):
                while not os.waitpid(worker.pid, os.WNOHANG)[0]:
                    time.sleep(0.05)
                    if time.monotonic() > deadline:
                        os.kill(worker.pid, signal.SIGKILL)


def _work(session: pytest.Session, connection: Connection, temporary: Any) -> NoReturn:
    """Run the tests that are asked for, and say what became of them."""
    plugins = session.config.pluginmanager
    capture = plugins.getplugin("capturemanager")
    assert capture is not None
    capture.stop_global_capturing()  # its files are those of every fork
    capture.start_global_capturing()
    with Path(os.devnull).open("w") as nowhere, contextlib.suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        reporter = plugins.getplugin("terminalreporter")
        assert reporter is not None
        reporter._tw = create_terminal_writer(session.config, nowhere)
        plugins.register(_Sender(session.config, connection))
        temporary.mkdir()
        session.config._tmp_path_factory._basetemp = temporary  # type: ignore[attr-defined]
        try:
            tests = _asked_for(session, connection)
            item = next(tests, None)
            while item is not None:
                following = next(tests, None)
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                item = following
        finally:
            session._setupstate.teardown_exact(None)
    os._exit(0)


def _asked_for(session: pytest.Session, connection: Connection) -> Iterator[pytest.Item]:
    connection.send(None)
    while (test := connection.recv()) is not None:
        yield session.items[test]
        connection.send(None)


class _Sender:
    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._connection.send(("pytest_runtest_logstart", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("pytest_runtest_logreport", data))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._connection.send(("pytest_runtest_logfinish", {"nodeid": nodeid, "location": location}))
