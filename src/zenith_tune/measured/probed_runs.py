"""Measured runs from a probe's file: single ranks of layouts, each with its memory and its work without messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from zenith_tune.describe.model_spec import LatentAttention, ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_batch import RECOMPUTE_NAMES
from zenith_tune.measured.measured_run import MeasuredRun
from zenith_tune.regular_file import open_regular
from zenith_tune.units import MIB

FILE_NAME = "probe.json"
MAX_BYTES = 64 * MIB

Json = Mapping[str, Any]


def read_probes(place: Path) -> list[MeasuredRun]:
    """Read the stages that trained from a probe's file, or from the folder that holds it."""
    path = place / FILE_NAME if place.is_dir() else place
    try:
        with open_regular(path) as file:
            stored = json.loads(file.read(MAX_BYTES).decode("utf-8-sig"))
        return list(_runs(stored))
    except OSError as error:
        law = f"probes must be a folder with {FILE_NAME}, but {str(path)!r} cannot be read ({error.strerror})"
        raise UsageError(f"{law}: give the folder that a probe wrote") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise UsageError(f"{path} must be what a probe writes, but is not: give the folder of another probe") from None


def _runs(stored: Json) -> Iterator[MeasuredRun]:
    model = _model(stored["model"])
    for probed in stored["layouts"]:
        layout = Layout(**probed["layout"])
        for stage in probed["stages"]:
            if stage["outcome"] == "ok":
                yield _run(stored, model, layout, stage)


def _run(stored: Json, model: ModelSpec, layout: Layout, stage: Json) -> MeasuredRun:
    allocated, reserved = stage["allocated_bytes"], stage["reserved_bytes"]
    return MeasuredRun(
        source=f"probes on {str(stored['gpu'])[:40]}",
        framework=stored["framework"],
        stated_framework=stored["framework"],
        model=model,
        model_name=model.name,
        gpu=stored["gpu"],
        num_gpus=layout.num_gpus,
        gpus_per_node=int(stored["gpus_per_node"]),
        precision=stored["precision"],
        dispatcher=stored["dispatcher"],
        seq_len=int(stored["seq_len"]),
        layout=_columns(layout, int(stage["num_micro_batches"])),
        probed_stage=int(stage["stage"]),
        step_s=float(stage["step_s"]) if stage["step_s"] else None,
        memory_bytes=float(allocated or reserved) if allocated or reserved else None,
        memory_kind="allocated" if allocated else "reserved" if reserved else "",
    )


def _columns(layout: Layout, num_micro_batches: int) -> dict[str, int | bool]:
    """Return the columns of the layout as it was probed, with the probe's own batch."""
    return {
        **{name: getattr(layout, name) for name in ("tp", "pp", "vp", "cp", "ep", "etp", "dp", "zero")},
        "mbs": layout.micro_batch,
        "gbs": num_micro_batches * layout.micro_batch * layout.dp,
        "recompute": RECOMPUTE_NAMES.index(layout.recompute),
        "recompute_layers": layout.recompute_layers,
        "sequence_parallel": layout.sequence_parallel,
        "flash_attention": layout.flash_attention,
    }


def _model(stored: Json) -> ModelSpec:
    known = {field.name for field in fields(ModelSpec)}
    values = {name: value for name, value in stored.items() if name in known}
    latent = values.pop("latent_attention", None)
    return ModelSpec(**values, latent_attention=LatentAttention(**latent) if latent else None)
