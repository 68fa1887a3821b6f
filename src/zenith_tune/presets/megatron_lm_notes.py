"""What the user of a Megatron-LM command should know before the first trial: what was read, and what may spoil it."""

from __future__ import annotations

import os

from zenith_tune.describe.megatron.args import whole
from zenith_tune.describe.megatron_job_args import is_local
from zenith_tune.presets.megatron_lm.job import MegatronJob
from zenith_tune.presets.megatron_lm.rules import version_note
from zenith_tune.presets.megatron_lm.space import MegatronLmSpace

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
RAMPS = ("--rampup-batch-size", "--step-batch-size-schedule")
LOG_INTERVAL = "--log-interval"
MANY_ITERATIONS = 10
"""Between two lines of the log; a trial is over sooner where they come more often."""


def job_notes(space: MegatronLmSpace) -> list[str]:
    """Return one line for each thing worth knowing."""
    job = space.job
    notes = [_what_was_read(job), version_note(job.version)]
    notes.append(f"searched: {', '.join(space.open_names) or 'nothing, there is one layout'}")
    notes += _hidden(job) + _log(job)
    if option := job.args.first(*RAMPS):
        notes.append(f"{option} in your command changes the batch as it trains: a trial measures its beginning alone")
    if option := job.args.first("--save", "--load"):
        notes.append(f"{option} stays as it is in your command: trials use the checkpoints there; better leave it out")
    if _needs_connections(space):
        notes.append(
            f"Megatron asks for {CONNECTIONS}=1 with tp or cp above 1 before Blackwell: set it for the command"
        )
    return notes


def _what_was_read(job: MegatronJob) -> str:
    model, at = job.model, job.start
    assert model is not None
    words = [model.name, f"{model.num_layers} layers", f"hidden {model.hidden}"]
    if model.num_experts:
        words.append(f"{model.num_experts} experts")
    words += [f"sequence {job.job.seq_len}", f"batch {at.global_batch}"]
    words += [f"{at.num_gpus} GPU{'s' * (at.num_gpus > 1)}", job.job.precision]
    words += ["no Transformer Engine"] * is_local(job.args)
    where = f"{job.run.script}" if job.run is not None and job.run.script else "your command"
    return f"read from {where}: {', '.join(words)}"


def _hidden(job: MegatronJob) -> list[str]:
    if job.run is None:
        return []
    where, notes = job.run.script or "your command", []
    if job.run.extended:
        names = " and ".join(job.run.extended)
        notes.append(f"{where} may add to {names} under a condition that is not followed here")
    if job.run.is_guarded:
        notes.append(
            f"{where} runs {job.run.program} under a condition that is not followed here: is it the run meant?"
        )
    return notes


def _log(job: MegatronJob) -> list[str]:
    interval = job.args.text(LOG_INTERVAL)
    if interval is not None and (number := whole(interval)) is not None and number <= MANY_ITERATIONS:
        return []
    said = f"every {interval[:20]} iterations" if interval is not None else "every 100 iterations"
    return [f"your command logs {said}: with {LOG_INTERVAL} 1 a trial is sooner over"]


def _needs_connections(space: MegatronLmSpace) -> bool:
    run = space.job.run
    is_set = CONNECTIONS in os.environ or (run is not None and CONNECTIONS in run.variables)
    return not is_set and any(value != 1 for name in ("tp", "cp") for value in space.choices[name])
