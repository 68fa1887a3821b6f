"""A small GPT of Megatron Core on CPUs: the weights of its ranks in each format, and the logits that all of them make.

Then the weights of each format are merged, and the shards by way of other layouts too, and one process runs each of
the files. All ranks are forked from this process, for Megatron takes seconds to import.
"""

from __future__ import annotations

import argparse
import functools
import queue
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist

from tests.engines.megatron_core.cuda_on_cpu import pretend_cuda
from zenith_checkpoint.convert import Target, merge, reshard
from zenith_checkpoint.model_shape import ModelShape
from zenith_checkpoint.output_place import Format
from zenith_mimo.local_ranks import run_ranks

pretend_cuda()

from megatron.core import dist_checkpointing  # noqa: E402
from megatron.core import parallel_state as ps  # noqa: E402
from megatron.core.dist_checkpointing.strategies import filesystem_async  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402

moe_utils.te_general_gemm = None  # not set by 0.16 without Transformer Engine, and asked for nevertheless

VOCAB, SEQ, LAYERS, HEADS = 32, 8, 2, 4


def build(options: argparse.Namespace, tp: int, pp: int, ep: int = 1) -> Any:
    ps.initialize_model_parallel(tp, pp, expert_model_parallel_size=ep)
    model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=16,
        num_attention_heads=HEADS,
        num_query_groups=options.groups,
        ffn_hidden_size=24,
        gated_linear_unit=options.gated,
        activation_func=torch.nn.functional.silu if options.gated else torch.nn.functional.gelu,
        add_bias_linear=not options.gated,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        pipeline_dtype=torch.float32,
        persist_layer_norm=False,
        num_moe_experts=options.experts or None,
        moe_router_topk=2,
        moe_token_dispatcher_type="allgather",
        moe_router_load_balancing_type="none",
        expert_model_parallel_size=ep,
    )
    return GPTModel(
        config,
        get_gpt_layer_local_spec(num_experts=options.experts or None, moe_grouped_gemm=False),
        vocab_size=VOCAB,
        max_sequence_length=SEQ,
        pre_process=ps.is_pipeline_first_stage(),
        post_process=ps.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=options.tied,
        position_embedding_type="learned_absolute",
        parallel_output=False,
    ).eval()


def randomize(model: Any, options: argparse.Namespace, tp_rank: int, pp_rank: int) -> None:
    """Give every weight values of its own; what Megatron does not mark as split is the same on all ranks."""
    for name, weight in model.named_parameters():
        is_copy = options.tied and name == "output_layer.weight"
        seed_name = "embedding.word_embeddings.weight 0" if is_copy else f"{name} {pp_rank}"
        is_split = getattr(weight, "tensor_model_parallel", False) or ".experts." in name
        rank = (
            f"{tp_rank} {ps.get_expert_model_parallel_rank()}" if ".experts." in name else tp_rank if is_split else -1
        )
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed_name} {rank}".encode()))
        with torch.no_grad():
            weight.copy_(torch.randn(weight.shape, generator=generator))


def logits_of(model: Any, stride: int, pp: int) -> Any:
    """Return the last stage's logits, the same on all tensor ranks; other stages hand theirs on."""
    pp_rank = ps.get_pipeline_model_parallel_rank()
    tokens = torch.arange(SEQ).reshape(1, SEQ) * 3 % VOCAB
    positions = torch.arange(SEQ).reshape(1, SEQ)
    mask = torch.ones(1, 1, SEQ, SEQ).triu(1).bool()
    if pp_rank > 0:
        received = torch.empty(SEQ, 1, 16)
        dist.recv(received, dist.get_rank() - stride)
        model.set_input_tensor(received)
    with torch.no_grad():
        output = model(tokens, positions, mask)
    if pp_rank < pp - 1:
        dist.send(output.contiguous(), dist.get_rank() + stride)
        return None
    return output


def save_shard(options: argparse.Namespace) -> None:
    """Save this rank's weights, and the logits of all ranks."""
    model = build(options, options.tp, options.pp, options.ep)
    tp_rank, pp_rank = ps.get_tensor_model_parallel_rank(), ps.get_pipeline_model_parallel_rank()
    randomize(model, options, tp_rank, pp_rank)
    if options.ep == 1:
        torch.save(model.state_dict(), options.folder / "shards" / f"pytorch_model_tp_{tp_rank}_pp_{pp_rank}.bin")
    save_legacy(model, options, tp_rank, pp_rank)
    for name, metadata in (("dist", {}), ("dist-apart", {"singleton_local_shards": True})):
        save_dist(model, options, options.folder / name, metadata)
    logits = logits_of(model, options.tp * options.ep, options.pp)
    if logits is not None and tp_rank == 0:
        torch.save(logits, options.folder / "sharded.pt")


def arguments(options: argparse.Namespace) -> argparse.Namespace:
    """Return what of Megatron-LM's arguments tells more than the weights do, and one that is no plain value."""
    return argparse.Namespace(
        num_attention_heads=HEADS,
        num_query_groups=options.groups,
        expert_model_parallel_size=options.ep,
        expert_tensor_parallel_size=options.tp,
        transformer_impl="local",
        model_type=ModelType.encoder_or_decoder,
    )


