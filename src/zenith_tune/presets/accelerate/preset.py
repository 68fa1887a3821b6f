"""Training through Accelerate: what its configuration file decides, for Megatron-LM, DeepSpeed, FSDP and plain jobs."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from zenith_tune.describe.deepspeed_config import DsConfig
from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.evaluators.hooked_run import HookedRun, RunAsked
from zenith_tune.presets.accelerate.emit import (
    DS_FILE,
    DS_PATH,
    HOOK_FILES,
    ds_file,
    point_label,
    settings_of,
    trial_command,
)
from zenith_tune.presets.accelerate.job import AccelerateArguments, AccelerateJob, read_job
from zenith_tune.presets.accelerate.levers import FSDP_LEVERS
from zenith_tune.presets.accelerate.live import live_job, live_notes
from zenith_tune.presets.accelerate.megatron import MegatronBackend, tensor_island
from zenith_tune.presets.accelerate.space import Backend, DeepSpeedBackend, FsdpBackend, PlainBackend
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.framework_preset import FrameworkPreset
from zenith_tune.presets.levers import Declared, Lever
from zenith_tune.presets.parts import ImplicitDefault
from zenith_tune.presets.shared.accelerate_launch import (
    DEEPSPEED_TYPE,
    FILE_NAME,
    FSDP_TYPE,
    MEGATRON_LM,
    PLAIN_TYPE,
    PRESET,
    TRIAL_PATH,
)
from zenith_tune.presets.shared.accelerate_settings import CHECKED_VERSION
from zenith_tune.presets.shared.live_model import HINT as MODEL_HINT
from zenith_tune.presets.shared.live_model import LiveModel, model_notes
from zenith_tune.presets.shared.subject import LookedUp, job_model
from zenith_tune.presets.shared.trial_hook import watched
from zenith_tune.presets.shared.zero_lever_declaration import Release, logged_release
from zenith_tune.presets.shared.zero_levers import LEVERS
from zenith_tune.registry import keywords_of
from zenith_tune.shell.placeholders import fill_placeholders
from zenith_tune.strategies.base import TuningStrategy
from zenith_tune.strategies.zero_progressive.feasibility import ActivationProfile, ZeroSubject
from zenith_tune.study.parameters import Params, Value
from zenith_tune.study.trial import Trial


def what_was_read(backend: Backend) -> str:
    """Return the job in a few words, and what stays of it."""
    job = backend.job
    batch = f"global batch {backend.global_batch}" if backend.own_micro_batch else "the batch"
    return (
        f"{job.settings.source}: {job.settings.get('distributed_type')} on {job.num_gpus} processes; {batch} stays, "
        f"and each trial has a file of its own, in the keys of Accelerate {CHECKED_VERSION}"
    )


def traps(backend: Backend) -> list[str]:
    """Return what the user's own file does not do as one may think, one line each."""
    job, notes = backend.job, []
    if job.settings.unread:
        names = ", ".join(job.settings.unread)
        notes.append(f"Accelerate reads no key {names}, so it has no effect and is left out: correct its name")
    if backend.own_micro_batch is None:
        hint = "give --args mbs_option=--batch_size"
        notes.append(f"the dataloader's batch size is not known: it stays as it is, and speed is in steps/s; {hint}")
    return [*notes, *_backend_notes(backend)]


def _backend_notes(backend: Backend) -> list[str]:
    own = backend.job.settings
    if isinstance(backend, FsdpBackend) and own.get("fsdp_auto_wrap_policy") is None:
        return ["without fsdp_auto_wrap_policy the whole model is one unit: nothing of it is freed between layers"]
    if not isinstance(backend, MegatronBackend):
        return []
    notes = []
    if own.get("megatron_lm_context_parallel_size") is None:
        notes.append(
            "your file leaves megatron_lm_context_parallel_size out, which Accelerate takes for 2: trials say 1"
        )
    if own.flag("megatron_lm_recompute_activations"):
        notes.append("megatron_lm_recompute_activations has no effect in Accelerate: trials say recompute_granularity")
    if len(backend.axes["cp"]) > 1 or backend.axes["cp"][0] != 1:
        notes.append("with cp above 1 Accelerate feeds Megatron too few micro-batches, unless Megatron reads the data")
    if still := [name for name in ("cp", "ep") if len(backend.axes[name]) == 1]:
        notes.append(_still_note(still))
    if "selective" not in backend.axes["recompute"]:
        hint = "a script that passes other_megatron_args can, by --args recompute_option=--recompute"
        notes.append(f"Accelerate's file cannot ask for selective recomputation: {hint}")
    return notes


def _still_note(still: list[str]) -> str:
    reasons = {
        "cp": "cp, with which Accelerate feeds Megatron too few micro-batches unless Megatron reads the data",
        "ep": "ep, which is for a mixture of experts that --model NAME describes",
    }
    what = "; and ".join(reasons[name] for name in still)
    return f"not searched: {what}; --args search=default+{'+'.join(still)} would"


