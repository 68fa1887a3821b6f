"""What the modules cost that zenith_mimo.hugging_face builds, by the config.json of their folders.

s  tokens of a sequence, or patches of an image    h  hidden size    f  feed-forward size    w  language model's width
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zenith_mimo.planning.config import LANGUAGE, TransformerConfig
from zenith_mimo.planning.work import ModuleWork, PartWork, layer_work
from zenith_tune.describe.config_json import MAX_BYTES
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.study.files import read_regular

WHOLE = ("1, since Qwen2-VL's tower is not split,", 1)
QWEN = "qwen2_vl"
TOWERS = ("clip_vision_model", "siglip_vision_model")


def causal_work(folder: Path, seq_length: int) -> ModuleWork:
    """Return a language model's work by sample."""
    spec = load_model(str(folder))
    h, s = spec.hidden, seq_length
    matrices = spec.attention_params + spec.dense_mlp_params
    return ModuleWork(
        num_layers=spec.num_layers,
        layer=PartWork(
            # The scores of a causal mask are half of s * s, for queries and for values.
            split_flops=s * (2.0 * matrices + s * (spec.query_size + spec.value_size)),
            split_params=matrices,
            whole_params=2 * spec.norm_params,
            split_kept=s * _kept(spec),
        ),
        first=PartWork(split_params=spec.embedding_params),
        last=PartWork(
            split_flops=2.0 * s * h * spec.vocab,
            split_params=0 if spec.tied_embeddings else spec.embedding_params,
            whole_params=spec.norm_params,
            split_kept=3 * s * spec.vocab,
        ),
        hidden_numbers=s * h,
        widths=(
            ("the language model's heads", spec.num_heads),
            ("the language model's key-value heads", spec.num_kv_heads),
            ("the language model's perceptron", spec.ffn_hidden),
            ("the vocabulary", spec.vocab),
        ),
        is_tied=spec.tied_embeddings,
    )


def _kept(spec: ModelSpec) -> float:
    """Numbers per token: norms in single precision, queries and keys before and after rotation, the gated middle."""
    return 8 * spec.hidden + 2 * (spec.query_size + spec.kv_size) + spec.value_size + 4 * spec.ffn_hidden


def parts_of(folder: Path) -> set[str]:
    """Return which modules a folder's model has: a vision tower, a language model, or both."""
    whole = _read(folder)
    vision = {"vision"} if str(_vision_config(folder).get("model_type")).startswith((QWEN, *TOWERS)) else set()
    return vision | ({LANGUAGE} if "vocab_size" in whole or "text_config" in whole else set())


def _vision_config(folder: Path) -> dict[str, Any]:
    whole = _read(folder)
    found: dict[str, Any] = whole.get("vision_config") or whole
    return found


def _read(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_regular(folder / "config.json", MAX_BYTES))
    except (OSError, ValueError):
        raise UsageError(f"{folder} must hold a model of transformers, but its config.json cannot be read.") from None
    return found if isinstance(found, dict) else {}


def vision_work(folder: Path, language_width: int, *, num_patches: int | None = None) -> ModuleWork:
    """Return a vision tower's work by image; Qwen2-VL's takes images of any size, of `num_patches` on average."""
    config = _vision_config(folder)
    kind = str(config.get("model_type"))
    if kind.startswith(QWEN):
        return _qwen_work(config, language_width, num_patches or 1024)
    if kind not in TOWERS:
        raise UsageError(f"{folder} must have a vision tower of {', '.join((*TOWERS, QWEN))}, but has {kind}.")
    patches = (config["image_size"] // config["patch_size"]) ** 2
    s, h = patches + (1 if kind.startswith("clip") else 0), config["hidden_size"]
    shape = (config["num_hidden_layers"], h, config["num_attention_heads"], config["intermediate_size"])
    projector = PartWork(
        whole_flops=2.0 * patches * h * language_width,
        whole_params=(h + 1) * language_width,
        whole_kept=patches * (h + language_width),
    )
    widths = (("the tower's heads", shape[2]), ("the tower's perceptron", shape[3]))
    return _tower(shape, s, 3 * config["patch_size"] ** 2, projector, patches * language_width, widths)


def _qwen_work(config: Mapping[str, Any], language_width: int, patches: int) -> ModuleWork:
    h, merged = config["embed_dim"], config.get("spatial_merge_size", 2) ** 2
    wide, rows = h * merged, patches // merged
    params = wide * (wide + language_width)
    shape = (config["depth"], h, config["num_heads"], int(h * config["mlp_ratio"]))
    merger = PartWork(whole_flops=2.0 * rows * params, whole_params=params, whole_kept=rows * 3 * wide)
    numbers = 3 * config.get("temporal_patch_size", 2) * config["patch_size"] ** 2
    return _tower(shape, patches, numbers, merger, rows * language_width, (WHOLE,))


def _tower(
    shape: tuple[int, int, int, int],
    s: int,
    patch_numbers: int,
    last: PartWork,
    outputs: int,
    widths: tuple[tuple[str, int], ...],
) -> ModuleWork:
    num_layers, h, heads, f = shape
    config = TransformerConfig(num_layers=num_layers, hidden_size=h, num_heads=heads, ffn_size=f)
    return ModuleWork(
        num_layers=num_layers,
        layer=layer_work(config, s, is_causal=False),
        first=PartWork(whole_flops=2.0 * s * patch_numbers * h, whole_params=(patch_numbers + s) * h),
        last=last,
        hidden_numbers=s * h,
        output_numbers=outputs,
        widths=widths,
    )
