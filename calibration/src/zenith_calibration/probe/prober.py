"""Runs single ranks of a layout one after the other, each for a few steps, and reads what they measured."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from zenith_calibration.probe.fake_rank import FakeRank, fake_rank, probed_stages
from zenith_calibration.probe.probe_job import ProbeJob
from zenith_calibration.probe.probed_layout import ProbedLayout, ProbedStage, StageProbe, stage_plans
from zenith_tune.describe.machine import nvidia_smi
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.failures.failures import classify
from zenith_tune.hooks.injection import HOOK_FOLDER, hook_files
from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.planner import Planner
from zenith_tune.presets.megatron.log import read_steps
from zenith_tune.runners.base import End, Job, JobResult, Runner
from zenith_tune.shell.secrets import find_secrets, mask, mask_file
from zenith_tune.study.files import TrialFolder, open_regular, write_json
from zenith_tune.study.resources import Resources
from zenith_tune.study.trial import Outcome
from zenith_tune.study.trial_log import TrialLog, clean_line
from zenith_tune.units import MIB

TIMEOUT_S = 10.0


class UsedMemory:
    """The highest memory use of a GPU over several looks."""

    def __init__(self) -> None:
        self._answers = True
        self.most_bytes: int | None = None
        """The highest figure seen, for all processes together; None where it is not known."""

    def look(self) -> None:
        """Ask once; a machine without an answer is not asked again."""
        if not self._answers:
            return
        # A rank under probe runs on the first GPU that it can see.
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip() or "0"
        query = (f"--id={first}", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
        try:
            used = int(nvidia_smi(*query, timeout_s=TIMEOUT_S).split()[0]) * MIB
        except (UsageError, ValueError, IndexError):
            self._answers = False
            return
        self.most_bytes = max(used, self.most_bytes or 0)


MAX_BYTES = 4 * MIB
MOST_LETTERS = 80
"""Letters of a GPU's name that are kept."""
LOG_SKIPPED = 2
"""Lines of a log that hold the start: Megatron prints its first iteration alone, and counts it again in the next."""
LEAST_STEP_S, MOST_STEP_S = 1e-6, 86_400.0
"""Plausible step times."""
MOST_BYTES = 2**40
"""Largest plausible memory of one GPU."""


def is_step(seconds: float) -> bool:
    """Tell whether a step can take so long."""
    return LEAST_STEP_S <= seconds <= MOST_STEP_S


def is_memory(num_bytes: float) -> bool:
    """Tell whether a GPU can have so much in use."""
    return 0 < num_bytes <= MOST_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """The steps of one rank, and its peak memory until the last of them."""

    steps_s: tuple[float, ...] = ()
    """Seconds of each whole step after the first, which holds the start."""
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    """Bytes in use on the device, including the CUDA context."""
    gpu: str = ""
    source: str = "nothing"
    """Source of the figures: hook, log or nothing."""

    def cut_to(self, num_steps: int) -> StepRecord:
        """Return the record with no more steps than were asked for: fast ranks run on until the next look."""
        return replace(self, steps_s=self.steps_s[:num_steps])

    @property
    def step_s(self) -> float | None:
        """The usual step, or None where none was seen."""
        return statistics.median(self.steps_s) if self.steps_s else None


def read_record(path: Path) -> StepRecord:
    """Read what the hook wrote; lines that are torn or not its own are left out."""
    lines = [line for line in _lines(path) if _seconds(line) is not None]
    if not lines:
        return StepRecord()
    # A model with experts has two optimizers, which step one after the other: the first one's steps are counted.
    ends = [_seconds(line) or 0.0 for line in lines if line.get("optimizer") == lines[0].get("optimizer")]
    steps = [after - before for before, after in itertools.pairwise(ends)]
    return StepRecord(
        steps_s=tuple(step for step in steps if is_step(step)),
        allocated_bytes=_most(lines, "allocated"),
        reserved_bytes=_most(lines, "reserved"),
        device_bytes=_most(lines, "device"),
        gpu=clean_line(str(lines[-1].get("gpu", "")), MOST_LETTERS),
        source="hook",
    )


def read_log(log: str) -> StepRecord:
    """Read the iteration lines and memory reports of a rank that prints them."""
    logged = read_steps(log)
    if not logged.steps:
        return StepRecord()
    reserved = logged.peak_bytes
    return StepRecord(
        steps_s=tuple(step.seconds for step in logged.steps[LOG_SKIPPED:] if step.seconds and is_step(step.seconds)),
        reserved_bytes=reserved if reserved is not None and is_memory(reserved) else None,
        source="log",
    )


