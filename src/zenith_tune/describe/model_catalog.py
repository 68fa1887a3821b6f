"""Models by name: the catalog's, and those that a config.json describes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zenith_tune.describe.catalog import read_catalog
from zenith_tune.describe.config_json import (
    FILE_NAME,
    HEADS,
    LAYERS,
    QUERY_GROUPS,
    ConfigJson,
    config_path,
    find_local,
    read_config,
    refuse_missing_path,
)
from zenith_tune.describe.config_spec import OTHERWISE, model_spec_from_config
from zenith_tune.describe.hub import fetch_config
from zenith_tune.describe.model_spec import LatentAttention, ModelSpec
from zenith_tune.errors import UnknownNameError

HINT = f"give the path of a config.json, {OTHERWISE}"

_ABOUT = frozenset({"family", "published_params", "source", "hub", "aliases"})
"""Keys of an entry that are not part of the model's shape."""


def load_model(text: str) -> ModelSpec:
    """Return the model that `text` names: a config.json or its folder, a name in the catalog, or a Hugging Face id.

    >>> load_model("llama3-8b").num_params, load_model("Qwen/Qwen3-30B-A3B").name
    (8030261248, 'qwen3-30b-a3b')
    """
    path = find_local(text, OTHERWISE)
    known = _names().get(text.strip().lower())
    # A folder of the model's name that holds something else, such as its checkpoints, does not hide the catalog.
    if path is not None and (known is None or config_path(path).is_file()):
        file = config_path(path)
        name = file.parent.resolve().name if file.name == FILE_NAME else file.stem
        return replace(_from_file(file, str(file)), name=name)
    if known is not None:
        return catalog_model(known)
    refuse_missing_path(text, OTHERWISE)
    if "/" not in text:
        raise UnknownNameError("model", text, known_models())
    return _from_file(fetch_config(text, HINT), text)


def _from_file(path: Path, source: str) -> ModelSpec:
    return model_spec_from_config(read_config(path, source, OTHERWISE).values, source)


def known_models() -> list[str]:
    """Return the names in the catalog, without aliases."""
    return list(_entries())


def catalog_model(name: str) -> ModelSpec:
    """Return the model of the catalog with exactly this name."""
    fields = {key: value for key, value in _entries()[name].items() if key not in _ABOUT}
    ranks = fields.pop("latent_attention", None)
    return ModelSpec(name=name, latent_attention=LatentAttention(**ranks) if ranks else None, **fields)


@functools.cache
def _entries() -> dict[str, dict[str, Any]]:
    """Return the catalog's entries, each with its family's fields."""
    catalog = read_catalog("models")
    return {name: {**catalog["families"][entry["family"]], **entry} for name, entry in catalog["models"].items()}


@functools.cache
def _names() -> dict[str, str]:
    """Return every spelling in lower case, with the catalog's name for it."""
    names = {name: name for name in _entries()}
    for name, entry in _entries().items():
        names |= {other.lower(): name for other in (*entry.get("aliases", ()), *entry.get("hub", ()))}
    return names


VISION_PARTS = frozenset(
    {
        "img_processor",
        "mm_vision_tower",
        "thinker_config",
        "vision_config",
        "vision_encoder",
        "vision_model",
        "vision_tower",
        "visual",
        "visual_config",
        "vit_config",
    }
)
WITHOUT_MODEL = "or leave model out and give num_layers= and num_query_groups="


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a model's language part."""

    num_layers: int
    num_query_groups: int
    num_attention_heads: int | None
    num_experts: int | None
    """None for a model that is not a mixture of experts."""
    is_vision_language: bool
    source: str
    """The file, or the Hugging Face id, that this was read from."""


def read_model_config(model: str) -> ModelConfig:
    """Read the config of `model`: a folder that holds config.json, a path to one, a catalog's name, or a hub's id."""
    path = find_local(model, WITHOUT_MODEL)
    if path is not None:
        return _config_in(config_path(path), str(config_path(path)))
    if (name := _names().get(model.strip().lower())) is not None:
        known = catalog_model(name)
        return ModelConfig(
            num_layers=known.num_layers,
            num_query_groups=known.num_kv_heads,
            num_attention_heads=known.num_heads,
            num_experts=known.num_experts or None,
            is_vision_language=False,
            source=model,
        )
    refuse_missing_path(model, WITHOUT_MODEL)
    return _config_in(fetch_config(model), model)


def _config_in(path: Path, source: str) -> ModelConfig:
    config = read_config(path, source, WITHOUT_MODEL)
    part = config.language_part()
    num_heads = part.count(*HEADS)
    return ModelConfig(
        num_layers=_required(part.count(*LAYERS), LAYERS, config),
        num_query_groups=_required(part.query_groups() or num_heads, (*QUERY_GROUPS[:1], *HEADS[:1]), config),
        num_attention_heads=num_heads,
        num_experts=part.num_experts(),
        is_vision_language=any(key in VISION_PARTS and value is not None for key, value in _walk(config.values)),
        source=config.source,
    )


def _required(value: int | None, keys: tuple[str, ...], config: ConfigJson) -> int:
    if value is None:
        raise config.refuse(f" must have {' or '.join(keys)} for its language model, but has not")
    return value


def _walk(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield key, child
            yield from _walk(child)
