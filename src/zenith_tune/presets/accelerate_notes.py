"""What the user of an `accelerate launch` command should know before the first trial."""

from __future__ import annotations

from zenith_tune.errors import UsageError
from zenith_tune.presets.accelerate.backend import Backend, FsdpBackend
from zenith_tune.presets.accelerate.megatron import MegatronBackend
from zenith_tune.presets.accelerate_keys import CHECKED_VERSION


def accelerate_notes(backend: Backend, unplanned: UsageError | None) -> list[str]:
    """Return the notes, one line each."""
    job = backend.job
    batch = f"global batch {backend.global_batch}" if backend.own_micro_batch else "the batch"
    notes = [
        f"{job.settings.source}: {job.settings.get('distributed_type')} on {job.num_gpus} processes; {batch} stays, "
        f"and each trial has a file of its own, in the keys of Accelerate {CHECKED_VERSION}"
    ]
    if job.settings.unread:
        names = ", ".join(job.settings.unread)
        notes.append(f"Accelerate reads no key {names}, so it has no effect and is left out: correct its name")
    if backend.own_micro_batch is None:
        cure = "give --args mbs_option=--batch_size"
        notes.append(f"the dataloader's batch size is not known: it stays as it is, and speed is in steps/s; {cure}")
    notes += _backend_notes(backend)
    if unplanned is not None:
        notes.append(f"layouts are not planned before a trial: {unplanned}")
    return notes


def _backend_notes(backend: Backend) -> list[str]:
    own = backend.job.settings
    if isinstance(backend, FsdpBackend) and own.get("fsdp_auto_wrap_policy") is None:
        return ["without fsdp_auto_wrap_policy the whole model is one unit: nothing of it is freed between layers"]
    if not isinstance(backend, MegatronBackend):
        return []
    notes = []
    if own.get("megatron_lm_context_parallel_size") is None:
        notes.append(
            "your file leaves megatron_lm_context_parallel_size out, which Accelerate takes for 2: trials say 1"
        )
    if own.flag("megatron_lm_recompute_activations"):
        notes.append("megatron_lm_recompute_activations reaches nobody in Accelerate: trials say recompute_granularity")
    if len(backend.axes["cp"]) > 1 or backend.axes["cp"][0] != 1:
        notes.append("with cp above 1 Accelerate feeds Megatron too few micro-batches, unless Megatron reads the data")
    if still := [name for name in ("cp", "ep") if len(backend.axes[name]) == 1]:
        notes.append(_still_note(still))
    if "selective" not in backend.axes["recompute"]:
        cure = "a script that passes other_megatron_args can, by --args recompute_option=--recompute"
        notes.append(f"Accelerate's file cannot ask for selective recomputation: {cure}")
    return notes


def _still_note(still: list[str]) -> str:
    reasons = {
        "cp": "cp, with which Accelerate feeds Megatron too few micro-batches unless Megatron reads the data",
        "ep": "ep, which is for a mixture of experts that --args model=NAME tells",
    }
    what = "; and ".join(reasons[name] for name in still)
    return f"not searched: {what}; --args search=default+{'+'.join(still)} would"
