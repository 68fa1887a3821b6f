"""What is searched of a job of torchtitan, the rules of its layouts, and the settings that a point stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.layout import FOLDED, SCHEDULES, SPLIT, Layout, divisors
from zenith_tune.layouts.rules import (
    BATCH,
    DENSE,
    EXPERT_WORLD,
    EXPERTS,
    HEADS,
    SCHEDULE,
    SPLIT_KEEPS_ALL,
    WHOLE_QUERY_GROUPS,
    WORLD,
    JobFacts,
    LayoutRule,
    first_reason,
    rule_of,
)
from zenith_tune.presets.arguments import searched_axes
from zenith_tune.presets.framework_preset import AxisSpace
from zenith_tune.presets.levers import set_levers
from zenith_tune.presets.shared.config_job import facts_of
from zenith_tune.presets.torchtitan.dialect import AC_MODE, CUDA_GRAPHS_OFF
from zenith_tune.presets.torchtitan.job import (
    EXPERT_TENSOR,
    REPLICATE,
    RESHARD,
    SEQUENCE_PARALLEL,
    SHARD,
    SIZES,
    TitanJob,
)
from zenith_tune.presets.torchtitan.job import SCHEDULE as SCHEDULE_OPTION
from zenith_tune.presets.torchtitan.levers import LEVERS
from zenith_tune.study.parameters import Params, Value

AXES = ("tp", "pp", "schedule", "cp", "ep", "shard", "mbs", "ac")
LONG_SEQUENCE = 16_384
"""Tokens from which on context parallelism is searched without being asked for."""
ONE_STAGE = {"1f1b": SCHEDULES[0], "gpipe": "gpipe"}
"""Schedules with one stage on each rank, by PyTorch's names in small letters, and as layouts have them."""
TWO_STAGES = {
    "interleaved1f1b": SCHEDULES[0],
    "loopedbfs": "gpipe",
    "interleavedzerobubble": "zero-bubble",
    "zbvzerobubble": "zbv",
    "dualpipev": "dualpipe-v",
}
TRIED = ("1F1B", "Interleaved1F1B")
ON_REQUEST = ("InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
"""Tried where `search` names schedules: torch.compile, which they cannot have, mostly saves more."""
FSDP, KEPT, DDP = "fsdp", "fsdp-kept", "ddp"
"""How weights are held: sharded, sharded and kept from forward to backward, or whole on each rank."""
POLICIES = {FSDP: "default", KEPT: "never"}


RULES: tuple[LayoutRule, ...] = (
    WORLD,
    DENSE,
    EXPERT_WORLD,
    EXPERTS,
    HEADS,
    WHOLE_QUERY_GROUPS,
    rule_of(
        "sequence",
        "seq_len must be divisible by tp, and by 2*cp with context parallelism",
        # Each context rank takes a piece from both ends.
        lambda facts, at: facts.seq_len % (at.tp * (1 + (at.cp > 1) * (2 * at.cp - 1))) == 0,
        lambda facts, at: f"got {facts.seq_len} with tp {at.tp} and cp {at.cp}",
        asks="seq_len",
    ),
    # Embedding and output count as a layer each.
    rule_of(
        "stages",
        "a pipeline must have no more stages than num_layers+2",
        lambda facts, at: at.pp * at.vp <= facts.num_layers + 2,
        lambda facts, at: f"{at.pp}*{at.vp} stages are more than {facts.num_layers}+2",
        asks="num_layers",
    ),
    BATCH,
    # Schedule1F1B of PyTorch refuses fewer.
    rule_of(
        "micro_batches",
        "1F1B needs as many micro-batches as stages",
        lambda facts, at: (at.pp == 1) | (at.vp > 1) | at.schedule_is(("gpipe",)) | (at.num_micro_batches >= at.pp),
        lambda facts, at: f"got {at.num_micro_batches} with pp {at.pp}",
    ),
    # ScheduleInterleaved1F1B of PyTorch makes rounds of at least pp, all of the same number.
    rule_of(
        "rounds",
        "an interleaved schedule needs micro-batches in equal rounds of pp or more",
        lambda facts, at: (at.vp == 1) | at.schedule_is(("gpipe", *FOLDED)) | (at.num_micro_batches % _rounds(at) == 0),
        lambda facts, at: f"got {at.num_micro_batches} with pp {at.pp}",
    ),
    SCHEDULE,
    SPLIT_KEEPS_ALL,
)


def _rounds(at: Any) -> Any:
    whole = at.num_micro_batches // at.pp
    return whole + (whole == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TitanSpace(AxisSpace):
    """The axes of a job, and the settings that a point stands for."""

    job: TitanJob
    facts: JobFacts

    @classmethod
    def of(cls, job: TitanJob, model: ModelSpec | None, search: str, mbs_max: int) -> Self:
        """Return the axes that `search` names; the others stay as they are."""
        facts = facts_of(model, job.seq_len)
        choices = _choices(job, facts, mbs_max, has_split="schedule" in search.split("+"))
        return cls(job=job, axes=searched_axes(search, choices, _on_request(job, model)), facts=facts)

    def own_point(self) -> Params | None:
        """Return the point that the job itself stands for; None where a trial of it would run another way."""
        job = self.job
        accumulates = job.size("pp") > 1 and job.rank_batch * job.batch_ranks != job.global_batch
        return None if accumulates or self.explain(self.first_point) is not None else self.first_point

    def explain(self, params: Mapping[str, Value]) -> str | None:
        """Return which rule a point breaks."""
        layout = self.layout(params)
        broken = first_reason(RULES, self.facts, layout)
        if broken is not None:
            return broken
        if layout.pp == 1 and params["schedule"] != self.axes["schedule"][0]:
            return f"a schedule needs pp above 1, but got {params['schedule']} with pp 1"
        if layout.schedule_is(SPLIT) and self.job.compiles:
            return f"{params['schedule']} goes with no torch.compile, but the job compiles"
        return self._explain_sharding(layout, str(params["shard"]))

    def _explain_sharding(self, layout: Layout, shard: str) -> str | None:
        replicas, ranks = self.job.replicas, layout.dp
        if shard == DDP and (layout.tp, layout.pp, layout.cp, layout.ep) != (1, 1, 1, 1):
            return f"ddp goes with no other parallelism, but got tp {layout.tp}, pp {layout.pp} and cp {layout.cp}"
        if shard != FSDP and ranks * layout.cp == 1:
            return f"{shard} needs data-parallel ranks, but there is one"
        if shard == KEPT and layout.pp > 1:
            return "with a pipeline weights are kept anyway, so that fsdp-kept is fsdp"
        if ranks % replicas:
            return f"data-parallel ranks must be a multiple of the {replicas} replicas, but got {ranks}"
        if (ranks // replicas * layout.cp * layout.tp) % layout.ep:
            return f"ep must divide the ranks that share weights, but {layout.ep} does not"
        return None

    def layout(self, params: Mapping[str, Value]) -> Layout:
        tp, pp = int(params["tp"]), int(params["pp"])
        schedule = str(params["schedule"]).lower()
        recompute = {"none": "none", "full": "full/uniform"}.get(str(params["ac"]), "selective")
        return Layout(
            num_gpus=self.job.num_gpus,
            tp=tp,
            pp=pp,
            cp=int(params["cp"]),
            ep=int(params["ep"]),
            vp=1 if pp == 1 or schedule in ONE_STAGE else 2,
            # One that is not known is taken for what most are.
            schedule=SCHEDULES[0] if pp == 1 else (ONE_STAGE | TWO_STAGES).get(schedule, SCHEDULES[0]),
            micro_batch=int(params["mbs"]),
            global_batch=self.job.global_batch,
            zero=_zero(str(params["shard"]), pp),
            recompute=recompute,
            recompute_layers=int(recompute == "full/uniform"),
            sequence_parallel=tp > 1 and self.job.own(SEQUENCE_PARALLEL) is not False,
        )

    def settings(self, params: Mapping[str, Value]) -> dict[str, Value]:
        layout, dialect, shard = self.layout(params), self.job.dialect, str(params["shard"])
        replicas = layout.dp if shard == DDP else self.job.replicas
        found: dict[str, Value] = {
            **{key: int(params[name]) for name, key in SIZES.items() if name != "ep" or dialect.has_experts},
            REPLICATE: replicas,
            SHARD: layout.dp // replicas,
            RESHARD: str(self.job.own(RESHARD)) if shard == DDP else POLICIES[shard],
            SCHEDULE_OPTION: str(params["schedule"]),
            AC_MODE: str(params["ac"]),
            **self._batch(layout),
        }
        if dialect.has_cuda_graphs and (layout.pp > 1 or layout.ep > 1):
            found[CUDA_GRAPHS_OFF] = True
        for lever in set_levers(LEVERS, self.levers_of(params)):
            found |= lever.sets(self.job, layout)
        return found

    def _batch(self, layout: Layout) -> dict[str, Value]:
        """Return the batch, which stays what it is: with a pipeline, all of a rank's micro-batches are one pass."""
        dialect, micro_batches = self.job.dialect, layout.num_micro_batches
        tokens = self.job.seq_len if dialect.counts_tokens else 1
        if layout.pp == 1:
            rank, pipeline = layout.micro_batch, None
        elif dialect.counts_tokens:
            rank, pipeline = layout.micro_batch, micro_batches
        else:
            rank, pipeline = layout.micro_batch * micro_batches, layout.micro_batch
        found: dict[str, Value] = {
            dialect.micro_batch: rank * tokens,
            dialect.global_batch: layout.global_batch * tokens,
        }
        return found if pipeline is None else found | {dialect.pipeline_batch: pipeline}

    def written(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """Return what is written for a point: what the command has as options, and what is not so anyway."""
        job, is_known = self.job, self.job.is_known
        # -1 is for all ranks that are left, which is what a point means.
        return {
            name: value
            for name, value in self.settings(params).items()
            if name in job.options or not is_known or job.own(name) not in ((value, -1) if name == SHARD else (value,))
        }


def _zero(shard: str, pp: int) -> int:
    """Return what is sharded: a pipeline keeps gathered weights and gradients until all micro-batches are through."""
    if shard == DDP:
        return 0
    return 1 if pp > 1 else 2 if shard == KEPT else 3


def _on_request(job: TitanJob, model: ModelSpec | None) -> list[str]:
    is_short = job.seq_len < LONG_SEQUENCE and job.size("cp") == 1
    is_dense = not job.dialect.has_experts or (model is not None and not model.num_experts)
    return [name for name, is_rare in (("cp", is_short), ("ep", is_dense)) if is_rare]


def _choices(job: TitanJob, facts: JobFacts, mbs_max: int, *, has_split: bool) -> dict[str, tuple[Value, ...]]:
    """Return each axis with the job's own value first."""
    num_gpus = job.num_gpus
    found: dict[str, tuple[Value, tuple[Value, ...]]] = {}
    for name in SIZES:
        sizes = [size for size in divisors(num_gpus) if _goes_alone(name, size, num_gpus, facts)]
        is_fixed = (name == "pp" and job.splits_itself) or (name == "ep" and job.count(EXPERT_TENSOR) > 1)
        # A model that is not known has experts only where the job itself cuts them.
        is_unknown = name == "ep" and facts.num_experts is None and job.size("ep") == 1
        found[name] = (job.size(name), () if is_fixed or is_unknown else tuple(sizes))
    own_shard = DDP if job.is_unsharded else KEPT if job.own(RESHARD) == POLICIES[KEPT] else FSDP
    has_schedules = num_gpus > 1 and not job.splits_itself
    schedules = (*TRIED, *(ON_REQUEST if has_split and not job.compiles else ()))
    found["schedule"] = (str(job.own(SCHEDULE_OPTION)), schedules if has_schedules else ())
    found["shard"] = (own_shard, () if num_gpus == 1 else (FSDP, KEPT, *(() if job.replicas > 1 else (DDP,))))
    found["mbs"] = (job.micro_batch, tuple(size for size in divisors(job.global_batch) if size <= mbs_max))
    found["ac"] = (str(job.own(AC_MODE)), ("none", "selective", "full"))
    return {name: tuple(dict.fromkeys((found[name][0], *found[name][1]))) for name in AXES}


def _goes_alone(name: str, size: int, num_gpus: int, facts: JobFacts) -> bool:
    sizes: dict[str, Any] = {name: size}
    layout = Layout(num_gpus=num_gpus, global_batch=num_gpus * num_gpus, **sizes)
    return first_reason(RULES, facts, layout) is None
