"""The contract of a runner: it starts a command in a folder and hands back a Job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import overload


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Say what a trial needs."""

    nodes: int = 1
    gpus_per_node: int | None = None
    """None: whatever the command finds by itself."""


class End(StrEnum):
    """Say why a job is over."""

    EXITED = "exited"
    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    STOPPED = "stopped"
    """Ended because it had told enough; what it printed until then counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """Hold how a job ended; `exit_code` is None where nobody saw the process exit by itself."""

    end: End
    exit_code: int | None
    duration_s: float


class Job(ABC):
    """Stand for one running command, in the image of a Future."""

    log_path: Path

    @abstractmethod
    def poll(self) -> JobResult | None:
        """Return the result, or None while the job runs."""

    @overload
    def wait(self, timeout_s: None = None) -> JobResult: ...

    @overload
    def wait(self, timeout_s: float) -> JobResult | None: ...

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> JobResult | None:
        """Block until the job is over, its own timeout strikes, or the runner is told to stop.

        Returns None where the job still runs after `timeout_s` seconds.
        """

    @abstractmethod
    def cancel(self) -> None:
        """End the job and everything that it started; returns when all of it is gone."""

    @abstractmethod
    def stop(self) -> None:
        """End the job as `cancel` does, because it has told enough; one that is over already keeps its result."""


class Runner(ABC):
    """Start commands."""

    num_slots: int = 1
    """How many jobs may run side by side."""
    num_running: int = 0
    """How many jobs run right now."""

    @abstractmethod
    def submit(self, command: str, folder: Path, resources: Resources, *, timeout_s: float | None = None) -> Job:
        """Start `command` with its log in `folder`; `wait` and `poll` end it once `timeout_s` have passed."""

    @abstractmethod
    def recover(self, folder: Path) -> int | None:
        """Deal with a job that an earlier, killed tuner left in `folder`.

        Ends whatever of it still runs. Returns its exit code if it had finished by itself, else None.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """Make every `wait` end its job and return; called from a signal handler. Twice: without any grace."""

    @abstractmethod
    def reset(self) -> None:
        """Forget earlier interrupts; a study begins."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what the runner holds."""
