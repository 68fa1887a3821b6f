"""Sets what a Trainer of Lightning is made with and the batch of its data, and reports what it trains as.

It does so in each trial; the best command has the part that sets. The package has two names, with a copy of it each.
"""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import inspect
import os
import time
from typing import Any

from .process import measured, report, watch

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
ACCUMULATION = "accumulate_grad_batches"
IN_BATCHES = ("limit_train_batches", "val_check_interval")
"""Arguments that count micro-batches where they are whole numbers."""
MOST_TIMES, STEPS_S = 5, 10.0
"""So many times its updates a trial makes at most on a GPU, until they have taken so long."""
IN_TRIALS = {
    **dict.fromkeys(("max_time", "min_steps", "min_epochs", "profiler")),
    **dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False),
    **dict.fromkeys(("fast_dev_run", "barebones"), False),
    **dict.fromkeys(("limit_val_batches", "num_sanity_val_steps"), 0),
    "max_epochs": -1,
}
UNWANTED = frozenset(
    (
        *("Checkpoint", "EarlyStopping", "ProgressBar", "ModelSummary", "Timer", "SaveConfigCallback"),
        *("BatchSizeFinder", "LearningRateFinder", "DeviceStatsMonitor"),
    )
)
"""Callbacks that save, print, need validation, or change how long a trial is."""


class LightningHook:
    """What is set in a Trainer and its data, and in a trial the steps that follow."""

    def __init__(self, values: dict[str, Any], steps: int, folder: str) -> None:
        self.values, self.steps, self.folder = values, steps, folder
        """`steps` is 0 in the best command."""
        self.num_steps = self.num_passes = self.global_step = 0
        self.begun_at: Any = None

    def install(self, module: Any) -> None:
        """Wrap the making of a Trainer, and its training."""
        trainer, package = module.Trainer, module.__name__.rpartition(".trainer.")[0]
        trainer.__init__ = self.making(trainer.__init__, package)
        trainer.fit = self.fitting(trainer.fit, package)

    def making(self, method: Any, package: str) -> Any:
        """Return a constructor with the arguments set; it has keywords alone."""
        known = inspect.signature(method).parameters

        @functools.wraps(method)
        def made(this: Any, *args: Any, **kwargs: Any) -> None:
            own = kwargs.get(ACCUMULATION) or 1
            for name in IN_BATCHES:
                if type(kwargs.get(name)) is int:
                    kwargs[name] = max(kwargs[name] * self.values.get(ACCUMULATION, own) // own, 1)
            values = {**self.of_trial(kwargs.get("callbacks"), package), **self.values} if self.steps else self.values
            kwargs.update({name: value for name, value in values.items() if name in known})
            method(this, *args, **kwargs)

        return made

    def of_trial(self, callbacks: Any, package: str) -> dict[str, Any]:
        """Return what is set in trials alone."""
        given = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks] if callbacks else []
        logger = importlib.import_module(package + ".loggers.logger").DummyLogger()
        limits = {"max_steps": MOST_TIMES * self.steps, "default_root_dir": self.folder}
        return {**IN_TRIALS, **limits, "logger": logger, "callbacks": wanted(given)}

    def fitting(self, method: Any, package: str) -> Any:
        """Return a training with the settings; that of a trial ends the program."""
        signature = inspect.signature(method)

        @functools.wraps(method)
        def fitted(this: Any, *args: Any, **kwargs: Any) -> None:
            import torch

            given = signature.bind(this, *args, **kwargs)
            module = getattr(given.arguments["model"], "_orig_mod", given.arguments["model"])
            if "micro_batch" in self.values:
                resize(given.arguments, module, self.values["micro_batch"])
            if "matmul" in self.values:
                torch.set_float32_matmul_precision(self.values["matmul"])
            if self.values.get("compile"):
                given.arguments["model"] = torch.compile(module)
            if self.steps:
                given.arguments.pop("ckpt_path", None)  # it may be past the last step already
                configure = module.configure_callbacks
                module.configure_callbacks = lambda: wanted(configure())
                this.callbacks.append(self.callback(importlib.import_module(package).Callback))
            method(*given.args, **given.kwargs)
            if self.begun_at is not None:
                raise SystemExit(0)  # only evaluating and saving are left

        return fitted

    def callback(self, base: Any) -> Any:
        """Return what the Trainer tells of its steps."""
        hook = self

        class StepWatch(base):  # type: ignore[misc]
            """The beginning of the training, and the end of each pass."""

            def on_train_start(self, trainer: Any, module: Any) -> None:
                hook.begins(trainer, module)

            def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
                hook.passed(trainer)

        return StepWatch()

    def begins(self, trainer: Any, module: Any) -> None:
        """Report what trains, and on the first rank the model at its first pass."""
        from .model import ModelWatch

        for each in trainer.lr_scheduler_configs:
            each.strict = False  # one that waits for a metric of the validation
        self.begun_at, self.global_step = time.monotonic(), trainer.global_step
        report(described(trainer, module))
        if trainer.is_global_zero and not is_compiled(module):
            inner = main_part(module)
            ModelWatch(inner, inner, lambda event: report({**event, "models": 1}))

    def passed(self, trainer: Any) -> None:
        """Report an update at its last pass, and end the training once there are enough for long enough."""
        import torch

        self.num_passes += 1
        if trainer.global_step == self.global_step:
            return
        self.num_steps, self.global_step = self.num_steps + 1, trainer.global_step
        passes, self.num_passes = self.num_passes, 0
        if trainer.is_global_zero:
            size = batch_size(trainer)
            samples = {"samples": size * passes * trainer.world_size} if size else {}
            count = {"step": self.num_steps, "passes": passes, "is_end": bool(trainer.is_last_batch)}
            report({"event": "step", **count, **samples, **measured()})
        if self.num_steps >= self.steps:
            is_over = not torch.cuda.is_available() or time.monotonic() - self.begun_at >= STEPS_S
            trainer.should_stop = trainer.strategy.reduce_boolean_decision(is_over)


