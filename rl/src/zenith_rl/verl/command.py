"""A command that trains by reinforcement with verl, or a script that does: `python -m verl.trainer.main_ppo`."""

from __future__ import annotations

from collections.abc import Sequence

from zenith_tune.shell.scripts.runs import ProgramRun, find_runs

MODULE, FILE = "verl.trainer.main_ppo", "verl/trainer/main_ppo.py"


def recognises(command: str) -> bool:
    """Return whether a command, or a shell script that it starts, trains with verl."""
    return find_run(command) is not None


def find_run(command: str) -> ProgramRun | None:
    """Return the run of verl that a command comes down to."""
    return next(iter(find_runs(command, _is_trainer).runs), None)


def _is_trainer(words: Sequence[str], at: int) -> bool:
    return words[at].endswith(FILE) or (words[at] == MODULE and at > 0 and words[at - 1] == "-m")
