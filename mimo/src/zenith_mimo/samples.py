"""Samples of text with items in it, and the micro-batches that a lane takes of them."""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from zenith_mimo.planning.config import LANGUAGE, MimoConfig
from zenith_mimo.topology import ModuleRole
from zenith_tune.errors import UsageError


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


def lane_positions(*, index: int, num_microbatches: int, global_batch_size: int, lane: int, dp: int) -> range:
    """Return the places in the batch that lane `lane` of `dp` takes of micro-batch `index`: neighbours stay together.

    >>> [lane_positions(index=1, num_microbatches=2, global_batch_size=8, lane=lane, dp=2) for lane in range(2)]
    [range(4, 6), range(6, 8)]
    """
    size = global_batch_size // num_microbatches
    share = size // dp
    begin = index * size + lane * share
    return range(begin, begin + share)


def check_size(source: SampleSource, size: int) -> None:
    """Raise UsageError for a batch of another size than the one that is trained."""
    if len(source) != size:
        raise UsageError(
            f"a step takes the {size} samples of the global batch, but got {len(source)}",
            hint="drop the last batch if it is smaller, or change global_batch_size.",
        )


def balanced_order(num_items: Sequence[int], num_parts: int) -> list[int]:
    """Return an order of samples whose equal parts have about as many items: the largest first into the emptiest part.

    >>> balanced_order([5, 4, 0, 1], 2)
    [0, 2, 1, 3]
    """
    room = len(num_items) // num_parts
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    open_parts = [(0, part) for part in range(num_parts)]
    for sample in sorted(range(len(num_items)), key=lambda sample: (-num_items[sample], sample)):
        load, part = heapq.heappop(open_parts)
        parts[part].append(sample)
        if len(parts[part]) < room:
            heapq.heappush(open_parts, (load + num_items[sample], part))
    return [sample for part in parts for sample in part]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderBatch:
    """A global batch of a DataLoader: its dataset, and the places of the samples in it."""

    dataset: Any
    indices: Sequence[int]
    num_workers: int = 0
    """Threads that read samples at the same time."""

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int, encoder: str | None) -> Sample:
        """Return a sample; one that is read whole loses the items that were not asked for."""
        if hasattr(self.dataset, "read"):
            found: Sample = self.dataset.read(self.indices[index], encoder)
            return found
        sample: Sample = self.dataset[self.indices[index]]
        return replace(sample, items={name: items for name, items in sample.items.items() if name == encoder})

    def count_items(self, index: int) -> int:
        """Return the items of a sample, as the dataset's `count_items` says."""
        return int(self.dataset.count_items(self.indices[index]))


def loader_batches(loader: DataLoader[Any], *, consumed_samples: int = 0) -> Iterator[LoaderBatch]:
    """Yield a DataLoader's batches from there on; every rank calls it, and the first one's order counts.

    `batch_size` is the global batch. The dataset gives a `Sample` for each index, whole or by `read(index, encoder)`.
    Only what a rank needs is read, by `num_workers` threads; `collate_fn` is not used.
    """
    if loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
        problem = "samples must come from a DataLoader with a batch size over a dataset that has a length"
        raise UsageError(problem, hint="give a Dataset instead of an IterableDataset.")
    batches = iter(loader.batch_sampler)
    num_passed = consumed_samples // (loader.batch_size or 1) % max(len(loader), 1)
    for number in itertools.count():
        found: list[Any] = [next(batches, None) if dist.get_rank() == 0 else None]
        if number < num_passed:
            continue
        dist.broadcast_object_list(found, src=0)
        if found[0] is None:
            return
        yield LoaderBatch(dataset=loader.dataset, indices=found[0], num_workers=loader.num_workers)