def wanted(callbacks: Any) -> list[Any]:
    """Return callbacks without those that a trial has no use for."""
    given = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    return [each for each in given if not UNWANTED & {kind.__name__ for kind in type(each).__mro__}]


def resize(arguments: dict[str, Any], module: Any, size: int) -> None:
    """Have the data of a training come in batches of another size, given to it or made by its modules."""
    loaders = arguments.get("train_dataloaders")
    source = loaders if hasattr(loaders, "train_dataloader") else arguments.get("datamodule")
    if source is None and loaders is not None:
        arguments["train_dataloaders"] = resized(loaders, size)
        return
    source = source if hasattr(source, "train_dataloader") else module
    make = source.train_dataloader
    source.train_dataloader = lambda: resized(make(), size)


def resized(loader: Any, size: int) -> Any:
    """Return a copy of a torch DataLoader with another batch size; other loaders as they are."""
    if getattr(loader, "batch_size", None) is None or not hasattr(loader, "batch_sampler"):
        return loader
    found = copy.copy(loader)
    # Lightning would make it again from the arguments that it saw, or else from these attributes.
    values = {name: value for name, value in vars(loader).items() if not name.startswith("__pl_saved")}
    values.update(batch_size=size, batch_sampler=type(loader.batch_sampler)(loader.sampler, size, loader.drop_last))
    vars(found).clear()
    vars(found).update(values)
    return found


def batch_size(trainer: Any) -> int:
    """Return the samples of a pass; 0 where a loader does not show them, or a trial could not change them."""
    size = getattr(trainer.train_dataloader, "batch_size", None)
    kinds = {type(each).__name__ for each in trainer.callbacks}
    is_fixed = "GradientAccumulationScheduler" in kinds or not trainer.lightning_module.automatic_optimization
    return size if type(size) is int and not is_fixed else 0


def is_compiled(module: Any) -> bool:
    """Tell whether a LightningModule is compiled."""
    return getattr(module, "_compiler_ctx", None) is not None


def main_part(module: Any) -> Any:
    """Return the part of a LightningModule that has all its parameters, which is called as a model is, or the whole."""
    total = sum(1 for _ in module.parameters())
    parts = (part for part in module.children() if sum(1 for _ in part.parameters()) == total)
    return next(parts, module)


def described(trainer: Any, module: Any) -> dict[str, Any]:
    """Return the world, the batch, what wraps the model, and the settings that trials change."""
    import torch

    from .accelerate import flat, wrapper_of
    from .trainer import compute_capability

    size, precision = batch_size(trainer), str(trainer.precision)
    norms = (torch.nn.modules.batchnorm._BatchNorm,)
    return {
        "event": "prepared",
        "process": f"{os.uname().nodename}:{os.getpid()}",
        "version": importlib.import_module(type(trainer).__module__.partition(".")[0]).__version__,
        "type": type(trainer.strategy).__name__,
        "processes": trainer.world_size,
        "wrapper": wrapper_of(trainer.model),
        "accumulation": trainer.accumulate_grad_batches,
        "batch_sizes": [size] if size else [],
        "precision": "fp16" if precision.startswith("16") else precision.partition("-")[0],
        "settings": {
            **flat(getattr(trainer.strategy, "config", None)),
            "precision": precision,
            "compile": is_compiled(module),
            "matmul": torch.get_float32_matmul_precision(),
        },
        "batch_norm": any(isinstance(each, norms) for each in module.modules()),
        "deepspeed": importlib.util.find_spec("deepspeed") is not None,
        "compute": compute_capability(),
    }


def start(settings: dict[str, Any], folder: str) -> None:
    """Set what `settings` has; in a trial, watch the training too."""
    for package in PACKAGES:
        watch(package + ".trainer.trainer", LightningHook(settings["set"], settings.get("steps", 0), folder).install)
