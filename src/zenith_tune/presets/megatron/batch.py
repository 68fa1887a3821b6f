"""Many points of a Megatron-LM job at once, as the layouts that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from zenith_tune.layouts.layout import RECOMPUTE_NAMES, Layout
from zenith_tune.layouts.layout_batch import BoolArray, LayoutBatch, PointTable, laid_over
from zenith_tune.presets.megatron.rules import OVERLAPS, TunedLayout
from zenith_tune.study.parameters import Value

AXES = ("tp", "pp", "vp", "cp", "ep", "etp", "mbs", "zero", "sequence_parallel")


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedBatch(LayoutBatch):
    """Many of `TunedLayout`, as arrays."""

    overlap: npt.NDArray[np.str_]
    tp_overlap: BoolArray
    ep_overlap: BoolArray
    module: npt.NDArray[np.str_]


def layouts_of(
    table: PointTable, start: Layout, *, recompute: Mapping[Value, Layout], sequence_parallel: Callable[..., Any]
) -> LayoutBatch:
    """Return the layouts of rows; what is not chosen is 1, or else as in `start`.

    `recompute` has for each kind a layout that recomputes in this way; `sequence_parallel` says of tp and cp whether
    they have it, where it is no choice of its own.
    """
    columns: dict[str, Any] = {"mbs": start.micro_batch, "zero": start.zero}
    columns |= {name: table[name] for name in AXES if name in table}
    if "sequence_parallel" not in table:
        columns["sequence_parallel"] = sequence_parallel(tp=columns.get("tp", 1), cp=columns.get("cp", 1))
    more: dict[str, Any] = {}
    if isinstance(start, TunedLayout):
        more = {name: table[name] if name in table else getattr(start, name) for name in OVERLAPS} | {"module": ""}
    if "recompute" in table:
        kinds, places = [recompute[kind] for kind in table.values["recompute"]], table.places["recompute"]
        codes = np.array([(RECOMPUTE_NAMES.index(kind.recompute), kind.recompute_layers) for kind in kinds])
        columns["recompute"], columns["recompute_layers"] = codes[places].T
        if more:
            more["module"] = np.array([getattr(kind, "module", "") for kind in kinds])[places]
    columns, more = (
        {name: np.broadcast_to(column, len(table)) for name, column in each.items()} for each in (columns, more)
    )
    layouts = laid_over(start.num_gpus, gbs=start.global_batch, flash_attention=start.flash_attention, **columns)
    if not more:
        return layouts
    return TunedBatch(**{field.name: getattr(layouts, field.name) for field in fields(layouts)}, **more)
