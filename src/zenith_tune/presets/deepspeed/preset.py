"""Training with DeepSpeed: the ZeRO stage, the micro-batch and what else its JSON file decides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.presets.arguments import chosen_axes
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.deepspeed.autotuning import INSIDE, METRICS
from zenith_tune.presets.deepspeed.command import FILE_NAME, PRESET, TRIAL_PATH, asked_tuning, written_command
from zenith_tune.presets.deepspeed.emit import (
    baseline_config,
    best_config,
    script_options,
    script_values,
    summary,
    trial_config,
)
from zenith_tune.presets.deepspeed.job import DeepSpeedArguments, read_job
from zenith_tune.presets.deepspeed.space import SEARCHABLE, DeepSpeedSpace
from zenith_tune.presets.framework_preset import FrameworkPreset
from zenith_tune.presets.levers import Lever
from zenith_tune.presets.shared.subject import LookedUp, job_model
from zenith_tune.presets.shared.training_files import path_in_training_folder
from zenith_tune.presets.shared.zero_lever_declaration import Release, ZeroSituation, logged_release
from zenith_tune.presets.shared.zero_levers import LEVERS, levers_for
from zenith_tune.registry import keywords_of
from zenith_tune.shell.placeholders import fill_placeholders
from zenith_tune.strategies.base import TuningStrategy
from zenith_tune.strategies.zero_progressive.feasibility import ActivationProfile, ZeroSubject
from zenith_tune.study.parameters import Params, Value
from zenith_tune.study.trial import Trial

RESULT_CONFIG = "ds_config_optimal.json"


@PresetRegistry.register("deepspeed")
class DeepSpeedPreset(FrameworkPreset[DeepSpeedSpace, DeepSpeedArguments]):
    """Tune the DeepSpeed configuration that a command names by --deepspeed or --deepspeed_config.

    The global batch stays what it is: accumulation follows the micro-batch. A list in the JSON is an axis, "auto" is
    left to the Trainer, and the file itself is never changed: each trial has its own. `config` is the path of the JSON
    where the command does not say it. `search` lists stage, mbs, checkpointing, and keys of the JSON such as
    overlap_comm; levers are keys of the JSON too. `metric` is throughput, latency or flops.
    """

    title, declared = PRESET, LEVERS

    @keywords_of(DeepSpeedArguments)
    def __init__(self, given: DeepSpeedArguments) -> None:
        if given.metric is not None and given.metric not in METRICS:
            raise UnknownNameError("metric", given.metric, METRICS)
        chosen_axes(given.search, SEARCHABLE)
        super().__init__(given)
        self._num_nodes = 1
        self._release: Release | None = None
        self._command, self._runs = "", dict[int, Trial]()

    def bind(self, command: str) -> None:
        self._command, self._runs = command, {}
        self._bind_space(DeepSpeedSpace.of(read_job(command, self._given), self._given.search, self._given.mbs_max))
        self._num_nodes = self.resources(command).nodes
        self._memory = LookedUp(lambda: ActivationProfile(self._looked_up()))

    def placeholder_names(self) -> set[str]:
        return {*super().placeholder_names(), "ds_config", "gas", "gbs"}

    def explain(self, params: Mapping[str, Value]) -> str | None:
        broken = self._space.explain(params)
        memory = self._memory.get()
        return broken if broken is not None or isinstance(memory, UsageError) else memory.why_hopeless(params)

    def observe(self, trial: Trial) -> None:
        self._runs[trial.number] = trial
        memory = self._memory.get()
        if not isinstance(memory, UsageError):
            memory.observe(trial)

    def read_baseline(self, log: str) -> list[str]:
        """Learn which release of DeepSpeed runs."""
        self._release = logged_release(log)
        return []

    def levers(self, command: str, params: Mapping[str, Value]) -> list[Lever]:
        job, memory = self._space.job, self._memory.get()
        at = ZeroSituation(
            params=dict(params),
            config=best_config(self._space, params),
            num_ranks=job.num_ranks,
            num_nodes=self._num_nodes,
            precision=job.precision,
            subject=None if isinstance(memory, UsageError) else memory.subject,
            release=self._release,
        )
        return self._levers.offered(levers_for(at, {axis.keys for axis in self._space.axes.values()}), at)

    def logged_as(self, params: Mapping[str, Value]) -> dict[str, Value]:
        return self._space.dumped(params)

    def decisive(self) -> tuple[str, ...]:
        return ("stage", "mbs")

    def own_point(self, command: str) -> Params | None:
        return self._space.own_point()

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        """Return `command` with the trial's own JSON, and with the script's options for the batch."""
        job = self._space.job
        return written_command(command, script_options(job), script_values(job, params))

    def files(self, params: Mapping[str, Value]) -> dict[str, str]:
        return {FILE_NAME: trial_config(self._space, params).text}

    def result_files(self, params: Mapping[str, Value]) -> dict[str, str]:
        """Return the best point's JSON, which prints no more than the user's own, and what DeepSpeed's tuner leaves."""
        job, text = self._space.job, best_config(self._space, params).text
        if job.tuning.results_dir is None:
            return {RESULT_CONFIG: text}
        place = path_in_training_folder(self._command, job.tuning.results_dir).absolute()
        of_deepspeed = {
            RESULT_CONFIG: text,
            "cmd_optimal.txt": self.result_command(self._command, params, place) + "\n",
            "summary.txt": summary(job, self._runs.values()),
        }
        return {RESULT_CONFIG: text, **{str(place / name): text for name, text in of_deepspeed.items()}}

    def result_command(self, command: str, params: Mapping[str, Value], folder: Path) -> str:
        """Return the command that trains with it, and needs no trial's folder."""
        text = self.apply_parameters(command, params).replace(TRIAL_PATH, f"{{trial_folder}}/{RESULT_CONFIG}")
        return fill_placeholders(text, {"trial_folder": str(folder)})[0]

    def asked_tuning(self, command: str) -> str:
        return asked_tuning(command)

    def default_trials(self) -> int | None:
        number: int | None = self._space.job.tuning.get("tuner_num_trials")
        return number

    def baseline_command(self, command: str) -> str:
        """Return the user's own command with a copy of its JSON, which prints what is measured."""
        job = self._space.job
        if job.is_limited:
            return written_command(command, script_options(job), script_values(job, {"mbs": job.own_micro_batch or 1}))
        return written_command(command, {}, {})

    def baseline_files(self) -> dict[str, str]:
        """Return that copy: of a list it has the first value, and no section for DeepSpeed's own tuner."""
        return {FILE_NAME: baseline_config(self._space).text}

    def label(self, params: Mapping[str, Value]) -> str:
        """Return a point in a few words; what has no choice, or no effect, goes without saying."""
        space = self._space
        words = [f"Z{params['stage']}", f"mbs{params['mbs']}"]
        if params.get("checkpointing"):
            words.append("checkpointing")
        for name, axis in space.axes.items():
            if len(axis.choices) > 1 and axis.matters(int(params["stage"])):
                words.append(f"{name}={_short(params[name])}")
        levers = space.levers_of(params)
        words += [name if value is True else f"{name}={_short(value)}" for name, value in levers.items()]
        return " ".join(words)

    def get_recommended_strategy(self) -> TuningStrategy:
        from zenith_tune.strategies.zero_progressive.strategy import ZeroProgressiveStrategy

        job = self._space.job
        return ZeroProgressiveStrategy(
            inside=INSIDE[job.tuning.get("tuner_type") or "gridsearch"],
            patience=job.tuning.get("tuner_early_stopping") or 5,
            inside_trials=job.tuning.get("tuner_num_trials") or 50,
        )

    def evaluator(self) -> TuningEvaluator:
        from zenith_tune.estimates.model_flops import flops_per_token
        from zenith_tune.presets.deepspeed.evaluator import DeepSpeedEvaluator

        job = self._space.job
        metric = self._given.metric or job.tuning.get("metric") or "throughput"
        subject = self._subject.get() if metric == "flops" else None
        per_sample = None
        if isinstance(subject, UsageError):
            raise UsageError(f"the metric flops needs the model, but {subject}")
        if subject is not None:
            per_sample = flops_per_token(subject.model, subject.job.seq_len) * subject.job.seq_len
        return DeepSpeedEvaluator(
            objective=metric,
            gbs=job.global_batch,
            n_gpus=job.num_gpus,
            flops_per_sample=per_sample,
            seq=job.seq_len,
            # A study that continues with an edited file would compare two configurations.
            contents=f"{Path(job.config.source).name} (contents {job.config.digest})",
        )

    def notes(self, command: str) -> list[str]:
        job = self._space.job
        notes = [
            f"{job.config.source}: global batch {job.global_batch} on {job.num_ranks} data-parallel ranks, "
            f"{job.precision}; each trial has its own copy of the file"
        ]
        notes += job.tuning.notes()
        if job.is_limited:
            limited = f"the global batch is {job.global_batch}, not {job.stated_batch}"
            notes.append(f"{limited}, within the section's limits: your own command runs with it too")
        subject = self._subject.get()
        if isinstance(subject, UsageError):
            notes.append(f"memory is not predicted before a trial: {subject}")
        return [*notes, *self._lever_notes(command)]

    def _looked_up(self) -> ZeroSubject:
        job = self._space.job
        planned = self._planned_job(
            job_model(job.model), "deepspeed", num_gpus=job.num_gpus, seq_len=job.seq_len, precision=job.precision
        )
        return ZeroSubject(
            model=planned.model,
            cluster=planned.cluster,
            job=planned.job,
            config=job.config,
            num_ranks=job.num_ranks,
            model_ranks=job.num_gpus // job.num_ranks,
            recomputes=job.recomputes,
        )


def _short(value: Value) -> str:
    """Write millions as such."""
    is_round = type(value) is int and value >= 10**6 and not value % 10**6
    return f"{int(value) // 10**6}M" if is_round else str(value)
