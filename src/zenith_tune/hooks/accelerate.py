"""Reports what a job that uses Accelerate runs as, and when each of its steps ends; other programs are left alone."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from typing import Any

from .model import ModelWatch, unwrapped
from .process import measured, plain, process_name, report, watch

WRAPPERS = ("MegatronEngine", "DeepSpeedEngine", "FSDPModule", "FullyShardedDataParallel", "DistributedDataParallel")
PLUGIN_FIELDS = {
    "deepspeed_plugin": ("zero_stage", "offload_optimizer_device", "offload_param_device"),
    "fsdp_plugin": (
        *("fsdp_version", "reshard_after_forward", "activation_checkpointing"),
        "activation_checkpointing_offload",
    ),
    "parallelism_config": ("dp_replicate_size", "dp_shard_size"),
}
PLUGINS = ("MegatronLMPlugin", "DeepSpeedPlugin", "FullyShardedDataParallelPlugin")
MEGATRON_ARGS = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "expert_tensor_parallel_size", "num_micro_batches", "sequence_parallel"),
    "use_distributed_optimizer",
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "micro_batch_size", "global_batch_size"),
)


class Watch:
    """What `Accelerator.prepare` returned, and the steps that follow."""

    def __init__(self, more: Any = dict) -> None:
        self.more = more
        """A function that returns what else to report of a step."""
        self.is_first_rank = False
        self.optimizer: Any = None
        self.num_passes = 0
        self.num_steps = 0
        self.trained: set[int] = set()
        """Identities of the models that were prepared to be trained."""
        self.model: Any = None
        """The watch of the first model that is trained, on the first rank."""
        self.reported: dict[str, Any] = {}
        """The last report on a model that was prepared."""
        self.given: dict[str, dict[str, Any]] = {}
        """Arguments that the program itself gives, by class: they take precedence over files and variables."""

    def install(self, module: Any) -> None:
        """Wrap the methods that every job with Accelerate calls."""
        accelerator = module.Accelerator
        for kind in (accelerator, *(getattr(module, name, None) for name in PLUGINS)):
            if kind is not None:
                kind.__init__ = self.noting_arguments(kind.__init__, kind.__name__)
        accelerator.prepare = self.after(accelerator.prepare, self.prepared)
        accelerator.backward = self.after(accelerator.backward, self.passed)
        for name in ("AcceleratedOptimizer", "DeepSpeedOptimizerWrapper", "MegatronLMOptimizerWrapper"):
            wrapper = getattr(module, name, None)
            if wrapper is not None:
                wrapper.step = self.after(wrapper.step, self.stepped)

    def after(self, method: Any, note: Any) -> Any:
        """Return a method that is noted after each call; what cannot be noted does not end the training."""

        @functools.wraps(method)
        def noted(this: Any, *args: Any, **kwargs: Any) -> Any:
            result = method(this, *args, **kwargs)
            with contextlib.suppress(AttributeError, OSError, RuntimeError, TypeError, ValueError):
                note(this, args, result)
            return result

        return noted

    def noting_arguments(self, method: Any, name: str) -> Any:
        """Return a constructor whose arguments are noted, but for None, which leaves a value to the environment."""

        @functools.wraps(method)
        def noted(this: Any, *args: Any, **kwargs: Any) -> None:
            method(this, *args, **kwargs)
            with contextlib.suppress(AttributeError, TypeError, ValueError):
                _, *given = inspect.signature(method).bind(this, *args, **kwargs).arguments.items()
                # Objects that Accelerate makes itself have no arguments.
                self.given.setdefault(name, {}).update({key: plain(value) for key, value in given if value is not None})

        return noted

    def prepared(self, accelerator: Any, args: Any, result: Any) -> None:
        """Report the world, the backend and the wrapper of a model that is ready to train."""
        import torch

        objects = result if isinstance(result, (list, tuple)) else (result,)  # FSDP2 returns a list
        # Accelerate wraps a model only if it can be trained: a frozen teacher says nothing about the job.
        trained = [at for at, each in enumerate(objects) if isinstance(each, torch.nn.Module) and is_trained(each)]
        wrappers = [wrapper_of(objects[at]) for at in trained]
        if not wrappers:
            return
        self.is_first_rank = accelerator.process_index == 0
        sizes = [size for each in args if type(size := getattr(each, "batch_size", None)) is int]
        self.reported = {
            "event": "prepared",
            "process": process_name(),
            "version": getattr(sys.modules.get("accelerate"), "__version__", ""),
            "type": str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type)),
            "processes": accelerator.num_processes,
            "wrapper": next((name for name in wrappers if name in WRAPPERS), wrappers[0]),
            "accumulation": accelerator.gradient_accumulation_steps,
            "batch_sizes": sizes,
            "settings": settings_of(accelerator.state),
            "precision": getattr(accelerator, "mixed_precision", None),
            "given": {name: values for name, values in self.given.items() if values},
        }
        report(self.reported)
        self.trained.update(id(unwrapped(args[at])) for at in trained)
        if self.is_first_rank and self.model is None:
            at = next((at for at in trained if wrapper_of(objects[at]) in WRAPPERS), trained[0])
            self.model = ModelWatch(args[at], objects[at], lambda event: report({**event, "models": len(self.trained)}))

    def begin_again(self) -> None:
        """Forget the steps so far: the same models are trained once more, and perhaps not prepared again."""
        report(self.reported)
        self.optimizer, self.num_passes, self.num_steps = None, 0, 0

    def passed(self, accelerator: Any, args: Any, result: Any) -> None:
        """Count a backward pass."""
        self.num_passes += 1

    def stepped(self, optimizer: Any, args: Any, result: Any) -> None:
        """Report the time at which the first optimizer has made a step, and its memory."""
        if not self.is_first_rank or not optimizer.gradient_state.sync_gradients:
            return
        self.optimizer = self.optimizer or optimizer
        if optimizer is not self.optimizer:
            return
        self.num_steps += 1
        passes, self.num_passes = self.num_passes, 0
        # At the end of a dataloader Accelerate makes a step of however few passes there were.
        is_end = bool(getattr(optimizer.gradient_state, "end_of_dataloader", False))
        count = {"step": self.num_steps, "passes": passes, "is_end": is_end, **samples(optimizer, passes)}
        report({"event": "step", **count, **self.sequence(), **self.more(), **measured()})

    def sequence(self) -> dict[str, int]:
        """Return the longest sequence since the previous step."""
        found = getattr(self.model, "longest", None)
        if found is None:
            return {}
        self.model.longest = None
        return {"sequence": found}


def is_trained(model: Any) -> bool:
    """Tell whether a model has a parameter to train, or a backend has wrapped it."""
    return wrapper_of(model) in WRAPPERS or any(each.requires_grad for each in model.parameters())


def wrapper_of(model: Any) -> str:
    """Return the known wrapper that a model is in, or its own class."""
    model = getattr(model, "_orig_mod", model)  # torch.compile wraps it once more
    names = [kind.__name__ for kind in type(model).__mro__]
    return next((name for name in WRAPPERS if name in names), names[0])


def settings_of(state: Any) -> dict[str, Any]:
    """Return the tuned settings that the plugins have."""
    found: dict[str, Any] = {}
    for name, fields in PLUGIN_FIELDS.items():
        plugin = getattr(state, name, None)
        found.update({field: getattr(plugin, field, None) for field in fields if plugin is not None})
    if (policy := getattr(getattr(state, "fsdp_plugin", None), "cpu_offload", None)) is not None:
        # FSDP 2 has a class for it, FSDP 1 a field.
        found["offload_params"] = getattr(policy, "offload_params", type(policy).__name__ == "CPUOffloadPolicy")
    if (dynamo := getattr(state, "dynamo_plugin", None)) is not None:
        backend, is_regional = getattr(dynamo, "backend", None), getattr(dynamo, "use_regional_compilation", None)
        found.update(dynamo_backend=getattr(backend, "value", backend), dynamo_use_regional_compilation=is_regional)
    found.update(flat(getattr(getattr(state, "deepspeed_plugin", None), "deepspeed_config", None)))
    args = getattr(getattr(state, "megatron_lm_plugin", None), "megatron_lm_default_args", {})
    found.update({name: args[name] for name in MEGATRON_ARGS if name in args})
    return {name: value for name, value in found.items() if isinstance(value, (bool, int, float, str))}


def flat(config: Any) -> dict[str, Any]:
    """Return the ZeRO and communication settings of DeepSpeed's configuration, by keys joined with dots."""
    if not isinstance(config, dict):
        return {}
    found = {key: config[key] for key in ("communication_data_type",) if key in config}
    left = [("zero_optimization", config.get("zero_optimization"))]
    while left:
        path, value = left.pop()
        if isinstance(value, dict):
            left += [(path + "." + key, each) for key, each in value.items()]
        else:
            found[path] = value
    return found


def samples(optimizer: Any, passes: int) -> dict[str, int]:
    """Return the samples of one update over all ranks; Megatron has loaders of its own."""
    loader = getattr(optimizer.gradient_state, "active_dataloader", None)
    size = getattr(loader, "total_batch_size", None)
    if not isinstance(size, int) or type(optimizer).__name__ == "MegatronLMOptimizerWrapper":
        return {}
    return {"samples": size * passes}


def start(settings: dict[str, Any], folder: str, more: Any = dict) -> Watch:
    """Watch from when Accelerate is loaded; `more` returns what else to report of a step."""
    found = Watch(more)
    watch("accelerate.accelerator", found.install)
    return found
