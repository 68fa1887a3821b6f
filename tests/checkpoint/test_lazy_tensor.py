from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.checkpoint.shard_files import need_torch
from zenith_checkpoint import lazy_tensor
from zenith_checkpoint.lazy_tensor import LazyTensor, as_bytes

OPERATIONS = ("part", "select", "transposed", "cat", "stack", "interleaved", "flattened", "reshaped")


def changed(lazy: LazyTensor, tensor: Any, random: Random) -> tuple[LazyTensor, Any]:
    """Return both after the same operation, drawn at random among those that fit the shape."""
    torch, operation = need_torch(), random.choice(OPERATIONS)
    axis = random.randrange(len(lazy.shape))
    if operation == "part":
        start = random.randrange(lazy.shape[axis])
        stop, step = random.randint(start + 1, lazy.shape[axis]), random.choice([1, 1, 2, 3])
        return lazy.part(axis, start, stop, step), tensor[(slice(None),) * axis + (slice(start, stop, step),)]
    if operation == "select" and len(lazy.shape) > 1:
        return lazy.select(lazy.shape[0] - 1), tensor[-1]
    if operation == "transposed":
        return lazy.transposed(), tensor.permute(*range(tensor.ndim)[::-1])
    if operation == "cat":
        return LazyTensor.cat([lazy] * 3, axis), torch.cat([tensor] * 3, axis)
    if operation == "stack" and len(lazy.shape) < 4:
        return LazyTensor.stack([lazy] * 2), torch.stack([tensor] * 2)
    if operation == "interleaved":
        return LazyTensor.interleaved([lazy] * 2), tensor.repeat_interleave(2, 0)
    if operation == "flattened":
        return lazy.flattened(), tensor.reshape(-1)
    return lazy.flattened().reshaped(lazy.shape), tensor


@pytest.mark.parametrize("seed", range(60))
def test_what_is_cut_and_joined_lazily_is_what_torch_cuts_and_joins(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch, random = need_torch(), Random(seed)
    monkeypatch.setattr(lazy_tensor, "BLOCK_BYTES", random.choice([1, 7, 64, 10_000]))
    tensor = torch.arange(120).reshape(random.choice([(4, 5, 6), (120,), (10, 12), (3, 40, 1)]))
    lazy = LazyTensor.of(tensor)
    for _ in range(random.randint(1, 5)):
        lazy, tensor = changed(lazy, tensor, random)
    assert lazy.shape == tuple(tensor.shape) and lazy.num_bytes == tensor.numel() * 8
    assert torch.equal(lazy.read(), tensor)
    assert torch.equal(torch.cat(list(lazy.blocks())), as_bytes(tensor))
    starts = [random.randrange(size) for size in lazy.shape]
    box = tuple(slice(at, random.randint(at + 1, size)) for at, size in zip(starts, lazy.shape, strict=True))
    assert torch.equal(lazy.read_box(box), tensor[box])
    assert lazy.equals(LazyTensor.of(tensor)) and not lazy.equals(LazyTensor.of(tensor + 1))


def test_zeros_fill_what_lies_between() -> None:
    torch = need_torch()
    parts = [LazyTensor.of(torch.ones(2)), LazyTensor.zeros((3,), torch.float32), LazyTensor.zeros((0,), torch.float32)]
    assert LazyTensor.cat(parts).read().tolist() == [1, 1, 0, 0, 0]


def test_what_is_constant_is_known_by_its_elements() -> None:
    torch = need_torch()
    assert LazyTensor.of(torch.full((3, 4), 2.5)).is_constant()
    assert not LazyTensor.of(torch.tensor([[2.5, 2.5], [2.5, 1.5]])).is_constant()