def save_legacy(model: Any, options: argparse.Namespace, tp_rank: int, pp_rank: int) -> None:
    """Save as Megatron-LM's save_checkpoint does with --ckpt-format torch, one rank of each group."""
    ep_rank = ps.get_expert_model_parallel_rank()
    name = f"mp_rank_{tp_rank:02d}"
    name += f"_{pp_rank:03d}" if options.pp > 1 else ""
    name += f"_{ep_rank:03d}" if options.ep > 1 else ""
    folder = options.folder / "legacy" / "iter_0000007" / name
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "args": arguments(options),
        "checkpoint_version": 3.0,
        "iteration": 7,
        "model": model.state_dict_for_save_checkpoint(),
        "optimizer": {"optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}}},
        "rng_state": [{"np_rng_state": numpy.random.get_state(), "rng_tracker_states": {"a": torch.get_rng_state()}}],
    }
    torch.save(content, folder / f"{dist.get_rank()}.part")
    (folder / f"{dist.get_rank()}.part").replace(folder / "model_optim_rng.pt")
    (options.folder / "legacy" / "latest_checkpointed_iteration.txt").write_text("7")


def save_dist(model: Any, options: argparse.Namespace, folder: Path, metadata: dict[str, Any]) -> None:
    """Save as Megatron-LM does by default."""
    # Its own is a process that would outlive this one; what is written at once needs no queue between processes.
    filesystem_async._results_queue = queue.Queue()
    folder.mkdir(exist_ok=True)
    dist.barrier()
    state = model.sharded_state_dict(metadata={"dp_cp_group": ps.get_data_parallel_group(), **metadata})
    common = {"args": arguments(options), "iteration": 7, "checkpoint_version": 3.0}
    dist_checkpointing.save({"model": state, **common}, str(folder))


def run_merged(options: argparse.Namespace) -> None:
    """Merge both ways, run each model, and save its logits."""
    shape = ModelShape(heads=HEADS, kv_heads=options.groups, vocab=VOCAB)
    # Through another layout on the way, so that cutting is held against Megatron too.
    sources = ["legacy", "dist", "dist-apart"]
    if options.ep == 1:
        reshard(options.folder / "shards", options.folder / "again", Target(tp=4, pp=2, vocab_divisor=8), shape)
        sources += ["shards", "again"]
    model = build(options, 1, 1)
    for source in sources:
        randomize(model, options, 7, 7)
        merged = options.folder / f"{source}.bin"
        merge(options.folder / source, merged, shape)
        missing, unexpected = model.load_state_dict(torch.load(merged, weights_only=True), strict=False)
        assert not unexpected and all(name.endswith("_extra_state") for name in missing), (missing, unexpected)
        torch.save(logits_of(model, 1, 1), options.folder / f"merged-{source}.pt")


def write_again(options: argparse.Namespace) -> None:
    """Write the weights of each of Megatron's formats in the other one."""
    for source, kind in (("dist", Format.MEGATRON), ("legacy", Format.TORCH_DIST)):
        target = Target(tp=options.tp, pp=options.pp, ep=options.ep if kind is Format.MEGATRON else 1, format=kind)
        shape = ModelShape(vocab=VOCAB)
        reshard(options.folder / source, options.folder / kind.value, replace(target, vocab_divisor=8), shape)


def load_again(options: argparse.Namespace) -> None:
    """Load what was written by all ranks, as Megatron-LM does, and save the logits."""
    model = build(options, options.tp, options.pp, options.ep)
    tp_rank, pp_rank = ps.get_tensor_model_parallel_rank(), ps.get_pipeline_model_parallel_rank()
    name = f"mp_rank_{tp_rank:02d}" + (f"_{pp_rank:03d}" if options.pp > 1 else "")
    name += f"_{ps.get_expert_model_parallel_rank():03d}" if options.ep > 1 else ""
    path = options.folder / "megatron" / "iter_0000007" / name / "model_optim_rng.pt"
    for kind in (Format.MEGATRON, Format.TORCH_DIST):
        randomize(model, options, 7, 7)
        if kind is Format.MEGATRON:
            loaded = torch.load(path, weights_only=False)
            assert loaded["args"].tensor_model_parallel_size == options.tp and loaded["iteration"] == 7
        else:
            state = {"model": model.sharded_state_dict(metadata={"dp_cp_group": ps.get_data_parallel_group()})}
            folder = options.folder / "torch_dist" / "iter_0000007"
            loaded = dist_checkpointing.load(state, str(folder), strict="ignore_all")
        missing, unexpected = model.load_state_dict(loaded["model"], strict=False)
        assert not unexpected and all(name.endswith("_extra_state") for name in missing), (missing, unexpected)
        logits = logits_of(model, options.tp * options.ep, options.pp)
        if logits is not None and tp_rank == 0:
            torch.save(logits, options.folder / f"merged-again-{kind.value}.pt")


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, kind in (("tp", int), ("pp", int), ("groups", int), ("folder", Path)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    for name in ("ep", "experts"):
        parser.add_argument(f"--{name}", type=int, default=1 if name == "ep" else 0)
    parser.add_argument("--gated", action="store_true")
    parser.add_argument("--tied", action="store_true")
    options = parser.parse_args()
    (options.folder / "shards").mkdir()
    world = options.tp * options.pp * options.ep
    for num_ranks, work in ((world, save_shard), (1, run_merged), (1, write_again), (world, load_again)):
        codes = run_ranks(num_ranks, functools.partial(work, options), grace_s=10)
        if any(codes):
            raise SystemExit(f"error: {work.__name__} ended with {codes}")


if __name__ == "__main__":
    main()
