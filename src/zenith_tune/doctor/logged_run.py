"""A run by its log: what it measured, and the job from its command or from the arguments that Megatron-LM dumps.

A dump is a table of `  hidden_size ..................................... 2048` between two lines of dashes; a launcher
may put a rank before each of its lines.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.doctor.causes.cause import Cause, CauseKind
from zenith_tune.doctor.causes.collective_timeout import collective_timeout
from zenith_tune.doctor.causes.failed_run import failed_run
from zenith_tune.doctor.causes.not_finite import not_finite
from zenith_tune.doctor.causes.waiting_ranks import data_stall, straggler
from zenith_tune.doctor.diagnosed_run import (
    MEGATRON_LM,
    DiagnosedRun,
    Measured,
    RunHints,
    UnplannedRun,
    from_command,
    made_preset,
    megatron_lm_run,
)
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.evaluators.engine_log import is_of_trainer, read_trainer_steps
from zenith_tune.evaluators.hooked_run import HookedRun
from zenith_tune.evaluators.hooked_speed import hooked_steps
from zenith_tune.evaluators.steady import long_run
from zenith_tune.evaluators.steps import LoggedSteps, after_steps, has_steps
from zenith_tune.presets.base import recognised
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator
from zenith_tune.presets.megatron.log import read_bridge_steps, read_steps
from zenith_tune.presets.megatron.preset import MegatronLmPreset
from zenith_tune.presets.mmengine import job as mmengine
from zenith_tune.presets.nanotron import job as nanotron
from zenith_tune.presets.torchtitan.log import timed_steps
from zenith_tune.registry import entry_points, typed
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.files import open_regular
from zenith_tune.study.trial_log import without_escapes
from zenith_tune.units import MIB

COUNTS_AND_WORDS = (
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels", "seq_length"),
    *("max_position_embeddings", "normalization", "position_embedding_type", "softmax_type", "vocab_size"),
    *("make_vocab_size_divisible_by", "tokenizer_type", "tokenizer_model", "transformer_impl", "mtp_num_layers"),
    *("micro_batch_size", "global_batch_size", "tensor_model_parallel_size", "pipeline_model_parallel_size"),
    *("context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size"),
    *("pipeline_model_parallel_layout", "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"),
    *("num_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size"),
    *("moe_layer_freq", "moe_token_dispatcher_type", "q_lora_rank", "kv_lora_rank", "qk_head_dim"),
    *("qk_pos_emb_head_dim", "v_head_dim", "recompute_granularity", "recompute_method", "recompute_num_layers"),
    *("fp8_recipe", "hybrid_layer_pattern", "hybrid_override_pattern", "heterogeneous_layers_config_path"),
    *("experimental_attention_variant", "linear_attention_freq"),
)
SWITCHES = (
    *("swiglu", "quick_geglu", "group_query_attention", "bf16", "fp16", "sequence_parallel"),
    *("use_distributed_optimizer", "untie_embeddings_and_output_weights", "multi_latent_attention", "add_qkv_bias"),
    *("qk_layernorm", "use_rotary_position_embeddings", "no_persist_layer_norm", "moe_shared_expert_gate"),
    *("use_megatron_fsdp", "use_torch_fsdp2", "use_custom_fsdp", "account_for_embedding_in_pipeline_split"),
    "account_for_loss_in_pipeline_split",
)
OF_GROUPS = ("num_query_groups",)
"""Arguments that are dumped with Megatron's default where there are no groups."""
OFF_SWITCHES = {
    "add_bias_linear": "--disable-bias-linear",
    "add_position_embedding": "--no-position-embedding",
    "masked_softmax_fusion": "--no-masked-softmax-fusion",
    "bias_swiglu_fusion": "--no-bias-swiglu-fusion",
    "bias_gelu_fusion": "--no-bias-gelu-fusion",
    "bias_dropout_fusion": "--no-bias-dropout-fusion",
    "apply_rope_fusion": "--no-rope-fusion",
    "gradient_accumulation_fusion": "--no-gradient-accumulation-fusion",
}
RENAMED = {"virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank", "fp8": "--fp8-format"}
BACKEND = "attention_backend"
MODULES = "recompute_modules"
START, END = "--- arguments ---", "--- end of arguments ---"
MAX_DUMP = 400_000
"""Most characters of a dump; Megatron-LM 0.20 dumps some fifty thousand."""
_LINE = re.compile(r"^[^\n]{0,40}?\b([a-z]\w{0,79}) (?:\.{1,80} | )(\S[^\n]{0,400})$", re.MULTILINE)
_VOCAB = re.compile(r"> padded vocab \(size: ([0-9]{1,9})\) with")


