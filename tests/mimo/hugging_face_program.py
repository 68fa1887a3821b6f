"""Train small models of transformers from safetensors folders in two layouts and in one process; print the losses."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    CLIPVisionConfig,
    CLIPVisionModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from tests.mimo.forked_world import run_world
from zenith_mimo.checkpoint import save_checkpoint
from zenith_mimo.hugging_face import CausalStage, VisionStage, export_module
from zenith_mimo.modules import BuildStage, MimoModel
from zenith_mimo.optimizer import OptimizerConfig, get_mimo_optimizer
from zenith_mimo.planning.config import MimoLayout, ModuleLayout
from zenith_mimo.samples import Sample, collate
from zenith_mimo.tensor_parallel import TensorParallel
from zenith_mimo.topology import Topology
from zenith_mimo.trainer import Trainer
from zenith_tune.errors import UsageError

VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}
Layouts = dict[str, tuple[ModuleLayout, ModuleLayout]]
WIDTH, VOCAB, LENGTH, IMAGE = 32, 64, 12, 3
NUM_ROWS = 4
LAYOUTS: Layouts = {
    "own ranks": (ModuleLayout(pp=2), ModuleLayout(pp=2, offset=2)),
    "split": (ModuleLayout(tp=2), ModuleLayout(tp=2, offset=2)),
    "shared": (ModuleLayout(dp=4), ModuleLayout(dp=4)),
}
LARGER: Layouts = {
    "sharded": (ModuleLayout(), ModuleLayout(pp=2, dp=2, offset=1)),
    "recomputed": (ModuleLayout(), ModuleLayout(tp=2, pp=2, offset=1)),
}
"""On five ranks, for a tied embedding: the optimizer's state shared out; both ends split."""
LANGUAGES = {"siglip": "llama", "clip": "qwen3-tied"}
"""The language models that are trained with the towers."""
OPTIMIZER = OptimizerConfig(lr=1e-2, eps=1e-2, clip_grad=0.5)
NUM_STEPS = 3
VISION_MODELS = {"clip": CLIPVisionModel, "siglip": SiglipVisionModel}


@dataclass(frozen=True)
class Images:
    """Samples with none, one or two images; some lanes have none at all."""

    step: int

    def __len__(self) -> int:
        return 8

    def read(self, index: int, encoder: str | None) -> Sample:
        generator = torch.Generator().manual_seed(100 * self.step + index)
        num = (0, 0, 1, 2)[index % 4]
        tokens = torch.randint(IMAGE + 1, VOCAB, (LENGTH + 1,), generator=generator)
        tokens[1 : 1 + num * NUM_ROWS] = IMAGE
        pixels = torch.randn(num, 3, 8, 8, generator=generator)
        items = {} if encoder is None else {encoder: pixels}
        return Sample(tokens=tokens, is_counted=tokens[1:] != IMAGE, items=items, num_rows={"vision": num * NUM_ROWS})


