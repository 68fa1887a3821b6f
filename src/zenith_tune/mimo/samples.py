"""Samples of text with items in it, and the micro-batches that a lane takes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zenith_tune.mimo.model_config import MimoConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sequence: its tokens, which of them count for the loss, and its items by encoder."""

    tokens: Tensor
    """One more than the model reads: the last is only a label."""
    is_counted: Tensor
    items: Mapping[str, Tensor]
    """(items, patches, numbers in a patch)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What one lane of a module reads at a time."""

    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    items: Mapping[str, Tensor]
    rows_per_sample: Mapping[str, list[int]]

    @property
    def num_counted(self) -> int:
        """The tokens that count for the loss."""
        return int(self.loss_mask.sum())


def collate(samples: Sequence[Sample]) -> MicroBatch:
    """Return the micro-batch of these samples; their items stand one after another."""
    tokens = torch.stack([sample.tokens for sample in samples])
    names = list(samples[0].items)
    return MicroBatch(
        tokens=tokens[:, :-1],
        labels=tokens[:, 1:],
        loss_mask=torch.stack([sample.is_counted for sample in samples]),
        items={name: torch.cat([sample.items[name] for sample in samples]) for name in names},
        rows_per_sample={name: [s.items[name].shape[0] * s.items[name].shape[1] for s in samples] for name in names},
    )


def lane_samples(batch: Sequence[Sample], *, index: int, num_microbatches: int, lane: int, dp: int) -> list[Sample]:
    """Return what lane `lane` of `dp` takes of micro-batch `index`: neighbours stay together whatever dp is."""
    size = len(batch) // num_microbatches
    share = size // dp
    begin = index * size + lane * share
    return list(batch[begin : begin + share])


def random_samples(config: MimoConfig, num_samples: int, *, seed: int, num_items: Sequence[int]) -> list[Sample]:
    """Return samples made from the seed alone; `num_items`, taken round and round, are the items of each."""
    first = seed * num_samples
    return [_random_sample(config, first + i, num_items[i % len(num_items)]) for i in range(num_samples)]


def _random_sample(config: MimoConfig, seed: int, num_items: int) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    length = config.language.seq_length
    special = [encoder.token_id for encoder in config.encoders.values()]
    tokens = torch.randint(max(special, default=-1) + 1, config.language.vocab_size, (length + 1,), generator=generator)
    items, begin = {}, 1
    for name, span in config.item_tokens(num_items).items():
        encoder = config.encoders[name]
        items[name] = torch.randn(num_items, encoder.patches_per_item, encoder.patch_size, generator=generator)
        tokens[span.start : span.stop] = encoder.token_id
        begin = span.stop
    is_counted = torch.zeros(length, dtype=torch.bool)
    # The rest is padding: samples differ in how many of their tokens count.
    is_counted[: int(torch.randint(begin, length + 1, (1,), generator=generator))] = True
    for token_id in special:
        is_counted &= tokens[1:] != token_id
    return Sample(tokens=tokens, is_counted=is_counted, items=items)
