"""Levers of communication: data-parallel, tensor-parallel and between experts."""

from __future__ import annotations

from dataclasses import replace

from zenith_tune.hooks.packages import DEEP_EP
from zenith_tune.presets.levers import ASSUMED
from zenith_tune.presets.megatron.job import TORCH_FSDP
from zenith_tune.presets.megatron.levers.declaration import BRIDGE, MegatronLever, Situation
from zenith_tune.presets.megatron.options import EP_OVERLAP, GATHER, GRADS, TP_OVERLAP
from zenith_tune.presets.megatron.overlap import DISPATCHERS, could_overlap_experts
from zenith_tune.presets.megatron.rules import PIPELINED_MTP, SAVES_PARAMS
from zenith_tune.presets.megatron.version import EXPERT_OVERLAP

GATHERED = "Megatron-LM pull request 3524: 284 to 256 ms for 8B at tp 8"
DATA_LEVERS = (
    MegatronLever(
        name="overlap",
        value="params",
        sets={GRADS: True, GATHER: True},
        goes=lambda at: at.has_shards,
        excluded_by=(SAVES_PARAMS, "--freeze-all-layers"),
        saves={"dp": 0.8},
        source=GATHERED,
    ),
    MegatronLever(
        name="overlap",
        value="grads",
        sets={GRADS: True},
        goes=lambda at: at.has_replicas and not at.layout.zero,
        excluded_by=(TORCH_FSDP,),
        saves={"dp": 0.6},
        source=f"{ASSUMED}: what is behind the backward pass of {GATHERED}",
    ),
    MegatronLever(
        name="bucket_size",
        value=134_217_728,
        sets={"--ddp-bucket-size": 134_217_728},
        goes=lambda at: at.has_replicas and at.layout.dp * at.layout.cp < 128,
        excluded_by=("--ddp-num-buckets", "--ddp-bucket-size"),
        needs={"overlap": lambda at: at.job.args.has(GRADS) or getattr(at.layout, "overlap", "none") != "none"},
        saves={"dp": 0.05},
        source=f"{ASSUMED}; 128 Mi parameters are what Megatron-Bridge takes in place of 40 million",
    ),
    MegatronLever(
        name="high_busbw_buckets",
        sets={"--ddp-pad-buckets-for-high-nccl-busbw": True},
        first=(0, 12),
        goes=lambda at: at.has_shards and at.layout.dp * at.layout.cp >= 64,
        saves={"dp": 0.1},
        source=f"{ASSUMED}; Megatron-LM recommends it for many ranks",
    ),
)


def _can_overlap_experts(at: Situation) -> bool:
    job, layout = at.job, at.layout
    is_split = layout.ep > 1 and (layout.pp == 1 or layout.vp > 1)
    has_mtp = job.model is not None and job.model.num_mtp_layers > 0
    is_placed = not has_mtp or layout.pp > 1 or job.features.release not in PIPELINED_MTP
    return could_overlap_experts(job) and is_split and is_placed and layout.recompute in ("none", "selective")


def _has_grouped_dispatcher(at: Situation) -> bool:
    """Return whether the command's dispatcher is one that exchanges tokens."""
    return at.dispatcher in DISPATCHERS


def _exchanges(at: Situation) -> bool:
    """Return whether tokens go to experts on other ranks, through Transformer Engine's kernels."""
    return at.job.has_experts and at.has_engine and at.layout.ep > 1


def _can_exchange(at: Situation) -> bool:
    """Return whether tokens are exchanged, and not by kernels of the user's own choice."""
    return _exchanges(at) and at.dispatcher != "flex"


def _can_overlap_shared(at: Situation) -> bool:
    model = at.job.model
    return _exchanges(at) and model is not None and model.shared_ffn_hidden > 0


