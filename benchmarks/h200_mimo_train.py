"""Train modules with layouts of their own on one GPU, with the runtime here and with Megatron's multimodal model.

    PYTHONPATH=src:Megatron-LM TORCHDYNAMO_DISABLE=1 python benchmarks/h200_mimo_train.py --output mimo-train.json

One rank holds the encoder and the language model. Both back-ends train the example's model from the same weights on the
same batch, again and again, so that its loss must fall: in single precision, where the losses must be the same, and in
bfloat16 with weights of single precision in the optimizer. The runtime also trains a SigLIP tower and a Llama model of
transformers. Times are of whole steps, with the device waited for.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zenith_mimo.hugging_face import CausalStage, VisionStage
from zenith_mimo.modules import BuildStage, MimoModel
from zenith_mimo.optimizer import OptimizerConfig, get_mimo_optimizer
from zenith_mimo.planning.config import (
    EncoderConfig,
    LanguageConfig,
    MimoConfig,
    MimoLayout,
    ModuleLayout,
    TransformerConfig,
)
from zenith_mimo.samples import RandomSamples, Sample, SampleSource
from zenith_mimo.topology import Topology
from zenith_mimo.trainer import Trainer

LAYOUT = MimoLayout(modules={"vision": ModuleLayout(), "language": ModuleLayout()})
OPTIMIZER = OptimizerConfig(lr=1e-4, clip_grad=1.0)
MICRO_BATCH, BATCH = 4, 8
IMAGE = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The shapes of both modules."""

    encoder_layers: int = 8
    encoder_hidden: int = 1024
    encoder_heads: int = 16
    encoder_ffn: int = 4096
    image: int = 224
    patch: int = 14
    layers: int = 8
    hidden: int = 2048
    heads: int = 16
    ffn: int = 8192
    seq_length: int = 1024
    vocab: int = 32000
    steps: int = 12

    @property
    def patches(self) -> int:
        """Of an image."""
        return (self.image // self.patch) ** 2

    def config(self) -> MimoConfig:
        """Return the example's model."""
        encoder = TransformerConfig(
            num_layers=self.encoder_layers,
            hidden_size=self.encoder_hidden,
            num_heads=self.encoder_heads,
            ffn_size=self.encoder_ffn,
        )
        language = TransformerConfig(
            num_layers=self.layers, hidden_size=self.hidden, num_heads=self.heads, ffn_size=self.ffn
        )
        vision = EncoderConfig(
            transformer=encoder, patch_size=3 * self.patch**2, patches_per_item=self.patches, token_id=IMAGE
        )
        text = LanguageConfig(transformer=language, vocab_size=self.vocab, seq_length=self.seq_length)
        return MimoConfig(encoders={"vision": vision}, language=text, seed=0)


SMALL = Sizes(
    encoder_layers=2,
    encoder_hidden=32,
    encoder_heads=2,
    encoder_ffn=128,
    image=28,
    layers=2,
    hidden=64,
    heads=4,
    ffn=256,
    seq_length=32,
    vocab=64,
    steps=4,
)
"""To see on a CPU that it runs."""
PAIR = Sizes(encoder_layers=27, encoder_hidden=1152, encoder_ffn=4304, layers=20, hidden=1536, ffn=6144)
"""As many weights in each layer as the pair of h200_mimo_pair.py has, whose language model's gate is a third matrix."""
ITEMS = (2, 1, 3, 0)
"""Images of the samples, round and round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Samples with pixels, for a tower of transformers."""

    sizes: Sizes

    def __len__(self) -> int:
        return BATCH

    def read(self, index: int, encoder: str | None) -> Sample:
        """Return a sample, with the items of one encoder or none."""
        sizes, num = self.sizes, ITEMS[index % len(ITEMS)]
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(IMAGE + 1, sizes.vocab, (sizes.seq_length + 1,), generator=generator)
        tokens[1 : 1 + num * sizes.patches] = IMAGE
        pixels = torch.randn(num, 3, sizes.image, sizes.image, generator=generator)
        items = {} if encoder is None else {encoder: pixels}
        rows = {"vision": num * sizes.patches}
        return Sample(tokens=tokens, is_counted=tokens[1:] != IMAGE, items=items, num_rows=rows)


def runtime(sizes: Sizes, device: str, dtype: torch.dtype) -> Trainer:
    """Return the trainer of the runtime here."""
    model = MimoModel.of(sizes.config(), Topology(LAYOUT), device=device, dtype=dtype)
    return _trainer(model)


def megatron(sizes: Sizes, device: str, dtype: torch.dtype) -> Any:
    """Return Megatron's trainer of the same model."""
    from zenith_mimo.megatron.example import example_model
    from zenith_mimo.megatron.support import MegatronSupport
    from zenith_mimo.megatron.topology import MegatronTopology
    from zenith_mimo.megatron.trainer import MegatronTrainer

    support = MegatronSupport.of_installed()
    model = example_model(sizes.config(), MegatronTopology(LAYOUT), support, dtype=dtype)
    return MegatronTrainer(model, OPTIMIZER, micro_batch_size=MICRO_BATCH, global_batch_size=BATCH)


def hugging_face(sizes: Sizes, device: str, dtype: torch.dtype) -> Trainer:
    """Return the runtime's trainer of a SigLIP tower and a Llama model, made without weights of anybody's."""
    from transformers import LlamaConfig, LlamaForCausalLM, SiglipVisionConfig, SiglipVisionModel

    torch.manual_seed(0)
    vision = SiglipVisionConfig(
        hidden_size=sizes.encoder_hidden,
        intermediate_size=sizes.encoder_ffn,
        num_hidden_layers=sizes.encoder_layers,
        num_attention_heads=sizes.encoder_heads,
        image_size=sizes.image,
        patch_size=sizes.patch,
        vision_use_head=False,
    )
    language = LlamaConfig(
        hidden_size=sizes.hidden,
        intermediate_size=2 * sizes.ffn // 3 // 64 * 64,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads // 2,
        vocab_size=sizes.vocab,
        max_position_embeddings=sizes.seq_length,
        tie_word_embeddings=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        SiglipVisionModel(vision).to(dtype).save_pretrained(root / "siglip")
        LlamaForCausalLM(language).to(dtype).save_pretrained(root / "llama")
        builders: dict[str, BuildStage] = {
            "vision": lambda tp, stage, num: VisionStage(root / "siglip", tp, stage, num, width=sizes.hidden, seed=1),
            "language": lambda tp, stage, num: CausalStage(root / "llama", {"vision": IMAGE}, tp, stage, num),
        }
        model = MimoModel(builders, Topology(LAYOUT), row_width=sizes.hidden, device=device, dtype=dtype)
    return _trainer(model)


def _trainer(model: MimoModel) -> Trainer:
    return Trainer(model, get_mimo_optimizer(model, OPTIMIZER), micro_batch_size=MICRO_BATCH, global_batch_size=BATCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One training: with what, in which precision, how long."""

    make: Callable[[Sizes, str, torch.dtype], Any]
    dtype: torch.dtype
    num_steps: int

    @property
    def name(self) -> str:
        """What made it, and its precision."""
        return f"{self.make.__name__} {str(self.dtype).removeprefix('torch.')}"

    def run(self, sizes: Sizes, device: str) -> dict[str, Any]:
        """Train, and return the loss, the norm and the time of every step, and the peak of memory."""
        is_cuda = device == "cuda"
        if is_cuda:
            torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated() if is_cuda else 0
        begin = time.perf_counter()
        trainer = self.make(sizes, device, self.dtype)
        built_s = time.perf_counter() - begin
        config = sizes.config()
        batch: SampleSource = RandomSamples(config=config, num_samples=BATCH, seed=0, num_items=ITEMS)
        if self.make is hugging_face:
            batch = Images(sizes=sizes)
        rows = []
        for step in range(self.num_steps):
            begin = time.perf_counter()
            done = trainer.step(batch)
            if is_cuda:
                torch.cuda.synchronize()
            step_s = time.perf_counter() - begin
            rows.append({"step": step, "loss": done.loss, "grad_norm": done.grad_norm, "step_s": round(step_s, 5)})
        trainer.close()
        times = [row["step_s"] for row in rows[len(rows) // 2 :]]
        return {
            "phase": self.name,
            "parameters": sum(p.numel() for part in trainer.model.parts.values() for p in part.parameters()),
            "build_s": round(built_s, 2),
            "median_step_s": statistics.median(times),
            "held_before_gib": round(held / 2**30, 3),
            "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 3) if is_cuda else None,
            "rows": rows,
        }


def versions() -> dict[str, str]:
    """Return what ran."""
    found = {"python": sys.version.split()[0], "torch": torch.__version__}
    for name in ("transformers", "safetensors"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    try:
        import megatron.core

        found["megatron.core"] = str(megatron.core.__version__)
    except ImportError:
        found["megatron.core"] = "missing"
    return found


def main() -> None:
    """Run all phases; one that fails is written with its error, and the others still run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--small", action="store_true", help="tiny shapes, to see that it runs")
    parser.add_argument("--pair", action="store_true", help="the shapes of h200_mimo_pair.py, in bfloat16 alone")
    options = parser.parse_args()
    sizes = SMALL if options.small else PAIR if options.pair else Sizes()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(0)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "nccl" if device == "cuda" else "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        single = [Phase(make=make, dtype=torch.float32, num_steps=3) for make in (runtime, megatron)]
        phases = [
            Phase(make=runtime, dtype=torch.bfloat16, num_steps=sizes.steps),
            Phase(make=megatron, dtype=torch.bfloat16, num_steps=sizes.steps),
            Phase(make=hugging_face, dtype=torch.bfloat16, num_steps=sizes.steps),
            *([] if options.pair else single),
        ]
        result: dict[str, Any] = {
            "date": date.today().isoformat(),
            "command": " ".join(["python", "benchmarks/h200_mimo_train.py", *sys.argv[1:]]),
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
            "versions": versions(),
            "layout": "both modules on one rank",
            "sizes": {name: getattr(sizes, name) for name in Sizes.__slots__},
            "micro_batch": MICRO_BATCH,
            "global_batch": BATCH,
            "phases": [],
        }
        for phase in phases:
            try:
                found = phase.run(sizes, device)
            except Exception:
                found = {"phase": phase.name, "error": traceback.format_exc()}
            result["phases"].append(found)
            print({name: value for name, value in found.items() if name != "rows"}, flush=True)
            options.output.write_text(json.dumps(result, indent=1))
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
