"""A job of verl: the values of its overrides, and those that a point stands for.

Keys and defaults are those of 0.9.1 (trainer/config/_generated_ppo_trainer.yaml), the lines of steps those of
utils/logger/aggregate_logger.py and trainer/ppo/metric_utils.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from zenith_rl.phase_preset import PhaseJob
from zenith_rl.phases import Answers, Phase, findings, named
from zenith_tune.evaluators.steps import LoggedSteps, Step, first_flaw, gib_to_bytes, read_number
from zenith_tune.layouts.layout import Layout, divisors
from zenith_tune.layouts.rules import BATCH, WORLD
from zenith_tune.presets.levers import ASSUMED
from zenith_tune.presets.shared.config_job import MBS, ConfigLever
from zenith_tune.study.parameters import Value

ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref"))
MICRO_BATCH, MINI_BATCH = f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.ppo_mini_batch_size"
BY_TOKENS, TOKENS = f"{ACTOR}.use_dynamic_bsz", f"{ACTOR}.ppo_max_token_len_per_gpu"
SEQUENCE_PARALLEL = f"{ACTOR}.ulysses_sequence_parallel_size"
LOG_PROBS = tuple(f"{part}.log_prob_micro_batch_size_per_gpu" for part in (ROLLOUT, REF))
TP, MEMORY = f"{ROLLOUT}.tensor_model_parallel_size", f"{ROLLOUT}.gpu_memory_utilization"
STRATEGY, ANSWERS = f"{ACTOR}.strategy", f"{ROLLOUT}.n"
CHECKPOINTING = "actor_rollout_ref.model.enable_gradient_checkpointing"
PROMPT, ANSWER = "data.max_prompt_length", "data.max_response_length"
GPUS, NODES = "trainer.n_gpus_per_node", "trainer.nnodes"
DEFAULTS: dict[str, Any] = {
    MINI_BATCH: 256,
    BY_TOKENS: False,
    TOKENS: 16384,
    SEQUENCE_PARALLEL: 1,
    TP: 2,
    MEMORY: 0.5,
    STRATEGY: "fsdp",
    ANSWERS: 1,
    CHECKPOINTING: True,
    PROMPT: 512,
    ANSWER: 512,
    GPUS: 8,
    NODES: 1,
    f"{ROLLOUT}.enforce_eager": False,
    f"{ROLLOUT}.max_num_batched_tokens": 8192,
    f"{ROLLOUT}.max_num_seqs": 256,
    "actor_rollout_ref.model.use_fused_kernels": False,
    f"{ACTOR}.fsdp_config.forward_prefetch": False,
}
COUNTS = (MINI_BATCH, TOKENS, SEQUENCE_PARALLEL, TP, ANSWERS, PROMPT, ANSWER, GPUS, NODES)
OFFLOADED = ("param", "optimizer")
SHARES = (0.4, 0.5, 0.6, 0.7, 0.8)
FSDP = ("fsdp", "fsdp2")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerlJob(PhaseJob):
    """A job of verl."""

    @property
    def micro_batch(self) -> int:
        return self.count(MICRO_BATCH)

    @property
    def global_batch(self) -> int:
        """Answers of an update."""
        return self.count(MINI_BATCH) * self.count(ANSWERS)

    @property
    def by_tokens(self) -> bool:
        """Whether micro-batches are packed up to a number of tokens."""
        return self.values.get(BY_TOKENS) is True

    @property
    def longest(self) -> int:
        return self.count(PROMPT) + self.count(ANSWER)

    def micro_batches(self, most: int) -> tuple[int, ...]:
        ranks = max(self.num_gpus // self.count(SEQUENCE_PARALLEL), 1)
        sizes = divisors(self.global_batch // ranks) if not self.by_tokens and self.global_batch >= ranks else []
        return tuple(size for size in sizes if size <= most and size != self.micro_batch)

    def choices(self) -> Mapping[str, tuple[Value, ...]]:
        tp, share = self.count(TP), self.values.get(MEMORY)
        sizes = [size for size in divisors(self.count(GPUS)) if size != tp]
        found: dict[str, tuple[Value, ...]] = {
            "tp": (tp, *sizes),
            "memory": (share, *(each for each in SHARES if each != share)) if isinstance(share, float) else (0.0,),
        }
        if self.by_tokens:
            own = self.count(TOKENS)
            least = self.longest / self.count(SEQUENCE_PARALLEL)
            others = (own * 2, own * 4, own // 2)
            found["tokens"] = (own, *(number for number in others if number >= least))
        elif type(size := self.values.get(LOG_PROBS[0])) is int and size > 0:
            found["log_probs"] = (size, size * 2, size * 4, *([size // 2] if size > 1 else []))
        if self.values.get(STRATEGY) in FSDP:
            is_on = self.values.get(CHECKPOINTING) is not False
            found["checkpointing"] = (is_on, not is_on)
            found["offload"] = (self.offload, not self.offload)
        return found

    @property
    def offload(self) -> bool:
        """Whether weights or optimizer states wait in the host's memory while answers are generated."""
        return any(self.values.get(key) is True for key in _offloads())

    def layout(self, params: Mapping[str, Value]) -> Layout:
        is_on = params.get("checkpointing") is True
        return Layout(
            num_gpus=self.num_gpus,
            cp=self.count(SEQUENCE_PARALLEL),
            micro_batch=1 if self.by_tokens else int(params[MBS]),
            global_batch=self.global_batch,
            zero=3 if self.values.get(STRATEGY) in FSDP else 1,
            recompute="full/uniform" if is_on else "none",
            recompute_layers=int(is_on),
        )

    def settings(self, params: Mapping[str, Value]) -> dict[str, Value]:
        found: dict[str, Value] = {TP: params["tp"]}
        if params["memory"]:
            found[MEMORY] = params["memory"]
        if self.by_tokens:
            found[TOKENS] = params["tokens"]
        else:
            found[MICRO_BATCH] = params[MBS]
        for key in LOG_PROBS if params.get("log_probs") else ():
            if type(self.values.get(key)) is int:
                found[key] = params["log_probs"]
        if "checkpointing" in params:
            found[CHECKPOINTING] = params["checkpointing"]
            if params["offload"] != self.offload:
                found |= dict.fromkeys(_offloads(), params["offload"])
        return found


