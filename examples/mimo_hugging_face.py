"""Train a vision tower and a language model of Hugging Face, each with a layout of its own, on image and text samples.

    hf download google/siglip-base-patch16-224 --local-dir siglip
    hf download Qwen/Qwen2.5-0.5B --local-dir qwen
    python examples/mimo_hugging_face.py --vision siglip --language qwen --seq-length 256 --encoder-dp 2 --llm-dp 2
    zenithtune optimize --preset mimo -- torchrun --nproc-per-node 8 examples/mimo_hugging_face.py \\
        --vision siglip --language qwen --seq-length 256

--vision and --language are folders with config.json and safetensors files. Replace `Captions` by your own samples.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from zenith_mimo.command import Parser, Work, add_layout_options, device, iteration_line, layout_of, run
from zenith_tune.errors import UsageError

IMAGE_TOKEN = 3


def read_options() -> Namespace:
    """Read the command line."""
    parser = Parser(description=__doc__)
    add_layout_options(parser)
    parser.add_argument("--vision", type=Path, required=True, help="folder of a SigLIP or CLIP tower")
    parser.add_argument("--language", type=Path, required=True, help="folder of a Llama, Qwen2, Qwen3 or Mistral")
    parser.add_argument("--seq-length", type=int, default=256)
    parser.add_argument("--train-iters", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-4)
    return parser.parse_args()


def train(options: Namespace, text: Any, tower: Any, num_rows: int) -> None:
    """Train on this rank; the last one prints."""
    import torch
    import torch.distributed as dist
    from torch.optim.lr_scheduler import CosineAnnealingLR

    from zenith_mimo.hugging_face import CausalStage, VisionStage
    from zenith_mimo.modules import MimoModel
    from zenith_mimo.optimizer import OptimizerConfig, get_mimo_optimizer
    from zenith_mimo.samples import Sample
    from zenith_mimo.topology import Topology
    from zenith_mimo.trainer import Trainer

    @dataclass(frozen=True)
    class Captions:
        """A global batch: one image and a caption each. A rank reads the samples that it needs, with images or not."""

        first: int

        def __len__(self) -> int:
            return int(options.global_batch_size)

        def read(self, index: int, encoder: str | None) -> Sample:
            """Return a sample; here of random pixels and words, always the same of each number."""
            generator = torch.Generator().manual_seed(self.first + index)
            tokens = torch.randint(IMAGE_TOKEN + 1, text.vocab_size, (options.seq_length + 1,), generator=generator)
            tokens[1 : 1 + num_rows] = IMAGE_TOKEN
            pixels = torch.randn(1, 3, tower.image_size, tower.image_size, generator=generator)
            return Sample(
                tokens=tokens,
                is_counted=tokens[1:] != IMAGE_TOKEN,
                items={} if encoder is None else {encoder: pixels},
                num_rows={"vision": num_rows},
            )

    width = text.hidden_size
    model = MimoModel(
        {
            "vision": lambda tp, stage, num: VisionStage(
                options.vision, tp, stage, num, width=width, seed=0, recompute=options.encoder_recompute
            ),
            "language": lambda tp, stage, num: CausalStage(
                options.language, {"vision": IMAGE_TOKEN}, tp, stage, num, recompute=options.llm_recompute
            ),
        },
        Topology(layout_of(options), timeout=timedelta(minutes=10)),
        row_width=width,
        device=device(),
        dtype=torch.bfloat16 if device() == "cuda" else torch.float32,
    )
    optimizer = get_mimo_optimizer(
        model, OptimizerConfig(lr=options.lr), lambda module, adam: CosineAnnealingLR(adam, options.train_iters)
    )
    sizes = {"micro_batch_size": options.micro_batch_size, "global_batch_size": options.global_batch_size}
    trainer = Trainer(model, optimizer, **sizes)
    while trainer.iteration < options.train_iters:
        lr = optimizer.param_groups[0]["lr"]
        begin = time.perf_counter()
        done = trainer.step(Captions(trainer.consumed_samples))
        line = iteration_line(
            trainer.iteration,
            options.train_iters,
            done,
            step_s=time.perf_counter() - begin,
            global_batch_size=options.global_batch_size,
            consumed_samples=trainer.consumed_samples,
            lr=lr,
        )
        if dist.get_rank() == dist.get_world_size() - 1:
            print(line, flush=True)
    trainer.close()


def prepare() -> Work:
    """Read the command line, and refuse what cannot be trained before any rank is started."""
    from zenith_mimo.hugging_face import read_config

    options = read_options()
    layout = layout_of(options)
    tower, text = read_config(options.vision, "vision_config"), read_config(options.language, "text_config")
    num_rows = (tower.image_size // tower.patch_size) ** 2
    if options.seq_length <= num_rows:
        problem = f"an image stands for {num_rows} tokens, but --seq-length is {options.seq_length}"
        raise UsageError(problem, hint="give more, for words besides")
    return Work(num_ranks=layout.world_size, train=lambda: train(options, text, tower, num_rows))


if __name__ == "__main__":
    sys.exit(run(prepare))
