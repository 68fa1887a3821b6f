"""The levers of Megatron-LM beside the layout, each declared once: its options by release, its needs, its effect.

Options, releases and needs are those of Megatron-LM's tags from 0.9 to 0.19 and main of 2026-08-22. What a lever saves
decides only whether it is tried: what it gives is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from zenith_tune.describe.megatron.args import is_local
from zenith_tune.describe.megatron.version import NEWEST, OLDEST, Release
from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.levers import Lever
from zenith_tune.presets.megatron_lm.job import OTHER_SHARDING, MegatronJob
from zenith_tune.presets.megatron_lm.options import (
    EP_OVERLAP,
    GATHER,
    GRADS,
    SHARDING,
    TP_OVERLAP,
    Wanted,
    is_removable,
)
from zenith_tune.presets.megatron_lm.overlap import captures_graphs, may_overlap_experts
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.parameters import CategoricalParameter, Value

Goes = Callable[[MegatronJob, Layout], bool]


def _always(job: MegatronJob, layout: Layout) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronLever:
    """Declare a lever as one range of releases spells it."""

    name: str
    value: Value = True
    sets: Mapping[str, Value | None]
    """Options with their values, True for a switch, None for one that is taken away."""
    first: Release = OLDEST
    last: Release = NEWEST
    goes: Goes = _always
    """Whether job and layout have what it needs."""
    excluded_by: tuple[str, ...] = ()
    """Options of the command that it cannot go with."""
    dumped: Mapping[str, Value] = field(default_factory=dict)
    """What Megatron's dump of its arguments says where the lever is on, if not the names of its options."""
    saves: Mapping[str, float] = field(default_factory=dict)
    memory: float = 0.0
    excludes: frozenset[str] = frozenset()
    numerics: bool = False
    source: str

    def is_on(self, job: MegatronJob) -> bool:
        """Tell whether the command has it already."""
        args = job.args
        return all(
            not args.has(option) if value is None else args.has(option) and value in (True, args.text(option))
            for option, value in self.sets.items()
        )

    def is_for(self, job: MegatronJob, layout: Layout) -> bool:
        """Tell whether it can be turned on for a layout of the job."""
        known = self.first <= job.features.release <= self.last
        return known and not job.args.first(*self.excluded_by) and not self.is_on(job) and self.goes(job, layout)

    @property
    def logged(self) -> dict[str, Value]:
        """What the dump of a run's arguments says where it is on."""
        named = {option[2:].replace("-", "_"): value for option, value in self.sets.items() if value is not None}
        return dict(self.dumped) or named

    @property
    def lever(self) -> Lever:
        """What the tuner needs to know of it."""
        return Lever(
            name=self.name,
            value=self.value,
            saves=self.saves,
            memory=self.memory,
            excludes=self.excludes,
            numerics=self.numerics,
            source=self.source,
        )


def _with_engine(job: MegatronJob, layout: Layout) -> bool:
    """Tell whether Transformer Engine is used."""
    return not is_local(job.args)


def _with_experts(job: MegatronJob, layout: Layout) -> bool:
    return job.has_experts and _with_engine(job, layout)


def _with_replicas(job: MegatronJob, layout: Layout) -> bool:
    """Tell whether gradients are reduced over several ranks."""
    return layout.dp * layout.cp > 1 or (job.has_experts and layout.edp > 1)


def _with_shards(job: MegatronJob, layout: Layout) -> bool:
    return _with_replicas(job, layout) and layout.zero > 0


def _without_full_recompute(layout: Layout) -> bool:
    return not layout.recompute.startswith("full")


def _can_overlap_experts(job: MegatronJob, layout: Layout) -> bool:
    is_split = layout.ep > 1 and (layout.pp == 1 or layout.vp > 1)
    return may_overlap_experts(job) and is_split and _without_full_recompute(layout)


def _can_capture(job: MegatronJob, layout: Layout) -> bool:
    return _with_engine(job, layout) and not captures_graphs(job.args) and layout.recompute == "none"


GUIDE = "NVIDIA, Megatron-Bridge performance guide"
ASSUMED = "assumed; the trial measures it"
FSDP_EXCLUDES = ("--use-megatron-fsdp", "--use-torch-fsdp2", "--use-custom-fsdp")
BF16_GRADS = "--accumulate-allreduce-grads-in-fp32"