def dumped_arguments(log: str) -> dict[str, str]:
    """Return the arguments that a log dumps, by name; nothing where it dumps none."""
    end = log.rfind(END)
    start = log.rfind(START, max(end - MAX_DUMP, 0), end) if end >= 0 else -1
    if start < 0:
        return {}
    found = {name: value.strip() for name, value in _LINE.findall(log[start:end].replace("\r", ""))}
    if (vocab := _VOCAB.search(log)) is not None and found.get("vocab_size", "None") == "None":
        found["vocab_size"] = vocab[1]
    return {name: value for name, value in found.items() if value != "None"}


def dumped_command(arguments: Mapping[str, str]) -> str:
    """Return a command for the run that dumped these arguments."""
    return ParsedCommand.from_argv(["python", "pretrain_gpt.py", *_words(arguments)]).text


def recompute_modules(arguments: Mapping[str, str]) -> tuple[str, ...]:
    """Return the modules of selective recomputation, where the dump has them."""
    return tuple(re.findall(r"[a-z_]+", arguments.get(MODULES, "")))


def _words(arguments: Mapping[str, str]) -> Iterator[str]:
    names = (*COUNTS_AND_WORDS, *(OF_GROUPS if arguments.get("group_query_attention") == "True" else ()))
    options = {name: f"--{name.replace('_', '-')}" for name in names} | RENAMED
    for name, option in options.items():
        if name in arguments:
            yield from (option, arguments[name])
    # A member of an enumeration, AttnBackend.flash.
    if BACKEND in arguments:
        yield from ("--attention-backend", arguments[BACKEND].rpartition(".")[2])
    yield from (f"--{name.replace('_', '-')}" for name in SWITCHES if arguments.get(name) == "True")
    yield from (option for name, option in OFF_SWITCHES.items() if arguments.get(name) == "False")


MAX_BYTES = 256 * MIB


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, or refuse one that cannot be read or is too large."""
    try:
        with open_regular(Path(os.path.realpath(path))) as file:
            data: bytes = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        problem = f"the doctor needs a study's folder, a log or -- COMMAND, but {str(path)!r} cannot be read ({reason})"
        raise UsageError(problem, hint="check the path") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path} must be at most {MAX_BYTES // MIB} MiB, but is larger", hint="give the end of it")
    return data


def positive(value: object) -> float | None:
    """Return a number above 0, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < 1e30 else None


SHORTEST_STEP_S, LONGEST_STEP_S = 1e-6, 1e6


def from_log(path: Path, command: str | None, hints: RunHints) -> DiagnosedRun | UnplannedRun:
    """Read what a log measured, and the run from its command or from the arguments that the log dumps."""
    log = without_escapes(read_bytes(path).decode("utf-8", errors="replace"))
    causes, steps = log_causes(log), logged_steps(log)
    hint = "give what a run printed, from its start"
    if not log.strip("\0 \t\r\n"):
        raise UsageError(f"{path} is empty", hint=hint)
    if command is None and not (causes or steps or has_steps(log) or dumped_arguments(log)):
        raise UsageError(f"{path} holds nothing of a training run: no step, no failure, no arguments", hint=hint)
    try:
        if command is not None:
            run, evaluator = from_command(command, hints), _evaluator(command, hints)
        else:
            run = _from_dump(path, log, hints)
            evaluator = MegatronEvaluator(gbs=run.layout.global_batch, seq=run.subject.job.seq_len)
    except UsageError as error:
        # A log that shows what is wrong, or phases, is reported without a plan too; a command is given for its plan.
        known = _logged(causes, steps or read_steps(log))
        if not (causes or known.phases_s) and (command is not None or (steps is None and known.step_s is None)):
            raise
        if command is None:
            _refuse_unknown(hints)
        return UnplannedRun(measured=known, what=str(path), reason=str(error))
    measured = _measured(path, log, evaluator, command or "", _logged(causes, steps))
    return replace(run, measured=measured, what=str(path))


def _refuse_unknown(hints: RunHints) -> None:
    """Refuse a cluster, a model or an argument that does not exist: without a plan nothing else reads them."""
    args = typed(MegatronLmPreset, {}, "--args", defaults=hints.all_args)
    if args.get("cluster"):
        load_cluster(args["cluster"])
    if args.get("model"):
        load_model(args["model"])


