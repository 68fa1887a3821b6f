"""Sets fields of TrainingArguments before a Trainer reads them, and tells what the Trainer was made with.

A copy stands as `sitecustomize.py` in a folder at the front of PYTHONPATH, beside a JSON that says what to set: in each
trial, and for the best command where a script has its arguments in Python. It needs nothing but Python 3.8 and leaves a
program alone that does not use transformers.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import json
import os
import sys
import time
from typing import Any

try:  # the copy beside this one, in the user's process
    from zenithtune_import_hook import run_shadowed, tell, watch  # type: ignore[import-not-found]
except ImportError:
    from zenith_tune.presets.import_hook import run_shadowed, tell, watch

FILE_NAME = "arguments.json"
HERE = "{here}"
"""In a value, the folder of the JSON."""
FIELD = "per_device_train_batch_size"
"""A field by which constructors of TrainingArguments are known."""
PARSERS = ("transformers.hf_argparser", "trl.scripts._hf_argparser")
"""What has an HfArgumentParser: TRL a copy of its own."""
NEEDS_EVALUATION = "EarlyStoppingCallback"
STEPS_S = 10.0
"""So long a trial makes updates on a GPU, up to its `max_steps`: its memory and kernels take a while to be laid out for
batches of many lengths."""


class Arguments:
    """Set fields in every constructor of TrainingArguments and of the classes that are made of it."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.done: set[Any] = set()

    def install(self, module: Any) -> None:
        """Wrap the constructor of each class when its first instance is made."""
        base = module.TrainingArguments

        def new(kind: Any, *args: Any, **kwargs: Any) -> Any:
            self.wrap(kind)
            return object.__new__(kind)

        base.__new__ = new

    def wrap(self, kind: Any) -> None:
        """Wrap those constructors of a class and its bases that take the fields themselves."""
        for each in kind.__mro__:
            method = each.__dict__.get("__init__")
            if method is None or each in self.done or FIELD not in inspect.signature(method).parameters:
                continue
            self.done.add(each)
            each.__init__ = self.setting(method)

    def setting(self, method: Any) -> Any:
        """Return a constructor that gets the fields, whatever it is given for them; unknown ones are left out."""
        signature = inspect.signature(method)
        known = {name: value for name, value in self.values.items() if name in signature.parameters}

        @functools.wraps(method)
        def wrapped(this: Any, *args: Any, **kwargs: Any) -> None:
            given = signature.bind(this, *args, **kwargs)
            given.arguments.update(known)
            method(*given.args, **given.kwargs)

        return wrapped


