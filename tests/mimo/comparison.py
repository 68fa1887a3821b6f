"""A rank's training compared with that of one process."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import torch

from tests.mimo.adam_bound import DriftBound
from tests.mimo.reference import OPTIMIZERS, USUAL, samples_of_step
from tests.mimo.small_models import GLOBAL_BATCH_SIZE, LAYOUTS, MODELS
from zenith_mimo.modules import MimoModel
from zenith_mimo.optimizer import get_mimo_optimizer
from zenith_mimo.topology import Topology
from zenith_mimo.trainer import Trainer

Steps = list[dict[str, Any]]


def make_trainer(
    layout_name: str, dtype: torch.dtype, *, seed: int | None = None, timeout_s: float = 500.0, **settings: Any
) -> Trainer:
    """Return a trainer of one of the layouts; `settings` change the optimizer's."""
    model_name, layout, micro_batch_size = LAYOUTS[layout_name]
    config = MODELS[model_name]
    config = config if seed is None else dataclasses.replace(config, seed=seed)
    model = MimoModel.of(config, Topology(layout, timeout=timedelta(seconds=timeout_s)), dtype=dtype)
    optimizer = get_mimo_optimizer(model, dataclasses.replace(OPTIMIZERS.get(dtype, USUAL), **settings))
    return Trainer(model, optimizer, micro_batch_size=micro_batch_size, global_batch_size=GLOBAL_BATCH_SIZE)


def compared_steps(trainer: Trainer, reference: Steps, steps: range) -> dict[str, Any]:
    """Train on, and return the largest relative error of each kind, and what should be alike on all ranks."""
    errors: dict[str, float] = {}
    alike = []
    config = trainer.model.config
    assert config is not None
    bounds = drift_bounds(trainer)
    for step in steps:
        expected = reference[step]
        loss, num_tokens = trainer.accumulate(samples_of_step(config, step))
        loss_scale = trainer.optimizer.get_loss_scale()
        grads = worst_error(trainer, expected["grads"], grads=True, scale=1 / loss_scale)
        success, norm, num_zeros = trainer.optimizer.step()
        assert success and norm is not None
        alike.append([loss, num_tokens, norm, num_zeros])
        found = {
            "loss": relative_error(loss, expected["loss"]),
            "grads": grads,
            "norm": relative_error(norm, expected["norm"]),
            "clipped": worst_error(trainer, expected["clipped"], grads=True),
            "weights": worst_error(trainer, expected["weights"], grads=False),
        }
        if step == 0:
            found["first grads"] = grads
        if bounds is not None:
            found["drift"] = worst_drift(bounds, expected)
        errors |= {kind: max(error, errors.get(kind, 0.0)) for kind, error in found.items()}
        trainer.iteration += 1
    return {"errors": errors, "alike": alike}


def drift_bounds(trainer: Trainer) -> dict[Any, DriftBound] | None:
    """Return what Adam makes of rounding for each parameter; none where it is kept from magnifying it."""
    if trainer.model.dtype != torch.float32 or trainer.optimizer.config.eps != USUAL.eps:
        return None
    return {
        piece.weight: DriftBound(f"{module}/{piece.name}", piece.shard.cut, USUAL)
        for module, optimizer in trainer.optimizer.active.items()
        for piece in optimizer.pieces
    }


def worst_drift(bounds: dict[Any, DriftBound], expected: dict[str, Any]) -> float:
    """Return the largest part of Adam's bound by which this rank's weights differ."""
    return max((bound.excess(w.grad, w.detach(), expected) for w, bound in bounds.items()), default=0.0)


def worst_error(trainer: Trainer, expected: dict[str, torch.Tensor], *, grads: bool, scale: float = 1.0) -> float:
    """Return the largest error of this rank's parameters, frozen ones too, or of the gradients that it updates by."""
    optimizers = trainer.optimizer.active
    errors = [
        relative_error(optimizer.grad_of(piece) * scale, piece.shard.cut(expected[f"{module}/{piece.name}"]))
        for module, optimizer in optimizers.items()
        for piece in optimizer.pieces
        if grads
    ]
    errors += [
        relative_error(parameter.detach(), parameter.shard.cut(expected[f"{module}/{name}"]))
        for module, optimizer in optimizers.items()
        for name, parameter in optimizer.parameters.items()
        if not grads
    ]
    return max(errors, default=0.0)


def relative_error(found: Any, expected: Any) -> float:
    """Return the largest difference as a part of the largest expected value; not a number counts as infinite."""
    a, b = (torch.as_tensor(value, dtype=torch.float64) for value in (found, expected))
    error = float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))
    return error if error == error else float("inf")
