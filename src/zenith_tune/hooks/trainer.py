"""Sets fields of TrainingArguments before a Trainer reads them, and reports what the Trainer was made with.

It does so in each trial; the best command of a script with its arguments in Python has the part that sets fields.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import inspect
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from .process import STEPS_S, compute_capability, plain, process_name, report, watch, with_values

if TYPE_CHECKING:
    from .orders import Orders

HERE = "{here}"
"""The hook's folder, where a value names it."""
FIELD = "per_device_train_batch_size"
"""A field by which constructors of TrainingArguments are recognised."""
PARSERS = ("transformers.hf_argparser", "trl.scripts._hf_argparser")
"""Modules with an HfArgumentParser: TRL has a copy of its own."""
CHECKPOINTING = "gradient_checkpointing"
WORKED_OUT = "steps_per_generation"
"""A field that is worked out where the script does not give it: it is reported only where the script does."""
NEEDS_EVALUATION = "EarlyStoppingCallback"


class Arguments:
    """Fields to set in every constructor of TrainingArguments and its subclasses."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.done: set[Any] = set()
        self.given: set[str] = set()
        """Names of the fields that the program gave."""

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
            each.__init__ = with_values(method, self.values_for)

    def values_for(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the fields to set in place of those that the program gives."""
        self.given |= {name for name, value in given.items() if value is not None}
        return self.values


