"""Every rule that a layout must follow, stated once: a test, and a message with the values that break it.

A test uses operators that numbers and arrays share, so that it applies to one `Layout` and to each row of a
`LayoutBatch`. Nothing here imports NumPy.

Legend: n_gpus ranks; tp tensor, pp pipeline, cp context, dp data, ep expert and etp expert tensor parallel sizes; vp
model chunks per pipeline rank; mbs micro-batch and gbs global batch, in samples; m micro-batches per step and rank.

Megatron Core and ms-swift fold the experts over the ranks of the dense layers: n_gpus = tp*cp*dp*pp = etp*ep*edp*pp.
In the documented rules of the first version every parallel size is a factor of n_gpus.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.layout import FOLDED, SPLIT, Layout
from zenith_tune.layouts.pipeline import ACCOUNTED, is_accounted, is_even, is_laid_out, layers_per_chunk
from zenith_tune.layouts.search_space import SIZES, limits_of

FULL = ("full/uniform", "full/block")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What the rules need to know about a model and its job; rules about an unknown fact (None) always hold."""

    num_layers: int | None = None
    num_attention_heads: int | None = None
    num_query_groups: int | None = None
    ffn_hidden: int | None = None
    """Feed-forward width of the dense layers; None where the model has none."""
    num_experts: int | None = None
    """0 for a model without experts."""
    moe_ffn_hidden: int | None = None
    has_expert_bias: bool = False
    seq_len: int | None = None
    framework: str | None = None

    @classmethod
    def of(cls, model: ModelSpec, job: JobSpec) -> JobFacts:
        has_dense = model.num_moe_layers < model.num_layers
        return cls(
            num_layers=model.num_layers,
            num_attention_heads=model.num_heads,
            num_query_groups=model.num_kv_heads,
            ffn_hidden=model.ffn_hidden if has_dense else None,
            num_experts=model.num_experts,
            moe_ffn_hidden=model.moe_ffn_hidden,
            has_expert_bias=bool(model.num_experts and model.linear_bias),
            seq_len=job.seq_len,
            framework=job.framework.name,
        )


