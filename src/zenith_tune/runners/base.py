"""The contract of a runner: it starts a command in a folder and hands back a Job; one loop serves every engine."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, overload

from zenith_tune.errors import UsageError
from zenith_tune.registry import Registry, construct
from zenith_tune.runners.launch.own_command import check_script, replaced_settings
from zenith_tune.study.files import TrialFolder, open_regular
from zenith_tune.study.resources import InPlace, Resources
from zenith_tune.units import MIB, whole

OnState: TypeAlias = Callable[[str], None]
"""Called with what a job waits for or where it runs: `pending (Resources)`, `running on n1`."""


def nobody_listens(state: str) -> None:
    """Ignore a job's state."""


class End(StrEnum):
    """The reason why a job is over."""

    EXITED = "exited"
    TIMED_OUT = "timed out"
    SILENT = "silent"
    """Ended because it had printed nothing for too long."""
    CANCELLED = "cancelled"
    STOPPED = "stopped"
    """Ended because its output already suffices; what it printed until then counts."""
    LOST = "lost"
    """The machine under it failed, which says nothing about the command."""
    REVOKED = "revoked"
    """Somebody else ended it: a person, or the scheduler for another job's sake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """The end of a job; `exit_code` is None where nobody saw the process exit by itself."""

    end: End
    exit_code: int | None
    duration_s: float
    """Seconds of running, without those of waiting for its machine."""
    place: str = ""
    """The nodes or GPUs on which it ran: `n1,n2`, or `GPU 2,3`."""
    reason: str = ""
    """The reason for its end, in one line, where something other than the command knows."""
    usage: Mapping[str, float] = field(default_factory=dict)
    """Figures of how busy it kept its machine, by name, where the runner can see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One trial's request to a runner, for one node or several."""

    command: str
    folder: Path
    resources: Resources
    timeout_s: float | None = None
    """Limit on the time that the command runs, not on the time that it waits for its machine."""
    on_state: OnState = nobody_listens
    in_place: InPlace | None = None
    """How a process that runs already may measure it, where the runner can keep one."""


class Job(ABC):
    """One command, in the image of a Future; an engine gives `start`, `look`, `kill` and perhaps `pause`."""

    log_path: Path
    has_own_start: bool = True
    """Whether the command was started for it."""

    def __init__(self, runner: Runner, request: JobRequest) -> None:
        self.runner = runner
        self.request = request
        self.files = TrialFolder(request.folder)
        self.log_path = self.files.log
        self.began: float | None = None
        """When the command began to run, by the runner's clock; None while it waits for its machine."""
        self._result: JobResult | None = None
        runner.count_jobs(1)
        try:
            self.start()
        except BaseException:
            runner.count_jobs(-1)
            raise

    @abstractmethod
    def start(self) -> None:
        """Start the command, or queue it; sets `began` once it runs."""

    @abstractmethod
    def look(self) -> JobResult | None:
        """Return how the job ended by itself, None while it waits or runs; not asked again once it is over."""

    @abstractmethod
    def kill(self, end: End) -> JobResult:
        """End the job with everything that it started; the result has this `end`, unless it was over before."""

    def pause(self, limit_s: float) -> None:
        """Sleep until the job may be over or the runner was interrupted, at most `limit_s`, which may be infinite."""
        time.sleep(max(min(limit_s, _PAUSE_S), 0.0))

    def poll(self) -> JobResult | None:
        """Return the result, or None while the job waits or runs."""
        if self._result is None and (result := self.look()) is not None:
            self._finish(result)
        elif self._result is None and self.runner.clock() >= self._deadline():
            self._finish(self.kill(End.TIMED_OUT))
        elif self._result is None:
            limit_log(self.log_path)
        return self._result

    @overload
    def wait(self, timeout_s: None = None) -> JobResult: ...

    @overload
    def wait(self, timeout_s: float) -> JobResult | None: ...

    def wait(self, timeout_s: float | None = None) -> JobResult | None:
        """Block until the job is over, its own limit strikes, or the runner is interrupted.

        Returns None where the job still runs after `timeout_s` seconds.
        """
        until = math.inf if timeout_s is None else self.runner.clock() + timeout_s
        while self.poll() is None:
            now = self.runner.clock()
            if self.runner.num_interrupts:
                self.cancel()
            elif now >= until:
                return None
            else:
                self.pause(min(until, self._deadline()) - now)
        return self._result

    def cancel(self) -> None:
        """End the job and everything that it started; returns when all of it is gone."""
        if self._result is None:
            self._finish(self.kill(End.CANCELLED))

    def stop(self) -> None:
        """End the job as `cancel` does, because its output suffices; one that is over already keeps its result."""
        if self.poll() is None:
            self._finish(self.kill(End.STOPPED))

    def ran_s(self) -> float:
        """Return the seconds since the command began to run."""
        return 0.0 if self.began is None else self.runner.clock() - self.began

    def _deadline(self) -> float:
        limit_s = self.request.timeout_s
        return math.inf if self.began is None or limit_s is None else self.began + limit_s

    def _finish(self, result: JobResult) -> None:
        self._result = result
        limit_log(self.log_path)
        self.runner.count_jobs(-1)


