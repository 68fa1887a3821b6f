"""Runs trials on this machine: each one is a process group with a log and a folder of its own."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import overload

from zenith_tune.registry import RunnerRegistry
from zenith_tune.runners.base import End, Job, JobResult, OnState, Runner, check_seconds, nobody_listens
from zenith_tune.runners.launch.own_command import check_script, replaced_settings
from zenith_tune.runners.launch.process_tree import (
    MARK,
    ProcessIdentity,
    ProcessTree,
    adopt_orphans,
    end_adopted,
    ticks_at,
)
from zenith_tune.runners.local.room import LocalRoom, Slot
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.files import TrialFolder
from zenith_tune.study.resources import Resources

# The trial's own shell notes who it is before the command starts and how it ended after, because both must be
# known to a tuner that resumes after this one was killed. `read` and `printf` are built in: nothing is forked.
_SHELL = """
read -r boot < /proc/sys/kernel/random/boot_id; read -r stat < /proc/$$/stat
printf '%s\\n%s\\n' "$boot" "$stat" > "$ZENITHTUNE_TRIAL_FOLDER/process"
"$@"
code=$?
printf '%s\\n' "$code" > "$ZENITHTUNE_TRIAL_FOLDER/exit_code"
exit "$code"
"""

_MAX_EXIT_CODE = 255


@RunnerRegistry.register("local")
class LocalRunner(Runner):
    """Run trials as process groups of this machine, one at a time or side by side on GPUs of their own."""

    shares_machine = True

    def __init__(self, *, grace_s: float = 5.0, owns_process: bool = False) -> None:
        check_seconds("local", "grace_s", grace_s)
        self.grace_s = grace_s
        """Seconds between SIGTERM and SIGKILL when a trial is ended."""
        self.owns_process = owns_process
        """Whether this process exists for the runner alone, so that every child of it is a trial's."""
        if owns_process:
            adopt_orphans()
        self.starting_or_ending = threading.Lock()
        """Held while the number of running jobs changes, so that no job starts while stragglers are ended."""
        self.room = LocalRoom([], 1)
        self._note = ""
        self._stop_reader, self._stop_writer = os.pipe()
        os.set_blocking(self._stop_reader, False)
        self._interrupts = 0
        self._is_closed = False

    def prepare(self, resources: Resources, parallel: int | None = 1) -> None:
        self.room, self._note = LocalRoom.of(resources, parallel, os.environ)
        self.num_slots = self.room.num_seats

    def notes(self) -> list[str]:
        return [self._note] if self._note else []

    def command_notes(self, command: str) -> list[str]:
        if self.room.num_seats > 1:
            check_script(command, self.room.own_variables)
        return replaced_settings(command, self.room.own_variables)

    def submit(
        self,
        command: str,
        folder: Path,
        resources: Resources,
        *,
        timeout_s: float | None = None,
        on_state: OnState = nobody_listens,
    ) -> Job:
        self.command_notes(command)
        slot = self.room.take()
        try:
            job = LocalJob(self, command, folder, timeout_s, slot)
        except BaseException:
            self.room.give_back(slot)
            raise
        if slot.place:
            on_state(f"running on {slot.place}")
        return job

    def interrupt(self) -> None:
        self._interrupts += 1
        os.write(self._stop_writer, b"!")

    def reset(self) -> None:
        self._interrupts = 0
        with contextlib.suppress(BlockingIOError):
            while os.read(self._stop_reader, 4096):
                pass

    def in_a_hurry(self) -> bool:
        """Tell whether the user asked twice: then nothing gets time to end by itself."""
        return self._interrupts > 1

    def recover(self, folder: Path) -> JobResult | None:
        files = TrialFolder(folder)
        identity = ProcessIdentity.parse(files.read(files.process))
        # Read before anything is ended: what is written while its processes are being ended says nothing of the run.
        code = files.read(files.exit_code).strip()
        if identity is not None and identity.is_alive():
            tree = ProcessTree(folder, identity.pid)
        elif identity is not None and identity.is_of_this_boot() and files.exit_code.is_file():
            # What it left in the background is still in its session.
            tree = ProcessTree(folder, identity.pid, until_ticks=ticks_at(files.exit_code.stat().st_mtime))
        else:
            tree = ProcessTree(folder, None)
        tree.end(self.grace_s)
        is_code = code.isascii() and code.isdigit() and int(code) <= _MAX_EXIT_CODE
        return JobResult(end=End.EXITED, exit_code=int(code), duration_s=files.noted_duration_s()) if is_code else None

    def end_stragglers(self) -> None:
        """End what shed the trial's mark, once no trial runs that it could belong to."""
        if self.owns_process and not self.num_running:
            end_adopted(self.grace_s, self.in_a_hurry)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            os.close(self._stop_reader)
            os.close(self._stop_writer)

    def wait_for_stop(self, process: subprocess.Popen[bytes], timeout_s: float | None) -> bool:
        """Sleep until the process exits (False), or until an interrupt or the timeout (True)."""
        with _Pidfd(process.pid) as pidfd:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.register(self._stop_reader, select.POLLIN)
            # At most what the call can take, some 25 days: whoever waits looks at the clock again.
            limit_ms = None if timeout_s is None else min(max(0.0, timeout_s) * 1000, 2**31 - 1)
            ready = [fd for fd, _ in poll.poll(limit_ms)]
        return pidfd not in ready

    @property
    def interrupted(self) -> bool:
        """Tell whether the runner was told to stop."""
        return self._interrupts > 0


