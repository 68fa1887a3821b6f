"""A run by its log: what it measured, and the job from its command or from the arguments that the log dumps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from zenith_tune.describe.terminal_text import plain_text
from zenith_tune.doctor.diagnosed_run import (
    MEGATRON_LM,
    DiagnosedRun,
    Told,
    from_command,
    in_words_of_the_doctor,
    made_preset,
    megatron_lm_run,
)
from zenith_tune.doctor.log_arguments import MODULES, dumped_arguments, dumped_command, recompute_modules
from zenith_tune.doctor.measured import Measured
from zenith_tune.doctor.run_file import positive, read_bytes
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.evaluators.failures.failures import FailureKind, hidden_failure
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator
from zenith_tune.presets.recognition import recognised_preset

SHORTEST_STEP_S, LONGEST_STEP_S = 1e-6, 1e6


def from_log(path: Path, command: str | None, told: Told) -> DiagnosedRun:
    """Read what a log measured, and the run from its command or else from the arguments that the log dumps."""
    log = plain_text(read_bytes(path).decode("utf-8", errors="replace"))
    if command is not None:
        run, evaluator = from_command(command, told), _evaluator(command, told)
    else:
        run = _from_dump(path, log, told)
        evaluator = MegatronEvaluator(gbs=run.layout.global_batch, seq=run.subject.job.seq_len)
    measured = _measured(path, log, evaluator, command or "")
    return replace(run, measured=measured, what=str(path))


def _from_dump(path: Path, log: str, told: Told) -> DiagnosedRun:
    arguments = dumped_arguments(log)
    if not arguments:
        law = f"{path} must dump its arguments, as Megatron-LM does, but does not"
        raise UsageError(f"{law}: give the command too, zenithtune doctor {path} -- COMMAND")
    started = {"n_gpus": arguments["world_size"]} if "world_size" in arguments else {}
    with in_words_of_the_doctor():
        run = megatron_lm_run(dumped_command(arguments), replace(told, args={**started, **told.args}))
    return replace(run, recompute_modules=recompute_modules(arguments) if MODULES in arguments else ())


def _evaluator(command: str, told: Told) -> TuningEvaluator:
    name = told.preset or recognised_preset(command)
    if name == MEGATRON_LM:
        return MegatronEvaluator()
    preset = made_preset(name, told.all_args)
    preset.bind(command)
    return preset.evaluator()


def _measured(path: Path, log: str, evaluator: TuningEvaluator, command: str) -> Measured:
    try:
        found = evaluator.measure(log, {"command": command, "trial_id": 0, "parameters": {}, "duration": 0.0})
        failure = hidden_failure(log, has_value=True)
    except ValueError as error:
        found, why = None, str(error)
        failure = hidden_failure(log, has_value=False)
    if failure is not None and failure.kind is FailureKind.OUT_OF_MEMORY:
        return Measured(out_of_memory=True, cause=failure.message)
    if found is None:
        reason = failure.message if failure is not None else why
        raise UsageError(f"{path} must tell a speed, or that memory ran out, but does not ({reason}): give another log")
    if found.step_s is not None and not SHORTEST_STEP_S <= found.step_s <= LONGEST_STEP_S:
        raise UsageError(f"{path} tells of steps of {found.step_s:g} s, which no training takes: give another log")
    peak = positive(found.peak_memory_bytes)
    return Measured(step_s=found.step_s, peak_bytes=peak)
