"""Pretend to train a mixture-of-experts model with Megatron, in a fraction of a second and without a GPU.

It takes Megatron's layout options, refuses layouts as Megatron does, runs out of memory where the memory rule says so,
and otherwise prints Megatron's iteration lines with the speed that the speed rule gives.

Memory rule, per GPU of 80 GiB: 4 GiB of context; 6 bytes for each of its parameters, and 12 more shared by the ranks
that hold the same ones; activations of 45 GiB * mbs / (tp * cp) for all layers (without sequence parallelism a tenth of
them stays whole on every rank), of which full recomputation keeps a 17th for each group of layers and all of one group;
0.5 GiB * mbs for the vision encoder, four times that without its checkpointing. Dense parameters (4 billion) are split
by tp and pp, expert parameters (3 billion) by ep, etp and pp.

Speed rule, as factors on the time of a step: (mbs + 0.35) / mbs for small kernels; 4.5% for each further tp rank, 5%
for each further cp rank, 3% for each further etp rank; ep saves 5% per doubling and its all-to-all costs 1.2% times the
square of the doublings, so that ep 4 is best; full recomputation 28%, selective 4%; a pipeline bubble of
(pp - 1) / microbatches; up to 3% for the gradients' reduction; 2% for the vision encoder's checkpointing.

Unlike Megatron it takes selective recomputation together with a method, which it then ignores.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time

GIB = 2**30
DEVICE_GIB = 80.0
NUM_LAYERS = 48
DENSE_PARAMETERS = 4e9
EXPERT_PARAMETERS = 3e9
ACTIVE_PARAMETERS = 4.5e9
SEQ_LENGTH = 4096
PEAK_TFLOPS = 400.0
DEFAULT_SLOWNESS = 1.81  # of the plain defaults: their sleep is exactly --iteration-seconds
WARM_UP = 3.0


def positive_int(text: str) -> int:
    """Read a whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, but got {value}")
    return value


def read_options() -> argparse.Namespace:
    """Read the command line; unknown options end the program with exit code 2."""
    parser = argparse.ArgumentParser(description="Pretend to train with Megatron.", allow_abbrev=False)

    def add(name: str, default: object, **keywords: object) -> None:
        spellings = dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}"))
        parser.add_argument(*spellings, default=default, **keywords)  # type: ignore[arg-type]

    for name in ("tensor-model", "pipeline-model", "context", "expert-model", "expert-tensor"):
        add(f"{name}-parallel-size", 1, type=positive_int)
    add("micro-batch-size", 1, type=positive_int)
    add("global-batch-size", 16, type=positive_int)
    add("recompute-granularity", "full", choices=("full", "selective", "none"))
    add("recompute-method", "uniform", choices=("uniform", "block"))
    add("recompute-num-layers", 1, type=positive_int)
    for name, default in (("vit-gradient-checkpointing", "true"), ("sequence-parallel", "false")):
        add(name, default, nargs="?", const="true", choices=("true", "false"))
    add("n-gpus", os.environ.get("WORLD_SIZE", "8"), type=positive_int)
    add("train-iters", 8, type=positive_int)
    add("iteration-seconds", 0.02, type=float, help="sleep per iteration at the default layout; others in proportion")
    add("noise", 0.0, nargs="?", const=0.02, type=float, help="relative noise, repeatable")
    add("seed", 0, type=int)
    add("hang", False, action="store_true", help="hang after two iterations")
    add("crash", False, action="store_true", help="fail in the middle")
    return parser.parse_args()


