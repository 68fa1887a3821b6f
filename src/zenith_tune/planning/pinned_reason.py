"""Which rule the given values break whatever the others are; what is not given is taken as mildly as can be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.constraints import check_multiple
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_rules import RULES

DEPENDS = ("world", "expert_world", "batch", "interleaved_batches", "sequence_parallel")
"""Rules that hold or break by what is not given, or that the search makes hold."""
PIPELINE = ("pipeline", "interleaving")
SEQUENCE = ("sequence_chunks", "expert_sequence")


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedValues:
    """Hold values that are given, and what they are given for."""

    model: ModelSpec
    job: JobSpec
    num_gpus: int
    global_batch: int
    pinned: Mapping[str, int | str]

    def reason(self) -> str | None:
        """Return the first rule that they break by themselves."""
        return next(self._reasons(), None)

    def _reasons(self) -> Iterator[str]:
        layout = self._mildest()
        rules = [rule for name, rule in RULES.items() if self._judges(name)]
        reasons = [self._product("n_gpus", self.num_gpus, "tp", "pp", "cp", "dp")]
        reasons += [rule.explain(self.model, self.job, layout) for rule in rules]
        reasons += [self._product("n_gpus", self.num_gpus, "etp", "ep", "pp")]
        reasons += [self._product("gbs", self.global_batch, "dp", "mbs")]
        yield from filter(None, reasons)

    def _product(self, name: str, value: int, *factors: str) -> str | None:
        given = [factor for factor in factors if factor in self.pinned]
        return check_multiple(name, value, "*".join(given), *(self._size(factor) for factor in given))

    def _judges(self, rule: str) -> bool:
        """Tell whether a rule looks at given values alone."""
        if rule in PIPELINE:
            return "pp" in self.pinned or "vp" not in self.pinned
        if rule in SEQUENCE:
            return "sp" in self.pinned
        return rule not in DEPENDS

    def _mildest(self) -> Layout:
        kind = str(self.pinned.get("recompute", "none"))
        layers = self._size("recompute_layers", 1 if kind.startswith("full") else 0)
        if "recompute" not in self.pinned and layers:
            kind = "full/uniform"
        sizes: dict[str, Any] = {name: self._size(name) for name in ("tp", "pp", "cp", "vp", "ep", "etp")}
        return Layout(
            num_gpus=self.num_gpus,
            global_batch=self.global_batch,
            zero=self._size("zero", 0),
            recompute=kind,
            recompute_layers=layers,
            sequence_parallel=bool(self._size("sp", 0)),
            **sizes,
        )

    def _size(self, name: str, otherwise: int = 1) -> int:
        return int(self.pinned.get(name, otherwise))
