"""Measured runs from CSV files: one, those of a folder, or those of its `published` and `h200`."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from zenith_calibration.calibrate.measured_model import figure, measured_model, number
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.describe.cluster_spec import precision_class
from zenith_tune.describe.framework_spec import titan_framework
from zenith_tune.describe.gpu_catalog import find_gpu, gpu_spec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.estimates.model_flops import forward_flops_per_token
from zenith_tune.layouts.layout_batch import RECOMPUTE_BLOCK, RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_UNIFORM
from zenith_tune.study.files import read_regular
from zenith_tune.units import GIB, MIB

MAX_BYTES = 256 * MIB
"""Size of about a million rows."""


def csv_files(place: Path) -> list[Path]:
    """Return the file itself, or the CSV files of a folder, its `published` and its `h200`."""
    if not place.is_dir():
        return [place]
    folders = (place, place / "published", place / "h200")
    return [path for folder in folders for path in sorted(folder.glob("*.csv")) if not path.name.startswith("_")]


def csv_rows(path: Path) -> Iterator[Mapping[str, str]]:
    """Yield the rows of one file by column; a column that is not there is blank."""
    try:
        text = read_regular(path, MAX_BYTES).decode("utf-8-sig", errors="replace")
    except OSError as error:
        problem = f"measured runs {str(path)!r} cannot be read ({error.strerror})"
        raise UsageError(problem, hint="check the path") from None
    rows = csv.DictReader(io.StringIO(text, newline=""))
    try:
        for row in rows:
            yield defaultdict(str, {name: value or "" for name, value in row.items() if name is not None})
    except csv.Error as error:
        raise UsageError(f"{path}, line {rows.line_num} must be CSV, but {error}", hint="fix or remove it") from None


def step_from_rate(
    row: Mapping[str, str], model: ModelSpec, batch_tokens: float, num_gpus: int, peak_flops: float
) -> float | None:
    """Return the step time of a stated TFLOP/s/GPU or MFU, or None where neither is stated."""
    stated = row.get("tflops_per_gpu")
    rate = figure(row, "tflops_per_gpu") * 1e12 if stated else figure(row, "mfu_pct") / 100 * peak_flops
    if not 0 < rate < math.inf:
        return None
    # The Megatron-LM papers of 2021 count the recomputed forward pass as work.
    hardware = "incl" in row.get("notes", "") or row["source_id"].startswith("megatron_sc21")
    passes = 4 if stated and hardware and row.get("recompute") == "full" else 3
    return passes * forward_flops_per_token(model, float(row["seq_len"])) * batch_tokens / (rate * num_gpus)


FLASH_YEAR = 2023
"""First year of runs with flash attention and, unless stated otherwise, sequence parallelism."""
YES, NO = frozenset({"yes", "true", "1", "on"}), frozenset({"no", "false", "0", "off"})
FLAGS = ("FLAG", "CHECK", "INCONSISTENT", "PROXY", "STALE?")
"""Marks in the notes of rows that are left out."""
FRAMEWORKS = (
    ("nanotron", "nanotron"),
    ("accelerate", "hf-accelerate"),
    ("transformers", "hf-accelerate"),
    ("transformer-impl local", "megatron-local"),
    ("megatron-deepspeed", "megatron-deepspeed"),
    ("bigscience", "megatron-deepspeed"),
    ("deepspeed", "deepspeed"),
    ("composer", "llm-foundry"),
    ("torchtitan", "fsdp"),
    ("automodel", "fsdp"),
    ("fsdp", "fsdp"),
    ("internevo", "internevo"),
    ("meta internal", "megatron"),
    ("jax", "jax"),
    ("ablation", "megascale"),
    ("megascale", "megascale"),
    ("mega", "megatron"),
    ("nemo", "megatron"),
)
"""Part of a source's name for its framework and our name for it; the first that matches counts."""
MAX_VALUE = 1e18
"""Largest step, rate or memory; its inverse is the smallest."""
YEARS = range(1990, 2100)
GB_UNITS = ("GB as printed", "memory GB")
FLEX_SOURCES = ("megatron_bridge", "dgxc", "mbridge", "mcore_moe_report", "moe_modelzoo", "nemo")
"""NVIDIA's own recipes, which exchange tokens by DeepEP, HybridEP or an overlapped all-to-all, never by a plain one."""
FAMILIES = ("megatron_bridge", "megascale", "megatron_sc21", "moe_folding", "korthikanti2022", "nemo_", "llama3_")
"""Prefixes of sources whose versions or tables are one kind of data."""


