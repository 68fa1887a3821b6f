"""One training step by Megatron's own schedule and optimizer, with the samples and the result of the runtime here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.models.mimo.optimizer import get_mimo_optimizer
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.pipeline_parallel.bridge_communicator import BridgeCommunicator
from megatron.core.pipeline_parallel.multimodule_communicator import MultiModulePipelineCommunicator
from megatron.core.pipeline_parallel.schedules import (
    forward_backward_no_pipelining,
    forward_backward_pipelining_without_interleaving,
)
from torch import Tensor

from zenith_mimo.megatron.model import TOWER, MegatronModel
from zenith_mimo.optimizer import OptimizerConfig
from zenith_mimo.planning.config import LANGUAGE
from zenith_mimo.samples import SampleSource, check_size, collate, lane_positions
from zenith_mimo.topology import peers_expected
from zenith_mimo.trainer import LossSum, StepResult, sum_over_world

ItemInputs = Callable[[str, Tensor], dict[str, Any]]
"""Gives what an encoder of that name takes for these items: keywords by the name of each tower that it has."""


def tower_inputs(name: str, items: Tensor) -> dict[str, Any]:
    """Return what a staged encoder takes."""
    return {TOWER: {"items": items}}


class MegatronTrainer:
    """A loop that trains Megatron's model step by step; making one and each step are collectives of the whole world."""

    def __init__(
        self,
        model: MegatronModel,
        optimizer: OptimizerConfig,
        *,
        micro_batch_size: int,
        global_batch_size: int,
        item_inputs: ItemInputs = tower_inputs,
    ) -> None:
        layout = model.topology.layout
        self._num_microbatches = layout.num_microbatches(micro_batch_size, global_batch_size)
        self._micro_batch_size, self._global_batch_size = micro_batch_size, global_batch_size
        self.model = model
        self.iteration = 0
        self.consumed_samples = 0
        self._item_inputs = item_inputs
        self._losses = LossSum()
        is_sharded = optimizer.use_distributed_optimizer
        ddp = DistributedDataParallelConfig(use_distributed_optimizer=is_sharded, grad_reduce_in_fp32=True)
        model.distribute(ddp)
        self.optimizer = get_mimo_optimizer(model.mimo, _megatron_optimizer(optimizer, model.dtype))
        for group in self.optimizer.param_groups:
            # Megatron's scheduler of learning rates would do it: vectors are not decayed.
            group["weight_decay"] = optimizer.weight_decay * group.get("wd_mult", 1.0)
        model.config.finalize_model_grads_func = self._finalize_grads
        self._communicator = None if layout.is_colocated else _communicator(model)

    def step(self, batch: SampleSource) -> StepResult:
        """Train on one global batch."""
        with peers_expected(f"iteration {self.iteration + 1}"):
            loss, num_tokens = self.accumulate(batch)
            success, norm, num_zeros = self.optimizer.step()
        self.iteration += 1
        self.consumed_samples += len(batch)
        return StepResult(loss=loss, num_tokens=num_tokens, grad_norm=norm, num_zeros=num_zeros, success=success)

    def accumulate(self, batch: SampleSource) -> tuple[float, int]:
        """Make the gradients of a global batch, and return its loss per token and its tokens."""
        self.optimizer.zero_grad()
        for part in self.model.parts.values():
            part.zero_grad_buffer()
        self._losses = LossSum()
        topology = self.model.topology
        shared: dict[str, Any] = {
            "forward_step_func": self._forward,
            "data_iterator": self._inputs(batch),
            "model": [self.model.mimo],
            "num_microbatches": self._num_microbatches,
            # Shapes are sent ahead of what they are of: these are not read.
            "seq_length": 1,
            "micro_batch_size": self._micro_batch_size,
        }
        if self._communicator is None:
            forward_backward_no_pipelining(**shared, pg_collection=topology.groups[LANGUAGE])
        else:
            forward_backward_pipelining_without_interleaving(
                **shared, p2p_communicator=self._communicator, pg_collection=topology.schedule_groups
            )
        total = sum_over_world(self._losses, str(self.model.device))
        return float(total.loss) / max(total.num_tokens, 1), total.num_tokens

    def close(self) -> None:
        """Give all groups back; the model cannot be trained any more."""
        self.model.destroy()
        for name in ("destroy_broadcast_pgs", "destroy_bridge_pgs"):
            getattr(BridgeCommunicator, name, lambda: None)()
        self.model.topology.destroy()

    def _inputs(self, batch: SampleSource) -> Iterator[dict[str, Any]]:
        """Give what this rank's modules take of each micro-batch: the text of one lane, items of the encoders' own."""
        topology, device = self.model.topology, self.model.device
        check_size(batch, self._global_batch_size)
        for index in range(self._num_microbatches):
            read = {}
            for name in topology.groups:
                encoder = name if name != LANGUAGE and topology.stage(name) == 0 else None
                place = {"index": index, "lane": topology.lane(name), "dp": topology.layout.modules[name].dp}
                sizes = {"num_microbatches": self._num_microbatches, "global_batch_size": self._global_batch_size}
                read[name] = collate([batch.read(at, encoder) for at in lane_positions(**sizes, **place)])
            text = read[LANGUAGE] if LANGUAGE in read else next(iter(read.values()))
            items = {name: one.items[name].to(device, self.model.dtype) for name, one in read.items() if one.items}
            yield {
                "input_ids": text.tokens.to(device),
                "labels": text.labels.to(device).contiguous(),
                "loss_mask": text.loss_mask.to(device),
                "position_ids": torch.arange(text.tokens.shape[1], device=device).expand_as(text.tokens),
                "modality_inputs": {name: self._item_inputs(name, one) for name, one in items.items()},
            }

    def _forward(self, inputs: Iterator[dict[str, Any]], model: Any) -> tuple[Any, Any]:
        output, loss_mask = model(**next(inputs))
        return output, functools.partial(self._loss, loss_mask)

    def _loss(self, loss_mask: Tensor, output: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Return the summed loss of the tokens that count and their number, as the schedule takes them."""
        loss, num_tokens = (output * loss_mask).sum(), loss_mask.sum().to(torch.int)
        if self.model.topology.groups[LANGUAGE].tp.rank() == 0:
            self._losses.loss = self._losses.loss + loss.detach().double()
            self._losses.num_tokens += int(num_tokens)
        return loss, num_tokens, {}

    def _finalize_grads(self, model: Any, num_tokens: Tensor | None = None, **options: Any) -> None:
        """Sum each module's gradients over its own lanes, and divide all by the tokens of the global batch."""
        here = LossSum(num_tokens=self._losses.num_tokens)
        scale = 1.0 / max(sum_over_world(here, str(self.model.device)).num_tokens, 1)
        for name, part in self.model.parts.items():
            finalize_model_grads([part], num_tokens=None, pg_collection=self.model.topology.groups[name])
            part.scale_gradients(scale)


def _communicator(model: MegatronModel) -> MultiModulePipelineCommunicator:
    """Return what carries hidden vectors between stages and rows from encoders to the language model."""
    layout = model.topology.layout
    graph: dict[str, list[str]] = {**{name: [LANGUAGE] for name in layout.encoders}, LANGUAGE: []}
    return MultiModulePipelineCommunicator(
        {name: model.topology.grids[name] for name in graph},
        graph,
        model.config,
        dim_mapping={"s": 0, "b": 1, "h": 2},
        module_output_ndim=dict.fromkeys(layout.encoders, 2),
    )


def _megatron_optimizer(config: OptimizerConfig, dtype: torch.dtype) -> MegatronOptimizerConfig:
    return MegatronOptimizerConfig(
        optimizer="adam",
        lr=config.lr,
        weight_decay=config.weight_decay,
        adam_beta1=config.betas[0],
        adam_beta2=config.betas[1],
        adam_eps=config.eps,
        clip_grad=config.clip_grad,
        use_distributed_optimizer=config.use_distributed_optimizer,
        log_num_zeros_in_grad=config.log_num_zeros_in_grad,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
    )
