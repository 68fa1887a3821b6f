"""Stages of Hugging Face's vision towers and language models: weights from safetensors files, and back to them."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from zenith_mimo.checkpoint import MODEL
from zenith_mimo.checkpoint_folder import latest_checkpoint
from zenith_mimo.gradients import full_precision
from zenith_mimo.samples import MicroBatch
from zenith_mimo.tensor_parallel import TensorParallel
from zenith_tune.errors import UsageError
from zenith_tune.planner.mimo.modules import LANGUAGE
from zenith_tune.planner.mimo.work import stage_layers

Prefixes = Mapping[str, str]
"""What stands before a weight's name in a folder's files, by the first part of the name; "" for all others."""
TOWER: Prefixes = {"layers": "vision_model.encoder.", "": "vision_model."}
CAUSAL: Prefixes = {"lm_head": "", "": "model."}


class VisionStage(nn.Module):
    """A stage of a vision tower such as SigLIP's or CLIP's; the last one projects its patches for the language model.

    Items are images, (images, channels, height, width). The projector is made from `seed`, since no tower has one.
    """

    def __init__(self, folder: Path, tp: TensorParallel, stage: int, num_stages: int, *, width: int, seed: int) -> None:
        super().__init__()
        model, config = _on_meta(folder, "AutoModel", "vision_config")
        tower = model.vision_model if hasattr(model, "vision_model") else model
        refuse_tp("a vision tower", tp)
        layers = stage_layers(config.num_hidden_layers, stage, num_stages)
        self._num_patches, self._width = (config.image_size // config.patch_size) ** 2, config.hidden_size
        # Made again, because their tables of positions are no weights and would stay without values.
        self.embeddings = type(tower.embeddings)(config) if stage == 0 else None
        # CLIP's class token stands before the patches, and its first norm has this name.
        self._num_class = 1 if hasattr(tower.embeddings, "class_embedding") else 0
        self.pre_layrnorm = getattr(tower, "pre_layrnorm", None) if stage == 0 else None
        self.layers = nn.ModuleDict({str(layer): tower.encoder.layers[layer] for layer in layers})
        is_last = stage == num_stages - 1
        self.post_layernorm = tower.post_layernorm if is_last else None
        fill_from_folder(self, folder, TOWER, tp)
        self.projector = nn.Linear(config.hidden_size, width) if is_last else None
        if self.projector is not None:
            generator = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                self.projector.weight.normal_(std=config.hidden_size**-0.5, generator=generator)
                self.projector.bias.zero_()
        self.to(tp.device, tp.dtype)

    def embed(self, items: Tensor) -> Tensor:
        """Return the hidden vectors of images."""
        assert self.embeddings is not None, "only the first stage embeds"
        hidden = self.embeddings(items)
        return hidden if self.pre_layrnorm is None else self.pre_layrnorm(hidden)

    def blocks(self, hidden: Tensor) -> Tensor:
        """Return the hidden vectors after this stage's layers."""
        for layer in self.layers.values():
            hidden = _first(layer(hidden, None))
        return hidden

    def rows(self, hidden: Tensor) -> Tensor:
        """Return one row per patch."""
        assert self.post_layernorm is not None and self.projector is not None, "only the last stage has rows"
        rows = self.projector(self.post_layernorm(hidden[:, self._num_class :]))
        return rows.reshape(-1, rows.shape[-1])

    def hidden_shape(self, batch: MicroBatch, rows_per_sample: list[int]) -> tuple[int, ...]:
        """Return the shape of what comes from the stage before."""
        return sum(rows_per_sample) // self._num_patches, self._num_patches + self._num_class, self._width