MAX_LOG_BYTES = 200 * MIB
"""Above this a log is cut to half: its first quarter and its end stay. Evaluators read 32 MiB of it."""
_LONG_LINE_BYTES = 64 * 1024
_LEFT_OUT = b"[... left out: the log grew too large ...]\n"


def limit_log(path: Path) -> None:
    """Cut the middle out of a log above the limit, while programs append to it; one that cannot be cut stays."""
    with contextlib.suppress(OSError):
        if path.stat().st_size > MAX_LOG_BYTES:
            with open_regular(path, writable=True) as file:
                _cut(file)


def _cut(file: BinaryIO) -> None:
    file.seek(MAX_LOG_BYTES // 4)
    file.readline(_LONG_LINE_BYTES)
    head = file.tell()
    file.seek(-MAX_LOG_BYTES // 4, os.SEEK_END)
    file.readline(_LONG_LINE_BYTES)
    tail = file.read(MAX_LOG_BYTES // 4)
    end = file.tell()
    file.seek(head)
    file.write(_LEFT_OUT + tail)
    # What was printed while the end was copied may be the last lines of all.
    file.seek(end)
    printed = file.read(MAX_LOG_BYTES // 8)
    file.seek(head + len(_LEFT_OUT) + len(tail))
    file.write(printed)
    file.truncate()


_PAUSE_S = 0.05
_COUNTING = threading.Lock()


class Runner(ABC):
    """A place where commands run; an engine gives `start` and `recover`, and what else differs from the defaults."""

    num_slots: int = 1
    """Number of jobs that may run side by side."""
    num_running: int = 0
    """Number of jobs under way, including those that wait for their machine."""
    num_interrupts: int = 0
    """Number of times that the user asked to stop."""
    grace_s: float = 5.0
    """Seconds between SIGTERM and SIGKILL when a trial is ended."""
    shares_machine: bool = False
    """True: jobs side by side run on one machine and may slow one another."""
    note: str = ""
    """A line for the user about where the trials run, once the study is prepared."""
    own_variables: Mapping[str, str] = {}
    """The environment variables that each trial has for itself, each with its meaning; after `prepare`."""
    shares_nodes: bool = False
    """Whether two trials may be on one node; after `prepare`."""
    has_own_programs: bool = False
    """Whether commands run where other programs are installed than here, such as in a container."""

    def prepare(self, resources: Resources, parallel: int | None = 1) -> None:
        """Take in what each trial of a study needs, and how many may run side by side (None: as many as there is room).

        Sets `num_slots`, which the study then keeps to. Raises UsageError where such a trial can never start.
        """
        self.num_slots = parallel or 1

    def warnings(self) -> list[str]:
        """Return what the user should know of where the trials run, one line each; after `prepare`."""
        return []

    def notes(self) -> list[str]:
        """Return how trials are placed, one line each; after `prepare`."""
        return [self.note] if self.note else []

    def command_notes(self, command: str) -> list[str]:
        """Return what a command sets for itself and trials have of their own, one line each; after `prepare`.

        Raises UsageError for a command that cannot be kept to what a trial has of its own.
        """
        if self.shares_nodes:
            check_script(command, self.own_variables)
        return replaced_settings(command, self.own_variables)

    def submit(
        self,
        command: str,
        folder: Path,
        resources: Resources,
        *,
        timeout_s: float | None = None,
        on_state: OnState = nobody_listens,
        in_place: InPlace | None = None,
    ) -> Job:
        """Start `command` with its log in `folder`; `wait` and `poll` end it once it has run for `timeout_s`."""
        self.command_notes(command)
        return self.start(
            JobRequest(
                command=command,
                folder=folder,
                resources=resources,
                timeout_s=timeout_s,
                on_state=on_state,
                in_place=in_place,
            )
        )

    def release(self) -> None:  # noqa: B027 - most runners keep none
        """End a process that is kept for further points."""

    @abstractmethod
    def start(self, request: JobRequest) -> Job:
        """Return the job of a request that may run here."""

    def find(self, folder: Path, *, timeout_s: float | None = None, on_state: OnState = nobody_listens) -> Job | None:
        """Return the job that an earlier, killed tuner left in `folder`, if it still waits or runs and may continue.

        None where there is none, and where the runner would rather end it, which `recover` does.
        """
        return None

    @abstractmethod
    def recover(self, folder: Path) -> JobResult | None:
        """Deal with a job that an earlier, killed tuner left in `folder`.

        Ends whatever of it still runs. Returns how it ended if it had finished by itself, else None.
        """

    def clock(self) -> float:
        """Return the seconds by which trials are timed; where they are simulated, the clock is simulated too."""
        return time.monotonic()

    def interrupt(self) -> None:
        """Make every `wait` end its job and return; called from a signal handler. Twice: without any grace."""
        self.num_interrupts += 1

    def in_a_hurry(self) -> bool:
        """Tell whether the user asked twice: then nothing gets time to end by itself."""
        return self.num_interrupts > 1

    def reset(self) -> None:
        """Forget earlier interrupts; a study begins."""
        self.num_interrupts = 0

    def close(self) -> None:  # noqa: B027 - most runners hold nothing
        """Let go of what the runner holds."""

    def count_jobs(self, change: int) -> None:
        """Count jobs that begin or end, in whichever thread."""
        with _COUNTING:
            self.num_running += change


RunnerRegistry: Registry[Runner] = Registry(
    "runner",
    "zenith_tune.runners",
    {
        "hostfile": "zenith_tune.runners.hostfile.runner",
        "local": "zenith_tune.runners.local.runner",
        "ray": "zenith_tune.runners.ray.runner",
        "slurm": "zenith_tune.runners.slurm.runner",
    },
    contract=Runner,
    siblings={"kubernetes": "kubernetes"},
)


MAX_S = 3600.0


def check_seconds(runner: str, name: str, value_s: float, least_s: float = 0.0) -> None:
    """Refuse a time that cannot be kept, and one longer than anybody waits."""
    if not least_s <= value_s <= MAX_S:
        problem = f"{runner}: {name} must be from {least_s:g} to {MAX_S:g} seconds"
        raise UsageError(f"{problem}, but got {value_s:g}", hint=f"give e.g. {name}=5, or leave it out")


MAX_PARALLEL = 1000


def make_runner(name: str, args: Mapping[str, Any] | None = None) -> Runner:
    """Return a runner by its name; an unknown name or argument is a UsageError that lists the known ones."""
    return construct(RunnerRegistry.get(name), args or {}, f"runner {name}")


def named_runner(
    options: Mapping[str, Any], runner_args: Mapping[str, str], **engines: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    """Return the runner that the options of the command line name, and its arguments.

    --slurm, --kubernetes, --ray-address and --hostfile each name a runner by themselves; two that do not agree are
    refused.
    """
    short: dict[str, tuple[str, dict[str, str]]] = {
        **{f"--{name}": (name, dict(args)) for name, args in engines.items()},
        "--ray-address": ("ray", {"address": options["ray_address"]} if options["ray_address"] else {}),
        "--hostfile": ("hostfile", {"hostfile": options["hostfile"]} if options["hostfile"] else {}),
    }
    given = {option: named for option, named in short.items() if named[1]}
    names = {named for named, _ in given.values()} | ({options["runner"]} if options["runner"] else set())
    if len(names) > 1:
        said = [*given, *(["--runner " + options["runner"]] if options["runner"] else [])]
        raise UsageError(f"trials run in one place, but got {' and '.join(said)}", hint="give one of them")
    args = {name: value for _, pairs in given.values() for name, value in pairs.items()}
    if twice := set(args) & set(runner_args):
        raise UsageError(f"--runner-args gives {min(twice)!r} a second time", hint="give it once")
    return next(iter(names), "local"), {**args, **runner_args}


def parallel_trials(text: str) -> int | None:
    """Read --parallel: a number from 1, or None for `auto`."""
    if text == "auto":
        return None
    if not 0 < (whole(text) or 0) <= MAX_PARALLEL:
        raise UsageError(f"--parallel must be auto or a number from 1 to {MAX_PARALLEL}, but got {text!r}")
    return int(text)
