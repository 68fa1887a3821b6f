"""A command that trains by GRPO with NeMo RL, or a script that does: `uv run python examples/run_grpo.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from zenith_tune.shell.parsed_command import script_text
from zenith_tune.shell.scripts.runs import ProgramRun, find_runs

PROGRAMS = {
    "run_grpo.py": "grpo_math_1B.yaml",
    "run_grpo_math.py": "grpo_math_1B.yaml",
    "run_vlm_grpo.py": "vlm_grpo_3B.yaml",
}
"""The programs that train, each with the file beside it that it reads where the command names none."""


def recognises(command: str) -> bool:
    """Return whether a command, or a shell script that it starts, trains with NeMo RL."""
    return find_run(command) is not None


def find_run(command: str) -> ProgramRun | None:
    """Return the run of NeMo RL that a command comes down to."""
    return next(iter(find_runs(command, _is_trainer).runs), None)


def _is_trainer(words: Sequence[str], at: int) -> bool:
    program = PurePosixPath(words[at])
    # Others may have a program of such a name: where its text cannot be read, it is the one in `examples`.
    return program.name in PROGRAMS and (program.parent.name == "examples" or "nemo_rl" in script_text(words[at]))
