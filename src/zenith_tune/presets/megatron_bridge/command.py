"""The run of a recipe of Megatron-Bridge that a command comes down to."""

from __future__ import annotations

from zenith_tune.shell.scripts.runs import ProgramRun, find_runs

PROGRAM = "run_recipe.py"


def recognises(command: str) -> bool:
    """Return whether a command, or a shell script that it starts, runs a recipe."""
    return recipe_run(command) is not None


def recipe_run(command: str) -> ProgramRun | None:
    """Return the first run of a recipe that a command leads to."""
    return next(iter(find_runs(command, lambda words, at: words[at].rpartition("/")[2] == PROGRAM).runs), None)
