"""What a job that uses Accelerate says it ran as, beside what was asked for: a job may exit with 0 and be another.

The lines are those of the trial's own hook (presets/accelerate_hook.py), one for each process that prepares a model and
one for each step of the first rank.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from zenith_tune.study.parameters import Value
from zenith_tune.study.trial_log import lines_of

PREFIX = "zenithtune-accelerate: "
WRAPPER_WORDS = {
    "DistributedDataParallel": "plain data parallelism",
    "DeepSpeedEngine": "DeepSpeed",
    "FSDPModule": "FSDP version 2",
    "FullyShardedDataParallel": "FSDP version 1",
    "MegatronEngine": "Megatron-LM",
}
"""What a model may be wrapped in, and what that is called."""
PLAIN = "DistributedDataParallel"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAsked:
    """Hold what a trial asked for; None and nothing are not compared."""

    num_processes: int
    wrapper: str | None
    """The class that the model must be wrapped in; None of a job of one process."""
    passes: int | None = None
    """Backward passes of one process for one step."""
    micro_batch: int | None = None
    settings: Mapping[str, Value] = field(default_factory=dict)
    """Fields of Accelerate's plugins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Hold one step of the first rank."""

    number: int
    at_s: float
    passes: int
    is_end: bool = False
    """It is of the last batches of a dataloader, however few: Accelerate steps at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccelerateRun:
    """Hold what a log tells."""

    reports: Sequence[Mapping[str, Any]]
    """What each process said of the model that it prepared: of several the last that is wrapped, else the last."""
    steps: Sequence[Step]
    peak_bytes: int | None = None

    @classmethod
    def read(cls, log: str) -> Self:
        """Read the hook's lines; what else a log holds does not count."""
        reports: dict[str, Mapping[str, Any]] = {}
        steps: dict[int, Step] = {}
        peak = 0
        for event in _events(log):
            if event.get("event") == "prepared" and type(event.get("processes")) is int:
                process = str(event.get("process"))
                if (
                    event.get("wrapper") in WRAPPER_WORDS
                    or reports.get(process, {}).get("wrapper") not in WRAPPER_WORDS
                ):
                    reports[process] = event
            elif event.get("event") == "step" and (step := _step(event)) is not None:
                if step.number == 1:  # of several programs that a command runs in turn, the last one counts
                    steps = {}
                steps[step.number] = step
                peak = max(peak, event["peak_bytes"] if type(event.get("peak_bytes")) is int else 0)
        return cls(reports=list(reports.values()), steps=list(steps.values()), peak_bytes=peak or None)

    @property
    def usual_passes(self) -> int:
        """The backward passes that most steps took; those at the end of a dataloader tell only where no others are."""
        later = self.steps[1:]  # nobody saw the beginning of the first
        told = [step.passes for step in later if not step.is_end] or [step.passes for step in later]
        return statistics.mode(told) if told else 0

    @property
    def seconds(self) -> list[float]:
        """The time of each step but the first and those of fewer passes than usual, whose batch is another."""
        usual = self.usual_passes
        pairs = itertools.pairwise(self.steps)
        return [b.at_s - a.at_s for a, b in pairs if b.at_s > a.at_s and b.passes == usual]

    def fault(self, asked: RunAsked) -> str | None:
        """Return in one line how the job differs from what was asked for."""
        if not self.reports:
            cure = "prepare the model by Accelerator.prepare, or give --args check=false"
            return f"the job told no model that Accelerate prepared, so nobody knows what it ran as: {cure}"
        return self._world_fault(asked) or self._wrapper_fault(asked) or self._settings_fault(asked)

    def _world_fault(self, asked: RunAsked) -> str | None:
        sizes = {int(report["processes"]) for report in self.reports}
        if sizes == {asked.num_processes}:
            return None
        one = "process" if asked.num_processes == 1 else "processes"
        wanted = f"where one job of {asked.num_processes} {one} was asked for"
        if sizes == {1} and len(self.reports) == 1:
            return f"the job ran as one process, {wanted}"
        if sizes == {1}:
            return f"the job ran as {len(self.reports)} unrelated processes, each a world of its own, {wanted}"
        ran = " and ".join(map(str, sorted(sizes)))
        return f"the job ran as a world of {ran}, {wanted}"

    def _wrapper_fault(self, asked: RunAsked) -> str | None:
        wrappers = sorted({str(report.get("wrapper")) for report in self.reports})
        if asked.wrapper is None or wrappers == [asked.wrapper]:
            return None
        wanted = f"where {WRAPPER_WORDS[asked.wrapper]} ({asked.wrapper}) was asked for"
        other = next(name for name in wrappers if name != asked.wrapper)
        if other in WRAPPER_WORDS:
            return f"the job ran with {WRAPPER_WORDS[other]} ({other}), {wanted}"
        return f"the model was left unwrapped ({other}), {wanted}"

    def _settings_fault(self, asked: RunAsked) -> str | None:
        report = self.reports[0]
        held = report.get("settings")
        for name, wanted in asked.settings.items():
            value = held.get(name) if isinstance(held, Mapping) else None
            if value is not None and str(value).lower() != str(wanted).lower():
                cure = "the script, or an older Accelerate, decides on it"
                return f"the job ran with {name} {value}, where {wanted} was asked for: {cure}"
        sizes = report.get("batch_sizes")
        if asked.micro_batch is not None and isinstance(sizes, list) and sizes and asked.micro_batch not in sizes:
            law = f"the dataloader's batch size was {sizes[0]}, where micro-batch {asked.micro_batch} was asked for"
            return f"{law}: name the script's option by mbs_option"
        return self._passes_fault(asked.passes)

    def _passes_fault(self, wanted: int | None) -> str | None:
        usual = self.usual_passes
        if wanted is None or usual in (0, wanted):
            return None
        law = f"most steps took {usual} backward {'pass' if usual == 1 else 'passes'}, where {wanted}"
        law += f" {'was' if wanted == 1 else 'were'} asked for"
        if all(step.is_end for step in self.steps[1:]):
            return f"{law}, because the dataloader ends with each of them: give it more batches, or a smaller gbs"
        return f"{law}: train under accelerator.accumulate(model)"


def _events(log: str) -> list[dict[str, Any]]:
    found = []
    for line in lines_of(log):
        _, prefix, text = line.partition(PREFIX)
        if not prefix:
            continue
        try:
            event = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            found.append(event)
    return found


def _step(event: Mapping[str, Any]) -> Step | None:
    number, at_s, passes = event.get("step"), event.get("seconds"), event.get("passes")
    if type(number) is not int or not isinstance(at_s, int | float) or type(passes) is not int:
        return None
    return Step(number=number, at_s=float(at_s), passes=passes, is_end=event.get("is_end") is True)
