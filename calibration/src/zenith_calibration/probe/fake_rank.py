"""One rank of a layout as a command of its own: Megatron-LM with a process group that has no other rank.

Legend: m micro-batches per step and rank, pp pipeline stages, vp model chunks per rank.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zenith_tune.layouts.layout import Layout
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.scripts.runs import ProgramRun

ANOTHER_ORDER = "--use-tp-pp-dp-mapping"
LEFT_OUT = frozenset(
    (
        *("--load", "--save", "--save-interval", "--non-persistent-save-interval", "--non-persistent-ckpt-type"),
        *("--async-save", "--rampup-batch-size", "--exit-interval", "--exit-duration-in-mins", "--tensorboard-dir"),
        *("--wandb-project", "--wandb-exp-name", "--wandb-save-dir", "--profile"),
        *("--global-batch-size", "--log-interval"),
    )
)
"""Options of what one rank cannot do for all (checkpoints), what ends it early or logs elsewhere, or the probe sets."""
_PYTHON = re.compile(r"(?:^|/)python[0-9.]*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeRank:
    """One rank of a pipeline stage, and the command that runs it."""

    stage: int
    rank: int
    num_micro_batches: int
    """Micro-batches per step of the probe, which may be fewer than the job's."""
    command: str


def probed_stages(pp: int) -> list[int]:
    """Return the stages to probe: the first, the last, and the one between them with the most in memory."""
    return sorted({0, min(1, pp - 1), pp - 1})


def probed_micro_batches(layout: Layout) -> int:
    """Return how many micro-batches are enough: twice the pipeline's stages keep as many in memory as more would."""
    return min(layout.num_micro_batches, max(2 * layout.pp, 4))


def fake_rank(run: ProgramRun, layout: Layout, stage: int, hook: Path) -> FakeRank:
    """Return the first rank of a stage of `layout`, whose options `run` has already; `hook` begins its PYTHONPATH."""
    num_micro_batches = probed_micro_batches(layout)
    rank = first_rank(layout, stage, pipeline_first=ANOTHER_ORDER in run.arguments)
    batch = num_micro_batches * layout.micro_batch * layout.dp
    arguments = [*without(run.arguments, LEFT_OUT), "--global-batch-size", str(batch), "--log-interval", "1"]
    words = [*_environment(run.variables, rank, layout.num_gpus, hook), interpreter(run.launcher), run.program]
    command = in_folder(run.folder, ParsedCommand.from_argv([*words, *arguments, "--fake-process-group"]).text)
    return FakeRank(stage=stage, rank=rank, num_micro_batches=num_micro_batches, command=command)


def in_folder(folder: Path | None, command: str) -> str:
    """Return a command that runs where the user's script goes before it trains."""
    return command if folder in (None, Path()) else f"cd {shlex.quote(str(folder))} && {command}"


def first_rank(layout: Layout, stage: int, *, pipeline_first: bool) -> int:
    """Return the first rank of a stage; stages are the slowest to change unless data parallelism is."""
    return stage * (layout.tp * layout.cp if pipeline_first else layout.num_gpus // layout.pp)


def without(arguments: Sequence[str], options: frozenset[str]) -> list[str]:
    """Return the arguments without these options and their values."""
    kept, is_left_out = [], False
    for word in arguments:
        if word.startswith("--"):
            is_left_out = word.partition("=")[0].replace("_", "-") in options
        if not is_left_out:
            kept.append(word)
    return kept


def interpreter(launcher: Sequence[str]) -> str:
    """Return the Python that a launcher starts: the one it names, or that of its own first line."""
    named = [word for word in launcher if _PYTHON.search(word) and not word.startswith("-")]
    if named:
        return named[-1]
    program = shutil.which(next((word for word in launcher if word.endswith("torchrun")), "torchrun"))
    first_line = ""
    if program:
        with contextlib.suppress(OSError), Path(program).open("rb") as file:
            first_line = file.readline(1024).decode("utf-8", errors="replace")
    found = first_line.removeprefix("#!").strip()
    return found if first_line.startswith("#!") and _PYTHON.search(found) else "python3"


def _environment(variables: Mapping[str, str], rank: int, world_size: int, hook: Path) -> list[str]:
    path = variables.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    usual = {"CUDA_DEVICE_MAX_CONNECTIONS": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "1")}
    own = {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",  # never opened: there is no other rank
        "PYTHONPATH": f"{hook}{os.pathsep}{path}" if path else str(hook),
        "PYTHONUNBUFFERED": "1",
    }
    return [f"{name}={value}" for name, value in {**usual, **variables, **own}.items()]
