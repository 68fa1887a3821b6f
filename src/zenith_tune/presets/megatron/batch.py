"""Many points of a Megatron-LM job at once, as the layouts that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from zenith_tune.layouts.layout import RECOMPUTE_NAMES, Layout
from zenith_tune.layouts.layout_batch import BoolArray, LayoutBatch, PointTable, laid_over
from zenith_tune.presets.megatron.overlap import module_of
from zenith_tune.presets.megatron.rules import OVERLAPS, TunedLayout

SIZES = ("tp", "pp", "vp", "cp", "ep", "etp")


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedBatch(LayoutBatch):
    """Many of `TunedLayout`, as arrays."""

    overlap: npt.NDArray[np.str_]
    tp_overlap: BoolArray
    ep_overlap: BoolArray
    module: npt.NDArray[np.str_]


def layouts_of(
    table: PointTable, start: Layout, *, recompute: Mapping[str, Layout], sequence_parallel: Callable[..., Any]
) -> LayoutBatch:
    """Return the layouts of rows; what is not chosen is 1, or else as in `start`.

    `recompute` has for each kind a layout that recomputes in this way; `sequence_parallel` says of tp and cp whether
    they have it, where it is no choice of its own.
    """
    columns: dict[str, Any] = {
        name: table[name] for name in (*SIZES, "mbs", "zero", "sequence_parallel") if name in table
    }
    columns = {"mbs": start.micro_batch, "zero": start.zero} | columns
    if "sequence_parallel" not in table:
        columns["sequence_parallel"] = sequence_parallel(tp=columns.get("tp", 1), cp=columns.get("cp", 1))
    if "recompute" in table:
        kinds = [recompute[str(kind)] for kind in table.values["recompute"]]
        codes = np.array([(RECOMPUTE_NAMES.index(kind.recompute), kind.recompute_layers) for kind in kinds])
        columns["recompute"], columns["recompute_layers"] = codes[table.places["recompute"]].T
    layouts = laid_over(
        start.num_gpus, gbs=start.global_batch, flash_attention=start.flash_attention, **_as_long_as(table, columns)
    )
    return _tuned(layouts, table, start) if isinstance(start, TunedLayout) else layouts


def _as_long_as(table: PointTable, columns: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.broadcast_to(column, len(table)) for name, column in columns.items()}


def _tuned(layouts: LayoutBatch, table: PointTable, start: TunedLayout) -> TunedBatch:
    more: dict[str, Any] = {name: table[name] if name in table else getattr(start, name) for name in OVERLAPS}
    more["module"] = ""
    if "recompute" in table:
        kinds = [module_of(str(kind)) for kind in table.values["recompute"]]
        more["module"] = np.array(kinds)[table.places["recompute"]]
    return TunedBatch(
        **{field.name: getattr(layouts, field.name) for field in fields(layouts)}, **_as_long_as(table, more)
    )
