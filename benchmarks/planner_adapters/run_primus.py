"""Runs Primus' projection of memory on measured rows: `python run_primus.py TREE`.

Its projection of times measures on an AMD GPU, or simulates one of AMD's; no row has one.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

from adapter import Prediction, Row, answer, commit_of, is_half, need, serve

ASSUMED = (
    "its analytical projection of memory (`projection memory`); times it measures or simulates on an AMD GPU",
    "of the first and the last rank the fuller, where a row does not ask for one of them",
)
NO_STEP = "its times are of AMD GPUs alone"
RECOMPUTE = {"none": None, "selective": "selective", "full": "full"}


def model_config(row: Row) -> dict[str, Any]:
    """Return the model as the fields of its ModelConfig."""
    model, latent = row["model"], row["model"]["latent_attention"]
    need(not model["mtp_layers"], "layers for multi-token prediction")
    need(is_half(row), "weights of 8 bits or fewer")
    unit = 128 * row["layout"]["tp"]
    found = {
        "num_layers": model["layers"],
        "hidden_size": model["hidden"],
        "padded_vocab_size": math.ceil(model["vocab"] / unit) * unit,
        "ffn_hidden_size": model["ffn_hidden"],
        "num_attention_heads": model["heads"],
        "kv_channels": model["head_dim"],
        "group_query_attention": model["kv_heads"] != model["heads"],
        "num_query_groups": model["kv_heads"],
        "use_flash_attn": bool(row["layout"]["flash_attention"]),
        "swiglu": model["gated_mlp"],
        "num_experts": model["experts"],
        "moe_ffn_hidden_size": model["moe_ffn_hidden"],
        "moe_pattern": [
            int(model["experts"] > 0 and layer >= model["dense_layers"]) for layer in range(model["layers"])
        ],
        "moe_router_topk": model["top_k"],
        "moe_shared_expert_intermediate_size": model["shared_ffn_hidden"],
        "share_embeddings_and_output_weights": model["tied_embeddings"],
    }
    if latent:
        found |= {
            "multi_latent_attention": True,
            "q_lora_rank": latent["q_rank"],
            "kv_lora_rank": latent["kv_rank"],
            "qk_head_dim": latent["qk_nope_dim"],
            "qk_pos_emb_head_dim": latent["qk_rope_dim"],
            "v_head_dim": latent["v_dim"],
        }
    return found


def parallelism(row: Row) -> dict[str, Any]:
    """Return the layout as the fields of its ModelParallelConfig."""
    layout = row["layout"]
    need(layout["zero"] <= 1, "sharded gradients or weights")
    need(layout["recompute"] in RECOMPUTE, "recomputation of some layers")
    need(not row["model"]["experts"] or layout["etp"] == 1, "experts split by tensor parallelism")
    return {
        "tensor_model_parallel_size": layout["tp"],
        "pipeline_model_parallel_size": layout["pp"],
        "virtual_pipeline_model_parallel_size": layout["vp"],
        "context_model_parallel_size": layout["cp"],
        "expert_model_parallel_size": layout["ep"],
        "use_distributed_optimizer": layout["zero"] == 1,
        "recompute_granularity": RECOMPUTE[layout["recompute"]],
        "recompute_method": "uniform" if layout["recompute"] == "full" else None,
        "recompute_num_layers": 1 if layout["recompute"] == "full" else 0,
    }


def ranks(row: Row) -> tuple[int, ...]:
    """Return the ranks whose memory a row asks for.

    >>> ranks({"cluster": {"num_gpus": 16}, "job": {"memory_of": "last"}})
    (15,)
    """
    last = row["cluster"]["num_gpus"] - 1
    return {"first": (0,), "last": (last,)}.get(row["job"]["memory_of"], (0, last))


def main(tree: Path) -> None:
    """Answer the rows on standard input."""
    sys.path.insert(0, str(tree))
    from primus.core.projection.module_profilers.language_model import build_profiler, get_language_model_profiler_spec
    from primus.core.projection.training_config import ModelConfig, ModelParallelConfig, RuntimeConfig, TrainingConfig

    def predict(row: Row) -> Prediction:
        mbs, seq_len, dp = row["layout"]["mbs"], row["job"]["seq_len"], row["layout"]["dp"]
        runtime = RuntimeConfig(row["job"]["global_batch"], mbs, seq_len, dp)
        config = TrainingConfig(ModelConfig(**model_config(row)), runtime, ModelParallelConfig(**parallelism(row)))
        # It reads the world from the environment of a launched rank.
        os.environ |= {"NNODES": "1", "GPUS_PER_NODE": str(row["cluster"]["num_gpus"])}
        found = []
        for rank in ranks(row):
            os.environ["RANK"] = str(rank)
            model = build_profiler(get_language_model_profiler_spec(config))
            weights = model.estimated_num_params(rank=rank) * model.get_num_bytes_per_param()
            found.append(weights + model.estimated_activation_memory(mbs, seq_len))
        return {"peak_memory_bytes": float(max(found))}

    serve(commit_of(str(tree)), ASSUMED, lambda row: answer(row, predict) | {"step_s": NO_STEP})


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
