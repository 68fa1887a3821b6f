"""The evaluator of jobs that use Accelerate: the steady speed of a job that ran as what was asked for.

A job may exit with 0 and be another than what was asked for, so what it says it ran as is compared first. The lines are
those of the trial's own hook (presets/accelerate/hook.py), one for each process that prepares a model and one for each
step of the first rank.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.evaluators.base import EvaluatorRegistry, Measurement, OtherSettingsError, Progress
from zenith_tune.evaluators.steady import SpeedEvaluator, long_run, num_warm_up, summarise
from zenith_tune.presets.deepspeed.evaluator import DeepSpeedEvaluator, flaw
from zenith_tune.presets.shared.live_model import LiveModel
from zenith_tune.study.parameters import Direction, Value
from zenith_tune.study.trial_log import lines_of

PREFIX = "zenithtune-accelerate: "
WRAPPER_NAMES = {
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
    other_wrappers: tuple[str, ...] = ()
    """Classes that do as well, because the script may make a plugin that no file tells."""
    batch: int | None = None
    """Samples of an update as the command and its file tell them, by `accumulation` micro-batches."""
    accumulation: int | None = None
    samples: int | None = None
    """Samples of an update that the loader of the user's own command gave."""
    script_accumulation: int | None = None
    """The accumulation that the script may set without a run of the user's own command having shown it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Hold one step of the first rank."""

    number: int
    at_s: float
    passes: int
    samples: int | None = None
    """What all ranks trained, where the loader tells."""
    sequence: int | None = None
    """Tokens of its longest sequence."""
    tokens: int | None = None
    """What the first rank trained that is no padding."""
    is_end: bool = False
    """It is of the last batches of a dataloader, however few: Accelerate steps at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccelerateRun:
    """Hold what a log tells."""

    reports: Sequence[Mapping[str, Any]]
    """What each process said of the model that it prepared: of several the last that is wrapped, else the last."""
    steps: Sequence[Step]
    peak_bytes: int | None = None
    model: LiveModel | None = None
    """What the first rank trained."""

    @classmethod
    def read(cls, log: str) -> Self:
        """Read the hook's lines; what else a log holds does not count."""
        reports: dict[str, Mapping[str, Any]] = {}
        steps: dict[int, Step] = {}
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
                model = LiveModel.of(event) or model
            elif event.get("event") == "step" and (step := _step(event)) is not None:
                if step.number == 1:  # of several programs that a command runs in turn, the last one counts
                    steps = {}
                steps[step.number] = step
                peak = max(peak, event["peak_bytes"] if type(event.get("peak_bytes")) is int else 0)
        return cls(reports=list(reports.values()), steps=list(steps.values()), peak_bytes=peak or None, model=model)

    @property
    def usual_passes(self) -> int:
        """The backward passes that most steps took; those at the end of a dataloader tell only where no others are."""
        later = self.steps[1:]  # nobody saw the beginning of the first
        counts = [step.passes for step in later if not step.is_end] or [step.passes for step in later]
        return statistics.mode(counts) if counts else 0

    @property
    def accumulation(self) -> int | None:
        """Micro-batches of an update as the job had them; None where nothing tells."""
        of_megatron = self.settings.get("num_micro_batches")
        found = of_megatron or self.usual_passes or (self.reports[0].get("accumulation") if self.reports else None)
        return found if type(found) is int and found > 0 else None

    @property
    def samples(self) -> int | None:
        """Samples of an update as the job had them; None where nothing tells."""
        of_megatron = self.settings.get("global_batch_size")
        if type(of_megatron) is int:
            return of_megatron
        usual = self.usual_passes
        counts = [step.samples for step in self.steps[1:] if step.passes == usual and step.samples is not None]
        return statistics.mode(counts) if counts else None

    @property
    def seq_len(self) -> int | None:
        """Tokens of the longest sequence that was trained; None where nothing tells."""
        return max((step.sequence for step in self.steps if step.sequence is not None), default=None)

    @property
    def precision(self) -> str | None:
        """The precision that the job computed in; None where nothing tells."""
        mixed = str(self.reports[0].get("precision")) if self.reports else ""
        if mixed in ("bf16", "fp16", "fp8") or self.model is None:
            return mixed or None
        return {"bfloat16": "bf16", "float16": "fp16"}.get(self.model.dtype, "fp32")

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the plugins held."""
        held = self.reports[0].get("settings") if self.reports else None
        return held if isinstance(held, Mapping) else {}

    @property
    def given(self) -> Mapping[str, Mapping[str, Any]]:
        """The arguments that the script itself gave, by class."""
        found = self.reports[0].get("given") if self.reports else None
        kinds = found.items() if isinstance(found, Mapping) else ()
        return {str(kind): values for kind, values in kinds if isinstance(values, Mapping)}

    def batch(self, asked: RunAsked) -> int | None:
        """Return the samples of an update: what is known of the command, at the accumulation that the job had."""
        if asked.batch is None or "num_micro_batches" in self.settings:
            return self.samples or asked.batch
        passes = self.usual_passes
        return asked.batch * passes // asked.accumulation if passes and asked.accumulation else asked.batch

    @property
    def timed(self) -> list[tuple[float, Step]]:
        """The steps with their times, but for the first and those of fewer passes, whose batch is another."""
        usual = self.usual_passes
        pairs = itertools.pairwise(self.steps)
        return [(b.at_s - a.at_s, b) for a, b in pairs if b.at_s > a.at_s and b.passes == usual]

    @property
    def seconds(self) -> list[float]:
        """The time of each of them."""
        return [step_s for step_s, _ in self.timed]

    def fault(self, asked: RunAsked) -> str | None:
        """Return in one line how the job differs from what was asked for."""
        if not self.reports:
            hint = "prepare the model by Accelerator.prepare, or give --args check=false"
            return f"the log shows no model that Accelerate prepared, so nobody knows what it ran as: {hint}"
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
                hint = "the script, or an older Accelerate, decides on it"
                return f"the job ran with {name} {value}, where {wanted} was asked for: {hint}"
        sizes = report.get("batch_sizes")
        if asked.micro_batch is not None and isinstance(sizes, list) and sizes and asked.micro_batch not in sizes:
            problem = f"the dataloader's batch size was {sizes[0]}, where micro-batch {asked.micro_batch} was asked for"
            return f"{problem}: name the script's option by mbs_option"
        return self._passes_fault(asked.passes) or self._samples_fault(asked)

    def _samples_fault(self, asked: RunAsked) -> str | None:
        """Return that a trial's update is of another size than that of the user's own command."""
        if asked.samples is not None and self.samples not in (None, asked.samples):
            problem = f"an update was of {self.samples} samples, where your own command trains {asked.samples}"
            return f"{problem}: their speeds cannot be compared"
        own = self.given.get("Accelerator", {}).get("gradient_accumulation_steps")
        if asked.script_accumulation is not None and type(own) is int and own != asked.script_accumulation:
            problem = (
                f"the script gives Accelerator gradient_accumulation_steps={own}, which nothing in the command tells"
            )
            return f"{problem}: leave --no-baseline out, or give --args gbs=N"
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


def hook_events(log: str) -> list[dict[str, Any]]:
    """Return what the hooks of a trial wrote into its log."""
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
    return Step(
        number=number,
        at_s=float(at_s),
        passes=passes,
        samples=_whole(event.get("samples")),
        sequence=_whole(event.get("sequence")),
        tokens=_whole(event.get("tokens")),
        is_end=event.get("is_end") is True,
    )


def _whole(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None


OBJECTIVES = {"throughput": Direction.MAXIMIZE, "latency": Direction.MINIMIZE}
Asked = Callable[[Mapping[str, Value]], RunAsked]
"""What a point asks for; no values stand for the user's own command."""


