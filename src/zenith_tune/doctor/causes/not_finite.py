"""Losses and gradients that are NaN or infinite: in the lines of steps, and in the checks that trainers make."""

from __future__ import annotations

import re
from collections.abc import Sequence

from zenith_tune.doctor.causes.cause import Cause, CauseKind, Figure, quoted
from zenith_tune.doctor.causes.step_lines import is_of_trainer, logged_values
from zenith_tune.evaluators.failures.rank_errors import line_at, occurrences, split_prefix
from zenith_tune.evaluators.iterations import first_flaw, read_megatron_lines

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


def not_finite(log: str) -> Cause | None:
    """Return where training stopped to be finite, or None."""
    if (position := _checked(log)) is not None:
        return _cause(log, [position], "a check of the trainer found NaN or infinity", _numbers(line_at(log, position)))
    return _megatron(log) or _others(log)


def _checked(log: str) -> int | None:
    """Return where a check or an exception speaks of NaN first."""
    found = [next(occurrences(log, needle), None) for needle in _CHECKS]
    found += [
        position
        for needle in ("Error: ", "Exception: ")
        for position in occurrences(log, needle)
        if _WORDED.search(split_prefix(line_at(log, position))[1])
    ]
    return min((position for position in found if position is not None), default=None)


def _numbers(line: str) -> dict[str, Figure]:
    rank, iteration = _RANK.search(line), _ITERATION.search(line)
    marked = split_prefix(line)[0]
    known = int(rank[1]) if rank else marked
    found: dict[str, Figure] = {} if known is None else {"rank": known}
    return {**found, **({"iteration": int(iteration[1])} if iteration else {})}


def _megatron(log: str) -> Cause | None:
    every = read_megatron_lines(log)
    lines = [line for line in every if line.flaw or line.num_nan]
    if not lines or (_is_loss_scaling([line.flaw for line in lines]) and not every[-1].flaw):
        return None
    first = lines[0]
    what = first.flaw or f"{first.num_nan} iterations were NaN"
    places = [
        match.start() for line in lines[:3] for match in re.finditer(rf"iteration {{1,20}}{line.iteration}/", log)
    ]
    figures: dict[str, Figure] = {"iteration": first.iteration, "num_lines": len(lines)}
    return _cause(log, places, f"{what} at iteration {first.iteration}, and in {len(lines)} lines in all", figures)


def _others(log: str) -> Cause | None:
    every = [(position, first_flaw(values)) for position, values in logged_values(log)]
    found = [(position, flaw) for position, flaw in every if flaw]
    if not found or (_is_loss_scaling([flaw for _, flaw in found]) and not every[-1][1]):
        return None
    finding = f"{found[0][1]}, in {len(found)} lines in all"
    return _cause(log, [position for position, _ in found], finding, {"num_lines": len(found)})


def _is_loss_scaling(flaws: Sequence[str | None]) -> bool:
    """Tell whether gradients alone were not finite, as fp16 has it while it looks for its scale."""
    return all(flaw is not None and flaw.startswith("grad") for flaw in flaws)


def _cause(log: str, positions: list[int], finding: str, figures: dict[str, Figure]) -> Cause:
    rank = figures.pop("rank", None)
    where = f" on rank {rank}" if rank is not None else ""
    return Cause(
        kind=CauseKind.NOT_FINITE,
        finding=f"{finding}{where}",
        evidence=quoted(log, positions[:3]),
        actions=_TRAINER_ACTIONS if is_of_trainer(log) else ACTIONS,
        rank=rank if isinstance(rank, int) else None,
        figures=figures,
    )
