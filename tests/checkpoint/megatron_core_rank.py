"""One rank of a small GPT of Megatron Core on CPUs: its weights as a shard, and the logits that all ranks make.

With a merged file it runs the whole model on that instead. Started as a program by test_megatron_core.py.
"""

from __future__ import annotations

import argparse
import zlib
from pathlib import Path
from typing import Any

VOCAB, SEQ, LAYERS = 32, 8, 2


def build(options: argparse.Namespace) -> Any:
    import torch
    from megatron.core import parallel_state as ps
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer import TransformerConfig

    ps.initialize_model_parallel(options.tp, options.pp)
    model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=16,
        num_attention_heads=4,
        num_query_groups=options.groups,
        ffn_hidden_size=24,
        gated_linear_unit=options.gated,
        activation_func=torch.nn.functional.silu if options.gated else torch.nn.functional.gelu,
        add_bias_linear=not options.gated,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        tensor_model_parallel_size=options.tp,
        pipeline_model_parallel_size=options.pp,
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
    import torch

    for name, weight in model.named_parameters():
        is_copy = options.tied and name == "output_layer.weight"
        seed_name = "embedding.word_embeddings.weight 0" if is_copy else f"{name} {pp_rank}"
        rank = tp_rank if getattr(weight, "tensor_model_parallel", False) else -1
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed_name} {rank}".encode()))
        with torch.no_grad():
            weight.copy_(torch.randn(weight.shape, generator=generator))


def logits_of(model: Any, options: argparse.Namespace, pp_rank: int) -> Any:
    """Return the last stage's logits, the same on all tensor ranks; other stages hand theirs on."""
    import torch
    import torch.distributed as dist

    tokens = torch.arange(SEQ).reshape(1, SEQ) * 3 % VOCAB
    positions = torch.arange(SEQ).reshape(1, SEQ)
    mask = torch.ones(1, 1, SEQ, SEQ).triu(1).bool()
    if pp_rank > 0:
        received = torch.empty(SEQ, 1, 16)
        dist.recv(received, dist.get_rank() - options.tp)
        model.set_input_tensor(received)
    with torch.no_grad():
        output = model(tokens, positions, mask)
    if pp_rank < options.pp - 1:
        dist.send(output.contiguous(), dist.get_rank() + options.tp)
        return None
    return output


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, kind in (("rank", int), ("tp", int), ("pp", int), ("groups", int), ("folder", Path)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--gated", action="store_true")
    parser.add_argument("--tied", action="store_true")
    parser.add_argument("--merged", type=Path)
    options = parser.parse_args()

    import torch
    import torch.distributed as dist

    from tests.engines.megatron_core.cuda_on_cpu import pretend_cuda

    pretend_cuda()
    world = options.tp * options.pp
    store = dist.FileStore(str(options.folder / f"store-{world}-{options.merged is None}"), world)
    dist.init_process_group("gloo", store=store, rank=options.rank, world_size=world)
    model = build(options)
    tp_rank, pp_rank = options.rank % options.tp, options.rank // options.tp
    if options.merged is None:
        randomize(model, options, tp_rank, pp_rank)
        torch.save(model.state_dict(), options.folder / "shards" / f"pytorch_model_tp_{tp_rank}_pp_{pp_rank}.bin")
    else:
        weights = torch.load(options.merged, weights_only=True)
        missing, unexpected = model.load_state_dict(weights, strict=False)
        assert not unexpected and all(name.endswith("_extra_state") for name in missing), (missing, unexpected)
    logits = logits_of(model, options, pp_rank)
    if logits is not None and tp_rank == 0:
        torch.save(logits, options.folder / ("merged.pt" if options.merged else "sharded.pt"))


if __name__ == "__main__":
    main()
