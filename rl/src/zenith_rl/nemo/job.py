"""A GRPO job of NeMo RL: the values of its configuration, and those that a point stands for.

Keys are those of examples/configs/grpo_math_1B.yaml of 0.7 and of August 2026, the lines of steps those of
algorithms/grpo.py and algorithms/utils.py (from 0.5 on).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from zenith_rl.phase_preset import PhaseJob
from zenith_rl.phases import Answers, Phase, findings, named
from zenith_tune.evaluators.steps import LoggedSteps, Step, first_flaw, read_number
from zenith_tune.layouts.layout import Layout, divisors
from zenith_tune.layouts.rules import BATCH, WORLD
from zenith_tune.presets.levers import ASSUMED
from zenith_tune.presets.shared.config_job import MBS, ConfigLever
from zenith_tune.study.parameters import Value

MEGATRON, DTENSOR = "policy.megatron_cfg", "policy.dtensor_cfg"
ENGINE, COLOCATED = "policy.generation.vllm_cfg", "policy.generation.colocated"
MICRO_BATCH, LOG_PROB_BATCH = "policy.train_micro_batch_size", "policy.logprob_batch_size"
GLOBAL_BATCH, LONGEST = "policy.train_global_batch_size", "policy.max_total_sequence_length"
PACKING, DYNAMIC = "policy.sequence_packing", "policy.dynamic_batching"
DIVISIBLE = "policy.make_sequence_length_divisible_by"
TP, MEMORY = f"{ENGINE}.tensor_parallel_size", f"{ENGINE}.gpu_memory_utilization"
ENGINE_EP, ENGINE_PP = f"{ENGINE}.expert_parallel_size", f"{ENGINE}.pipeline_parallel_size"
BACKEND, ON_POLICY = "policy.generation.backend", "loss_fn.force_on_policy_ratio"
GPUS, NODES = "cluster.gpus_per_node", "cluster.num_nodes"
COUNTS = (GLOBAL_BATCH, MICRO_BATCH, LONGEST, GPUS, NODES)
SHARES = (0.4, 0.5, 0.6, 0.7, 0.8)
SAME_BATCHES = 4
"""Tensor-parallel size from which NeMo RL wants log-probabilities in the micro-batches of the update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NemoJob(PhaseJob):
    """A job of NeMo RL; its GPUs are those of training and generation together."""

    log_probs: int
    """Answers of a pass for log-probabilities, which the configuration may take from the micro-batch."""
    divisible_by: int | None = None
    """What lengths are padded to, where that does not follow the tensor-parallel size."""

    @property
    def is_megatron(self) -> bool:
        return self.values.get(f"{MEGATRON}.enabled") is True

    def _size(self, name: str) -> int:
        """Return a parallel size of training."""
        return self.count(self._key(name))

    def _key(self, name: str) -> str:
        # Megatron's are tensor_model_parallel_size, but context_parallel_size.
        model = "model_" if self.is_megatron and name != "context" else ""
        return f"{self._back_end}.{name}_{model}parallel_size"

    @property
    def _back_end(self) -> str:
        return MEGATRON if self.is_megatron else DTENSOR

    @property
    def _checkpointing(self) -> str:
        return f"{self._back_end}.activation_checkpointing"

    @property
    def micro_batch(self) -> int:
        return self.count(MICRO_BATCH)

    @property
    def global_batch(self) -> int:
        """Answers of an update."""
        return self.count(GLOBAL_BATCH)

    @property
    def _packed(self) -> str:
        """What packs answers into micro-batches of tokens; empty where nothing does."""
        return next((key for key in (PACKING, DYNAMIC) if self.values.get(f"{key}.enabled") is True), "")

    @property
    def by_tokens(self) -> bool:
        return bool(self._packed)

    @property
    def generation_gpus(self) -> int:
        if self.values.get(f"{COLOCATED}.enabled") is not False:
            return self.num_gpus
        own = self.count(f"{COLOCATED}.resources.gpus_per_node")
        return own if self.count(NODES) == 1 else self.count(f"{COLOCATED}.resources.num_nodes") * own

    @property
    def training_gpus(self) -> int:
        return self.num_gpus if self.generation_gpus == self.num_gpus else self.num_gpus - self.generation_gpus

    @property
    def _same_batches(self) -> bool:
        """Whether log-probabilities must be taken in the micro-batches of the update."""
        return self._size("tensor") >= SAME_BATCHES and self.values.get(ON_POLICY) is not True

    def micro_batches(self, most: int) -> tuple[int, ...]:
        ranks = self.training_gpus // (self._size("tensor") * self._size("context") * self._size("pipeline"))
        sizes = divisors(self.global_batch // ranks) if not self.by_tokens and 1 <= ranks <= self.global_batch else []
        return tuple(size for size in sizes if size <= most and size != self.micro_batch)

    def choices(self) -> Mapping[str, tuple[Value, ...]]:
        found: dict[str, tuple[Value, ...]] = {}
        tp, share = self.count(TP), self.values.get(MEMORY)
        if self.values.get(BACKEND) == "vllm":
            per_engine = self.generation_gpus // self.count(ENGINE_PP)
            sizes = [size for size in divisors(self.count(GPUS)) if size != tp and per_engine % size == 0]
            found["tp"] = (tp, *(sizes if self.count(ENGINE_EP) == 1 else ()))
            if isinstance(share, float):
                found["memory"] = (share, *(each for each in SHARES if each != share))
        if self._packed:
            for axis, key in (("tokens", "train_mb_tokens"), ("log_probs", "logprob_mb_tokens")):
                own = self.count(f"{self._packed}.{key}")
                others = (own * 2, own * 4, own // 2)
                found[axis] = (own, *(number for number in others if number >= self.count(LONGEST)))
        elif not self._same_batches:
            own = self.log_probs
            found["log_probs"] = (own, own * 2, own * 4, *([own // 2] if own > 1 else []))
        own = self._size("tensor")
        sizes = [size for size in divisors(self.count(GPUS)) if size != own and self._may_split(size)]
        found["train_tp"] = (own, *sizes)
        is_on = self.values.get(self._checkpointing) is True
        found["checkpointing"] = (is_on, not is_on)
        if not self.is_megatron:
            offload = self.values.get(f"{DTENSOR}.cpu_offload") is True
            found["offload"] = (offload, not offload)
        return found

    def _may_split(self, tp: int) -> bool:
        """Return whether another tensor-parallel size is one that NeMo RL takes, and that gives the same results."""
        experts = self.is_megatron and self._size("expert") > 1
        is_accurate = tp < SAME_BATCHES or self._size("tensor") >= SAME_BATCHES or self.values.get(ON_POLICY) is True
        return not experts and is_accurate and (self.divisible_by is None or self.divisible_by % tp == 0)

    @property
    def on_request(self) -> tuple[str, ...]:
        # It costs time, and is tried where the job has it.
        return () if self.values.get(f"{DTENSOR}.cpu_offload") is True else ("offload",)

    def layout(self, params: Mapping[str, Value]) -> Layout:
        is_on = params["checkpointing"] is True
        return Layout(
            num_gpus=self.training_gpus,
            tp=int(params["train_tp"]),
            pp=self._size("pipeline"),  # 1 without Megatron
            cp=self._size("context"),
            micro_batch=1 if self.by_tokens else int(params[MBS]),
            global_batch=self.global_batch,
            zero=1 if self.is_megatron else 3,
            recompute="full/uniform" if is_on else "none",
            recompute_layers=int(is_on),
        )

    def settings(self, params: Mapping[str, Value]) -> dict[str, Value]:
        found: dict[str, Value] = {
            self._key("tensor"): params["train_tp"],
            self._checkpointing: params["checkpointing"],
        }
        found |= {key: params[axis] for axis, key in (("tp", TP), ("memory", MEMORY)) if axis in params}
        if self._packed:
            found[f"{self._packed}.train_mb_tokens"] = params["tokens"]
            found[f"{self._packed}.logprob_mb_tokens"] = params["log_probs"]
        else:
            found |= {MICRO_BATCH: params[MBS], LOG_PROB_BATCH: params.get("log_probs", params[MBS])}
        key = f"{MEGATRON}.sequence_parallel"
        if self.is_megatron and self.values.get(key) is True:  # Megatron Core refuses it without tensor parallelism
            found[key] = int(params["train_tp"]) > 1
        if "offload" in params:
            found[f"{DTENSOR}.cpu_offload"] = params["offload"]
        return found


TIMERS = {
    "prepare_for_generation/total": Phase.SYNC,
    "weight_sync": Phase.SYNC,
    "generation": Phase.GENERATION,
    "exposed_generation": Phase.GENERATION,
    "reward_calculation": Phase.REWARDS,
    "data_processing": Phase.DATA,
    "logprob_inference_prep": Phase.OFFLOAD,
    "policy_and_reference_logprobs": Phase.LOG_PROBS,
    "advantage_calculation": Phase.ADVANTAGES,
    "training_prep": Phase.OFFLOAD,
    "policy_training": Phase.UPDATE,
}
"""The phases that NeMo RL's timers are of; others lie within these."""
PHASES: dict[str, tuple[str, ...]] = {
    "tp": (Phase.GENERATION,),
    "memory": (Phase.GENERATION,),
    MBS: (Phase.UPDATE,),
    "tokens": (Phase.UPDATE,),
    "log_probs": (Phase.LOG_PROBS,),
    "train_tp": (Phase.UPDATE, Phase.LOG_PROBS),
    "checkpointing": (Phase.UPDATE,),
    "offload": (Phase.UPDATE, Phase.LOG_PROBS),
}
"""The phases that each axis touches."""
SETTINGS: Mapping[str, str] = {
    Phase.GENERATION: "vllm_cfg.tensor_parallel_size, gpu_memory_utilization, enforce_eager=false",
    Phase.UPDATE: f"{MICRO_BATCH}, or {PACKING}.enabled=true and its train_mb_tokens; less recomputation",
    Phase.LOG_PROBS: f"{LOG_PROB_BATCH}, or {PACKING}.logprob_mb_tokens",
    Phase.REWARDS: "more workers of the environment (env.*.num_workers)",
    Phase.SYNC: "engines with the tensor-parallel size of training, which need no other parts of the weights",
    Phase.OFFLOAD: "fewer states that leave the GPU: a smaller vllm_cfg.gpu_memory_utilization, or GPUs apart",
    Phase.OTHER: "validation less often (grpo.val_period), or fewer checkpoints",
}
"""The options of each phase."""
RULES = (WORLD, BATCH)
LEVERS: tuple[ConfigLever[NemoJob], ...] = (
    ConfigLever(
        name="packing",
        sets={f"{PACKING}.enabled": True},
        is_known=False,
        goes=lambda at: not at.job.by_tokens,
        saves={"compute": 0.2},
        source=f"{ASSUMED}: no work for the padding behind short answers",
    ),
    ConfigLever(
        name="cuda_graphs",
        sets={f"{ENGINE}.enforce_eager": False},
        is_known=False,
        saves={"overhead": 0.3},
        memory=0.02,
        source=f"{ASSUMED}: engines replay a decoding step in place of starting its kernels",
    ),
    ConfigLever(
        name="fused_rope",
        sets={f"{MEGATRON}.apply_rope_fusion": True},
        is_known=False,
        goes=lambda at: at.job.is_megatron,
        saves={"compute": 0.1},
        source="examples/configs/grpo_math_1B.yaml: about 20% of training with packing; half assumed",
    ),
    ConfigLever(
        name="fused_activation",
        sets={f"{MEGATRON}.bias_activation_fusion": True},
        is_known=False,
        goes=lambda at: at.job.is_megatron,
        saves={"compute": 0.05},
        source="examples/configs/grpo_math_1B.yaml: about 25% of training with packing and fused rope; less assumed",
    ),
    ConfigLever(
        name="keep_cache",
        sets={f"{MEGATRON}.empty_unused_memory_level": 0},
        is_known=False,
        goes=lambda at: at.job.is_megatron,
        saves={"overhead": 0.1},
        memory=0.05,
        source="examples/configs/grpo_math_1B.yaml: faster, with less room",
    ),
)

_STEP = re.compile(r"={5} Step ([0-9]{1,12})/[0-9]{1,12} ={5}")
_TOTAL = re.compile(r"Total step time: ([0-9.]{1,20})s")
_TIMER = re.compile(r"• ([a-z_/]{1,80}): ([0-9.]{1,20})s \(")
_SPEED = re.compile(r"E2E \(Tokens/sec/gpu\): ([0-9.]{1,20})")
_LOSS = re.compile(r"• Loss: (\S{1,40})")
_IMBALANCE = re.compile(r"Average Token Imbalance: ([0-9.]{1,20})%")


def read_steps(log: str) -> LoggedSteps:
    """Return the steps of a log with their phases, and what these say."""
    steps, imbalance = list[Step](), None
    starts = [*_STEP.finditer(log)]
    for match, end in zip(starts, [*(match.start() for match in starts[1:]), len(log)], strict=False):
        text = log[match.end() : end]
        total, speed, loss = _TOTAL.search(text), _SPEED.search(text), _LOSS.search(text)
        if total is None or not (step_s := read_number(total[1]) or 0.0):
            continue
        timers = {name: read_number(seconds) for name, seconds in _TIMER.findall(text)}
        steps.append(
            Step(
                number=int(match[1]),
                seconds=step_s,
                gpu_tokens_per_s=read_number(speed[1]) if speed else None,
                flaw=first_flaw({"loss": loss[1]}) if loss else None,
                position=match.start() + text.find(total[0]),
                phases=named(timers, TIMERS, step_s),
            )
        )
        if found := _IMBALANCE.search(text):
            imbalance = (read_number(found[1]) or 0.0) / 100
    logged = LoggedSteps(steps=steps)
    # The policy's log-probabilities and the reference's are one timer.
    return replace(logged, findings=findings(logged.phases, Answers(imbalance=imbalance), SETTINGS, forward_passes=2))
