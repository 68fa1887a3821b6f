"""One training step of a multimodal model, whatever its layout: its order of forward and backward, and its result."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from zenith_mimo.bridge import HIDDEN, ColocatedBridge, StageLinks, check_rows
from zenith_mimo.modules import LanguageStage, MimoModel, call
from zenith_mimo.optimizer import MimoOptimizer
from zenith_mimo.planning.config import LANGUAGE
from zenith_mimo.samples import BatchReader, MicroBatch, SampleSource
from zenith_mimo.topology import peers_expected

ReadMicroBatch = Callable[[str, int], MicroBatch]
"""Gives the micro-batch of that number that this rank's lane of that module reads."""


@dataclass(slots=True)
class LossSum:
    """The loss of this rank's tokens and how many they are; both 0 where another rank reports them."""

    loss: Tensor | float = 0.0
    """A number on the device, read only at the end of the step."""
    num_tokens: int = 0


class PipelineSchedule:
    """1F1B: a stage begins with as many forwards as stages follow it, then takes turns, then drains."""

    def __init__(self, model: MimoModel) -> None:
        (self._role,) = model.topology.roles.values()
        self._module = model.parts[self._role.name]
        self._links = StageLinks(model, self._role)
        self._device, self._dtype = model.device, model.dtype
        self._num_ahead = model.topology.layout.stages_after(self._role.name, self._role.pp_rank)
        self._in_flight: deque[tuple[dict[str, Tensor], Tensor]] = deque()

    def run(
        self, read: ReadMicroBatch, num_microbatches: int, *, loss_scale: float, before_last: Callable[[], None]
    ) -> LossSum:
        """Run all micro-batches of a step forward and backward, adding up the gradients."""
        total = LossSum()
        num_ahead = min(self._num_ahead, num_microbatches)
        for index in range(num_microbatches + num_ahead):
            if index < num_microbatches:
                self._run_forward(read(self._role.name, index), total, loss_scale)
            if index >= num_ahead:
                if index == num_microbatches + num_ahead - 1:
                    before_last()
                self._run_backward()
        self._links.flush()
        return total

    def evaluate(self, read: ReadMicroBatch, num_microbatches: int) -> LossSum:
        """Run all micro-batches forward."""
        total = LossSum()
        for index in range(num_microbatches):
            batch = read(self._role.name, index)
            output = self._forward(batch, self._links.receive_forward(batch))
            if self._role.name == LANGUAGE and self._role.is_last_stage:
                _loss(self._module, output, batch, total, self._role.tp_rank == 0)
            self._links.send_forward(output, batch)
        self._links.flush()
        self._links.forget()
        return total

    def close(self) -> None:
        """Have nothing of its own to give back."""

    def _run_forward(self, batch: MicroBatch, total: LossSum, loss_scale: float) -> None:
        name = self._role.name
        inputs = self._links.receive_forward(batch)
        output = self._forward(batch, inputs)
        if name == LANGUAGE and self._role.is_last_stage:
            output = _loss(self._module, output, batch, total, self._role.tp_rank == 0) * loss_scale
        # The last stage of the language model sends to no other.
        self._links.send_forward(output, batch)
        self._in_flight.append((inputs, output))

    def _forward(self, batch: MicroBatch, inputs: dict[str, Tensor]) -> Tensor:
        module, name = self._module, self._role.name
        side = _side(batch, name, self._device)
        if HIDDEN in inputs:
            hidden = inputs[HIDDEN]
        elif name == LANGUAGE:
            hidden = call(module.embed, batch.tokens, inputs, side=side)
        else:
            hidden = call(module.embed, batch.items[name].to(self._device, self._dtype), side=side)
        hidden = call(module.blocks, hidden, side=side)
        return call(module.rows, hidden, side=side) if name != LANGUAGE and self._role.is_last_stage else hidden

    def _run_backward(self) -> None:
        inputs, output = self._in_flight.popleft()
        if not self._links.has_gradient:
            return
        grad = self._links.receive_backward()
        if output.requires_grad:
            torch.autograd.backward(output, grad)
        self._links.send_backward(inputs)