LEVERS: tuple[MegatronLever, ...] = (
    # Data-parallel traffic.
    MegatronLever(
        name="overlap",
        value="params",
        sets={GRADS: True, GATHER: True},
        goes=_with_shards,
        excluded_by=("--save-params-interval",),
        saves={"dp": 0.8},
        source=GUIDE,
    ),
    MegatronLever(
        name="overlap",
        value="grads",
        sets={GRADS: True},
        goes=lambda job, layout: _with_replicas(job, layout) and not layout.zero,
        saves={"dp": 0.6},
        source=GUIDE,
    ),
    MegatronLever(
        name="high_busbw_buckets",
        sets={"--ddp-pad-buckets-for-high-nccl-busbw": True},
        first=(0, 12),
        goes=lambda job, layout: _with_shards(job, layout) and layout.dp >= 64,
        saves={"dp": 0.1},
        source=ASSUMED,
    ),
    # Tensor- and expert-parallel traffic.
    MegatronLever(
        name="tp_overlap",
        sets={TP_OVERLAP: True},
        goes=lambda job, layout: _with_engine(job, layout) and layout.tp > 1 and layout.sequence_parallel,
        saves={"tp": 0.5},
        memory=0.01,
        source=GUIDE,
    ),
    MegatronLever(
        name="ep_overlap",
        sets={EP_OVERLAP: True},
        first=(0, 14),
        goes=_can_overlap_experts,
        excludes=frozenset({"shared_expert_overlap", "cuda_graphs"}),
        saves={"ep": 0.6},
        memory=0.05,
        source="Megatron-LM pull requests 6311 and 6429: 184 to 191 and 198 TFLOP/s on 64 H100",
    ),
    MegatronLever(
        name="shared_expert_overlap",
        sets={"--moe-shared-expert-overlap": True},
        first=(0, 10),
        goes=lambda job, layout: (
            _with_experts(job, layout)
            and job.model is not None
            and job.model.shared_ffn_hidden > 0
            and job.args.text("--moe-token-dispatcher-type") in ("alltoall", "flex")
        ),
        excluded_by=(EP_OVERLAP,),
        excludes=frozenset({"ep_overlap"}),
        saves={"ep": 0.2},
        source=GUIDE,
    ),
    MegatronLever(
        name="dispatcher",
        value="deepep",
        sets={"--moe-token-dispatcher-type": "flex", "--moe-enable-deepep": True},
        first=(0, 12),
        last=(0, 15),
        goes=lambda job, layout: _with_experts(job, layout) and layout.ep > 1 and layout.tp * layout.ep > 1,
        saves={"ep": 0.5},
        source="facts of the MoE model zoo: 898 to 1,709 tokens/s predicted for Qwen3-235B, 1,575 measured with it",
    ),
    MegatronLever(
        name="dispatcher",
        value="deepep",
        sets={"--moe-token-dispatcher-type": "flex", "--moe-flex-dispatcher-backend": "deepep"},
        first=(0, 16),
        goes=lambda job, layout: _with_experts(job, layout) and layout.ep > 1 and layout.tp * layout.ep > 1,
        saves={"ep": 0.5},
        source="facts of the MoE model zoo: 898 to 1,709 tokens/s predicted for Qwen3-235B, 1,575 measured with it",
    ),
    MegatronLever(
        name="dispatcher",
        value="alltoall",
        sets={"--moe-token-dispatcher-type": "alltoall"},
        goes=lambda job, layout: (
            job.has_experts and layout.ep > 1 and job.args.text("--moe-token-dispatcher-type") in (None, "allgather")
        ),
        saves={"ep": 0.3},
        source=GUIDE,
    ),
    # Kernels.
    MegatronLever(
        name="grouped_experts",
        sets={"--moe-grouped-gemm": True},
        goes=_with_experts,
        saves={"compute": 0.1, "overhead": 0.3},
        source=GUIDE,
    ),
    MegatronLever(
        name="permute_fusion",
        sets={"--moe-permute-fusion": True},
        first=(0, 11),
        goes=_with_experts,
        saves={"compute": 0.03, "overhead": 0.1},
        source=GUIDE,
    ),
    MegatronLever(
        name="router_fusion",
        sets={"--moe-router-fusion": True},
        first=(0, 14),
        goes=_with_experts,
        saves={"compute": 0.01, "overhead": 0.05},
        source=GUIDE,
    ),
    MegatronLever(
        name="loss_fusion",
        value="te",
        sets={"--cross-entropy-loss-fusion": True, "--cross-entropy-fusion-impl": "te"},
        first=(0, 12),
        goes=_with_engine,
        saves={"compute": 0.02},
        memory=-0.02,
        source=GUIDE,
    ),
    MegatronLever(
        name="loss_fusion",
        value="native",
        sets={"--cross-entropy-loss-fusion": True},
        goes=lambda job, layout: is_local(job.args) or job.features.release < (0, 12),
        saves={"compute": 0.015},
        memory=-0.01,
        source=ASSUMED,
    ),
    *(
        MegatronLever(
            name=name,
            sets={option: None},
            dumped={dumped: True},
            goes=lambda job, layout, option=option: job.args.has(option),  # type: ignore[misc]
            saves={"compute": saved, "overhead": 0.05},
            source=ASSUMED,
        )
        for name, option, dumped, saved in (
            ("softmax_fusion", "--no-masked-softmax-fusion", "masked_softmax_fusion", 0.02),
            ("swiglu_fusion", "--no-bias-swiglu-fusion", "bias_swiglu_fusion", 0.02),
            ("gelu_fusion", "--no-bias-gelu-fusion", "bias_gelu_fusion", 0.02),
            ("dropout_fusion", "--no-bias-dropout-fusion", "bias_dropout_fusion", 0.01),
            ("rope_fusion", "--no-rope-fusion", "apply_rope_fusion", 0.01),
            ("gradient_fusion", "--no-gradient-accumulation-fusion", "gradient_accumulation_fusion", 0.03),
        )
    ),
    # The host.
    MegatronLever(
        name="cuda_graphs",
        sets={"--enable-cuda-graph": True, "--te-rng-tracker": True},
        first=(0, 11),
        last=(0, 14),
        goes=_can_capture,
        excludes=frozenset({"ep_overlap"}),
        saves={"overhead": 0.8},
        memory=0.05,
        source=GUIDE,
    ),
    MegatronLever(
        name="cuda_graphs",
        sets={"--cuda-graph-impl": "local", "--te-rng-tracker": True},
        first=(0, 15),
        goes=_can_capture,
        excludes=frozenset({"ep_overlap"}),
        saves={"overhead": 0.8},
        memory=0.05,
        source=GUIDE,
    ),
    MegatronLever(
        name="manual_gc",
        sets={"--manual-gc": True, "--manual-gc-interval": 100},
        goes=lambda job, layout: layout.num_gpus > 1,
        saves={"overhead": 0.1, "compute": 0.003},
        source=GUIDE,
    ),
    # Memory.
    MegatronLever(
        name="offloaded_optimizer",
        sets={"--optimizer-cpu-offload": True, "--use-precision-aware-optimizer": True, SHARDING: True},
        first=(0, 12),
        goes=_with_engine,
        excluded_by=FSDP_EXCLUDES,
        saves={"optimizer": -4.0},
        memory=-0.3,
        source=ASSUMED,
    ),
    # Numerics.
    MegatronLever(
        name="fp8",
        sets={"--fp8-format": "hybrid", "--fp8-recipe": "tensorwise"},
        first=(0, 12),
        goes=lambda job, layout: _with_engine(job, layout) and job.job.precision == "bf16",
        excludes=frozenset({"fp4"}),
        saves={"compute": 0.3},
        numerics=True,
        source=GUIDE,
    ),
    MegatronLever(
        name="fp4",
        sets={"--fp4-format": "e2m1"},
        first=(0, 15),
        goes=lambda job, layout: _with_engine(job, layout) and job.job.precision == "bf16",
        excludes=frozenset({"fp8"}),
        saves={"compute": 0.4},
        numerics=True,
        source=GUIDE,
    ),
    MegatronLever(
        name="bf16_grads",
        sets={"--grad-reduce-in-bf16": True, BF16_GRADS: None},
        first=(0, 12),
        goes=lambda job, layout: _with_replicas(job, layout) and job.job.precision in ("bf16", "fp8", "mxfp8"),
        saves={"dp": 0.4},
        memory=-0.03,
        numerics=True,
        source=ASSUMED,
    ),
)
NUMERIC = tuple(dict.fromkeys(lever.name for lever in LEVERS if lever.numerics))
PLAIN = tuple(dict.fromkeys(lever.name for lever in LEVERS if not lever.numerics))
NAMES = (*PLAIN, *NUMERIC)


