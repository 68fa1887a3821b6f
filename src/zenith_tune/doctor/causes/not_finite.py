"""Losses and gradients that are NaN or infinite: in the lines of steps, and in the checks that trainers make."""

from __future__ import annotations

import re
from collections.abc import Sequence

from zenith_tune.doctor.causes.cause import Cause, CauseKind, Figure, quoted
from zenith_tune.evaluators.engine_log import is_of_trainer, trainer_flaws
from zenith_tune.evaluators.failures.rank_errors import line_at, occurrences, split_prefix
from zenith_tune.evaluators.steps import Step
from zenith_tune.presets.torchtitan import log as torchtitan_log

_CHECKS = ("found NaN in ", "found Inf in ", "message='loss is NaN", "Unexpected result nan", "Unexpected result inf")
"""What Megatron-LM's checks of losses and gradients print."""
_WORDED = re.compile(
    r"^\w[\w.]{0,120}(?:Error|Exception): [^\n]{0,200}?\b(?:nan|non-finite|not finite)\b", re.IGNORECASE
)
_RANK = re.compile(r"\b[Rr]ank ([0-9]{1,6})\b")
_ITERATION = re.compile(r"iteration #([0-9]{1,12})")
ACTIONS = (
    "resume from the last checkpoint before it with a lower learning rate, a longer warm-up or --clip-grad 1.0",
    "where it comes back at the same iteration, look at the data of that iteration (--iterations-to-skip omits it)",
    "where it comes on one rank or at random, suspect the hardware: run on other nodes; Megatron-LM's "
    "--rerun-mode validate_results tells the two apart",
    "train in bf16 in place of fp16, or fp8 with bf16 in the first and last layers",
)
_TRAINER_ACTIONS = (
    "resume from the last checkpoint before it with a lower learning_rate, a longer warm-up or max_grad_norm 1.0",
    "where it comes back at the same step, look at the data of that step",
    "where it comes on one rank or at random, suspect the hardware: run on other nodes",
    "train in bf16 in place of fp16",
)


def not_finite(log: str, steps: Sequence[Step]) -> Cause | None:
    """Return where training stopped being finite, or None; `steps` are Megatron's."""
    if (position := _checked(log)) is not None:
        line = line_at(log, position)
        stated, iteration = _RANK.search(line), _ITERATION.search(line)
        rank = int(stated[1]) if stated else split_prefix(line)[0]
        figures: dict[str, Figure] = {"iteration": int(iteration[1])} if iteration else {}
        return _cause(log, [position], "a check of the trainer found NaN or infinity", figures, rank)
    return _megatron(log, steps) or _others(log)


def _checked(log: str) -> int | None:
    """Return where a check or an exception first names NaN."""
    found = [next(occurrences(log, needle), None) for needle in _CHECKS]
    found += [
        position
        for needle in ("Error: ", "Exception: ")
        for position in occurrences(log, needle)
        if _WORDED.search(split_prefix(line_at(log, position))[1])
    ]
    return min((position for position in found if position is not None), default=None)


def _megatron(log: str, steps: Sequence[Step]) -> Cause | None:
    bad = [step for step in steps if step.flaw or step.num_nan]
    if not bad or (_is_loss_scaling([step.flaw for step in bad]) and not steps[-1].flaw):
        return None
    first, places = bad[0], [step.position for step in bad]
    what = first.flaw or f"{first.num_nan} iterations were NaN"
    figures: dict[str, Figure] = {"iteration": first.number, "num_lines": len(bad)}
    return _cause(log, places, f"{what} at iteration {first.number}, and in {len(bad)} lines in all", figures)


def _others(log: str) -> Cause | None:
    every = [*trainer_flaws(log), *((step.position, step.flaw) for step in torchtitan_log.read_steps(log).steps)]
    found = [(position, flaw) for position, flaw in every if flaw]
    if not found or (_is_loss_scaling([flaw for _, flaw in found]) and not every[-1][1]):
        return None
    finding = f"{found[0][1]}, in {len(found)} lines in all"
    return _cause(log, [position for position, _ in found], finding, {"num_lines": len(found)})


def _is_loss_scaling(flaws: Sequence[str | None]) -> bool:
    """Tell whether only gradients were not finite, as while fp16 searches its loss scale."""
    return all(flaw is not None and flaw.startswith("grad") for flaw in flaws)


def _cause(log: str, positions: list[int], finding: str, figures: dict[str, Figure], rank: int | None = None) -> Cause:
    where = f" on rank {rank}" if rank is not None else ""
    return Cause(
        kind=CauseKind.NOT_FINITE,
        finding=f"{finding}{where}",
        evidence=quoted(log, positions[:3]),
        actions=_TRAINER_ACTIONS if is_of_trainer(log) else ACTIONS,
        rank=rank,
        figures=figures,
    )
