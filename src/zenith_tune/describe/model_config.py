"""What a model's config.json says of its shape, as far as a preset needs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zenith_tune.describe.config_json import (
    HEADS,
    LAYERS,
    QUERY_GROUPS,
    ConfigJson,
    config_path,
    find_local,
    read_config,
    refuse_missing_path,
    too_deep,
)
from zenith_tune.describe.hub import fetch_config
from zenith_tune.describe.model_spec import ModelSpec

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
OTHERWISE = "or leave model out and give num_layers= and num_query_groups="


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Hold the shape of a model's language part."""

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
    path = find_local(model, OTHERWISE)
    if path is None:
        # Not at the top: a preset without a model needs no catalog.
        from zenith_tune.describe.model_catalog import catalog_model, known_models

        if model in known_models():
            return _of_catalog(catalog_model(model))
    else:
        path = config_path(path)
        return _describe(read_config(path, str(path), OTHERWISE))
    refuse_missing_path(model, OTHERWISE)
    return _describe(read_config(fetch_config(model), model, OTHERWISE))


def _of_catalog(model: ModelSpec) -> ModelConfig:
    return ModelConfig(
        num_layers=model.num_layers,
        num_query_groups=model.num_kv_heads,
        num_attention_heads=model.num_heads,
        num_experts=model.num_experts or None,
        is_vision_language=False,
        source=model.name,
    )


def _describe(config: ConfigJson) -> ModelConfig:
    try:
        return _model_config(config)
    except RecursionError:
        raise too_deep(config) from None


def _model_config(config: ConfigJson) -> ModelConfig:
    part = config.language_part() or config
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
    """Yield every key and value at any depth."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield key, child
            yield from _walk(child)
