"""Runs SimuMax on measured rows: `python run_simumax.py TREE`."""

from __future__ import annotations

import json
import math
import sys
import warnings
from pathlib import Path
from typing import Any

from adapter import Prediction, Row, commit_of, is_half, need, num_micro_batches, serve

SYSTEMS = {"a100-80": "a100_pcie", "a100-40": "a100_pcie", "a800": "a100_pcie", "b200": "b200_bf16_ceperm"}
LINK_EFFICIENCY = 0.5
"""What the template of docs/system.md gives for NVLink and for the network."""
ASSUMED = (
    "configs/system/a100_pcie.json for A100, with NVLink and a network as in the template of docs/system.md (efficiency"
    f" {LINK_EFFICIENCY}) in place of PCIe, and configs/system/b200_bf16_ceperm.json for B200; both with the "
    "bandwidths of the cluster; no other GPU comes with it",
    "allocated memory (peak_mem), of the pipeline stage that a row asks for; it does not depend on the GPU",
    "other options by default: gradients of 4 bytes, dense layers reduced as the backward pass goes on",
)
RECOMPUTE = {"none": None, "selective": "sdp_only", "full": "full_block"}
TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def model_config(row: Row) -> dict[str, Any]:
    """Return the model as the fields of its ModelConfig."""
    model, latent = row["model"], row["model"]["latent_attention"]
    need(not model["mtp_layers"], "layers for multi-token prediction")
    found = {
        "model_type": "moe" if model["experts"] else "dense",
        "model_name": "row",
        "hidden_size": model["hidden"],
        "head_num": model["heads"],
        "kv_head_num": model["kv_heads"],
        "head_size": model["head_dim"],
        "intermediate_size": model["ffn_hidden"],
        "layer_num": model["layers"],
        "vocab_size": model["vocab"],
        "use_swiglu": model["gated_mlp"],
    }
    if model["experts"]:
        found |= {
            "expert_num": model["experts"],
            "topk": model["top_k"],
            "moe_ffn_hidden_size": model["moe_ffn_hidden"],
            "moe_shared_expert_intermediate_size": model["shared_ffn_hidden"] or None,
            "dense_layers": model["dense_layers"],
        }
    if latent:
        found |= {
            "attention_type": "mla",
            "q_lora_rank": latent["q_rank"] or None,
            "kv_lora_rank": latent["kv_rank"],
            "qk_head_dim": latent["qk_nope_dim"],
            "qk_pos_emb_head_dim": latent["qk_rope_dim"],
            "v_head_dim": latent["v_dim"],
        }
    return found


def strategy(row: Row) -> dict[str, Any]:
    """Return the layout as the fields of its StrategyConfig."""
    layout = row["layout"]
    need(layout["zero"] <= 1, "sharded gradients or weights")
    need(layout["recompute"] in RECOMPUTE, "recomputation of some layers")
    need(is_half(row), "products of 8 bits or fewer, of which no efficiency comes with it")
    granularity = RECOMPUTE[layout["recompute"]]
    return {
        "seq_len": row["job"]["seq_len"],
        "micro_batch_size": layout["mbs"],
        "micro_batch_num": num_micro_batches(row),
        "world_size": row["cluster"]["num_gpus"],
        "tp_size": layout["tp"],
        "pp_size": layout["pp"],
        "cp_size": layout["cp"],
        "ep_size": layout["ep"],
        "etp_size": layout["etp"],
        "interleaving_size": layout["vp"],
        "pp_comm_async": layout["vp"] == 1,
        "enable_sequence_parallel": bool(layout["sequence_parallel"]) and layout["tp"] > 1,
        "zero_state": layout["zero"],
        "use_flash_sdp": bool(layout["flash_attention"]),
        "use_math_sdp": not layout["flash_attention"],
        "enable_recompute": granularity is not None,
        "recompute_granularity": granularity,
        "recompute_layer_num": math.ceil(row["model"]["layers"] / layout["pp"]) if granularity else 0,
    }


def system(row: Row, tree: Path) -> dict[str, Any]:
    """Return its own description of the GPU, with the cluster's links: a GPU's own, and a whole node's, in GB/s."""
    cluster = row["cluster"]
    name = SYSTEMS.get(cluster["gpu"], "a100_pcie")
    found: dict[str, Any] = json.loads((tree / "configs" / "system" / f"{name}.json").read_text())
    found["num_per_node"] = cluster["gpus_per_node"]
    link, network = cluster["link_bytes_per_s"] / 1e9, cluster["network_bytes_per_s"] * cluster["gpus_per_node"] / 1e9
    if found["networks"]["intra_with_pcie"]:
        # The collectives of its network between nodes have no efficiencies of their own, as in the template.
        plain = found["networks"]["inter_node"]
        found["networks"] = {
            "intra_with_pcie": False,
            "low_intra_node": _with(plain, link, efficient_factor=LINK_EFFICIENCY, latency_us=10),
            "high_intra_node": _with(plain, link, efficient_factor=LINK_EFFICIENCY, latency_us=10),
            "inter_node": _with(plain, network, efficient_factor=LINK_EFFICIENCY, latency_us=30),
        }
    else:
        for kind, gbps in (("low_intra_node", link), ("high_intra_node", link), ("inter_node", network)):
            found["networks"][kind] = _with(found["networks"][kind], gbps)
    return found


def _with(network: dict[str, Any], gbps: float, **changes: float) -> dict[str, Any]:
    return network | {"bandwidth": network["bandwidth"] | changes | {"gbps": gbps}}


def seconds(text: str) -> float:
    """Return the seconds of a time as it prints it.

    >>> seconds("774.4876 ms"), seconds("8.6321 s")
    (0.7744876, 8.6321)
    """
    value, unit = text.split()
    return float(value) * TIMES[unit]


def asked_stage(by_stage: dict[str, float], memory_of: str) -> float:
    """Return the memory of the pipeline stage that a row asks for; one stage is the first and the last."""
    if memory_of == "fullest":
        return max(by_stage.values())
    return by_stage.get(f"{memory_of}_stage", by_stage["first_stage"])


def main(tree: Path) -> None:
    """Answer the rows on standard input."""
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(tree))
    from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig
    from simumax.core.perf_llm import PerfLLM
    from simumax.version import __version__

    def predict(row: Row) -> Prediction:
        perf = PerfLLM()
        perf.configure(
            strategy_config=StrategyConfig(**strategy(row)),
            model_config=ModelConfig(**model_config(row)),
            system_config=SystemConfig.init_from_dict(system(row, tree)),
        )
        perf.run_estimate()
        by_stage = perf.get_pp_stage_peak_mem(perf.analysis_mem(), "peak_mem")
        memory: float | str = asked_stage(by_stage, row["job"]["memory_of"])
        if row["model"]["tied_embeddings"] and row["layout"]["pp"] == 1:
            memory = "an output layer that is tied to the embedding on the same stage"
        step_s: float | str = "no description of this GPU"
        if row["cluster"]["gpu"] in SYSTEMS:
            step_s = seconds(perf.analysis_cost().get("duration_time_per_iter"))
        return {"step_s": step_s, "peak_memory_bytes": memory}

    serve(f"{__version__} ({commit_of(str(tree))})", ASSUMED, predict)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