def lever_space(searched: Sequence[str]) -> dict[str, CategoricalParameter]:
    """Return the parameters of the levers, without those that are searched with the layout."""
    names = [name for name in NAMES if name not in searched]
    return {
        name: CategoricalParameter(tuple(dict.fromkeys(lever.value for lever in LEVERS if lever.name == name)))
        for name in names
    }


def levers_for(job: MegatronJob, layout: Layout, line: ParsedCommand) -> list[MegatronLever]:
    """Return the levers that can be turned on for a layout; none under another way of sharding."""
    if job.args.first(*OTHER_SHARDING):
        return []
    return [lever for lever in LEVERS if lever.is_for(job, layout) and _is_writable(lever, job, line)]


def _is_writable(lever: MegatronLever, job: MegatronJob, line: ParsedCommand) -> bool:
    """Tell whether what it takes away stands in the command itself, and not in a script."""
    return all(
        value is not None or not job.args.has(option) or is_removable(line, option)
        for option, value in lever.sets.items()
    )


def lever_options(job: MegatronJob, params: Mapping[str, Value]) -> Wanted:
    """Return the options of the levers of a point."""
    wanted: Wanted = {}
    for lever in _set(job, params):
        wanted |= lever.sets
    return wanted


def logged_levers(job: MegatronJob, params: Mapping[str, Value]) -> dict[str, Value]:
    """Return what the dump of a run's arguments says of the levers of a point."""
    return {name: value for lever in _set(job, params) for name, value in lever.logged.items()}


def _set(job: MegatronJob, params: Mapping[str, Value]) -> list[MegatronLever]:
    release = job.features.release
    return [
        lever
        for lever in LEVERS
        if params.get(lever.name) == lever.value and lever.name in params and lever.first <= release <= lever.last
    ]