class ColocatedSchedule:
    """Every rank runs its encoder lanes, then its language lane, one micro-batch after another."""

    def __init__(self, model: MimoModel) -> None:
        topology = model.topology
        self._model = model
        self._counts = topology.roles[LANGUAGE].tp_rank == 0
        language = topology.grids[LANGUAGE]
        self._bridges = {
            name: ColocatedBridge(topology.grids[name], language, backend=topology.backend, timeout=topology.timeout)
            for name in topology.layout.encoders
        }

    def run(
        self, read: ReadMicroBatch, num_microbatches: int, *, loss_scale: float, before_last: Callable[[], None]
    ) -> LossSum:
        """Run all micro-batches of a step forward and backward, adding up the gradients."""
        total = LossSum()
        for index in range(num_microbatches):
            loss = self._forward(read, index, total) * loss_scale
            if index == num_microbatches - 1:
                before_last()
            if loss.requires_grad:
                loss.backward()
        return total

    def evaluate(self, read: ReadMicroBatch, num_microbatches: int) -> LossSum:
        """Run all micro-batches forward."""
        total = LossSum()
        for index in range(num_microbatches):
            self._forward(read, index, total)
        return total

    def _forward(self, read: ReadMicroBatch, index: int, total: LossSum) -> Tensor:
        language, batch = self._model.parts[LANGUAGE], read(LANGUAGE, index)
        rows = {name: self._carry(name, read(name, index), batch) for name in self._bridges}
        side = _side(batch, LANGUAGE, self._model.device)
        hidden = call(language.blocks, call(language.embed, batch.tokens, rows, side=side), side=side)
        return _loss(language, hidden, batch, total, self._counts)

    def close(self) -> None:
        """Give the bridges' groups back."""
        for bridge in self._bridges.values():
            bridge.destroy()

    def _carry(self, name: str, batch: MicroBatch, language: MicroBatch) -> Tensor:
        part, side = self._model.parts[name], _side(batch, name, self._model.device)
        hidden = call(part.embed, batch.items[name].to(self._model.device, self._model.dtype), side=side)
        rows = call(part.rows, call(part.blocks, hidden, side=side), side=side)
        check_rows(name, rows, batch, self._model)
        return self._bridges[name].carry(rows, batch.rows_per_sample[name], language.rows_per_sample[name])


def _side(batch: MicroBatch, name: str, device: str) -> dict[str, Tensor]:
    return {what: tensor.to(device) for what, tensor in batch.side.get(name, {}).items()}


def _loss(module: LanguageStage, hidden: Tensor, batch: MicroBatch, total: LossSum, counts: bool) -> Tensor:
    device = hidden.device
    loss = module.loss(hidden, batch.labels.to(device), batch.loss_mask.to(device))
    if counts:
        total.loss = total.loss + loss.detach().double()
        total.num_tokens += batch.num_counted
    return loss


def make_schedule(model: MimoModel) -> PipelineSchedule | ColocatedSchedule:
    """Return the schedule of the model's layout; a collective."""
    layout = model.topology.layout
    has_stages = layout.language.pp > 1 or not layout.is_colocated
    return PipelineSchedule(model) if has_stages else ColocatedSchedule(model)