def _lines(path: Path) -> list[Mapping[str, Any]]:
    try:
        with open_regular(path) as file:
            text = file.read(MAX_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return []
    found: list[Mapping[str, Any]] = []
    for line in text.split("\n")[:-1]:
        with contextlib.suppress(ValueError):  # a torn line
            if isinstance(value := json.loads(line), dict):
                found.append(value)
    return found


def _seconds(line: Mapping[str, Any]) -> float | None:
    value = line.get("seconds")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _most(lines: Sequence[Mapping[str, Any]], name: str) -> int | None:
    values = (line.get(name) for line in lines)
    return max((value for value in values if type(value) is int and is_memory(value)), default=None)


LOOK_S = 0.5
"""Seconds between two looks at a running rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prober:
    """A probe of one job's layouts."""

    planner: Planner
    runner: Runner
    folder: Path
    job: ProbeJob
    num_steps: int
    """Number of whole steps after the first that are measured."""
    timeout_s: float | None = None
    """Limit on the time of one rank."""
    notify: Callable[[str], None] = lambda line: None

    def probe(self, layout: Layout, number: int = 1) -> ProbedLayout:
        """Run the stages that matter; after one that fails no other is run, as the layout does not train anyway."""
        planned, stages = self.planner.evaluate([layout])[0], probed_stages(layout.pp)
        plans, probed = stage_plans(self.planner, layout, stages), []
        for plan in plans:
            self.notify(f"{planned.name}: stage {plan.stage} of {layout.pp}")
            place = TrialFolder(self.folder / f"layout-{number}" / f"stage-{plan.stage}")
            stage = self._stage(layout, plan.stage, place)
            probed.append(ProbedStage(probe=stage, plan=plan, num_micro_batches=layout.num_micro_batches))
            if not stage.ok:
                break
        return ProbedLayout(planned=planned, stages=tuple(probed))

    def _stage(self, layout: Layout, stage: int, files: TrialFolder) -> StageProbe:
        files.path.mkdir(parents=True, exist_ok=True)
        record = files.path / "steps.jsonl"
        for name, text in hook_files({"probe": {"record": str(record)}}).items():
            (files.path / name).parent.mkdir(parents=True, exist_ok=True)
            (files.path / name).write_text(text, encoding="utf-8")
        rank = fake_rank(self.job.run_of(layout), layout, stage, files.path / HOOK_FOLDER)
        secrets = find_secrets(rank.command)
        files.command.write_text(f"#!/usr/bin/env bash\n{mask(rank.command, secrets)}\n", encoding="utf-8")
        job = self.runner.submit(rank.command, files.path, Resources(), timeout_s=self.timeout_s)
        memory = UsedMemory()
        try:
            result = self._wait(job, record, files, memory)
        finally:
            job.cancel()  # whatever went wrong, nothing may be left running, and no secret in the log
            mask_file(files.log, secrets)
        found = replace(self._read(rank, files, record, result, memory), command=mask(rank.command, secrets))
        write_json(files.trial, asdict(found))  # the last of its files: a rank without it was cut off
        return found

    def _wait(self, job: Job, record: Path, files: TrialFolder, memory: UsedMemory) -> JobResult:
        while (result := job.wait(LOOK_S)) is None:
            steps = read_record(record)
            if steps.source == "nothing":
                memory.look()
                steps = read_log(TrialLog(files.log).text())
            if len(steps.steps_s) >= self.num_steps:
                job.stop()
        return result

    def _read(
        self, rank: FakeRank, files: TrialFolder, record: Path, result: JobResult, memory: UsedMemory
    ) -> StageProbe:
        log = TrialLog(files.log).text()
        steps = read_record(record)
        if steps.source == "nothing":
            steps = read_log(log)
        steps = steps.cut_to(self.num_steps)
        outcome, cause = _outcome(log, result, steps)
        return StageProbe(
            stage=rank.stage,
            rank=rank.rank,
            outcome=outcome,
            cause=cause,
            num_micro_batches=rank.num_micro_batches,
            step_s=steps.step_s,
            num_steps=len(steps.steps_s),
            allocated_bytes=steps.allocated_bytes,
            reserved_bytes=steps.reserved_bytes,
            device_bytes=steps.device_bytes or memory.most_bytes,
            gpu=steps.gpu,
            source=steps.source if steps.reserved_bytes else "nvidia-smi" if memory.most_bytes else steps.source,
            duration_s=result.duration_s,
        )


def _outcome(log: str, result: JobResult, steps: StepRecord) -> tuple[Outcome, str]:
    if result.end is End.CANCELLED:
        return Outcome.CANCELLED, "interrupted"
    if result.end is End.STOPPED or (result.exit_code == 0 and steps.steps_s):
        return Outcome.OK, ""
    failure = classify(log, result.exit_code, timed_out=result.end is End.TIMED_OUT)
    if failure is not None:
        return failure.outcome, failure.message
    return Outcome.ERROR, "it ended without a step of training; its log says why"
