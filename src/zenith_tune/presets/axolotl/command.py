"""Training by Axolotl (0.19): its YAML with options, and Hugging Face's Trainer inside."""

from __future__ import annotations

from collections.abc import Mapping

from zenith_tune.presets.trainer.command import ACCUMULATION, ATTENTION, CHECKPOINTING, MICRO_BATCH
from zenith_tune.presets.trainer.dialect import Dialect, by_options, program_words
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.rank_launcher import last_option
from zenith_tune.study.parameters import Value
from zenith_tune.units import whole

MODULE = "axolotl.cli.train"
PROGRAMS = ("axolotl", "axolotl.cli.main")
BATCH = "batch_size"
"""Samples of an update of one rank, in place of the passes."""
KEYS = {
    MICRO_BATCH: "micro_batch_size",
    "optim": "optimizer",
    **{name: name for name in (ACCUMULATION, CHECKPOINTING, ATTENTION, "torch_compile", "bf16", "tf32")},
}


def recognises(command: str) -> bool:
    """Return whether a command trains by Axolotl."""
    program, arguments = program_words(command)
    return program == MODULE or (program in PROGRAMS and arguments[:1] == ["train"])


def _write(command: str, keys: Mapping[str, Value]) -> str:
    """Return the command with options, which win over its file."""
    options = {f"--{key.replace('_', '-')}": value for key, value in keys.items()}
    return ParsedCommand.of(command).set(options).text


def _num_processes(command: str) -> int | None:
    """Return the ranks that its launcher is asked for, by an option or behind two dashes."""
    return whole(last_option(program_words(command)[1], "--num-processes", "--nproc-per-node") or "") or None


AXOLOTL = Dialect(
    keys=KEYS,
    read=lambda command: by_options(command, {**KEYS, BATCH: BATCH}),
    write=_write,
    defaults={MICRO_BATCH: 1},
    follows={ACCUMULATION: BATCH},
    # It writes there before it makes its Trainer.
    in_trials={"output_dir": "{trial_folder}/output"},
    num_processes=_num_processes,
)
