"""Models by name: the catalog's, and those that a config.json describes."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from zenith_tune.describe.config_json import FILE_NAME, config_path, find_local, read_config, refuse_missing_path
from zenith_tune.describe.config_spec import OTHERWISE, model_spec_from_config
from zenith_tune.describe.hub import fetch_config
from zenith_tune.describe.model_spec import LatentAttention, ModelSpec
from zenith_tune.errors import UnknownNameError

Entry = dict[str, Any]

CURE = f"give the path of a config.json, {OTHERWISE}"

_ABOUT = frozenset({"family", "published_params", "source", "hub", "aliases"})
"""What an entry says about the model rather than of its shape."""


def load_model(text: str) -> ModelSpec:
    """Return the model that `text` names: a config.json or its folder, a name in the catalog, or a Hugging Face id.

    >>> load_model("llama3-8b").num_params, load_model("Qwen/Qwen3-30B-A3B").name
    (8030261248, 'qwen3-30b-a3b')
    """
    path = find_local(text, OTHERWISE)
    known = _names().get(text.strip().lower())
    # A folder of the model's name that holds something else, such as its checkpoints, does not hide the catalog.
    if path is not None and (known is None or config_path(path).is_file()):
        return _local_model(config_path(path))
    if known is not None:
        return catalog_model(known)
    refuse_missing_path(text, OTHERWISE)
    if "/" not in text:
        raise UnknownNameError("model", text, known_models())
    return _from_file(fetch_config(text, CURE), text)


def _local_model(path: Path) -> ModelSpec:
    name = path.parent.resolve().name if path.name == FILE_NAME else path.stem
    return replace(_from_file(path, str(path)), name=name)


def _from_file(path: Path, source: str) -> ModelSpec:
    return model_spec_from_config(read_config(path, source, OTHERWISE).values, source)


def known_models() -> list[str]:
    """Return the names in the catalog, without aliases."""
    return list(_entries())


def catalog_model(name: str) -> ModelSpec:
    """Return the catalog's model of this very name."""
    fields = {key: value for key, value in _entries()[name].items() if key not in _ABOUT}
    ranks = fields.pop("latent_attention", None)
    return ModelSpec(name=name, latent_attention=LatentAttention(**ranks) if ranks else None, **fields)


def published_params(name: str) -> int | None:
    """Return how many parameters a model's makers state, or None where they do not."""
    count: int | None = _entries()[name].get("published_params")
    return count


@functools.cache
def _entries() -> dict[str, Entry]:
    """Read the catalog, once; each entry holds its family's fields too."""
    text = resources.files("zenith_tune.describe").joinpath("catalog/models.toml").read_text(encoding="utf-8")
    catalog = tomllib.loads(text)
    return {name: {**catalog["families"][entry["family"]], **entry} for name, entry in catalog["models"].items()}


@functools.cache
def _names() -> dict[str, str]:
    """Return every spelling in lower case, with the catalog's name for it."""
    names = {name: name for name in _entries()}
    for name, entry in _entries().items():
        names |= {other.lower(): name for other in (*entry.get("aliases", ()), *entry.get("hub", ()))}
    return names
