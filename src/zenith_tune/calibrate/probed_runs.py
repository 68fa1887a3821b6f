"""Measured runs from a probe's file: single ranks of layouts, each with its memory and its work without messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from zenith_tune.calibrate.measured_run import MeasuredRun, is_memory, is_step
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.gpu_catalog import match_gpu
from zenith_tune.describe.model_spec import LatentAttention, ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_batch import RECOMPUTE_NAMES
from zenith_tune.study.files import read_regular
from zenith_tune.study.trial_log import clean_line
from zenith_tune.units import MIB

FILE_NAME = "probe.json"
MAX_BYTES = 64 * MIB
MAX_NAME_LENGTH = 40
MOST = 10**6
"""No count or size of a model or a layout is larger, but these:"""
MOST_OF = {"num_layers": 10**4, "zero": 3, "seq_len": 10**7, "global_batch": 10**7}
ONES_OF_A_LAYOUT = ("num_gpus", "tp", "pp", "cp", "ep", "etp", "vp", "micro_batch", "global_batch")
ONES_OF_A_MODEL = ("num_layers", "hidden", "num_heads", "num_kv_heads", "head_dim", "vocab")

Json = Mapping[str, Any]


def read_probes(place: Path) -> list[MeasuredRun]:
    """Read the stages that trained from a probe's file, or from the folder that holds it."""
    path = place / FILE_NAME if place.is_dir() else place
    try:
        return list(_runs(json.loads(read_regular(path, MAX_BYTES).decode("utf-8-sig"))))
    except OSError as error:
        problem = f"probes must be a folder with {FILE_NAME}, but {str(path)!r} cannot be read ({error.strerror})"
        raise UsageError(problem, hint="give the folder that a probe wrote") from None
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError):
        raise UsageError(
            f"{path} must be what a probe writes, but is not", hint="give the folder of another probe"
        ) from None


def _runs(stored: Json) -> Iterator[MeasuredRun]:
    model = _model(stored["model"])
    for probed in stored["layouts"]:
        layout = Layout(**_checked(Layout, probed["layout"], ONES_OF_A_LAYOUT))
        if layout.tp * layout.pp * layout.cp * layout.dp != layout.num_gpus:
            raise ValueError("sizes that do not multiply to the GPUs")
        for stage in probed["stages"]:
            if stage["outcome"] == "ok":
                yield _run(stored, model, layout, stage)


def _run(stored: Json, model: ModelSpec, layout: Layout, stage: Json) -> MeasuredRun:
    planned_for, ran_on = clean_line(_text(stored, "gpu"), MAX_NAME_LENGTH), match_gpu(_text(stage, "gpu"))
    gpu = ran_on or planned_for
    allocated, reserved = (_measured(stage[name], is_memory) for name in ("allocated_bytes", "reserved_bytes"))
    return MeasuredRun(
        source=f"probes on {gpu}",
        framework=load_framework(_text(stored, "framework")).name,
        stated_framework=_text(stored, "framework"),
        model=model,
        model_name=model.name,
        gpu=gpu,
        num_gpus=layout.num_gpus,
        gpus_per_node=_count(stored["gpus_per_node"]),
        precision=_text(stored, "precision"),
        dispatcher=_text(stored, "dispatcher"),
        seq_len=_count(stored["seq_len"], most=MOST_OF["seq_len"]),
        layout=_columns(layout, _count(stage["num_micro_batches"])),
        probed_stage=range(layout.pp)[_count(stage["stage"], least=0)],
        step_s=_measured(stage["step_s"], is_step),
        memory_bytes=allocated or reserved,
        memory_kind="allocated" if allocated else "reserved" if reserved else "",
    )


def _columns(layout: Layout, num_micro_batches: int) -> dict[str, int | bool]:
    """Return the columns of the layout as it was probed, with the probe's own batch."""
    return {
        **{name: getattr(layout, name) for name in ("tp", "pp", "vp", "cp", "ep", "etp", "dp", "zero")},
        "mbs": layout.micro_batch,
        "gbs": _count(num_micro_batches * layout.micro_batch * layout.dp, most=MOST_OF["global_batch"]),
        "recompute": RECOMPUTE_NAMES.index(layout.recompute),
        "recompute_layers": layout.recompute_layers,
        "sequence_parallel": layout.sequence_parallel,
        "flash_attention": layout.flash_attention,
    }


def _model(stored: Json) -> ModelSpec:
    known = {field.name for field in fields(ModelSpec)} - {"traced"}  # Megatron-LM's models have a config
    values = {name: value for name, value in stored.items() if name in known}
    if isinstance(name := values.get("name"), str):
        values["name"] = clean_line(name)
    latent = values.pop("latent_attention", None)
    parts = LatentAttention(**_checked(LatentAttention, latent)) if latent else None
    model = ModelSpec(**_checked(ModelSpec, values, ONES_OF_A_MODEL), latent_attention=parts)
    if model.num_dense_layers > model.num_layers or model.top_k > model.num_experts:
        raise ValueError("a part that is larger than the whole")
    return model


def _checked(kind: type[Any], stored: Json, ones: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of a dataclass with their types made sure; `ones` are the counts that nothing goes without."""
    kinds = {field.name: field.type for field in fields(kind)}
    for name, value in stored.items():
        if kinds.get(name) == "int":
            _count(value, least=int(name in ones), most=MOST_OF.get(name, MOST))
        elif type(value).__name__ != kinds.get(name):
            raise TypeError(f"{name} of another type")
    return dict(stored)


def _count(value: object, least: int = 1, most: int = MOST) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError("no count")
    return value


def _measured(value: object, is_plausible: Callable[[float], bool]) -> float | None:
    """Return a measured figure, or None where nothing was measured."""
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not is_plausible(value):
        raise ValueError("no measurement")
    return float(value)


def _text(stored: Json, name: str) -> str:
    value = stored[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is no text")
    return value