@EvaluatorRegistry.register("accelerate")
class AccelerateEvaluator(SpeedEvaluator):
    """Read the steady speed from the lines of the trial's hook, else from those of DeepSpeed or of the Trainer.

    `throughput` is samples per second, or steps per second where `gbs`, the global batch, is not known; `latency` is
    seconds per step. A job that ran as something else than `n_gpus` processes with `wrapper` around the model has no
    value, unless `check` is false.

    >>> line = 'zenithtune-accelerate: {{"event": "step", "step": {0}, "passes": 1, "seconds": {0}.5}}\\n'
    >>> AccelerateEvaluator(gbs=8, check=False).evaluate("".join(line.format(step) for step in (1, 2, 3)), {})
    8.0
    """

    objectives = OBJECTIVES

    def __init__(
        self,
        objective: str = "throughput",
        gbs: int | None = None,
        n_gpus: int | None = None,
        wrapper: str = PLAIN,
        check: bool = True,
    ) -> None:
        super().__init__(objective, gbs=gbs, n_gpus=n_gpus)
        if wrapper not in WRAPPER_NAMES:
            raise UnknownNameError("wrapper", wrapper, WRAPPER_NAMES)
        if check and n_gpus is None:
            hint = "give n_gpus=8, or check=false"
            raise UsageError(
                "evaluator accelerate compares the processes of a job with n_gpus, but has none", hint=hint
            )
        self.gbs, self.n_gpus, self.wrapper, self.check = gbs, n_gpus, wrapper, check
        self.asked: Asked = self._asked_by_arguments
        """What a trial's own settings must have been; a preset knows more of that than these arguments say."""

    def with_objective(self, name: str) -> Self:
        """Return the evaluator of the same job that reads another objective."""
        other = type(self)(name, self.gbs, self.n_gpus, self.wrapper, self.check)
        if self.asked != self._asked_by_arguments:
            other.asked = self.asked
        return other

    def read(self, log: str) -> AccelerateRun:
        """Return what a log tells of the run."""
        return AccelerateRun.read(log)

    def measure(self, stdout: str, metadata: Mapping[str, Any]) -> Measurement:
        """Return the value with its spread, step time and peak memory."""
        run = self.read(stdout)
        params = metadata.get("parameters") or {}
        if (cause := _flaw(stdout)) is not None:
            raise ValueError(cause)
        if (fault := self._fault(run, params)) is not None:
            raise (OtherSettingsError if params and run.reports else ValueError)(fault)
        extra: dict[str, Value] = {}
        if run.reports:
            extra = {"accelerate": str(run.reports[0].get("version")), "wrapper": str(run.reports[0].get("wrapper"))}
        if not run.seconds:
            measured = self._from_other_lines(stdout, metadata)
            return replace(measured, extra={**measured.extra, **extra})
        seconds = _steady(run)
        return summarise(
            self._values(seconds, self._batch(run, params)),
            self.direction,
            unit=self._unit,
            step_s=long_run(seconds),
            peak_memory_bytes=run.peak_bytes,
            extra=extra,
        )

    def progress(self, stdout: str, metadata: Mapping[str, Any]) -> Progress | None:
        """Return the values of the steady steps so far; None while there are none, or where they are worth nothing."""
        whole_lines = stdout[: stdout.rfind("\n") + 1]  # half a number reads as a whole one
        run, params = self.read(whole_lines), metadata.get("parameters") or {}
        is_faulty = _flaw(whole_lines) or self._fault(run, params)
        if not run.seconds or is_faulty:
            return None
        values = self._values(_steady(run), self._batch(run, params))
        return Progress(
            values=values,
            value=long_run(values, self.direction),
            num_iterations=len(run.steps),
            unit=self._unit,
            peak_memory_bytes=run.peak_bytes,
        )

    def describe(self) -> str:
        """Say what is measured."""
        batch = f" at gbs {self.gbs}" if self.gbs else ""
        unchecked = "" if self.check else ", whatever the job ran as"
        return f"accelerate {self.objective}{batch}{unchecked}, {self.direction}"

    @property
    def _unit(self) -> str:
        if self.objective == "latency":
            return "s"
        return "samples/s" if self.gbs else "steps/s"

    def _values(self, seconds: list[float], batch: int) -> list[float]:
        return seconds if self.objective == "latency" else [batch / step_s for step_s in seconds]

    def _batch(self, run: AccelerateRun, params: Mapping[str, Value]) -> int:
        """Return the samples of an update; 1 where only steps are counted."""
        return 1 if self.gbs is None else run.batch(self.asked(params)) or self.gbs

    def _fault(self, run: AccelerateRun, params: Mapping[str, Value]) -> str | None:
        return run.fault(self.asked(params)) if self.check else None

    def _asked_by_arguments(self, params: Mapping[str, Value]) -> RunAsked:
        num_processes = self.n_gpus or 1
        wrapper = self.wrapper if num_processes > 1 else None
        return RunAsked(num_processes=num_processes, wrapper=wrapper, batch=self.gbs)

    def _from_other_lines(self, log: str, metadata: Mapping[str, Any]) -> Measurement:
        try:
            return DeepSpeedEvaluator(self.objective, self.gbs).measure(log, metadata)
        except ValueError:
            hint = "train for three steps or more, with an optimizer that Accelerator.prepare has prepared"
            raise ValueError(f"the log has no speed, because no two steps were seen; {hint}") from None


def _flaw(log: str) -> str | None:
    return flaw(log) or ("the log is empty" if not log or log.isspace() else None)


def _steady(run: AccelerateRun) -> list[float]:
    seconds = run.seconds
    return seconds[num_warm_up(seconds) :]
