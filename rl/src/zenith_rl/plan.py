"""Placements of a job of reinforcement learning, in a call."""

from __future__ import annotations

from pathlib import Path

from zenith_rl.planning.generation import GenerationWork
from zenith_rl.planning.lengths import AnswerLengths
from zenith_rl.planning.rl_planner import ALGORITHMS, PlacedStep, RlJob, RlPlanner
from zenith_tune.api.plan_request import read_request
from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.estimates.calibration import Calibration
from zenith_tune.planner.limits import MAX_BATCH, RISK

MOST_BEHIND = 64


def plan_rl(
    model: ModelSpec | str | Path,
    cluster: ClusterSpec | str | Path,
    *,
    prompts: int,
    group: int,
    prompt_len: int,
    response_len: AnswerLengths | int | str,
    algorithm: str = "grpo",
    updates: int = 1,
    behind: int = 0,
    gpus: int | None = None,
    top: int = 10,
    framework: FrameworkSpec | str | None = None,
    precision: str = "bf16",
    risk: float = RISK,
    calibration: Calibration | str | Path | None = None,
) -> list[PlacedStep]:
    """Rank placements, engines and layouts of a step that generates and trains, as `zenithtune plan --rl` does.

    Empty where nothing fits.

    >>> found = plan_rl("qwen2.5-7b", "h100x8", prompts=64, group=8, prompt_len=512, response_len="4096:900,3500")
    >>> found[0].name, found[0].phases["generation"] > found[0].phases["update"]
    ('together', True)
    """
    if algorithm not in ALGORITHMS:
        raise UnknownNameError("algorithm", algorithm, tuple(ALGORITHMS))
    counts = {"prompts": (prompts, 1), "group": (group, 1), "prompt_len": (prompt_len, 1)}
    for name, (number, least) in {**counts, "updates": (updates, 1), "behind": (behind, 0)}.items():
        if type(number) is not int or number < least:
            raise UsageError(f"{name} must be a whole number from {least}, but got {number!r}", hint="change it")
    lengths = response_len if isinstance(response_len, AnswerLengths) else AnswerLengths.parse(str(response_len))
    work = GenerationWork(prompts=prompts, group=group, prompt_len=prompt_len, lengths=lengths)
    if work.answers > MAX_BATCH:
        problem = f"a step has at most {MAX_BATCH:,} answers, but got {prompts:,} prompts x {group:,}"
        raise UsageError(problem, hint="change one of them")
    if behind > MOST_BEHIND:
        raise UsageError(f"behind must be at most {MOST_BEHIND}, but got {behind}", hint="change it")
    if work.answers % updates:
        problem = f"{updates} updates of a step must divide its {work.answers} answers ({prompts} prompts x {group})"
        raise UsageError(problem, hint="change one of them")
    request = read_request(
        model,
        cluster,
        gbs=work.answers,
        seq=work.longest,
        gpus=gpus,
        framework=framework,
        precision=precision,
        risk=risk,
        calibration=calibration,
    )
    job = RlJob(algorithm=ALGORITHMS[algorithm], work=work, updates=updates, behind=behind)
    return RlPlanner(request.planner(), job, space=request.space, risk=risk).plan(top)