BACKENDS: dict[str, type[Backend]] = {
    MEGATRON_LM: MegatronBackend,
    DEEPSPEED_TYPE: DeepSpeedBackend,
    FSDP_TYPE: FsdpBackend,
    PLAIN_TYPE: PlainBackend,
}
PLUGIN_WRAPPERS = (MegatronBackend.wrapper, DeepSpeedBackend.wrapper, FsdpBackend.wrapper)
"""What a script may wrap its model in where the file has no backend."""
ALL_LEVERS: Declared = (*LEVERS, *FSDP_LEVERS)
DECISIVE = ("tp", "pp", "stage", "checkpointing", "mbs")
RESULT_CONFIG = "accelerate_config_optimal.yaml"
RESULT_DS_CONFIG = "ds_config_optimal.json"


@PresetRegistry.register("accelerate")
class AcceleratePreset(FrameworkPreset[Backend, AccelerateArguments]):
    """Tune the configuration of an `accelerate launch` command: its file, and the options that it has in place of one.

    The global batch stays what it is: micro-batches follow the dataloader's batch size, which is the script's option
    `mbs_option`. Each trial has a file of its own and a hook that prints what the job runs as; a job that ran as
    something else has failed, unless `check` is false.
    """

    title, declared = PRESET, ALL_LEVERS

    @keywords_of(AccelerateArguments)
    def __init__(self, given: AccelerateArguments) -> None:
        super().__init__(given)
        self._release: Release | None = None
        self._samples: int | None = None
        """The samples of an update that the loader of the user's own command gave."""
        self._model: LookedUp[ModelSpec] | None = None

    def bind(self, command: str) -> None:
        job = read_job(command, self._given)
        self._samples = None
        self._model = LookedUp(lambda: job_model(job.model))
        backend = self._bind_job(job)
        if job.backend != PLAIN_TYPE:  # of a plain one the script may have a plugin, which only a run shows
            backend.refuse_without_choice()

    def _bind_job(self, job: AccelerateJob) -> Backend:
        assert self._model is not None, "looked up with the job"
        model = self._model.get() if job.backend == MEGATRON_LM else None
        known = model if isinstance(model, ModelSpec) else None
        self._profile: ActivationProfile | None = None
        self._island = functools.cache(
            lambda: tensor_island(job, self._given.cluster, self._given.topology, self._subject.get())
        )
        return self._bind_space(BACKENDS[job.backend].of(job, self._given.search, self._given.mbs_max, known))

    def read_baseline(self, log: str) -> list[str]:
        """Learn what the script sets in Python: its plugin, what it gives to it, the accumulation, and its model."""
        before, run = self._space.job, HookedRun.read(log)
        self._release = logged_release(log)
        self._samples = run.samples
        planned = self._subject.get()
        after = live_job(before, run)
        model = None if self._given.model else LiveModel.of(run.model)
        if model is not None:
            self._model = LookedUp(model.spec)
        if after != before or model is not None:
            self._bind_job(after)
        self._space.refuse_without_choice()
        return [*live_notes(before, after), *model_notes(model, planned, self._subject.get())]

    def placeholder_names(self) -> set[str]:
        return {*super().placeholder_names(), "gas", "gbs"}

    def explain(self, params: Mapping[str, Value]) -> str | None:
        broken = self._space.explain(params)
        subject = self._subject.get()
        if broken is None and isinstance(subject, ZeroSubject) and "mbs" in params:
            return self._memory(subject).why_hopeless(params)
        if broken is None and isinstance(self._space, MegatronBackend):
            return self._explain_megatron(self._space, params, subject)
        return broken

    def observe(self, trial: Trial) -> None:
        subject = self._subject.get()
        if isinstance(subject, ZeroSubject) and "mbs" in trial.params:
            self._memory(subject).observe(trial)

    def _memory(self, subject: ZeroSubject) -> ActivationProfile:
        if self._profile is None:
            self._profile = ActivationProfile(subject)
        return self._profile

    def _explain_megatron(
        self, backend: MegatronBackend, params: Mapping[str, Value], subject: PlanSubject | UsageError
    ) -> str | None:
        of_model = backend.explain_model(params, subject) if isinstance(subject, PlanSubject) else None
        if of_model is not None or int(params["tp"]) == 1 or (island := self._island()) is None:
            return of_model
        return island.explain(int(params["tp"]), int(backend.axes["tp"][0]))

    def decisive(self) -> tuple[str, ...]:
        # What differs from what was asked is found by the evaluator, from what the trial's hook says of the live job.
        return tuple(name for name in DECISIVE if name in self._space.axes)

    def levers(self, command: str, params: Mapping[str, Value]) -> list[Lever]:
        return self._space.offered_levers(self._levers, params, self._known_subject, self._release)

    def implicit_defaults(self, command: str) -> list[ImplicitDefault]:
        return self._space.implicit_defaults()

    def own_point(self, command: str) -> Params | None:
        return self._space.own_point()

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        """Return `command` with the trial's own file, the hook, and the script's options for the batch."""
        return watched(trial_command(self._space, command, params))

    def files(self, params: Mapping[str, Value]) -> dict[str, str]:
        files = {FILE_NAME: settings_of(self._space, params).text, **HOOK_FILES}
        return files | ds_file(self._space, params)

    def result_files(self, params: Mapping[str, Value]) -> dict[str, str]:
        files = {RESULT_CONFIG: settings_of(self._space, params).text}
        left = ds_file(self._space, params)
        return files | ({RESULT_DS_CONFIG: left[DS_FILE]} if left else {})

    def result_command(self, command: str, params: Mapping[str, Value], folder: Path) -> str:
        """Return the command that trains with it, without the hook and without any trial's folder."""
        text = trial_command(self._space, command, params)
        for path, name in {TRIAL_PATH: RESULT_CONFIG, DS_PATH: RESULT_DS_CONFIG}.items():
            text = text.replace(path, f"{{trial_folder}}/{name}")
        return fill_placeholders(text, {"trial_folder": str(folder)})[0]

    def baseline_command(self, command: str) -> str:
        return watched(command)

    def baseline_files(self) -> dict[str, str]:
        return HOOK_FILES

    def label(self, params: Mapping[str, Value]) -> str:
        return point_label(self._space, params)

    def get_recommended_strategy(self) -> TuningStrategy:
        from zenith_tune.strategies.zero_progressive.strategy import ZeroProgressiveStrategy

        if isinstance(self._space, DeepSpeedBackend) and "mbs" in self._space.axes:
            return ZeroProgressiveStrategy()
        return super().get_recommended_strategy()

    def evaluator(self) -> TuningEvaluator:
        from zenith_tune.presets.accelerate.evaluator import AccelerateEvaluator

        backend = self._space
        gbs = backend.global_batch if backend.own_micro_batch else None
        found = AccelerateEvaluator(
            gbs=gbs, n_gpus=backend.job.num_gpus, wrapper=backend.wrapper, check=self._given.check
        )
        found.asked = self.asked
        return found

    def asked(self, params: Mapping[str, Value]) -> RunAsked:
        """Return what a point's job must say of itself; of the user's own command only the world and the wrapper."""
        backend, job = self._space, self._space.job
        is_alone = job.num_gpus == 1 and isinstance(backend, PlainBackend)
        wrapper = None if is_alone else backend.wrapper
        batch = backend.global_batch if backend.own_micro_batch else None
        if not params:
            return RunAsked(
                num_processes=job.num_gpus,
                wrapper=wrapper,
                other_wrappers=PLUGIN_WRAPPERS if isinstance(backend, PlainBackend) else (),
                batch=batch,
                accumulation=job.own_accumulation,
            )
        is_known = self._samples is not None or job.given_batch is not None or not job.sets_accumulation_by_variable
        return RunAsked(
            num_processes=job.num_gpus,
            wrapper=wrapper,
            batch=batch,
            accumulation=backend.passes(params),
            samples=self._samples,
            script_accumulation=None if is_known or "mbs" not in params else job.own_accumulation,
            passes=backend.passes(params),
            micro_batch=int(params["mbs"]) if "mbs" in params else None,
            settings=backend.settings(params),
        )

    def warnings(self, command: str) -> list[str]:
        return traps(self._space)

    def notes(self, command: str) -> list[str]:
        notes = [what_was_read(self._space), *self._plan_notes()]
        island = self._island() if isinstance(self._space, MegatronBackend) else None
        notes += [] if island is None else [island.reason]
        return [*notes, *self._lever_notes(command)]

    def _looked_up(self) -> PlanSubject:
        assert self._model is not None, "bound with the backend"
        backend, job, model = self._space, self._space.job, self._model.required()
        if model.traced is not None and isinstance(backend, MegatronBackend):
            raise UsageError(f"{model.name} has no config, by which Megatron-LM would split it", hint=MODEL_HINT)
        if backend.own_micro_batch is None:
            hint = "give --args mbs_option=--batch_size, or gbs=256"
            raise UsageError("the dataloader's batch size is not known", hint=hint)
        planned = self._planned_job(
            model,
            backend.framework,
            num_gpus=job.num_gpus,
            seq_len=job.seq_len,
            precision=job.precision,
            gpu=job.live_gpu,
        )
        if not isinstance(backend, DeepSpeedBackend):
            return planned
        return ZeroSubject(
            model=model,
            cluster=planned.cluster,
            job=planned.job,
            config=job.ds_config or DsConfig(values={}, source=job.settings.source),
            num_ranks=backend.own_ranks,
        )
