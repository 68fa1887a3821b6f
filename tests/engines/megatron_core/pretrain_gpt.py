"""Train a small GPT with Megatron Core on CPUs: its own layers, schedule, gradients and optimizer, with its options.

Weights and samples depend on their names and numbers alone, so that every layout trains the same model on the same
batches and must print the same losses.
"""

from __future__ import annotations

import argparse
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import torch
import torch.distributed as dist

from tests.engines.megatron_core.cuda_on_cpu import pretend_cuda

pretend_cuda()

from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.num_microbatches_calculator import (  # noqa: E402
    get_num_microbatches,
    init_num_microbatches_calculator,
    update_num_microbatches,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402

NUM_SAMPLES = 16
COUNTS = {
    "num-layers": 2,
    "hidden-size": 64,
    "num-attention-heads": 4,
    "seq-length": 32,
    "max-position-embeddings": 32,
    "vocab-size": 128,
    "tensor-model-parallel-size": 1,
    "pipeline-model-parallel-size": 1,
    "context-parallel-size": 1,
    "micro-batch-size": 1,
    "global-batch-size": 4,
    "train-iters": 6,
    "log-interval": 1,
}
OPTIONAL_COUNTS = ("ffn-hidden-size", "num-virtual-stages-per-pipeline-rank", "recompute-num-layers")
SWITCHES = (
    "account-for-embedding-in-pipeline-split",
    "account-for-loss-in-pipeline-split",
    "mock-data",
    "no-persist-layer-norm",
    "sequence-parallel",
    "untie-embeddings-and-output-weights",
    "use-distributed-optimizer",
)


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read Megatron's options, those of the command line unless others are given; what it does not know is refused."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name, default in COUNTS.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in OPTIONAL_COUNTS:
        parser.add_argument(f"--{name}", type=int)
    for name in SWITCHES:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--recompute-granularity", choices=("full", "selective"))
    parser.add_argument("--recompute-method", choices=("uniform", "block"))
    parser.add_argument("--tokenizer-type", choices=("NullTokenizer",))
    parser.add_argument("--transformer-impl", choices=("local",), default="local")
    return parser.parse_args(words)


def transformer_config(options: argparse.Namespace) -> TransformerConfig:
    """Return Megatron's configuration, which refuses what does not go together."""
    # Two stages with chunks send to each other both ways: unless these overlap, messages are mistaken for others.
    is_interleaved = options.num_virtual_stages_per_pipeline_rank is not None
    return TransformerConfig(
        num_layers=options.num_layers,
        hidden_size=options.hidden_size,
        ffn_hidden_size=options.ffn_hidden_size,
        num_attention_heads=options.num_attention_heads,
        tensor_model_parallel_size=options.tensor_model_parallel_size,
        pipeline_model_parallel_size=options.pipeline_model_parallel_size,
        context_parallel_size=options.context_parallel_size,
        virtual_pipeline_model_parallel_size=options.num_virtual_stages_per_pipeline_rank,
        account_for_embedding_in_pipeline_split=options.account_for_embedding_in_pipeline_split,
        account_for_loss_in_pipeline_split=options.account_for_loss_in_pipeline_split,
        sequence_parallel=options.sequence_parallel,
        recompute_granularity=options.recompute_granularity,
        recompute_method=options.recompute_method,
        recompute_num_layers=options.recompute_num_layers,
        pipeline_dtype=torch.float32,
        overlap_p2p_comm=is_interleaved,
        batch_p2p_comm=not is_interleaved,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        finalize_model_grads_func=finalize_model_grads,
    )


def start_parallel(options: argparse.Namespace) -> None:
    """Build Megatron's groups of the processes that were joined."""
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=options.tensor_model_parallel_size,
        pipeline_model_parallel_size=options.pipeline_model_parallel_size,
        context_parallel_size=options.context_parallel_size,
        virtual_pipeline_model_parallel_size=options.num_virtual_stages_per_pipeline_rank,
    )
    init_num_microbatches_calculator(
        dist.get_rank(),
        None,
        options.global_batch_size,
        options.micro_batch_size,
        parallel_state.get_data_parallel_world_size(),
    )
    model_parallel_cuda_manual_seed(1)


def build_chunks(options: argparse.Namespace, config: TransformerConfig) -> list[DistributedDataParallel]:
    """Return the model chunks of this rank, one but for virtual stages."""
    num_chunks = options.num_virtual_stages_per_pipeline_rank
    sharding = DistributedDataParallelConfig(use_distributed_optimizer=options.use_distributed_optimizer)
    chunks = []
    for stage in [None] if num_chunks is None else range(num_chunks):
        at = {"ignore_virtual": stage is None, "vp_stage": stage}
        chunk = GPTModel(
            config=config,
            transformer_layer_spec=get_gpt_layer_local_spec(),
            vocab_size=options.vocab_size,
            max_sequence_length=options.max_position_embeddings,
            pre_process=parallel_state.is_pipeline_first_stage(**at),
            post_process=parallel_state.is_pipeline_last_stage(**at),
            share_embeddings_and_output_weights=not options.untie_embeddings_and_output_weights,
            vp_stage=stage,
        )
        set_weights(chunk)
        chunks.append(DistributedDataParallel(config, sharding, chunk))
    return chunks


