"""A starting layout by the size of a model, before any plan or trial: a table, and rules for sizes not in it.

The table is for bf16, sequences of 2,048 tokens and A100 GPUs with 80 GB. The rules, in their order:

1. A size between two rows takes the larger one, a size below the first row takes the first; a size beyond the last
   takes the last, with its stages multiplied by the ratio of sizes, in powers of two.
2. Tensor parallelism stays within NVLink: what it loses goes to the pipeline.
3. Another number of GPUs changes only data parallelism; where the model's ranks do not divide the GPUs, stages are
   halved, then tensor parallelism.
4. Another global batch changes only the number of micro-batches. Each has one sample.

Sequence parallelism goes with tensor parallelism, and the optimizer is sharded, without which 7B would not fit.

A Llama-like model of a given size is from the catalog where it has that size, else a shape that comes close.

Legend: L layers, h hidden size, N parameters, V vocabulary. Llama-2 and GPT-3 have h = 102 L to 128 L, and a layer has
12 h^2 parameters or a little more, so that N = 12 L (128 L)^2 gives L; the feed-forward width makes up for rounding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zenith_tune.describe.model_catalog import catalog_model
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.plan import CAUSES, Plan, PlannedLayout, changes
from zenith_tune.units import count, format_seconds

if TYPE_CHECKING:
    from zenith_tune.planner.ways_out import WayOut

SEQ_LEN = 2048
GPU = "a100"


@dataclass(frozen=True, slots=True)
class GuideRow:
    """One row of the table."""

    billions: float
    num_gpus: int
    tp: int
    pp: int
    dp: int
    micro_batches: int


TABLE = (
    GuideRow(7, 8, 1, 1, 8, 1),
    GuideRow(13, 8, 2, 1, 4, 1),
    GuideRow(20, 16, 4, 1, 4, 1),
    GuideRow(40, 32, 4, 2, 4, 4),
    GuideRow(70, 64, 8, 2, 4, 8),
    GuideRow(175, 128, 8, 4, 4, 16),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeGuide:
    """The guide's layout for a model, the row that it comes from, and the rules that changed it."""

    row: GuideRow
    layout: Layout
    rules: tuple[str, ...]
    is_planned: bool = False
    """Whether the layout is the planner's."""

    def answered_by(self, planned: PlannedLayout) -> SizeGuide:
        rule = "outside the table the planner gives the layout"
        return replace(self, layout=planned.layout, rules=(*self.rules, rule), is_planned=True)


def is_outside(billions: float) -> bool:
    """Return whether a size is below the table's first row, or beyond its last."""
    return not TABLE[0].billions <= billions <= TABLE[-1].billions


def guide_row(billions: float) -> GuideRow:
    """Return the row for a size, by rule 1."""
    row = next((row for row in TABLE if row.billions >= billions), None)
    if row is not None:
        return row
    last, factor = TABLE[-1], 1
    while last.billions * factor < billions:
        factor *= 2
    return replace(last, billions=last.billions * factor, num_gpus=last.num_gpus * factor, pp=last.pp * factor)


def size_guide(billions: float, *, num_gpus: int | None, island: int, global_batch: int | None) -> SizeGuide:
    """Return the guide's layout on GPUs of which NVLink joins `island`; None takes a number from the table."""
    row, rules = guide_row(billions), []
    if row.billions != billions:
        rules.append(_size_rule(billions, row))
    gpus, tp, pp = num_gpus or row.num_gpus, row.tp, row.pp
    while tp > island:
        tp, pp = tp // 2, pp * 2
    if tp != row.tp:
        joined = f"NVLink joins {island} GPUs" if island > 1 else "no NVLink joins the GPUs"
        rules.append(f"{joined}: TP {row.tp} -> {tp}, PP {row.pp} -> {pp}")
    cut = (tp, pp)
    while gpus % (tp * pp):
        tp, pp = (tp, pp // 2) if pp > 1 else (tp // 2, pp)
    if (tp, pp) != cut:
        rules.append(
            f"{count(gpus, 'GPU')} {'does' if gpus == 1 else 'do'} not go into TP{cut[0]} PP{cut[1]}: TP{tp} PP{pp}"
        )
    dp = gpus // (tp * pp)
    if dp != row.dp:
        rules.append(f"{count(gpus, 'GPU')}: DP {row.dp} -> {dp}")
    gbs = global_batch or row.micro_batches * dp
    if gbs % dp:
        near = f"take {gbs // dp * dp or dp} or {-(-gbs // dp) * dp}" if gbs > dp else f"take {dp} or more"
        raise UsageError(f"the guide's layout has DP {dp}, which must divide the batch, but got --gbs {gbs}: {near}")
    if gbs // dp != row.micro_batches:
        rules.append(f"batch {gbs}: micro-batches {row.micro_batches} -> {gbs // dp}")
    layout = Layout(
        num_gpus=gpus, tp=tp, pp=pp, micro_batch=1, global_batch=gbs, zero=int(dp > 1), sequence_parallel=tp > 1
    )
    return SizeGuide(row=row, layout=layout, rules=tuple(rules))


def _size_rule(billions: float, row: GuideRow) -> str:
    if row == TABLE[0]:
        return f"{billions:g}B is below the table: the row of {row.billions:g}B is taken"
    if row in TABLE:
        return f"{billions:g}B is between two rows: that of {row.billions:g}B is taken"
    return f"{billions:g}B is beyond the table: the row of {TABLE[-1].billions:g}B with PP {TABLE[-1].pp} -> {row.pp}"


CATALOG = {7: "llama2-7b", 8: "llama3-8b", 13: "llama2-13b", 70: "llama2-70b", 405: "llama3-405b"}
LEAST, MOST = 1.0, 2000.0
HEAD_DIM, VOCAB = 128, 32_000
ASPECT = 128
MULTIPLE = 8
"""Layers and heads come in eights, so that any usual size of pipeline or tensor parallelism divides them; where the row
has more stages, layers come in as many."""
GROUPED_FROM = 30.0
"""Billions of parameters from which keys and values are grouped, as in Llama-2 34B and 70B."""
_SIZE = re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,3})?)\s*([bt]?)", re.IGNORECASE | re.ASCII)