class TrainerWatch:
    """A trial's Trainer: reported when it begins to train, and ended when it has, as is a program that has none."""

    def __init__(self, reported: list[str], packages: list[str], least_steps: int, orders: Orders) -> None:
        self.reported, self.packages, self.least_steps = reported, packages, least_steps
        self.orders = orders
        self.given: set[str] = set()
        """Names of the fields that the program gave."""
        self.tokens, self.phases = TokenCount(), PhaseTimes()
        self.before: Any = None
        """A function that is given the Trainer before it trains."""
        self.steps: Any = None
        """The steps that Accelerate sees."""
        self.is_training = False
        self.steps_left = least_steps
        """Optimizer steps that are left to a program without a Trainer."""
        self.read_from = ""
        """The source of HfArgumentParser's arguments: "options" or "file"."""

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
        trainer = module.Trainer
        train = trainer.train

        @functools.wraps(train)
        def watched(this: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(AttributeError, OSError, RuntimeError, TypeError, ValueError):
                for callback in list(this.callback_handler.callbacks):
                    if type(callback).__name__ == NEEDS_EVALUATION:
                        this.remove_callback(callback)
                report({"event": "trainer", **self.described(this)})
                this.add_callback(self.end_in_time(this, module, STEPS_S if compute_capability() else 0.0))
                if getattr(this.args, "world_size", 1) == 1:  # one of several ranks does not count for all
                    self.tokens.install(this)
                if self.before is not None:
                    self.before(this)
            self.is_training = True
            train(this)  # from the beginning: a checkpoint may be past the last step already
            share = functools.partial(of_first_rank, this.args)
            while (values := self.orders.following(share)) is not None and can_take(this, values):
                change(this, values)
                self.tokens.counts = []
                self.steps.begin_again()
                report({"event": "trainer", **self.described(this)})
                train(this)
            # Only evaluating, saving and pushing are left.
            raise SystemExit(0)

        trainer.train = watched

    def end_in_time(self, trainer: Any, module: Any, least_s: float) -> Any:
        """Return a callback that ends the training once it has made enough updates for long enough."""
        least_steps, orders = self.least_steps, self.orders
        begin: list[float] = []

        class EndInTime(module.TrainerCallback):  # type: ignore[misc]
            """A clock that is read after each update."""

            def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
                begin.clear()
                with contextlib.suppress(AttributeError):
                    if can_change(trainer):
                        return
                orders.refuse()  # a release without what is looked at has another Trainer than this knows

            def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
                begin.append(time.monotonic())
                is_long = state.global_step >= least_steps and begin[-1] - begin[0] >= least_s
                if of_first_rank(args, is_long or orders.has_come()):  # by its clock: all must make the same updates
                    control.should_training_stop = True

        return EndInTime()

    def install_optimizers(self, module: Any) -> None:
        module.register_optimizer_step_post_hook(lambda optimizer, args, kwargs: self.stepped())

    def stepped(self) -> None:
        """End a program that trains without a Trainer: it may train for days and report nothing."""
        self.steps_left -= not self.is_training
        if self.steps_left < 0:
            report({"event": "no_trainer"})
            raise SystemExit(0)

    def described(self, trainer: Any) -> dict[str, Any]:
        """Return the arguments to report, the world, and the installed packages."""
        args, model = trainer.args, trainer.model
        names = [name for name in self.reported if name != WORKED_OUT or name in self.given]
        held = {name: getattr(args, name) for name in names if hasattr(args, name)}
        values = {name: json.dumps(each) if isinstance(each, dict) else plain(each) for name, each in held.items()}
        return {
            "process": process_name(),
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


class PhaseTimes:
    """Seconds of the phases that a trainer of TRL times itself, since the previous update."""

    PHASES = (
        *(("generate", "generation"), ("generate_batch", "generation")),
        *(("sync_weights", "sync"), ("_calculate_rewards", "rewards")),
    )
    """Ends of the names of its timers, such as vLLM.generate, and the phases that they are of."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def install(self, module: Any) -> None:
        timed = module.ProfilingContext._log_metrics

        @functools.wraps(timed)
        def noted(this: Any, duration: float) -> Any:
            phase = dict(self.PHASES).get(str(this.name).rpartition(".")[2])
            if phase is not None:
                self.seconds[phase] = self.seconds.get(phase, 0.0) + duration
            return timed(this, duration)

        module.ProfilingContext._log_metrics = noted

    def taken(self) -> dict[str, Any]:
        """Return the seconds since the last call; nothing where nothing was timed."""
        seconds, self.seconds = self.seconds, {}
        return {"phases": seconds} if seconds else {}


class TokenCount:
    """Tokens of a Trainer's passes, padding excluded."""

    def __init__(self) -> None:
        self.counts: list[Any] = []
        """Tokens of each pass since the previous update; None where the pass does not show them."""

    def install(self, trainer: Any) -> None:
        step = trainer.training_step

        @functools.wraps(step)
        def counted(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self.counts.append(num_tokens(inputs))
            return step(model, inputs, *args, **kwargs)

        trainer.training_step = counted

    def taken(self) -> dict[str, int]:
        """Return the tokens of the passes since the last call; nothing where one is not known."""
        counts, self.counts = self.counts, []
        return {"tokens": int(sum(counts))} if counts and all(count is not None for count in counts) else {}


def num_tokens(inputs: Any) -> Any:
    """Return the tokens of a batch without padding, on whatever device they are; None where they are not known."""
    with contextlib.suppress(AttributeError, KeyError, TypeError):
        tokens, mask = inputs["input_ids"], inputs.get("attention_mask")
        if mask is not None:
            return mask.sum() if mask.shape == tokens.shape else None
        return tokens.numel() if tokens.shape[0] == 1 else None  # in one row there is nothing to pad
    return None


def of_first_rank(args: Any, value: Any) -> Any:
    """Return to every rank what the first gives."""
    if getattr(args, "world_size", 1) == 1:
        return value
    import torch

    if isinstance(value, bool):  # after each update: as little as can be sent
        flag = torch.tensor(value, device=args.device)
        torch.distributed.broadcast(flag, 0)
        return bool(flag)
    held = [value]
    torch.distributed.broadcast_object_list(held, 0, device=args.device)
    return held[0]


def can_change(trainer: Any) -> bool:
    """Tell whether a Trainer that trains can train once more with another batch as if it had been made with it.

    What compiles or shards the model may be made for a batch, trainers that generate samples count on their first, and
    one that makes its model itself would hold two.
    """
    wrapped: Any = getattr(trainer, "model_wrapped", None)
    if type(wrapped).__name__ == "DistributedDataParallel":
        wrapped = wrapped.module
    makes_other = hasattr(trainer.args, "num_generations") or trainer.model_init is not None
    return wrapped is trainer.model and not trainer.is_fsdp_enabled and not makes_other


def can_take(trainer: Any, values: dict[str, Any]) -> bool:
    """Tell whether values can be changed: adapters, TRL and DDP prepare a model for gradient checkpointing at first."""
    is_prepared = hasattr(trainer.model, "peft_config") or "trl" in sys.modules or trainer.args.world_size > 1
    return not is_prepared or values.get(CHECKPOINTING) in (None, trainer.args.gradient_checkpointing)


def change(trainer: Any, values: dict[str, Any]) -> None:
    """Give a Trainer another batch or gradient checkpointing, and free the memory that the batch before it took."""
    import torch

    args, accelerator = trainer.args, trainer.accelerator
    accumulation = args.gradient_accumulation_steps
    for name, value in values.items():
        setattr(args, name, value)
    trainer._train_batch_size = args.train_batch_size
    if accelerator.gradient_accumulation_steps == accumulation > 1:  # releases that leave the passes to Accelerate
        accelerator.gradient_accumulation_steps = args.gradient_accumulation_steps
    if not args.gradient_checkpointing and getattr(trainer.model, "is_gradient_checkpointing", False):
        trainer.model.gradient_checkpointing_disable()
    trainer.model.zero_grad(set_to_none=True)
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()  # another shape is compiled as if it were the first
    accelerator.free_memory()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def start(settings: dict[str, Any], folder: str) -> None:
    """Set the fields that `settings` has; in a trial, watch the Trainer too."""
    values = {
        name: value.replace(HERE, folder) if isinstance(value, str) else value
        for name, value in settings["set"].items()
    }
    arguments = Arguments(values)
    watch("transformers.training_args", arguments.install)
    if "report" in settings:
        # Not at the top: the best command has no copy of these.
        from . import accelerate
        from .orders import Orders

        trial = TrainerWatch(settings["report"], settings["packages"], settings["steps"], Orders(folder))
        trial.given = arguments.given
        if settings.get("longest"):
            from . import longest

            trial.before = longest.install
        watch("torch.optim.optimizer", trial.install_optimizers)
        for module in PARSERS:
            watch(module, trial.install_parser)
        watch("transformers.trainer", trial.install_trainer)
        watch("trl.extras.profiling", trial.phases.install)
        trial.steps = accelerate.start({}, folder, lambda: {**trial.tokens.taken(), **trial.phases.taken()})
