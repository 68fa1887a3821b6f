"""Ways to train on GPUs that no layout fits: fewer bytes per parameter, by the planner's own arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.limits import RISK
from zenith_tune.planner.plan import PlannedLayout
from zenith_tune.planner.planner import Planner
from zenith_tune.planner.training_way import HOST_BYTES, LORA_RANK, TrainingWay
from zenith_tune.units import format_bytes

SHARDED = "fsdp"
TITLE = "other ways, sharded over all GPUs as FSDP and ZeRO-3 do, with micro-batches of one sample:"
MOST_SHOWN = 3
WAYS = (
    (TrainingWay(), "FSDP or ZeRO-3, everything in fp32 but the products"),
    (TrainingWay(optimizer="adam-8bit"), "optim adamw_bnb_8bit, or bitsandbytes' AdamW8bit"),
    (TrainingWay(optimizer="adam-bf16"), "weights and moments in bf16, without a master copy"),
    (
        TrainingWay(offload=True),
        "ZeRO-3 with offload_optimizer device cpu, or --optimizer-cpu-offload of Megatron-LM",
    ),
    (TrainingWay(lora=True), f"peft's LoraConfig(r={LORA_RANK}) on all matrices of dense layers, the model in bf16"),
    (TrainingWay(qlora=True), "the same on a model loaded in 4 bits (nf4, double quantisation)"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOut:
    """One way to train, with the memory that it needs."""

    name: str
    how: str
    """A description with the options that switch it on."""
    options: str
    """The options by which `zenithtune plan` plans it."""
    planned: PlannedLayout
    """The layout, sharded over all GPUs with micro-batches of one sample, and recomputed unless it fits without."""
    fits: bool
    host_bytes: float = 0.0

    @property
    def line(self) -> str:
        planned = self.planned
        again = ", recomputed" if planned.layout.recompute != "none" else ""
        host = f", {format_bytes(self.host_bytes)} of host memory" if self.host_bytes else ""
        figures = f"{planned.memory}, {planned.oom_probability:.0%} OOM{again}{host}"
        return f"{'fits' if self.fits else 'not enough':<14} {self.name}: {figures} ({self.how}; plan {self.options})"


def ways_out(planner: Planner, *, risk: float = RISK) -> tuple[WayOut, ...]:
    """Return each way: those that fit, the one nearest to plain training first, then the others by their memory."""
    model, precision = planner.model, planner.job.precision
    ways = [
        (way, how)
        for way, how in WAYS
        if not (way.optimizer == "adam-bf16" and precision == "fp16") and not (way.has_adapters and model.traced)
    ]
    found = [_way(planner, way, how, risk) for way, how in ways]
    return tuple(sorted(found, key=lambda way: (not way.fits, 0.0 if way.fits else way.planned.memory_bytes)))


def way_lines(ways: Iterable[WayOut]) -> Iterator[str]:
    """Yield a title and the first ways that fit; where none does, those that are nearest to it."""
    ways = list(ways)
    fitting = [way for way in ways if way.fits]
    yield TITLE
    yield from (f"  {way.line}" for way in (fitting or ways)[:MOST_SHOWN])


def _way(planner: Planner, way: TrainingWay, how: str, risk: float) -> WayOut:
    num_gpus = planner.cluster.num_gpus
    layout = Layout(num_gpus=num_gpus, global_batch=num_gpus, micro_batch=1, zero=3 if num_gpus > 1 else 0)
    recomputed = replace(layout, recompute="full/uniform", recompute_layers=1)
    job = replace(planner.job, framework=way.states(load_framework(SHARDED), planner.model), way=way.name)
    both = Planner(way.trained(planner.model), planner.cluster, job).evaluate([layout, recomputed])
    fitting = [planned for planned in both if planned.oom_probability < risk]
    return WayOut(
        name=way.name or "sharding",
        how=how,
        options=way.options or f"--framework {SHARDED}",
        planned=fitting[0] if fitting else both[-1],
        fits=bool(fitting),
        host_bytes=HOST_BYTES * planner.model.num_params if way.offload else 0.0,
    )
