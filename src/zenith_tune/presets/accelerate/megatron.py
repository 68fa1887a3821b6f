"""Accelerate's Megatron-LM backend: the degrees of parallelism, recomputation and the distributed optimizer.

Four of its plugin's ways (utils/dataclasses.py, accelerator.py and utils/megatron_lm.py of 1.15.0) shape what is here.
Left out, the context size is 2. `recompute_activations` has no effect. Selective recomputation is refused by Megatron,
because the plugin always sets a method and a number of layers next to it; only a script of its own plugin, by
`other_megatron_args`, can ask for it. And the data-parallel size that the global batch is made of ignores context
parallelism, so that Megatron runs cp times as many micro-batches as the file says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout, divisors
from zenith_tune.layouts.rules import (
    EXPERT_WORLD,
    EXPERTS,
    HEADS,
    LAYERS,
    QUERY_GROUPS,
    WORLD,
    JobFacts,
    first_reason,
)
from zenith_tune.presets.accelerate.job import AccelerateJob
from zenith_tune.presets.accelerate.space import Axes, Backend
from zenith_tune.presets.parts import ImplicitDefault
from zenith_tune.presets.shared.subject import job_cluster
from zenith_tune.study.parameters import Value
from zenith_tune.units import positive_int

if TYPE_CHECKING:
    from zenith_tune.describe.cluster_spec import ClusterSpec

NONE, SELECTIVE, FULL = "none", "selective", "full"
DEFAULT_CLIPPING = 1.0
"""Accelerate's own."""
UNSAID_CONTEXT = 2
"""The context size that Accelerate takes where the file says none."""
MOST_TP = 64
_KEY = "megatron_lm_{}"
_KEYS = {
    "tp": _KEY.format("tp_degree"),
    "pp": _KEY.format("pp_degree"),
    "cp": _KEY.format("context_parallel_size"),
    "ep": _KEY.format("expert_model_parallel_size"),
    "etp": _KEY.format("expert_tensor_parallel_size"),
}
_GRANULARITY, _METHOD = _KEY.format("recompute_granularity"), _KEY.format("recompute_method")
_NUM_LAYERS = _KEY.format("recompute_num_layers")


