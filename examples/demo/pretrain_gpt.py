"""Pretend to be Megatron-LM's pretrain_gpt.py on eight H100, without a GPU.

It takes the options of a dense model and its layout, refuses layouts as Megatron-LM does, runs out of memory as a GPU
of 80 GiB would, and prints Megatron-LM's iteration lines. Its times come from rules of its own, not from the planner's
equations and their calibration: the planner must find its way here as it does on a machine that it has not seen.

Time of a step: matrix products at 54% of the peak, less for few tokens at a time and for each further tp rank; full
recomputation adds the forward pass, selective 1%; tensor parallelism moves the activations of a micro-batch eight times
per layer, data parallelism the gradients and parameters once, at 380 GB/s; the pipeline idles for
(pp - 1) / (micro-batches * vp) of it; iterations differ by a fifth of a percent.

Memory: 4 GiB of context and buffers; 6 bytes per parameter and 12 more shared by the data-parallel ranks; activations
of each layer for the micro-batches in flight; the logits of one micro-batch on the last stage.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time

GIB = 2**30
DEVICE_GIB = 80.0
CONTEXT_GIB = 4.0
PEAK_FLOPS = 989e12
LINK_BYTES_PER_S = 380e9
MEMORY_BYTES_PER_S = 2.8e12
NOISE = 0.002
START_UP_S = 0.5
WARM_UP = 2.5

SIZES = {
    "num-layers": 2,
    "hidden-size": 128,
    "ffn-hidden-size": 512,
    "num-attention-heads": 8,
    "num-query-groups": 8,
    "vocab-size": 32000,
    "seq-length": 1024,
    "max-position-embeddings": 1024,
    "tensor-model-parallel-size": 1,
    "pipeline-model-parallel-size": 1,
    "context-parallel-size": 1,
    "num-virtual-stages-per-pipeline-rank": 1,
    "micro-batch-size": 1,
    "global-batch-size": 8,
    "recompute-num-layers": 0,
    "train-iters": 20,
    "log-interval": 1,
    "ddp-bucket-size": 0,
    "manual-gc-interval": 0,
}
FLAGS = (
    *("group-query-attention", "swiglu", "disable-bias-linear", "untie-embeddings-and-output-weights", "bf16"),
    *("use-distributed-optimizer", "sequence-parallel", "overlap-grad-reduce", "overlap-param-gather"),
    *("cross-entropy-loss-fusion", "manual-gc", "tp-comm-overlap", "use-precision-aware-optimizer", "te-rng-tracker"),
)
CHOICES = {
    "position-embedding-type": ("rope", "learned_absolute"),
    "normalization": ("RMSNorm", "LayerNorm"),
    "attention-backend": ("flash", "auto"),
    "recompute-granularity": ("full", "selective"),
    "recompute-method": ("uniform", "block"),
    "recompute-modules": ("core_attn", "mlp", "layernorm"),
    "cross-entropy-fusion-impl": ("native", "te"),
    "cuda-graph-impl": ("local", "transformer_engine"),
    "cuda-graph-scope": ("attn",),
    "cuda-graph-modules": ("attn",),
}


def read_options() -> argparse.Namespace:
    """Read the command line; unknown options end the program with exit code 2."""
    parser = argparse.ArgumentParser(description="Pretend to train a GPT with Megatron-LM.", allow_abbrev=False)
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    for name in FLAGS:
        parser.add_argument(f"--{name}", action="store_true")
    for name, choices in CHOICES.items():
        parser.add_argument(f"--{name}", choices=choices)
    return parser.parse_args()


class Run:
    """One run: its sizes, checked as Megatron-LM checks them, its memory and the time of its step."""

    def __init__(self, options: argparse.Namespace, world_size: int) -> None:
        self.options, self.world_size = options, world_size
        self.tp: int = options.tensor_model_parallel_size
        self.pp: int = options.pipeline_model_parallel_size
        self.cp: int = options.context_parallel_size
        self.vp: int = options.num_virtual_stages_per_pipeline_rank
        self.mbs: int = options.micro_batch_size
        self._check()
        self.dp: int = world_size // (self.tp * self.pp * self.cp)
        self.num_microbatches: int = options.global_batch_size // (self.mbs * self.dp)
        self.stage_layers: int = options.num_layers // self.pp
        self.tokens: float = self.mbs * options.seq_length / self.cp

    def _check(self) -> None:
        options, size = self.options, self.tp * self.pp * self.cp
        if self.world_size % size:
            raise AssertionError(f"world size ({self.world_size}) is not divisible by total_model_size ({size})")
        dp = self.world_size // size
        if options.global_batch_size % (self.mbs * dp):
            factors = f"micro batch size ({self.mbs}) times data parallel size ({dp})"
            raise AssertionError(f"global batch size ({options.global_batch_size}) is not divisible by {factors}")
        if options.num_layers % (self.pp * self.vp):
            raise AssertionError("number of layers should be divisible by the pipeline's stages")
        if options.recompute_granularity == "selective" and options.recompute_method:
            raise AssertionError("recompute method is not yet supported for selective recomputing granularity")
        if options.recompute_granularity == "full" and not (options.recompute_method and options.recompute_num_layers):
            raise ValueError("full recomputation needs --recompute-method and --recompute-num-layers")

    @property
    def layer_parameters(self) -> float:
        """The parameters of one layer."""
        h, options = self.options.hidden_size, self.options
        return float(
            2 * h * h * (1 + options.num_query_groups / options.num_attention_heads) + 3 * h * options.ffn_hidden_size
        )

    @property
    def rank_parameters(self) -> float:
        """The parameters of the fullest rank."""
        tables: int = (2 if self.pp == 1 else 1) * self.options.vocab_size * self.options.hidden_size
        return (self.stage_layers * self.layer_parameters + tables) / self.tp

    @property
    def model_flops(self) -> float:
        """The operations of a step, as Megatron-LM counts them: without recomputation."""
        options = self.options
        weights = options.num_layers * self.layer_parameters + options.vocab_size * options.hidden_size
        attention = options.num_layers * options.hidden_size * options.seq_length
        return float(6 * (weights + attention) * options.global_batch_size * options.seq_length)

    def memory_gib(self) -> float:
        """Return the peak memory of the fullest rank."""
        state = self.rank_parameters * (6 + 12 / (self.dp * self.cp))
        logits: float = (
            self.tokens * self.options.vocab_size / self.tp * (4 if self.options.cross_entropy_loss_fusion else 6)
        )
        return CONTEXT_GIB + (state + self._activation_bytes() + (logits if self.pp == 1 else 0)) / GIB

    def _activation_bytes(self) -> float:
        options = self.options
        h: int = options.hidden_size
        shared = 1 / self.tp if options.sequence_parallel else 1.0
        whole: float = self.tokens * (10 * h * shared + (4 * h + 6 * options.ffn_hidden_size) / self.tp)
        inputs = self.tokens * 2 * h * shared
        in_flight = min(self.pp, self.num_microbatches) * (1 + (self.pp - 1) / self.pp * (1 - 1 / self.vp))
        if options.recompute_granularity != "full":
            return self.stage_layers * whole * in_flight
        num: int = min(options.recompute_num_layers, self.stage_layers)
        if options.recompute_method == "block":
            return (num * inputs + (self.stage_layers - num) * whole) * in_flight + whole
        return self.stage_layers / num * inputs * in_flight + num * whole

    def step_s(self) -> float:
        """Return the time of a step."""
        repeated = self._recomputed_share()
        bubble = (self.pp - 1) / (self.num_microbatches * self.vp)
        passes = self._compute_s() * (1 + repeated / 3) + self._tensor_s() * (1 + repeated / 2)
        return passes * (1 + bubble) + self._data_s() + self._update_s()

    def _recomputed_share(self) -> float:
        if self.options.recompute_granularity == "selective":
            return 0.03
        if self.options.recompute_granularity != "full":
            return 0.0
        num = min(self.options.recompute_num_layers, self.stage_layers)
        return num / self.stage_layers if self.options.recompute_method == "block" else 1.0

    def _compute_s(self) -> float:
        tokens = self.tokens / self.tp
        efficiency = 0.54 * tokens / (tokens + 200) / (1 + 0.01 * (self.tp - 1))
        fusion = 0.99 if self.options.cross_entropy_loss_fusion else 1.0
        return self.model_flops / self.world_size / PEAK_FLOPS / efficiency * fusion

    def _tensor_s(self) -> float:
        num_bytes: float = 8 * self.tokens * self.options.hidden_size * 2 * (self.tp - 1) / self.tp
        exposed = 0.5 if self.options.tp_comm_overlap else 1.0
        return num_bytes * exposed / LINK_BYTES_PER_S * self.stage_layers * self.num_microbatches

    def _data_s(self) -> float:
        ranks: int = self.dp * self.cp
        exposed_grads = 0.2 if self.options.overlap_grad_reduce else 1.0
        exposed_params = 0.2 if self.options.overlap_param_gather else 1.0
        per_parameter = (4 * exposed_grads + 2 * exposed_params) * (ranks - 1) / ranks
        return self.rank_parameters * per_parameter / LINK_BYTES_PER_S

    def _update_s(self) -> float:
        return 26 * self.rank_parameters / (self.dp * self.cp) / MEMORY_BYTES_PER_S


def train(run: Run) -> None:
    """Print the iterations, asleep in between for as long as they take."""
    options, step_s, used_mib = run.options, run.step_s(), run.memory_gib() * 1024
    rng = random.Random(repr(sorted(vars(options).items())))  # the same options give the same times
    for iteration in range(1, options.train_iters + 1):
        took_s = step_s * (WARM_UP if iteration == 1 else max(0.9, 1 + rng.gauss(0, NOISE)))
        time.sleep(took_s)
        fields = [
            f" [{time.strftime('%Y-%m-%d %H:%M:%S')}] iteration {iteration:8d}/{options.train_iters:8d}",
            f"consumed samples: {iteration * options.global_batch_size:12d}",
            f"elapsed time per iteration (ms): {took_s * 1000:.1f}",
            f"throughput per GPU (TFLOP/s/GPU): {run.model_flops / run.world_size / took_s / 1e12:.1f}",
            f"learning rate: {1e-5:.6E}",
            f"global batch size: {options.global_batch_size:5d}",
            f"lm loss: {2 + 10 / (1 + iteration / 4):.6E}",
            f"number of skipped iterations: {0:3d}",
            f"number of nan iterations: {0:3d} |",
        ]
        print(" | ".join(fields), flush=True)
        if iteration == 2:
            sizes = f"allocated: {used_mib * 0.7:.2f} | max allocated: {used_mib * 0.96:.2f}"
            reserved = f"reserved: {used_mib:.2f} | max reserved: {used_mib:.2f}"
            print(f"[Rank 0] (after {iteration} iterations) memory (MB) | {sizes} | {reserved}", flush=True)


def main() -> int:
    """Run the simulated training and return its exit code."""
    run = Run(read_options(), int(os.environ.get("WORLD_SIZE", "1")))
    sizes = f"tensor-model-parallel size: {run.tp}, pipeline-model-parallel size: {run.pp}"
    print(f"using world size: {run.world_size}, data-parallel size: {run.dp}, {sizes}", flush=True)
    used_gib = run.memory_gib()
    if used_gib > DEVICE_GIB:
        wanted = f"Tried to allocate {used_gib - DEVICE_GIB + 0.5:.2f} GiB."
        capacity = f"GPU 0 has a total capacity of {DEVICE_GIB:.2f} GiB"
        print(f"torch.OutOfMemoryError: CUDA out of memory. {wanted} {capacity} of which 0.50 GiB is free.")
        return 1
    time.sleep(START_UP_S)
    train(run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