def _offloads() -> list[str]:
    return [f"{ACTOR}.fsdp_config.{what}_offload" for what in OFFLOADED]


TIMERS = {
    "gen": Phase.GENERATION,
    "reward": Phase.REWARDS,
    "old_log_prob": Phase.LOG_PROBS,
    "ref": Phase.REFERENCE,
    "values": Phase.CRITIC,
    "adv": Phase.ADVANTAGES,
    "update_critic": Phase.CRITIC,
    "update_actor": Phase.UPDATE,
    "update_weights": Phase.SYNC,
}
"""The phases that verl's timers are of; others lie within these."""
_FORWARD = (Phase.LOG_PROBS, Phase.REFERENCE)
PHASES = {
    "tp": (Phase.GENERATION,),
    "memory": (Phase.GENERATION,),
    MBS: (Phase.UPDATE,),
    "tokens": (Phase.UPDATE, *_FORWARD),
    "log_probs": _FORWARD,
    "checkpointing": (Phase.UPDATE,),
    "offload": (Phase.UPDATE, *_FORWARD),
}
"""The phases that each axis touches."""
SETTINGS: Mapping[str, str] = {
    Phase.GENERATION: "rollout.tensor_model_parallel_size, gpu_memory_utilization, max_num_seqs, enforce_eager=False",
    Phase.UPDATE: f"{MICRO_BATCH}, or {BY_TOKENS}=True; less offload and recomputation",
    Phase.LOG_PROBS: "rollout. and ref.log_prob_micro_batch_size_per_gpu, or log_prob_use_dynamic_bsz=True",
    Phase.REWARDS: "more reward workers (reward.num_workers), or rewards while answers are generated",
    Phase.OTHER: "fewer answers to print or dump, and data loaders with more processes (data.dataloader_num_workers)",
}
"""The options of each phase."""
RULES = (WORLD, BATCH)
LEVERS: tuple[ConfigLever[VerlJob], ...] = (
    ConfigLever(
        name="no_padding",
        sets={"actor_rollout_ref.model.use_remove_padding": True},
        goes=lambda at: at.job.values.get("actor_rollout_ref.model.use_remove_padding") is False,
        saves={"compute": 0.2},
        source=f"{ASSUMED}: no work for the padding behind short answers",
    ),
    ConfigLever(
        name="cuda_graphs",
        sets={f"{ROLLOUT}.enforce_eager": False},
        saves={"overhead": 0.3},
        memory=0.02,
        source=f"{ASSUMED}: engines replay a decoding step in place of starting its kernels",
    ),
    ConfigLever(
        name="prefill_tokens",
        sets={f"{ROLLOUT}.max_num_batched_tokens": 32768},
        saves={"compute": 0.01},
        source=f"{ASSUMED}: fewer and larger passes over the prompts",
    ),
    ConfigLever(
        name="sequences",
        sets={f"{ROLLOUT}.max_num_seqs": 1024},
        saves={"compute": 0.03},
        source=f"{ASSUMED}: more answers share each reading of the weights (Pope et al., arXiv 2211.05102)",
    ),
    ConfigLever(
        name="fused_loss",
        sets={"actor_rollout_ref.model.use_fused_kernels": True},
        goes=lambda at: at.job.values.get(STRATEGY) in FSDP,
        saves={"compute": 0.01},
        memory=-0.1,
        source=f"{ASSUMED}: log-probabilities without the whole logits",
    ),
    ConfigLever(
        name="prefetch",
        sets={f"{ACTOR}.fsdp_config.forward_prefetch": True},
        goes=lambda at: at.job.values.get(STRATEGY) in FSDP,
        saves={"dp": 0.3},
        source=f"{ASSUMED}: weights of the next layer are gathered during the one before",
    ),
)

