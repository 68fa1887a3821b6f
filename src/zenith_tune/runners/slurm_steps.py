"""Starts trials as steps inside an allocation that the user already has."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from zenith_tune.errors import UsageError
from zenith_tune.runners.base import Job, OnState, Runner
from zenith_tune.runners.slurm.allocation import NODES_FILE, SlurmAllocation, is_step
from zenith_tune.runners.slurm.client import SlurmClient
from zenith_tune.runners.slurm.request import SlurmRequest
from zenith_tune.runners.slurm.step import SlurmStep, StepTerms, end_steps
from zenith_tune.runners.slurm.submission import SlurmSubmission
from zenith_tune.runners.slurm_launch import Launch
from zenith_tune.runners.slurm_seats import SlurmSeats, StepSeat
from zenith_tune.study.files import TrialFolder
from zenith_tune.study.resources import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStart:
    """Hold what one trial is to be started with."""

    command: str
    files: TrialFolder
    needs: Resources
    launch: Launch
    num_slots: int
    timeout_s: float | None
    on_state: OnState
    on_over: Callable[[], None]


class SlurmSteps:
    """Hold an allocation, and what of it the tuner itself has handed out."""

    def __init__(self, job_id: str, client: SlurmClient, local: Runner, request: SlurmRequest, setup: str) -> None:
        self.job_id = job_id
        self._client = client
        self._local = local
        self._request = request
        self._setup = setup
        self._allocation: SlurmAllocation | None = None
        self._seats: SlurmSeats | None = None
        """None where Slurm itself finds the room for each step."""

    @property
    def num_nodes(self) -> int:
        """How many nodes the allocation has."""
        return len(self._find_allocation().nodes)

    def prepare(self, needs: Resources) -> int:
        """Return how many trials fit side by side; raises UsageError where not even one does."""
        allocation = self._find_allocation()
        room = allocation.num_slots(self._request, needs)
        self._seats = allocation.seats(self._request, needs) if allocation.is_held else None
        return room

    def start(self, trial: StepStart) -> Job:
        """Start a trial's step; it may have to wait for room."""
        needs, is_one_step = trial.needs, is_step(trial.launch, trial.needs)
        if not is_one_step and trial.num_slots > 1:
            law = "a command that starts its own ranks on several nodes has an allocation to itself"
            raise UsageError(f"{law}, but {trial.num_slots} are to run side by side: give --parallel 1, or steps=false")
        allocation, submission = self._find_allocation(), SlurmSubmission(self._client, trial.files)
        if allocation.is_held and self._seats is None:
            self._seats = allocation.seats(self._request, needs)
        seat = self._seats.take(needs.avoid) if self._seats is not None else None
        name = submission.prefix
        terms = StepTerms(
            job_id=self.job_id,
            timeout_s=trial.timeout_s,
            on_state=trial.on_state,
            on_over=lambda: self._is_over(seat, trial.on_over),
            sweep=lambda: end_steps(self._client, self.job_id, name),
            waits=is_one_step,
        )
        try:
            command = allocation.step_command(
                trial.command, name, trial.launch, self._request, needs, self._setup, seat
            )
            submission.note(name=name, allocation=self.job_id)
            # What an earlier run of the trial noted would look like this one's word that it has begun.
            (trial.files.path / NODES_FILE).unlink(missing_ok=True)
            return SlurmStep(self._local.submit(command, trial.files.path, Resources()), trial.files, terms)
        except BaseException:
            self._give_back(seat)
            raise

    def _find_allocation(self) -> SlurmAllocation:
        if self._allocation is None:
            self._allocation = SlurmAllocation.read(self._client, self.job_id, os.environ)
        return self._allocation

    def _is_over(self, seat: StepSeat | None, on_over: Callable[[], None]) -> None:
        self._give_back(seat)
        on_over()

    def _give_back(self, seat: StepSeat | None) -> None:
        if self._seats is not None and seat is not None:
            self._seats.give_back(seat)