FLEX = MegatronLever(
    name="dispatcher",
    value="deepep",
    sets={"--moe-token-dispatcher-type": "flex", "--moe-flex-dispatcher-backend": "deepep"},
    first=(0, 16),
    goes=_can_exchange,
    excluded_by=("--moe-pad-expert-input-to-capacity", "--fake-process-group"),
    package=DEEP_EP,
    saves={"ep": 0.4},
    is_alone=True,
    source="Megatron MoE model zoo: 898 tokens/s predicted for Qwen3-235B with alltoall, 1,575 measured with DeepEP",
)
SHARED_OVERLAP = MegatronLever(
    name="shared_expert_overlap",
    sets={"--moe-shared-expert-overlap": True},
    first=(0, 18),
    goes=_can_overlap_shared,
    excluded_by=(EP_OVERLAP, "--recompute-modules", "--moe-shared-expert-gate"),
    excludes=frozenset({"ep_overlap", "modules"}),
    needs={"dispatcher": _has_grouped_dispatcher},
    saves={"ep": 0.2},
    source=f"{ASSUMED}: the shared experts' arithmetic is shorter than the exchange",
)
EXPERT_LEVERS = (
    MegatronLever(
        name="tp_overlap",
        sets={TP_OVERLAP: True},
        goes=lambda at: at.has_engine and at.layout.tp > 1 and at.layout.sequence_parallel,
        saves={"tp": 0.5},
        memory=0.01,
        is_alone=True,
        source="Megatron-LM issue 2662: less than 2 of 43 s for Qwen3-32B at tp 8 on H20",
    ),
    MegatronLever(
        name="ep_overlap",
        sets={EP_OVERLAP: True},
        first=EXPERT_OVERLAP,
        goes=_can_overlap_experts,
        excludes=frozenset({"shared_expert_overlap", "cuda_graphs", "modules"}),
        needs={"dispatcher": _has_grouped_dispatcher},
        saves={"ep": 0.4},
        memory=0.05,
        source=f"{BRIDGE}: 41.3 to 31.3 s for Qwen3-30B on 16 H100, of which 25 s are predicted to be exchange",
    ),
    MegatronLever(
        name="delay_wgrad",
        sets={"--delay-wgrad-compute": True},
        first=EXPERT_OVERLAP,
        goes=_exchanges,
        excludes=frozenset({"cuda_graphs"}),
        needs={"ep_overlap": lambda at: at.job.args.has(EP_OVERLAP) or getattr(at.layout, "ep_overlap", False)},
        saves={"ep": 0.05},
        source=f"{ASSUMED}; {BRIDGE}: 31.3 to 31.2 s beside the overlap",
    ),
    SHARED_OVERLAP,
    replace(
        SHARED_OVERLAP,
        first=(0, 10),
        last=(0, 17),
        goes=lambda at: _can_overlap_shared(at) and at.dispatcher == "alltoall",
        excludes=SHARED_OVERLAP.excludes | {"dispatcher=deepep", "dispatcher=hybridep"},
    ),
    replace(
        FLEX,
        sets={"--moe-token-dispatcher-type": "flex", "--moe-enable-deepep": True},
        first=(0, 12),
        last=(0, 15),
    ),
    FLEX,
    replace(
        FLEX,
        value="hybridep",
        sets={"--moe-token-dispatcher-type": "flex", "--moe-flex-dispatcher-backend": "hybridep"},
        # It is made for NVLink that joins more than a node.
        goes=lambda at: _can_exchange(at) and at.subject is not None and at.subject.cluster.fast_domain > 8,
        source="Megatron-LM pull request 2176: 14% for DeepSeek-V3 on GB200",
    ),
    MegatronLever(
        name="dispatcher",
        value="alltoall",
        sets={"--moe-token-dispatcher-type": "alltoall"},
        goes=lambda at: at.job.has_experts and at.layout.ep > 1 and at.dispatcher == "allgather",
        saves={"ep": 0.3},
        source="Megatron-LM issue 756: 130 to 230 TFLOP/s for Mixtral 8x7B, together with ep 8 and tp 2",
    ),
)
