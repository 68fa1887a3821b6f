"""What the optimizer does in the scenarios named, one after another on eight ranks, printed as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.mimo.comparison import Steps, compared_steps, make_trainer
from tests.mimo.forked_world import run_world
from tests.mimo.reference import one_process, samples_of_step
from tests.mimo.small_models import VISION_LANGUAGE
from zenith_mimo.optimizer import MimoOptimizer, OptimizerConfig
from zenith_mimo.trainer import Trainer

FAN_OUT = "fan-out dp1 to dp4"
COLOCATED = "colocated tp2 dp4 to tp4 dp2"
DTYPE = torch.float64


def weights_of(trainer: Trainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def is_unchanged(trainer: Trainer, before: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights_of(trainer), before, strict=True))


def state_numbers(trainer: Trainer) -> dict[str, int]:
    """Return how many numbers the optimizer of each module keeps on this rank."""
    return {
        name: sum(
            tensor.numel() for state in module.optimizer.state.values() for tensor in state.values() if tensor.dim()
        )
        for name, module in trainer.optimizer.active.items()
    }


def sharded(layout: str, reference: Steps) -> dict[str, Any]:
    """Train with and without sharded optimizer state."""
    result: dict[str, Any] = {}
    for is_sharded in (False, True):
        trainer = make_trainer(layout, DTYPE, use_distributed_optimizer=is_sharded, log_num_zeros_in_grad=True)
        compared = compared_steps(trainer, reference, range(3))
        dps = {name: role.layout.dp for name, role in trainer.model.topology.roles.items()}
        result[str(is_sharded)] = {**compared, "state": state_numbers(trainer), "dp": dps}
        trainer.close()
    return result


def planted(module: str, value: float) -> dict[str, Any]:
    """Plant a bad number in one module's gradient on its last rank; then train on."""
    trainer = make_trainer(FAN_OUT, DTYPE)
    trainer.accumulate(samples_of_step(VISION_LANGUAGE, 0))
    before = weights_of(trainer)
    grid = trainer.model.topology.grids[module]
    if dist.get_rank() == grid.rank_offset + grid.size - 1:
        next(iter(trainer.model.parts[module].parameters())).grad.view(-1)[0] = value
    verdict = list(trainer.optimizer.step())
    kept = is_unchanged(trainer, before)
    after = trainer.step(samples_of_step(VISION_LANGUAGE, 1))
    trainer.close()
    return {"verdict": verdict, "kept": kept, "then": after.success}


def refused_update() -> dict[str, Any]:
    """Let the update of one rank fail."""
    trainer = make_trainer(FAN_OUT, DTYPE)
    trainer.accumulate(samples_of_step(VISION_LANGUAGE, 0))
    if dist.get_rank() == 5:
        trainer.optimizer.active["language"].optimizer.step = lambda: False
    success, _, _ = trainer.optimizer.step()
    # As upstream's is made and called.
    alone = MimoOptimizer(trainer.optimizer.module_infos, trainer.optimizer.config)
    refused = alone.step_with_ready_grads()
    if dist.get_rank() == 5:
        trainer.optimizer.active["language"].optimizer.step = lambda: None
    done = alone.step_with_ready_grads()
    trainer.close()
    # Of no modules, it has the verdict of whatever updates.
    bare: Any = MimoOptimizer({}, OptimizerConfig())
    bare.step_with_ready_grads = lambda: dist.get_rank() != 5
    return {"success": success, "ready": [refused, done], "bare": bare.step()[0]}


def state_dicts() -> dict[str, Any]:
    """Take the state dict of a trained optimizer over to a fresh one."""
    trainer = make_trainer(FAN_OUT, DTYPE)
    trainer.step(samples_of_step(VISION_LANGUAGE, 0))
    state = trainer.optimizer.state_dict()
    here = sorted(trainer.optimizer.active)
    lr = trainer.optimizer.param_groups[0]["lr"]
    before = state_numbers(trainer)
    trainer.close()
    fresh = make_trainer(FAN_OUT, DTYPE, lr=0.5)
    fresh.optimizer.load_state_dict({})
    untouched = fresh.optimizer.param_groups[0]["lr"]
    fresh.optimizer.load_state_dict(state)
    result = {
        "keys": sorted(state),
        "filled": sorted(name for name, value in state.items() if value is not None),
        "here": here,
        "active": sorted(name for name, info in fresh.optimizer.module_infos.items() if info.is_active),
        "untouched": untouched,
        "lr": [lr, *[group["lr"] for group in fresh.optimizer.param_groups]],
        "state": [before, state_numbers(fresh)],
    }
    fresh.close()
    return result


def scaled_loss(reference: Steps) -> dict[str, Any]:
    """Train with a loss that is multiplied before backward."""
    trainer = make_trainer(FAN_OUT, DTYPE, loss_scale=1024.0)
    compared = compared_steps(trainer, reference, range(2))
    trainer.close()
    return compared


SCENARIOS: dict[str, Callable[[Steps], dict[str, Any]]] = {
    "sharded, pipelined": lambda reference: sharded(FAN_OUT, reference),
    "sharded, colocated": lambda reference: sharded(COLOCATED, reference),
    "inf in vision": lambda _: planted("vision", float("inf")),
    "nan in language": lambda _: planted("language", float("nan")),
    "refused update": lambda _: refused_update(),
    "state dicts": lambda _: state_dicts(),
    "scaled loss": scaled_loss,
}


def main() -> None:
    reference = one_process(VISION_LANGUAGE, DTYPE)
    ranks = run_world(8, lambda: {name: SCENARIOS[name](reference) for name in sys.argv[1:]}, timeout_s=120)
    # Counted only now: what computes must not be forked from.
    zeros = [sum(int((grad == 0).sum()) for grad in step["clipped"].values()) for step in reference]
    print(json.dumps({"ranks": ranks, "zeros": zeros}))


if __name__ == "__main__":
    main()
