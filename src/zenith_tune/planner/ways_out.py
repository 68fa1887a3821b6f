"""Ways to train on GPUs that no layout fits: fewer bytes per parameter, by the planner's own arithmetic.

Legend: bytes per parameter of weights + gradients + optimizer, all sharded over the GPUs as FSDP and ZeRO-3 do.

- sharding alone: 4 + 4 + 8, fp32 weights and two fp32 moments (Rajbhandari et al. 2020, arXiv 1910.02054);
- optimizer offload: 2 + 2 + 0, the 12 bytes of master weights and moments are in the host's memory (ZeRO-Offload, Ren
  et al. 2021, arXiv 2101.06840);
- 8-bit Adam: 4 + 4 + 2, moments of a byte each (Dettmers et al. 2022, arXiv 2110.02861);
- pure bf16: 2 + 2 + 4, no master copy;
- LoRA: 2 frozen, and 16 for the adapters alone (Hu et al. 2021, arXiv 2106.09685);
- QLoRA: 4.127 bits for the matrices of the layers, 2 bytes for the tables, and 16 for the adapters (Dettmers et al.
  2023, arXiv 2305.14314, section 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from zenith_tune.describe.framework_spec import FrameworkSpec, load_framework
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.limits import RISK
from zenith_tune.planner.plan import PlannedLayout
from zenith_tune.planner.planner import Planner
from zenith_tune.units import GIB, format_bytes

SHARDED = "fsdp"
HALF = 2.0
HOST_BYTES = 12.0
NF4_BYTES = 4.127 / 8
LORA_RANK = 16
PURE_BF16 = "pure bf16"
TITLE = "other ways, sharded over all GPUs as FSDP and ZeRO-3 do, with micro-batches of one sample:"


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOut:
    """One way to train, with the memory that it needs."""

    name: str
    how: str
    """A description with the options that switch it on."""
    planned: PlannedLayout
    """The layout, sharded over all GPUs with micro-batches of one sample, and recomputed unless it fits without.

    Its times are those of a plain run: the cost of the way itself is not estimated.
    """
    fits: bool
    host_bytes: float = 0.0

    @property
    def line(self) -> str:
        planned = self.planned
        memory = f"{planned.memory_bytes / GIB:.1f} of {format_bytes(planned.capacity_bytes)}"
        again = ", recomputed" if planned.layout.recompute != "none" else ""
        host = f", {format_bytes(self.host_bytes)} of host memory" if self.host_bytes else ""
        figures = f"{memory}, {planned.oom_probability:.0%} OOM{again}{host}"
        return f"{'fits' if self.fits else 'not enough':<14} {self.name}: {figures} ({self.how})"


def ways_out(planner: Planner, *, risk: float = RISK) -> tuple[WayOut, ...]:
    """Return each way, those that fit first, and of them the one nearest to plain training first."""
    has_bf16 = planner.job.precision != "fp16"
    ways = [way for way in _ways(planner.model) if has_bf16 or way[0] != PURE_BF16]
    found = [_way(planner, name, how, spec, host, risk) for name, how, spec, host in ways]
    return tuple(sorted(found, key=lambda way: not way.fits))


def _ways(model: ModelSpec) -> Iterator[tuple[str, str, FrameworkSpec, float]]:
    base, share = load_framework(SHARDED), adapter_params(model) / model.num_params
    bf16 = replace(base, weight_bytes=HALF, gradient_bytes=HALF)
    tables = model.embedding_params / model.num_params
    four_bit = NF4_BYTES * (1 - tables) + HALF * tables
    adapted = replace(base, gradient_bytes=4 * share, optimizer_bytes=8 * share)
    yield "sharding", "FSDP or ZeRO-3, everything in fp32 but the products", base, 0.0
    yield "8-bit Adam", "optim adamw_bnb_8bit, or bitsandbytes' AdamW8bit", replace(base, optimizer_bytes=2.0), 0.0
    yield PURE_BF16, "weights and moments in bf16, without a master copy", replace(bf16, optimizer_bytes=4.0), 0.0
    offload = "ZeRO-3 with offload_optimizer device cpu, or --optimizer-cpu-offload of Megatron-LM"
    yield "optimizer offload", offload, replace(bf16, optimizer_bytes=0.0), HOST_BYTES * model.num_params
    lora = replace(adapted, weight_bytes=HALF + 4 * share)
    yield "LoRA", f"peft's LoraConfig(r={LORA_RANK}) on all matrices of dense layers, the model in bf16", lora, 0.0
    qlora = replace(adapted, weight_bytes=four_bit + 4 * share)
    yield "QLoRA", "the same on a model loaded in 4 bits (nf4, double quantisation)", qlora, 0.0


def adapter_params(model: ModelSpec) -> float:
    """Return the parameters of LoRA's adapters: r (in + out) of each matrix; experts have none."""
    heads, groups = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    attention = 2 * (model.hidden + heads) + 2 * (model.hidden + groups)
    matrices = model.mlp_params(model.ffn_hidden) / (model.hidden * model.ffn_hidden)
    feed_forward = 0.0 if model.num_experts else matrices * (model.hidden + model.ffn_hidden)
    return LORA_RANK * model.num_layers * (attention + feed_forward)


def _way(planner: Planner, name: str, how: str, framework: FrameworkSpec, host_bytes: float, risk: float) -> WayOut:
    num_gpus = planner.cluster.num_gpus
    layout = Layout(num_gpus=num_gpus, global_batch=num_gpus, micro_batch=1, zero=3 if num_gpus > 1 else 0)
    recomputed = replace(layout, recompute="full/uniform", recompute_layers=1)
    job = replace(planner.job, framework=framework)
    both = Planner(planner.model, planner.cluster, job).evaluate([layout, recomputed])
    fitting = [planned for planned in both if planned.oom_probability < risk]
    planned = fitting[0] if fitting else both[-1]
    return WayOut(name=name, how=how, planned=planned, fits=bool(fitting), host_bytes=host_bytes)
