"""Megatron's multimodal model of a layout: one specification per module, each in Megatron's own data parallelism."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.mimo import MimoModel
from megatron.core.models.mimo.config.base_configs import MimoModelConfig
from megatron.core.models.mimo.submodules.base import ModalitySubmodules
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.enums import ModelType
from megatron.core.transformer.spec_utils import ModuleSpec
from torch import Tensor, nn

from zenith_mimo.megatron.support import MegatronSupport
from zenith_mimo.megatron.topology import MegatronTopology
from zenith_mimo.planning.config import LANGUAGE
from zenith_tune.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlace:
    """The place of a module's stage: its groups, None on ranks that the module is not on."""

    groups: Any
    tp: int
    stage: int
    num_stages: int

    @property
    def is_first(self) -> bool:
        """Whether it embeds."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether it makes the rows or the loss."""
        return self.stage == self.num_stages - 1


TOWER = "tower"
"""The name of a staged encoder's one encoder."""
BuildSpec = Callable[[StagePlace], ModuleSpec]
"""Gives the specification of a module's stage; asked on every rank, since Megatron reads the configuration on all."""


class StagedEncoder(ModalitySubmodules):
    """An encoder of any number of stages; Megatron's own class runs the layers of the first stage only.

    Its one encoder, `tower`, takes `items` on the first stage and `hidden_states` on the others; what the last one
    returns, one row per token, goes through the projection.
    """

    def decode(self, embeddings: Tensor, data_batch: dict[str, Any]) -> Tensor:
        """Refuse: no module makes items."""
        raise NotImplementedError

    def forward(
        self, encoder_inputs: dict[str, Any] | None = None, hidden_states: Tensor | None = None
    ) -> Tensor | None:
        """Return the rows of the last stage, or what the next one takes."""
        tower = self.encoders[TOWER]
        if hidden_states is not None:
            hidden = tower(hidden_states=hidden_states)
        elif encoder_inputs is not None:
            hidden = tower(**encoder_inputs[TOWER])
        else:
            return None
        return self.project_embeddings([hidden]) if self.is_last_stage else hidden


class MegatronModel:
    """Megatron's model, of which this rank has the modules that the layout places on it."""

    def __init__(
        self,
        specs: Mapping[str, BuildSpec],
        topology: MegatronTopology,
        support: MegatronSupport,
        *,
        token_ids: Mapping[str, int],
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        layout = topology.layout
        if sorted(layout.modules) != sorted(specs):
            raise UsageError(
                f"the layout must place every module of the model, but it places {sorted(layout.modules)} and the "
                f"model has {sorted(specs)}."
            )
        self.topology, self.dtype = topology, dtype
        self.device = torch.device(torch.cuda.current_device())
        built = {name: build(self._place(name)) for name, build in specs.items()}
        tp_rank = next(iter(topology.groups.values())).tp.rank()
        model_parallel_cuda_manual_seed(seed, tp_rank=tp_rank, ep_rank=0, etp_rank=tp_rank)
        config = MimoModelConfig(
            language_model_spec=built[LANGUAGE],
            modality_submodules_spec={name: built[name] for name in layout.encoders},
            special_token_ids=dict(token_ids),
            module_to_grid_map=support.model_grids(layout, topology.grids),
        )
        with warnings.catch_warnings():
            # It says of itself that it is experimental.
            warnings.simplefilter("ignore", UserWarning)
            self.mimo = MimoModel(config)
        self.mimo.to(device=self.device, dtype=dtype)
        self.mimo.model_type = ModelType.encoder_or_decoder
        # Its optimizer takes the grids from here, also where the model is made without.
        config.module_to_grid_map = dict(topology.grids)

    def _place(self, name: str) -> StagePlace:
        layout, groups = self.topology.layout.modules[name], self.topology.groups.get(name)
        stage = 0 if groups is None else self.topology.stage(name)
        return StagePlace(groups=groups, tp=layout.tp, stage=stage, num_stages=layout.pp)

    @property
    def parts(self) -> dict[str, nn.Module]:
        """The modules on this rank."""
        language = {} if self.mimo.language_model is None else {LANGUAGE: self.mimo.language_model}
        return {**dict(self.mimo.modality_submodules.items()), **language}

    @property
    def config(self) -> Any:
        """The language model's configuration, which Megatron's schedule asks."""
        return self.mimo.config

    def distribute(self, ddp: DistributedDataParallelConfig) -> None:
        """Wrap each module in Megatron's data parallelism over its own lanes; set what is frozen before."""
        for name, part in self.parts.items():
            config = part.config if name == LANGUAGE else next(iter(part.encoders.values())).config
            wrapped = DistributedDataParallel(
                config=config, ddp_config=ddp, module=part, pg_collection=self.topology.groups[name]
            )
            if name == LANGUAGE:
                self.mimo.language_model = wrapped
            else:
                self.mimo.modality_submodules[name] = wrapped

    def destroy(self) -> None:
        """Give back the groups of the model's own bridges, where this version has such."""
        if hasattr(self.mimo, "destroy"):
            self.mimo.destroy()
