"""The steps of a training run as its log shows them, and the rates that they and the sizes of the job give."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from zenith_tune.evaluators.steady import num_warm_up
from zenith_tune.study.parameters import Value
from zenith_tune.units import GIB

SECONDS, SAMPLES, TOKENS, TFLOPS = "s", "samples/s", "tokens/s", "TFLOP/s/GPU"
_TERA = 1e12
ENGINE_MARKS = (
    *("elapsed time per iteration", "train_speed(s/it)"),  # Megatron-LM and ms-swift
    *("SamplesPerSec=", "time (ms) | fwd"),  # DeepSpeed
)
_MARKS = (
    *ENGINE_MARKS,
    "MODEL_TFLOP/s/GPU",  # Megatron-Bridge
    *("{'loss': ", "{'train_runtime': ", "{'train_loss': "),  # the Trainer of transformers
    "tps: ",  # torchtitan
    "tokens_per_sec_per_gpu: ",  # nanotron
    " GiB | tps ",  # NeMo Automodel
    "  data_time: ",  # MMEngine
    " - perf/time_per_step:",  # verl
    "Total step time: ",  # NeMo RL
)
"""Texts that only trained steps are printed with."""
_PLAIN = re.compile(
    r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?|[+-]?(?:nan|inf|infinity)", re.IGNORECASE
)
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,4})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a log; None where the log does not show a figure."""

    number: int
    seconds: float | None = None
    """Seconds per step, often a mean since the previous line."""
    samples: int | None = None
    samples_per_s: float | None = None
    """Samples per second over all ranks."""
    gpu_tokens_per_s: float | None = None
    """Tokens per second and GPU."""
    tflops: float | None = None
    """TFLOP/s per GPU."""
    memory_bytes: int | None = None
    flaw: str | None = None
    """The first loss or gradient norm that is not finite, such as `lm loss is nan`."""
    has_loss: bool = True
    num_skipped: int = 0
    """Steps skipped since the previous line."""
    num_nan: int = 0
    """NaN steps since the previous line."""
    position: int = 0
    """Offset of the line in the log."""
    is_last: bool = False
    """Whether it is the last that the run was to train."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each phase, where a step has several that follow one another, such as generation and training."""

    @property
    def pace_s(self) -> float:
        """A figure proportional to the time of the step."""
        if self.seconds is not None:
            return self.seconds
        return 1 / (self.samples_per_s or self.gpu_tokens_per_s or self.tflops or math.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSizes:
    """Sizes of a job that turn one rate into another; None where unknown."""

    gbs: int | None = None
    seq: int | None = None
    n_gpus: int | None = None
    flops_per_sample: float | None = None
    step_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFinding:
    """What keeps a phase of the steps waiting, or makes it longer than it need be."""

    phase: str
    finding: str
    change: str
    gain: float
    """Share of a step that the change saves at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedSteps:
    """The steps that a log shows, in order, with what it says about the whole run."""

    steps: Sequence[Step] = ()
    num_trained: int | None = None
    """Steps that were trained, warm-up included; None: those of the numbers that the steps have."""
    peak_bytes: int | None = None
    """The most memory that any rank reserved, or allocated where that is all the log shows."""
    sizes: JobSizes = field(default_factory=JobSizes)
    extra: Mapping[str, Value] = field(default_factory=dict)
    next_s: float | None = None
    """Seconds that the next step takes; None: those of a step."""
    common_error: float = 0.0
    """Relative standard error that all steps share, where they are extrapolated."""
    shows_progress: bool = True
    """Whether a running trial can be judged by them; a figure of the whole run is none of a step."""
    findings: Sequence[PhaseFinding] = ()
    """What the log shows of its phases, the largest gain first."""

    @property
    def num_steps(self) -> int:
        """Steps that were trained, warm-up included."""
        if self.num_trained is not None or not self.steps:
            return self.num_trained or 0
        first, last = self.steps[0].number, self.steps[-1].number
        # A run that continues from a checkpoint does not begin at 1.
        return last - first + (self.steps[1].number - first if len(self.steps) > 1 else 1)

    @property
    def steady(self) -> Sequence[Step]:
        return self.steps[num_warm_up([step.pace_s for step in self.steps]) :]

    @property
    def phases(self) -> dict[str, float]:
        """Mean seconds of each phase of the steady steps, the longest first; empty where the log shows none."""
        each = [step.phases for step in self.steady if step.phases]
        names = dict.fromkeys(name for phases in each for name in phases)
        found = {name: math.fsum(phases.get(name, 0.0) for phases in each) / len(each) for name in names}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def rates(self) -> dict[str, list[float]]:
        """Return the figures of each steady step by unit; empty where neither log nor sizes give them."""
        steady, sizes = self.steady, self.sizes
        seconds = _known(_seconds(step, sizes) for step in steady)
        samples = _known(_samples_per_s(step, sizes) for step in steady)
        per_gpu = _known(step.gpu_tokens_per_s for step in steady)
        flops, gpus = sizes.flops_per_sample, sizes.n_gpus
        tokens = [rate * sizes.seq for rate in samples] if sizes.seq else []
        tflops = [rate * flops / gpus / _TERA for rate in samples] if flops and gpus else []
        return {
            SECONDS: seconds,
            "iterations/s": [1 / each for each in seconds],
            "steps/s": [1 / each for each in seconds],
            SAMPLES: samples,
            TOKENS: [rate * gpus for rate in per_gpu] if gpus and per_gpu else tokens,
            "tokens/s/GPU": per_gpu,
            TFLOPS: _known(step.tflops for step in steady) or tflops,
        }


def _seconds(step: Step, sizes: JobSizes) -> float | None:
    if step.gpu_tokens_per_s is not None and sizes.n_gpus and sizes.step_tokens:
        return sizes.step_tokens / (step.gpu_tokens_per_s * sizes.n_gpus)
    if step.seconds is not None:
        return step.seconds
    batch = step.samples or sizes.gbs
    return batch / step.samples_per_s if batch and step.samples_per_s else None


def _samples_per_s(step: Step, sizes: JobSizes) -> float | None:
    if step.samples_per_s is not None:
        return step.samples_per_s
    batch = step.samples or sizes.gbs
    return batch / step.seconds if batch and step.seconds else None


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def has_steps(log: str) -> bool:
    """Tell whether any step was trained."""
    return any(mark in log for mark in _MARKS)


def after_steps(log: str) -> str:
    """Return the log from its last step on, or all of it where it has none."""
    return log[max(0, *(log.rfind(mark) for mark in _MARKS)) :]


def read_number(text: str) -> float | None:
    """Return the number that `text` is, `1,234.5` and `nan` included, or None."""
    text = text.strip()
    if len(text) > 64:
        return None
    if _PLAIN.fullmatch(text):
        return float(text)
    return float(text.replace(",", "")) if _THOUSANDS.fullmatch(text) else None


def gib_to_bytes(text: str | None) -> int | None:
    """Return a printed number of GiB in bytes; None where it is not above 0."""
    value = read_number(text) if text else None
    return round(value * GIB) if value is not None and math.isfinite(value) and value > 0 else None


def first_flaw(fields: Mapping[str, str]) -> str | None:
    """Return the first loss or gradient norm that is NaN or infinite, in words."""
    for name, text in fields.items():
        is_loss = "loss" in name and name != "loss scale"
        value = read_number(text) if is_loss or name in ("grad norm", "grad_norm") else None
        if value is not None and not math.isfinite(value):
            return f"{name} is {value}"
    return None