def parse_size(text: str) -> float:
    """Read a size in billions of parameters, or in trillions (T)."""
    match = _SIZE.fullmatch(text.strip())
    billions = float(match[1]) * (1000.0 if match[2].lower() == "t" else 1.0) if match else 0.0
    if not LEAST <= billions <= MOST:
        problem = f"a size must be {LEAST:g}B to {MOST:g}B, in billions of parameters"
        raise UsageError(f"{problem}, but got {text[:40]!r}", hint="write e.g. 70B")
    return billions


def sized_model(billions: float) -> ModelSpec:
    """Return the model of a size."""
    if billions in CATALOG:
        return catalog_model(CATALOG[int(billions)])
    target = billions * 1e9
    layers = _rounded((target / (12 * ASPECT**2)) ** (1 / 3), max(MULTIPLE, guide_row(billions).pp))
    hidden = _rounded((target / (12 * layers)) ** 0.5, MULTIPLE * HEAD_DIM)
    heads = hidden // HEAD_DIM
    groups = MULTIPLE if billions >= GROUPED_FROM else heads
    attention = 2 * hidden * hidden + 2 * hidden * groups * HEAD_DIM
    left = (target - 2 * VOCAB * hidden) / layers - attention
    return ModelSpec(
        name=f"llama-like {billions:g}B",
        num_layers=layers,
        hidden=hidden,
        ffn_hidden=_rounded(left / (3 * hidden), 256),
        num_heads=heads,
        num_kv_heads=groups,
        head_dim=HEAD_DIM,
        vocab=VOCAB,
    )


def _rounded(number: float, multiple: int) -> int:
    return max(round(number / multiple), 1) * multiple


LEAST_SHARE = 0.01
"""The least difference of a part that counts as a reason, as a share of the step."""
MAX_REASONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideComparison:
    """The guide's layout and the planner's choice."""

    guide: SizeGuide
    planned: PlannedLayout
    broken: tuple[str, ...]
    """Rules that the guide's layout breaks."""
    verdict: str
    """The reason that the guide's layout does not fit; empty where it does."""
    plan: Plan
    ways_out: tuple[WayOut, ...] = ()
    """Other ways to train it on these GPUs, where no layout fits."""
    enough_gpus: int | None = None
    """The least number of GPUs of this kind that would do, where no layout fits."""

    @property
    def best(self) -> PlannedLayout | None:
        """The planner's own choice; None where nothing fits."""
        return self.plan.best[0] if self.plan.best else None

    @property
    def gain(self) -> float | None:
        """Gain in speed of the planner's choice over the guide's layout, as a fraction; None where one does not fit."""
        return self.planned.step_s / self.best.step_s - 1 if self.best and not self.verdict else None

    @property
    def change(self) -> str:
        return changes(self.planned.layout, self.best.layout) if self.best else ""

    @property
    def reasons(self) -> list[str]:
        """Reasons for the planner's choice: what must fit, and the parts of a step that differ most."""
        found = [f"because the guide's layout {self.verdict}"] if self.verdict else []
        if self.best is None:
            return found
        old, new = self.planned.time_parts, self.best.time_parts
        differ = sorted(old.keys() | new.keys(), key=lambda name: -abs(old.get(name, 0.0) - new.get(name, 0.0)))
        for name in differ[:MAX_REASONS]:
            before, after = old.get(name, 0.0), new.get(name, 0.0)
            if abs(before - after) >= LEAST_SHARE * self.planned.step_s:
                link = "because" if after < before else "although"
                times = f"{format_seconds(before)} to {format_seconds(after)} a step"
                found.append(f"{link} {CAUSES.get(name, name)} goes from {times}")
        return found