def sum_over_world(total: LossSum, device: str) -> LossSum:
    """Return the loss and the tokens of the global batch, the same on every rank."""
    both = torch.tensor([0.0, total.num_tokens], dtype=torch.float64, device=device)
    both[0] += total.loss
    dist.all_reduce(both)
    loss, num_tokens = both.tolist()
    return LossSum(loss=loss, num_tokens=int(num_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The figures of a step, the same on every rank."""

    loss: float
    """Per token that counts."""
    num_tokens: int
    grad_norm: float | None
    """Before clipping; None where the step was not taken."""
    num_zeros: int | None
    success: bool


class Trainer:
    """A loop that trains a model step by step; making one and each step are collectives of the whole world."""

    def __init__(
        self,
        model: MimoModel,
        optimizer: MimoOptimizer,
        *,
        micro_batch_size: int,
        global_batch_size: int,
        balance_items: bool = False,
    ) -> None:
        """With `balance_items` samples are ordered so that all lanes have about as many items in each micro-batch."""
        layout = model.topology.layout
        self._num_microbatches = layout.num_microbatches(micro_batch_size, global_batch_size)
        self.model, self.optimizer = model, optimizer
        self._balances_items = balance_items
        self._last_reader: BatchReader | None = None
        with peers_expected("making the trainer"):
            self._schedule = make_schedule(model)
        self.micro_batch_size, self.global_batch_size = micro_batch_size, global_batch_size
        self.iteration = 0
        self.consumed_samples = 0
        """Where the data continues."""

    def step(self, batch: SampleSource) -> StepResult:
        """Train on one global batch."""
        return self._step(self._reader(batch))

    def _step(self, reader: BatchReader) -> StepResult:
        with peers_expected(f"iteration {self.iteration + 1}"):
            loss, num_tokens = self._accumulate(reader)
            success, norm, num_zeros = self.optimizer.step()
        self.iteration += 1
        self.consumed_samples += self.global_batch_size
        return StepResult(loss=loss, num_tokens=num_tokens, grad_norm=norm, num_zeros=num_zeros, success=success)

    def close(self) -> None:
        """Give all groups back; the model cannot be trained any more."""
        self._schedule.close()
        self.model.topology.destroy()

    def accumulate(self, batch: SampleSource) -> tuple[float, int]:
        """Make the gradients of a global batch, and return its loss per token and its tokens.

        Each module sums its gradients over its own replicas, and all are scaled by the same number of tokens: replicas
        are as many as the module's dp, which differs between modules, and averages over them would weigh the modules
        differently, and replicas with more tokens too little.
        """
        return self._accumulate(self._reader(batch))

    def _accumulate(self, read: BatchReader) -> tuple[float, int]:
        self.optimizer.zero_grad()
        gradients = [optimizer.gradients for optimizer in self.optimizer.active.values()]

        def before_last() -> None:
            for one in gradients:
                one.begin_last_backward()

        here = self._schedule.run(
            read, self._num_microbatches, loss_scale=self.optimizer.get_loss_scale(), before_last=before_last
        )
        total = sum_over_world(here, self.model.device)
        for optimizer in self.optimizer.active.values():
            optimizer.finish_gradients(1.0 / total.num_tokens if total.num_tokens else 1.0)
        return float(total.loss) / max(total.num_tokens, 1), total.num_tokens

    def evaluate(self, batch: SampleSource) -> float:
        """Return the loss per token of any number of samples that makes whole micro-batches, without training on them.

        Every rank of the world calls it; the modules are in their evaluation mode meanwhile.
        """
        size, modes = len(batch), [(module, module.training) for module in self.model.modules()]
        num = self.model.topology.layout.num_microbatches(self.micro_batch_size, size)
        self.model.eval()
        try:
            with peers_expected("evaluation"), torch.no_grad():
                read = self._reader(batch, num)
                total = sum_over_world(self._schedule.evaluate(read, num), self.model.device)
        finally:
            for module, is_training in modes:
                module.training = is_training
        return float(total.loss) / max(total.num_tokens, 1)

    def train(self, batches: Iterable[SampleSource]) -> Iterator[StepResult]:
        """Train on one global batch after another; the next one is read while this one is trained on."""
        following = iter(batches)
        now = self._next_reader(following)
        while now is not None:
            after = self._next_reader(following)
            yield self._step(now)
            now = after

    def _next_reader(self, batches: Iterator[SampleSource]) -> BatchReader | None:
        with peers_expected("reading samples"):
            batch = next(batches, None)
        return None if batch is None else self._reader(batch)

    def _reader(self, batch: SampleSource, num_microbatches: int | None = None) -> BatchReader:
        """Begin to read this rank's micro-batches of a global batch, or of another one in so many.

        One batch is read after another, on all ranks in the same order.
        """
        num = num_microbatches or self._num_microbatches
        topology = self.model.topology
        lanes = max(module.dp for module in topology.layout.modules.values())
        reader = BatchReader(
            batch,
            topology.roles,
            num_microbatches=num,
            size=self.global_batch_size if num_microbatches is None else len(batch),
            vocab_size=self.model.parts[LANGUAGE].vocab_size if LANGUAGE in topology.roles else None,
            num_parts=num * lanes if self._balances_items else None,
        )
        self._last_reader = reader.start(self._last_reader)
        return reader
