"""Misuse of the parts that need torch, in one process; prints each error as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import torch

from tests.mimo.small_models import LANGUAGE, NUM_ITEMS, VISION_LANGUAGE
from zenith_mimo.modules import build_module
from zenith_mimo.planning.config import MimoConfig
from zenith_mimo.planning.work import stage_layers
from zenith_mimo.samples import RandomSamples, collate
from zenith_mimo.tensor_parallel import TensorParallel
from zenith_tune.errors import UsageError


def refusal(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except UsageError as error:
        return str(error)
    return "nothing"


def embed_too_few() -> None:
    language: Any = build_module(VISION_LANGUAGE, "language")
    batch = collate(RandomSamples(config=VISION_LANGUAGE, num_samples=2, seed=0, num_items=NUM_ITEMS).whole())
    language.embed(batch.tokens, {"vision": torch.zeros(3, 32)})


def crowded() -> MimoConfig:
    return dataclasses.replace(VISION_LANGUAGE, language=dataclasses.replace(LANGUAGE, seq_length=8))


def recomputed_error() -> float:
    """Return by how much the gradients differ when activations are recomputed."""
    grads = []
    for recompute in (frozenset(), frozenset({"vision"})):
        encoder = build_module(dataclasses.replace(VISION_LANGUAGE, recompute=recompute), "vision")
        encoder(torch.ones(2, 4, 6)).square().sum().backward()
        grads.append(torch.cat([parameter.grad.reshape(-1) for parameter in encoder.parameters()]))
    assert grads[0].abs().max() > 0
    return float((grads[0] - grads[1]).abs().max())


ATTEMPTS: dict[str, Callable[[], object]] = {
    "heads": lambda: build_module(VISION_LANGUAGE, "vision", TensorParallel(size=3)),
    "stages": lambda: stage_layers(2, 0, 3),
    "rows": embed_too_few,
    "room": lambda: RandomSamples(config=crowded(), num_samples=1, seed=0, num_items=(2,)).whole(),
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {name: refusal(attempt) for name, attempt in ATTEMPTS.items()}
    print(json.dumps({"refusals": found, "recomputed_error": recomputed_error()}))
