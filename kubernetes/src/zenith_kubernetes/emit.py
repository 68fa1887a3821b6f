"""A planned layout as a TrainJob: `zenithtune plan --emit trainjob`."""

from __future__ import annotations

import math
import re

from zenith_kubernetes.manifest import RUNTIME, JobManifest
from zenith_tune.planner.plan import PlannedLayout
from zenith_tune.planner.planner import Planner
from zenith_tune.presets.emission import Emission, Target
from zenith_tune.presets.megatron.emit import emit_megatron
from zenith_tune.units import GIB

PROCESS_BYTES = 8 * GIB
"""Host memory of the process of one GPU: Python, CUDA, NCCL, pinned buffers and data workers; a rule of thumb."""
# Kubeflow's runtimes say where the nodes meet as torchrun's own variables.
_MEET = """export MASTER_ADDR="${MASTER_ADDR:-${PET_MASTER_ADDR:-}}"
export MASTER_PORT="${MASTER_PORT:-${PET_MASTER_PORT:-29500}}"
"""


def emit_train_job(target: Target) -> Emission:
    """Return a TrainJob that runs Megatron-LM with the layout, by its own script."""
    script = emit_megatron(target)
    name = re.sub(r"[^a-z0-9]+", "-", f"{target.model.name}-{target.cluster.name}".lower()).strip("-")[:50]
    planned = Planner(target.model, target.cluster, target.job).evaluate([target.layout])[0]
    job = JobManifest.train_job(name=name).sized(target.num_nodes, target.gpus_per_node)
    job = job.with_memory(host_gib(planned, target.gpus_per_node)).with_argv(["bash", "-c", _MEET + script.text])
    notes = [f"the image of the runtime {RUNTIME} has no Megatron-LM: set spec.trainer.image to one that has"]
    notes += [note for note in script.notes if "MASTER_ADDR" not in note and "zenithtune optimize" not in note]
    notes.append("tune it by: zenithtune optimize --kubernetes manifest=trainjob.yaml, with the command that it runs")
    return Emission(file_name="trainjob.yaml", text=f"# {target.title}\n{job.as_yaml()}", notes=tuple(notes))


def host_gib(planned: PlannedLayout, gpus_per_node: int) -> int:
    """Return the host memory of a node: of each GPU's process, and of its states, which saving a checkpoint copies."""
    states = sum(planned.memory_parts[name] for name in ("weights", "optimizer"))
    return math.ceil(gpus_per_node * (PROCESS_BYTES + states) / GIB)