class Layout:
    """The parallel sizes, checked as Megatron checks them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.n_gpus: int = options.n_gpus
        self.tp: int = options.tensor_model_parallel_size
        self.pp: int = options.pipeline_model_parallel_size
        self.cp: int = options.context_parallel_size
        self.ep: int = options.expert_model_parallel_size
        self.etp: int = options.expert_tensor_parallel_size
        self.mbs: int = options.micro_batch_size
        self.gbs: int = options.global_batch_size
        self.granularity: str = options.recompute_granularity
        self.is_block = options.recompute_method == "block"
        self.recompute_num_layers: int = options.recompute_num_layers
        self.sequence_parallel = options.sequence_parallel == "true" and self.tp > 1
        self.vit_checkpointing = options.vit_gradient_checkpointing == "true"
        self._check()

    def _check(self) -> None:
        size = self.tp * self.pp * self.cp
        if self.n_gpus % size:
            size_text = f"(total_model_size={size})"
            raise AssertionError(f"world size ({self.n_gpus}) is not divisible by total_model_size {size_text}")
        self.dp = self.n_gpus // size
        if self.gbs % (self.mbs * self.dp):
            factors = f"micro batch size ({self.mbs}) times data parallel size ({self.dp})"
            raise AssertionError(f"global batch size ({self.gbs}) is not divisible by {factors}")
        experts = self.etp * self.ep * self.pp
        if self.n_gpus % experts:
            size_text = f"expert_tensor_model_pipeline_parallel size ({experts})"
            raise RuntimeError(f"world_size ({self.n_gpus}) is not divisible by {size_text}")
        self.edp = self.n_gpus // experts
        self.num_microbatches = self.gbs // (self.mbs * self.dp)

    def memory_gib(self) -> float:
        """Return the peak memory of a GPU by the memory rule."""
        dense = DENSE_PARAMETERS / (self.tp * self.pp)
        experts = EXPERT_PARAMETERS / (self.ep * self.etp * self.pp)
        state = dense * (6 + 12 / self.dp) + experts * (6 + 12 / self.edp)
        vision = 0.5 if self.vit_checkpointing else 2.0
        return 4 + state / GIB + self._activation_gib() + vision * self.mbs

    def _activation_gib(self) -> float:
        whole = 0.1 if self.tp > 1 and not self.sequence_parallel else 0.0
        share = whole + (1 - whole) / self.tp
        layer = 45.0 / NUM_LAYERS * self.mbs * share / self.cp
        num_layers = math.ceil(NUM_LAYERS / self.pp)
        in_flight = min(self.pp, self.num_microbatches)
        if self.granularity != "full":
            return layer * num_layers * in_flight * (1.15 if self.granularity == "none" else 1.0)
        chunk = min(self.recompute_num_layers, num_layers)
        if self.is_block:
            return layer * (chunk / 17 + num_layers - chunk) * in_flight + layer
        return layer * math.ceil(num_layers / chunk) / 17 * in_flight + layer * chunk

    def slowness(self) -> float:
        """Return the time of a step by the speed rule, 1 being the peak."""
        doublings = math.log2(self.ep)
        communication = (1 + 0.045 * (self.tp - 1)) * (1 + 0.05 * (self.cp - 1)) * (1 + 0.03 * (self.etp - 1))
        experts = 1 - 0.05 * doublings + 0.012 * doublings**2
        bubble = 1 + (self.pp - 1) / self.num_microbatches
        reduction = 1 + 0.03 * (1 - 1 / self.dp)
        vision = 1.02 if self.vit_checkpointing else 1.0
        kernels = (self.mbs + 0.35) / self.mbs
        return kernels * communication * experts * self._recomputation() * bubble * reduction * vision

    def _recomputation(self) -> float:
        if self.granularity != "full":
            return 1.04 if self.granularity == "selective" else 1.0
        num_layers = math.ceil(NUM_LAYERS / self.pp)
        return 1 + 0.28 * (min(self.recompute_num_layers, num_layers) / num_layers if self.is_block else 1)


def noise_factors(options: argparse.Namespace) -> list[float]:
    """Return one factor for each iteration: the same options and seed give the same ones."""
    if not options.noise:
        return [1.0] * options.train_iters
    # Imported only here: it would double the start-up time.
    import random

    rng = random.Random(repr(sorted(vars(options).items())))
    run = rng.gauss(0, options.noise / 2)
    return [max(0.5, 1 + run + rng.gauss(0, options.noise)) for _ in range(options.train_iters)]


def iteration_line(layout: Layout, iteration: int, step_s: float, tflops: float) -> str:
    """Return one line as Megatron prints it, its throughput last."""
    fields = [
        f" [{time.strftime('%Y-%m-%d %H:%M:%S')}] iteration {iteration:8d}/{layout.options.train_iters:8d}",
        f"consumed samples: {iteration * layout.gbs:12d}",
        f"elapsed time per iteration (ms): {step_s * 1000:.1f}",
        f"learning rate: {1e-5:.6E}",
        f"global batch size: {layout.gbs:5d}",
        f"lm loss: {10 / (1 + iteration / 4):.6E}",
        "loss scale: 1.0",
        f"grad norm: {4 / iteration:.3f}",
        f"number of skipped iterations: {0:3d}",
        f"number of nan iterations: {0:3d}",
        f"throughput per GPU (TFLOP/s/GPU): {tflops:.1f}",
    ]
    return " | ".join(fields)


def train(layout: Layout) -> None:
    """Print the iterations, asleep in between for a time in proportion to the step's."""
    options = layout.options
    num_flops = 6 * ACTIVE_PARAMETERS * layout.gbs * SEQ_LENGTH / layout.n_gpus
    used_mib = layout.memory_gib() * 1024
    for iteration, noise in enumerate(noise_factors(options), start=1):
        slowness = layout.slowness() * noise
        time.sleep(options.iteration_seconds * slowness / DEFAULT_SLOWNESS)
        step_s = slowness * num_flops / (PEAK_TFLOPS * 1e12) * (WARM_UP if iteration == 1 else 1)
        print(iteration_line(layout, iteration, step_s, num_flops / step_s / 1e12), flush=True)
        if iteration == min(2, options.train_iters):
            sizes = f"allocated: {used_mib * 0.7:.2f} | max allocated: {used_mib * 0.96:.2f}"
            reserved = f"reserved: {used_mib:.2f} | max reserved: {used_mib:.2f}"
            print(f"[Rank 0] (after {iteration} iterations) memory (MB) | {sizes} | {reserved}", flush=True)
        while options.hang and iteration >= min(2, options.train_iters):
            time.sleep(3600)
        if options.crash and iteration >= (options.train_iters + 1) // 2:
            raise RuntimeError("the training loop failed, as --crash asked")


def main() -> int:
    """Run the simulated training and return its exit code."""
    layout = Layout(read_options())
    sizes = f"tensor-model-parallel size: {layout.tp}, pipeline-model-parallel size: {layout.pp}"
    print(f"using world size: {layout.n_gpus}, data-parallel size: {layout.dp}, {sizes}", flush=True)
    used_gib = layout.memory_gib()
    if used_gib > DEVICE_GIB:
        wanted = f"Tried to allocate {used_gib - DEVICE_GIB + 0.5:.2f} GiB."
        capacity = f"GPU 0 has a total capacity of {DEVICE_GIB:.2f} GiB"
        print(f"torch.OutOfMemoryError: CUDA out of memory. {wanted} {capacity} of which 0.50 GiB is free.")
        return 1
    train(layout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
