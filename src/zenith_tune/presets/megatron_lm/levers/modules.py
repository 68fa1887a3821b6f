"""Levers that recompute one module of every layer, or nothing, where the layout that won recomputes more.

What a module costs is its share of the forward pass, which is a third of a step's arithmetic. What it frees is its
share of what a layer keeps for the backward pass, counted width by width as Korthikanti et al. 2022 do (arXiv
2205.05198, section 4): two bytes for each element of an input of a matrix product, a norm or an activation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.estimate.model_flops import forward_flops_per_token
from zenith_tune.presets.levers import Effect
from zenith_tune.presets.megatron_lm.levers.declaration import MegatronLever, Situation
from zenith_tune.presets.megatron_lm.options import RECOMPUTE
from zenith_tune.presets.megatron_lm.overlap import MODULE_GOES, OPTION, SELECTIVE, module_values, own_modules
from zenith_tune.presets.megatron_lm.version import MODULES, SHARED_EXPERTS

NOTHING = "none"
FORWARD = 1 / 3
"""The share of a step's arithmetic that a forward pass has; the backward pass has twice as much."""
HALF = 2.0
GRANULARITY, METHOD, NUM_LAYERS, ACTIVATIONS = RECOMPUTE
MEASURED = "NVIDIA, Megatron-Bridge's figures of Moonlight 16B on 8 H100: moe_act +2.0% time, -1.9% memory"
COUNTED = "counted: the module's share of the forward pass, and of what a layer keeps"
FIRST = {NOTHING: (0, 9), "shared_experts": SHARED_EXPERTS}
SELECTED = {"recompute_granularity": "selective"}
ELEMENTWISE = 0.02
"""Of a step's arithmetic: what Megatron-Bridge measured of moe_act (0.457 to 0.466 s)."""


def _moe_share(model: ModelSpec) -> float:
    return model.num_moe_layers / model.num_layers


def _experts_flops(model: ModelSpec) -> float:
    return 2 * _moe_share(model) * (model.top_k * model.expert_params + model.router_params)


FLOPS: Mapping[str, Callable[[ModelSpec], float]] = {
    "mlp": lambda model: 2 * (1 - _moe_share(model)) * model.dense_mlp_params,
    "moe": lambda model: _experts_flops(model) + 2 * _moe_share(model) * model.shared_expert_params,
    "shared_experts": lambda model: 2 * _moe_share(model) * model.shared_expert_params,
    "mla_up_proj": lambda model: model.attention_params,
}
"""Operations that each module adds to a layer and token; half of latent attention's weights project upwards."""


def _ffn_bytes(model: ModelSpec, width: int) -> float:
    """Return what a feed-forward part keeps beside its input: what enters the activation, and what leaves it."""
    return HALF * width * (3 if model.gated_mlp else 2)


def _routed_bytes(model: ModelSpec) -> float:
    return model.top_k * (HALF * model.hidden + _ffn_bytes(model, model.moe_ffn_hidden))


FREES: Mapping[str, Callable[[ModelSpec], float]] = {
    NOTHING: lambda model: 0.0,
    "mlp": lambda model: (1 - _moe_share(model)) * _ffn_bytes(model, model.ffn_hidden),
    "moe": lambda model: _moe_share(model) * (_routed_bytes(model) + _ffn_bytes(model, model.shared_ffn_hidden)),
    "moe_act": lambda model: _moe_share(model) * model.top_k * HALF * model.moe_ffn_hidden,
    "shared_experts": lambda model: _moe_share(model) * _ffn_bytes(model, model.shared_ffn_hidden),
    "layernorm": lambda model: HALF * model.hidden,
    "mla_up_proj": lambda model: HALF * (model.query_size + model.kv_size),
}
"""Bytes that a layer need not keep of a token where the module is recomputed."""


def layer_bytes(model: ModelSpec) -> float:
    """Return the bytes that a layer keeps of a token where nothing is recomputed, on all ranks together."""
    attention = HALF * (model.query_size + model.kv_size + model.value_size)
    return 4 * HALF * model.hidden + attention + FREES["mlp"](model) + FREES["moe"](model)


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


def module_effect(module: str, at: Situation) -> Effect | None:
    """Return what a module in place of the layout's own recomputation does; None where no plan can be made."""
    if at.subject is None:
        return None
    from zenith_tune.calibrate.calibration_file import default_calibration
    from zenith_tune.estimate.memory import estimate_memory
    from zenith_tune.estimate.workload import Workload
    from zenith_tune.layouts.layout_batch import batch_of

    model, job = at.subject.model, at.subject.job
    layouts = batch_of([at.layout, replace(at.layout, recompute=NOTHING, recompute_layers=0)])
    calibration = default_calibration(job.framework.name)
    found = estimate_memory(Workload.of(model, job), layouts, job.framework, calibration.memory)
    now, then = (float(memory) for memory in found.device_bytes)
    freed = float(found.parts["activations"][1]) * FREES[module](model) / layer_bytes(model)
    cost = module_cost(module, model, job.seq_len)
    saves = {"recompute": 1.0, **{part: -share for part, share in cost.items()}}
    return Effect(saves=saves, memory=(then - freed) / now - 1)


def _goes(module: str) -> Callable[[Situation], bool]:
    def goes(at: Situation) -> bool:
        if at.layout.recompute == NOTHING or len(own_modules(at.job)) > 1:
            return False
        return module == NOTHING or f"{SELECTIVE}{module}" in module_values(at.job)

    return goes


def _sets(module: str) -> dict[str, str | None]:
    taken: dict[str, str | None] = dict.fromkeys((METHOD, NUM_LAYERS, ACTIVATIONS))
    return {**taken, GRANULARITY: None} if module == NOTHING else {**taken, GRANULARITY: "selective", OPTION: module}


def _declared(module: str) -> MegatronLever:
    is_nothing = module == NOTHING
    return MegatronLever(
        name="modules",
        value=module,
        sets=_sets(module),
        first=FIRST.get(module, MODULES),
        goes=_goes(module),
        dumped={"recompute_granularity": "None"} if is_nothing else {**SELECTED, "recompute_modules": module},
        effect=lambda at: module_effect(module, at),
        excludes=frozenset({"cuda_graphs", "ep_overlap", "shared_expert_overlap", "fp8", "fp4"}),
        source=MEASURED if module == "moe_act" else COUNTED,
    )


MODULE_LEVERS = tuple(_declared(module) for module in (NOTHING, *MODULE_GOES))