def read_measured(place: Path) -> list[MeasuredRun]:
    """Read every row of one CSV file, or of every CSV file in a folder, its `published` and its `h200`."""
    runs = [run for path in csv_files(place) for run in read_rows(path)]
    if not runs:
        problem = f"{str(place)!r} must hold measured runs, one per row with source_id and model, but holds none"
        raise UsageError(problem, hint="give a CSV file, or a folder with CSV files or published/*.csv")
    return runs


def read_rows(path: Path) -> Iterator[MeasuredRun]:
    """Yield the runs of one file."""
    return (_run(row) for row in csv_rows(path) if row["source_id"] and row["model"])


def _run(row: Mapping[str, str]) -> MeasuredRun:
    text = row.get("notes", "")
    # Notes are key=value pairs; one without a value is its own key.
    pairs = [part.strip().partition("=") for part in re.split(r"[;,:]\s*", text) if part.strip()]
    notes = {key.strip(): value.strip() for key, _, value in pairs}
    source = row["source_id"]
    num_gpus, seq_len = number(row, "n_gpus"), number(row, "seq_len")
    layout = _layout(row, notes, num_gpus)
    memory, kind = _memory(row)
    model, gpu = measured_model(row, notes), _gpu(row)
    return MeasuredRun(
        source=next((family.rstrip("_") for family in FAMILIES if source.startswith(family)), source),
        framework=_framework(row),
        stated_framework=row["framework"],
        release=_release(row),
        model=model,
        model_name=row["model"],
        gpu=gpu,
        num_gpus=num_gpus,
        gpus_per_node=number(row, "gpus_per_node"),
        precision=row.get("precision", "").lower() or "bf16",
        dispatcher="flex" if source.startswith(FLEX_SOURCES) else "alltoall",
        seq_len=seq_len,
        layout=layout,
        probed_stage=number(row, "probed_stage"),
        step_s=_step(row, layout, seq_len, num_gpus, model, gpu),
        memory_bytes=memory,
        memory_kind=kind,
        out_of_memory=row.get("outcome") == "oom",
        flags=tuple(flag for flag in FLAGS if flag in text),
        notes=notes,
    )


def _framework(row: Mapping[str, str]) -> str:
    name = row["framework"].lower()
    if "mcore_ci" in row["source_id"]:
        return "megatron-ci"
    found = next((ours for part, ours in FRAMEWORKS if part in name), "megatron")
    if "torchtitan" in name:
        # Products in float8 are fast only where torch.compile fuses their scales.
        compiles = row.get("compile") == "1" or "compile" in row.get("notes", "").lower()
        compiles = compiles or precision_class(row.get("precision", "")) != "bf16"
        found = titan_framework(compiles, number(row, "n_gpus") == 1)
        return "fsdp" if found == "torchtitan" else found
    old = found == "megatron" and (number(row, "year") or FLASH_YEAR) < FLASH_YEAR
    return "megatron-legacy" if old or (row["source_id"].startswith("megascale") and found == "megatron") else found


def _release(row: Mapping[str, str]) -> float | None:
    """Return the month that NVIDIA's containers are named after, or else that of the paper, or else the year."""
    names = (
        (r"\b(2[3-9])\.(0[1-9]|1[0-2])\b", row["framework"]),
        (r"arxiv.org/abs/(\d\d)(\d\d)\.", row.get("source_url", "")),
    )
    for name, text in names:
        if match := re.search(name, text):
            return 2000 + int(match[1]) + (int(match[2]) - 1) / 12
    year = number(row, "year")
    return year + 0.5 if year is not None and year in YEARS else None


def _gpu(row: Mapping[str, str]) -> str:
    gpu = row["gpu"].split(" ")[0].lower()
    memory = _float(row, "gpu_mem_gib")
    return (find_gpu(f"{gpu}-{round(memory)}") if memory else None) or find_gpu(gpu) or gpu