class BatchReader:
    """The micro-batches of one batch for a rank: read in another thread, by one rank of each replica for all of it.

    Items go to the first stage alone, which embeds them.
    """

    def __init__(
        self,
        source: SampleSource,
        roles: Mapping[str, ModuleRole],
        *,
        num_microbatches: int,
        size: int,
        vocab_size: int | None,
        num_parts: int | None = None,
    ) -> None:
        """Balance the items over `num_parts` parts of the batch, where given."""
        check_size(source, size)
        self._source, self._roles, self._vocab_size = source, roles, vocab_size
        self._num_microbatches, self._size, self._num_parts = num_microbatches, size, num_parts
        self._order: Sequence[int] = range(size)
        self._read: queue.SimpleQueue[tuple[str, int, MicroBatch | Exception]] = queue.SimpleQueue()
        self._waiting: dict[tuple[str, int], MicroBatch | Exception] = {}
        self._thread: threading.Thread | None = None

    def start(self, after: BatchReader | None) -> BatchReader:
        """Begin to read, after another batch's reading has ended."""
        before = None if after is None else after._thread
        self._thread = threading.Thread(target=self._read_all, args=[before], daemon=True)
        self._thread.start()
        return self

    def __call__(self, name: str, index: int) -> MicroBatch:
        """Return a module's micro-batch of that number as soon as it is there."""
        while (name, index) not in self._waiting:
            found_name, found_index, found = self._read.get()
            self._waiting[found_name, found_index] = found
        batch = self._waiting.pop((name, index))
        if isinstance(batch, Exception):
            raise batch
        return batch

    def _read_all(self, after: threading.Thread | None) -> None:
        if after is not None:
            after.join()
        with ThreadPoolExecutor(max(getattr(self._source, "num_workers", 0), 1)) as pool:
            try:
                if self._num_parts is not None:
                    self._order = self._balanced(self._num_parts)
                for index in range(self._num_microbatches):
                    for name, role in self._roles.items():
                        self._read.put((name, index, self._shared(name, role, index, pool)))
            except Exception as error:
                for index in range(self._num_microbatches):
                    for name in self._roles:
                        self._read.put((name, index, error))

    def _balanced(self, num_parts: int) -> list[int]:
        counted: Any = self._source
        try:
            return balanced_order([counted.count_items(index) for index in range(self._size)], num_parts)
        except AttributeError as error:
            problem = f"samples are balanced by how many items each has, which the source does not say ({error})"
            raise UsageError(
                problem, hint="give it the method count_items(index), or leave balance_items out."
            ) from None

    def _shared(self, name: str, role: ModuleRole, index: int, pool: ThreadPoolExecutor) -> MicroBatch | Exception:
        """Read a micro-batch on the first rank of a replica, and hand it to the others."""
        own: MicroBatch | Exception | None = None
        if role.is_first_stage and role.tp_rank == 0:
            try:
                own = self._collated(name, role, index, pool)
            except Exception as error:
                own = error
        source, groups = role.rank_at(tp=0, pp=0), role.groups
        found: list[Any] = [own]
        if groups.data is not None:
            # Exceptions of other packages may not survive the way.
            is_known = own is None or isinstance(own, (MicroBatch, UsageError))
            found = [replace(own, items={}) if isinstance(own, MicroBatch) else own if is_known else RuntimeError(own)]
            dist.broadcast_object_list(found, src=source, group=groups.data)
        if groups.items is not None and name != LANGUAGE and isinstance(found[0], MicroBatch):
            items: list[Any] = [own.items if isinstance(own, MicroBatch) else None]
            dist.broadcast_object_list(items, src=source, group=groups.items)
            found = [replace(found[0], items=items[0])]
        batch: MicroBatch | Exception = found[0] if own is None else own
        return batch

    def _collated(self, name: str, role: ModuleRole, index: int, pool: ThreadPoolExecutor) -> MicroBatch:
        sizes = {"num_microbatches": self._num_microbatches, "global_batch_size": self._size}
        positions = lane_positions(index=index, lane=role.dp_rank, dp=role.layout.dp, **sizes)
        encoder = None if name == LANGUAGE else name
        samples = list(pool.map(lambda at: self._source.read(self._order[at], encoder), positions))
        batch = collate(samples)
        if name == LANGUAGE and self._vocab_size is not None:
            check_tokens(batch, self._vocab_size)
        return batch


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

    def count_items(self, index: int) -> int:
        """Return the items of a sample for each encoder."""
        return self.num_items[index % len(self.num_items)]

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
