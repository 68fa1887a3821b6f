"""Several points measured by one process, which changes itself from one to the next."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.started_processes import is_alive, wait_until
from tests.study_tools import Asks, tune
from tests.toy_preset import ToyPreset
from zenith_tune import Direction, Outcome, Trial
from zenith_tune.hooks import orders
from zenith_tune.runners.base import End
from zenith_tune.runners.local.runner import LocalRunner, PointJob
from zenith_tune.study.files import TrialFolder
from zenith_tune.study.parameters import Value
from zenith_tune.study.resources import InPlace, Resources
from zenith_tune.study.study import Study
from zenith_tune.study.trial import SAVED_START, START
from zenith_tune.tuning.watch import Timeouts

PROGRAM = f"""
import os, sys, time
sys.path.insert(0, {str(Path(orders.__file__).parents[1])!r})
from hooks.orders import Orders
found = Orders(os.environ["ZENITHTUNE_TRIAL_FOLDER"] + "/hook")
if "alone" in sys.argv:
    found.refuse()
x, is_first = int(sys.argv[1]), True
while True:
    if x == 9:
        time.sleep(0 if is_first else 1000)
    if x == 8:
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    if x == 7 and not is_first:
        sys.exit("in this process it does not go")
    if is_first:
        print('zenithtune: {{"event": "start", "seconds": {{"imports": 30.0}}}}')
    print("value:", x, "pid:", os.getpid(), flush=True)
    order = found.following()
    if order is None:
        break
    x, is_first = order["x"], False
"""


class InPlacePreset(ToyPreset):
    """Search x, which the program changes by itself once a trial has gone well."""

    is_proven = False

    def in_place(self, params: Mapping[str, Value]) -> InPlace:
        return InPlace(values=params, shares="even" if int(params["x"]) >= 100 else "all", is_proven=self.is_proven)

    def observe(self, trial: Trial) -> None:
        self.is_proven |= trial.ok


def study(tmp_path: Path, *points: int, options: str = "") -> tuple[list[Trial], list[str]]:
    """Return the trials of points, and the processes that measured them."""
    (tmp_path / "program.py").write_text(PROGRAM)
    strategy = Asks(*points)
    command = f"{sys.executable} {tmp_path}/program.py {{x}} {options}"
    preset = InPlacePreset([*range(1, 10), 100])
    tune(tmp_path, command, preset, strategy=strategy, baseline=False).optimize()
    logs = [TrialFolder(trial.folder).log.read_text() for trial in strategy.answers if trial.folder]
    return strategy.answers, [log.rpartition("pid: ")[2].strip() for log in logs]


def test_points_that_differ_in_what_the_process_changes_share_its_start(tmp_path: Path) -> None:
    trials, processes = study(tmp_path, 1, 2, 3)
    assert [trial.value for trial in trials] == [1, 2, 3]
    assert len(set(processes)) == 1 and not is_alive(int(processes[0]))
    assert [trial.command.split()[-1] for trial in trials] == ["1", "2", "3"], "each has its own command"
    assert [str(trial.extra[START]).partition(":")[0] for trial in trials] == ["30 s", "30 s saved", "30 s saved"]
    assert trials[0].alone_s == trials[0].duration_s and (trials[1].alone_s or 0.0) > 30


def test_other_points_and_processes_that_take_no_orders_start_by_themselves(tmp_path: Path) -> None:
    _, processes = study(tmp_path, 1, 100, 2)
    assert len(set(processes)) == 3
    (tmp_path / "alone").mkdir()
    _, processes = study(tmp_path / "alone", 1, 2, options="alone")
    assert len(set(processes)) == 2


def test_what_fails_in_place_is_tried_by_itself_but_for_memory(tmp_path: Path) -> None:
    trials, processes = study(tmp_path, 1, 7, 2, 8, 3)
    assert [trial.outcome for trial in trials] == ["ok", "ok", "ok", Outcome.OOM, "ok"]
    first, again, other, _, last = processes
    assert len({first, again, last}) == 3 and again == other
    folder = trials[1].folder
    assert folder is not None and "does not go" in (folder / "log.in_place.txt").read_text()


def test_a_trial_by_itself_may_take_the_start_that_the_best_one_saved() -> None:
    study = Study(Direction.MAXIMIZE)
    best = Trial(params={"x": 1}, outcome=Outcome.OK, value=1.0, number=1, duration_s=2.0)
    study.add(replace(best, extra={SAVED_START: 30.0}))
    assert Timeouts(dynamic=True, margin=1.5).limit_s(study) == 48.0


def submit(runner: LocalRunner, folder: Path, x: int, timeout_s: float | None = None) -> PointJob:
    folder.mkdir()
    program = folder.parent / "program.py"
    program.write_text(PROGRAM)
    in_place = InPlace(values={"x": x}, shares="", is_proven=True)
    command = f"{sys.executable} {program} {x}"
    job = runner.submit(command, folder, Resources(), timeout_s=timeout_s, in_place=in_place)
    assert isinstance(job, PointJob)
    return job


def test_a_point_that_hangs_takes_the_process_with_it(tmp_path: Path) -> None:
    runner = LocalRunner(grace_s=0.5)
    first = submit(runner, tmp_path / "a", 1)
    assert first.wait().end is End.EXITED and runner.num_running == 0
    hung = submit(runner, tmp_path / "b", 9, timeout_s=0.5)
    result = hung.wait()
    assert result.end is End.TIMED_OUT and 0.5 <= result.duration_s < 60 and not hung.has_own_start
    assert submit(runner, tmp_path / "c", 1).has_own_start
    runner.close()


def test_a_process_is_kept_until_it_is_let_go_and_found_by_the_folder_of_its_point(tmp_path: Path) -> None:
    runner = LocalRunner(grace_s=0.5)
    for name in ("a", "b", "c"):
        submit(runner, tmp_path / name, 1).wait()
    [pid] = {int((tmp_path / name / "log.txt").read_text().split()[-1]) for name in ("a", "b")}
    assert is_alive(pid)
    assert LocalRunner(grace_s=0.5).recover(tmp_path / "b") is None
    wait_until(lambda: not is_alive(pid))
    assert submit(runner, tmp_path / "d", 1).has_own_start
    runner.close()


def test_an_interrupt_ends_the_process_with_the_point(tmp_path: Path) -> None:
    runner = LocalRunner(grace_s=0.5)
    submit(runner, tmp_path / "a", 1).wait()
    pid = int((tmp_path / "a" / "log.txt").read_text().split()[-1])
    hung = submit(runner, tmp_path / "b", 9)
    runner.interrupt()
    assert hung.wait().end is End.CANCELLED and not is_alive(pid)
    runner.close()


def test_a_process_waits_for_no_order_of_a_tuner_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "MOST_WAIT_S", 0.1)
    (tmp_path / "orders.json").touch()
    begin = time.monotonic()
    assert orders.Orders(str(tmp_path / "hook")).following() is None
    assert time.monotonic() - begin < 30 and (tmp_path / "measured").exists()
