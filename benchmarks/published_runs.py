"""Write the best published runs that `zenithtune doctor --against published` compares with.

Of each source, model, GPU, number of GPUs, precision, sequence and framework the fastest run is kept: its speed and its
layout, as facts with their source, and no other column. Runs whose source does not state the layout or the model's
shape are left out. Only the sources that SOURCES names are read: test suites and toy models are not, nor runs that only
verify.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from places import measured_data

from zenith_calibration.calibrate.measured_rows import csv_files, csv_rows, read_rows
from zenith_tune.calibrate.measured_run import MeasuredRun, stack_layouts
from zenith_tune.calibrate.published_runs import PublishedRun
from zenith_tune.calibrate.time_fit import run_cluster, unusable, with_default_batch
from zenith_tune.describe.cluster_spec import precision_class
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import JobSpec, PlanSubject
from zenith_tune.describe.model_spec import LatentAttention, ModelSpec
from zenith_tune.layouts.layout import layout_name
from zenith_tune.layouts.layout_batch import layout_at

SOURCES = {
    "dgxc_benchmarking": "NVIDIA DGX Cloud benchmarking recipes",
    "korthikanti2022": "Korthikanti et al.",
    "llama3": "Llama 3 paper, Meta",
    "llm_foundry": "MosaicML LLM Foundry benchmarks",
    "mcore_moe_report_t11_t20": "NVIDIA Megatron Core MoE report",
    "megascale": "MegaScale, ByteDance",
    "megatron_bridge": "NVIDIA Megatron-Bridge performance summary",
    "megatron_lm_llama_readme": "Megatron-LM examples",
    "megatron_sc21": "Narayanan et al.",
    "mlperf_405b": "MLPerf Training v5.0",
    "moe_modelzoo": "Megatron MoE model zoo",
    "nemo": "NVIDIA NeMo performance documentation",
    "torchtitan": "torchtitan benchmarks",
    "ultrascale_playbook": "Ultra-Scale Playbook, Hugging Face",
}
URLS = {"mlcommons/training_results_v5.0": "https://github.com/mlcommons/training_results_v5.0"}
COLUMNS = (
    *("source", "model", "year", "software", "framework", "gpu", "gpus", "gpus_per_node", "seq", "precision"),
    *("dispatcher", "layout", "gbs", "step_s"),
)
"""What the catalog states of each run."""
LEAST_PARAMS, LEAST_SEQ = 2e9, 2048
"""Smaller models and shorter sequences are left out."""
OUTPUT = Path(__file__).parent.parent / "src/zenith_tune/describe/catalog/published.toml"
HEAD = """\
# The fastest published run of each source, model, GPU, number of GPUs, precision, sequence and framework.
#
# Written by benchmarks/published_runs.py; do not edit it. Speeds and layouts are facts, each with its source. What a
# source does not state of a layout is as the planner takes it; recomputation is only written where it is stated.
"""

Row = Mapping[str, str]


def comparable(place: Path) -> list[PublishedRun]:
    """Return the runs of a file or a folder that a plan can be compared with."""
    found = []
    for path in csv_files(place):
        rows = (row for row in csv_rows(path) if row["source_id"] and row["model"])
        pairs = zip(rows, read_rows(path), strict=True)
        found += [published_run(row, run) for row, run in pairs if unusable(run) is None]
    return found


def published_run(row: Row, run: MeasuredRun) -> PublishedRun:
    """Return a row as the doctor compares with it."""
    run = with_default_batch(run)
    assert run.model and run.seq_len and run.step_s
    framework = load_framework(run.framework)
    dispatcher = run.dispatcher if run.model.num_experts else "alltoall"
    job = JobSpec(seq_len=run.seq_len, framework=framework, precision=run.precision, dispatcher=dispatcher)
    layout = layout_at(stack_layouts([run.layout]), 0)
    layout = replace(layout, sequence_parallel=layout.sequence_parallel and layout.tp > 1)
    return PublishedRun(
        source=run.source,
        url=URLS.get(row["source_url"], row["source_url"].split(" (data")[0]),
        year=int(row["year"]),
        software=run.stated_framework,
        subject=PlanSubject(model=run.model, cluster=run_cluster(run), job=job),
        layout=layout,
        step_s=run.step_s,
        states_recompute=bool(row["recompute"]),
    )


def best_runs(data: Path) -> list[PublishedRun]:
    """Return the fastest run of each group, by its operations per second and GPU."""
    best: dict[tuple[Any, ...], PublishedRun] = {}
    for run in comparable(data / "published"):
        model, job, cluster = run.subject.model, run.subject.job, run.subject.cluster
        if run.source not in SOURCES or model.num_params < LEAST_PARAMS or job.seq_len < LEAST_SEQ:
            continue
        shape = (model.num_layers, model.hidden, model.num_experts)
        kind = (cluster.name, precision_class(job.precision), job.seq_len, job.framework.name)
        key = (run.source, *shape, *kind)
        if key not in best or run.flops_per_s > best[key].flops_per_s:
            best[key] = run
    return sorted(best.values(), key=lambda run: (run.source, run.subject.model.name, run.layout.num_gpus))


def catalog(runs: list[PublishedRun]) -> str:
    """Return the catalog of these runs; those of one page share its entry, and those of one shape its model."""
    sources: dict[str, str] = {}
    models: dict[ModelSpec, str] = {}
    lines = []
    for run in runs:
        number = 1 + sum(key.startswith(f"{run.source}/") for key in sources.values())
        source = sources.setdefault(run.url, f"{run.source}/{number}")
        shape, name = replace(run.subject.model, name=""), run.subject.model.name
        others = sum(each.partition("#")[0] == name for each in models.values())
        model = models.setdefault(shape, f"{name}#{others + 1}" if others else name)
        lines.append(f"  {json.dumps([source, model, *entry(run)])},")
    pages = [
        f"{json.dumps(key)} = {inline({'name': SOURCES[key.partition('/')[0]], 'url': url})}"
        for url, key in sources.items()
    ]
    shapes = [f"{json.dumps(name)} = {inline(given(model))}" for model, name in models.items()]
    tables = [f"columns = {json.dumps(COLUMNS)}", "runs = [", *lines, "]", "", "[sources]", *pages, "", "[models]"]
    return "\n".join([HEAD, *tables, *shapes, ""])


def entry(run: PublishedRun) -> list[Any]:
    """Return what the catalog says of one run, in the order of its columns."""
    job, layout, cluster = run.subject.job, run.layout, run.subject.cluster
    recompute = " none" if run.states_recompute and layout.recompute == "none" else ""
    return [
        run.year,
        run.software,
        job.framework.name,
        cluster.gpu.name,
        layout.num_gpus,
        cluster.gpus_per_node,
        job.seq_len,
        job.precision,
        job.dispatcher,
        layout_name(layout) + recompute,
        layout.global_batch,
        float(f"{run.step_s:.4g}"),
    ]


def given(spec: ModelSpec | LatentAttention) -> dict[str, Any]:
    """Return the fields of a shape that are not the defaults."""
    values = {field.name: getattr(spec, field.name) for field in fields(spec) if field.name != "name"}
    defaults = {field.name: field.default for field in fields(spec)}
    return {
        name: given(value) if isinstance(value, LatentAttention) else value
        for name, value in values.items()
        if value != defaults[name]
    }


def inline(values: Mapping[str, Any]) -> str:
    """Return an inline table of TOML."""
    shown = (
        f"{name} = {inline(each) if isinstance(each, dict) else json.dumps(each)}" for name, each in values.items()
    )
    return f"{{ {', '.join(shown)} }}"


def main() -> None:
    """Write the catalog."""
    runs = best_runs(measured_data())
    OUTPUT.write_text(catalog(runs), encoding="utf-8")
    print(f"{len(runs)} runs: {OUTPUT}")


if __name__ == "__main__":
    main()
