"""A run by the lines of its hooks: what it ran as, compared with what its trial asked for, and its steps.

A job may exit with 0 and be another than what was asked for. Each process that prepares a model writes a line, and the
first rank one for each step.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from zenith_tune.hooks.injection import hook_events
from zenith_tune.study.parameters import Value
from zenith_tune.units import positive_int

WRAPPER_NAMES = {
    "DistributedDataParallel": "plain data parallelism",
    "DeepSpeedEngine": "DeepSpeed",
    "FSDPModule": "FSDP version 2",
    "FullyShardedDataParallel": "FSDP version 1",
    "MegatronEngine": "Megatron-LM",
}
"""Names of the wrappers of a model, by class."""
PLAIN = "DistributedDataParallel"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAsked:
    """What a trial asked for; None and empty fields are not compared."""

    num_processes: int
    wrapper: str | None
    """The class that the model must be wrapped in; None for a job of one process."""
    passes: int | None = None
    """Backward passes of one process for one step."""
    micro_batch: int | None = None
    settings: Mapping[str, Value] = field(default_factory=dict)
    """Values by field of Accelerate's plugins."""
    other_wrappers: tuple[str, ...] = ()
    """Other wrappers that are accepted, because the script may make a plugin that no file shows."""
    batch: int | None = None
    """Samples of an update of `accumulation` micro-batches, by the command and its file."""
    accumulation: int | None = None
    samples: int | None = None
    """Samples of an update of the user's own command, by its loader."""
    script_accumulation: int | None = None
    """The accumulation that is assumed where no run of the user's own command has shown it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookedStep:
    """One step of the first rank."""

    number: int
    at_s: float
    passes: int
    samples: int | None = None
    """Samples over all ranks, where the loader shows them."""
    sequence: int | None = None
    """Tokens of its longest sequence."""
    tokens: int | None = None
    """Tokens of the first rank without padding."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the phases that the trainer times."""
    is_end: bool = False
    """Whether it ends a dataloader, where Accelerate steps after however few batches are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookedRun:
    """A run by the lines of its hooks."""

    reports: Sequence[Mapping[str, Any]]
    """The report of each process on the model that it prepared; of several, the last that is wrapped, else the last."""
    steps: Sequence[HookedStep]
    peak_bytes: int | None = None
    model: Mapping[str, Any] | None = None
    """The report of the first rank on the model that it trained."""

    @classmethod
    def read(cls, log: str) -> Self:
        reports: dict[str, Mapping[str, Any]] = {}
        steps: dict[int, HookedStep] = {}
        peak, model = 0, None
        for event in hook_events(log):
            if event.get("event") == "prepared" and type(event.get("processes")) is int:
                process = str(event.get("process"))
                if (
                    event.get("wrapper") in WRAPPER_NAMES
                    or reports.get(process, {}).get("wrapper") not in WRAPPER_NAMES
                ):
                    reports[process] = event
            elif event.get("event") == "model":
                model = event if positive_int(event.get("trained")) and positive_int(event.get("parameters")) else model
            elif event.get("event") == "step" and (step := _step(event)) is not None:
                if step.number == 1:  # a command may run several programs: the last one counts
                    steps = {}
                steps[step.number] = step
                peak = max(peak, event["peak_bytes"] if type(event.get("peak_bytes")) is int else 0)
        return cls(reports=list(reports.values()), steps=list(steps.values()), peak_bytes=peak or None, model=model)

    @property
    def usual_passes(self) -> int:
        """The backward passes of most steps; those at the end of a dataloader count where there are no others."""
        later = self.steps[1:]  # the beginning of the first was not seen
        counts = [step.passes for step in later if not step.is_end] or [step.passes for step in later]
        return statistics.mode(counts) if counts else 0

    @property
    def accumulation(self) -> int | None:
        """Micro-batches of an update; None where not known."""
        of_megatron = self.settings.get("num_micro_batches")
        found = of_megatron or self.usual_passes or (self.reports[0].get("accumulation") if self.reports else None)
        return positive_int(found)

    @property
    def samples(self) -> int | None:
        """Samples of an update; None where not known."""
        of_megatron = self.settings.get("global_batch_size")
        if type(of_megatron) is int:
            return of_megatron
        usual = self.usual_passes
        counts = [step.samples for step in self.steps[1:] if step.passes == usual and step.samples is not None]
        return statistics.mode(counts) if counts else None

    @property
    def seq_len(self) -> int | None:
        """Tokens of the longest sequence; None where not known."""
        return max((step.sequence for step in self.steps if step.sequence is not None), default=None)

    @property
    def precision(self) -> str | None:
        """The precision of the computation; None where not known."""
        mixed = str(self.reports[0].get("precision")) if self.reports else ""
        if mixed in ("bf16", "fp16", "fp8") or self.model is None:
            return mixed or None
        return {"bfloat16": "bf16", "float16": "fp16"}.get(str(self.model.get("dtype")), "fp32")

    @property
    def gpu(self) -> str | None:
        """The name of the GPU; None where not known."""
        name = self.model.get("gpu") if self.model else None
        return name if isinstance(name, str) else None

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings of Accelerate's plugins."""
        held = self.reports[0].get("settings") if self.reports else None
        return held if isinstance(held, Mapping) else {}

    @property
    def given(self) -> Mapping[str, Mapping[str, Any]]:
        """Arguments that the script itself gave, by class."""
        found = self.reports[0].get("given") if self.reports else None
        kinds = found.items() if isinstance(found, Mapping) else ()
        return {str(kind): values for kind, values in kinds if isinstance(values, Mapping)}

    def batch(self, asked: RunAsked) -> int | None:
        """Return the samples of an update: those of the command, at the accumulation that the job had."""
        if asked.batch is None or "num_micro_batches" in self.settings:
            return self.samples or asked.batch
        passes = self.usual_passes
        return asked.batch * passes // asked.accumulation if passes and asked.accumulation else asked.batch

    @property
    def timed(self) -> list[tuple[float, HookedStep]]:
        """The steps with their times, without the first and those of another batch."""
        usual = self.usual_passes
        pairs = itertools.pairwise(self.steps)
        return [(b.at_s - a.at_s, b) for a, b in pairs if b.at_s > a.at_s and b.passes == usual]

    @property
    def seconds(self) -> list[float]:
        return [step_s for step_s, _ in self.timed]

    def fault(self, asked: RunAsked) -> str | None:
        """Return in one line how the job differs from what was asked for."""
        if not self.reports:
            hint = "prepare the model by Accelerator.prepare, or give --args check=false"
            return f"the log shows no model that Accelerate prepared, so that it is not known what it ran as: {hint}"
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
        if len(wrappers) == 1 and wrappers[0] in asked.other_wrappers:
            return None
        wanted = f"where {WRAPPER_NAMES[asked.wrapper]} ({asked.wrapper}) was asked for"
        other = next(name for name in wrappers if name != asked.wrapper)
        if other in WRAPPER_NAMES:
            return f"the job ran with {WRAPPER_NAMES[other]} ({other}), {wanted}"
        return f"the model was left unwrapped ({other}), {wanted}"

    def _settings_fault(self, asked: RunAsked) -> str | None:
        report = self.reports[0]
        for name, wanted in asked.settings.items():
            value = self.settings.get(name)
            if value is not None and str(value).lower() != str(wanted).lower():
                hint = "the script, or an older release, decides on it"
                return f"the job ran with {name} {value}, where {wanted} was asked for: {hint}"
        sizes = report.get("batch_sizes")
        if asked.micro_batch is not None and isinstance(sizes, list) and sizes and asked.micro_batch not in sizes:
            problem = f"the dataloader's batch size was {sizes[0]}, where micro-batch {asked.micro_batch} was asked for"
            return f"{problem}: name the script's option by mbs_option"
        return self._passes_fault(asked.passes) or self._samples_fault(asked)

    def _samples_fault(self, asked: RunAsked) -> str | None:
        """Return how a trial's update differs in size from that of the user's own command."""
        if asked.samples is not None and self.samples not in (None, asked.samples):
            problem = f"an update was of {self.samples} samples, where your own command trains {asked.samples}"
            return f"{problem}: their speeds cannot be compared"
        own = self.given.get("Accelerator", {}).get("gradient_accumulation_steps")
        if asked.script_accumulation is not None and type(own) is int and own != asked.script_accumulation:
            problem = f"the script gives Accelerator gradient_accumulation_steps={own}"
            return f"{problem}, which nothing in the command tells: leave --no-baseline out, or give --gbs N"
        return None

    def _passes_fault(self, wanted: int | None) -> str | None:
        usual = self.usual_passes
        if wanted is None or usual in (0, wanted):
            return None
        problem = f"most steps took {usual} backward {'pass' if usual == 1 else 'passes'}, where {wanted}"
        problem += f" {'was' if wanted == 1 else 'were'} asked for"
        if all(step.is_end for step in self.steps[1:]):
            return f"{problem}, because the dataloader ends with each of them: give it more batches, or a smaller gbs"
        return f"{problem}: train under accelerator.accumulate(model)"


def _step(event: Mapping[str, Any]) -> HookedStep | None:
    number, at_s, passes = event.get("step"), event.get("seconds"), event.get("passes")
    if type(number) is not int or not isinstance(at_s, int | float) or type(passes) is not int:
        return None
    return HookedStep(
        number=number,
        at_s=float(at_s),
        passes=passes,
        samples=positive_int(event.get("samples")),
        sequence=positive_int(event.get("sequence")),
        tokens=positive_int(event.get("tokens")),
        phases=_phases(event.get("phases")),
        is_end=event.get("is_end") is True,
    )


def _phases(found: object) -> dict[str, float]:
    named = found if isinstance(found, dict) else {}
    return {str(name): seconds for name, seconds in named.items() if isinstance(seconds, float)}
