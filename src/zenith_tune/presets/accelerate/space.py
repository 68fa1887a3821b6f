"""What is searched of each of Accelerate's backends, and how its file says so; Megatron-LM's is in `megatron`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from zenith_tune.describe.deepspeed_config import (
    ACCUMULATION,
    AUTO,
    AXES,
    BATCH,
    CPU,
    MICRO_BATCH,
    OFF,
    STAGE,
    STAGES,
    DsConfig,
    Keys,
)
from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout, divisors
from zenith_tune.presets.accelerate.job import AccelerateJob, accelerates_json
from zenith_tune.presets.accelerate.levers import FSDP_LEVERS, FsdpSituation, fsdp_changes, fsdp_reported
from zenith_tune.presets.arguments import DEFAULT, chosen_axes
from zenith_tune.presets.framework_preset import AxisSpace
from zenith_tune.presets.levers import Lever, LeverChoice
from zenith_tune.presets.parts import ImplicitDefault
from zenith_tune.presets.shared.accelerate_launch import PRESET
from zenith_tune.presets.shared.accelerate_settings import FIELDS_OF_THE_JSON, PARALLELISM
from zenith_tune.presets.shared.zero_lever_declaration import Release, ZeroSituation
from zenith_tune.presets.shared.zero_levers import lever_settings, levers_for
from zenith_tune.strategies.zero_progressive.feasibility import ZeroSubject
from zenith_tune.study.parameters import Params, Value

Axes = dict[str, tuple[Value, ...]]
OFFLOADS = ("offload_optimizer", "offload_param")
DEFAULT_STAGE = 2
"""Accelerate's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend(AxisSpace, ABC):
    """The axes of a job, and the keys of the file that a point stands for."""

    job: AccelerateJob

    default_names: ClassVar[tuple[str, ...]] = ("mbs",)
    """What is searched unless the user says otherwise."""
    more_names: ClassVar[tuple[str, ...]] = ()
    wrapper: ClassVar[str] = "DistributedDataParallel"
    framework: ClassVar[str] = "hf-accelerate"

    @classmethod
    def of(cls, job: AccelerateJob, search: str, mbs_max: int, model: ModelSpec | None = None) -> Backend:
        """Return the backend of a job with the axes that `search` names; the others stay as they are."""
        searched = (*cls.default_names, *cls.more_names)
        names = chosen_axes(search, {DEFAULT: cls.default_names, **{name: (name,) for name in searched}})
        if names.issuperset(cls.default_names):
            names |= cls.also_by_default(job, model)
        searched_names = names - job.fixed.keys()
        found_choices = cls.choices(job, names).items()
        axes = {name: choices if name in searched_names else choices[:1] for name, choices in found_choices}
        found = cls(job=job, axes=axes)
        if "mbs" in names and job.can_set_micro_batch:
            axes["mbs"] = found.micro_batches(mbs_max)
        return cls(job=job, axes=axes)

    def refuse_without_choice(self) -> None:
        """Refuse a job of which nothing can be searched, and say what would change that."""
        if any(len(choices) > 1 for choices in self.axes.values()):
            return
        problem = f"{PRESET} finds nothing to search, because every axis has one choice"
        if arguments := [argument for axis, argument in self.job.fixed.items() if axis in self.axes]:
            problem = f"{problem} and the script itself gives {', '.join(arguments)}"
            raise UsageError(problem, hint="leave these arguments out of the script, so that a file sets them")
        hint = "name the script's option for the dataloader's batch size by --args mbs_option=--batch_size"
        raise UsageError(problem, hint=f"{hint}, or give another search")

    @classmethod
    def also_by_default(cls, job: AccelerateJob, model: ModelSpec | None) -> set[str]:
        """Return what is searched unless the user says otherwise because this job and its model call for it."""
        return set()

    @classmethod
    @abstractmethod
    def choices(cls, job: AccelerateJob, names: set[str]) -> Axes:
        """Return every axis but the micro-batch with all of its choices, the job's own first."""

    @abstractmethod
    def changes(self, params: Mapping[str, Value]) -> dict[str, Any]:
        """Return the keys that a point sets in the file; None takes a key away."""

    def layout(self, params: Mapping[str, Value]) -> Layout:
        recomputes = bool(params.get("checkpointing"))
        return Layout(
            num_gpus=self.ranks(params),
            micro_batch=self.micro_batch(params),
            global_batch=self.global_batch,
            zero=self.zero_stage(params),
            recompute="full/uniform" if recomputes else "none",
            recompute_layers=int(recomputes),
        )

    def zero_stage(self, params: Mapping[str, Value]) -> int:
        """Return what of a model's state is sharded, as the stages of ZeRO number it."""
        return 0

    def explain(self, params: Mapping[str, Value]) -> str | None:
        """Return which rule a point breaks."""
        mbs, ranks = self.micro_batch(params), self.ranks(params)
        own, fixed_by = self.job.own_accumulation, self.job.fixed.get("gas")
        if fixed_by is not None and mbs * ranks * own != self.global_batch:
            problem = f"the script gives {fixed_by}, and {own} micro-batches of {mbs} on {ranks} ranks"
            return f"{problem} are another batch than {self.global_batch}"
        if self.global_batch % (mbs * ranks):
            problem = f"micro-batch times {ranks} data-parallel ranks must divide the global batch"
            return f"{problem}, but {mbs} * {ranks} does not divide {self.global_batch}"
        return None

    def settings(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """Return the fields of Accelerate's plugins that a point must arrive in."""
        return {}

    def offered_levers(
        self, choice: LeverChoice, params: Mapping[str, Value], subject: PlanSubject | None, release: Release | None
    ) -> list[Lever]:
        return []

    def passes(self, params: Mapping[str, Value]) -> int | None:
        """Return the backward passes of one step that a script makes."""
        return self.accumulation(params)

    def ranks(self, params: Mapping[str, Value]) -> int:
        """Return how many data-parallel ranks Accelerate counts."""
        sizes = [self.job.settings.whole(f"{PARALLELISM}_{name}_size") or 1 for name in ("tp", "cp", "sp")]
        return max(self.job.num_gpus // (sizes[0] * sizes[1] * sizes[2]), 1)

    @property
    def own_ranks(self) -> int:
        return self.ranks(self.first_point)

    @property
    def global_batch(self) -> int:
        """Samples of a step, which no trial changes; in micro-batches where their size is not known."""
        job = self.job
        found = job.given_batch or (job.own_micro_batch or 1) * job.own_accumulation * self.own_ranks
        if found % self.least_ranks:
            problem = (
                f"the global batch must be a multiple of the {self.least_ranks} data-parallel ranks, but got {found}"
            )
            raise UsageError(problem, hint=f"give --gbs {max(found // self.least_ranks, 1) * self.least_ranks}")
        return found

    @property
    def own_micro_batch(self) -> int | None:
        """The dataloader's batch size as the job has it; None where it is not known."""
        job = self.job
        derived = job.given_batch // (job.own_accumulation * self.own_ranks) if job.given_batch else 0
        return job.own_micro_batch or derived or None

    def micro_batch(self, params: Mapping[str, Value]) -> int:
        """Return the dataloader's batch size; 1 where it is not known."""
        return int(params.get("mbs", self.own_micro_batch or 1))

    def micro_batches(self, mbs_max: int) -> tuple[int, ...]:
        """Return the micro-batches to try: every size that divides what some layout gives a rank."""
        job = self.job
        if job.own_micro_batch is None and job.given_batch is None:
            problem = (
                f"{PRESET} must know the global batch, but the command has no value for {job.mbs_option or '{mbs}'}"
            )
            raise UsageError(problem, hint="add it, or give --gbs 256")
        found = [size for size in divisors(self.global_batch // self.least_ranks) if size <= mbs_max]
        own = self.own_micro_batch
        return tuple(sorted(found, key=lambda size: (size != own, size)))

    @property
    def least_ranks(self) -> int:
        """The fewest data-parallel ranks of any point."""
        return self.own_ranks

    def accumulation(self, params: Mapping[str, Value]) -> int:
        return max(self.global_batch // (self.micro_batch(params) * self.ranks(params)), 1)

    def own_point(self) -> Params | None:
        """Return the point that the job itself stands for, where it is one of the space."""
        if "mbs" in self.axes and self.own_micro_batch not in self.axes["mbs"]:
            return None
        point = self.first_point | {unasked.name: unasked.size for unasked in self.implicit_defaults()}
        return point if self.explain(point) is None else None

    def implicit_defaults(self) -> list[ImplicitDefault]:
        """Return the sizes that Accelerate takes because the file leaves them out."""
        return []


class PlainBackend(Backend):
    """Plain data parallelism, where only the micro-batch can be tuned."""

    @classmethod
    def choices(cls, job: AccelerateJob, names: set[str]) -> Axes:
        return {}

    def changes(self, params: Mapping[str, Value]) -> dict[str, Any]:
        return {}


class FsdpBackend(Backend):
    """FSDP version 2: whether weights are gathered once or twice a step, and whether activations are kept."""

    default_names = ("reshard", "checkpointing", "mbs")
    more_names = ("offload",)
    wrapper = "FSDPModule"
    framework = "fsdp"

    @classmethod
    def choices(cls, job: AccelerateJob, names: set[str]) -> Axes:
        own = job.settings
        reshard = own.get("fsdp_reshard_after_forward") is None or own.flag("fsdp_reshard_after_forward")
        axes: Axes = {
            "reshard": _own_first(reshard),
            "checkpointing": _own_first(own.flag("fsdp_activation_checkpointing")),
        }
        if "offload" in names:
            axes["offload"] = _own_first(own.flag("fsdp_offload_params"))
        return axes

    def changes(self, params: Mapping[str, Value]) -> dict[str, Any]:
        changes: dict[str, Any] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": bool(params["reshard"]),
            "fsdp_activation_checkpointing": bool(params["checkpointing"]),
        }
        if "offload" in params:
            changes["fsdp_offload_params"] = bool(params["offload"])
        if not params["checkpointing"]:
            changes["fsdp_activation_checkpointing_offload"] = None  # refused without checkpointing
        return changes | fsdp_changes(self.job, self.levers_of(params))

    def settings(self, params: Mapping[str, Value]) -> dict[str, Value]:
        offload: dict[str, Value] = {"offload_params": bool(params["offload"])} if "offload" in params else {}
        return {
            "fsdp_version": 2,
            "reshard_after_forward": bool(params["reshard"]),
            "activation_checkpointing": bool(params["checkpointing"]),
            **offload,
            **fsdp_reported(self.job, self.levers_of(params)),
        }

    def offered_levers(
        self, choice: LeverChoice, params: Mapping[str, Value], subject: PlanSubject | None, release: Release | None
    ) -> list[Lever]:
        at = FsdpSituation(job=self.job, params=dict(params), layout=self.layout(params), subject=subject)
        return choice.offered([each for each in FSDP_LEVERS if each.name not in self.axes and each.is_for(at)], at)

    def zero_stage(self, params: Mapping[str, Value]) -> int:
        return 3 if params["reshard"] else 2


class DeepSpeedBackend(Backend):
    """The DeepSpeed backend."""

    default_names = ("stage", *OFFLOADS, "mbs")
    wrapper = "DeepSpeedEngine"
    framework = "deepspeed"

    @classmethod
    def choices(cls, job: AccelerateJob, names: set[str]) -> Axes:
        stage = job.ds_config.get(STAGE) if job.ds_config else job.settings.get("zero_stage")
        own = stage if type(stage) is int and stage in STAGES else DEFAULT_STAGE
        axes: Axes = {"stage": (own, *(each for each in STAGES if each != own))}
        for name in OFFLOADS:
            device = _own_device(job, name)
            axes[name] = (device, *(choice for choice in (OFF, CPU) if choice != device))
        return axes

    def explain(self, params: Mapping[str, Value]) -> str | None:
        stage = int(params["stage"])
        for name in OFFLOADS:
            if params[name] != OFF and not AXES[name].matters(stage):
                return f"{name} needs stage {AXES[name].first_stage} or higher, but the stage is {stage}"
        return super().explain(params)

    def changes(self, params: Mapping[str, Value]) -> dict[str, Any]:
        stage = int(params["stage"])
        own = self.job.settings
        third: dict[str, Any] = {
            key: own.get(key) if stage == 3 or own.get(key) is None else False
            for key in ("zero3_init_flag", "zero3_save_16bit_model")
        }
        if self.has_json(params):
            return {**third, **dict.fromkeys(FIELDS_OF_THE_JSON)}
        return {
            **third,
            "zero_stage": stage,
            "gradient_accumulation_steps": self.accumulation(params),
            "gradient_clipping": own.get("gradient_clipping"),
            "offload_optimizer_device": params["offload_optimizer"],
            "offload_param_device": params["offload_param"],
        }

    def has_json(self, params: Mapping[str, Value]) -> bool:
        """Return whether a trial has a JSON: Accelerate's own file has no keys for levers."""
        return self.job.ds_config is not None or bool(self.levers_of(params))

    def config_at(self, params: Mapping[str, Value]) -> DsConfig:
        """Return a point's configuration of DeepSpeed: from the job's JSON, or as Accelerate itself makes it."""
        own = self.job.ds_config or accelerates_json(self.job.settings)
        changes: dict[Keys, Any] = {STAGE: int(params["stage"]), ACCUMULATION: self.accumulation(params)}
        for name in OFFLOADS:
            section = own.get(AXES[name].keys)
            device = params[name]
            kept = section if isinstance(section, dict) else {"pin_memory": True}
            if device == CPU:
                kept = {key: value for key, value in kept.items() if key != "nvme_path"}
            changes[AXES[name].keys] = None if device == OFF else {**kept, "device": device}
        # Accelerate fills what is "auto" from the dataloader.
        for keys, size in {MICRO_BATCH: self.micro_batch(params), BATCH: self.global_batch}.items():
            if own.get(keys) not in (None, AUTO):
                changes[keys] = size
        return own.having({**changes, **lever_settings(self.levers_of(params))})

    def settings(self, params: Mapping[str, Value]) -> dict[str, Value]:
        return {
            "zero_stage": int(params["stage"]),
            "offload_optimizer_device": params["offload_optimizer"],
            "offload_param_device": params["offload_param"],
            **{".".join(keys): value for keys, value in lever_settings(self.levers_of(params)).items()},
        }

    def offered_levers(
        self, choice: LeverChoice, params: Mapping[str, Value], subject: PlanSubject | None, release: Release | None
    ) -> list[Lever]:
        if "stage" in self.job.fixed:  # the script's own plugin may bring a whole configuration
            return []
        at = ZeroSituation(
            params=dict(params),
            config=self.config_at(params),
            num_ranks=self.ranks(params),
            num_nodes=self.job.num_machines,
            precision=self.job.precision,
            subject=subject if isinstance(subject, ZeroSubject) else None,
            release=release,
        )
        return choice.offered(levers_for(at), at)

    def zero_stage(self, params: Mapping[str, Value]) -> int:
        return int(params["stage"])


def _own_first(own: bool) -> tuple[bool, ...]:
    return own, not own


def _own_device(job: AccelerateJob, name: str) -> str:
    if job.ds_config is not None:
        section = job.ds_config.get(AXES[name].keys)
        device = section.get("device") if isinstance(section, dict) else None
    else:
        device = job.settings.word(f"{name}_device")
    return device if device in (CPU, "nvme") else OFF
