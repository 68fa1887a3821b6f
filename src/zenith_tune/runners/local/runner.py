"""Runs trials on this machine: each one is a process group with a log and a folder of its own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from zenith_tune.runners.base import End, Job, JobRequest, JobResult, Runner, RunnerRegistry, check_seconds
from zenith_tune.runners.launch.process_tree import (
    MARK,
    Process,
    ProcessTree,
    adopt_orphans,
    end_adopted,
    leader_of,
    ticks_at,
)
from zenith_tune.runners.launch.trackers import without_trackers
from zenith_tune.runners.local.gpu_usage import GpuWatch
from zenith_tune.runners.local.room import LocalRoom, Slot, named_gpus
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.files import TrialFolder, file_mode, write_atomically
from zenith_tune.study.resources import Resources

# The trial's own shell notes who it is before the command starts and how it ended after, because both must be
# known to a tuner that resumes after this one was killed. `read` and `printf` are built in: nothing is forked.
_SHELL = """
own=$1 private=$2; shift 2; umask "$private"
read -r boot < /proc/sys/kernel/random/boot_id; read -r stat < /proc/$$/stat
printf '%s\\n%s\\n' "$boot" "$stat" > "$ZENITHTUNE_TRIAL_FOLDER/process"
umask "$own"
"$@"
code=$?
umask "$private"
printf '%s\\n' "$code" > "$ZENITHTUNE_TRIAL_FOLDER/exit_code"
exit "$code"
"""
_POINT_POLL_S = 0.1
_MAX_POLL_S = 1.0
"""A signal that comes just before the main thread begins to wait does not wake it."""


@RunnerRegistry.register("local")
class LocalRunner(Runner):
    """Trials as process groups of this machine, one at a time or side by side on GPUs of their own."""

    shares_machine = True

    def __init__(self, *, grace_s: float = 5.0, owns_process: bool = False) -> None:
        check_seconds("local", "grace_s", grace_s)
        self.grace_s = grace_s
        self.owns_process = owns_process
        """Whether this process exists for the runner alone, so that every child of it is a trial's."""
        if owns_process:
            adopt_orphans()
        self.starting_or_ending = threading.Lock()
        """Held while a process starts and while stragglers are ended, so that no new trial is taken for one."""
        self.running: set[LocalJob] = set()
        """The jobs whose processes are not all ended; changes while `starting_or_ending` is held."""
        self.room = LocalRoom([], 1)
        self._stop_reader, self._stop_writer = os.pipe()
        os.set_blocking(self._stop_reader, False)
        self.is_closed = False
        self._kept: PointJob | None = None
        """The last trial, where its process may take on another."""

    def prepare(self, resources: Resources, parallel: int | None = 1) -> None:
        self.room, self.note = LocalRoom.of(resources, parallel, os.environ)
        self.num_slots, self.own_variables = self.room.num_slots, self.room.own_variables
        self.shares_nodes = self.num_slots > 1

    def start(self, request: JobRequest) -> Job:
        if self._kept is not None and self._kept.is_fit_for(request):
            self._kept = PointJob(self, request, self._kept.process)
            return self._kept
        self.release()
        if request.in_place is None or self.num_slots > 1:
            return LocalJob(self, request)
        self._kept = PointJob(self, request)
        return self._kept

    def release(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.process.cancel()

    def interrupt(self) -> None:
        super().interrupt()
        os.write(self._stop_writer, b"!")

    def reset(self) -> None:
        super().reset()
        with contextlib.suppress(BlockingIOError):
            while os.read(self._stop_reader, 4096):
                pass

    def recover(self, folder: Path) -> JobResult | None:
        files = TrialFolder(folder)
        leader, is_alive = leader_of(files.read(files.process))
        # Read before anything is ended: what is written while its processes are being ended says nothing of the run.
        code = files.read(files.exit_code).strip()
        if leader is None or is_alive:
            tree = ProcessTree(folder, leader.pid if leader else None)
        elif files.exit_code.is_file():
            # What it left in the background is still in its session.
            tree = ProcessTree(folder, leader.pid, until_ticks=ticks_at(files.exit_code.stat().st_mtime))
        else:
            tree = ProcessTree(folder, None)
        tree.end(self.grace_s)
        if not code.isdecimal() or int(code) > 255:  # another program has written it
            return None
        return JobResult(end=End.EXITED, exit_code=int(code), duration_s=files.noted_duration_s())

    def close(self) -> None:
        if not self.is_closed:
            self.release()
            self.is_closed = True
            os.close(self._stop_reader)
            os.close(self._stop_writer)

    def wait_for_exit(self, pid: int, limit_s: float) -> None:
        """Sleep until the process exits or the runner is interrupted, at most `limit_s` and at most a second."""
        pidfd = os.pidfd_open(pid)
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.register(self._stop_reader, select.POLLIN)
            poll.poll(min(max(0.0, limit_s), _MAX_POLL_S) * 1000)
        finally:
            os.close(pidfd)


class LocalJob(Job):
    """One process group."""

    runner: LocalRunner
    slot: Slot = Slot()
    _gpus: GpuWatch | None = None

    def start(self) -> None:
        self.slot = self.runner.room.take()
        try:
            self.spawn(self.slot.command(self.request.command), self.slot.environment())
            self.watch_gpus()
        except BaseException:
            self.runner.room.give_back(self.slot)
            raise
        if self.slot.place:
            self.request.on_state(f"running on {self.slot.place}")

    def watch_gpus(self) -> None:
        self._gpus = GpuWatch(self.slot.gpus or named_gpus(os.environ))

    def usage(self) -> dict[str, float]:
        """Return how busy its GPUs were, and look no longer."""
        return self._gpus.end() if self._gpus is not None else {}

    def spawn(self, command: str, variables: Mapping[str, str] | None = None) -> None:
        """Start the process group."""
        self.began = time.monotonic()
        with self.runner.starting_or_ending:
            self._process = _start(command, self.files, variables or {})
            self.runner.running.add(self)
        leader = Process.read(self._process.pid)
        since_ticks = leader.start_ticks if leader else 0
        self._tree = ProcessTree(self.files.path, self._process.pid, since_ticks=since_ticks)

    def look(self) -> JobResult | None:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        is_reaped = self._process.returncode is not None  # where something failed after that
        has_exited = is_reaped or os.waitid(os.P_PID, self._process.pid, flags) is not None
        return self.collect(End.EXITED) if has_exited else None

    def pause(self, limit_s: float) -> None:
        self.runner.wait_for_exit(self._process.pid, limit_s)

    def kill(self, end: End) -> JobResult:
        return self.collect(end)

    def collect(self, end: End) -> JobResult:
        """End what is left of the process group, and return how it ended."""
        ran_s, usage = self.ran_s(), self.usage()
        # A command that is over may have left something running in the background. That is ended before the leader
        # is reaped: until then nobody else can be given its pid.
        self._tree.end(self.runner.grace_s, self.runner.in_a_hurry)
        code = self._process.wait()
        with self.runner.starting_or_ending:
            self.runner.running.discard(self)
            # What shed the trial's mark is ended once no other trial runs that it could belong to.
            if self.runner.owns_process and not self.runner.running:
                end_adopted(self.runner.grace_s, self.runner.in_a_hurry)
        self.runner.room.give_back(self.slot)
        exit_code = code if end is End.EXITED else None
        return JobResult(end=end, exit_code=exit_code, duration_s=ran_s, place=self.slot.place, usage=usage)


class PointProcess(LocalJob):
    """The process of one point or several, each of which counts as a job."""

    def __init__(self, runner: LocalRunner, request: JobRequest) -> None:
        super().__init__(runner, replace(request, timeout_s=None))
        runner.count_jobs(-1)

    def _finish(self, result: JobResult) -> None:
        self._result = result


class PointJob(Job):
    """The measurement of one point, by a process that may take on another after it."""

    runner: LocalRunner

    def __init__(self, runner: LocalRunner, request: JobRequest, process: PointProcess | None = None) -> None:
        self.has_own_start = process is None
        self._running = process
        super().__init__(runner, request)

    def start(self) -> None:
        if self._running is None:
            self.files.orders.touch()
            self.process = PointProcess(self.runner, self.request)
            self.began = self.process.began
            return
        self.process, self.began = self._running, time.monotonic()
        first, in_place = self.process.files, self.request.in_place
        assert in_place is not None, "it is fit for the process"
        write_atomically(self.files.process, first.read(first.process))
        self.files.log.touch(mode=file_mode(self.files.path))
        order = {"log": str(self.files.log), "measured": str(self.files.measured), "set": dict(in_place.values)}
        write_atomically(first.orders, json.dumps(order))
        self.process.watch_gpus()

    def is_fit_for(self, request: JobRequest) -> bool:
        """Return whether the process may take on another point: it takes orders, and all else is the same."""
        own, other = self.request.in_place, request.in_place
        is_like = own is not None and other is not None and other.is_proven and own.shares == other.shares
        runs = is_like and self._result is not None and self.process.poll() is None
        return runs and self.request.resources == request.resources and self.process.files.orders.exists()

    def look(self) -> JobResult | None:
        if self.files.measured.exists():
            return self._over(End.EXITED, 0)
        result = self.process.poll()
        return replace(result, duration_s=self.ran_s()) if result is not None else None

    def pause(self, limit_s: float) -> None:
        self.process.pause(min(limit_s, _POINT_POLL_S))

    def kill(self, end: End) -> JobResult:
        if end is End.STOPPED and self.process.files.orders.exists() and not self.runner.num_interrupts:
            return self._over(end)  # it takes the next order after the step that it is at
        self.process.cancel()
        return self._over(end)

    def _over(self, end: End, exit_code: int | None = None) -> JobResult:
        place, usage = self.process.slot.place, self.process.usage()
        return JobResult(end=end, exit_code=exit_code, duration_s=self.ran_s(), place=place, usage=usage)


def _start(command: str, files: TrialFolder, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    line = ParsedCommand.of(command)
    environment = {**without_trackers(os.environ), **variables, MARK: str(files.path)}
    if line.needs_shell:
        # With pipefail, so that `train | tee log` fails when the training does.
        bash = shutil.which("bash")
        argv = [bash, "-o", "pipefail", "-c", command] if bash else ["/bin/sh", "-c", command]
    else:
        argv = line.argv()
        environment |= line.assignments()
    mode = file_mode(files.path)
    # What a trial writes itself keeps the rights that this process gives new files.
    status = Path("/proc/self/status").read_text().splitlines()
    own_umask = next((line.split()[1] for line in status if line.startswith("Umask:")), "022")
    masks = [own_umask, f"{0o777 & ~mode:03o}"]
    with open(files.log, "ab", opener=lambda name, flags: os.open(name, flags, mode)) as log:
        return subprocess.Popen(
            ["/bin/sh", "-c", _SHELL, "zenithtune-trial", *masks, *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
