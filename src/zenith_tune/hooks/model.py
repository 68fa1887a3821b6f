"""Reports the model that a job trains: its config, parameters, blocks and inputs, and what one pass keeps in memory.

Only the first pass is looked into; after it no torch hook is left but one that notes the sizes of inputs.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable  # noqa: UP035 - of Python 3.8

FAULTS = (AttributeError, IndexError, OSError, RuntimeError, TypeError, ValueError)
"""Exceptions that end a measurement, and not the training."""
MOST_TEXT, MOST_ITEMS = 100, 200
"""Longest text and list that are reported of a config: a line must be written in one piece."""
OF_A_WEIGHT = ("TBackward0", "TransposeBackward0", "PermuteBackward0", "ViewBackward0", "ToCopyBackward0")
"""Autograd's names for transposes of a weight and its copies in lower precision."""


class ModelWatch:
    """The passes of a model: the sizes of their inputs, and after the first a report of the model."""

    def __init__(self, given: Any, prepared: Any, report: Callable[[dict[str, Any]], None]) -> None:
        """Watch `prepared`, which the program calls; `given` is the module before Accelerate wrapped it."""
        self.module, self.report = unwrapped(given), report
        self.longest: int | None = None
        """Tokens of the longest sequence since the previous step."""
        self.blocks = repeated_blocks(self.module)
        is_compiled = prepared is not getattr(prepared, "_orig_mod", prepared)
        # A compiled program keeps other tensors than its modules do, and hooks would have it compiled again.
        self.kept: KeptBytes | None = None if is_compiled else KeptBytes(self.blocks)
        self.is_reported = False
        prepared.register_forward_pre_hook(self.enters, with_kwargs=True)
        prepared.register_forward_hook(self.leaves, with_kwargs=True, always_call=True)

    def enters(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the size of the input."""
        with contextlib.suppress(*FAULTS):
            found = model_input(args, kwargs)
            tokens = found["shape"][1] if found is not None and len(found["shape"]) > 1 else None
            self.longest = max(filter(None, (self.longest, tokens)), default=None)
            if not self.is_reported and module.training and self.kept is not None:
                self.kept.begin()

    def leaves(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Report the model once, when its first pass is over."""
        if self.is_reported or not module.training:
            return
        self.is_reported = True
        with contextlib.suppress(*FAULTS):
            if self.kept is not None:
                self.kept.end()
            given = model_input(args, kwargs)
            self.report({"event": "model", **described(self.module), "input": given, "blocks": self.of_blocks(given)})

    def of_blocks(self, given: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the repeated blocks, with the bytes that each kept of the pass."""
        if not self.blocks:
            return None
        found: dict[str, Any] = {
            "class": type(self.blocks[0]).__name__,
            "count": len(self.blocks),
            "parameters": num_params(self.blocks[0]),
        }
        if self.kept is not None and given is not None:
            found.update(self.kept.report())
        return found


class KeptBytes:
    """Bytes that autograd keeps for the backward pass, inside blocks and outside them."""

    def __init__(self, blocks: list[Any]) -> None:
        self.blocks = blocks
        self.inside, self.outside = 0, 0
        self.depth = 0
        self.block_input: list[int] | None = None
        self.input_bytes = 0
        self.seen: set[int] = set()
        self.context: Any = None
        self.handles: list[Any] = []

    def begin(self) -> None:
        import torch

        for block in self.blocks:
            self.handles.append(block.register_forward_pre_hook(self.enters, with_kwargs=True))
            self.handles.append(block.register_forward_hook(self.leaves, always_call=True))
        self.context = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda saved: saved)
        self.context.__enter__()

    def end(self) -> None:
        if self.context is not None:
            self.context.__exit__(None, None, None)
        for handle in self.handles:
            handle.remove()
        self.context, self.handles, self.seen = None, [], set()

    def enters(self, block: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count what follows as inside a block."""
        self.depth += 1
        with contextlib.suppress(*FAULTS):
            found = first_tensor(args, kwargs)
            if self.block_input is None and found is not None:
                self.block_input, self.input_bytes = list(found[1].shape), size_bytes(found[1])

    def leaves(self, block: Any, args: tuple[Any, ...], output: Any) -> None:
        """Count what follows as outside."""
        self.depth -= 1

    def pack(self, saved: Any) -> Any:
        """Count a kept tensor, once for all that share its memory; weights and their copies are not counted."""
        with contextlib.suppress(*FAULTS):
            storage = saved.untyped_storage()
            if not is_weight(saved) and storage._cdata not in self.seen:  # a fake tensor has no data address
                self.seen.add(storage._cdata)
                if self.depth:
                    self.inside += storage.nbytes()
                else:
                    self.outside += storage.nbytes()
        return saved

    def report(self) -> dict[str, Any]:
        return {
            "input": self.block_input,
            "input_bytes": self.input_bytes,
            "kept_bytes": self.inside // max(len(self.blocks), 1),
            "kept_outside_bytes": self.outside,
        }


def is_weight(saved: Any) -> bool:
    """Tell whether a tensor is a parameter, or its transpose or copy in lower precision."""
    if saved.is_leaf:
        return bool(saved.requires_grad)
    node = saved.grad_fn
    while node is not None and type(node).__name__ in OF_A_WEIGHT:
        [(node, _), *_] = node.next_functions
    return type(node).__name__ == "AccumulateGrad"


def unwrapped(model: Any) -> Any:
    """Return the user's own module, without what compiles, shards or adapts it."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DeepSpeedEngine"):
            inner = model.module
        if inner is None and callable(getattr(model, "get_base_model", None)):  # PEFT
            inner = model.get_base_model()
        if inner is None or inner is model:
            return model
        model = inner


def described(module: Any) -> dict[str, Any]:
    """Return the class, the config and the parameters of a module."""
    import torch

    parameters = list(module.parameters())
    config: Any = getattr(module, "config", None)
    values = config.to_dict() if callable(getattr(config, "to_dict", None)) else None
    found: dict[str, Any] = {
        "class": type(module).__name__,
        "name": str(getattr(config, "name_or_path", "") or "")[:MOST_TEXT],
        "config": plain_config(values) if isinstance(values, dict) else None,
        "parameters": sum(map(numel, parameters)),
        "trained": sum(numel(each) for each in parameters if each.requires_grad),
        "dtype": str(parameters[0].dtype).replace("torch.", "") if parameters else None,
        "head": head_width(module),
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def plain_config(values: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers, flags and short words of a config."""
    found = {}
    for key, value in values.items():
        if isinstance(value, dict):
            value = plain_config(value) if len(value) <= MOST_ITEMS else {}
        is_short = len(value) <= MOST_TEXT if isinstance(value, str) else isinstance(value, (bool, int, float))
        is_list = isinstance(value, list) and len(value) <= MOST_ITEMS and all(type(each) is int for each in value)
        if is_short or is_list or (isinstance(value, dict) and value):
            found[str(key)] = value
    return found


def repeated_blocks(module: Any) -> list[Any]:
    """Return the largest group of like children in one list, such as the layers of a transformer."""
    import torch

    best: list[Any] = []
    for each in module.modules():
        if not isinstance(each, (torch.nn.ModuleList, torch.nn.Sequential)):
            continue
        groups: dict[Any, list[Any]] = {}
        for child in each:
            groups.setdefault((type(child), tuple(map(shape, child.parameters()))), []).append(child)
        for group in groups.values():
            # Lists inside a block have fewer parameters than the blocks.
            if len(group) > 1 and sum(map(num_params, group)) > sum(map(num_params, best)):
                best = group
    return best


def head_width(module: Any) -> int:
    """Return the width of the last linear layer outside blocks: the size of the vocabulary, or the classes."""
    import torch

    inside = {each for block in repeated_blocks(module) for each in block.modules()}
    linear = [each for each in module.modules() if isinstance(each, torch.nn.Linear) and each not in inside]
    return int(linear[-1].out_features) if linear else 0


def num_params(module: Any) -> int:
    """Return the number of parameters of a module."""
    return sum(map(numel, module.parameters()))


def shape(parameter: Any) -> tuple[int, ...]:
    """Return the shape of a parameter; a sharded one of DeepSpeed is empty itself."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def numel(parameter: Any) -> int:
    """Return the size of a parameter, also where DeepSpeed has sharded it."""
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def model_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Return the name and the shape of the input of a pass."""
    found = first_tensor(args, kwargs)
    return None if found is None else {"name": found[0], "shape": list(found[1].shape)}


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any] | None:
    """Return the tokens, else the first tensor of the arguments, with its name."""
    named = {**{str(at): each for at, each in enumerate(args)}, **kwargs}
    for name in ("input_ids", "inputs_embeds", *named):
        value: Any = named.get(name)
        if isinstance(value, dict):  # a whole batch as one argument
            found = first_tensor((), value)
            if found is not None:
                return found
        elif hasattr(value, "untyped_storage") and value.dim():
            return name, value
    return None


def size_bytes(tensor: Any) -> int:
    """Return the memory of a tensor's values."""
    return int(tensor.numel() * tensor.element_size())
