"""A run by its command, as the preset megatron takes it: ms-swift, or a script of Megatron-LM with a model by name."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from zenith_tune.constructor_args import typed
from zenith_tune.describe.megatron.args import MegatronArgs, shown, whole
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.doctor.diagnosed_run import MEGATRON, DiagnosedRun, Told, emitted
from zenith_tune.errors import CommandError, UsageError
from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.launched_gpus import started_gpus
from zenith_tune.presets.megatron.command import OPTIONS, runs_ms_swift
from zenith_tune.presets.megatron.preset import SELECTIVE_FLAG, MegatronPreset
from zenith_tune.presets.megatron.swift import CHUNKS, LAYERS_PER_CHUNK, MEGATRON_CHUNKS
from zenith_tune.presets.megatron_plan import layout_in, megatron_subject, with_recompute
from zenith_tune.shell import CommandLine
from zenith_tune.study.parameters import Params

PRESET = "preset megatron"
RECOMPUTE = ("full", "selective", "none")
SWIFT_BATCH, SWIFT_MICRO_BATCH, SWIFT_RECOMPUTE = 16, 1, "selective"
"""What ms-swift takes where nothing is said, by its documentation; Megatron-LM itself recomputes nothing then."""


def megatron_run(command: str, told: Told) -> DiagnosedRun:
    """Read a run from the options of its command; `--args` says the rest, and goes before the command."""
    try:
        said = MegatronArgs(CommandLine(command))
        defaults = _told_by(command, said)
    except CommandError as error:
        raise UsageError(f"{PRESET} cannot tell the layout that the command has ({error}): write it out") from None
    args = typed(MegatronPreset, told.all_args, PRESET, defaults={"n_gpus": 0, "gbs": 0, **defaults})
    for name, option in (("n_gpus", "--nproc-per-node or NPROC_PER_NODE"), ("gbs", OPTIONS["gbs"])):
        if name not in defaults and name not in told.all_args:
            raise UsageError(f"{PRESET} must know {name}, but the command has no {option}: give --args {name}=8")
    start = Layout(num_gpus=args["n_gpus"], global_batch=args["gbs"])
    asked = {name: args.get(name) for name in ("model", "cluster", "seq")}
    subject = megatron_subject(command, n_gpus=start.num_gpus, **asked)
    layout = _layout(said, start, subject.model, is_swift=runs_ms_swift(command))
    origin = told.origin(emitted(MEGATRON, command))
    return DiagnosedRun(subject=subject, layout=layout_in(command, layout), origin=origin)


def _told_by(command: str, said: MegatronArgs) -> dict[str, Any]:
    """Return the preset's arguments that the command itself tells."""
    is_swift = runs_ms_swift(command)
    found: dict[str, Any] = {
        "n_gpus": started_gpus(command) or _by_variables(said.line),
        "gbs": said.count(OPTIONS["gbs"]) or (SWIFT_BATCH if is_swift else None),
        "model": said.text("--model") if is_swift else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _by_variables(line: CommandLine) -> int | None:
    """Return the GPUs that the variables of ms-swift's launcher tell."""
    variables = {**os.environ, **line.assignments()}
    per_node = whole(variables.get("NPROC_PER_NODE", ""))
    return per_node * (whole(variables.get("NNODES", "")) or 1) if per_node else None


def _layout(said: MegatronArgs, start: Layout, model: ModelSpec, *, is_swift: bool) -> Layout:
    tp, pp, cp, ep = (said.count(OPTIONS[name]) or 1 for name in ("tp", "pp", "cp", "ep"))
    mbs = said.count(OPTIONS["mbs"]) or (SWIFT_MICRO_BATCH if is_swift else None)
    if mbs is None:
        law = f"{PRESET} must know the micro-batch, but the command has no {OPTIONS['mbs']}"
        raise UsageError(f"{law}: add it to the command")
    # Unset, Megatron-LM cuts experts as it cuts the dense layers, and ms-swift does not cut them.
    etp = said.count(OPTIONS["etp"]) or (tp if model.num_experts and not is_swift else 1)
    vp = _chunks(said, pp, model.num_layers)
    layout = replace(start, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp, vp=vp, micro_batch=mbs)
    granularity = said.text(OPTIONS["recompute_granularity"]) or (SWIFT_RECOMPUTE if is_swift else "none")
    if said.has(SELECTIVE_FLAG):
        granularity = "selective"
    if granularity not in RECOMPUTE:
        law = f"{OPTIONS['recompute_granularity']} must be full or selective, but is {shown(granularity)}"
        raise UsageError(f"{law}: correct it in the command")
    if granularity == "none":
        return replace(layout, recompute="none")
    method = said.text(OPTIONS["recompute_method"]) or "uniform"
    layers = said.count(OPTIONS["recompute_num_layers"]) or 1
    point: Params = {"recompute_granularity": granularity, "recompute_method": method, "recompute_num_layers": layers}
    return with_recompute(layout, point)


def _chunks(said: MegatronArgs, pp: int, num_layers: int) -> int:
    """Return the model chunks per pipeline rank."""
    if chunks := said.count(CHUNKS) or said.count(MEGATRON_CHUNKS):
        return chunks
    per_chunk = said.count(LAYERS_PER_CHUNK)
    return max(num_layers // (pp * per_chunk), 1) if per_chunk else 1
