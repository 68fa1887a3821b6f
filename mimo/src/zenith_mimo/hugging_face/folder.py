"""A folder of transformers: the configuration of one of its parts, and the tensors that a stage needs of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from zenith_mimo.hugging_face.split import sum_gradient
from zenith_mimo.tensor_parallel import TensorParallel, shard_of
from zenith_tune.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNames:
    """The names that a module's weights may have in files."""

    inside: Mapping[str, str]
    """What stands for the first part of a stage's name in the module itself, where that is another."""
    outside: tuple[str, ...]
    """What may stand before that, in files of the module alone and in those of whole models."""

    def of(self, name: str, files: Mapping[str, Path]) -> str:
        """Return the name in these files of a stage's weight; the first that it may have where none is there."""
        first, dot, rest = name.partition(".")
        keys = [prefix + self.inside.get(first, first) + dot + rest for prefix in self.outside]
        return next((key for key in keys if key in files), keys[0])


PROJECTOR = WeightNames(inside={}, outside=("", "multi_modal_", "model.multi_modal_"))
TOWER = WeightNames(
    inside={"layers": "encoder.layers"},
    outside=("vision_model.", "", "vision_tower.vision_model.", "vision_tower.", "model.vision_tower."),
)
QWEN_TOWER = WeightNames(inside={"layers": "blocks"}, outside=("visual.", "", "model.visual."))
CAUSAL = WeightNames(
    inside={name: f"model.{name}" for name in ("embed_tokens", "layers", "norm")}, outside=("", "language_model.")
)


def read_config(folder: Path, part: str = "") -> Any:
    """Return the configuration of a model, or of its part of that name where it has one."""
    import transformers

    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} must hold a model of transformers, but has no config.json: give another folder.")
    config = transformers.AutoConfig.from_pretrained(folder)
    return getattr(config, part, config)


def check_kind(folder: Path, what: str, config: Any, known: tuple[str, ...]) -> str:
    """Return the kind of a model; raises UsageError for one whose forward pass is not known to be the usual one."""
    kind: str = config.model_type
    if kind not in known:
        raise UsageError(f"{what} must be one of {', '.join(known)}, but {folder} has {kind}: give another folder.")
    return kind


def on_meta(make: Any, config: Any) -> Any:
    """Return a model without weights."""
    with torch.device("meta"):
        return make(config)


def recompute_layers(model: Any) -> None:
    """Let a model's layers run forward again in the backward pass."""
    model.gradient_checkpointing_enable({"use_reentrant": False})


def fill_from_folder(module: nn.Module, folder: Path, names: WeightNames, tp: TensorParallel) -> None:
    """Give a stage its weights: only its own tensors are read."""
    files = files_of(folder)
    for name, parameter in list(module.named_parameters()):
        key = names.of(name, files)
        if key not in files:
            raise UsageError(f"{folder} has no weight {key!r}: it is of another model.")
        shard = shard_of(parameter)
        with safe_open(files[key], framework="pt") as opened:
            whole = opened.get_slice(key)
            if (shape := tuple(whole.get_shape())) != shard.shape:
                found = f"{list(shape)} in {folder} and {list(shard.shape)} in its config.json"
                raise UsageError(f"{key!r} has the shape {found}: they are not of one model.")
            weight = nn.Parameter(shard.cut(whole).to(tp.device, tp.dtype))
        weight.shard = shard
        if getattr(parameter, "is_summed", False):
            sum_gradient(weight, tp)
        owner = module.get_submodule(name.rpartition(".")[0])
        setattr(owner, name.rpartition(".")[2], weight)


def read_projector(folder: Path, name: str) -> Tensor | None:
    """Return a projector's weight where the folder is of a whole model that has one."""
    files = files_of(folder)
    key = PROJECTOR.of(name, files)
    if key not in files:
        return None
    with safe_open(files[key], framework="pt") as opened:
        return opened.get_tensor(key)


def files_of(folder: Path) -> dict[str, Path]:
    """Return the file of each weight in a folder."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return {key: folder / name for key, name in json.loads(index.read_text())["weight_map"].items()}
    path = folder / "model.safetensors"
    if not path.is_file():
        raise UsageError(f"{folder} must hold model.safetensors or its index, but has neither: give another folder.")
    with safe_open(path, framework="pt") as opened:
        return dict.fromkeys(opened.keys(), path)


def last_hidden(output: Any) -> Tensor:
    """Return the hidden vectors of a layer or a model, whatever they come in."""
    found = output[0] if isinstance(output, tuple) else getattr(output, "last_hidden_state", output)
    assert isinstance(found, Tensor)
    return found
