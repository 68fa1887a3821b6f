"""The stages of a pipeline that a Megatron-LM command writes down itself.

--pipeline-model-parallel-layout has a letter for each part of the model: E is the embedding, t a layer, m a layer that
predicts further tokens (MTP), L the loss. | ends a chunk, and *n repeats what stands before it: one letter, or several
in parentheses. Chunk k belongs to pipeline rank k modulo pp.

Legend: pp pipeline ranks of vp chunks each.
"""

from __future__ import annotations

import re

from zenith_tune.describe.framework_spec import OwnPipeline
from zenith_tune.describe.megatron.args import MegatronArgs, shown
from zenith_tune.errors import UsageError
from zenith_tune.units import whole

LAYOUT = "--pipeline-model-parallel-layout"
ENDS = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
ACCOUNT = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
MAX_STAGES = 100_000
MOST_LETTERS = 1_000_000
"""More than any model has, so that a slip of the keyboard is not written out."""


def chunks_of(layout: str) -> list[str]:
    """Return the letters of each chunk of a pipeline that is written down.

    >>> chunks_of("Et*3|(tt|)*2,m|L")
    ['Ettt', 'tt', 'tt', 'm', 'L']
    """
    plain = layout.replace(",", "")
    for repeated in (r"\(([^)]+)\)\*([0-9]+)", r"(.)\*([0-9]+)"):
        times = [(len(match[1]), whole(match[2])) for match in re.finditer(repeated, plain)]
        if sum(length * (MOST_LETTERS if number is None else number) for length, number in times) > MOST_LETTERS:
            raise UsageError(f"the stages in {LAYOUT} must be at most {MAX_STAGES}, but are far more: correct it")
        plain = re.sub(repeated, lambda match: match[1] * int(match[2]), plain)
    if unknown := set(plain) - set("EtmL|"):
        problem = f"{LAYOUT} takes E, t, m, L and |, but {shown(layout)} has {shown(min(unknown))}"
        raise UsageError(problem, hint="write e.g. 'Et*3|(t*4|)*6,t*2L'")
    if (ends := plain.count("|") + 1) > MAX_STAGES:
        raise UsageError(f"the stages in {LAYOUT} must be at most {MAX_STAGES}, but is {ends}: correct it")
    return plain.split("|")


def own_pipeline(args: MegatronArgs, num_layers: int, *, pp: int, vp: int) -> OwnPipeline | None:
    """Return the stages that a command writes down; None where all have as many layers, or Megatron refuses them."""
    layout = args.text(LAYOUT)
    if layout:
        return _written(chunks_of(layout), num_layers, pp)
    if pp == 1 or args.first(*ENDS, *ACCOUNT) is None:
        return None
    first, last = (args.count(option) for option in ENDS)
    # A unit each for what is accounted for, which the end that has it holds instead of a layer.
    units = [int(args.has(option)) for option in ACCOUNT]
    rest = num_layers + sum(units) - (first or 0) - (last or 0)
    each, remainder = divmod(rest, pp - (first is not None) - (last is not None) or 1)
    ranks = [first or each, *[each] * (pp - 2), last or each]
    if remainder or any(layers % vp for layers in ranks):
        return None
    chunks = [layers // vp for layers in ranks] * vp
    chunks[0] -= units[0]
    chunks[-1] -= units[1]
    return OwnPipeline(num_ranks=pp, layers=tuple(chunks), mtp_layers=(0,) * len(chunks))


def _written(chunks: list[str], num_layers: int, pp: int) -> OwnPipeline | None:
    text = "".join(chunks)
    if len(chunks) % pp:
        raise UsageError(f"{LAYOUT} must have as many stages for each of {pp} ranks, but has {len(chunks)}: correct it")
    if (found := text.count("t")) != num_layers:
        raise UsageError(f"{LAYOUT} must have a t for each of {num_layers} layers, but has {found}: correct it")
    if (text[:1], text[-1:], text.count("E"), text.count("L")) != ("E", "L", 1, 1):
        raise UsageError(f"{LAYOUT} must begin with its only E and end with its only L: correct it")
    if pp == 1:
        return None
    layers, mtp = (tuple(chunk.count(letter) for chunk in chunks) for letter in "tm")
    return OwnPipeline(num_ranks=pp, layers=layers, mtp_layers=mtp)
