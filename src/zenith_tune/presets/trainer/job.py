"""What a command, and then a run of it, say of a job that trains with a Trainer: processes, batch, arguments, model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from zenith_tune.evaluators.hooked_run import WRAPPER_NAMES
from zenith_tune.presets.shared.hooked_job import HookedArguments, HookedJob
from zenith_tune.presets.shared.launched_gpus import job_gpus, machine_gpus, started_gpus
from zenith_tune.presets.trainer.command import (
    ACCUMULATION,
    ATTENTION,
    CHECKPOINTING,
    GENERATION_BATCH,
    MAX_LENGTH,
    MICRO_BATCH,
    PRESET,
    STEPS_PER_GENERATION,
    ArgumentFile,
    argument_file,
    is_trl,
    option_values,
    recognises,
)
from zenith_tune.presets.trainer.dialect import Dialect
from zenith_tune.presets.trainer.log import LiveTrainer, TrainerRun
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.rank_launcher import last_option
from zenith_tune.study.parameters import Value
from zenith_tune.units import positive_int

DEFAULTS: dict[str, Value] = {MICRO_BATCH: 8, ACCUMULATION: 1, CHECKPOINTING: False}
"""Those of TrainingArguments."""
ALL_GPUS = ("gpu", "auto")
"""What torchrun takes in place of a number."""
MANY_SHAPES = 0.5
"""Share of updates of a length of their own above which that is worth a note."""


class Carrier(StrEnum):
    """Say by what an argument reaches the Trainer."""

    OPTION = "option"
    FILE = "file"
    HOOK = "hook"
    """The script sets it in Python, and the hook in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerJob(HookedJob):
    """A job of a Trainer; before a run of it only its text is known, with the defaults of TrainingArguments."""

    arguments: Mapping[str, Any]
    options: frozenset[str] = frozenset()
    reads_options: bool = False
    """Whether the script reads any field of TrainingArguments from its command."""
    file: ArgumentFile | None = None
    is_trl: bool = False
    dialect: Dialect | None = None
    """How the program spells arguments, where it has names of its own for them."""
    trainer: LiveTrainer | None = None
    """What the user's own command trained with; None before it has run."""
    passes: int | None = None
    tokens: float | None = None
    """Of an update, without padding, on average; None where it is not known."""

    @property
    def is_known(self) -> bool:
        return self.trainer is not None or self.reads_options or self.file is not None

    @property
    def micro_batch(self) -> int:
        return self._whole(MICRO_BATCH)

    @property
    def accumulation(self) -> int:
        return self._whole(ACCUMULATION)

    @property
    def compute(self) -> int:
        return self.trainer.compute if self.trainer else 0

    @property
    def packages(self) -> frozenset[str] | None:
        return self.trainer.packages if self.trainer else None

    @property
    def counts_passes(self) -> bool:
        """Whether an update makes as many passes as its arguments say: a trainer of TRL may make others."""
        return self.passes in (None, self.accumulation)

    @property
    def is_checkpointing(self) -> bool:
        """Whether activations are recomputed, by an argument or by the script."""
        return self.arguments.get(CHECKPOINTING) is True or self.checkpoints_itself

    @property
    def checkpoints_itself(self) -> bool:
        """Whether the script has turned recomputation on by a call, which no argument turns off."""
        return self.trainer is not None and self.trainer.is_checkpointing and not self.arguments.get(CHECKPOINTING)

    @property
    def samples_of_row(self) -> float | None:
        """Samples that fill a row up to where samples are cut, on average; None where it is not known."""
        length = self.arguments.get(MAX_LENGTH)
        return length * self.global_batch / self.tokens if type(length) is int and self.tokens else None

    @property
    def steps_per_generation(self) -> int | None:
        """Passes of one rank on the samples that it generates at once; None where the command leaves that open."""
        value = self.arguments.get(STEPS_PER_GENERATION)
        return value if type(value) is int and self.dialect is None else None

    @property
    def num_generated(self) -> int:
        """Samples that one rank generates at once, which no trial changes; 0 where it generates none."""
        if self.steps_per_generation:
            return self.micro_batch * self.steps_per_generation
        value = self.arguments.get(GENERATION_BATCH)
        return value // self.num_processes if type(value) is int else 0

    def can_train(self, micro_batch: int) -> bool:
        return self.num_generated % micro_batch == 0

    def takes(self, name: str) -> bool:
        if self.dialect is not None:
            return name in self.dialect.keys
        return self.is_trl or name in self.options or (self.file is not None and name in self.file.values)

    def lacks(self, settings: Mapping[str, Value]) -> bool:
        """Return whether arguments can be given that it does not have yet; one that is not known counts as had."""
        name, value = next(iter(settings.items()))
        if self.trainer is None or (self.dialect is not None and not settings.keys() <= self.dialect.keys.keys()):
            return False
        if name == ATTENTION:
            return self.trainer.attention != value
        return bool(self.trainer.arguments.get(name, value) != value)

    def carrier(self, name: str) -> Carrier:
        if self.file is not None:
            return Carrier.FILE
        if self.dialect is not None:
            return Carrier.OPTION
        if name in self.options or (self.reads_options and (name != ATTENTION or self.is_trl)):
            return Carrier.OPTION
        return Carrier.HOOK

    def carried(self, values: Mapping[str, Value], carrier: Carrier) -> dict[str, Value]:
        return {name: value for name, value in values.items() if self.carrier(name) is carrier}

    def _whole(self, name: str) -> int:
        return positive_int(self.arguments.get(name)) or int(DEFAULTS[name])


