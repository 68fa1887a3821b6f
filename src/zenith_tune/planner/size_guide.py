"""A starting point by the size of a model alone, before any plan or trial: a table, and rules for what is not in it.

The table is for bf16, sequences of 2,048 tokens and A100 GPUs with 80 GB. The rules, in their order:

1. A size below the first row takes that, one between two rows the larger one; a size beyond the last takes the last,
   with as many times its stages as it is larger, in powers of two.
2. Tensor parallelism stays inside what NVLink joins: what is cut from it goes to the pipeline.
3. Another number of GPUs changes data parallelism alone; where the model's ranks do not divide the GPUs, stages are
   halved, then tensor parallelism.
4. Another global batch changes the number of micro-batches alone. Each has one sample.

Sequence parallelism goes with tensor parallelism, and the optimizer is sharded, without which 7B would not fit.
"""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout
from zenith_tune.units import count

SEQ_LEN = 2048
GPU = "a100"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideRow:
    """Hold one row of the table."""

    billions: float
    num_gpus: int
    tp: int
    pp: int
    dp: int
    micro_batches: int


def _row(billions: float, num_gpus: int, tp: int, pp: int, dp: int, micro_batches: int) -> GuideRow:
    return GuideRow(billions=billions, num_gpus=num_gpus, tp=tp, pp=pp, dp=dp, micro_batches=micro_batches)


TABLE = (
    _row(7, 8, 1, 1, 8, 1),
    _row(13, 8, 2, 1, 4, 1),
    _row(20, 16, 4, 1, 4, 1),
    _row(40, 32, 4, 2, 4, 4),
    _row(70, 64, 8, 2, 4, 8),
    _row(175, 128, 8, 4, 4, 16),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeGuide:
    """Hold what the guide says for a model: its layout, the row that it comes from, and the rules that changed it."""

    row: GuideRow
    layout: Layout
    rules: tuple[str, ...]


def guide_row(billions: float) -> GuideRow:
    """Return the row for a size, by rule 1.

    >>> guide_row(30).billions, guide_row(70).pp, guide_row(400).pp, guide_row(400).num_gpus
    (40, 2, 16, 512)
    """
    row = next((row for row in TABLE if row.billions >= billions), None)
    if row is not None:
        return row
    last, factor = TABLE[-1], 1
    while last.billions * factor < billions:
        factor *= 2
    return _row(last.billions * factor, last.num_gpus * factor, last.tp, last.pp * factor, last.dp, last.micro_batches)


def size_guide(billions: float, *, num_gpus: int | None, island: int, global_batch: int | None) -> SizeGuide:
    """Return the guide's layout on so many GPUs, of which NVLink joins `island`; None leaves a number to the table."""
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