class TrainerWatch:
    """Tell what a Trainer was made with, and end the program when it has trained, or trains without one."""

    def __init__(self, reported: list[str], packages: list[str], least_steps: int, before: Any = None) -> None:
        self.reported, self.packages, self.least_steps = reported, packages, least_steps
        self.tokens = TokenCount()
        self.before = before
        """What is done with a Trainer before it trains."""
        self.is_training = False
        self.steps_left = least_steps
        """So many steps an optimizer may make without a Trainer."""
        self.read_from = ""
        """What HfArgumentParser read the arguments from: "options" or "file"."""

    def install_parser(self, module: Any) -> None:
        """Note where arguments come from."""
        parser = module.HfArgumentParser
        sources = {"parse_args_into_dataclasses": "options", "parse_json_file": "file", "parse_yaml_file": "file"}
        for name, source in sources.items():
            setattr(parser, name, self.noting(getattr(parser, name), source))

    def noting(self, method: Any, source: str) -> Any:
        """Return a method of a parser that notes where TrainingArguments are read from."""

        @functools.wraps(method)
        def noted(this: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(AttributeError, TypeError):
                if any(hasattr(kind, FIELD) for kind in this.dataclass_types):
                    self.read_from = source
            return method(this, *args, **kwargs)

        return noted

    def install_trainer(self, module: Any) -> None:
        """Stand before and behind the training."""
        trainer = module.Trainer
        train = trainer.train

        @functools.wraps(train)
        def watched(this: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(AttributeError, OSError, RuntimeError, TypeError, ValueError):
                for callback in list(this.callback_handler.callbacks):
                    if type(callback).__name__ == NEEDS_EVALUATION:
                        this.remove_callback(callback)
                tell({"event": "trainer", **self.described(this)})
                this.add_callback(self.end_in_time(module.TrainerCallback, STEPS_S if compute_capability() else 0.0))
                if getattr(this.args, "world_size", 1) == 1:  # of several ranks one does not tell for all
                    self.tokens.install(this)
                if self.before is not None:
                    self.before(this)
            self.is_training = True
            train(this)  # from the beginning: a checkpoint may be past the last step already
            # What is left is to evaluate, save and push.
            raise SystemExit(0)

        trainer.train = watched

    def end_in_time(self, base: Any, least_s: float) -> Any:
        """Return a callback that ends the training once it has made enough updates for long enough."""
        least_steps, begin = self.least_steps, []

        class EndInTime(base):  # type: ignore[misc]
            """Look at the clock after each update."""

            def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
                begin.append(time.monotonic())
                if state.global_step >= least_steps and begin[-1] - begin[0] >= least_s:
                    control.should_training_stop = True

        return EndInTime()

    def install_optimizers(self, module: Any) -> None:
        """Count the steps that optimizers make."""
        module.register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self.stepped())

    def stepped(self) -> None:
        """End a program that trains without a Trainer: it may do so for days, and nobody would learn from it."""
        self.steps_left -= not self.is_training
        if self.steps_left < 0:
            tell({"event": "no_trainer"})
            raise SystemExit(0)

    def described(self, trainer: Any) -> dict[str, Any]:
        """Return the arguments that are asked for, the world, and what is installed."""
        args, model = trainer.args, trainer.model
        values = {name: plain(getattr(args, name)) for name in self.reported if hasattr(args, name)}
        return {
            "process": f"{os.uname().nodename}:{os.getpid()}",
            "class": type(trainer).__name__,
            "version": getattr(sys.modules.get("transformers"), "__version__", ""),
            "arguments": values,
            "world": int(getattr(args, "world_size", 1)),
            "gpus_of_process": int(getattr(args, "n_gpu", 0)),
            "read_from": self.read_from,
            "checkpointing": bool(getattr(model, "is_gradient_checkpointing", False)),
            "attention": plain(getattr(getattr(model, "config", None), "_attn_implementation", None)),
            "packages": [name for name in self.packages if importlib.util.find_spec(name) is not None],
            "compute": compute_capability(),
        }


class TokenCount:
    """Count the tokens of a Trainer's passes that are no padding."""

    def __init__(self) -> None:
        self.counts: list[Any] = []
        """One for each pass since they were last asked for; None of one that does not tell."""

    def install(self, trainer: Any) -> None:
        """Count what each pass is given."""
        step = trainer.training_step

        @functools.wraps(step)
        def counted(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self.counts.append(num_tokens(inputs))
            return step(model, inputs, *args, **kwargs)

        trainer.training_step = counted

    def taken(self) -> dict[str, int]:
        """Return the tokens of the passes since the last time; nothing where one did not tell."""
        counts, self.counts = self.counts, []
        return {"tokens": int(sum(counts))} if counts and all(count is not None for count in counts) else {}


def num_tokens(inputs: Any) -> Any:
    """Return the tokens of a batch that are no padding, on whatever device they are; None where it does not tell."""
    with contextlib.suppress(AttributeError, KeyError, TypeError):
        tokens, mask = inputs["input_ids"], inputs.get("attention_mask")
        if mask is not None:
            return mask.sum() if mask.shape == tokens.shape else None
        return tokens.numel() if tokens.shape[0] == 1 else None  # in one row there is nothing to pad
    return None


def plain(value: Any) -> Any:
    """Return a value that a line can hold: of an enumeration its value, of anything else its class."""
    value = getattr(value, "value", value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else type(value).__name__


def compute_capability() -> int:
    """Return the GPU's compute capability times ten; 0 without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return 0
    major, minor = torch.cuda.get_device_capability()
    return int(10 * major + minor)


def start(settings: dict[str, Any], folder: str) -> None:
    """Set the fields that `settings` has; where it is of a trial, watch that."""
    values = {
        name: value.replace(HERE, folder) if isinstance(value, str) else value
        for name, value in settings["set"].items()
    }
    watch("transformers.training_args", Arguments(values).install)
    if "report" in settings:
        name = settings.get("before")  # of a copy beside this one
        before = importlib.import_module(name).install if name else None
        trial = TrainerWatch(settings["report"], settings["packages"], settings["steps"], before)
        watch("torch.optim.optimizer", trial.install_optimizers)
        for module in PARSERS:
            watch(module, trial.install_parser)
        watch("transformers.trainer", trial.install_trainer)
        importlib.import_module("zenithtune_accelerate_hook").start(trial.tokens.taken)  # the copy beside this one


if __name__ == "sitecustomize":
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - the user's process should not load pathlib
    with open(os.path.join(here, FILE_NAME), encoding="utf-8") as file:  # noqa: PTH118, PTH123
        start(json.load(file), here)
    run_shadowed(__file__)