def _layout(row: Mapping[str, str], notes: Mapping[str, str], num_gpus: int | None) -> dict[str, int | bool]:
    layout: dict[str, int | bool] = {}
    for name in ("tp", "pp", "vp", "cp", "ep", "etp", "mbs", "gbs"):
        if (value := number(row, name)) is not None and value > 0:
            layout[name] = value
    split = layout.get("tp", 1) * layout.get("pp", 1) * layout.get("cp", 1)
    if num_gpus and num_gpus % split == 0:
        layout["dp"] = num_gpus // split
    if row["framework"].endswith("MCore") and "ep" in layout:
        layout.setdefault("etp", layout.get("tp", 1))  # without folding, experts are split by tp too
    layout["zero"] = _zero(row.get("zero_stage_or_fsdp", ""), row)
    if "torchtitan" in row["framework"] and layout.get("pp", 1) > 1:
        layout |= _titan_pipeline(layout, row)
    recompute, layers = _recompute(row)
    layout |= {"recompute": recompute, "recompute_layers": layers}
    year = number(row, "year") or FLASH_YEAR
    unfused = row.get("attention", "") in ("unfused", "eager") or notes.get("impl") == "local"
    layout["flash_attention"] = not unfused and (year >= FLASH_YEAR or "h200" in row["source_id"])
    stated = row.get("seq_parallel", "").strip().lower()
    layout["sequence_parallel"] = stated in YES if stated in YES | NO else year >= FLASH_YEAR
    return layout


def _titan_pipeline(layout: Mapping[str, int | bool], row: Mapping[str, str]) -> dict[str, int | bool]:
    """Return what torchtitan does in a pipeline unless a row states otherwise.

    A rank has two stages in a schedule of several, there are as many micro-batches as stages, and weights stay gathered
    (torchtitan 68064737 of 2025, parallelisms/pipelining_utils.py and parallelize_llama.py).
    """
    vp = layout.get("vp", 2 if "interleaved" in row.get("notes", "").lower() else 1)
    samples, stages = layout.get("gbs", 0) // layout.get("dp", 1), layout["pp"] * vp
    mbs = layout.get("mbs", 0 if samples % stages else samples // stages)
    return {"zero": 1, "vp": vp} | ({"mbs": mbs} if mbs else {})


def _zero(text: str, row: Mapping[str, str]) -> int:
    if match := re.search(r"ZeRO-([0-9])", text):
        return 3 if "optim_grads_params" in text else int(match[1])
    if "SHARD_GRAD_OP" in text or "grads sharded" in text:
        return 2
    if "FSDP" in text and "FSDP=0" not in text:
        return 3
    if row.get("distributed_optimizer") == "1":
        return 1
    # Megatron's published recipes use the distributed optimizer; its tests state "DDP" where they do not.
    return 0 if text.startswith(("DDP", "none")) or "h200" in row["source_id"] else 1


def _recompute(row: Mapping[str, str]) -> tuple[int, int]:
    text = row.get("recompute") or row.get("recompute_granularity") or ""
    if row.get("gradient_checkpointing") == "1":
        return RECOMPUTE_UNIFORM, 1
    layers = (number(row, "recompute_num_layers") or 1) if text.startswith("full") else 0
    return recompute_kind(text, row.get("recompute_method") or text), layers


def recompute_kind(granularity: str, method: str) -> int:
    """Return the column of Megatron's --recompute-granularity and --recompute-method."""
    if granularity.startswith("full"):
        return RECOMPUTE_BLOCK if "block" in method else RECOMPUTE_UNIFORM
    return RECOMPUTE_SELECTIVE if granularity.startswith("selective") else RECOMPUTE_NONE


def _memory(row: Mapping[str, str]) -> tuple[float | None, str]:
    if (allocated := _float(row, "max_allocated_mib")) is not None:
        return allocated * MIB, "allocated"
    memory = _float(row, "mem_per_gpu_gib")
    if memory is None:
        return None, ""
    in_gb = any(unit in row.get("notes", "") for unit in GB_UNITS)
    return memory * (1e9 if in_gb and row["source_id"] != "ultrascale_playbook" else GIB), "allocated"


def _step(
    row: Mapping[str, str],
    layout: Mapping[str, int | bool],
    seq_len: int | None,
    num_gpus: int | None,
    model: ModelSpec | None,
    gpu: str,
) -> float | None:
    """Return the step time; one that is not stated is computed from the tokens, or from a rate."""
    step_s, tokens = _float(row, "step_time_s"), _float(row, "tokens_per_s_per_gpu")
    gbs = layout.get("gbs", layout.get("mbs", 0) if "h200" in row["source_id"] else 0)
    if step_s or not (seq_len and num_gpus and gbs):
        return step_s
    batch = gbs * seq_len / num_gpus
    if tokens:
        return batch / tokens
    known = find_gpu(gpu)
    if model is None or known is None:
        return None
    return step_from_rate(row, model, batch * num_gpus, num_gpus, gpu_spec(known).bf16_flops)


def _float(row: Mapping[str, str], key: str) -> float | None:
    value = figure(row, key)
    return value if 1 / MAX_VALUE <= value <= MAX_VALUE else None
