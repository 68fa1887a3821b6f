"""Runs llm-analysis on measured rows: `python run_llm_analysis.py TREE`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from adapter import Prediction, Row, commit_of, is_half, need, need_plain_layers, serve

GPUS = {
    "a100-80": "a100-sxm-80gb",
    "a100-40": "a100-sxm-40gb",
    "a800": "a100-sxm-80gb",
    "h100": "h100-sxm-80gb",
    "v100-32": "v100-sxm-32gb",
    "v100-16": "v100-sxm-16gb",
}
RECOMPUTE = {"none": 0, "selective": 1, "full": 4}
MEMORY_GB = 1000
"""Memory given to every GPU, so that it also predicts what it takes to be too large; it tries every batch that fits."""
FLOPS_EFFICIENCY, MEMORY_EFFICIENCY = 0.5, 0.9
"""What its README gives for large models, and for memory."""
ASSUMED = (
    f"its own descriptions of the GPUs, with the bandwidths of the cluster and memory of {MEMORY_GB} GB",
    f"efficiencies of {FLOPS_EFFICIENCY} of the peak rate and {MEMORY_EFFICIENCY} of the memory's, as its README has "
    "them; its default is 1",
    "data-parallel ranks replicated for the step below ZeRO-3, as it would gather weights in every layer otherwise, "
    "and sharded for the memory",
    "its own check of the count of FLOPs (within_range) refuses models with as many key-value heads as heads whose "
    "feed-forward layers are not plain ones of four times the hidden size",
    "it leaves out the pipeline's bubble, messages between pipeline stages, and those of data parallelism below ZeRO-3",
)


def model_config(row: Row) -> dict[str, Any]:
    """Return the model as the fields of its ModelConfig."""
    model = row["model"]
    need_plain_layers(row)
    need(model["head_dim"] * model["heads"] == model["hidden"], "heads that do not make up the hidden size")
    need(not model["shared_ffn_hidden"] and not model["dense_layers"], "shared experts or leading dense layers")
    return {
        "name": "row",
        "num_layers": model["layers"],
        "n_head": model["heads"],
        "hidden_dim": model["hidden"],
        "vocab_size": model["vocab"],
        "max_seq_len": row["job"]["seq_len"],
        "num_key_value_heads": model["kv_heads"],
        "ffn_embed_dim": model["moe_ffn_hidden"] if model["experts"] else model["ffn_hidden"],
        "moe_num_experts": max(model["experts"], 1),
        "moe_top_k": max(model["top_k"], 1),
        "mlp_gated_linear_units": model["gated_mlp"],
    }


def parallelism(row: Row, *, for_memory: bool) -> dict[str, int]:
    """Return the layout as the fields of its ParallelismConfig.

    Data-parallel ranks that are called sharded gather every layer's weights in time, whatever the stage of ZeRO.
    """
    layout = row["layout"]
    is_sharded = for_memory or layout["zero"] == 3
    need(layout["cp"] == 1, "context parallelism")
    need(layout["tp"] <= row["cluster"]["gpus_per_node"], "tensor parallelism across nodes")
    sp = layout["tp"] if layout["sequence_parallel"] else 1
    return {
        "tp_size": layout["tp"],
        "pp_size": layout["pp"],
        "dp_size": layout["dp"] if is_sharded else 1,
        "rdp_size": 1 if is_sharded else layout["dp"],
        "ep_size": layout["ep"],
        "sp_size": sp,
    }


def bandwidths(row: Row) -> dict[str, float]:
    """Return the cluster's links as the fields of its GPUConfig: a GPU's own, and a whole node's, in GB/s."""
    cluster = row["cluster"]
    return {
        "mem_per_GPU_in_GB": MEMORY_GB,
        "intra_node_bandwidth_in_GB_per_sec": cluster["link_bytes_per_s"] / 1e9,
        "inter_node_bandwidth_in_GB_per_sec": cluster["network_bytes_per_s"] * cluster["gpus_per_node"] / 1e9,
    }


def main(tree: Path) -> None:
    """Answer the rows on standard input."""
    sys.path.insert(0, str(tree))
    from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
    from llm_analysis.config import ModelConfig, ParallelismConfig, get_gpu_config_by_name
    from llm_analysis.logger import logger

    logger.setLevel("CRITICAL")

    def predict(row: Row) -> Prediction:
        layout, gpu = row["layout"], row["cluster"]["gpu"]
        need(is_half(row), "products of 8 bits or fewer")
        need(layout["recompute"] in RECOMPUTE, "recomputation of some layers")

        def found(figure: str, *, for_memory: bool) -> float:
            analysis = LLMAnalysis(
                ModelConfig(**model_config(row)),
                replace(get_gpu_config_by_name(GPUS.get(gpu, "a100-sxm-80gb")), **bandwidths(row)),
                parallelism_config=ParallelismConfig(**parallelism(row, for_memory=for_memory)),
                flops_efficiency=FLOPS_EFFICIENCY,
                hbm_memory_efficiency=MEMORY_EFFICIENCY,
            )
            summary = analysis.training(
                batch_size_per_gpu=layout["mbs"],
                global_batch_size=row["job"]["global_batch"],
                seq_len=row["job"]["seq_len"],
                activation_recomputation=ActivationRecomputation(RECOMPUTE[layout["recompute"]]),
                ds_zero=DSZeRO(layout["zero"]),
                flash_attn=layout["flash_attention"],
            )
            return float(summary[figure])

        step_s: float | str = "no description of this GPU"
        if gpu in GPUS:
            step_s = found("latency_per_iter", for_memory=False)
        return {"step_s": step_s, "peak_memory_bytes": found("estimated_peak_memory_per_gpu", for_memory=True)}

    serve(commit_of(str(tree)), ASSUMED, predict)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