def set_weights(chunk: GPTModel) -> None:
    """Draw every matrix by its name in the whole model, and keep this rank's share: no layout changes a weight."""
    numbers = {str(index): layer.layer_number for index, layer in enumerate(chunk.decoder.layers)}
    size, rank = parallel_state.get_tensor_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_rank()
    for name, weight in chunk.named_parameters():
        if weight.dim() < 2:
            continue
        words = name.split(".")
        if words[:2] == ["decoder", "layers"]:
            words[2] = str(numbers[words[2]])
        # Of one matrix where they are tied.
        if words[0] == "output_layer" and chunk.share_embeddings_and_output_weights:
            words = ["embedding", "word_embeddings", "weight"]
        shape, cut = list(weight.shape), getattr(weight, "partition_dim", -1)
        if is_cut := getattr(weight, "tensor_model_parallel", False):
            shape[cut] *= size
        generator = torch.Generator().manual_seed(zlib.crc32(".".join(words).encode()))
        whole = torch.randn(shape, generator=generator) * 0.02
        weight.data.copy_(whole.chunk(size, cut)[rank] if is_cut else whole)


def micro_batches(options: argparse.Namespace) -> Iterator[torch.Tensor]:
    """Yield this rank's micro-batches: sample n holds the same tokens whoever trains on it."""
    mbs = options.micro_batch_size
    size, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    first = rank * mbs
    while True:
        samples = []
        for number in range(first, first + mbs):
            generator = torch.Generator().manual_seed(number % NUM_SAMPLES)
            start, step = torch.randint(options.vocab_size, (2,), generator=generator).tolist()
            samples.append((start + step * torch.arange(options.seq_length + 1)) % options.vocab_size)
        yield torch.stack(samples)
        first += mbs * size


def mean_loss(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return what is minimised and what is reported: a copy, because the schedule divides the first in place."""
    loss = losses.float().mean()
    return loss, {"lm loss": loss.detach().clone()}


def forward_step(tokens: Iterator[torch.Tensor], chunk: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
    """Run one micro-batch through one chunk."""
    batch = next(tokens)
    inputs, labels = batch[:, :-1], batch[:, 1:]
    length = inputs.shape[1]
    positions = torch.arange(length).expand_as(inputs)
    is_hidden = torch.ones(1, 1, length, length).tril() < 0.5
    return chunk(inputs, positions, is_hidden, labels=labels), mean_loss


def batch_loss(reports: list[dict[str, torch.Tensor]]) -> float:
    """Return the loss of the whole batch, on the last stage."""
    loss = torch.stack([report["lm loss"] for report in reports]).mean()
    dist.all_reduce(loss, group=parallel_state.get_data_parallel_group())
    return float(loss) / int(parallel_state.get_data_parallel_world_size())


def train(options: argparse.Namespace) -> None:
    """Train, and print Megatron's line for each iteration on the last rank."""
    config = transformer_config(options)
    start_parallel(options)
    chunks = build_chunks(options, config)
    sharded = options.use_distributed_optimizer
    optimizer = get_megatron_optimizer(
        OptimizerConfig(lr=options.lr, optimizer="adam", use_distributed_optimizer=sharded), chunks
    )
    data = [micro_batches(options) for _ in chunks]
    run_schedule = get_forward_backward_func()
    consumed, in_loop = 0, get_num_microbatches()
    for iteration in range(1, options.train_iters + 1):
        update_num_microbatches(consumed, consistency_check=False, verbose=True)
        assert get_num_microbatches() == in_loop, "another one would be saved as a checkpoint"
        update_num_microbatches(consumed, consistency_check=True, verbose=True)
        batch = get_num_microbatches() * options.micro_batch_size * parallel_state.get_data_parallel_world_size()
        consumed += batch
        start_s = time.perf_counter()
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        reports = run_schedule(
            forward_step_func=forward_step,
            data_iterator=data if len(data) > 1 else data[0],
            model=chunks if len(chunks) > 1 else chunks[0],
            num_microbatches=get_num_microbatches(),
            seq_length=options.seq_length,
            micro_batch_size=options.micro_batch_size,
            forward_only=False,
        )
        _, grad_norm, _ = optimizer.step()
        if parallel_state.is_pipeline_last_stage():
            loss = batch_loss(reports)
        elapsed_ms = (time.perf_counter() - start_s) * 1000
        if dist.get_rank() == dist.get_world_size() - 1:
            print(iteration_line(options, iteration, batch, consumed, elapsed_ms, loss, grad_norm), flush=True)


def iteration_line(
    options: argparse.Namespace,
    iteration: int,
    batch: int,
    consumed: int,
    elapsed_ms: float,
    loss: float,
    grad_norm: float,
) -> str:
    """Return one line as Megatron prints it."""
    fields = [
        f" [{datetime.now():%Y-%m-%d %H:%M:%S.%f}] iteration {iteration:8d}/{options.train_iters:8d}",
        f"consumed samples: {consumed:12d}",
        f"elapsed time per iteration (ms): {elapsed_ms:.1f}",
        f"learning rate: {options.lr:.6E}",
        f"global batch size: {batch:5d}",
        f"lm loss: {loss:.6E}",
        "loss scale: 1.0",
        f"grad norm: {grad_norm:.3f}",
        f"number of skipped iterations: {0:3d}",
        f"number of nan iterations: {0:3d} |",
    ]
    return " | ".join(fields)


def main() -> None:
    """Join the processes that a launcher has started, and train."""
    options = read_options()
    dist.init_process_group("gloo")
    train(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
