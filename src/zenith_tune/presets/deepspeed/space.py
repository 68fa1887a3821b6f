"""What is searched of a job that trains with DeepSpeed, and which points are worth a trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from zenith_tune.describe.deepspeed_config import (
    ACCUMULATION,
    AXES,
    CHECKPOINTING,
    CPU,
    MICRO_BATCH,
    OFF,
    SECTIONS,
    STAGE,
    STAGES,
    TUNING,
    DsConfig,
    Keys,
    ZeroAxis,
    shown_json,
    shown_keys,
)
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout, divisors
from zenith_tune.presets.arguments import DEFAULT, chosen_axes
from zenith_tune.presets.deepspeed.command import PRESET
from zenith_tune.presets.deepspeed.job import DeepSpeedJob
from zenith_tune.presets.shared.zero_levers import lever_settings, logged_levers
from zenith_tune.study.parameters import CategoricalParameter, Params, Value

NAMES = ("stage", "mbs", CHECKPOINTING, *AXES)
SEARCHABLE = {DEFAULT: ("stage", "mbs"), "tuning": TUNING, **{name: (name,) for name in NAMES}}
"""What `search` may list; the first two names stand for several axes."""

OFFLOADED_AS = {
    "offload_optimizer": "DeepSpeedZeroOffloadOptimizerConfig",
    "offload_param": "DeepSpeedZeroOffloadParamConfig",
}
"""How DeepSpeed dumps a section that it has; it dumps one that it has not as None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedSpace:
    """The axes of one job; the first choice of each is what the job has as it is, or DeepSpeed's default."""

    job: DeepSpeedJob
    stages: tuple[int, ...]
    micro_batches: tuple[int, ...]
    axes: Mapping[str, ZeroAxis]
    """Keys of the configuration other than the stage and the batch."""
    checkpointing: tuple[bool, ...] = ()
    """Empty where recomputation stays as it is."""

    @classmethod
    def of(cls, job: DeepSpeedJob, search: str, mbs_max: int) -> DeepSpeedSpace:
        """Return the space of a job: what `search` names, and every list in its configuration."""
        names = chosen_axes(search, SEARCHABLE)
        if job.tuning.get("fast") is False:
            names |= set(TUNING)
        if CHECKPOINTING in names and not job.is_trainer:
            problem = "checkpointing is an argument of the Hugging Face Trainer, but the command does not run it"
            raise UsageError(problem, hint="take it out of search, or switch it on in the script")
        listed = listed_axes(job.config)
        wanted = {name: _with_own(job, axis) for name, axis in AXES.items() if name in names and name not in listed}
        return cls(
            job=job,
            stages=listed_stages(job.config) or (STAGES if "stage" in names else (_own_stage(job),)),
            micro_batches=_micro_batches(job, mbs_max, is_searched="mbs" in names),
            axes={**wanted, **listed},
            checkpointing=(job.recomputes, not job.recomputes) if CHECKPOINTING in names else (),
        )

    def parameters(self) -> dict[str, CategoricalParameter]:
        space = {
            "stage": CategoricalParameter(self.stages),
            "mbs": CategoricalParameter(self.micro_batches),
        }
        if self.checkpointing:
            space[CHECKPOINTING] = CategoricalParameter(self.checkpointing)
        return space | {name: CategoricalParameter(axis.choices) for name, axis in self.axes.items()}

    def explain(self, params: Mapping[str, Value]) -> str | None:
        """Return which rule a point breaks."""
        mbs, stage, job = int(params["mbs"]), int(params["stage"]), self.job
        if job.rank_batch % mbs:
            problem = f"micro-batch times {job.num_ranks} ranks must divide the global batch"
            return f"{problem}, but {mbs} * {job.num_ranks} does not divide {job.global_batch}"
        for name, axis in self.axes.items():
            if not axis.matters(stage) and params[name] != axis.choices[0]:
                return f"{name} has no effect at stage {stage}: it is tried as {axis.choices[0]} alone"
        return None

    def settings(self, params: Mapping[str, Value]) -> dict[Keys, object]:
        """Return what a point changes in the configuration, without the batch."""
        stage = int(params["stage"])
        changes: dict[Keys, object] = {STAGE: stage}
        for name, axis in self.axes.items():
            # A list that has no effect is no value either: DeepSpeed refuses it all the same.
            if axis.matters(stage) or isinstance(self.job.config.get(axis.keys), list):
                changes[axis.keys] = self._written(axis, params[name])
        for name in ("offload_optimizer", "offload_param"):
            if not AXES[name].matters(stage):
                changes[AXES[name].keys] = None  # DeepSpeed refuses what a stage cannot offload
        return changes | lever_settings(self.levers_of(params))

    def levers_of(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """Return what a point has besides the axes."""
        searched = self.parameters()
        return {name: value for name, value in params.items() if name not in searched}

    def dumped(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """Return a point by the names that DeepSpeed and the Trainer dump their arguments under."""
        stage = int(params["stage"])
        found: dict[str, Value] = {
            "zero_optimization_stage": stage,
            "train_micro_batch_size_per_gpu": params["mbs"],
            ACCUMULATION[-1]: self.layout(params).num_micro_batches,
        }
        if CHECKPOINTING in params:
            found["gradient_checkpointing"] = params[CHECKPOINTING]
        for name in (name for name, axis in self.axes.items() if name in AXES and axis.matters(stage)):
            is_offload = name in OFFLOADED_AS
            value = OFFLOADED_AS[name] if is_offload and params[name] != OFF else params[name]
            found[name.removeprefix("stage3_")] = "None" if is_offload and params[name] == OFF else value
        return found | logged_levers(self.levers_of(params))

    def layout(self, params: Mapping[str, Value]) -> Layout:
        recomputes = bool(params.get(CHECKPOINTING, self.job.recomputes))
        return Layout(
            num_gpus=self.job.num_ranks,
            micro_batch=int(params["mbs"]),
            global_batch=self.job.global_batch,
            zero=int(params["stage"]),
            recompute="full/uniform" if recomputes else "none",
            recompute_layers=int(recomputes),
        )

    def own_point(self) -> Params | None:
        """Return the point that the job itself stands for, where there is one."""
        sizes = self.job.config.get(MICRO_BATCH)
        mbs = sizes[0] if isinstance(sizes, list) else self.job.own_micro_batch
        if mbs is None:
            return None
        point: Params = {"stage": _own_stage(self.job), "mbs": mbs}
        if self.checkpointing:
            point[CHECKPOINTING] = self.job.recomputes
        point |= {name: axis.choices[0] for name, axis in self.axes.items()}
        return point if all(choice.contains(point[name]) for name, choice in self.parameters().items()) else None

    def near_points(self) -> Iterator[Params]:
        own = self.own_point() or {name: choice.choices[0] for name, choice in self.parameters().items()}
        return ({**own, "stage": stage} for stage in self.stages)

    def _written(self, axis: ZeroAxis, value: Value) -> object:
        if axis.keys[-1] not in ("offload_optimizer", "offload_param") or value not in (OFF, CPU):
            return value
        if value == OFF:
            return None
        own = self.job.config.get(axis.keys)
        return {**own, "device": CPU} if isinstance(own, dict) else {"device": CPU, "pin_memory": True}


def _own_stage(job: DeepSpeedJob) -> int:
    stage = job.config.get(STAGE)
    if isinstance(stage, list) and stage:
        stage = stage[0]
    return stage if isinstance(stage, int) else 0


def _with_own(job: DeepSpeedJob, axis: ZeroAxis) -> ZeroAxis:
    """Return an axis that begins with the job's own value, where it has one."""
    own = job.config.get(axis.keys)
    if isinstance(own, dict):
        own = CPU if own.get("device") in (CPU, "nvme") else OFF
    if isinstance(own, float) and own.is_integer():
        own = int(own)
    if not isinstance(own, bool | int | str) or own == "":
        return axis
    choices = (own, *(choice for choice in axis.choices if choice != own or type(choice) is not type(own)))
    return replace(axis, choices=choices)


def _micro_batches(job: DeepSpeedJob, mbs_max: int, *, is_searched: bool) -> tuple[int, ...]:
    """Return the micro-batches to try: those that a list names, or every divisor within the limits."""
    if (listed := listed_micro_batches(job.config)) is not None:
        return listed
    if not is_searched:
        return (job.own_micro_batch or job.rank_batch,)
    least = job.tuning.get("min_train_micro_batch_size_per_gpu") or 1
    most = min(mbs_max, job.tuning.get("max_train_micro_batch_size_per_gpu") or mbs_max)
    found = tuple(size for size in divisors(job.rank_batch) if least <= size <= most)
    if not found:
        problem = (
            f"{PRESET} finds no micro-batch from {least} to {most} that divides the {job.rank_batch} samples of a rank"
        )
        raise UsageError(problem, hint="change the limits, or the global batch")
    return found


PLAIN_LISTS = ("leaf_module", "zenflow")
"""Parts of these sections in which lists are meant as lists."""
ALL = "all"
"""What DeepSpeed's autotuner takes for every stage."""


def listed_axes(config: DsConfig) -> dict[str, ZeroAxis]:
    """Return the lists other than those of the stage and of the batch, by the name that a point has for each."""
    found = {keys: values for keys, values in _lists(config) if keys not in (STAGE, MICRO_BATCH)}
    num_lists = Counter(keys[-1] for keys in found)
    names = {keys: _name(keys, num_lists[keys[-1]]) for keys in found}
    return {names[keys]: _axis(names[keys], keys, _checked(config, keys, values)) for keys, values in found.items()}


def listed_stages(config: DsConfig) -> tuple[int, ...] | None:
    """Return the stages that a list or "all" names, in order; None where the configuration has no such list."""
    value = config.get(STAGE)
    if value == ALL:
        return STAGES
    if not isinstance(value, list):
        if value is not None and (type(value) is not int or value not in STAGES):
            raise _bad_stage(config, value)
        return None
    if not value or any(type(stage) is not int or stage not in STAGES for stage in value):
        raise _bad_stage(config, value)
    return tuple(sorted(set(value)))


def listed_micro_batches(config: DsConfig) -> tuple[int, ...] | None:
    """Return the micro-batches that a list names, ascending; None where there is no list."""
    value = config.get(MICRO_BATCH)
    if not isinstance(value, list):
        return None
    if not value or any(type(size) is not int or size < 1 for size in value):
        problem = f"{MICRO_BATCH[0]} must list whole numbers from 1"
        raise UsageError(f"{config.source}: {problem}, but got {shown_json(value)}: correct it")
    return tuple(sorted(set(value)))


def _lists(config: DsConfig) -> Iterator[tuple[Keys, list[Any]]]:
    # In other sections, such as the optimizer's betas, a list may be what DeepSpeed wants.
    for key, value in config.values.items():
        if isinstance(value, list):
            yield (key,), value
        elif key in SECTIONS and isinstance(value, dict):
            yield from _lists_in(value, (key,))


def _lists_in(section: dict[str, Any], at: Keys) -> Iterator[tuple[Keys, list[Any]]]:
    for key, value in section.items():
        if key in PLAIN_LISTS:
            continue
        if isinstance(value, list):
            yield (*at, key), value
        elif isinstance(value, dict):
            yield from _lists_in(value, (*at, key))


def _name(keys: Keys, num_lists: int) -> str:
    """Return the last key, with those before it where several lists have the same."""
    is_unique = num_lists == 1 and keys[-1] not in ("stage", "mbs")
    return keys[-1] if is_unique else ".".join(keys)


def _axis(name: str, keys: Keys, choices: tuple[Value, ...]) -> ZeroAxis:
    known = AXES.get(name)
    if known is None or known.keys != keys:
        return ZeroAxis(keys=keys, choices=choices)
    return replace(known, choices=choices)


def _checked(config: DsConfig, keys: Keys, values: list[Any]) -> tuple[Value, ...]:
    plain = [int(value) if isinstance(value, float) and value.is_integer() else value for value in values]
    if not plain or any(not isinstance(value, bool | int | float | str) for value in plain):
        problem = f"{shown_keys(keys)} must list numbers, words or true and false"
        raise UsageError(f"{config.source}: {problem}, but got {shown_json(values)}: correct it")
    has_numbers = any(type(value) in (int, float) for value in plain)
    different = {(type(value), value): value for value in plain}
    written: dict[str, Any] = {}
    for value in different.values():
        # True and 1 are one key of a search, and 1 and "1" are one word in every table.
        word = str(int(value) if isinstance(value, bool) and has_numbers else value)
        if word in written:
            problem = f"{shown_keys(keys)} must list values that differ"
            pair = f"{shown_json(written[word])} and {shown_json(value)}"
            raise UsageError(f"{config.source}: {problem}, but {pair} are equal", hint="leave one of them out")
        written[word] = value
    return tuple(different.values())


def _bad_stage(config: DsConfig, value: object) -> UsageError:
    problem = f"zero_optimization.stage must be 0, 1, 2, 3, a list of these or {ALL!r}"
    return UsageError(f"{config.source}: {problem}, but got {shown_json(value)}: correct it")
