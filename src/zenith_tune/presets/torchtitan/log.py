"""What a run of torchtitan logs: its steps, the batch, its settings where it prints them, and its model.

A step is `step:  1  loss:  8.12  grad_norm:  1.2  memory: 12.34GiB(15.60%)  tps: 7,123  tflops: 412.10  mfu: 41.67%`,
with a clock before it.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

from zenith_tune.evaluators.steps import LoggedSteps, Step, first_flaw, gib_to_bytes, read_number
from zenith_tune.presets.shared.training_files import flat
from zenith_tune.presets.torchtitan.command import Settings
from zenith_tune.presets.torchtitan.dialect import AC_MODE
from zenith_tune.study.parameters import Value

RANK = re.compile(r"\[[A-Za-z_]*([0-9]{1,6})\]:")
"""Torchrun's prefix of the lines of a rank."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SETTINGS = re.compile(r"Running with configs: (?=\{)")
_MODEL_ARGS = re.compile(r"Building (\S+) (\S+?) ?with (?=\{)")
_PARAMS = re.compile(r"Model (\S+) (\S+) size: ([0-9,]+) total parameters")
_SAMPLES = re.compile(r"global batch size ([0-9]+), gradient accumulation steps [0-9]+, sequence length ([0-9]+)")
_TOKENS = re.compile(r"(?<![0-9])([0-9]{1,15}) tokens per train step, gradient accumulation steps [0-9]+, maximum")
_GPU = re.compile(r"CUDA capacity: (.{1,80}?) with [0-9.]+GiB memory")
_NUM = r"(-?[0-9,.]{1,30}|nan|-?inf)"
_STEP = re.compile(
    rf"(?<!validate )\bstep: {{1,9}}([0-9]{{1,12}}) {{1,9}}loss: {{1,9}}{_NUM} {{1,9}}(?:grad_norm: {{1,9}}{_NUM} )?"
    rf".{{0,80}}?memory: {{1,9}}{_NUM}GiB.{{0,20}}? {{1,9}}tps: {{1,9}}{_NUM}(?: {{1,9}}tflops: {{1,9}}{_NUM})?"
)
_RETRIES = re.compile(r"([0-9]{1,9}) [A-Z]+ memory allocation retries")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}[,.][0-9]{3}")
_CLOCK_REACH = 120
"""Characters before a step in which its clock stands."""


def read_steps(log: str) -> LoggedSteps:
    """Return each step once, by the rank that prints first, with the most memory that any rank reserved."""
    text = COLOUR.sub("", log)
    peak, rank, steps = 0, None, dict[int, Step]()
    for match in _STEP.finditer(text):
        peak = max(peak, gib_to_bytes(match[4]) or 0)
        mark = RANK.match(text, text.rfind("\n", 0, match.start()) + 1)
        own = mark[1] if mark else ""
        rank = own if rank is None else rank
        if own == rank:
            steps.setdefault(int(match[1]), _step(match))
    extra: dict[str, Value] = {}
    if retries := [int(count) for count in _RETRIES.findall(log)]:
        extra["allocation_retries"] = max(retries)
    return LoggedSteps(steps=[steps[number] for number in sorted(steps)], peak_bytes=peak or None, extra=extra)


def _step(match: re.Match[str]) -> Step:
    tflops = read_number(match[6] or "")
    return Step(
        number=int(match[1]),
        gpu_tokens_per_s=read_number(match[5]),
        tflops=tflops if tflops and 0 < tflops < math.inf else None,
        memory_bytes=gib_to_bytes(match[4]),
        flaw=first_flaw({"loss": match[2], "grad_norm": match[3] or ""}),
        position=match.start(),
    )


def timed_steps(log: str) -> LoggedSteps:
    """Return the steps with the time between them by the log's clock, where nothing is known of the job."""
    logged = read_steps(log)
    clocks = [(step, clock_s) for step in logged.steps if (clock_s := _clock(log, step.position)) is not None]
    timed = [
        replace(step, seconds=(end_s - start_s) / (step.number - before.number), gpu_tokens_per_s=None)
        for (before, start_s), (step, end_s) in itertools.pairwise(clocks)
        if end_s > start_s
    ]
    return replace(logged, steps=timed)


def _clock(log: str, position: int) -> float | None:
    """Return when a step was printed, in seconds, where its line has a clock."""
    found = _TIME.search(log[max(position - _CLOCK_REACH, 0) : position].rpartition("\n")[2])
    try:
        return datetime.fromisoformat(found[0].replace(",", ".")).timestamp() if found else None
    except ValueError:  # no such date
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TitanRun:
    """What the log of one run says about it; None or empty where it does not."""

    settings: Settings
    model: Mapping[str, Any]
    """The description of the model: by parts in a configuration in Python, by arguments in older releases."""
    model_name: str = ""
    num_params: int | None = None
    step_tokens: int | None = None
    gpu: str | None = None

    @classmethod
    def read(cls, log: str) -> Self:
        """Read a log, whoever started its ranks."""
        text = first_rank(COLOUR.sub("", log))
        dump, args, params = _json(_SETTINGS, text), _json(_MODEL_ARGS, text), _PARAMS.search(text)
        spec = dump.pop("model_spec", None) or {}
        settings = flat(dump)
        if settings and AC_MODE not in settings:
            settings[AC_MODE] = _recomputation(dump.get("activation_checkpoint"))
        gpu, samples, tokens = (pattern.search(text) for pattern in (_GPU, _SAMPLES, _TOKENS))
        step_tokens = int(samples[1]) * int(samples[2]) if samples else int(tokens[1]) if tokens else None
        return cls(
            settings=settings,
            model=spec.get("model") or args,
            model_name=f"{params[1]} {params[2]}" if params else "",
            num_params=int(params[3].replace(",", "")) if params else None,
            step_tokens=step_tokens,
            gpu=gpu[1] if gpu else None,
        )


def first_rank(log: str) -> str:
    """Return the lines of the lowest rank without torchrun's prefix; all lines where there is none."""
    lines = log.splitlines()
    marks = [RANK.match(line) for line in lines]
    if not any(marks):
        return log
    lowest = min(int(mark[1]) for mark in marks if mark)
    return "\n".join(
        line[mark.end() :] for line, mark in zip(lines, marks, strict=True) if mark and int(mark[1]) == lowest
    )


def _json(pattern: re.Pattern[str], text: str) -> dict[str, Any]:
    match = pattern.search(text)
    if match is None:
        return {}
    try:
        found, _ = json.JSONDecoder().raw_decode(text, match.end())
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _recomputation(policy: Any) -> str:
    """Return the mode of a policy, of which a dump has only the fields."""
    if not isinstance(policy, Mapping):
        return "none"
    if "memory_budget" in policy:
        return "memory_budget"
    return "selective" if any("recompute" in name for name in policy) else "full"