class CausalStage(nn.Module):
    """A stage of a causal language model such as Llama or Qwen2."""

    def __init__(
        self, folder: Path, token_ids: Mapping[str, int], tp: TensorParallel, stage: int, num_stages: int
    ) -> None:
        super().__init__()
        model, config = _on_meta(folder, "AutoModelForCausalLM", "text_config")
        refuse_tp("a language model", tp)
        if config.tie_word_embeddings and num_stages > 1:
            problem = "a language model whose embedding is its head too cannot be pipelined"
            raise UsageError(f"{problem}, but {folder} is one and pp is {num_stages}", hint="set it to 1.")
        inner, is_last = model.model, stage == num_stages - 1
        layers = stage_layers(config.num_hidden_layers, stage, num_stages)
        self._token_ids, self._width = dict(sorted(token_ids.items())), config.hidden_size
        self.vocab_size: int = config.vocab_size
        self.embed_tokens = inner.embed_tokens if stage == 0 else None
        self.layers = nn.ModuleDict({str(layer): inner.layers[layer] for layer in layers})
        self.norm = inner.norm if is_last else None
        self.lm_head = model.lm_head if is_last else None
        if config.tie_word_embeddings:
            model.lm_head.weight = inner.embed_tokens.weight
        fill_from_folder(self, folder, CAUSAL, tp)
        # Without weights; made again because those on the meta device have no values.
        self._rotary = [type(inner.rotary_emb)(config).to(tp.device)]
        self.to(tp.device, tp.dtype)

    def embed(self, tokens: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """Return the text's vectors with the encoders' rows at their tokens."""
        assert self.embed_tokens is not None, "only the first stage embeds"
        device = self.embed_tokens.weight.device
        hidden = self.embed_tokens(tokens.to(device))
        for name, token_id in self._token_ids.items():
            is_item = tokens == token_id
            if int(is_item.sum()) != rows[name].shape[0]:
                raise UsageError(
                    f"the text must hold one token {token_id} for each row of {name}, but got {int(is_item.sum())} "
                    f"tokens and {rows[name].shape[0]} rows: check the samples."
                )
            hidden = hidden.masked_scatter(is_item.to(device).unsqueeze(-1), rows[name])
        return hidden

    def blocks(self, hidden: Tensor) -> Tensor:
        """Return the hidden vectors after this stage's layers."""
        positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
        angles = self._rotary[0](hidden, positions)
        for layer in self.layers.values():
            hidden = _first(layer(hidden, position_embeddings=angles))
        return hidden

    def loss(self, hidden: Tensor, labels: Tensor, loss_mask: Tensor) -> Tensor:
        """Return the loss summed over the tokens that count."""
        assert self.norm is not None and self.lm_head is not None, "only the last stage has a loss"
        logits = self.lm_head(self.norm(hidden))
        logits = logits.to(full_precision(logits.dtype)).flatten(0, 1)
        return (functional.cross_entropy(logits, labels.flatten(), reduction="none") * loss_mask.flatten()).sum()

    def hidden_shape(self, batch: MicroBatch, rows_per_sample: list[int]) -> tuple[int, ...]:
        """Return the shape of what comes from the stage before."""
        return *batch.tokens.shape, self._width


def refuse_tp(what: str, tp: TensorParallel) -> None:
    """Refuse to split a module that has no shards."""
    if tp.size > 1:
        raise UsageError(f"{what} of transformers is not split by tensor parallelism here, but tp is {tp.size}: set 1.")


def fill_from_folder(module: nn.Module, folder: Path, prefixes: Prefixes, tp: TensorParallel) -> None:
    """Give a stage its weights: only its own tensors are read."""
    files = _files_of(folder)
    for name, parameter in list(module.named_parameters()):
        key = _key_of(name, prefixes, files)
        if key not in files:
            raise UsageError(f"{folder} has no weight {key!r}: it is of another model.")
        with safe_open(files[key], framework="pt") as opened:
            weight = opened.get_tensor(key)
        if weight.shape != parameter.shape:
            found = f"{list(weight.shape)} in {folder} and {list(parameter.shape)} in its config.json"
            raise UsageError(f"{key!r} has the shape {found}: they are not of one model.")
        owner = module.get_submodule(name.rpartition(".")[0])
        setattr(owner, name.rpartition(".")[2], nn.Parameter(weight.to(tp.device, tp.dtype)))


def _key_of(name: str, prefixes: Prefixes, files: Mapping[str, Path]) -> str:
    """Return the name in a folder's files of a stage's weight."""
    key = prefixes.get(name.partition(".")[0], prefixes[""]) + name
    # A tower that was saved alone may leave its own name out.
    return key if key in files else key.removeprefix("vision_model.")


def export_module(checkpoint: Path, module: str, source: Path, target: Path) -> None:
    """Write a checkpoint's vision tower or language model as a folder like `source`, which it was made from.

    What the checkpoint does not hold is taken from `source`. What `source` has no place for, the projector, comes under
    its name in the runtime into `projector.safetensors`. One process does it, without ranks.
    """
    found, files = latest_checkpoint(checkpoint), _files_of(source)
    contents: dict[str, Any] = dcp.FileSystemReader(found).read_metadata().state_dict_metadata
    start, prefixes = f"{MODEL}{module}/", CAUSAL if module == LANGUAGE else TOWER
    names = {_key_of(name.removeprefix(start), prefixes, files): name for name in contents if name.startswith(start)}
    if not names.keys() & files.keys():
        raise UsageError(f"{found} has no module {module!r} with the weights of {source}", hint="give its own folder.")
    if target.exists():
        raise UsageError(f"{target} exists already", hint="give a new folder.")
    shutil.copytree(
        source, target, ignore=lambda _, entries: {name for name in entries if name.endswith(".safetensors")}
    )
    for path in sorted(set(files.values())):
        with safe_open(path, framework="pt") as opened:
            weights = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 - it is no mapping
        trained = _read_weights(found, {key: names[key] for key in names.keys() & weights.keys()}, contents)
        weights |= {key: weight.to(weights[key].dtype) for key, weight in trained.items()}
        save_file(weights, target / path.name, metadata={"format": "pt"})
    own = {name.removeprefix(start): name for key, name in names.items() if key not in files}
    if own:
        save_file(_read_weights(found, own, contents), target / "projector.safetensors", metadata={"format": "pt"})


def _read_weights(checkpoint: Path, names: Mapping[str, str], contents: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return whole tensors of a checkpoint; `names` are theirs there by those that are wanted."""
    empty = {name: torch.empty(contents[name].size, dtype=contents[name].properties.dtype) for name in names.values()}
    with warnings.catch_warnings():
        # It says that there are no other ranks.
        warnings.filterwarnings("ignore", "torch.distributed is")
        dcp.load(empty, storage_reader=dcp.FileSystemReader(checkpoint), no_dist=True)
    return {key: empty[name] for key, name in names.items()}


def _files_of(folder: Path) -> dict[str, Path]:
    """Return the file of each weight in a folder."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return {key: folder / name for key, name in json.loads(index.read_text())["weight_map"].items()}
    path = folder / "model.safetensors"
    if not path.is_file():
        raise UsageError(f"{folder} must hold model.safetensors or its index, but has neither: give another folder.")
    with safe_open(path, framework="pt") as opened:
        return dict.fromkeys(opened.keys(), path)


def _on_meta(folder: Path, kind: str, part: str) -> tuple[Any, Any]:
    """Return a model without weights by a folder's config.json, and the configuration of the part that is meant."""
    import transformers

    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} must hold a model of transformers, but has no config.json: give another folder.")
    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = getattr(transformers, kind).from_config(config)
    return model, getattr(config, part, config)


def _first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output
