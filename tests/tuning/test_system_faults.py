"""Faults of the system are no trial's: they are waited for, then the study stops, and no point is given up."""

from __future__ import annotations

import errno
import itertools
import resource
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from tests.study_tools import Witness, tune
from tests.toy_preset import ToyPreset
from tests.tuning.injected_faults import FAULTS, FaultInjection, injected_fault
from zenith_tune import Outcome
from zenith_tune.errors import SystemFaultError, UsageError
from zenith_tune.study import faults

VALUES = [1.0, 2.0, 3.0]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_FIRST_WAIT_S", 0.001)


def run_study(folder: Path, **fault: int) -> tuple[Witness, FaultInjection]:
    witness = Witness()
    with injected_fault(folder / "out", **fault) as injection:
        value, _ = tune(folder, listener=witness, baseline=False).optimize()
    assert value == max(VALUES)
    return witness, injection


def check_faults(tmp_path: Path, codes: tuple[int, ...], count: int, step: int = 1) -> None:
    """Let every `step`-th call fail that a study makes once it has begun, each with the next of the codes."""
    _, clean = run_study(tmp_path / "clean")
    begun = next(index for index, call in enumerate(clean.calls, 1) if "trials" in call)
    for first, code in zip(range(begun, len(clean.calls) + 1, step), itertools.cycle(codes), strict=False):
        if code == errno.EPERM and clean.calls[first - 1].endswith("log.txt"):
            continue  # the rights of its log are a trial's own affair
        witness, injection = run_study(tmp_path / f"{first}-{code}", first=first, count=count, code=code)
        assert injection.failed, f"call {first} of {len(clean.calls)} was never made"
        assert [trial.value for trial in witness.trials] == VALUES, (injection.failed, witness.trials)


def test_a_fault_that_passes_costs_no_trial(tmp_path: Path) -> None:
    check_faults(tmp_path, (errno.EMFILE,), count=3, step=4)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 7])
def test_every_call_may_fail_once_and_for_a_while(count: int, tmp_path: Path) -> None:
    check_faults(tmp_path, FAULTS, count)


def test_a_fault_that_stays_stops_the_study_and_a_resumed_one_runs_what_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "DEFAULT_PATIENCE_S", 0.05)
    _, clean = run_study(tmp_path / "clean")
    second = next(index for index, call in enumerate(clean.calls, 1) if call.endswith("trials/0001"))
    with pytest.raises(SystemFaultError, match=r"Too many open files.*--resume"):
        run_study(tmp_path / "s", first=second, count=10**6, code=errno.EMFILE)
    witness = Witness()
    value, _ = tune(tmp_path / "s", listener=witness, baseline=False, resume=True).optimize()
    assert value == 3.0
    assert [trial.value for trial in witness.trials] == VALUES[1:], "the first was kept, and none was given up"


def test_a_study_that_cannot_begin_says_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "DEFAULT_PATIENCE_S", 0.05)
    _, clean = run_study(tmp_path / "clean")
    begun = next(index for index, call in enumerate(clean.calls, 1) if "trials" in call)
    for first in range(1, begun):
        with pytest.raises((UsageError, SystemFaultError), match="Too many open files"):
            run_study(tmp_path / str(first), first=first, count=10**6, code=errno.EMFILE)


def test_a_command_that_is_too_long_is_the_trials_own_failure(tmp_path: Path) -> None:
    witness = Witness()
    preset = ToyPreset([1, "x" * 3_000_000, 3])
    tune(tmp_path, "sh -c 'echo value: {x}' {x}", preset, listener=witness, baseline=False).optimize()
    assert [trial.outcome for trial in witness.trials] == [Outcome.OK, Outcome.ERROR, Outcome.OK]


def test_a_second_without_file_descriptors_is_waited_for(tmp_path: Path) -> None:
    witness = Witness()
    began, is_over = tmp_path / "began", threading.Event()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def take_descriptors() -> None:
        while not began.exists() and not is_over.wait(0.01):
            pass
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # those that are open stay open
        time.sleep(1.0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    taker = threading.Thread(target=take_descriptors)
    taker.start()
    command = f"sh -c 'touch {began}; sleep 0.1; echo value: {{x}}'"
    try:
        value, _ = tune(tmp_path, command, ToyPreset(list(range(1, 9))), listener=witness, baseline=False).optimize()
    finally:
        is_over.set()
        taker.join()
    assert value == 8.0
    assert [trial.value for trial in witness.trials] == list(range(1, 9))
    assert any("Too many open files" in note for note in witness.notes)


@pytest.mark.slow
def test_a_program_that_locks_the_database_for_long_is_waited_for(tmp_path: Path) -> None:
    witness = Witness()
    tuner = tune(tmp_path, "sh -c 'sleep 0.3; echo value: {x}'", listener=witness, baseline=False)

    is_over = threading.Event()

    def lock() -> None:
        database = tmp_path / "out" / "studies.db"
        log = tmp_path / "out" / "s" / "trials" / "0000" / "log.txt"
        while not log.exists() and not is_over.wait(0.01):
            pass
        connection = sqlite3.connect(database, timeout=60, isolation_level=None)
        connection.execute("BEGIN EXCLUSIVE")
        time.sleep(12)  # SQLite itself waits for five seconds
        connection.rollback()
        connection.close()

    locker = threading.Thread(target=lock)
    locker.start()
    try:
        value, _ = tuner.optimize()
    finally:
        is_over.set()
        locker.join()
    assert value == 3.0 and [trial.value for trial in witness.trials] == VALUES
    assert any("locked" in note for note in witness.notes)
