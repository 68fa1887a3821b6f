"""Runs Calculon on measured rows: `python run_calculon.py TREE`."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from adapter import Prediction, Row, commit_of, is_half, need, need_plain_layers, serve

SYSTEMS = {"a100-80": "a100_80g", "a100-40": "a100_80g", "a800": "a100_80g", "h100": "h100_80g_nvl8"}
MEMORY_GIB = 1e6
"""Memory given to every GPU, so that it also predicts what it takes to be too large."""
ASSUMED = (
    "systems/a100_80g.json, as in its README, and systems/h100_80g_nvl8.json, with the bandwidths of the cluster and "
    "memory without end; systems/a100_80e.json, of its own validation, is further off",
    "options not stated by a row as in its validation against Megatron-LM: no overlap, no offloading, the all-gather "
    "of sequence parallelism done again in the backward pass",
    "its model has no embedding, no output layer and no loss",
)
RECOMPUTE = {"none": "none", "selective": "attn_only", "full": "full"}


def application(row: Row) -> dict[str, Any]:
    """Return the model as Calculon's configuration has it."""
    model = row["model"]
    need_plain_layers(row)
    need(not model["experts"], "experts")
    need(not model["gated_mlp"], "gated feed-forward layers")
    need(model["kv_heads"] == model["heads"], "grouped-query attention")
    return {
        "hidden": model["hidden"],
        "feedforward": model["ffn_hidden"],
        "seq_size": row["job"]["seq_len"],
        "attn_heads": model["heads"],
        "attn_size": model["head_dim"],
        "num_blocks": model["layers"],
    }


def execution(row: Row) -> dict[str, Any]:
    """Return the layout as Calculon's configuration has it."""
    layout, cluster = row["layout"], row["cluster"]
    need(layout["cp"] == 1, "context parallelism")
    need(layout["zero"] <= 1, "sharded gradients or weights")
    need(layout["recompute"] in RECOMPUTE, "recomputation of some layers")
    need(is_half(row), "products of 8 bits or fewer")
    tp, dp, node = layout["tp"], layout["dp"], cluster["gpus_per_node"]
    sequence_parallel = bool(layout["sequence_parallel"]) and tp > 1
    return {
        "num_procs": cluster["num_gpus"],
        "tensor_par": tp,
        "pipeline_par": layout["pp"],
        "data_par": dp,
        "tensor_par_net": 0 if tp <= node else 1,
        "pipeline_par_net": 0 if cluster["num_gpus"] <= node else 1,
        "data_par_net": 0 if tp * dp <= node else 1,
        "batch_size": row["job"]["global_batch"],
        "microbatch_size": layout["mbs"],
        "datatype": "float16",
        "fused_activation": False,
        "attention_type": "multihead",
        "activation_recompute": RECOMPUTE[layout["recompute"]],
        "pipeline_interleaving": layout["vp"],
        "optimizer_sharding": layout["zero"] == 1 and dp > 1,
        "tensor_par_comm_type": "rs_ag" if sequence_parallel else "ar",
        "tensor_par_overlap": "none",
        "seq_par_ag_redo": sequence_parallel and layout["recompute"] != "full",
        "data_par_overlap": False,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }


def system(row: Row, tree: Path) -> dict[str, Any]:
    """Return Calculon's own description of the machine, with the cluster's bandwidths in GB/s."""
    name = SYSTEMS.get(row["cluster"]["gpu"], "a100_80g")
    found: dict[str, Any] = json.loads((tree / "systems" / f"{name}.json").read_text())
    found["mem1"]["GiB"] = MEMORY_GIB
    for network, key in zip(found["networks"], ("link_bytes_per_s", "network_bytes_per_s"), strict=True):
        network["bandwidth"] = row["cluster"][key] / 1e9
    found["networks"][0]["size"] = row["cluster"]["gpus_per_node"]
    return found


def main(tree: Path) -> None:
    """Answer the rows on standard input."""
    sys.path.insert(0, str(tree))
    from calculon import __version__
    from calculon.llm import Llm
    from calculon.system import System

    def predict(row: Row) -> Prediction:
        machine = System(system(row, tree))
        model = Llm(Llm.Application(application(row)), logging.getLogger("calculon"))
        model.compile(machine, Llm.Execution.from_json(execution(row)))
        model.run(machine)
        known = row["cluster"]["gpu"] in SYSTEMS
        step_s: float | str = model.get_total_time() if known else "no description of this GPU"
        return {"step_s": step_s, "peak_memory_bytes": float(model.get_mem_tier1_cap_req())}

    serve(f"{__version__} ({commit_of(str(tree))})", ASSUMED, predict)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
