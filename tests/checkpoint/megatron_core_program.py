"""A small GPT of Megatron Core on CPUs: the weights of its ranks as shards, and the logits that all of them make.

Then the shards are merged, straight and by way of another layout, and one process runs each of the two files. All ranks
are forked from this process, for Megatron takes seconds to import.
"""

from __future__ import annotations

import argparse
import functools
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.engines.megatron_core.cuda_on_cpu import pretend_cuda
from zenith_tune.checkpoint.convert import Target, merge, reshard
from zenith_tune.checkpoint.model_shape import ModelShape
from zenith_tune.mimo.local_ranks import run_ranks

pretend_cuda()

from megatron.core import parallel_state as ps  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402

VOCAB, SEQ, LAYERS, HEADS = 32, 8, 2, 4


def build(options: argparse.Namespace, tp: int, pp: int) -> Any:
    ps.initialize_model_parallel(tp, pp)
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
    )
    return GPTModel(
        config,
        get_gpt_layer_local_spec(),
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
        rank = tp_rank if getattr(weight, "tensor_model_parallel", False) else -1
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed_name} {rank}".encode()))
        with torch.no_grad():
            weight.copy_(torch.randn(weight.shape, generator=generator))


def logits_of(model: Any, tp: int, pp: int) -> Any:
    """Return the last stage's logits, the same on all tensor ranks; other stages hand theirs on."""
    pp_rank = ps.get_pipeline_model_parallel_rank()
    tokens = torch.arange(SEQ).reshape(1, SEQ) * 3 % VOCAB
    positions = torch.arange(SEQ).reshape(1, SEQ)
    mask = torch.ones(1, 1, SEQ, SEQ).triu(1).bool()
    if pp_rank > 0:
        received = torch.empty(SEQ, 1, 16)
        dist.recv(received, dist.get_rank() - tp)
        model.set_input_tensor(received)
    with torch.no_grad():
        output = model(tokens, positions, mask)
    if pp_rank < pp - 1:
        dist.send(output.contiguous(), dist.get_rank() + tp)
        return None
    return output


def save_shard(options: argparse.Namespace) -> None:
    """Save this rank's weights, and the logits of all ranks."""
    model = build(options, options.tp, options.pp)
    tp_rank, pp_rank = ps.get_tensor_model_parallel_rank(), ps.get_pipeline_model_parallel_rank()
    randomize(model, options, tp_rank, pp_rank)
    torch.save(model.state_dict(), options.folder / "shards" / f"pytorch_model_tp_{tp_rank}_pp_{pp_rank}.bin")
    logits = logits_of(model, options.tp, options.pp)
    if logits is not None and tp_rank == 0:
        torch.save(logits, options.folder / "sharded.pt")


def run_merged(options: argparse.Namespace) -> None:
    """Merge both ways, run each model, and save its logits."""
    shape = ModelShape(heads=HEADS, kv_heads=options.groups, vocab=VOCAB)
    # Through another layout on the way, so that cutting is held against Megatron too.
    reshard(options.folder / "shards", options.folder / "again", Target(tp=4, pp=2, vocab_divisor=8), shape)
    model = build(options, 1, 1)
    for source in ("shards", "again"):
        randomize(model, options, 7, 7)
        merged = options.folder / f"{source}.bin"
        merge(options.folder / source, merged, shape)
        missing, unexpected = model.load_state_dict(torch.load(merged, weights_only=True), strict=False)
        assert not unexpected and all(name.endswith("_extra_state") for name in missing), (missing, unexpected)
        torch.save(logits_of(model, 1, 1), options.folder / f"merged-{source}.pt")


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, kind in (("tp", int), ("pp", int), ("groups", int), ("folder", Path)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--gated", action="store_true")
    parser.add_argument("--tied", action="store_true")
    options = parser.parse_args()
    (options.folder / "shards").mkdir()
    for num_ranks, work in ((options.tp * options.pp, save_shard), (1, run_merged)):
        codes = run_ranks(num_ranks, functools.partial(work, options), grace_s=10)
        if any(codes):
            raise SystemExit(f"error: {work.__name__} ended with {codes}")


if __name__ == "__main__":
    main()
