"""The fastest published runs of many models and machines, each with its source (describe/catalog/published.toml)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zenith_tune.calibrate.time_fit import sized_cluster
from zenith_tune.describe.catalog import read_catalog
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import JobSpec, PlanSubject
from zenith_tune.describe.model_spec import LatentAttention, ModelSpec
from zenith_tune.estimates.model_flops import flops_per_token
from zenith_tune.layouts.layout import Layout, parse_layout, parse_values


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRun:
    """A measured run that another one is held against."""

    software: str
    """The framework as its source names it, with its release."""
    subject: PlanSubject
    layout: Layout
    step_s: float
    states_recompute: bool = True
    """Whether the source says what is recomputed; else the layout has none."""

    @property
    def flops_per_s(self) -> float:
        """Model operations per second and GPU."""
        model, seq_len, layout = self.subject.model, self.subject.job.seq_len, self.layout
        return flops_per_token(model, seq_len) * layout.global_batch * seq_len / (self.step_s * layout.num_gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun(ReferenceRun):
    """A measured run that somebody published."""

    source: str
    url: str
    year: int


@functools.cache
def published_runs() -> tuple[PublishedRun, ...]:
    """Return the runs of the catalog."""
    catalog = read_catalog("published")
    models = {name: _model(name.partition("#")[0], dict(shape)) for name, shape in catalog["models"].items()}
    entries = (dict(zip(catalog["columns"], values, strict=True)) for values in catalog["runs"])
    return tuple(_run(entry, catalog["sources"][entry["source"]], models[entry["model"]]) for entry in entries)


def _model(name: str, shape: dict[str, Any]) -> ModelSpec:
    ranks = shape.pop("latent_attention", None)
    return ModelSpec(name=name, latent_attention=LatentAttention(**ranks) if ranks else None, **shape)


def _run(entry: Mapping[str, Any], source: Mapping[str, str], model: ModelSpec) -> PublishedRun:
    job = JobSpec(
        seq_len=entry["seq"],
        framework=load_framework(entry["framework"]),
        precision=entry["precision"],
        dispatcher=entry["dispatcher"],
    )
    cluster = sized_cluster(entry["gpu"], entry["gpus"], entry["gpus_per_node"])
    return PublishedRun(
        source=source["name"],
        url=source["url"],
        year=entry["year"],
        software=entry["software"],
        subject=PlanSubject(model=model, cluster=cluster, job=job),
        layout=parse_layout(entry["layout"], num_gpus=entry["gpus"], global_batch=entry["gbs"]),
        step_s=entry["step_s"],
        states_recompute="recompute" in parse_values(entry["layout"], what="layout"),
    )
