"""Train a small transformer on random tokens with Accelerate, on GPUs or on CPU ranks: a real job that takes seconds.

    accelerate launch --config_file accelerate.yaml examples/accelerate_train.py --steps 20 --batch_size 4

The backend, ZeRO stage or sharding stand in the configuration file; the batch of the dataloader is an option. It prints
what it ran as.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def small_transformer(options: argparse.Namespace) -> Any:
    """Return a model that names the token at each place."""
    layer = nn.TransformerEncoderLayer(options.hidden, 4, 4 * options.hidden, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Embedding(options.vocab, options.hidden),
        nn.TransformerEncoder(layer, options.layers, enable_nested_tensor=False),
        nn.Linear(options.hidden, options.vocab),
    )


def main() -> None:
    """Train for a number of steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("hidden", 64), ("layers", 2), ("vocab", 256), ("seq", 64), ("steps", 10), ("batch_size", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    handlers = []
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true" and not torch.cuda.is_available():
        import deepspeed

        # Compiled when it is first used, in silence and for minutes; gloo does its work as well.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        # Without it Accelerate takes each CPU rank for a job of its own.
        handlers.append(InitProcessGroupKwargs(backend="gloo"))
    accelerator = Accelerator(kwargs_handlers=handlers)
    torch.manual_seed(1)
    model = small_transformer(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    num_batches = options.steps * accelerator.gradient_accumulation_steps * accelerator.num_processes
    tokens = torch.randint(options.vocab, (num_batches * options.batch_size, options.seq))
    loader = DataLoader(TensorDataset(tokens), batch_size=options.batch_size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.print(
        f"{accelerator.distributed_type.value}: {type(model).__name__} on {accelerator.num_processes} processes, "
        f"{accelerator.gradient_accumulation_steps} micro-batches of {options.batch_size}"
    )
    num_steps = 0
    for (batch,) in loader:
        with accelerator.accumulate(model):
            loss = functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            num_steps += 1
            accelerator.print(f"step {num_steps} loss {loss.item():.4f}", flush=True)
    # Before the process group that they use: torch may hang where it is the last to go.
    model, optimizer, loader = accelerator.free_memory(model, optimizer, loader)
    accelerator.end_training()


if __name__ == "__main__":
    main()
