"""A trained module of a checkpoint as a folder that transformers loads."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from zenith_mimo.checkpoint import MODEL
from zenith_mimo.checkpoint_folder import latest_checkpoint
from zenith_mimo.hugging_face.folder import CAUSAL, PROJECTOR, QWEN_TOWER, TOWER, WeightNames, files_of
from zenith_mimo.planning.config import LANGUAGE
from zenith_tune.errors import UsageError


def export_module(checkpoint: Path, module: str, source: Path, target: Path) -> None:
    """Write a checkpoint's vision tower or language model as a folder like `source`, which it was made from.

    What the checkpoint does not hold is taken from `source`. What `source` has no place for, the projector, comes under
    its name in the runtime into `projector.safetensors`. One process does it, without ranks.
    """
    found, files = latest_checkpoint(checkpoint), files_of(source)
    contents: dict[str, Any] = dcp.FileSystemReader(found).read_metadata().state_dict_metadata
    start, known = f"{MODEL}{module}/", [CAUSAL] if module == LANGUAGE else [TOWER, QWEN_TOWER]
    own = [name for name in contents if name.startswith(start)]
    readings = [{_key(name.removeprefix(start), by, files): name for name in own} for by in known]
    names = max(readings, key=lambda reading: len(reading.keys() & files.keys()))
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
    left = {name.removeprefix(start): name for key, name in names.items() if key not in files}
    if left:
        save_file(_read_weights(found, left, contents), target / "projector.safetensors", metadata={"format": "pt"})


def _read_weights(checkpoint: Path, names: Mapping[str, str], contents: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return whole tensors of a checkpoint; `names` are theirs there by those that are wanted."""
    empty = {name: torch.empty(contents[name].size, dtype=contents[name].properties.dtype) for name in names.values()}
    with warnings.catch_warnings():
        # It says that there are no other ranks.
        warnings.filterwarnings("ignore", "torch.distributed is")
        dcp.load(empty, storage_reader=dcp.FileSystemReader(checkpoint), no_dist=True)
    return {key: empty[name] for key, name in names.items()}


def _key(name: str, names: WeightNames, files: Mapping[str, Path]) -> str:
    return (PROJECTOR if name.startswith("projector.") else names).of(name, files)