Test = Callable[[Any, Any], Any]
"""From facts and a layout to a bool, or from facts and a batch to an array of them."""
Message = Callable[[JobFacts, Any], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRule:
    """One rule: its test, and the reason that it gives where a layout breaks it."""

    test: Test
    message: Message
    name: str = ""
    problem: str = ""
    """The rule in words, for the planner's list of what each rule excludes."""
    asks: tuple[str, ...] = ()
    """The facts that it needs."""

    def holds(self, facts: JobFacts, at: Any) -> Any:
        """Return whether a layout, or which layouts of a batch, follow the rule; True where a fact is unknown."""
        for name in self.asks:  # no generator: it would cost as much as most tests
            if getattr(facts, name) is None:
                return True
        return self.test(facts, at)

    def reason(self, facts: JobFacts, at: Any) -> str | None:
        """Return why a layout breaks the rule, or None."""
        return None if self.holds(facts, at) else self.message(facts, at)


def rule_of(name: str, problem: str, test: Test, values: Message, *, asks: str = "") -> LayoutRule:
    """Return a rule whose reason is its problem and the values that break it."""

    def message(facts: JobFacts, at: Any) -> str:
        return f"{problem}, but {values(facts, at)}"

    return LayoutRule(name=name, problem=problem, test=test, message=message, asks=tuple(asks.split()))


def implies(condition: Any, then: Any) -> Any:
    """Return whether `condition` implies `then`."""
    return (condition ^ True) | then


def indivisible(name: str, value: int, factors: str, *sizes: int) -> str | None:
    """Return why a value is no multiple of a product of sizes, or None."""
    product = math.prod(sizes)
    if value % product == 0:
        return None
    shown = str(product) if len(sizes) == 1 else f"({'*'.join(map(str, sizes))} = {product})"
    return f"{name} must be divisible by {factors}, but {value} % {shown} != 0"


def _multiple(
    rule: str,
    value: str,
    factors: str,
    sizes: Callable[[Any], tuple[Any, ...]],
    *,
    of: Callable[[Any], Any] | None = None,
    when: Callable[[Any], Any] = lambda at: True,
) -> LayoutRule:
    """Return the rule that a fact, or what `of` reads from the layout, is a multiple of a product of sizes."""

    def read(facts: JobFacts, at: Any) -> Any:
        return getattr(facts, value) if of is None else of(at)

    def message(facts: JobFacts, layout: Layout) -> str:
        return str(indivisible(value, read(facts, layout), factors, *sizes(layout)))

    return LayoutRule(
        name=rule,
        problem=f"{value} must be divisible by {factors}",
        test=lambda facts, at: implies(when(at), read(facts, at) % math.prod(sizes(at)) == 0),
        message=message,
        asks=(value,) if of is None else (),
    )


def _num_gpus(at: Any) -> Any:
    return at.num_gpus


def _pipeline_test(facts: JobFacts, at: Any) -> Any:
    layers = facts.num_layers
    assert layers is not None
    whole = is_even(layers, pp=at.pp, vp=at.vp) | is_accounted(layers, pp=at.pp, vp=at.vp)
    return whole | is_laid_out(layers, pp=at.pp, vp=at.vp) if _takes_laid_out(facts) else whole


def _pipeline_message(facts: JobFacts, at: Layout) -> str:
    layers, chunks = facts.num_layers or 0, f"{at.pp}*{at.vp} = {at.pp * at.vp}"
    if _takes_laid_out(facts) and at.pp > 1:
        return f"num_layers must be at least pp*vp, but {layers} < {chunks}"
    problem = "num_layers, or num_layers+2 with embedding and loss counted, must be divisible by pp*vp"
    return f"{problem}, but neither {layers} nor {layers + ACCOUNTED} gives whole chunks for {chunks}"


def _takes_laid_out(facts: JobFacts) -> bool:
    return limits_of(facts.framework or "").layout_strings


def _experts_only(name: str, fact: str, size: str) -> LayoutRule:
    """Return the rule that a size divides a fact about the experts, and is 1 for a model without."""

    def message(facts: JobFacts, layout: Layout) -> str:
        value = getattr(layout, size)
        if not facts.num_experts:
            return f"{size} must be 1 for a model without experts, but got {value}"
        return str(indivisible(fact, getattr(facts, fact), size, value))

    def test(facts: JobFacts, at: Any) -> Any:
        return getattr(facts, fact) % getattr(at, size) == 0 if facts.num_experts else getattr(at, size) == 1

    problem = f"{fact} must be divisible by {size}"
    return LayoutRule(name=name, problem=problem, test=test, message=message, asks=("num_experts",))


def _chunk(facts: JobFacts, at: Any) -> Any:
    return layers_per_chunk(facts.num_layers or 0, pp=at.pp, vp=at.vp)


def _framework_test(facts: JobFacts, at: Any) -> Any:
    limits = limits_of(facts.framework or "")
    holds = at.recompute_is(limits.recompute) & at.schedule_is(limits.schedules)
    for name in SIZES:
        if name not in limits.sizes:
            holds = holds & (getattr(at, name) == 1)
    return holds


def _framework_message(facts: JobFacts, layout: Layout) -> str:
    framework = facts.framework or ""
    limits = limits_of(framework)
    for name in SIZES:
        if name not in limits.sizes and getattr(layout, name) > 1:
            return f"{name} must be 1 with {framework}, but got {getattr(layout, name)}"
    if not layout.schedule_is(limits.schedules):
        return f"schedule must be {' or '.join(limits.schedules)} with {framework}, not {layout.schedule}"
    return f"recompute must be {' or '.join(limits.recompute)} with {framework}, not {layout.recompute}"


def _zero_message(facts: JobFacts, layout: Layout) -> str:
    stages = ", ".join(map(str, limits_of(facts.framework or "").zero_stages))
    return f"zero must be one of {stages} with {facts.framework}, but got {layout.zero}"


def _zero_test(facts: JobFacts, at: Any) -> Any:
    # A sum of comparisons works for a number and for an array.
    return sum(at.zero == stage for stage in limits_of(facts.framework or "").zero_stages) > 0


WORLD = _multiple("world", "n_gpus", "tp*pp*cp", lambda at: (at.tp, at.pp, at.cp), of=_num_gpus)
EXPERT_WORLD = _multiple("expert_world", "n_gpus", "etp*ep*pp", lambda at: (at.etp, at.ep, at.pp), of=_num_gpus)
BATCH = _multiple("batch", "gbs", "dp*mbs", lambda at: (at.dp, at.micro_batch), of=lambda at: at.global_batch)
HEADS = _multiple("heads", "num_attention_heads", "tp", lambda at: (at.tp,))
QUERY_GROUPS = rule_of(
    "query_groups",
    "num_query_groups must be a multiple or a divisor of tp",
    lambda facts, at: (facts.num_query_groups % at.tp == 0) | (at.tp % facts.num_query_groups == 0),
    lambda facts, at: f"got {facts.num_query_groups} and {at.tp}",
    asks="num_query_groups",
)
EXPERTS = _experts_only("experts", "num_experts", "ep")
DENSE = rule_of(
    "dense",
    "ep and etp must be 1 for a model without experts",
    lambda facts, at: bool(facts.num_experts) | ((at.ep == 1) & (at.etp == 1)),
    lambda facts, at: f"got {at.ep} and {at.etp}",
    asks="num_experts",
)
INTERLEAVING = rule_of(
    "interleaving",
    "vp above 1 needs pp above 1",
    lambda facts, at: (at.vp == 1) | (at.pp > 1),
    lambda facts, at: f"got vp {at.vp} and pp {at.pp}",
)
INTERLEAVED_BATCHES = _multiple(
    "interleaved_batches",
    "m",
    "pp when vp is above 1",
    lambda at: (at.pp,),
    of=lambda at: at.num_micro_batches,
    when=lambda at: (at.vp > 1) & (at.schedule_is(FOLDED) ^ True),
)
SCHEDULE = rule_of(
    "schedule",
    "zero-bubble needs vp above 1; zbv and dualpipe-v need vp 2 and 2*pp micro-batches, zbv one fewer",
    lambda facts, at: (
        implies(at.schedule_is(("zero-bubble",)), at.vp > 1)
        & implies(at.schedule_is(FOLDED), (at.vp == 2) & (at.num_micro_batches + at.schedule_is(("zbv",)) >= 2 * at.pp))
    ),
    lambda facts, at: f"got {at.schedule} with pp {at.pp}, vp {at.vp} and {at.num_micro_batches} micro-batches",
)
"""With fewer PyTorch's DualPipeV refuses to start, and its ZBV no longer fills the pipeline."""
SPLIT_KEEPS_ALL = rule_of(
    "split_keeps_all",
    "zero-bubble, zbv and dualpipe-v need recompute none",
    lambda facts, at: implies(at.schedule_is(SPLIT), at.recompute_is(("none",))),
    lambda facts, at: f"got {at.schedule} with recompute {at.recompute}",
)
"""PyTorch takes the weights' gradients one matrix at a time, and each recomputes its whole layer (2.13): one of Llama
runs 9 times again besides the one for inputs."""

RULES = {
    rule.name: rule
    for rule in (
        WORLD,
        EXPERT_WORLD,
        BATCH,
        HEADS,
        QUERY_GROUPS,
        _multiple("ffn", "ffn_hidden", "tp", lambda at: (at.tp,)),
        LayoutRule(
            name="pipeline",
            problem="num_layers, or num_layers+2, must be divisible by pp*vp, or the chunks be laid out",
            test=_pipeline_test,
            message=_pipeline_message,
            asks=("num_layers",),
        ),
        INTERLEAVING,
        # The schedule takes micro-batches in groups of pp.
        INTERLEAVED_BATCHES,
        SCHEDULE,
        SPLIT_KEEPS_ALL,
        # Each rank takes a chunk from both ends of the sequence, for an equal causal share.
        _multiple("context", "seq_len", "2*cp", lambda at: (2, at.cp), when=lambda at: at.cp > 1),
        rule_of(
            "sequence_parallel",
            "sequence parallelism needs tp above 1",
            lambda facts, at: implies(at.sequence_parallel, at.tp > 1),
            lambda facts, at: f"got tp {at.tp}",
        ),
        # It splits what context parallelism leaves.
        _multiple(
            "sequence_chunks",
            "seq_len",
            "cp*tp with sequence parallelism",
            lambda at: (at.cp, at.tp),
            when=lambda at: at.sequence_parallel,
        ),
        EXPERTS,
        _experts_only("expert_tensor", "moe_ffn_hidden", "etp"),
        rule_of(
            "expert_bias",
            "etp must be 1 for experts with a linear bias",
            lambda facts, at: (at.etp == 1) | (not facts.has_expert_bias),
            lambda facts, at: f"got {at.etp}",
        ),
        rule_of(
            "expert_sequence",
            "a mixture of experts with tp above 1 needs sequence parallelism",
            lambda facts, at: (at.tp == 1) | at.sequence_parallel | (not facts.num_experts),
            lambda facts, at: f"got tp {at.tp} without",
        ),
        LayoutRule(
            name="recompute_takes",
            problem="only full recomputation takes a number of layers",
            test=lambda facts, at: at.recompute_is(FULL) | (at.recompute_layers == 0),
            message=lambda facts, at: (
                f"recompute {at.recompute} takes no number of layers, but got {at.recompute_layers}"
            ),
        ),
        LayoutRule(
            name="recompute_chunk",
            problem="full recomputation takes 1 to layers per chunk",
            test=lambda facts, at: implies(
                at.recompute_is(FULL), (at.recompute_layers >= 1) & (at.recompute_layers <= _chunk(facts, at))
            ),
            message=lambda facts, at: (
                f"recompute {at.recompute} takes 1 to layers per chunk, "
                f"but got {at.recompute_layers} with {_chunk(facts, at)} layers per chunk"
            ),
            asks=("num_layers",),
        ),
        # A pipeline would gather gradients and weights once per micro-batch.
        rule_of(
            "zero_pipeline",
            "zero 2 and 3 need pp 1",
            lambda facts, at: (at.zero < 2) | (at.pp == 1),
            lambda facts, at: f"got zero {at.zero} and pp {at.pp}",
        ),
        LayoutRule(
            name="zero_stage",
            problem="the framework must have the stage of sharding",
            test=_zero_test,
            message=_zero_message,
            asks=("framework",),
        ),
        LayoutRule(
            name="framework",
            problem="the framework must support these parallel sizes and this recomputation",
            test=_framework_test,
            message=_framework_message,
            asks=("framework",),
        ),
    )
}
"""All rules by name, in an order in which no rule divides by an unchecked size."""

# Rules that only some commands have to follow.

LAYERS = _multiple("layers", "num_layers", "pp", lambda at: (at.pp,))
EVEN_CHUNKS = _multiple("chunks", "num_layers", "pp*vp", lambda at: (at.pp, at.vp), when=lambda at: at.vp > 1)
WHOLE_QUERY_GROUPS = _multiple("whole_query_groups", "num_query_groups", "tp", lambda at: (at.tp,))
"""Documented, and Megatron's own up to 0.15."""
DOCUMENTED_WORLD = _multiple(
    "documented_world",
    "n_gpus",
    "tp*pp*cp*ep*etp",
    lambda at: (at.tp, at.pp, at.cp, at.ep, at.etp),
    of=_num_gpus,
)
DOCUMENTED_BATCH = _multiple(
    "documented_batch",
    "gbs",
    "dp*mbs",
    lambda at: (at.dp // (at.ep * at.etp), at.micro_batch),
    of=lambda at: at.global_batch,
)
DOCUMENTED_EXPERT_TENSOR = rule_of(
    "documented_expert_tensor",
    "etp must not exceed tp",
    lambda facts, at: at.etp <= at.tp,
    lambda facts, at: f"{at.etp} > {at.tp}",
)


def first_reason(rules: Iterable[LayoutRule], facts: JobFacts, at: Any) -> str | None:
    """Return why a layout breaks the first of the rules that it breaks, or None."""
    return next((reason for rule in rules if (reason := rule.reason(facts, at)) is not None), None)


def broken_rules(model: ModelSpec, job: JobSpec, layout: Layout) -> list[tuple[LayoutRule, str]]:
    """Return every rule that a layout breaks, with the reason; only the first one where the world is broken."""
    facts = JobFacts.of(model, job)
    if (reason := WORLD.reason(facts, layout)) is not None:
        return [(WORLD, reason)]
    reasons = ((rule, rule.reason(facts, layout)) for rule in RULES.values())
    return [(rule, reason) for rule, reason in reasons if reason is not None]


def legal(rules: Iterable[LayoutRule], facts: JobFacts, at: Any) -> Any:
    """Return which layouts of a batch follow all rules."""
    mask = True
    for rule in rules:
        mask = mask & rule.holds(facts, at)
    return mask
