"""Compare vision towers and language models of transformers, stage by stage, with transformers' own passes."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

from zenith_mimo.hugging_face import CausalStage, QwenVisionStage, VisionStage, image_positions
from zenith_mimo.modules import call
from zenith_mimo.tensor_parallel import TensorParallel
from zenith_tune.errors import UsageError

WIDTH, VOCAB, LENGTH, IMAGE = 32, 64, 20, 3
TP = TensorParallel(dtype=torch.float64)
PLAIN = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
SQUARE = {**PLAIN, "image_size": 8, "patch_size": 4}
QWEN = {"depth": 3, "embed_dim": 16, "hidden_size": WIDTH, "num_heads": 2, "mlp_ratio": 2, "patch_size": 4}
GRIDS = ((1, 4, 4), (1, 2, 4))
"""Images of different sizes."""
TEXT = {**PLAIN, "hidden_size": WIDTH, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB}
WINDOW = {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 1}
LANGUAGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, {}),
    "qwen2": (transformers.Qwen2Config, {}),
    "qwen2 windows": (transformers.Qwen2Config, WINDOW),
    "qwen3": (transformers.Qwen3Config, {"head_dim": 8}),
    "mistral": (transformers.MistralConfig, {"sliding_window": 5}),
}
NUM_IMAGES = (2, 0)
"""With images, and a lane without any."""


@dataclass(frozen=True)
class Tower:
    """A tower whole, as transformers run it, and its stages."""

    whole: nn.Module
    whole_rows: Callable[[Tensor], Tensor]
    stage: Callable[[int, int], Any]
    items: Callable[[int], Tensor]
    side: Callable[[int], dict[str, Tensor]]
    names: Mapping[str, str]


def pixels(num: int) -> Tensor:
    return torch.randn(num, 3, 8, 8, generator=torch.Generator().manual_seed(num), dtype=torch.float64)


def patches(num: int) -> Tensor:
    total = sum(t * h * w for t, h, w in GRIDS[:num])
    return torch.randn(total, 3 * 2 * 16, generator=torch.Generator().manual_seed(num), dtype=torch.float64)


def square_tower(root: Path, name: str, config: Any, model: Any, **options: Any) -> Tower:
    folder = root / name
    whole = model(config(**SQUARE)).double()
    nn.init.normal_(whole.post_layernorm.weight)
    whole.save_pretrained(folder)

    def stage(index: int, num: int) -> VisionStage:
        return VisionStage(folder, TP, index, num, width=WIDTH, seed=1, **options)

    projector = stage(0, 1).projector
    assert projector is not None

    def rows(items: Tensor) -> Tensor:
        output = whole(items, output_hidden_states=True)
        layer = options.get("layer")
        hidden = output.last_hidden_state if layer is None else output.hidden_states[layer]
        num_class = hidden.shape[1] - 4
        return projector(hidden[:, 0 if options.get("keep_class") else num_class :]).flatten(0, 1)

    names = {"layers": "encoder.layers"}
    return Tower(whole, rows, stage, pixels, lambda num: {}, names)


def qwen_tower(root: Path) -> Tower:
    folder = root / "qwen2-vl"
    whole = Qwen2VisionTransformerPretrainedModel(Qwen2VLVisionConfig(**QWEN)).double()
    whole.save_pretrained(folder)

    def side(num: int) -> dict[str, Tensor]:
        return {"grid_thw": torch.tensor(GRIDS[:num]).view(-1, 3)}

    def rows(items: Tensor) -> Tensor:
        return whole(items, grid_thw=side(2)["grid_thw"]).pooler_output

    return Tower(
        whole,
        rows,
        lambda index, num: QwenVisionStage(folder, TP, index, num, width=WIDTH),
        patches,
        side,
        {"layers": "blocks"},
    )


def make_towers(root: Path) -> dict[str, Tower]:
    clip = (transformers.CLIPVisionConfig, transformers.CLIPVisionModel)
    siglip = (transformers.SiglipVisionConfig, transformers.SiglipVisionModel)
    return {
        "clip": square_tower(root, "clip", *clip),
        "clip with class token": square_tower(root, "clip-class", *clip, keep_class=True),
        "clip layer -2": square_tower(root, "clip-llava", *clip, layer=-2, projector_layers=2),
        "siglip": square_tower(root, "siglip", *siglip),
        "siglip layer -2": square_tower(root, "siglip-llava", *siglip, layer=-2, projector_layers=2),
        "qwen2-vl": qwen_tower(root),
    }


def chain(stages: list[Any], *inputs: Any, side: dict[str, Tensor]) -> Tensor:
    """Run a module's stages one after another."""
    hidden = call(stages[0].embed, *inputs, side=side)
    for stage in stages:
        hidden = call(stage.blocks, hidden, side=side)
    return hidden


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def staged_gradients(stages: list[nn.Module], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Return the gradients of stages by the names of the whole module."""
    found: dict[str, Tensor] = {}
    for stage in stages:
        for name, grad in gradients(stage).items():
            first, dot, rest = name.partition(".")
            if first != "projector":
                whole = names.get(first, first) + dot + rest
                found[whole] = found[whole] + grad if whole in found else grad  # both ends have tied embeddings
    return found


def worst(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert found and found.keys() == expected.keys(), sorted(found.keys() ^ expected.keys())
    return max(float((found[name] - grad).abs().max() / (grad.abs().max() + 1e-12)) for name, grad in expected.items())


def compare(tower: Tower, folder: Path, language: Any, num_images: int, num_stages: int) -> float:
    """Return by how much losses and gradients differ."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(IMAGE + 1, VOCAB, (2, LENGTH + 1), generator=generator)
    side, items = tower.side(num_images), tower.items(num_images)
    tower.whole.zero_grad()
    language.zero_grad()
    rows = tower.whole_rows(items) if num_images else torch.zeros(0, WIDTH, dtype=torch.float64)
    tokens[0, 1 : 1 + rows.shape[0]] = IMAGE
    hidden = language.get_input_embeddings()(tokens[:, :-1])
    hidden = hidden.masked_scatter((tokens[:, :-1] == IMAGE).unsqueeze(-1), rows)
    logits = language(inputs_embeds=hidden).logits.flatten(0, 1)
    whole = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten(), reduction="sum")
    whole.backward()
    vision = [tower.stage(index, num_stages) for index in range(num_stages)]
    text = [CausalStage(folder, {"vision": IMAGE}, TP, index, num_stages) for index in range(num_stages)]
    made = call(vision[-1].rows, chain(vision, items, side=side), side=side)
    seen = chain(text, tokens[:, :-1], {"vision": made}, side={})
    loss = text[-1].loss(seen, tokens[:, 1:], torch.ones(2, LENGTH, dtype=torch.float64))
    loss.backward()
    names = {name: f"model.{name}" for name in ("embed_tokens", "layers", "norm")}
    errors = [abs(float((loss / whole).detach()) - 1), worst(staged_gradients(text, names), gradients(language))]
    if num_images:
        errors.append(worst(staged_gradients(vision, tower.names), gradients(tower.whole)))
    return max(errors)


