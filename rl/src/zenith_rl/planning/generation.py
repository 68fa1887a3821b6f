"""The time and memory of generation: an engine that decodes many answers at once, a token of each at a time.

A decoding step reads the weights that its tokens use, and the keys and values of all answers in flight; with many of
them it is bound by the matrix units instead (Pope et al., arXiv 2211.05102). An answer that ends makes room for the
next one, until the last ones run almost alone.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from zenith_rl.planning.lengths import AnswerLengths
from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.job_spec import is_narrow
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.estimates.calibration import TimeCoefficients
from zenith_tune.estimates.collectives import all_reduce_time
from zenith_tune.estimates.workload import FloatArray, Machine
from zenith_tune.units import GIB

BF16 = 2.0
MOST_SEQUENCES = 1024
"""Most answers that an engine decodes at once: vLLM's own default on large GPUs."""
ENGINE_BYTES = 4.0 * GIB
"""Memory of an engine besides weights and cache: CUDA context, captured graphs, activations of a prefill. Assumed."""
STEP_S, LAYER_S, EXPERTS_S = 1.0e-3, 2.0e-5, 6.0e-5
"""What a decoding step takes for its scheduling and sampling, and a layer and one with experts for the starts of their
kernels in a CUDA graph, however little they do. Assumed, not fitted."""
MOST_TP = 64
MOST_STEPPED = 8192
"""Answers of an engine that are stepped through; more are as many times as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationWork:
    """What is generated in a step."""

    prompts: int
    group: int
    """Answers to each prompt."""
    prompt_len: int
    lengths: AnswerLengths

    @property
    def answers(self) -> int:
        return self.prompts * self.group

    @property
    def tokens(self) -> float:
        """Tokens of all prompts and answers, as they are trained on."""
        return self.answers * (self.prompt_len + self.lengths.mean)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and answer that may come."""
        return self.prompt_len + self.lengths.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """How engines generate the answers of a step, and what it takes."""

    tp: int
    engines: int
    sequences: int
    """Answers that an engine decodes at once."""
    memory_share: float
    """Share of a GPU's memory that it may take, as vLLM's `gpu_memory_utilization`."""
    prefill_s: float
    decode_s: float
    tail_s: float
    """Part of `decode_s` in which less than half of the engine's places are taken: what waits for long answers."""

    @property
    def seconds(self) -> float:
        return self.prefill_s + self.decode_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One inference engine of `tp` GPUs."""

    model: ModelSpec
    cluster: ClusterSpec
    coefficients: TimeCoefficients
    tp: int
    precision: str = "bf16"
    """Of the weights; keys and values are in bf16."""

    @property
    def num_bytes(self) -> float:
        """Of one weight."""
        return 1.0 if is_narrow(self.precision) else BF16

    @property
    def weight_bytes(self) -> float:
        """Of one GPU."""
        return self.num_bytes * self.model.num_params / self.tp

    @property
    def cache_bytes(self) -> float:
        """Of one token on one GPU: heads of keys and values are split, a latent is not."""
        m = self.model
        if m.latent_attention is not None:
            return BF16 * m.num_layers * (m.latent_attention.kv_rank + m.latent_attention.qk_rope_dim)
        return BF16 * m.num_layers * m.kv_size / min(self.tp, m.num_kv_heads)

    def tokens_in(self, memory_bytes: float) -> int:
        """Return the tokens that the cache has room for in so much memory of each GPU."""
        return int((memory_bytes - self.weight_bytes - ENGINE_BYTES) / self.cache_bytes)

    def generate(self, work: GenerationWork, engines: int, memory_bytes: float, ahead: int = 1) -> Generation | None:
        """Return what generation takes with so much memory for each GPU; None where it does not fit.

        Engines may begin the answers of the next step before the longest of the last one have ended, `ahead` steps in
        all: figures are of one of them.
        """
        tokens = self.tokens_in(memory_bytes)
        mean = work.prompt_len + work.lengths.mean
        if tokens < work.longest:
            return None
        engines = min(engines, work.answers)
        number = math.ceil(work.answers * ahead / engines)
        places = max(min(MOST_SEQUENCES, number, int(tokens / mean)), 1)
        # Of very many answers the first ones stand for the rest, but for those that end last.
        stepped = min(number, max(MOST_STEPPED, 4 * places))
        steps, active, context = _in_flight(work.lengths.sample(stepped), places, work.prompt_len)
        seconds = steps * self.step_s(active, context) / ahead
        is_tail = active < places / 2
        seconds[~is_tail] *= number / stepped
        return Generation(
            tp=self.tp,
            engines=engines,
            sequences=places,
            memory_share=memory_bytes / self.cluster.gpu.memory_bytes,
            prefill_s=math.ceil(work.prompts / engines) * self._prefill_s(work.prompt_len),
            decode_s=float(np.sum(seconds)),
            tail_s=float(np.sum(seconds[is_tail])),
        )

    def step_s(self, active: FloatArray, context: FloatArray) -> FloatArray:
        """Return the time of a decoding step with so many answers, whose tokens together are `context`."""
        m, c = self.model, self.coefficients
        machine = Machine.of(self.cluster, self.precision)
        memory = machine.memory_bytes_per_s * c.memory_efficiency
        experts = m.num_moe_layers * m.num_experts * m.expert_params
        idle = (1 - m.top_k / m.num_experts) ** active if m.num_experts else np.zeros_like(active)
        tables = m.embedding_params * (0 if m.tied_embeddings else 1)
        read = self.num_bytes * (m.num_params - tables - experts * idle) / self.tp / memory
        flops = 2 * (m.num_active_params - tables) * active / self.tp / (machine.matrix_flops * c.gemm_efficiency)
        cache = context * self.cache_bytes / memory
        ranks = np.full_like(active, self.tp)
        near = np.minimum(ranks, self.cluster.fast_domain)
        message = BF16 * active * m.hidden
        sums = 2 * m.num_layers * all_reduce_time(message, ranks, near, machine, c)
        starts = STEP_S + LAYER_S * m.num_layers + EXPERTS_S * m.num_moe_layers
        result: FloatArray = np.maximum(read, flops) + cache + sums + starts
        return result

    def _prefill_s(self, prompt_len: int) -> float:
        """Return the time to read one prompt, among others; the answers to it share its keys and values."""
        rate = self.tp * self.cluster.gpu.matrix_flops(self.precision) * self.coefficients.gemm_efficiency
        return 2 * self.model.num_active_params * prompt_len / rate


def _in_flight(lengths: FloatArray, places: int, prompt_len: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the spans of an engine's run: decoding steps, answers in flight and their mean tokens together."""
    ends = [0.0] * places
    starts = np.zeros_like(lengths)
    for number, length in enumerate(lengths):
        starts[number] = heapq.heappop(ends)
        heapq.heappush(ends, starts[number] + length)
    times = np.concatenate([starts, starts + lengths])
    ones = np.ones_like(lengths)
    more = np.concatenate([ones, -ones])
    tokens = np.concatenate([np.full_like(lengths, prompt_len), -(prompt_len + lengths)])
    order = np.argsort(times, kind="stable")
    steps = np.diff(times[order])
    active = np.cumsum(more[order])[:-1]
    grown = np.concatenate([[0.0], np.cumsum(active * steps)[:-1]])
    context = np.cumsum(tokens[order])[:-1] + grown + active * steps / 2
    is_span = steps > 0
    return steps[is_span], active[is_span], context[is_span]


def engine_sizes(model: ModelSpec, num_gpus: int) -> Iterator[int]:
    """Yield the sizes of engines that so many GPUs can be split into."""
    tp = 1
    while tp <= min(num_gpus, MOST_TP):
        if num_gpus % tp == 0 and model.num_heads % tp == 0:
            yield tp
        tp *= 2