def read_job(command: str, given: HookedArguments, dialect: Dialect | None = None) -> TrainerJob:
    """Read a command; of one whose script has its arguments in Python only the processes are known."""
    if dialect is not None:
        return TrainerJob(
            num_processes=_num_processes(command, given.n_gpus, dialect),
            arguments={**DEFAULTS, **dialect.defaults, **dialect.arguments(command)},
            reads_options=True,
            dialect=dialect,
            seq_len=given.seq,
        )
    line, file = ParsedCommand.of(command), argument_file(command)
    values = option_values(command)
    names = (*values, ATTENTION)
    return TrainerJob(
        num_processes=_num_processes(command, given.n_gpus),
        arguments={**DEFAULTS, **(file.values if file else values)},
        options=frozenset(name for name in names if line.has(f"--{name}")),
        reads_options=file is None and recognises(command),
        file=file,
        is_trl=is_trl(command),
        seq_len=given.seq,
    )


def _num_processes(command: str, given: int | None, dialect: Dialect | None = None) -> int:
    line, started = ParsedCommand.of(command), started_gpus(command)
    started = (dialect.num_processes(command) if dialect else None) or started
    asks_for_all = last_option(line.front, "--nproc-per-node") in ALL_GPUS
    takes_all = dialect or is_trl(command) or (line.launcher is not None and line.launcher.kind != "torchrun")
    if given or started or asks_for_all:
        return job_gpus(PRESET, given, started, option="--nproc-per-node")
    return (machine_gpus() if takes_all else None) or 1


def live_job(job: TrainerJob, run: TrainerRun) -> TrainerJob:
    """Return the job as it ran."""
    trainer = run.trainer
    if trainer is None:
        return job
    if job.dialect is not None:
        unseen = {name: job.arguments.get(name, False) for name in job.dialect.unseen}
        trainer = replace(trainer, arguments={**trainer.arguments, **unseen, CHECKPOINTING: trainer.checkpoints})
    # A script may read its options and its file by other means than HfArgumentParser.
    return job.seen(
        run,
        num_processes=trainer.world,
        arguments={**job.arguments, **trainer.arguments},
        reads_options=trainer.read_from == "options" or job.dialect is not None,
        file=job.file if trainer.read_from == "file" else None,
        trainer=trainer,
        passes=run.usual_passes or None,
        tokens=run.mean_tokens,
        new_shapes=run.new_shapes,
        seq_len=job.seq_len or run.seq_len,
    )


def live_notes(job: TrainerJob) -> list[str]:
    """Return what was learnt of the job, one line each."""
    assert job.trainer is not None, "of a job that ran"
    notes = [job.batch_note(job.trainer.kind)]
    if any(job.carrier(name) is Carrier.HOOK for name in (MICRO_BATCH, ACCUMULATION, CHECKPOINTING)):
        notes.append(
            "the script sets arguments itself: trials set theirs by a hook on PYTHONPATH, and best_command.sh by the"
            " folder trainer_arguments next to it, whose hooks.json lists what to write into the script"
        )
    if job.checkpoints_itself:
        notes.append("gradient checkpointing stays on, because the script turns it on by a call of its own")
    if not job.is_plain:
        name = WRAPPER_NAMES[str(job.wrapper)]
        notes.append(f"the Trainer runs {name}: its own options stay as they are, and layouts are not planned")
    if job.new_shapes > MANY_SHAPES:
        notes.append(
            "batches are of many lengths: the first of each length takes the host longer, which a trial meets in most"
            " updates and a long training in few; padding to a multiple (pad_to_multiple_of) makes them fewer"
        )
    return notes
