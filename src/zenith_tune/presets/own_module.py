"""A model of the user's own that no config describes: built and run once with tensors that have shapes and no values.

`FILE.py:build` names a callable that returns a torch.nn.Module, or the module and the inputs of one pass. Both are made
under FakeTensorMode, in which a model of any size takes no memory, and what the pass keeps for the backward one is
counted as the hook of preset accelerate counts it in a real run.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.hooks.model import ModelWatch
from zenith_tune.layouts.search_space import limits_of
from zenith_tune.presets.shared.live_model import LiveModel
from zenith_tune.registry import import_file

BATCH = 1
"""Samples of the pass; what is kept is counted for each token."""
FORM = "write it as model.py:build, or package.module:build"
WITH_INPUTS = "let it return the module and the inputs of one pass: (module, {'images': torch.zeros(1, 3, 224, 224)})"


def traced_model(where: str, *, framework: FrameworkSpec, precision: str, seq_len: int | None) -> tuple[ModelSpec, int]:
    """Return the model that the callable `where` builds, as a framework would run it, and its tokens of a sample."""
    with _importable(where):
        event = _traced(where, _callable(where), seq_len, framework, precision)
    live = LiveModel.of({**event, "models": 1})
    if live is None:
        raise UsageError(f"the module of {where} has no parameter that is trained", hint="return the model to train")
    try:
        spec = live.spec()
    except UsageError as error:
        raise UsageError(error.problem, hint="give --model with the nearest model of the catalog") from error
    if spec.traced is not None and "pp" in limits_of(framework.name).sizes:
        problem = f"{framework.name} splits layers that it knows by name, and {spec.name} has no config that gives them"
        raise UsageError(problem, hint="take --framework fsdp, deepspeed or hf-accelerate")
    return spec, _tokens(live, spec, where, seq_len)


def _tokens(live: LiveModel, spec: ModelSpec, where: str, seq_len: int | None) -> int:
    """Return the tokens of a sample, which are those of the inputs where the callable gives them."""
    seen = (spec.traced.num_tokens if spec.traced else None) or live.input_shape[1]
    if seq_len is not None and seq_len != seen:
        raise UsageError(f"--seq is {seq_len}, but the inputs of {where} have {seen} tokens", hint="leave --seq out")
    return seen


def _callable(where: str) -> Callable[[], Any]:
    """Return what `FILE.py:name` or `package.module:name` names."""
    home, _, name = where.rpartition(":")
    if not home or not name.isidentifier():
        raise UsageError(f"--module {where!r} names no callable", hint=FORM)
    module = import_file(Path(home), f"--module {where}") if home.endswith(".py") else _import(home, where)
    found = getattr(module, name, None)
    if not callable(found):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UsageError(f"{home} has no callable {name}", hint=f"it has {', '.join(known) or 'none'}")
    build: Callable[[], Any] = found
    return build


@contextlib.contextmanager
def _importable(where: str) -> Iterator[None]:
    """Let what stands next to a file, or below the current folder, be imported by its name, as by `python FILE`."""
    home = where.rpartition(":")[0]
    folder = str(Path(home).resolve().parent if home.endswith(".py") else Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _import(name: str, where: str) -> Any:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a stranger's module may raise anything at import
        raise UsageError(f"--module {where} cannot be loaded: {type(error).__name__}: {error}", hint=FORM) from error


def _traced(
    where: str, build: Callable[[], Any], seq_len: int | None, framework: FrameworkSpec, precision: str
) -> dict[str, Any]:
    """Return what the hook of preset accelerate reports of one pass."""
    try:
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError as error:
        raise UsageError(
            "--module needs torch", hint="pip install torch, or give --model with a config.json"
        ) from error
    events: list[dict[str, Any]] = []
    is_half, is_autocast = precision != "fp32", bool(framework.cast_bytes)
    with FakeTensorMode(allow_non_fake_inputs=True):
        with _reported(where, "build the module", hint="run it alone to see more"):
            module, given = _built(torch, build(), where)
        if given is None and seq_len is None:
            raise UsageError(f"{where} returns no inputs", hint=f"give --seq, or {WITH_INPUTS}")
        inputs = (torch.zeros(BATCH, seq_len, dtype=torch.long),) if given is None else given
        if is_half and not is_autocast:
            _to_half(torch, module)
            inputs = _half(torch, inputs)
        ModelWatch(module, module.train(), events.append)
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=is_half and is_autocast)
        with _reported(where, "run one pass", hint=WITH_INPUTS), autocast:
            module(**inputs) if isinstance(inputs, Mapping) else module(*inputs)
    return events[0]


def _built(torch: Any, built: Any, where: str) -> tuple[Any, Any]:
    """Return the module and its inputs, as a tuple or a mapping, or None where the callable returns none."""
    module, given = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"{where} must return a torch.nn.Module, but returned {type(module).__name__}")
    if given is None or isinstance(given, (tuple, Mapping)):
        return module, given
    return module, (given,)


@contextlib.contextmanager
def _reported(where: str, what: str, *, hint: str) -> Iterator[None]:
    """Report in one line what a stranger's code raises."""
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"{where} could not {what}: {type(error).__name__}: {reason}", hint=hint) from error


def _to_half(torch: Any, module: Any) -> None:
    """Have every parameter and buffer in half precision; Module.to does not take fake tensors."""
    # One for all that share a parameter.
    halves = {each: torch.nn.Parameter(_half(torch, each.detach()), each.requires_grad) for each in module.parameters()}
    for each in module.modules():
        each._parameters.update({name: halves.get(old) for name, old in each._parameters.items()})
        each._buffers.update({name: _half(torch, old) for name, old in each._buffers.items()})


def _half(torch: Any, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _half(torch, each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(_half(torch, each) for each in value)
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(torch.bfloat16) if is_float else value
