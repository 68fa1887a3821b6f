"""How many GPUs a run of a pretrain script trains on: one for each process that is started."""

from __future__ import annotations

from collections.abc import Sequence

from zenith_tune.describe.megatron.args import whole
from zenith_tune.presets.megatron_lm_run import PretrainRun
from zenith_tune.shell.options import canonical

PER_NODE, NODES = "--nproc-per-node", "--nnodes"
VARIABLE = "WORLD_SIZE"


def started_gpus(run: PretrainRun) -> int | None:
    """Return torchrun's processes, or WORLD_SIZE where the command or its script sets it; None where neither tells."""
    per_node, nodes = _option(run.launcher, PER_NODE), _option(run.launcher, NODES)
    num_here, num_nodes = whole(per_node or ""), whole(nodes or "1")
    if num_here is not None and num_nodes is not None:
        return num_here * num_nodes or None
    return whole(run.variables.get(VARIABLE, "")) or None


def _option(words: Sequence[str], option: str) -> str | None:
    """Return the value of one of a launcher's options, in either spelling."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.startswith("--") and canonical(name) == option:
            return value if equals else next(iter(words[index + 1 : index + 2]), None)
    return None
