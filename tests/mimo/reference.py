"""The same training in one process, with nothing but torch around the whole modules."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.mimo.small_models import GLOBAL_BATCH_SIZE, NUM_ITEMS
from zenith_mimo.local_ranks import run_ranks
from zenith_mimo.modules import build_module
from zenith_mimo.optimizer import OptimizerConfig
from zenith_mimo.planning.config import MimoConfig
from zenith_mimo.samples import RandomSamples, collate
from zenith_mimo.tensor_parallel import TensorParallel

# Adam divides a gradient by its own size, so that rounding errors become whole steps where gradients are near 0. In
# single precision a large eps keeps them out of the comparison; in double precision the usual one is compared, and in
# single precision too, within what Adam's formula makes of rounding.
OPTIMIZERS = {
    torch.float32: OptimizerConfig(lr=1e-2, clip_grad=0.5, eps=1e-2),
    torch.float64: OptimizerConfig(lr=1e-2, clip_grad=0.5, eps=1e-8),
}
USUAL = OPTIMIZERS[torch.float64]
NUM_STEPS = 5


def samples_of_step(config: MimoConfig, step: int) -> RandomSamples:
    return RandomSamples(config=config, num_samples=GLOBAL_BATCH_SIZE, seed=step, num_items=NUM_ITEMS)


def one_process(
    config: MimoConfig,
    dtype: torch.dtype,
    num_steps: int = NUM_STEPS,
    optimizer: OptimizerConfig | None = None,
    samples: Callable[[int], RandomSamples] | None = None,
) -> list[dict[str, Any]]:
    """Return what training in one process gives, from a process of its own: one that computes must not be forked."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps.pt"
        chosen, read = optimizer or OPTIMIZERS[dtype], samples or functools.partial(samples_of_step, config)
        codes = run_ranks(1, lambda: torch.save(train_in_one_process(config, dtype, num_steps, chosen, read), path))
        assert codes == [0]
        steps: list[dict[str, Any]] = torch.load(path)
    return steps


def train_in_one_process(
    config: MimoConfig,
    dtype: torch.dtype,
    num_steps: int,
    config_of_optimizer: OptimizerConfig,
    samples: Callable[[int], RandomSamples],
) -> list[dict[str, Any]]:
    """Return each step's loss, norm, gradients before and after clipping, weights and Adam's moments."""
    tp = TensorParallel(dtype=dtype)
    modules = nn.ModuleDict({name: build_module(config, name, tp) for name in [*sorted(config.encoders), "language"]})
    everything = {name.replace(".", "/", 1): parameter for name, parameter in modules.named_parameters()}
    named = {name: parameter for name, parameter in everything.items() if parameter.requires_grad}
    groups = [
        {"params": [p for p in named.values() if p.dim() > 1], "weight_decay": config_of_optimizer.weight_decay},
        {"params": [p for p in named.values() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=config_of_optimizer.lr, betas=config_of_optimizer.betas, eps=config_of_optimizer.eps
    )
    steps = []
    for step in range(num_steps):
        batch = collate(samples(step).whole())
        optimizer.zero_grad()
        rows = {name: modules[name](batch.items[name].to(dtype)) for name in config.encoders}
        language = modules["language"]
        hidden = language(language.embed(batch.tokens, rows))
        loss = language.loss(hidden, batch.labels, batch.loss_mask) / batch.num_counted
        loss.backward()
        record = {"loss": float(loss.detach()), "grads": {name: p.grad.clone() for name, p in named.items()}}
        record["norm"] = float(nn.utils.clip_grad_norm_(list(named.values()), config_of_optimizer.clip_grad))
        record["clipped"] = {name: p.grad.clone() for name, p in named.items()}
        optimizer.step()
        record["weights"] = {name: p.detach().clone() for name, p in everything.items()}
        for moment in ("exp_avg", "exp_avg_sq"):
            record[moment] = {name: optimizer.state[p][moment].clone() for name, p in named.items()}
        steps.append(record)
    return steps