class LocalJob(Job):
    """Stand for one process group."""

    def __init__(self, runner: LocalRunner, command: str, folder: Path, timeout_s: float | None, slot: Slot) -> None:
        self._runner = runner
        self._slot = slot
        files = TrialFolder(folder)
        self.log_path = files.log
        self._start = time.monotonic()
        self._deadline = None if timeout_s is None else self._start + timeout_s
        self._result: JobResult | None = None
        with runner.starting_or_ending:
            self._process = _start(slot.command(command), files, slot.environment())
            runner.num_running += 1
        self._tree = ProcessTree(folder, self._process.pid)

    def poll(self) -> JobResult | None:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if self._result is None and os.waitid(os.P_PID, self._process.pid, flags) is not None:
            self._finish(End.EXITED)
        elif self._result is None and self._is_late():
            self._end(End.TIMED_OUT)
        return self._result

    @overload
    def wait(self, timeout_s: None = None) -> JobResult: ...

    @overload
    def wait(self, timeout_s: float) -> JobResult | None: ...

    def wait(self, timeout_s: float | None = None) -> JobResult | None:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while self._result is None:
            limits = [limit for limit in (self._deadline, until) if limit is not None]
            left_s = min(limits) - time.monotonic() if limits else None
            if not self._runner.wait_for_stop(self._process, left_s):
                self._finish(End.EXITED)
            elif self._runner.interrupted:
                self.cancel()
            elif self._is_late():
                self._end(End.TIMED_OUT)
            elif until is not None and time.monotonic() >= until:
                return None
        return self._result

    def _is_late(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def cancel(self) -> None:
        if self._result is None:
            self._end(End.CANCELLED)

    def stop(self) -> None:
        if self.poll() is None:
            self._end(End.STOPPED)

    def _end(self, end: End) -> None:
        self._tree.end(self._runner.grace_s, self._runner.in_a_hurry)
        self._finish(end)

    def _finish(self, end: End) -> None:
        duration_s = time.monotonic() - self._start
        # The command is over, but it may have left something running in the background. That is ended before the
        # leader is reaped: until then nobody else can be given its pid.
        self._tree.end(self._runner.grace_s, self._runner.in_a_hurry)
        code = self._process.wait()
        with self._runner.starting_or_ending:
            self._runner.num_running -= 1
            self._runner.end_stragglers()
        self._runner.room.give_back(self._slot)
        exit_code = code if end is End.EXITED else None
        self._result = JobResult(end=end, exit_code=exit_code, duration_s=duration_s, place=self._slot.place)


class _Pidfd:
    """Hold a file descriptor that becomes readable when the process exits."""

    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _start(command: str, files: TrialFolder, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    line = ParsedCommand.of(command)
    environment = {**os.environ, **variables, MARK: str(files.path)}
    if line.needs_shell:
        argv = _shell_argv(command)
    else:
        argv = line.argv()
        environment |= line.assignments()
    with files.log.open("ab") as log:
        return subprocess.Popen(
            ["/bin/sh", "-c", _SHELL, "zenithtune-trial", *argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def _shell_argv(command: str) -> list[str]:
    """Run shell text by bash with pipefail, so that `train | tee log` fails when the training does."""
    bash = shutil.which("bash")
    return [bash, "-o", "pipefail", "-c", command] if bash else ["/bin/sh", "-c", command]
