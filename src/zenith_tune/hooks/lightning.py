"""Sets what a Trainer of Lightning is made with and the batch of its data, and reports what it trains as.

It does so in each trial; the best command has the part that sets. The package has two names, with a copy of it each.
"""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import inspect
import time
from typing import Any

from .process import MOST_TIMES, STEPS_S, compute_capability, measured, process_name, report, watch, with_values

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
ACCUMULATION = "accumulate_grad_batches"
IN_BATCHES = ("limit_train_batches", "val_check_interval")
"""Arguments that count micro-batches where they are whole numbers."""
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
    """What is set in the Trainers of one package, and in their data."""

    def __init__(self, package: str, values: dict[str, Any], steps: int, folder: str) -> None:
        self.package, self.values, self.folder = package, values, folder
        self.steps = steps
        """Updates of a trial; 0 in the best command."""

    def install(self, module: Any) -> None:
        """Wrap the making of a Trainer, and its training."""
        module.Trainer.__init__ = with_values(module.Trainer.__init__, self.arguments)
        module.Trainer.fit = self.fitting(module.Trainer.fit)

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments to set in a Trainer that is made with others."""
        own = given.get(ACCUMULATION) or 1
        counts = {
            name: max(given[name] * self.values.get(ACCUMULATION, own) // own, 1)
            for name in IN_BATCHES
            if type(given.get(name)) is int
        }
        if not self.steps:
            return {**counts, **self.values}
        logger = importlib.import_module(self.package + ".loggers.logger").DummyLogger()
        limits = {"max_steps": MOST_TIMES * self.steps, "default_root_dir": self.folder}
        return {
            **counts,
            **IN_TRIALS,
            **limits,
            "logger": logger,
            "callbacks": wanted(given.get("callbacks")),
            **self.values,
        }

    def fitting(self, method: Any) -> Any:
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
                for part in parts(module):  # as a whole it does not compile where it logs (Lightning 2.6, torch 2.13)
                    part.compile()
            watched = step_watch(importlib.import_module(self.package), self.steps) if self.steps else None
            if watched is not None:
                given.arguments.pop("ckpt_path", None)  # it may be past the last step already
                configure = module.configure_callbacks
                module.configure_callbacks = lambda: wanted(configure())
                this.callbacks.append(watched)
            method(*given.args, **given.kwargs)
            if watched is not None and watched.begun_at is not None:  # a search for a learning rate fits without it
                raise SystemExit(0)

        return fitted


def step_watch(package: Any, steps: int) -> Any:
    """Return a callback that reports what trains and each update, and ends the training after so many."""

    class StepWatch(package.Callback):  # type: ignore[misc]
        """The updates of a trial."""

        num_steps = num_passes = global_step = 0
        begun_at: Any = None

        def on_train_start(self, trainer: Any, module: Any) -> None:
            from .model import ModelWatch

            for each in trainer.lr_scheduler_configs:
                each.strict = False  # it may wait for a metric of the validation
            self.begun_at, self.global_step = time.monotonic(), trainer.global_step
            report(described(trainer, module, getattr(package, "__version__", "")))
            if trainer.is_global_zero and not is_compiled(module):
                inner = parts(module)[0] if len(parts(module)) == 1 else module
                ModelWatch(inner, inner, lambda event: report({**event, "models": 1}))

        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
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
            if self.num_steps >= steps:
                is_over = not torch.cuda.is_available() or time.monotonic() - self.begun_at >= STEPS_S
                trainer.should_stop = trainer.strategy.reduce_boolean_decision(is_over)

    return StepWatch()


def wanted(callbacks: Any) -> list[Any]:
    """Return callbacks without those that a trial has no use for."""
    given = callbacks if isinstance(callbacks, (list, tuple)) else filter(None, [callbacks])
    return [each for each in given if not UNWANTED & {kind.__name__ for kind in type(each).__mro__}]


def resize(arguments: dict[str, Any], module: Any, size: int) -> None:
    """Have the data of a training come in batches of another size, whether it is given or made by a module."""
    loaders = arguments.get("train_dataloaders")
    source: Any = arguments.get("datamodule") or (loaders if hasattr(loaders, "train_dataloader") else module)
    if loaders is None or loaders is source:
        make = source.train_dataloader
        source.train_dataloader = lambda: resized(make(), size)
    else:
        arguments["train_dataloaders"] = resized(loaders, size)


def resized(loader: Any, size: int) -> Any:
    """Return a copy of a torch DataLoader with another batch size."""
    values = {
        # Without these Lightning makes it again from its attributes, not from what the script gave.
        **{name: value for name, value in vars(loader).items() if not name.startswith("__pl_saved")},
        "batch_size": size,
        "batch_sampler": type(loader.batch_sampler)(loader.sampler, size, loader.drop_last),
    }
    found = copy.copy(loader)
    vars(found).clear()
    vars(found).update(values)
    return found


def batch_size(trainer: Any) -> int:
    """Return the samples of a pass; 0 where they are not those of one torch DataLoader, or must stay as they are."""
    loader = trainer.train_dataloader
    kinds = {type(each).__name__ for each in (*trainer.callbacks, getattr(loader, "batch_sampler", None))}
    size = getattr(loader, "batch_size", None) if "BatchSampler" in kinds else None
    is_fixed = "GradientAccumulationScheduler" in kinds or not trainer.lightning_module.automatic_optimization
    return size if type(size) is int and not is_fixed else 0


def parts(module: Any) -> list[Any]:
    """Return the parts of a LightningModule with parameters, which are called as a model is; or the whole."""
    return [part for part in module.children() if any(True for _ in part.parameters())] or [module]


def is_compiled(module: Any) -> bool:
    """Tell whether a LightningModule or a part of it is compiled, by the script or here."""
    marks = ("_compiler_ctx", "_compiled_call_impl", "_orig_mod")
    return any(getattr(part, mark, None) is not None for part in (module, *parts(module)) for mark in marks)


def described(trainer: Any, module: Any, version: str) -> dict[str, Any]:
    """Return the world, the batch, what wraps the model, and the settings that trials change."""
    import torch

    from .accelerate import flat, wrapper_of

    size, precision = batch_size(trainer), str(trainer.precision)
    norms = (torch.nn.modules.batchnorm._BatchNorm,)
    return {
        "event": "prepared",
        "process": process_name(),
        "version": version,
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
        hook = LightningHook(package, settings["set"], settings.get("steps", 0), folder)
        watch(package + ".trainer.trainer", hook.install)
