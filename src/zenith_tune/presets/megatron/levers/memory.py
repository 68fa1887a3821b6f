"""Levers of memory: those that recompute one module of every layer, or nothing, and those that free some.

The first are tried where the layout that won recomputes more, the second next to what does not fit without them.

What a module costs is its share of the forward pass, which is a third of a step's arithmetic. What it frees is its
share of what a layer keeps for the backward pass, counted width by width as Korthikanti et al. 2022 do (arXiv
2205.05198, section 4): two bytes for each element of an input of a matrix product, a norm or an activation.

torch's FSDP2 is, by Megatron's own help, not in a stable stage yet: it is tried on request. Releases before 0.12 always
ask for CUDA_DEVICE_MAX_CONNECTIONS=1, and FSDP2 for another value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.estimates.model_flops import forward_flops_per_token
from zenith_tune.presets.levers import ASSUMED, Effect
from zenith_tune.presets.megatron.job import MEGATRON_FSDP, TORCH_FSDP
from zenith_tune.presets.megatron.levers.declaration import BRIDGE, MegatronLever, Situation, has_adam
from zenith_tune.presets.megatron.options import GATHER, RECOMPUTE, SHARDING
from zenith_tune.presets.megatron.overlap import MODULE_GOES, OPTION, SELECTIVE, module_values, own_modules
from zenith_tune.presets.megatron.rules import WITH_STEP
from zenith_tune.presets.megatron.version import MODULES, SHARED_EXPERTS


def _is_free(at: Situation) -> bool:
    """Return whether only data is parallel, and its messages can overlap with the arithmetic."""
    layout = at.layout
    is_plain = layout.tp == layout.cp == layout.pp == 1 and at.has_replicas
    is_free = at.variable("CUDA_DEVICE_MAX_CONNECTIONS") != "1"
    return is_plain and is_free and at.job.args.has("--untie-embeddings-and-output-weights")


NO_GRADIENT_FUSION = "--no-gradient-accumulation-fusion"
FULL_SHARDING = {"--data-parallel-sharding-strategy": "optim_grads_params"}
FSDP = MegatronLever(
    name="fsdp",
    sets={MEGATRON_FSDP[0]: True, "--ckpt-format": "fsdp_dtensor", **FULL_SHARDING},
    first=(0, 14),
    goes=lambda at: _is_free(at) and at.has_shards and has_adam(at),
    excluded_by=("--save", "--load", "--ckpt-format", "--check-weight-hash-across-dp-replicas-interval"),
    excludes=frozenset(
        {"torch_fsdp2", "bucket_size", "high_busbw_buckets", "cuda_graphs", "gradient_fusion", "bf16_grads"}
    ),
    saves={"dp": -0.5},
    memory=-0.2,
    is_alone=True,
    source=f"{ASSUMED}: weights are gathered forward and backward, and 6 of 18 bytes a weight are shared as well",
)
TORCH = MegatronLever(
    name="torch_fsdp2",
    sets={TORCH_FSDP: True, NO_GRADIENT_FUSION: True, SHARDING: None, GATHER: None},
    first=(0, 12),
    goes=lambda at: _is_free(at) and at.layout.ep == 1 and at.job.job.precision != "fp16",
    dumped={"use_torch_fsdp2": True, "use_distributed_optimizer": False, "overlap_param_gather": False},
    excluded_by=(
        *("--save", "--load", "--ckpt-format", WITH_STEP, "--use-precision-aware-optimizer"),
        *("--optimizer-cpu-offload", "--ddp-pad-buckets-for-high-nccl-busbw"),
    ),
    excludes=FSDP.excludes - {"torch_fsdp2"}
    | {"fsdp", "overlap=params", "precision_aware_optimizer", "offloaded_optimizer", "bf16_moments"},
    saves=FSDP.saves,
    memory=FSDP.memory,
    is_alone=True,
    is_unstable=True,
    source=FSDP.source,
)
FULL_SHARDING_LEVERS = (
    replace(
        FSDP,
        sets={MEGATRON_FSDP[1]: True, NO_GRADIENT_FUSION: True, **FULL_SHARDING},
        first=(0, 12),
        last=(0, 13),
        dumped={"use_custom_fsdp": True},
    ),
    FSDP,
    TORCH,
)
MEMORY_LEVERS = (
    MegatronLever(
        name="precision_aware_optimizer",
        sets={"--use-precision-aware-optimizer": True},
        first=(0, 11),
        goes=has_adam,
        excludes=frozenset({"offloaded_optimizer"}),
        memory=-0.02,
        source="counted: 2 of 12 bytes of a weight's optimizer state, which keeps what bf16 lacks of fp32",
    ),
    *FULL_SHARDING_LEVERS,
    MegatronLever(
        name="offloaded_optimizer",
        sets={
            "--optimizer-cpu-offload": True,
            "--use-precision-aware-optimizer": True,
            "--overlap-cpu-optimizer-d2h-h2d": True,
        },
        first=(0, 12),
        goes=has_adam,
        excludes=frozenset({"precision_aware_optimizer", "fsdp"}),
        saves={"optimizer": -60.0},
        memory=-0.3,
        source=f"{BRIDGE}: steps of Qwen3-30B 4.2 times as long with all of it on the host",
    ),
)


NOTHING = "none"
FORWARD = 1 / 3
"""The share of a step's arithmetic that a forward pass has; the backward pass has twice as much."""
HALF = 2.0
GRANULARITY, METHOD, NUM_LAYERS, ACTIVATIONS = RECOMPUTE
ELEMENTWISE = 0.02
"""Of a step's arithmetic: what Megatron-Bridge measured of moe_act (0.457 to 0.466 s)."""