def pairs(root: Path) -> dict[str, float]:
    """Return the largest error of each pair, with and without images, whole and in two stages."""
    towers, found = make_towers(root), {}
    for (kind, (config, options)), is_tied in itertools.product(LANGUAGES.items(), (False, True)):
        folder = root / f"{kind}-{is_tied}"
        made = config(**TEXT, **options, tie_word_embeddings=is_tied)
        language = transformers.AutoModelForCausalLM.from_config(made).double()
        language.save_pretrained(folder)
        for name, tower in towers.items():
            errors = [compare(tower, folder, language, num, of) for num in NUM_IMAGES for of in (1, 2)]
            found[f"{name} {kind}{' tied' * is_tied}"] = max(errors)
    return found


def llava(root: Path) -> float:
    """Return by how much the logits of a whole LLaVA differ from those of stages made from its folder."""
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**SQUARE),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_id=IMAGE,
        image_seq_length=4,
    )
    whole = transformers.LlavaForConditionalGeneration(config).double()
    whole.save_pretrained(root / "llava")
    vision = VisionStage(root / "llava", TP, 0, 1, width=WIDTH, seed=1, layer=-2, projector_layers=2)
    text = CausalStage(root / "llava", {"vision": IMAGE}, TP, 0, 1)
    tokens = torch.randint(IMAGE + 1, VOCAB, (1, LENGTH))
    tokens[0, 1:9] = IMAGE
    expected = whole(input_ids=tokens, pixel_values=pixels(2)).logits
    rows = vision.rows(vision.blocks(vision.embed(pixels(2))))
    assert text.norm is not None and text.lm_head is not None
    hidden = text.blocks(text.embed(tokens, {"vision": rows}), {})
    return float((text.lm_head(text.norm(hidden)) - expected).abs().max().detach())


