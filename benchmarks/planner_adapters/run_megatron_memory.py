"""Runs Megatron-LM's report of its own theoretical memory on measured rows: `python run_megatron_memory.py TREE`.

The report's module needs two names of a package that imports torch; they are stood in for, so that torch is not.
"""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

from adapter import Prediction, Row, answer, commit_of, is_half, need, num_micro_batches, serve

MIB = 2**20
ASSUMED = (
    "report_theoretical_memory of megatron/training/theoretical_memory_usage.py: memory alone",
    "flash attention without recomputation counts as selective recomputation, for which its formula of activations is",
)
NO_STEP = "it predicts no times"


def arguments(row: Row) -> dict[str, object]:
    """Return a row as Megatron-LM's arguments."""
    model, layout, cluster = row["model"], row["layout"], row["cluster"]
    need(is_half(row), "weights of 8 bits or fewer")
    need(layout["cp"] == 1, "context parallelism")
    need(layout["zero"] <= 1, "sharded gradients or weights")
    need(layout["recompute"] in ("none", "selective"), "full recomputation")
    latent, experts = model["latent_attention"], model["experts"]
    unit = 128 * layout["tp"]
    is_selective = layout["recompute"] == "selective" or layout["flash_attention"]
    return {
        "num_layers": model["layers"],
        "hidden_size": model["hidden"],
        "ffn_hidden_size": model["ffn_hidden"],
        "num_attention_heads": model["heads"],
        "kv_channels": model["head_dim"],
        "group_query_attention": model["kv_heads"] != model["heads"] and not latent,
        "num_query_groups": model["kv_heads"],
        "swiglu": model["gated_mlp"],
        "normalization": "LayerNorm" if model["norm_bias"] else "RMSNorm",
        "padded_vocab_size": math.ceil(model["vocab"] / unit) * unit,
        "untie_embeddings_and_output_weights": not model["tied_embeddings"],
        "add_bias_linear": False,
        "num_experts": experts or None,
        "moe_layer_freq": [0] * model["dense_layers"] + [1] * (model["layers"] - model["dense_layers"]),
        "moe_ffn_hidden_size": model["moe_ffn_hidden"],
        "moe_shared_expert_intermediate_size": model["shared_ffn_hidden"] or None,
        "moe_router_topk": model["top_k"],
        "moe_latent_size": None,
        "mtp_num_layers": model["mtp_layers"] or None,
        "multi_latent_attention": bool(latent),
        "q_lora_rank": (latent or {}).get("q_rank") or None,
        "kv_lora_rank": (latent or {}).get("kv_rank"),
        "qk_head_dim": (latent or {}).get("qk_nope_dim"),
        "qk_pos_emb_head_dim": (latent or {}).get("qk_rope_dim"),
        "v_head_dim": (latent or {}).get("v_dim"),
        "world_size": cluster["num_gpus"],
        "tensor_model_parallel_size": layout["tp"],
        "pipeline_model_parallel_size": layout["pp"],
        "virtual_pipeline_model_parallel_size": layout["vp"] if layout["vp"] > 1 else None,
        "expert_model_parallel_size": layout["ep"],
        "expert_tensor_parallel_size": layout["etp"],
        "data_parallel_size": layout["dp"],
        "use_distributed_optimizer": layout["zero"] == 1,
        "sequence_parallel": bool(layout["sequence_parallel"]) or layout["tp"] == 1,
        "recompute_granularity": "selective" if is_selective else None,
        "seq_length": row["job"]["seq_len"],
        "micro_batch_size": layout["mbs"],
    }


def load_report(tree: Path) -> ModuleType:
    """Import the report without the packages that it lies in."""
    names = {"is_hybrid_model": lambda args: False, "print_rank_0": print}
    for name, place in (("megatron", "megatron"), ("megatron.training", "megatron/training")):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [str(tree / place)]
    sys.modules["megatron.training.utils"] = ModuleType("megatron.training.utils")
    vars(sys.modules["megatron.training.utils"]).update(names)
    return importlib.import_module("megatron.training.theoretical_memory_usage")


def main(tree: Path) -> None:
    """Answer the rows on standard input."""
    report = load_report(tree)

    def predict(row: Row) -> Prediction:
        found = report.report_theoretical_memory(SimpleNamespace(**arguments(row)), num_micro_batches(row))
        return {"peak_memory_bytes": float(found[-1]) * MIB}

    serve(commit_of(str(tree)), ASSUMED, lambda row: answer(row, predict) | {"step_s": NO_STEP})


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