def logged_steps(log: str) -> LoggedSteps | None:
    """Return the steps that a log shows besides Megatron-LM's, by line or by a trial's hook; None without any."""
    own = (timed_steps, read_bridge_steps, read_trainer_steps, nanotron.read_steps, mmengine.read_steps, _hooked_steps)
    found = (read(log) for read in chain(_brought(), own))
    return next((logged for logged in found if logged.steps or logged.peak_bytes), None)


def _brought() -> Iterator[Callable[[str], LoggedSteps]]:
    """Yield the readers of logs that installed packages bring."""
    for point in entry_points("zenith_tune.logs"):
        yield point.load()


def _hooked_steps(log: str) -> LoggedSteps:
    run = HookedRun.read(log)
    return LoggedSteps(steps=hooked_steps(run), peak_bytes=run.peak_bytes)


def _logged(causes: tuple[Cause, ...], logged: LoggedSteps | None) -> Measured:
    """Return what the log shows by itself; no speed for a run that was out of memory."""
    if lines := [cause.evidence[0] for cause in causes if cause.kind is CauseKind.OUT_OF_MEMORY]:
        return Measured(out_of_memory=True, cause=lines[0], causes=causes)
    seconds = [step.pace_s for step in logged.steady] if logged else []
    step_s = long_run(seconds) if seconds else 0.0
    if logged is None or not SHORTEST_STEP_S <= step_s <= LONGEST_STEP_S:
        return Measured(causes=causes)
    return Measured(
        step_s=step_s,
        peak_bytes=logged.peak_bytes,
        causes=causes,
        phases_s=logged.phases,
        phase_findings=tuple(logged.findings),
    )


def _from_dump(path: Path, log: str, hints: RunHints) -> DiagnosedRun:
    arguments = dumped_arguments(log)
    if not arguments:
        problem = f"{path} does not show what its run was started with"
        said = "with --model, --cluster and --seq where it does not say them"
        raise UsageError(problem, hint=f"give the command too, zenithtune doctor {path} -- COMMAND, {said}")
    started = {"n_gpus": arguments["world_size"]} if "world_size" in arguments else {}
    run = megatron_lm_run(dumped_command(arguments), replace(hints, args={**started, **hints.args}), arguments)
    return replace(run, recompute_modules=recompute_modules(arguments) if MODULES in arguments else ())


def _evaluator(command: str, hints: RunHints) -> TuningEvaluator:
    name, command = (hints.preset, command) if hints.preset else recognised(command)
    if name == MEGATRON_LM:
        return MegatronEvaluator()
    preset = made_preset(name, hints.all_args)
    preset.bind(command)
    return preset.evaluator()


def _measured(path: Path, log: str, evaluator: TuningEvaluator, command: str, logged: Measured) -> Measured:
    """Return what the preset's evaluator reads, else what the lines of other trainers show."""
    if logged.out_of_memory:
        return logged
    try:
        found = evaluator.measure(log, {"command": command, "trial_id": 0, "parameters": {}, "duration": 0.0})
    except ValueError as error:
        if logged.causes or logged.step_s is not None:
            return logged
        problem = f"{path} must have a speed, or show a failure, but does not ({error})"
        raise UsageError(problem, hint="give another log") from None
    if found.step_s is not None and not SHORTEST_STEP_S <= found.step_s <= LONGEST_STEP_S:
        raise UsageError(f"{path} has steps of {found.step_s:g} s, which no training takes", hint="give another log")
    return replace(logged, step_s=found.step_s, peak_bytes=positive(found.peak_memory_bytes))


_NAN = re.compile(r"\b(?:nan|inf|non-finite|not finite)\b", re.IGNORECASE)


def log_causes(log: str) -> tuple[Cause, ...]:
    """Return what a log shows to be wrong: what ended the run, then what slows it down."""
    log = log.replace("\r", "\n")
    failure, steps = failed_run(log), read_steps(log).steps
    timeout = collective_timeout(after_steps(log), of_trainer=is_of_trainer(log))
    nan = not_finite(log, steps)
    # A check that finds NaN raises, and a rank that waits too long loses its connection: one cause, not two.
    if failure is not None and (
        (nan is not None and failure.kind is CauseKind.CRASH and _NAN.search(failure.finding))
        or (timeout is not None and failure.kind is CauseKind.COMMUNICATION)
    ):
        failure = None
    found = (failure, nan, timeout, straggler(log), data_stall(log, steps))
    return tuple(cause for cause in found if cause is not None)
