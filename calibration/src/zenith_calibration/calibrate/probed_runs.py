"""Measured runs from a probe's file: single ranks of layouts, each with its memory and its work without messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.gpu_catalog import match_gpu
from zenith_tune.describe.model_spec import LatentAttention, ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_batch import row_of
from zenith_tune.study.files import Json, read_regular
from zenith_tune.units import MIB

FILE_NAME = "probe.json"
MAX_BYTES = 64 * MIB


def read_probes(place: Path) -> list[MeasuredRun]:
    """Read the stages that trained from a probe's file, or from the folder that holds it."""
    path = place / FILE_NAME if place.is_dir() else place
    try:
        return list(_runs(json.loads(read_regular(path, MAX_BYTES).decode("utf-8-sig"))))
    except OSError as error:
        problem = f"probes must be a folder with {FILE_NAME}, but {str(path)!r} cannot be read ({error.strerror})"
        raise UsageError(problem, hint="give the folder that a probe wrote") from None
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        problem = f"{path} must be what a probe writes, but is not"
        raise UsageError(problem, hint="give the folder of another probe") from None


def _runs(stored: Json) -> Iterator[MeasuredRun]:
    known = {field.name for field in fields(ModelSpec)} - {"traced"}  # Megatron-LM's models have a config
    shape = {name: value for name, value in stored["model"].items() if name in known}
    latent = shape.pop("latent_attention", None)
    model = ModelSpec(**shape, latent_attention=LatentAttention(**latent) if latent else None)
    for probed in stored["layouts"]:
        layout = Layout(**probed["layout"])
        for stage in probed["stages"]:
            if stage["outcome"] == "ok":
                yield _run(stored, model, layout, stage)


def _run(stored: Json, model: ModelSpec, layout: Layout, stage: Json) -> MeasuredRun:
    planned_for, ran_on = stored["gpu"], match_gpu(stage["gpu"])
    gpu = ran_on or planned_for
    allocated, reserved = stage["allocated_bytes"], stage["reserved_bytes"]
    return MeasuredRun(
        source=f"probes on {gpu}",
        framework=load_framework(stored["framework"]).name,
        model=model,
        model_name=model.name,
        gpu=gpu,
        num_gpus=layout.num_gpus,
        gpus_per_node=stored["gpus_per_node"],
        precision=stored["precision"],
        dispatcher=stored["dispatcher"],
        seq_len=stored["seq_len"],
        # As it was probed, with the probe's own batch.
        layout=row_of(layout) | {"gbs": stage["num_micro_batches"] * layout.micro_batch * layout.dp},
        probed_stage=stage["stage"],
        step_s=stage["step_s"],
        memory_bytes=allocated or reserved,
        memory_kind="allocated" if allocated else "reserved" if reserved else "",
    )
