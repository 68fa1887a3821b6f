"""The modules that this rank trains."""

from __future__ import annotations

import torch
from torch import nn

from zenith_tune.errors import UsageError
from zenith_tune.mimo.comm.topology import ModuleRole, Topology
from zenith_tune.mimo.item_encoder import ItemEncoder
from zenith_tune.mimo.language_model import LanguageModel
from zenith_tune.mimo.model.tensor_parallel import TensorParallel, fill_parameters
from zenith_tune.mimo.model_config import MimoConfig
from zenith_tune.mimo.module_layout import LANGUAGE


def build_module(
    config: MimoConfig, name: str, tp: TensorParallel | None = None, *, stage: int = 0, num_stages: int = 1
) -> ItemEncoder | LanguageModel:
    """Return one stage of a module, filled from the seed; without `tp` and stages it is the whole."""
    tp = tp or TensorParallel()
    recompute = name in config.recompute
    if name == LANGUAGE:
        token_ids = {encoder: of.token_id for encoder, of in config.encoders.items()}
        module = LanguageModel(config.language, token_ids, tp, stage=stage, num_stages=num_stages, recompute=recompute)
    else:
        width = config.language.transformer.hidden_size
        module = ItemEncoder(config.encoders[name], width, tp, stage=stage, num_stages=num_stages, recompute=recompute)
    fill_parameters(module, config.seed)
    return module


class MimoModel(nn.Module):
    """Hold this rank's stage of each module that its place in the topology gives it."""

    def __init__(
        self, config: MimoConfig, topology: Topology, *, device: str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        known = sorted([*config.encoders, LANGUAGE])
        if sorted(topology.layout.modules) != known:
            raise UsageError(
                f"the layout must place every module of the model, but it places "
                f"{sorted(topology.layout.modules)} and the model has {known}."
            )
        self.config, self.topology, self.device, self.dtype = config, topology, device, dtype
        self.parts = nn.ModuleDict({name: self._build(role) for name, role in topology.roles.items()})

    def _build(self, role: ModuleRole) -> nn.Module:
        tp = TensorParallel(
            group=role.groups.tp, size=role.layout.tp, rank=role.tp_rank, device=self.device, dtype=self.dtype
        )
        return build_module(self.config, role.name, tp, stage=role.pp_rank, num_stages=role.layout.pp)
