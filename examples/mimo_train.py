"""Train a small vision-language model whose encoder and language model have layouts of their own.

By itself it starts its ranks on this machine's CPU; under torchrun it is one rank, on a GPU if there is one for each.

    python examples/mimo_train.py --encoder-dp 2 --llm-tp 2 --llm-pp 3 --micro-batch-size 2
    torchrun --nproc-per-node 8 examples/mimo_train.py --encoder-tp 2 --llm-tp 2 --llm-pp 3

The language model begins after the encoder's ranks; with --llm-offset 0 both share all ranks. With --backend megatron
the same layouts are trained by Megatron's own multimodal model, optimizer and schedule (megatron-core 0.17, on GPUs).
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from zenith_mimo.checkpoint_folder import latest_checkpoint
from zenith_mimo.command import (
    BATCHES,
    DEGREES,
    Parser,
    Work,
    add_layout_options,
    device,
    iteration_line,
    layout_of,
    run,
)
from zenith_mimo.optimizer import OptimizerConfig
from zenith_mimo.planning.config import (
    EncoderConfig,
    LanguageConfig,
    MimoConfig,
    MimoLayout,
    TransformerConfig,
)
from zenith_mimo.planning.work import check_layout, step_flops
from zenith_tune.errors import UsageError

if TYPE_CHECKING:
    from zenith_mimo.megatron.trainer import MegatronTrainer
    from zenith_mimo.trainer import Trainer

ENCODER = "vision"
RUNTIME, MEGATRON = "runtime", "megatron"
STEPS = {"train-iters": 10, "log-interval": 1}
SIZES = {
    "encoder-layers": 4,
    "encoder-hidden": 32,
    "encoder-heads": 4,
    "patches": 4,
    "patch-size": 12,
    "llm-layers": 6,
    "llm-hidden": 64,
    "llm-heads": 4,
    "seq-length": 32,
    "vocab-size": 256,
}


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line, or the arguments that are given."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_layout_options(parser)
    for name, default in {**STEPS, "seed": 0, **SIZES}.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"default {default}")
    parser.add_argument("--backend", choices=[RUNTIME, MEGATRON], default=RUNTIME, help="what trains the layout")
    parser.add_argument("--images", default="2,1,3,0", help="images of the samples, round and round; default 2,1,3,0")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--clip-grad", type=float, default=1.0)
    parser.add_argument("--use-distributed-optimizer", action="store_true", help="shard the optimizer's state")
    parser.add_argument("--freeze-vit", action="store_true", help="train the projector of the encoder only")
    parser.add_argument("--freeze-lm", action="store_true", help="train nothing of the language model")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16, update in single precision")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="write a checkpoint at the end")
    parser.add_argument("--load", type=Path, metavar="FOLDER", help="continue from a checkpoint, of whatever layout")
    parser.add_argument(
        "--finetune", action="store_true", help="take only the weights of --load; other parts may be frozen than there"
    )
    parser.add_argument("--timeout-s", type=float, default=300.0, help="how long a rank waits for another")
    return parser.parse_args(arguments)


def config_of(options: argparse.Namespace) -> MimoConfig:
    """Return the shape of the model."""

    def transformer(name: str) -> TransformerConfig:
        layers, hidden, heads = (getattr(options, f"{name}_{what}") for what in ("layers", "hidden", "heads"))
        return TransformerConfig(num_layers=layers, hidden_size=hidden, num_heads=heads, ffn_size=4 * hidden)

    encoder = EncoderConfig(
        transformer=transformer("encoder"),
        patch_size=options.patch_size,
        patches_per_item=options.patches,
        token_id=0,
    )
    language = LanguageConfig(
        transformer=transformer("llm"), vocab_size=options.vocab_size, seq_length=options.seq_length
    )
    flags = {ENCODER: options.encoder_recompute, "language": options.llm_recompute}
    recompute = frozenset(name for name, flag in flags.items() if flag)
    tower = (f"{ENCODER}.embedding", f"{ENCODER}.blocks") if options.freeze_vit else ()
    return MimoConfig(
        encoders={ENCODER: encoder},
        language=language,
        seed=options.seed,
        recompute=recompute,
        frozen=frozenset([*tower, *(["language"] if options.freeze_lm else [])]),
    )


def images_of(options: argparse.Namespace) -> list[int]:
    """Return the images of each sample of a global batch."""
    counts = [int(word) if word.isdecimal() else -1 for word in options.images.split(",")]
    if min(counts) < 0:
        raise UsageError(f"--images takes counts such as 2,1,3,0, but got {options.images!r}.")
    return [counts[index % len(counts)] for index in range(options.global_batch_size)]


def optimizer_of(options: argparse.Namespace) -> OptimizerConfig:
    """Return how the weights are updated."""
    return OptimizerConfig(
        lr=options.lr, clip_grad=options.clip_grad, use_distributed_optimizer=options.use_distributed_optimizer
    )


def refuse_unwritable(folder: Path) -> None:
    """Refuse a folder that the checkpoint could not be written to once all is trained."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileExistsError:
        raise UsageError(f"--save must be a folder, but {folder} is a file", hint="give another.") from None
    except OSError as error:
        raise UsageError(f"--save {folder} cannot be written ({error.strerror})", hint="give another folder.") from None


