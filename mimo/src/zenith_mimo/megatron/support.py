"""What the installed Megatron Core can train: all that differs between its versions is asked here."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zenith_mimo.planning.config import LANGUAGE, MimoConfig, MimoLayout
from zenith_tune.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronSupport:
    """The abilities of a version of Megatron Core for modules that have layouts of their own."""

    version: str
    bridges_shared_ranks: bool
    """Whether modules on the same ranks may differ in tp and dp (0.18 and newer)."""
    splits_by_sample: bool
    """Whether rows are cut where samples end when one encoder lane feeds several language lanes (0.18 and newer)."""

    @classmethod
    def of_installed(cls) -> MegatronSupport:
        """Return what the installed version can do; raises UsageError where it is missing or too old."""
        need = "the Megatron back-end needs megatron-core 0.17 or newer"
        hint = "install it (it wants Python 3.12), or train with the runtime's own back-end."
        if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.core") is None:
            raise UsageError(f"{need}, but none is installed", hint=hint)
        try:
            import megatron.core

            version = str(megatron.core.__version__)
            if importlib.util.find_spec("megatron.core.models.mimo.optimizer") is None:
                raise UsageError(f"{need}, but {version} is installed", hint=hint)
            from megatron.core.models.mimo.model.base import MimoModel
        except ModuleNotFoundError as error:  # of triton and others, which it imports at once
            problem = f"the Megatron back-end needs {error.name}, which the installed megatron-core imports"
            own = "train with the runtime's own back-end"
            raise UsageError(problem, hint=f"pip install {error.name}, or {own}.") from None

        return cls(
            version=version,
            bridges_shared_ranks=importlib.util.find_spec("megatron.core.models.mimo.comm") is not None,
            splits_by_sample=hasattr(MimoModel, "_attach_modality_split_sizes"),
        )

    def check(self, layout: MimoLayout, *, has_even_items: bool) -> None:
        """Refuse a layout that this version would not train, or not as one process does."""
        if not layout.encoders:
            raise UsageError(
                "Megatron's multimodal model needs an encoder, but the layout has the language model alone",
                hint="train it with Megatron itself.",
            )
        for name in layout.encoders:
            self._check_pair(layout, name, has_even_items=has_even_items)

    def _check_pair(self, layout: MimoLayout, name: str, *, has_even_items: bool) -> None:
        encoder, language = layout.modules[name], layout.language
        is_alike = (encoder.tp, encoder.dp) == (language.tp, language.dp)
        if layout.is_colocated and not is_alike and not self.bridges_shared_ranks:
            raise UsageError(
                f"Megatron Core {self.version} cannot give modules on shared ranks different layouts, but {name} has "
                f"{encoder} and {LANGUAGE} {language}",
                hint="use 0.18 or newer, or give both the same.",
            )
        can_split = self.splits_by_sample and not layout.is_colocated and encoder.dp < language.dp
        if not has_even_items and encoder.dp != language.dp and not can_split:
            raise UsageError(
                f"Megatron Core {self.version} cuts rows into equal parts between lanes, but the samples have "
                f"different numbers of items, and {name} has dp {encoder.dp} and {LANGUAGE} dp {language.dp}",
                hint="give both the same dp, or every sample the same number of items.",
            )

    def model_grids(self, layout: MimoLayout, grids: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the grids that the model is made with; before 0.18 it takes none for modules on shared ranks."""
        return None if layout.is_colocated and not self.bridges_shared_ranks else dict(grids)


def add_expert_groups(grid: Any, **options: Any) -> None:
    """Make the groups that the optimizer of 0.19 takes from a view of the grid; older grids have no views."""
    if not hasattr(grid, "register_view"):
        return
    tp, _, _, pp, dp = grid.shape
    grid.register_view("expert", [tp, 1, pp, dp], ["expt_tp", "ep", "pp", "expt_dp"], shared_dims=["pp"])
    grid.create_pg(["expt_tp", "ep", "pp"], view="expert", **options)
    grid.create_pg(["expt_dp"], view="expert", **options)
    grid.create_pg(["tp", "cp", "pp", "dp"], **options)


def check_stages(config: MimoConfig, layout: MimoLayout) -> None:
    """Refuse pipelines of the example's model whose stages would have different numbers of layers."""
    for name, module in sorted(layout.modules.items()):
        layers = (config.language if name == LANGUAGE else config.encoders[name]).transformer.num_layers
        if layers % module.pp:
            raise UsageError(
                f"Megatron's stages have the same number of layers, but {name} has {layers} and pp {module.pp}",
                hint="change one of them.",
            )


def check_device() -> None:
    """Refuse a process without a GPU, where Megatron would fail at its first step."""
    import torch

    try:
        torch.cuda.current_device()
    except (AssertionError, RuntimeError) as error:
        raise UsageError(
            f"the Megatron back-end needs a GPU for each rank, but here is none ({error})",
            hint="start it with torchrun on GPUs, or train with the runtime's own back-end.",
        ) from None
