"""The dialects of torchtitan's options, as data, and which of them a job's own torchtitan speaks.

Read in the sources of 0.1.0, 0.2.2, 0.3.0 and of main at 2026-08-22.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from zenith_tune.shell.scripts.runs import ProgramRun
from zenith_tune.study.files import open_regular

PACKAGE = "torchtitan"
MAX_BYTES = 1 << 20
AC_MODE = "activation_checkpoint.mode"
CUDA_GRAPHS_OFF = "training.disable_cuda_graphs"


SERVICES = (
    "metrics.enable_tensorboard",
    "metrics.enable_wandb",
    "profiling.enable_profiling",
    "profiling.enable_memory_snapshot",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The names of settings; those that are not here have one name in all dialects."""

    name: str
    micro_batch: str = "training.local_batch_size"
    """Batch of one data-parallel rank and pass; with a pipeline, of all its micro-batches."""
    global_batch: str = "training.global_batch_size"
    seq_len: str = "training.seq_len"
    pipeline_batch: str = "parallelism.pipeline_parallel_microbatch_size"
    """Size of one micro-batch of a pipeline; their number where batches are counted in tokens."""
    counts_tokens: bool = False
    """Whether batches are counted in tokens in place of samples."""
    compile: str = "compile.enable"
    async_tp: str = "parallelism.enable_async_tensor_parallel"
    ac_is_subcommand: bool = False
    """Whether recomputation is chosen by a last word such as activation-checkpoint:full."""
    has_file: bool = True
    """Whether settings stand in a TOML; in Python otherwise, which only a run shows."""
    has_experts: bool = True
    has_cuda_graphs: bool = False
    converter: str | None = None
    """The entry of model.converters that has products in 8 bits; None where only Python can say it."""
    prints: str | None = None
    """What makes a run print its settings."""
    services: tuple[str, ...] = ()
    """What saves, evaluates, profiles or reports: off in trials."""


FIRST = Dialect(
    name="TOML (0.1)",
    compile="training.compile",
    has_experts=False,
    converter="float8",
    services=("checkpoint.enable_checkpoint", *SERVICES),
)
TOML = replace(
    FIRST,
    name="TOML (0.2)",
    compile="compile.enable",
    has_experts=True,
    converter="quantize.linear.float8",
    services=("checkpoint.enable", "validation.enable", *SERVICES),
)
MODULE = replace(
    TOML,
    name="Python configurations (0.3)",
    async_tp="compile.enable_async_tensor_parallel",
    ac_is_subcommand=True,
    has_file=False,
    has_cuda_graphs=True,
    converter=None,
    prints="debug.print_config",
    services=(
        *("checkpoint.enable", "validator.enable", *SERVICES[:2]),
        *("profiler.enable_profiling", "profiler.enable_memory_snapshot"),
    ),
)
TOKENS = replace(
    MODULE,
    name="Python configurations, batches in tokens (after 0.3)",
    micro_batch="training.num_tokens_per_microbatch_per_dp_rank",
    global_batch="training.num_tokens_per_train_step",
    seq_len="training.max_context_length",
    pipeline_batch="parallelism.num_pp_microbatches",
    counts_tokens=True,
)
SETTINGS_FILES = {"config_manager.py": FIRST, "config/job_config.py": TOML, "config/configs.py": MODULE}
"""Where the settings of a dialect are declared, the older first."""


def dialect_of(run: ProgramRun, *, has_file: bool) -> Dialect:
    """Return the dialect of the torchtitan that a run would import; by its kind alone where that is not found."""
    for folder in _folders(run):
        for name, dialect in SETTINGS_FILES.items():
            text = read_text(folder / PACKAGE / name)
            if text is not None and dialect.has_file == has_file:
                return TOKENS if dialect is MODULE and TOKENS.micro_batch.partition(".")[2] in text else dialect
    return TOML if has_file else MODULE


def _folders(run: ProgramRun) -> Iterator[Path]:
    """Yield where Python looks for a package, as far as that is seen from here."""
    if run.folder is not None:
        yield run.folder
    paths = run.variables.get("PYTHONPATH") or os.environ.get("PYTHONPATH", "")
    yield from (Path(path) for path in paths.split(":") if path)
    program = shutil.which(run.launcher[0]) if run.launcher else None
    if program is not None:
        yield from sorted(Path(program).parent.parent.glob("lib/python3*/site-packages"))
    spec = importlib.util.find_spec(PACKAGE)
    yield from (Path(place).parent for place in (spec.submodule_search_locations or () if spec else ()))


def read_text(path: Path) -> str | None:
    """Return the text of a file; None of one that cannot be read."""
    try:
        with open_regular(Path(os.path.realpath(path))) as file:
            return file.read(MAX_BYTES).decode(errors="replace")
    except OSError:
        return None
