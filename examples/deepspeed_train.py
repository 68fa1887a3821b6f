"""Train a small GPT on random tokens with DeepSpeed, on GPUs or on CPU ranks: a real job that takes seconds.

    deepspeed --num_gpus 2 examples/deepspeed_train.py --steps 20 --deepspeed_config ds.json

All that is tuned stands in the JSON file: ZeRO stage, micro-batch, gradient accumulation, buckets. DeepSpeed itself
prints the throughput, every `steps_per_print` steps.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import deepspeed
import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(hidden), nn.LayerNorm(hidden)])
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden))

    def forward(self, x: Any) -> Any:
        """Attend, then transform."""
        batch, length, hidden = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.mlp(self.norms[1](x))


class SmallGpt(nn.Module):
    """A decoder that returns its loss."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.tokens = nn.Embedding(options.vocab, options.hidden)
        self.positions = nn.Embedding(options.seq, options.hidden)
        self.blocks = nn.Sequential(*(Block(options.hidden, options.heads) for _ in range(options.layers)))
        self.head = nn.Linear(options.hidden, options.vocab)

    def forward(self, tokens: Any) -> Any:
        """Predict each next token."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        logits = self.head(self.blocks(self.tokens(tokens) + self.positions(places)))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def main() -> None:
    """Train for a number of steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("hidden", 64), ("layers", 2), ("heads", 4), ("vocab", 256), ("seq", 64), ("steps", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--local_rank", type=int, default=-1)
    deepspeed.add_config_arguments(parser)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        # Compiled when it is first used, in silence and for minutes; gloo does its work as well.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.manual_seed(1)
    deepspeed.init_distributed()
    model = SmallGpt(options)
    engine, *_ = deepspeed.initialize(args=options, model=model, model_parameters=model.parameters())
    shape = (engine.train_micro_batch_size_per_gpu(), options.seq)
    generator = torch.Generator().manual_seed(int(os.environ.get("RANK", "0")))
    for step in range(1, options.steps + 1):
        for _ in range(engine.gradient_accumulation_steps()):
            loss = engine(torch.randint(options.vocab, shape, generator=generator).to(engine.device))
            engine.backward(loss)
            engine.step()
        if engine.global_rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    deepspeed.comm.barrier()  # a rank that leaves early would break a slower one's last gather
    deepspeed.comm.destroy_process_group()


if __name__ == "__main__":
    main()
