"""Samples of text with items in it, and the micro-batches that a lane takes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from zenith_tune.errors import UsageError
from zenith_tune.planner.mimo.modules import LANGUAGE, MimoConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sequence: its tokens, which of them count for the loss, and its items by encoder."""

    tokens: Tensor
    """One more than the model reads: the last is only a label."""
    is_counted: Tensor
    items: Mapping[str, Tensor]
    """(items, patches, numbers in a patch), where they were asked for"""
    num_rows: Mapping[str, int]
    """Rows that each encoder makes of its items, asked for or not: as many as their tokens in the text."""
    side: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """What the stages of a module need besides, asked for or not: positions or a mask of the text, sizes of the items;
    those of a text become a batch, those of items stand one after another."""


class SampleSource(Protocol):
    """A global batch of which a rank reads what it needs."""

    def __len__(self) -> int:
        """Return the samples of the batch."""

    def read(self, index: int, encoder: str | None) -> Sample:
        """Return a sample with the items of one encoder, or with none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The samples that one lane of a module reads at a time."""

    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    items: Mapping[str, Tensor]
    rows_per_sample: Mapping[str, list[int]]
    side: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)

    @property
    def num_counted(self) -> int:
        """The tokens that count for the loss."""
        return int(self.loss_mask.sum())


def collate(samples: Sequence[Sample]) -> MicroBatch:
    """Return the micro-batch of these samples; their items stand one after another."""
    tokens = torch.stack([sample.tokens for sample in samples])
    return MicroBatch(
        tokens=tokens[:, :-1],
        labels=tokens[:, 1:],
        loss_mask=torch.stack([sample.is_counted for sample in samples]),
        items={name: torch.cat([sample.items[name] for sample in samples]) for name in samples[0].items},
        rows_per_sample={name: [sample.num_rows[name] for sample in samples] for name in samples[0].num_rows},
        side={
            module: {
                name: (torch.stack if module == LANGUAGE else torch.cat)([s.side[module][name] for s in samples])
                for name in inputs
            }
            for module, inputs in samples[0].side.items()
        },
    )


def check_tokens(batch: MicroBatch, vocab_size: int) -> None:
    """Raise UsageError for tokens that the language model does not know."""
    for tokens in (batch.tokens, batch.labels):
        least, most = (int(token) for token in tokens.aminmax())
        if least < 0 or most >= vocab_size:
            raise UsageError(
                f"token ids must be 0 to {vocab_size - 1}, but the samples have {least if least < 0 else most}",
                hint="use the model's own tokenizer, or enlarge its vocabulary.",
            )


def lane_samples(
    source: SampleSource,
    encoder: str | None,
    *,
    index: int,
    num_microbatches: int,
    global_batch_size: int,
    lane: int,
    dp: int,
) -> list[Sample]:
    """Return what lane `lane` of `dp` takes of micro-batch `index`: neighbours stay together whatever dp is."""
    if len(source) != global_batch_size:
        raise UsageError(
            f"a step takes the {global_batch_size} samples of the global batch, but got {len(source)}",
            hint="drop the last batch if it is smaller, or change global_batch_size.",
        )
    size = global_batch_size // num_microbatches
    share = size // dp
    begin = index * size + lane * share
    return [source.read(position, encoder) for position in range(begin, begin + share)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomSamples:
    """Samples made from the seed alone, each when it is read; `num_items`, round and round, are the items of each."""

    config: MimoConfig
    num_samples: int
    seed: int
    num_items: Sequence[int]
    begin: int = 0
    """Samples of this seed that are passed over."""

    def __len__(self) -> int:
        return self.num_samples

    def read(self, index: int, encoder: str | None) -> Sample:
        """Return a sample with the items of one encoder, or with none."""
        return self._make(index, [] if encoder is None else [encoder])

    def whole(self) -> list[Sample]:
        """Return all samples with the items of all encoders."""
        return [self._make(index, list(self.config.encoders)) for index in range(self.num_samples)]

    def _make(self, index: int, encoders: list[str]) -> Sample:
        config, seed = self.config, self.seed * self.num_samples + self.begin + index
        num_items = self.num_items[index % len(self.num_items)]
        generator = torch.Generator().manual_seed(seed)
        length = config.language.seq_length
        special = [encoder.token_id for encoder in config.encoders.values()]
        least = max(special, default=-1) + 1
        tokens = torch.randint(least, config.language.vocab_size, (length + 1,), generator=generator)
        items, num_rows, begin = {}, {}, 1
        for name, span in config.item_tokens(num_items).items():
            tokens[span.start : span.stop] = config.encoders[name].token_id
            begin, num_rows[name] = span.stop, len(span)
            if name in encoders:
                encoder = config.encoders[name]
                own = torch.Generator().manual_seed(seed * 1000 + encoder.token_id)
                items[name] = torch.randn(num_items, encoder.patches_per_item, encoder.patch_size, generator=own)
        is_counted = torch.zeros(length, dtype=torch.bool)
        # The rest is padding: samples differ in how many of their tokens count.
        is_counted[: int(torch.randint(begin, length + 1, (1,), generator=generator))] = True
        for token_id in special:
            is_counted &= tokens[1:] != token_id
        return Sample(tokens=tokens, is_counted=is_counted, items=items, num_rows=num_rows)