def save_models(root: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    CLIPVisionModel(CLIPVisionConfig(**VISION)).save_pretrained(root / "clip")
    SiglipVisionModel(SiglipVisionConfig(**VISION, vision_use_head=False)).save_pretrained(root / "siglip")
    sizes = {"hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 3, "vocab_size": VOCAB}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(root / LANGUAGES["siglip"], max_shard_size="20KB")
    tied = Qwen3Config(**sizes, head_dim=8, tie_word_embeddings=True)
    Qwen3ForCausalLM(tied).save_pretrained(root / LANGUAGES["clip"], max_shard_size="20KB")
    return {}


def builders(root: Path, tower: str, *, recompute: bool = False) -> dict[str, BuildStage]:
    return {
        "vision": lambda tp, stage, num: VisionStage(root / tower, tp, stage, num, width=WIDTH, seed=1),
        "language": lambda tp, stage, num: CausalStage(
            root / LANGUAGES[tower], {"vision": IMAGE}, tp, stage, num, recompute=recompute
        ),
    }


def train(root: Path, tower: str, layouts: Layouts) -> dict[str, list[float]]:
    """Return the losses and norms of each layout."""
    found: dict[str, list[float]] = {}
    for name, (vision, language) in layouts.items():
        layout = MimoLayout(modules={"vision": vision, "language": language})
        topology = Topology(layout, timeout=timedelta(seconds=500))
        model = MimoModel(builders(root, tower, recompute=name == "recomputed"), topology, row_width=WIDTH)
        config = replace(OPTIMIZER, use_distributed_optimizer=name == "sharded")
        trainer = Trainer(model, get_mimo_optimizer(model, config), micro_batch_size=2, global_batch_size=8)
        steps = [trainer.step(Images(step)) for step in range(NUM_STEPS)]
        save_checkpoint(root / "saved" / tower / name, trainer)
        found[name] = [number for step in steps for number in (step.loss, step.grad_norm or 0.0)]
        trainer.close()
    return found


def train_whole(root: Path, tower: str) -> dict[str, list[float]]:
    """Return the same of the whole models, run by transformers themselves."""
    stage = builders(root, tower)["vision"](TensorParallel(), 0, 1)
    vision = VISION_MODELS[tower].from_pretrained(root / tower)
    language = AutoModelForCausalLM.from_pretrained(root / LANGUAGES[tower])
    parameters = [p for m in (vision, stage.projector, language) for p in m.parameters()]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": OPTIMIZER.weight_decay},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=OPTIMIZER.lr, betas=OPTIMIZER.betas, eps=OPTIMIZER.eps)
    found = []
    for step in range(NUM_STEPS):
        batch = collate([Images(step).read(index, "vision") for index in range(8)])
        seen = vision(batch.items["vision"]).last_hidden_state
        if tower == "clip":
            seen = seen[:, 1:]
        rows = stage.projector(seen).flatten(0, 1)
        hidden = language.get_input_embeddings()(batch.tokens)
        hidden = hidden.masked_scatter((batch.tokens == IMAGE).unsqueeze(-1), rows)
        logits = language(inputs_embeds=hidden).logits.flatten(0, 1)
        losses = nn.functional.cross_entropy(logits, batch.labels.flatten(), reduction="none")
        loss = (losses * batch.loss_mask.flatten()).sum() / batch.num_counted
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, OPTIMIZER.clip_grad)
        optimizer.step()
        found += [float(loss.detach()), float(norm)]
    trained = {
        "vision": vision.state_dict(),
        "language": language.state_dict(),
        "projector": stage.projector.state_dict(),
    }
    torch.save(trained, root / f"{tower}.pt")
    return {"whole": found}


def exported(root: Path, tower: str) -> dict[str, float]:
    """Return by how much the weights that each layout saved differ, as transformers load them after the export."""
    trained = torch.load(root / f"{tower}.pt")
    found = {}
    for name in [*LAYOUTS, *(LARGER if tower == "clip" else ())]:
        saved, target = root / "saved" / tower / name, root / "exported" / tower / name
        export_module(saved, "vision", root / tower, target / "vision")
        export_module(saved, "language", root / LANGUAGES[tower], target / "language")
        models = {
            "vision": VISION_MODELS[tower].from_pretrained(target / "vision"),
            "language": AutoModelForCausalLM.from_pretrained(target / "language"),
        }
        for module, model in models.items():
            weights = model.state_dict()
            assert weights.keys() == trained[module].keys()
            found[f"{name} {module}"] = max(float((weights[key] - trained[module][key]).abs().max()) for key in weights)
        projector = load_file(target / "vision" / "projector.safetensors")
        assert projector.keys() == {"projector.weight", "projector.bias"}
        before = VISION_MODELS[tower].from_pretrained(root / tower).state_dict()
        moved = [float((before[key] - weight).abs().max()) for key, weight in trained["vision"].items()]
        found[f"{name} moved"] = max(moved)
        found[f"{name} projector"] = float((projector["projector.weight"] - trained["projector"]["weight"]).abs().max())
    return found


def refusals(root: Path) -> dict[str, str]:
    """Meet what cannot be built."""
    build = builders(root, "siglip")
    attempts: dict[str, Callable[[], object]] = {
        "tp": lambda: build["language"](TensorParallel(size=4), 0, 1),
        "folder": lambda: builders(root, "none")["vision"](TensorParallel(), 0, 1),
        "stages": lambda: build["vision"](TensorParallel(), 0, 3),
        "source": lambda: export_module(root / "saved/siglip/shared", "language", root / "clip", root / "new"),
        "target": lambda: export_module(root / "saved/siglip/shared", "vision", root / "siglip", root / "clip"),
    }
    found = {}
    for name, attempt in attempts.items():
        try:
            attempt()
            found[name] = "nothing"
        except UsageError as error:
            found[name] = str(error)
    return found


def main() -> None:
    root = Path(sys.argv[1])
    run_world(1, functools.partial(save_models, root))
    found: dict[str, Any] = {}
    for tower in ("siglip", "clip"):
        (whole,) = run_world(1, functools.partial(train_whole, root, tower))
        ranks = run_world(4, functools.partial(train, root, tower, LAYOUTS))
        found[tower] = {**whole, "ranks": ranks}
        if tower == "clip":
            found["larger"] = run_world(5, functools.partial(train, root, tower, LARGER))
        (found[tower]["exported"],) = run_world(1, functools.partial(exported, root, tower))
    (found["refusals"],) = run_world(1, functools.partial(refusals, root))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