_STEP = re.compile(r"\bstep:([0-9]{1,12}) - (.{1,100000})")
_VALUE = re.compile(r"([\w/@.-]{1,200}):(?:np\.\w{1,20}\()?([0-9.eE+-]{1,40}|nan|-?inf)")
LOSS, GRADIENT = "actor/pg_loss", "actor/grad_norm"
SPEED, SECONDS, RESERVED = "perf/throughput", "perf/time_per_step", "perf/max_memory_reserved_gb"
PHASE = "timing_s/"


def read_steps(log: str) -> LoggedSteps:
    """Return the steps of a log with their phases, and what these say."""
    steps, texts = list[Step](), dict[str, str]()
    for match in _STEP.finditer(log):
        texts = dict(_VALUE.findall(match[2]))
        if not (step_s := read_number(texts.get(SECONDS, "")) or 0.0):
            continue
        timers = {name: read_number(texts.get(f"{PHASE}{name}", "")) for name in TIMERS}
        steps.append(
            Step(
                number=int(match[1]),
                seconds=step_s,
                gpu_tokens_per_s=read_number(texts.get(SPEED, "")),
                memory_bytes=gib_to_bytes(texts[RESERVED]) if RESERVED in texts else None,
                flaw=first_flaw({"loss": texts.get(LOSS, ""), "grad_norm": texts.get(GRADIENT, "")}),
                position=match.start(),
                phases=named(timers, TIMERS, step_s),
            )
        )
    peak = max((step.memory_bytes or 0 for step in steps), default=0)
    logged = LoggedSteps(steps=steps, peak_bytes=peak or None)
    return replace(logged, findings=findings(logged.phases, _answers(texts), SETTINGS))


def _answers(texts: Mapping[str, str]) -> Answers:
    """Return the answers of the last step: by the time that each took, else by their lengths."""
    for name, unit in ((f"{PHASE}agent_loop/generate_sequences", "s"), ("response_length", "tokens")):
        mean, longest = (read_number(texts.get(f"{name}/{which}", "")) for which in ("mean", "max"))
        if mean and longest:
            return Answers(mean=mean, longest=longest, unit=unit)
    return Answers()
