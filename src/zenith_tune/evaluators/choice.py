"""Which evaluator reads the trials: one that is named, or the preset's own, at the objective that is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.evaluators.base import EvaluatorRegistry, TuningEvaluator
from zenith_tune.registry import construct

_NAME = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)


def is_objective_name(objective: str) -> bool:
    """Tell whether `--objective` has a name; a pattern is never one, since it must have a group.

    >>> is_objective_name("tokens_per_s"), is_objective_name(r"loss: (\\S+)")
    (True, False)
    """
    return _NAME.fullmatch(objective) is not None


def choose_evaluator(
    evaluator: str | TuningEvaluator | None,
    args: Mapping[str, Any] | None,
    objective: str | None,
    *,
    own: Callable[[], TuningEvaluator],
    defaults: Mapping[str, Any],
) -> TuningEvaluator:
    """Return the evaluator that is given or named, else the preset's `own`, at `objective` where one is named.

    `defaults` stand in for arguments of a named evaluator that are not given.
    """
    if isinstance(evaluator, str):
        cls = EvaluatorRegistry.get(evaluator)
        chosen = construct(cls, args or {}, f"evaluator {evaluator}", defaults=defaults)
    elif args:
        raise UsageError("--evaluator-args belong to an evaluator", hint="name it by --evaluator")
    else:
        chosen = evaluator or own()
    return chosen if objective is None else _at(objective, chosen)


def _at(objective: str, evaluator: TuningEvaluator) -> TuningEvaluator:
    if objective in evaluator.objectives:
        return evaluator.with_objective(objective)
    unknown = UnknownNameError("objective", objective, evaluator.objectives)
    raise UsageError(f"{unknown} Or give a pattern with one group around the number, such as '{objective}: (\\S+)'.")
