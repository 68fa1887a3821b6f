"""The nodes and GPUs that a command's own launcher asks for."""

from __future__ import annotations

from zenith_tune.errors import UsageError
from zenith_tune.presets.deepspeed.command import launcher_option, launcher_words
from zenith_tune.presets.launched_gpus import started_gpus
from zenith_tune.study.resources import Resources

_NODES = ("--nnodes", "--num-nodes", "--num-machines", "-N")


def launched_resources(command: str, num_gpus: int | None = None) -> Resources:
    """Return the nodes, and the GPUs of each where the launcher or else `num_gpus` tells.

    >>> launched_resources("torchrun --nnodes 2 --nproc-per-node 4 train.py")
    Resources(nodes=2, gpus_per_node=4, avoid=())
    """
    try:
        started = started_gpus(command) or num_gpus
    except UsageError:  # a hostfile that cannot be read is told by the preset that needs it
        started = num_gpus
    nodes = _num_nodes(command)
    if started is None or started % nodes:
        return Resources(nodes=nodes)
    return Resources(nodes=nodes, gpus_per_node=started // nodes)


def _num_nodes(command: str) -> int:
    given = launcher_option(launcher_words(command), *_NODES) or ""
    # torchrun also takes a range: an elastic job runs with its least number as well.
    least = given.partition(":")[0]
    return int(least) if least.isdecimal() and int(least[:6]) > 0 else 1