def _moe_share(model: ModelSpec) -> float:
    return model.num_moe_layers / model.num_layers


FLOPS: Mapping[str, Callable[[ModelSpec], float]] = {
    "mlp": lambda model: 2 * (1 - _moe_share(model)) * model.dense_mlp_params,
    "moe": lambda model: (
        2 * _moe_share(model) * (model.top_k * model.expert_params + model.router_params + model.shared_expert_params)
    ),
    "shared_experts": lambda model: 2 * _moe_share(model) * model.shared_expert_params,
    "mla_up_proj": lambda model: model.attention_params,
}
"""Operations that each module adds to a layer and token; half of latent attention's weights project upwards."""


def _ffn_bytes(model: ModelSpec, width: int) -> float:
    """Return what a feed-forward part keeps besides its input: what enters the activation, and what leaves it."""
    return HALF * width * (3 if model.gated_mlp else 2)


FREES: Mapping[str, Callable[[ModelSpec], float]] = {
    NOTHING: lambda model: 0.0,
    "mlp": lambda model: (1 - _moe_share(model)) * _ffn_bytes(model, model.ffn_hidden),
    "moe": lambda model: (
        _moe_share(model)
        * (
            model.top_k * (HALF * model.hidden + _ffn_bytes(model, model.moe_ffn_hidden))
            + _ffn_bytes(model, model.shared_ffn_hidden)
        )
    ),
    "moe_act": lambda model: _moe_share(model) * model.top_k * HALF * model.moe_ffn_hidden,
    "shared_experts": lambda model: _moe_share(model) * _ffn_bytes(model, model.shared_ffn_hidden),
    "layernorm": lambda model: HALF * model.hidden,
    "mla_up_proj": lambda model: HALF * (model.query_size + model.kv_size),
}
"""Bytes that a layer need not keep of a token where the module is recomputed."""


def module_cost(module: str, model: ModelSpec, seq_len: int) -> dict[str, float]:
    """Return which share of each part of a step recomputing a module adds."""
    if module == NOTHING:
        return {}
    if module not in FLOPS:
        return {"compute": ELEMENTWISE}
    layers = model.num_layers * FLOPS[module](model)
    cost = {"compute": FORWARD * layers / forward_flops_per_token(model, seq_len)}
    # The exchange with experts on other ranks is half of it forward, and is repeated with them.
    return {**cost, "ep": 0.5} if module == "moe" else cost


def _module_effect(module: str, at: Situation) -> Effect | None:
    """Return what a module in place of the layout's own recomputation does; None where no plan can be made."""
    if at.subject is None:
        return None
    from zenith_tune.calibrate.calibration_file import default_calibration
    from zenith_tune.estimates.memory import estimate_memory
    from zenith_tune.estimates.workload import Workload
    from zenith_tune.layouts.layout_batch import batch_of

    model, job = at.subject.model, at.subject.job
    layouts = batch_of([at.layout, replace(at.layout, recompute=NOTHING, recompute_layers=0)])
    calibration = default_calibration(job.framework.name)
    found = estimate_memory(Workload.of(model, job), layouts, job.framework, calibration.memory)
    now, then = (float(memory) for memory in found.device_bytes)
    # What a layer keeps of a token where nothing is recomputed, on all ranks together.
    attention = HALF * (model.query_size + model.kv_size + model.value_size)
    layer_bytes = 4 * HALF * model.hidden + attention + FREES["mlp"](model) + FREES["moe"](model)
    freed = float(found.parts["activations"][1]) * FREES[module](model) / layer_bytes
    cost = module_cost(module, model, job.seq_len)
    return Effect(
        saves={"recompute": 1.0} | {part: -share for part, share in cost.items()}, memory=(then - freed) / now - 1
    )


def _module_lever(module: str) -> MegatronLever:
    """Declare a module that is recomputed in place of more, or nothing that is."""
    is_nothing = module == NOTHING

    def goes(at: Situation) -> bool:
        if at.layout.recompute == NOTHING or len(own_modules(at.job)) > 1:
            return False
        return is_nothing or f"{SELECTIVE}{module}" in module_values(at.job)

    selected = {GRANULARITY: None} if is_nothing else {GRANULARITY: "selective", OPTION: module}
    dumped = {"recompute_granularity": "selective", "recompute_modules": module}
    return MegatronLever(
        name="modules",
        value=module,
        sets={**dict.fromkeys((METHOD, NUM_LAYERS, ACTIVATIONS)), **selected},
        first={NOTHING: (0, 9), "shared_experts": SHARED_EXPERTS}.get(module, MODULES),
        goes=goes,
        dumped={"recompute_granularity": "None"} if is_nothing else dumped,
        effect=lambda at: _module_effect(module, at),
        excludes=frozenset({"cuda_graphs", "ep_overlap", "shared_expert_overlap", "fp8", "fp4"}),
        source="NVIDIA, Megatron-Bridge's figures of Moonlight 16B on 8 H100: moe_act +2.0% time, -1.9% memory"
        if module == "moe_act"
        else "counted: the module's share of the forward pass, and of what a layer keeps",
    )


MODULE_LEVERS = tuple(_module_lever(module) for module in (NOTHING, *MODULE_GOES))