def mrope(root: Path) -> dict[str, float]:
    """Return by how much positions, loss and gradients of a whole Qwen2-VL differ from those of two stages of each."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    text = {**TEXT, "model_type": "qwen2_vl_text", "rope_parameters": rope, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.Qwen2VLConfig(
        text_config=text, vision_config=QWEN, image_token_id=IMAGE, tie_word_embeddings=True
    )
    whole = transformers.Qwen2VLForConditionalGeneration(config).double()
    whole.save_pretrained(root / "qwen2-vl-whole")
    tokens = torch.randint(IMAGE + 1, VOCAB, (2, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    tokens[0, 1:5], tokens[1, 7:9] = IMAGE, IMAGE
    tokens, labels, grid = tokens[:, :-1], tokens[:, 1:], torch.tensor(GRIDS)
    kinds = (tokens == IMAGE).int()
    inputs = {"pixel_values": patches(2), "image_grid_thw": grid, "mm_token_type_ids": kinds}
    logits = whole(input_ids=tokens, **inputs).logits.flatten(0, 1)
    loss = nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum")
    loss.backward()
    positions = torch.stack([image_positions(tokens[one], IMAGE, grid[one : one + 1]) for one in range(2)])
    theirs, _ = whole.model.get_rope_index(tokens, kinds, grid)
    folder = root / "qwen2-vl-whole"
    vision = [QwenVisionStage(folder, TP, index, 2, width=WIDTH) for index in range(2)]
    stages = [CausalStage(folder, {"vision": IMAGE}, TP, index, 2) for index in range(2)]
    rows = call(vision[-1].rows, chain(vision, patches(2), side={"grid_thw": grid}), side={})
    seen = chain(stages, tokens, {"vision": rows}, side={"position_ids": positions})
    staged = stages[-1].loss(seen, labels, torch.ones(2, LENGTH, dtype=torch.float64))
    staged.backward()
    language = {name: name for name in ("embed_tokens", "layers", "norm")}
    return {
        "positions": float((theirs.transpose(0, 1) - positions).abs().max()),
        "loss": abs(float((staged / loss).detach()) - 1),
        "text": worst(staged_gradients([*stages], language), gradients(whole.model.language_model)),
        "tower": worst(staged_gradients([*vision], {"layers": "blocks"}), gradients(whole.model.visual)),
    }


def packed(root: Path) -> float:
    """Return by how much texts packed into one sample by their positions differ from the same alone."""
    stage = CausalStage(root / "llama-False", {}, TP, 0, 1)
    texts = [torch.randint(IMAGE + 1, VOCAB, (1, length)) for length in (7, 5)]
    apart = [stage.blocks(stage.embed(text, {}), {}) for text in texts]
    positions = torch.cat([torch.arange(text.shape[1]) for text in texts]).unsqueeze(0)
    together = stage.blocks(stage.embed(torch.cat(texts, 1), {}), {"position_ids": positions})
    return float((together - torch.cat(apart, 1)).abs().max().detach())


def recomputed(root: Path) -> list[float]:
    """Return the loss's gradient of the first layer with and without recomputation."""
    found = []
    for recompute in (False, True):
        stage = CausalStage(root / "qwen2-False", {}, TP, 0, 1, recompute=recompute)
        tokens = torch.arange(4, 16).unsqueeze(0)
        hidden = stage.blocks(stage.embed(tokens, {}), {})
        stage.loss(hidden, tokens, torch.ones(1, 12)).backward()
        found.append(float(stage.layers["0"].mlp.down_proj.weight.grad.norm()))
    return found


def refusals(root: Path) -> dict[str, str]:
    """Meet what cannot be built."""
    transformers.GemmaForCausalLM(transformers.GemmaConfig(**TEXT, head_dim=8)).save_pretrained(root / "gemma")
    transformers.Dinov2Model(transformers.Dinov2Config(**PLAIN)).save_pretrained(root / "dino")
    square = {"width": WIDTH, "seed": 0}
    attempts: dict[str, Callable[[], object]] = {
        "gemma": lambda: CausalStage(root / "gemma", {}, TP, 0, 1),
        "dinov2": lambda: VisionStage(root / "dino", TP, 0, 1, width=WIDTH, seed=0),
        "layer": lambda: VisionStage(root / "clip", TP, 0, 1, **square, layer=4),  # type: ignore[arg-type]
        "width": lambda: QwenVisionStage(root / "qwen2-vl", TP, 0, 1, width=7),
        "split": lambda: QwenVisionStage(root / "qwen2-vl", replace(TP, size=2), 0, 1, width=WIDTH),
        "positions": lambda: image_positions(torch.tensor([7, IMAGE, IMAGE, 8]), IMAGE, torch.tensor([[1, 4, 4]])),
        "projector": lambda: VisionStage(root / "clip", TP, 0, 1, **square, projector_layers=3),  # type: ignore[arg-type]
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
    torch.manual_seed(0)
    torch.set_num_threads(1)
    found = {"pairs": pairs(root), "llava": llava(root), "packed": packed(root), "mrope": mrope(root)}
    print(json.dumps({**found, "recomputed": recomputed(root), "refusals": refusals(root)}))


if __name__ == "__main__":
    main()
