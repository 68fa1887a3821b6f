"""How four ranks train in bfloat16, what each reads of a batch, and when gradients are sent; printed as JSON."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.mimo.comparison import make_trainer, relative_error
from tests.mimo.forked_world import run_world
from tests.mimo.reference import samples_of_step
from tests.mimo.small_models import VISION_LANGUAGE
from zenith_mimo.checkpoint import load_checkpoint, save_checkpoint
from zenith_mimo.samples import RandomSamples, Sample
from zenith_mimo.trainer import Trainer

LAYOUT = "colocated tp2 dp2 both"
SMALL: dict[str, Any] = {"lr": 1e-5, "eps": 1e-8, "weight_decay": 0.0, "clip_grad": 0.0}
"""A step is smaller than the distance between two bfloat16 numbers of the size of these weights."""
NUM_STEPS = 4


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {
        f"{module}/{piece.name}/{piece.shard.offsets}": piece.weight.detach().clone()
        for module, optimizer in trainer.optimizer.active.items()
        for piece in optimizer.pieces
    }


def low_precision(is_sharded: bool, folder: Path) -> dict[str, Any]:
    """Train with small steps, save, and load what was saved in single precision."""
    trainer = make_trainer(LAYOUT, torch.bfloat16, use_distributed_optimizer=is_sharded, **SMALL)
    before, losses = weights(trainer), []
    for step in range(NUM_STEPS):
        losses.append(trainer.step(samples_of_step(VISION_LANGUAGE, step)).loss)
    after = weights(trainer)
    pieces = [piece for optimizer in trainer.optimizer.active.values() for piece in optimizer.pieces]
    states = [s for optimizer in trainer.optimizer.active.values() for s in optimizer.optimizer.state.values()]
    result = {
        "losses": losses,
        "model": sorted({str(p.dtype) for p in trainer.model.parameters()}),
        "kept": sorted({str(t.dtype) for s in states for t in s.values()} | {str(p.weight.dtype) for p in pieces}),
        "moved": [float((after[name] - before[name]).abs().mean()) for name in before],
        "rounded": all(torch.equal(p.rows.detach(), p.weight.detach().bfloat16()) for p in pieces),
        "alike": replicas_agree(trainer),
    }
    save_checkpoint(folder, trainer)
    trainer.close()
    full = make_trainer(LAYOUT, torch.float32, seed=3, use_distributed_optimizer=is_sharded, **SMALL)
    load_checkpoint(folder, full)
    result["loaded"] = max(relative_error(found, after[name]) for name, found in weights(full).items())
    full.close()
    return result


def restored(is_sharded: bool) -> dict[str, Any]:
    """Restore weights and optimizer, or weights alone, over another initialisation, and train on."""

    def trainer_of(seed: int) -> Trainer:
        return make_trainer(LAYOUT, torch.bfloat16, seed=seed, use_distributed_optimizer=is_sharded, **SMALL)

    def train_on(trainer: Trainer) -> dict[str, torch.Tensor]:
        trainer.step(samples_of_step(VISION_LANGUAGE, 1))
        found = weights(trainer)
        trainer.close()
        return found

    trainer = trainer_of(7)
    trainer.step(samples_of_step(VISION_LANGUAGE, 0))
    state, model = copy.deepcopy(trainer.optimizer.state_dict()), copy.deepcopy(trainer.model.state_dict())
    expected = train_on(trainer)
    found = {}
    for first in ("weights", "optimizer", "weights alone"):
        fresh = trainer_of(99)
        if first == "optimizer":
            fresh.optimizer.load_state_dict(copy.deepcopy(state))
        fresh.model.load_state_dict(model)
        if first == "weights":
            fresh.optimizer.load_state_dict(copy.deepcopy(state))
        after = train_on(fresh)
        found[first] = max(float((after[name] - expected[name]).abs().max()) for name in expected)
    return found


def replicas_agree(trainer: Trainer) -> bool:
    """Return whether all replicas of each module hold the same weights, also those that another rank updates."""
    for module, role in trainer.model.topology.roles.items():
        mine = torch.cat([p.detach().float().reshape(-1) for p in trainer.model.parts[module].parameters()])
        others = [torch.empty_like(mine) for _ in range(role.layout.dp)]
        dist.all_gather(others, mine, group=role.groups.dp)
        if not all(torch.equal(mine, other) for other in others):
            return False
    return True


@dataclass
class WatchedSamples:
    """Note what is read of a batch."""

    batch: RandomSamples
    seen: list[tuple[int, str | None]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.batch)

    def read(self, index: int, encoder: str | None) -> Sample:
        self.seen.append((index, encoder))
        return self.batch.read(index, encoder)


def reads() -> dict[str, Any]:
    """Note which samples this rank reads, and with which encoder's items."""
    trainer = make_trainer(LAYOUT, torch.float64)
    watched = WatchedSamples(samples_of_step(VISION_LANGUAGE, 0))
    trainer.step(watched)
    trainer.close()
    return {"seen": sorted(watched.seen, key=str), "tp_rank": trainer.model.topology.roles["language"].tp_rank}


def overlap() -> dict[str, Any]:
    """Count the buckets that were on their way before backward ended, and compare with one bucket for all."""
    results = []
    for bucket_numbers in (1000, 10**9):
        trainer = make_trainer(LAYOUT, torch.float64, bucket_numbers=bucket_numbers)
        norm = trainer.step(samples_of_step(VISION_LANGUAGE, 0)).grad_norm
        gradients = trainer.optimizer.active["language"].gradients
        results.append({"norm": norm, "buckets": len(gradients.buckets), "overlapped": gradients.num_overlapped})
        trainer.close()
    return {"found": results}


def work(root: Path) -> dict[str, Any]:
    return {
        "bf16": [low_precision(is_sharded, root / str(is_sharded)) for is_sharded in (False, True)],
        "restored": [restored(is_sharded) for is_sharded in (False, True)],
        "reads": reads(),
        "overlap": overlap(),
    }


if __name__ == "__main__":
    print(json.dumps(run_world(4, lambda: work(Path(sys.argv[1])))))