def checked_layout(options: argparse.Namespace) -> MimoLayout:
    """Return the layout of a command line that can be trained; raises UsageError before anything is started."""
    for name in (*DEGREES, *BATCHES, *STEPS, *SIZES):
        if (value := getattr(options, name.replace("-", "_"))) < 1:
            raise UsageError(f"--{name} must be at least 1, but got {value}: correct it.")
    if not 0 < options.timeout_s < math.inf:
        raise UsageError(f"--timeout-s must be a number above 0, but got {options.timeout_s:g}: correct it.")
    layout, config = layout_of(options), config_of(options)
    check_layout(config, layout)
    config.item_tokens(max(images_of(options)))
    optimizer_of(options)
    if options.finetune and not options.load:
        raise UsageError("--finetune begins with the weights of --load, but that is not given", hint="give both.")
    if options.load:
        latest_checkpoint(options.load)
    if options.save:
        refuse_unwritable(options.save)
    if options.backend == MEGATRON:
        check_megatron(options, layout)
    return layout


def check_megatron(options: argparse.Namespace, layout: MimoLayout) -> None:
    """Refuse what Megatron's back-end cannot train here."""
    from zenith_mimo.megatron.support import MegatronSupport, check_device, check_stages

    if options.save or options.load:
        raise UsageError(f"--backend {MEGATRON} neither saves nor loads checkpoints here", hint="take the option out.")
    check_stages(config_of(options), layout)
    check_device()
    MegatronSupport.of_installed().check(layout, has_even_items=len(set(images_of(options))) == 1)


def make_trainer(options: argparse.Namespace) -> Trainer | MegatronTrainer:
    """Build this rank's part of the model, its optimizer and the trainer."""
    import torch

    if options.backend == MEGATRON:
        return make_megatron_trainer(options)
    from zenith_mimo.modules import MimoModel
    from zenith_mimo.optimizer import get_mimo_optimizer
    from zenith_mimo.topology import Topology
    from zenith_mimo.trainer import Trainer

    topology = Topology(layout_of(options), timeout=timedelta(seconds=options.timeout_s))
    dtype = torch.bfloat16 if options.bf16 else torch.float32
    model = MimoModel.of(config_of(options), topology, device=device(), dtype=dtype)
    return Trainer(
        model,
        get_mimo_optimizer(model, optimizer_of(options)),
        micro_batch_size=options.micro_batch_size,
        global_batch_size=options.global_batch_size,
    )


def make_megatron_trainer(options: argparse.Namespace) -> MegatronTrainer:
    """Build the same with Megatron's model and optimizer."""
    import torch

    from zenith_mimo.megatron.example import example_model
    from zenith_mimo.megatron.support import MegatronSupport
    from zenith_mimo.megatron.topology import MegatronTopology
    from zenith_mimo.megatron.trainer import MegatronTrainer

    topology = MegatronTopology(layout_of(options), timeout=timedelta(seconds=options.timeout_s))
    dtype = torch.bfloat16 if options.bf16 else torch.float32
    return MegatronTrainer(
        example_model(config_of(options), topology, MegatronSupport.of_installed(), dtype=dtype),
        optimizer_of(options),
        micro_batch_size=options.micro_batch_size,
        global_batch_size=options.global_batch_size,
    )


def train(options: argparse.Namespace) -> None:
    """Train on this rank; the last one prints."""
    import torch.distributed as dist

    from zenith_mimo.checkpoint import load_checkpoint, save_checkpoint
    from zenith_mimo.samples import RandomSamples
    from zenith_mimo.trainer import Trainer

    trainer = make_trainer(options)
    if options.load:
        assert isinstance(trainer, Trainer), "refused with another back-end"
        load_checkpoint(options.load, trainer, weights_only=options.finetune)
    images, config = images_of(options), config_of(options)
    flops = step_flops(config, options.global_batch_size, sum(images))
    is_last = dist.get_rank() == dist.get_world_size() - 1
    lr = trainer.optimizer.param_groups[0]["lr"]
    if is_last and lr != options.lr:
        print(f"note: the checkpoint's learning rate {lr:g} is kept, not --lr {options.lr:g}", flush=True)
    while trainer.iteration < options.train_iters:
        size, consumed = options.global_batch_size, trainer.consumed_samples
        batch = RandomSamples(config=config, num_samples=size, seed=0, num_items=images, begin=consumed)
        begin = time.perf_counter()
        done = trainer.step(batch)
        step_s = time.perf_counter() - begin
        if is_last and trainer.iteration % options.log_interval == 0:
            tflops = flops / step_s / dist.get_world_size() / 1e12
            line = iteration_line(
                trainer.iteration,
                options.train_iters,
                done,
                step_s=step_s,
                global_batch_size=size,
                consumed_samples=trainer.consumed_samples,
                lr=lr,
                tflops=tflops,
            )
            print(line, flush=True)
    if options.save:
        assert isinstance(trainer, Trainer), "refused with another back-end"
        save_checkpoint(options.save, trainer)
    trainer.close()


def prepare() -> Work:
    """Read the command line."""
    options = read_options()
    layout, timeout = checked_layout(options), timedelta(seconds=options.timeout_s)
    return Work(num_ranks=layout.world_size, train=lambda: train(options), timeout=timeout)


def main() -> int:
    """Train, here or as a rank; return the exit code."""
    return run(prepare)


if __name__ == "__main__":
    sys.exit(main())
