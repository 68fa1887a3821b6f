"""Measures what the MIMO runtime costs: its step against a pipeline written by hand for one layout and fixed shapes.

Both train the same model on the same ranks (an encoder, then the language model's stages), in turns within one run, so
that a slower minute of the machine meets both. The pipeline by hand knows every shape, its only layout and nothing of
tensor or data parallelism, ragged batches, agreement on bad numbers or lost ranks.

    python benchmarks/mimo_overhead.py --llm-pp 1 --hidden 256
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zenith_mimo.local_ranks import run_ranks
from zenith_mimo.modules import MimoModel, build_module
from zenith_mimo.optimizer import OptimizerConfig, get_mimo_optimizer
from zenith_mimo.planning.config import (
    EncoderConfig,
    LanguageConfig,
    MimoConfig,
    MimoLayout,
    ModuleLayout,
    TransformerConfig,
)
from zenith_mimo.samples import MicroBatch, RandomSamples, Sample, collate
from zenith_mimo.tensor_parallel import TensorParallel
from zenith_mimo.topology import Topology
from zenith_mimo.trainer import Trainer

OPTIMIZER = OptimizerConfig(lr=1e-3, clip_grad=1.0)
IMAGES_PER_SAMPLE = 2


def config_of(options: argparse.Namespace) -> MimoConfig:
    """Return a model whose encoder is half as wide as its language model."""
    hidden = options.hidden

    def transformer(width: int, num_layers: int) -> TransformerConfig:
        return TransformerConfig(num_layers=num_layers, hidden_size=width, num_heads=4, ffn_size=4 * width)

    encoder = EncoderConfig(
        transformer=transformer(hidden // 2, options.layers), patch_size=48, patches_per_item=16, token_id=0
    )
    language = LanguageConfig(
        transformer=transformer(hidden, options.layers), vocab_size=1024, seq_length=options.seq_length
    )
    return MimoConfig(encoders={"vision": encoder}, language=language)


@dataclass(frozen=True, slots=True)
class PreparedSamples:
    """A batch that lies ready, as the pipeline by hand has it: making samples is no part of a step."""

    samples: list[Sample]

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, index: int, encoder: str | None) -> Sample:
        """Return a sample with the items of one encoder, or with none."""
        sample = self.samples[index]
        return replace(sample, items={} if encoder is None else {encoder: sample.items[encoder]})


class HandWrittenPipeline:
    """1F1B over an encoder on rank 0 and the language model's stages on the others."""

    def __init__(self, config: MimoConfig, options: argparse.Namespace) -> None:
        self.rank, self.last = dist.get_rank(), dist.get_world_size() - 1
        num_stages = self.last
        name, stage = ("vision", 0) if self.rank == 0 else ("language", self.rank - 1)
        self.module: Any = build_module(
            config, name, TensorParallel(), stage=stage, num_stages=1 if self.rank == 0 else num_stages
        )
        self.parameters = list(self.module.parameters())
        decayed = [p for p in self.parameters if p.dim() > 1]
        plain = [p for p in self.parameters if p.dim() == 1]
        groups = [{"params": decayed, "weight_decay": OPTIMIZER.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=OPTIMIZER.lr, betas=OPTIMIZER.betas, eps=OPTIMIZER.eps)
        self.size, self.num_microbatches = options.micro_batch_size, options.num_microbatches
        width = config.language.transformer.hidden_size
        self.rows = torch.Size([self.size * IMAGES_PER_SAMPLE * config.encoders["vision"].patches_per_item, width])
        self.hidden = torch.Size([self.size, config.language.seq_length, width])
        # Two groups, as any pipeline with sends both ways between the same ranks needs.
        self.forward_group, self.backward_group = dist.new_group(), dist.new_group()

    def step(self, samples: Sequence[Sample]) -> float:
        """Train on one global batch, and return its loss per token."""
        self.optimizer.zero_grad()
        total = torch.zeros(2, dtype=torch.float64)
        in_flight: deque[tuple[Tensor, Tensor]] = deque()
        sent: list[tuple[Any, Tensor]] = []
        num_ahead = min(self.last - self.rank, self.num_microbatches)
        for index in range(self.num_microbatches + num_ahead):
            if index < self.num_microbatches:
                batch = collate(samples[index * self.size : (index + 1) * self.size])
                in_flight.append(self._forward(batch, sent, total))
            if index >= num_ahead:
                self._backward(*in_flight.popleft(), sent)
        for work, _ in sent:
            work.wait()
        dist.all_reduce(total)
        self._update(float(total[1]))
        return float(total[0] / total[1])

    def _forward(self, batch: MicroBatch, sent: list[tuple[Any, Tensor]], total: Tensor) -> tuple[Tensor, Tensor]:
        if self.rank == 0:
            entry = batch.items["vision"]
            output = self.module(entry)
        else:
            entry = torch.empty(self.rows if self.rank == 1 else self.hidden)
            dist.recv(entry, self.rank - 1, group=self.forward_group)
            entry.requires_grad_()
            output = self.module(self.module.embed(batch.tokens, {"vision": entry}) if self.rank == 1 else entry)
        if self.rank == self.last:
            output = self.module.loss(output, batch.labels, batch.loss_mask)
            total += torch.tensor([float(output.detach()), batch.num_counted], dtype=torch.float64)
        else:
            tensor = output.detach()
            sent.append((dist.isend(tensor, self.rank + 1, group=self.forward_group), tensor))
        return entry, output

    def _backward(self, entry: Tensor, output: Tensor, sent: list[tuple[Any, Tensor]]) -> None:
        grad = None
        if self.rank < self.last:
            grad = torch.empty_like(output)
            dist.recv(grad, self.rank + 1, group=self.backward_group)
        torch.autograd.backward(output, grad)
        if self.rank:
            sent.append((dist.isend(entry.grad, self.rank - 1, group=self.backward_group), entry.grad))

    def _update(self, num_tokens: float) -> None:
        grads = [parameter.grad for parameter in self.parameters]
        for grad in grads:
            grad.mul_(1.0 / num_tokens)
        squared = torch.stack([torch.linalg.vector_norm(grad) for grad in grads]).double().square().sum()
        dist.all_reduce(squared)
        factor = OPTIMIZER.clip_grad / (float(squared) ** 0.5 + 1e-6)
        if factor < 1.0:
            for grad in grads:
                grad.mul_(factor)
        self.optimizer.step()


def measure(options: argparse.Namespace, output: Path) -> None:
    """Take turns on this rank; rank 0 writes the times of both."""
    config = config_of(options)
    layout = MimoLayout(modules={"vision": ModuleLayout(), "language": ModuleLayout(pp=options.llm_pp, offset=1)})
    batch_size = options.micro_batch_size * options.num_microbatches
    model = MimoModel.of(config, Topology(layout))
    trainer = Trainer(
        model,
        get_mimo_optimizer(model, OPTIMIZER),
        micro_batch_size=options.micro_batch_size,
        global_batch_size=batch_size,
    )
    by_hand = HandWrittenPipeline(config, options)
    rows: list[dict[str, float]] = []
    for index in range(options.steps + options.warm_up):
        made = RandomSamples(config=config, num_samples=batch_size, seed=index, num_items=(IMAGES_PER_SAMPLE,))
        whole = made.whole()
        batch = PreparedSamples(whole)
        row: dict[str, float] = {}
        # Whoever is first in a turn may find the machine differently: they change places.
        for name in ("runtime", "hand") if index % 2 else ("hand", "runtime"):
            dist.barrier()
            begin = time.perf_counter()
            loss = trainer.step(batch).loss if name == "runtime" else by_hand.step(whole)
            dist.barrier()
            row |= {f"{name}_ms": (time.perf_counter() - begin) * 1e3, f"{name}_loss": loss}
        rows.append(row)
    trainer.close()
    if dist.get_rank() == 0:
        output.write_text(json.dumps(rows[options.warm_up :]))


def main() -> None:
    """Print the figures, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"llm-pp": 1, "hidden": 256, "layers": 4, "seq-length": 128, "micro-batch-size": 2}
    for name, default in {**defaults, "num-microbatches": 8, "steps": 20, "warm-up": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--output", type=Path, help="write the figures and raw rows as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        if any(run_ranks(1 + options.llm_pp, functools.partial(measure, options, path))):
            raise SystemExit("a rank failed")
        rows = json.loads(path.read_text())
    differences = [abs(row["runtime_loss"] - row["hand_loss"]) / row["hand_loss"] for row in rows]
    runtime, hand = (statistics.median(row[f"{name}_ms"] for row in rows) for name in ("runtime", "hand"))
    shape = {name.replace("-", "_"): getattr(options, name.replace("-", "_")) for name in defaults}
    figures: dict[str, object] = {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **shape,
        "num_microbatches": options.num_microbatches,
        "runtime_ms": runtime,
        "hand_ms": hand,
        "overhead_percent": (statistics.median(r["runtime_ms"] / r["hand_ms"] for r in rows) - 1) * 100,
        "largest_loss_difference": max(differences),
    }
    for name, value in figures.items():
        print(f"{name:24} {value}")
    if options.output:
        options.output.write_text(json.dumps({**figures, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