class MegatronBackend(Backend):
    """The Megatron-LM backend."""

    default_names = ("tp", "pp", "sp", "recompute", "zero", "mbs")
    more_names = ("cp", "ep")
    wrapper = "MegatronEngine"
    framework = "megatron"

    @classmethod
    def also_by_default(cls, job: AccelerateJob, model: ModelSpec | None) -> set[str]:
        """Return ep for a mixture of experts, and either degree that the file itself has above 1."""
        is_mixture = model is not None and model.num_experts > 1
        return {name for name in ("cp", "ep") if _own_size(job, name) > 1} | ({"ep"} if is_mixture else set())

    @classmethod
    def choices(cls, job: AccelerateJob, names: set[str]) -> Axes:
        own = {name: _own_size(job, name) for name in _KEYS}
        inside = [size for size in divisors(job.gpus_per_machine) if size <= MOST_TP]
        anywhere = divisors(job.num_gpus)
        sizes = {"tp": inside, "pp": anywhere, "cp": anywhere, "ep": anywhere, "etp": [own["etp"]]}
        axes: Axes = {name: (own[name], *(s for s in found if s != own[name])) for name, found in sizes.items()}
        sp, zero = (
            job.settings.flag(_KEY.format(name)) for name in ("sequence_parallelism", "use_distributed_optimizer")
        )
        axes["sp"], axes["zero"] = (sp, not sp), (int(zero), int(not zero))
        script_recomputes = job.recompute_option is not None or "recompute" in job.carriers
        kinds = [NONE, FULL, *([SELECTIVE] if script_recomputes else [])]
        is_off = job.settings.word(_METHOD) == "block" and job.settings.get(_NUM_LAYERS) == 0
        kind = NONE if is_off else FULL
        axes["recompute"] = (kind, *(each for each in kinds if each != kind))
        return axes

    def implicit_defaults(self) -> list[ImplicitDefault]:
        if self.job.settings.get(_KEYS["cp"]) is not None:
            return []
        return [ImplicitDefault(name="cp", size=UNSAID_CONTEXT, meant=1, key=_KEYS["cp"], taken_by="Accelerate")]

    def ranks(self, params: Mapping[str, Value]) -> int:
        """Return world / (tp * pp): context parallelism does not count to Accelerate."""
        return max(self.job.num_gpus // (int(params["tp"]) * int(params["pp"])), 1)

    @property
    def least_ranks(self) -> int:
        return 1  # one copy of the model may take every GPU

    def explain(self, params: Mapping[str, Value]) -> str | None:
        tp, pp, cp, ep, etp = (int(params[name]) for name in _KEYS)
        layout = Layout(num_gpus=self.job.num_gpus, tp=tp, pp=pp, cp=cp, ep=ep, etp=etp)
        if broken := first_reason((WORLD, EXPERT_WORLD), JobFacts(), layout):
            return broken
        if params["sp"] and tp == 1:
            return "sequence parallelism needs tp above 1, but tp is 1"
        if ep > 1 and tp > 1 and not params["sp"]:
            return f"experts train with sequence parallelism where tp is above 1, but tp is {tp} without it"
        if params["zero"] and self.job.num_gpus == tp * pp and not self.axes["zero"][0]:
            return "the distributed optimizer has no effect without data parallelism, and dp is 1"
        return super().explain(params)

    def explain_model(self, params: Mapping[str, Value], subject: PlanSubject) -> str | None:
        """Return which rule of Megatron's a point breaks for the model."""
        facts = JobFacts.of(subject.model, subject.job)
        return first_reason((HEADS, QUERY_GROUPS, LAYERS, EXPERTS), facts, self.layout(params))

    def passes(self, params: Mapping[str, Value]) -> int | None:
        return None  # micro-batches are Megatron's own affair, inside of one call

    def changes(self, params: Mapping[str, Value]) -> dict[str, Any]:
        clipping = self.job.settings.get(_KEY.format("gradient_clipping"))
        return {
            **{key: int(params[name]) for name, key in _KEYS.items()},
            _KEY.format("num_micro_batches"): self.accumulation(params),
            _KEY.format("sequence_parallelism"): bool(params["sp"]),
            _KEY.format("use_distributed_optimizer"): bool(params["zero"]),
            _KEY.format("gradient_clipping"): DEFAULT_CLIPPING if clipping is None else clipping,
            _KEY.format("recompute_activations"): None,
            **self._recompute(params),
        }

    def settings(self, params: Mapping[str, Value]) -> dict[str, Value]:
        found: dict[str, Value] = {
            "tensor_model_parallel_size": params["tp"],
            "pipeline_model_parallel_size": params["pp"],
            "context_parallel_size": params["cp"],
            "expert_model_parallel_size": params["ep"],
            "num_micro_batches": self.accumulation(params),
            "sequence_parallel": bool(params["sp"]),
            "use_distributed_optimizer": bool(params["zero"]),
        }
        if self.own_micro_batch is not None:
            found["global_batch_size"] = self.global_batch
        if params["recompute"] == SELECTIVE:
            return {**found, "recompute_granularity": SELECTIVE}
        method, layers = _written_recompute(self.job, str(params["recompute"]))
        return {**found, "recompute_granularity": FULL, "recompute_method": method, "recompute_num_layers": layers}

    def layout(self, params: Mapping[str, Value]) -> Layout:
        kind = str(params["recompute"])
        method, layers = _written_recompute(self.job, kind)
        tp, pp, cp, ep, etp = (int(params[name]) for name in _KEYS)
        return Layout(
            num_gpus=self.job.num_gpus,
            tp=tp,
            pp=pp,
            cp=cp,
            ep=ep,
            etp=etp,
            micro_batch=self.micro_batch(params),
            global_batch=self.global_batch,
            zero=int(params["zero"]),
            recompute=f"full/{method}" if kind == FULL else kind,
            recompute_layers=layers if kind == FULL else 0,
            sequence_parallel=bool(params["sp"]),
        )

    def _recompute(self, params: Mapping[str, Value]) -> dict[str, Any]:
        if params["recompute"] == SELECTIVE:
            return dict.fromkeys((_GRANULARITY, _METHOD, _NUM_LAYERS))  # the script's own plugin says it
        method, layers = _written_recompute(self.job, str(params["recompute"]))
        return {_GRANULARITY: FULL, _METHOD: method, _NUM_LAYERS: layers}


def _own_size(job: AccelerateJob, name: str) -> int:
    """Return the degree that trials begin with; what the file leaves out is 1: no default of 2 comes in unseen."""
    return job.settings.whole(_KEYS[name]) or 1


def _written_recompute(job: AccelerateJob, kind: str) -> tuple[str, int]:
    """Return method and layers: none is full recomputation of a block of no layers, as there is no key for it."""
    if kind == NONE:
        return "block", 0
    method = job.settings.word(_METHOD) or "uniform"
    return method, positive_int(job.settings.get(_NUM_LAYERS)) or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorIsland:
    """The GPUs of a machine that NVLink joins, where that is not all of them."""

    size: int
    reason: str

    def explain(self, tp: int, own_tp: int) -> str | None:
        """Return why a degree is not tried; what the job itself has always is."""
        return None if tp in (1, own_tp) or tp <= self.size else f"tp must stay within {self.size}: {self.reason}"


def tensor_island(
    job: AccelerateJob, cluster: str | None, topology: str | None, subject: PlanSubject | UsageError
) -> TensorIsland | None:
    """Return the island, or None where every GPU of a machine is joined or nothing is known of the machines."""
    if topology is not None:
        return _of_file(job, Path(topology))
    machines = _machines(job, cluster, subject)
    # A machine with fewer GPUs than the job takes of each, such as a login node, is not where it runs.
    if machines is None or not machines.fast_domain < job.gpus_per_machine <= machines.gpus_per_node:
        return None
    from zenith_tune.describe.topology import tensor_reason

    return TensorIsland(size=machines.fast_domain, reason=tensor_reason(machines))


def _of_file(job: AccelerateJob, path: Path) -> TensorIsland | None:
    """Return what a file says of each machine, whatever GPUs it has."""
    from zenith_tune.describe.topology import node_reason, read_topology

    whole = read_topology(path)
    if whole.num_gpus < job.gpus_per_machine:
        problem = f"--topology must list the {job.gpus_per_machine} GPUs that the job takes of a machine"
        raise UsageError(
            f"{problem}, but {path} has {whole.num_gpus}", hint="save `nvidia-smi topo -m` on one of its machines"
        )
    node = whole.first(job.gpus_per_machine)
    size = node.fast_domain
    return None if size == node.num_gpus else TensorIsland(size=size, reason=node_reason(size, node))


def _machines(job: AccelerateJob, cluster: str | None, subject: PlanSubject | UsageError) -> ClusterSpec | None:
    if isinstance(subject, PlanSubject):
        return subject.cluster
    try:
        return job_cluster(cluster, job.num_gpus)
    except UsageError:
        if cluster is not None:  # what was named must not be passed over
            raise
        return None
