"""Let Megatron Core train on a machine without GPUs: what it asks of CUDA is answered by the CPU."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from typing import Any

import torch

CPU = torch.device("cpu")


class OneGenerator:
    """Stand for the generators of all GPUs."""

    def __getitem__(self, device: object) -> torch.Generator:
        return torch.default_generator


class NoStream:
    """Stand for the stream of a GPU, which nothing waits for."""

    def wait_stream(self, other: object) -> None:
        """Wait for nothing."""


def _nothing() -> None:
    """Wait for no stream."""


def _at_once(call: Callable[[], None]) -> None:
    call()


def _random_state(device: object = None) -> torch.Tensor:
    return torch.get_rng_state()


def _same(tensor: torch.Tensor, *args: object, **keywords: object) -> torch.Tensor:
    return tensor


def _cuda_type(plain_type: Callable[..., Any]) -> Callable[..., Any]:
    """Return Tensor.type with the names that Megatron's optimizers check for."""

    def named(tensor: torch.Tensor, *args: Any, **keywords: Any) -> Any:
        result = plain_type(tensor, *args, **keywords)
        return result.replace("torch.", "torch.cuda.") if isinstance(result, str) else result

    return named


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a maker of tensors that makes them on the CPU where a GPU is asked for."""

    def made(*args: Any, **keywords: Any) -> torch.Tensor:
        if str(keywords.get("device", "")).startswith("cuda"):
            keywords["device"] = CPU
        return factory(*args, **keywords)

    return made


def _over_gloo(make_groups: Callable[..., Any]) -> Callable[..., Any]:
    """Return a maker of groups that makes them over gloo where NCCL is asked for."""

    def made(*args: Any, **keywords: Any) -> Any:
        if keywords.get("backend") == "nccl":
            keywords["backend"] = "gloo"
        return make_groups(*args, **keywords)

    return made


@functools.cache  # done twice, some answers would name CUDA twice
def pretend_cuda() -> None:
    """Answer for CUDA from here on; call it before Megatron is imported, which keeps some of these by name."""
    # Newer versions want Python 3.12, and import this from it.
    vars(typing).setdefault("override", lambda method: method)
    answers = {
        "current_device": lambda: CPU,
        "synchronize": _nothing,
        "current_stream": NoStream,
        "manual_seed": torch.manual_seed,
        "get_rng_state": _random_state,
        "default_generators": OneGenerator(),
        "_lazy_call": _at_once,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    for name in ("empty", "ones", "tensor", "zeros"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    for name in ("new_group", "new_subgroups_by_enumeration"):
        setattr(torch.distributed, name, _over_gloo(getattr(torch.distributed, name)))
    for owner, name, replacement in (
        (torch.cuda.random, "get_rng_state", _random_state),
        (torch.Tensor, "type", _cuda_type(torch.Tensor.type)),
        (torch.Tensor, "cuda", _same),
    ):
        setattr(owner, name, replacement)
