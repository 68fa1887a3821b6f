"""Stand in for Megatron-LM's pretrain_gpt.py where there is neither torch nor a GPU: its options, checks and lines.

It takes Megatron's own spelling of options and refuses others, refuses layouts with Megatron's texts, and prints what
the release of `--standin-version` prints. The world is WORLD_SIZE ranks: one process stands for all of them, or for
the one that RANK names. With --fake-process-group the last rank prints nothing, as the real one.

Memory rule, in bytes per GPU: 2 GiB of context; for each parameter 18, or 6 and 12 shared by the ranks that hold the
same ones with the distributed optimizer; activations of 34 * s * b * h per layer, over tp * cp, for the micro-batches
in flight, of which full recomputation keeps 2 and all of one layer, selective 30; logits of 6 * s * b * v / tp.

Time rule: 6 * parameters * tokens at 400 TFLOP/s per GPU, times factors: 5% for each doubling of tp, cp and etp, 4% of
ep; (mbs + 0.3) / mbs for small kernels; 33% for full recomputation of all layers, 3% selective; and the bubble
(pp - 1) / (vp * micro-batches). Switches beside the layout have the factors of EFFECTS on time and memory, where the
layout has what they need; what Megatron switches off again has none and is dumped as off. `--standin-fixed-s` and
`--standin-noise` add seconds to each step, and a relative deviation that is drawn anew for each; with
`--standin-pace` a step takes so many seconds for each that it states.

Where the tree has Megatron's calculator of micro-batches, each step has as many as that says when the loop asks it.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

GIB, MIB = 2**30, 2**20
VERSIONS = {"0.7": (0, 7), "0.12": (0, 12), "0.13": (0, 13), "0.16": (0, 16), "0.20": (0, 20)}
COUNTS = {
    "tensor-model-parallel-size": 1,
    "pipeline-model-parallel-size": 1,
    "context-parallel-size": 1,
    "expert-model-parallel-size": 1,
    "micro-batch-size": 1,
    "num-query-groups": 1,
    "moe-router-topk": 2,
    "train-iters": 6,
    "log-interval": 100,
    "vocab-size": 50257,
}
OPTIONAL_COUNTS = """num-layers hidden-size num-attention-heads seq-length ffn-hidden-size max-position-embeddings
    kv-channels num-experts moe-ffn-hidden-size global-batch-size recompute-num-layers eval-iters rotary-base
    num-layers-per-virtual-pipeline-stage make-vocab-size-divisible-by"""
SWITCHES = """bf16 fp16 swiglu group-query-attention untie-embeddings-and-output-weights disable-bias-linear mock-data
    sequence-parallel use-distributed-optimizer overlap-grad-reduce overlap-param-gather recompute-activations
    moe-grouped-gemm log-throughput use-mcore-models no-position-embedding no-persist-layer-norm qk-layernorm
    add-qkv-bias"""
TEXTS = """normalization position-embedding-type tokenizer-type tokenizer-model transformer-impl attention-backend
    moe-token-dispatcher-type attention-dropout hidden-dropout lr split data-path"""
LEVERS: dict[str, tuple[tuple[int, int], tuple[int, int], str]] = {
    "tp-comm-overlap": ((0, 7), (0, 20), "switch"),
    "cross-entropy-loss-fusion": ((0, 7), (0, 20), "switch"),
    "manual-gc": ((0, 7), (0, 20), "switch"),
    "manual-gc-interval": ((0, 7), (0, 20), "count"),
    "ddp-bucket-size": ((0, 7), (0, 20), "count"),
    "fp8-format": ((0, 7), (0, 20), "text"),
    "moe-permute-fusion": ((0, 11), (0, 20), "switch"),
    "te-rng-tracker": ((0, 11), (0, 20), "switch"),
    "enable-cuda-graph": ((0, 11), (0, 20), "switch"),
    "use-precision-aware-optimizer": ((0, 11), (0, 20), "switch"),
    "external-cuda-graph": ((0, 12), (0, 20), "switch"),
    "cuda-graph-scope": ((0, 12), (0, 20), "text"),
    "cross-entropy-fusion-impl": ((0, 12), (0, 20), "text"),
    "ddp-pad-buckets-for-high-nccl-busbw": ((0, 12), (0, 20), "switch"),
    "optimizer-cpu-offload": ((0, 12), (0, 20), "switch"),
    "overlap-cpu-optimizer-d2h-h2d": ((0, 12), (0, 20), "switch"),
    "grad-reduce-in-bf16": ((0, 12), (0, 20), "switch"),
    "fp8-recipe": ((0, 12), (0, 20), "text"),
    "moe-enable-deepep": ((0, 12), (0, 20), "switch"),
    "exp-avg-dtype": ((0, 13), (0, 20), "text"),
    "exp-avg-sq-dtype": ((0, 13), (0, 20), "text"),
    "moe-router-fusion": ((0, 14), (0, 20), "switch"),
    "overlap-moe-expert-parallel-comm": ((0, 14), (0, 20), "switch"),
    "delay-wgrad-compute": ((0, 14), (0, 20), "switch"),
    "cuda-graph-impl": ((0, 15), (0, 20), "text"),
    "moe-flex-dispatcher-backend": ((0, 16), (0, 20), "text"),
    "cuda-graph-modules": ((0, 18), (0, 20), "text"),
}
"""Options beside the layout: the first and last release that takes them, and their kind."""
OTHER_NAMES = {"fp8_format": "fp8"}
EFFECTS: dict[str, tuple[float, float]] = {
    "overlap_grad_reduce": (0.97, 1.0),
    "overlap_param_gather": (0.98, 1.0),
    "tp_comm_overlap": (0.96, 1.01),
    "overlap_moe_expert_parallel_comm": (0.92, 1.02),
    "delay_wgrad_compute": (0.99, 1.0),
    "moe_grouped_gemm": (0.95, 1.0),
    "moe_permute_fusion": (0.97, 1.0),
    "moe_router_fusion": (0.99, 1.0),
    "cross_entropy_loss_fusion": (0.98, 0.99),
    "manual_gc": (0.995, 1.0),
    "enable_cuda_graph": (0.97, 1.05),
    "external_cuda_graph": (0.98, 1.02),
    "cuda_graph_impl": (0.97, 1.05),
    "ddp_bucket_size": (0.995, 1.0),
    "grad_reduce_in_bf16": (0.98, 0.98),
    "fp8": (0.8, 1.0),
    "use_precision_aware_optimizer": (1.0, 0.98),
    "optimizer_cpu_offload": (2.0, 0.7),
}
"""Factors of time and memory."""
NO_DEEPEP = "DeepEP is not installed. Please install DeepEP package from https://github.com/deepseek-ai/deepep."
SINCE = {
    "expert-tensor-parallel-size": (0, 10),
    "num-virtual-stages-per-pipeline-rank": (0, 11),
    "account-for-embedding-in-pipeline-split": (0, 11),
    "account-for-loss-in-pipeline-split": (0, 11),
    "recompute-modules": (0, 12),
    "pipeline-model-parallel-layout": (0, 13),
    "moe-router-force-load-balancing": (0, 13),
    "fake-process-group": (0, 16),
}
"""Options that older releases refuse."""


def read_options(words: list[str]) -> argparse.Namespace:
    """Read the command line as the release does that `--standin-version` names."""
    first = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    first.add_argument("--standin-version", choices=VERSIONS, default="0.20")
    first.add_argument("--standin-memory-gib", type=float, default=80.0)
    first.add_argument("--standin-switches-off", default="", help="an argument that has no effect here")
    first.add_argument("--standin-fixed-s", type=float, default=0.0)
    first.add_argument("--standin-noise", type=float, default=0.0)
    first.add_argument("--standin-pace", type=float, default=0.0)
    own, rest = first.parse_known_args(words)
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="pretrain_gpt.py")
    for name, default in {**dict.fromkeys(OPTIONAL_COUNTS.split()), **COUNTS}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in SWITCHES.split():
        parser.add_argument(f"--{name}", action="store_true")
    for name in TEXTS.split():
        parser.add_argument(f"--{name}")
    parser.add_argument("--recompute-granularity", choices=("full", "selective"))
    parser.add_argument("--recompute-method", choices=("uniform", "block"))
    _add_levers(parser, VERSIONS[own.standin_version])
    _add_newer(parser, VERSIONS[own.standin_version])
    options = parser.parse_args(rest)
    options.fixed_s, options.noise, options.pace = own.standin_fixed_s, own.standin_noise, own.standin_pace
    options.version, options.memory_gib = VERSIONS[own.standin_version], own.standin_memory_gib
    if own.standin_switches_off:
        setattr(options, own.standin_switches_off, False)
    return options


def _add_levers(parser: argparse.ArgumentParser, version: tuple[int, int]) -> None:
    for name, (first, last, kind) in LEVERS.items():
        dest = OTHER_NAMES.get(name.replace("-", "_"), name.replace("-", "_"))
        if not first <= version <= last:
            parser.set_defaults(**{dest: None})
        elif kind == "switch":
            parser.add_argument(f"--{name}", action="store_true", dest=dest)
        else:
            parser.add_argument(f"--{name}", type=int if kind == "count" else str, dest=dest)


def _add_newer(parser: argparse.ArgumentParser, version: tuple[int, int]) -> None:
    for name, first in SINCE.items():
        if version < first:
            parser.set_defaults(**{name.replace("-", "_"): None})
        elif name.startswith(("account", "fake", "moe")):
            parser.add_argument(f"--{name}", action="store_true")
        elif name == "recompute-modules":
            parser.add_argument(f"--{name}", nargs="*")
        else:
            parser.add_argument(f"--{name}", type=str if name.endswith("layout") else int)


class Training:
    """A layout that Megatron accepts; what it refuses raises with Megatron's text."""

    def __init__(self, options: argparse.Namespace, world: int) -> None:
        self.options, self.world = options, world
        self.tp, self.pp = options.tensor_model_parallel_size, options.pipeline_model_parallel_size
        self.cp, self.ep = options.context_parallel_size, options.expert_model_parallel_size
        self.etp = options.expert_tensor_parallel_size or self.tp
        self.mbs = options.micro_batch_size
        self.granularity = "selective" if options.recompute_activations else options.recompute_granularity
        self.sequence_parallel = options.sequence_parallel and self.tp > 1
        self._check_ranks()
        self._check_shape()
        self.vp = self._checked_chunks()
        self._check_recompute()
        self._check_levers()

    def _check_ranks(self) -> None:
        size = self.tp * self.pp * self.cp
        if self.world % size:
            raise AssertionError(
                f"world size ({self.world}) is not divisible by total_model_size (total_model_size={size})"
            )
        self.dp = self.world // size
        self.gbs = self.options.global_batch_size or self.mbs * self.dp
        if self.gbs % (self.mbs * self.dp):
            factors = f"micro batch size ({self.mbs}) times data parallel size ({self.dp})"
            raise AssertionError(f"global batch size ({self.gbs}) is not divisible by {factors}")
        self.num_micro_batches = self.looped = self.gbs // (self.mbs * self.dp)
        self.consumed = 0
        experts = self.etp * self.ep * self.pp
        if self.options.version < SINCE["expert-tensor-parallel-size"]:
            if self.dp % self.ep:
                raise RuntimeError(f"data_parallel_size ({self.dp}) is not divisible by expert_model_parallel_size ")
        elif self.world % experts:
            size_text = f"expert_tensor_model_pipeline_parallel size ({experts})"
            raise RuntimeError(f"world_size ({self.world}) is not divisible by {size_text}")
        self.edp = max(1, self.world // experts)

    def _check_shape(self) -> None:
        options, tp = self.options, self.tp
        groups = options.num_query_groups if options.group_query_attention else options.num_attention_heads
        if options.num_attention_heads % tp:
            problem = f"num_attention_heads ({options.num_attention_heads}) must be a multiple of"
            raise ValueError(f"{problem} tensor_model_parallel_size ({tp}).")
        may_divide = options.version >= (0, 16)
        if groups % tp and not (may_divide and tp % groups == 0):
            problem = f"num_query_groups ({groups}) must be a multiple{' or divisor' if may_divide else ''} of"
            raise ValueError(f"{problem} tensor_model_parallel_size ({tp}).")
        if self.cp > 1 and options.seq_length % (2 * self.cp):
            raise AssertionError(
                "seq-length should be a multiple of 2 * context-parallel-size if context-parallel-size > 1."
            )
        if self.ep > 1 and options.num_experts is None:
            raise ValueError("num_moe_experts must be non None to use expert-parallel.")
        if options.num_experts is not None:
            if options.num_experts % self.ep:
                raise AssertionError("Number of experts should be a multiple of expert model parallel_size.")
            if tp > 1 and not self.sequence_parallel:
                problem = "During training, performance may degrade if MoE and tensor parallelism"
                raise ValueError(f"{problem}are enabled without also enabling sequence parallelism.")

    def _checked_chunks(self) -> int:
        """Return the model chunks per pipeline rank."""
        options = self.options
        per_chunk, chunks = options.num_layers_per_virtual_pipeline_stage, options.num_virtual_stages_per_pipeline_rank
        layout = options.pipeline_model_parallel_layout
        if sum(given is not None for given in (per_chunk, chunks, layout)) > 1:
            raise AssertionError("No more than one of the options of virtual stages may be set at once")
        if layout is not None:
            stages = expanded(layout).split("|")
            if len(stages) % self.pp:
                raise AssertionError("pipeline_model_parallel_layout must be divisible by pipeline_model_parallel_size")
            if (count := "".join(stages).count("t")) != options.num_layers:
                raise AssertionError(f"Number of decoder layers {count}must match num_layers {options.num_layers}")
            chunks = len(stages) // self.pp
        else:
            accounted = (options.account_for_embedding_in_pipeline_split, options.account_for_loss_in_pipeline_split)
            num_layers = options.num_layers + sum(map(bool, accounted))
            if num_layers % self.pp:
                raise AssertionError("num_layers should be divisible by pipeline_model_parallel_size")
            per_rank = num_layers // self.pp
            if per_chunk is not None:
                chunks = per_rank // per_chunk
            if per_rank % (per_chunk or chunks or 1):
                raise AssertionError(f"num_layers_per_pipeline_rank {per_rank} should be divisible by vp_size {chunks}")
        if (chunks or 1) > 1:
            self._check_interleaving()
        return chunks or 1

    def _check_interleaving(self) -> None:
        if self.pp < 2:
            raise RuntimeError("pipeline-model-parallel size should be greater than 1 with interleaved schedule")
        count = self.num_micro_batches
        if count < self.pp:
            problem = "The number of contiguous micro-batches in a virtual pipeline stage"
            raise ValueError(f"{problem}should range in [PP={self.pp} , M={count}]")
        if remainder := count % self.pp:
            problem = (
                "The remainder of M (the total micro-batches) divided by N (number of contiguous micro-batches in a"
            )
            bound = "should be 0, or larger than or equal to the pipeline-parallel size"
            raise RuntimeError(f"{problem} virtual pipeline stage) {bound}, but it is {remainder}.")

    def _check_recompute(self) -> None:
        options = self.options
        if self.granularity == "selective":
            if options.recompute_method is not None:
                raise AssertionError("recompute method is not yet supported for selective recomputing granularity")
            if options.recompute_num_layers is not None:
                raise ValueError("When using recompute_granularity: selective recompute_num_layers must be None.")
        elif self.granularity == "full" and options.recompute_method is None:
            raise ValueError('Using recompute_granularity: full so recompute_method must be "block" or "uniform"')
        elif self.granularity == "full" and options.recompute_num_layers is None:
            most = options.num_layers // self.pp
            problem = "When using recompute_granularity: full recompute_num_layers must be between 1 and"
            raise ValueError(f"{problem} num_layers_per_pipeline_rank: {most}")

    def _check_levers(self) -> None:
        """Refuse what validate_args and TransformerConfig do."""
        options = self.options
        if options.tp_comm_overlap and not self.sequence_parallel:
            raise AssertionError(
                "Tensor parallel communication/GEMM overlap can happen only when sequence parallelism is enabled"
            )
        if options.overlap_param_gather and not (options.use_distributed_optimizer and options.overlap_grad_reduce):
            raise AssertionError("Must use --overlap-param-gather with --overlap-grad-reduce")
        if options.cross_entropy_fusion_impl == "te" and options.version >= (0, 18):
            raise AssertionError("Transformer Engine cross entropy loss fusion is disabled due to stability issues.")
        if options.overlap_moe_expert_parallel_comm and (self.ep == 1 or self.granularity == "full"):
            raise AssertionError("overlap_moe_expert_parallel_comm is only supported with expert model parallelism")
        if options.delay_wgrad_compute and not options.overlap_moe_expert_parallel_comm:
            raise AssertionError("overlap_moe_expert_parallel_comm must be enabled when enabling delay_wgrad_compute")
        if self.granularity and (options.enable_cuda_graph or options.cuda_graph_impl not in (None, "none")):
            raise ValueError("CUDA graphs not supported with activation recomputation.")
        if options.moe_token_dispatcher_type == "flex":
            raise ImportError(NO_DEEPEP)

    def effects(self) -> tuple[float, float]:
        """Return by what the switches beside the layout change time and memory."""
        on = [factors for name, factors in EFFECTS.items() if getattr(self.options, name, None)]
        return math.prod(time for time, _ in on), math.prod(memory for _, memory in on)

    def parameters(self) -> tuple[float, float]:
        """Return the parameters of the dense part and of the experts, of the whole model."""
        options, hidden = self.options, self.options.hidden_size
        matrices = 3 if options.swiglu else 2
        mlp = matrices * hidden * (options.ffn_hidden_size or 4 * hidden)
        dense = options.num_layers * 4 * hidden**2 + 2 * hidden * options.vocab_size
        if options.num_experts is None:
            return dense + options.num_layers * mlp, 0.0
        expert = matrices * hidden * (options.moe_ffn_hidden_size or options.ffn_hidden_size or 4 * hidden)
        return dense, options.num_layers * options.num_experts * expert

    def memory_bytes(self) -> float:
        """Return the peak of a GPU of the first stage by the memory rule."""
        options = self.options
        dense, experts = self.parameters()
        sharded = options.use_distributed_optimizer
        state = dense / (self.tp * self.pp) * (6 + 12 / (self.dp * self.cp) if sharded else 18)
        state += experts / (self.ep * self.etp * self.pp) * (6 + 12 / self.edp if sharded else 18)
        tokens = options.seq_length * self.mbs / self.cp
        kept = {"full": 2, "selective": 30, None: 34}[self.granularity]
        per_layer = tokens * options.hidden_size / self.tp
        num_layers = math.ceil(options.num_layers / self.pp)
        recomputed = num_layers
        if options.recompute_method == "block":
            recomputed = min(num_layers, options.recompute_num_layers * self.vp)
        layers = per_layer * (kept * recomputed + 34 * (num_layers - recomputed))
        in_flight = min(self.pp, self.num_micro_batches) * (1 + (self.pp - 1) / (self.pp * self.vp) * (self.vp > 1))
        logits = 6 * tokens * options.vocab_size / self.tp if self.pp == 1 else 0
        used = state + layers * in_flight + 34 * per_layer + logits
        return float(2 * GIB + used * self.effects()[1])

    def step_s(self) -> float:
        """Return the seconds of a step by the time rule."""
        options = self.options
        dense, experts = self.parameters()
        active = dense + experts * options.moe_router_topk / (options.num_experts or 1)
        time_s = 6 * active * self.gbs * options.seq_length / self.world / 400e12
        time_s *= 1 + 0.05 * math.log2(self.tp * self.cp * (self.etp if experts else 1)) + 0.04 * math.log2(self.ep)
        time_s *= (self.mbs + 0.3) / self.mbs * (1 + (self.pp - 1) / (self.vp * self.num_micro_batches))
        num_layers = options.num_layers / self.pp
        share = (
            min(1, options.recompute_num_layers * self.vp / num_layers) if options.recompute_method == "block" else 1
        )
        again = {"full": 1 + 0.33 * share, "selective": 1.03, None: 1.0}[self.granularity]
        noise = random.gauss(1, options.noise)
        return float(time_s * again * self.effects()[0] + options.fixed_s) * noise


def expanded(layout: str) -> str:
    """Return a pipeline's layout without its repetitions.

    >>> expanded("Et*3|(tt|)*2,m|L")
    'Ettt|tt|tt|m|L'
    """
    while found := re.search(r"\(([^()]*)\)\*(\d+)|(\w)\*(\d+)", layout):
        group, times, letter, letters = found.groups()
        layout = layout.replace(found[0], group * int(times) if letter is None else letter * int(letters), 1)
    return layout.replace(",", "")


def print_header(training: Training) -> None:
    """Print the sizes and the table of arguments."""
    dense = f"using world size: {training.world}, data-parallel size: {training.dp}"
    hierarchy = ", hierarchical context-parallel sizes: None" if training.options.version >= (0, 12) else ""
    sizes = f"tensor-model-parallel size: {training.tp}, pipeline-model-parallel size: {training.pp}"
    print(f"{dense}, context-parallel size: {training.cp}{hierarchy}, {sizes}")
    print("------------------------ arguments ------------------------")
    hidden = ("version", "memory_gib", "fixed_s", "noise", "pace")
    for name, value in sorted(vars(training.options).items()):
        if name not in hidden:
            print(f"  {name} {'.' * (48 - len(name))} {value}")
    print("-------------------- end of arguments ---------------------", flush=True)


def iteration_line(training: Training, iteration: int) -> str:
    """Return one line as the release prints it."""
    options, version = training.options, training.options.version
    step_s = training.step_s() * (4 if iteration == 1 else 1)
    time.sleep(step_s * options.pace)
    now = datetime.now()
    stamp = f"{now:%Y-%m-%d %H:%M:%S.%f}" if version >= (0, 16) else f"{now:%Y-%m-%d %H:%M:%S}"
    dense, experts = training.parameters()
    active = dense + experts * options.moe_router_topk / (options.num_experts or 1)
    tflops = 6 * active * training.gbs * options.seq_length / training.world / step_s / 1e12
    fields = [
        f" [{stamp}] iteration {iteration:8d}/{options.train_iters:8d}",
        f"consumed samples: {training.consumed:12d}",
        f"elapsed time per iteration (ms): {step_s * 1000:.1f}",
        *([f"throughput per GPU (TFLOP/s/GPU): {tflops:.1f}"] if options.log_throughput else []),
        f"learning rate: {1e-4:.6E}",
        f"global batch size: {training.gbs:5d}",
        f"lm loss: {10 / (1 + iteration / 4):.6E}",
        *(["load_balancing_loss: 1.000000E+00"] if options.num_experts and version >= (0, 16) else []),
        "loss scale: 1.0",
        f"grad norm: {4 / iteration:.3f}",
        f"number of skipped iterations: {0:3d}",
        f"number of nan iterations: {0:3d} |",
    ]
    return " | ".join(fields)


def memory_line(rank: int, iteration: int, used_mib: float) -> str:
    """Return the line of one rank's memory."""
    sizes = f"allocated: {used_mib * 0.7:.2f} | max allocated: {used_mib * 0.97:.2f}"
    reserved = f"reserved: {used_mib:.2f} | max reserved: {used_mib:.2f}"
    return f"[Rank {rank}] (after {iteration} iterations) memory (MB) | {sizes} | {reserved}"


def shown_ranks(training: Training) -> range:
    """Return the ranks that this process prints for."""
    last = training.world - 1
    if (text := os.environ.get("RANK")) is None:
        return range(training.world)
    rank = int(text)
    return range(0) if training.options.fake_process_group and rank == last else range(rank, rank + 1)


def train(training: Training) -> None:
    """Print what the ranks print: sizes by the first, speed by the last, memory by the first of each replica."""
    options, ranks = training.options, shown_ranks(training)
    # A fake group has no last rank to speak for it: the one that runs does.
    is_speaking = training.world - 1 in ranks or (options.fake_process_group and len(ranks) > 0)
    if 0 in ranks:
        print_header(training)
    used_bytes = training.memory_bytes()
    if used_bytes > options.memory_gib * GIB:
        free = f"GPU 0 has a total capacity of {options.memory_gib:.2f} GiB of which 412.00 MiB is free."
        wanted = f"Tried to allocate {used_bytes / GIB - options.memory_gib + 0.5:.2f} GiB."
        raise SystemExit(f"[rank0]: torch.OutOfMemoryError: CUDA out of memory. {wanted} {free}")
    calculator = microbatch_calculator(training)
    for iteration in range(1, options.train_iters + 1):
        if calculator is not None:
            ask(calculator, training)
        training.consumed += training.gbs
        used_bytes = max(used_bytes if iteration > 1 else 0.0, training.memory_bytes())
        if is_speaking and iteration % options.log_interval == 0:
            print(iteration_line(training, iteration), flush=True)
        if iteration == min(2, options.train_iters):
            for rank in ranks:
                if rank // (training.tp * training.cp) % training.dp == 0:
                    print(memory_line(rank, iteration, used_bytes / MIB), flush=True)


def microbatch_calculator(training: Training) -> Any:
    """Return the tree's own calculator; None where it has none, as releases before 0.8."""
    if not (Path(__file__).parent / "megatron" / "core" / "num_microbatches_calculator.py").exists():
        return None
    from megatron.core import num_microbatches_calculator as found

    found.init_num_microbatches_calculator(0, None, training.gbs, training.mbs, training.dp)
    return found


def ask(calculator: Any, training: Training) -> None:
    """Take the micro-batches of the next step, as Megatron's loop does."""
    calculator.update_num_microbatches(training.consumed, consistency_check=False, verbose=True)
    if training.consumed and calculator.get_num_microbatches() != training.looped:
        raise AssertionError("Number of microbatches should not decrease, and another one is saved as a checkpoint")
    training.looped = calculator.get_num_microbatches()
    calculator.update_num_microbatches(training.consumed, consistency_check=True, verbose=True)
    training.num_micro_batches = calculator.get_num_microbatches()
    training.gbs = training.num_micro_batches * training.mbs * training.dp


if __name__ == "__main__":
    train(Training(read_options(sys.argv[1:]), int(os.environ.get("WORLD_SIZE", "1"))))
