"""The evaluator of torchtitan's logs: the speed of each step that it prints, and its peak memory."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import (
    EvaluatorRegistry,
    Measurement,
    OtherSettingsError,
    Progress,
)
from zenith_tune.evaluators.steady import SpeedEvaluator, long_run, num_warm_up, summarise
from zenith_tune.presets.torchtitan.live import COLOUR, RANK, TitanRun
from zenith_tune.study.parameters import Direction, Value

OBJECTIVES = {
    "tokens_per_s": Direction.MAXIMIZE,
    "tflops": Direction.MAXIMIZE,
    "step_time": Direction.MINIMIZE,
}
GIB = 1 << 30
_NUM = r"(-?[0-9,.]{1,30}|nan|-?inf)"
_LINE = re.compile(
    rf"(?<!validate )\bstep: {{1,9}}([0-9]{{1,12}}) {{1,9}}loss: {{1,9}}{_NUM} .{{0,80}}?memory: {{1,9}}{_NUM}GiB"
    rf".{{0,20}}? {{1,9}}tps: {_NUM}(?: {{1,9}}tflops: {_NUM})?"
)
_RETRIES = re.compile(r"([0-9]{1,9}) [A-Z]+ memory allocation retries")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """Hold one line of a step."""

    step: int
    loss: float
    memory_bytes: int
    """The most that was reserved since the line before."""
    tokens_per_s: float
    """Of one GPU."""
    tflops: float | None
    rank: str


def read_lines(log: str) -> list[StepLine]:
    """Return the lines of the steps in order, of all ranks that print them."""
    found = []
    for text in COLOUR.sub("", log).splitlines():
        match = _LINE.search(text)
        if match is None:
            continue
        mark = RANK.match(text)
        tflops = _number(match[5] or "nan")
        found.append(
            StepLine(
                step=int(match[1]),
                loss=_number(match[2]),
                memory_bytes=max(int(_number(match[3]) * GIB), 0),
                tokens_per_s=_number(match[4]),
                tflops=tflops if 0 < tflops < math.inf else None,
                rank=mark[1] if mark else "",
            )
        )
    return found


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return math.nan


@EvaluatorRegistry.register("torchtitan")
class TorchTitanEvaluator(SpeedEvaluator):
    """Read the steady speed from the lines that torchtitan prints of its steps.

    `tokens_per_s` is of all `n_gpus`, or of one GPU where that is not given; `tflops` is of one GPU as torchtitan
    counts them, `step_time` in seconds by the tokens of a step that the log tells.

    >>> line = "step: {0:2}  loss:  8.1  grad_norm:  1.2  memory:  1.50GiB(1.9%)  tps: 1,000  tflops: 9.10\\n"
    >>> TorchTitanEvaluator(n_gpus=8).evaluate("".join(line.format(step) for step in (1, 2, 3)), {})
    8000.0
    """

    objectives: ClassVar[Mapping[str, Direction]] = OBJECTIVES

    def __init__(self, objective: str = "tokens_per_s", n_gpus: int | None = None) -> None:
        super().__init__(objective, n_gpus=n_gpus)
        if objective == "step_time" and n_gpus is None:
            raise UsageError("the objective step_time needs n_gpus, but has none", hint="give --args n_gpus=8")
        self.n_gpus = n_gpus
        self.step_tokens: Callable[[], int | None] = lambda: None
        """What every step must have; None where that is not known."""

    def with_objective(self, name: str) -> TorchTitanEvaluator:
        """Return the evaluator of the same job that reads another objective."""
        found = TorchTitanEvaluator(name, self.n_gpus)
        found.step_tokens = self.step_tokens
        return found

    def measure(self, stdout: str, metadata: Mapping[str, Any]) -> Measurement:
        """Return the value with its spread, step time and peak memory."""
        lines, tokens = _valid(read_lines(stdout)), self._checked_tokens(stdout)
        steady = _steady(lines)
        extra: dict[str, Value] = {}
        if tflops := [line.tflops for line in steady if line.tflops is not None]:
            extra["tflops_per_gpu"] = long_run(tflops, Direction.MAXIMIZE)
        if retries := [int(count) for count in _RETRIES.findall(stdout)]:
            extra["allocation_retries"] = max(retries)
        seconds = self._seconds(steady, tokens)
        return summarise(
            self._values(steady, tokens),
            self.direction,
            unit=self._unit,
            step_s=long_run(seconds) if seconds else None,
            peak_memory_bytes=max(line.memory_bytes for line in lines) or None,
            extra=extra,
        )

    def progress(self, stdout: str, metadata: Mapping[str, Any]) -> Progress | None:
        """Return the values of the steady steps so far; None while there are none, or where they are worth nothing."""
        whole_lines = stdout[: stdout.rfind("\n") + 1]  # half a number reads as a whole one
        try:
            lines, tokens = _valid(read_lines(whole_lines)), self._checked_tokens(whole_lines)
            values = self._values(_steady(lines), tokens)
        except ValueError:
            return None
        return Progress(
            values=values,
            value=long_run(values, self.direction),
            num_iterations=len({line.step for line in lines}),
            unit=self._unit,
            peak_memory_bytes=max(line.memory_bytes for line in lines) or None,
        )

    def describe(self) -> str:
        """Say what is measured."""
        return f"torchtitan {self.objective} of {self.n_gpus or 1} GPUs, {self.direction}"

    @property
    def _unit(self) -> str:
        rate = "tokens/s" if self.n_gpus else "tokens/s/GPU"
        return {"tokens_per_s": rate, "tflops": "TFLOP/s/GPU", "step_time": "s"}[self.objective]

    def _values(self, steady: Sequence[StepLine], tokens: int | None) -> list[float]:
        if self.objective == "tokens_per_s":
            return [line.tokens_per_s * (self.n_gpus or 1) for line in steady]
        if self.objective == "tflops":
            found = [line.tflops for line in steady if line.tflops is not None]
            if not found:
                raise ValueError("the log prints no TFLOP/s above 0: use the objective tokens_per_s")
            return found
        seconds = self._seconds(steady, tokens)
        if not seconds:
            raise ValueError("the log does not say the tokens of a step: use the objective tokens_per_s")
        return seconds

    def _seconds(self, steady: Sequence[StepLine], tokens: int | None) -> list[float]:
        if not tokens or not self.n_gpus:
            return []
        return [tokens / (line.tokens_per_s * self.n_gpus) for line in steady]

    def _checked_tokens(self, stdout: str) -> int | None:
        """Return the tokens of a step, or raise where they are not those of the job: no trial may change the batch."""
        said, wanted = TitanRun.read(stdout).step_tokens, self.step_tokens()
        if said is not None and wanted is not None and said != wanted:
            raise OtherSettingsError(f"a step must have {wanted} tokens, but the run says that it has {said}")
        return said or wanted


def _valid(lines: list[StepLine]) -> list[StepLine]:
    """Return the lines, or raise ValueError with the cause where the run is worth nothing."""
    if not lines:
        raise ValueError("no line of a step in the log; lower --metrics.log_freq or train for longer")
    for line in lines:
        if not math.isfinite(line.loss):
            raise ValueError(f"NaN at step {line.step}: the loss is {line.loss}")
        if not (math.isfinite(line.tokens_per_s) and line.tokens_per_s > 0):
            raise ValueError(f"a speed must be above 0, but at step {line.step} it is {line.tokens_per_s} tokens/s")
    return lines


def _steady(lines: Sequence[StepLine]) -> Sequence[StepLine]:
    """Return the lines after warm-up, the first of each step: all ranks took part in it, and may print it."""
    rank = lines[0].rank
    own = {line.step: line for line in reversed(lines) if line.rank == rank}
    found = [own[step] for step in sorted(own)]
    return found[num_warm_up([1 / line.tokens_per_s for line in found]) :]
