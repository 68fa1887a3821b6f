"""Training an encoder and a language model, each with a layout of its own: which ranks, which degrees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zenith_mimo.preset.command import EXAMPLE, megatron_run, runs_example, runs_own_script
from zenith_mimo.preset.example import read_runtime
from zenith_mimo.preset.job import PRESET, MimoArguments, MimoSpace, ReadCommand
from zenith_mimo.preset.megatron import PROGRAM as MEGATRON
from zenith_mimo.preset.megatron import read_megatron
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.megatron.options import LOG_INTERVAL
from zenith_tune.presets.parts import CompletePreset
from zenith_tune.registry import keywords_of
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.placeholders import fill_placeholders
from zenith_tune.strategies.base import TuningStrategy
from zenith_tune.study.parameters import Parameter, Params, Value
from zenith_tune.study.trial import Prediction

DERIVED = ("encoder_dp", "llm_dp", "llm_offset")
"""Placeholders that a point stands for besides its own."""


@PresetRegistry.register("mimo")
class MimoPreset(CompletePreset):
    """Search which ranks an encoder and the language model train on, and how each is split over its own.

    For examples/mimo_train.py, scripts that import zenith_mimo.command, and Megatron-LM's
    examples/mimo/pretrain_mimo.py. The plan's `top` fastest layouts
    run for real, then homogeneous ones to compare with, and every run corrects the plan. `n_gpus`, `cores`,
    `device_flops`, `memory_gib` and `cluster` give what the command does not; so do `images` (items of the samples,
    with a plus between them, or how often each number is: 0:10+1:60+4:30) and the sizes of an encoder that Megatron's
    options or a script of your own leave open.
    """

    @keywords_of(MimoArguments)
    def __init__(self, given: MimoArguments) -> None:
        self._given = given
        self._bound: MimoSpace | None = None

    def bind(self, command: str) -> None:
        space = MimoSpace(read=self._read(command), mbs_max=self._given.mbs_max)
        space.plan  # noqa: B018 - a job without any layout is refused before the study begins
        self._bound = space

    def get_search_space(self) -> dict[str, Parameter]:
        return self.space.parameters()

    def placeholder_names(self) -> set[str]:
        return {*super().placeholder_names(), *DERIVED}

    def explain(self, params: Mapping[str, Value]) -> str | None:
        return self.space.explain(params)

    def points(self) -> Iterator[Params]:
        return self.space.points()

    def own_point(self, command: str) -> Params | None:
        return self.space.own_point()

    def predicted(self, params: Mapping[str, Value]) -> Prediction:
        prediction = self.space.predict(params)
        stages = {"encoder stage": prediction.encoder_stage_s, "llm stage": prediction.language_stage_s}
        plan = "the plan of preset mimo"
        return Prediction(step_s=prediction.step_s, memory_bytes=prediction.memory_bytes, parts_s=stages, by=plan)

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        """Return `command` with the layout's options in its own dialect, or with its placeholders filled."""
        read, candidate = self.space.read, self.space.candidate(params)
        options = {
            # By its placeholder, as {llm_tp} is one.
            "mbs" if name == "--micro-batch-size" else name[2:].replace("-", "_"): (name, value)
            for name, value in read.options(candidate).items()
        }
        derived = {name: options[name][1] for name in DERIVED}
        text, filled = fill_placeholders(command, {**params, **derived})
        left = {option: value for name, (option, value) in options.items() if name not in filled}
        line = ParsedCommand.of(text).set(left)
        for switch, is_on in read.switches(candidate).items():
            if is_on != line.has(switch):
                line = line.add_flag(switch) if is_on else line.remove(switch)
        pairs = " ".join(f"{name}={value}" for name, value in read.variables(candidate).items())
        if pairs in line.text:
            return line.text
        return f"{pairs} {line.text}" if len(line.commands) == 1 else f"export {pairs}; {line.text}"

    def trial_command(self, command: str) -> str:
        """Return the command with a line of the log for every iteration, where it says how often there is one."""
        line = ParsedCommand.of(command)
        return line.set({LOG_INTERVAL: 1}).text if line.has(LOG_INTERVAL) else command

    def label(self, params: Mapping[str, Value]) -> str:
        """Return the layout in short; a point whose ranks cannot be filled by its values."""
        try:
            return self.space.candidate(params).label
        except UsageError:
            return super().label(params)

    def get_recommended_strategy(self) -> TuningStrategy:
        from zenith_mimo.preset.strategy import MimoPoints, MimoRankedStrategy

        space = self.space
        points = MimoPoints(plan=space.plan, top=self._given.top, point=space.point, candidate=space.candidate)
        return MimoRankedStrategy.of(points)

    def evaluator(self) -> TuningEvaluator:
        from zenith_tune.presets.megatron.evaluator import MegatronEvaluator

        if self._bound is None:
            return MegatronEvaluator()
        read = self._bound.read
        return MegatronEvaluator(gbs=read.job.global_batch, seq=read.seq_length or None)

    def notes(self, command: str) -> list[str]:
        plan = self.space.plan
        count = f"{len(plan.ranked)} layouts for {self.space.read.job.num_ranks} ranks planned"
        left = f", {plan.num_too_large} left out for their memory" if plan.num_too_large else ""
        batch = self.space.batch_note
        slower = f", {plan.num_slower} more are slower" if plan.num_slower else ""
        return [f"{count}{slower}{left}", *([batch] if batch else []), *self.space.read.notes]

    @property
    def space(self) -> MimoSpace:
        """What is searched, with its plan; raises UsageError before a command is bound."""
        if self._bound is None:
            raise UsageError(f"{PRESET} reads everything from the command, but has none yet: bind one first")
        return self._bound

    def _read(self, command: str) -> ReadCommand:
        if runs_example(command) or runs_own_script(command):
            return read_runtime(ParsedCommand.of(command), self._given)
        if (run := megatron_run(command)) is not None:
            return read_megatron(run, self._given)
        known = f"{EXAMPLE}, a script that imports zenith_mimo.command, or Megatron-LM's {MEGATRON}"
        problem = f"{PRESET} needs a command that runs {known}, but finds none of them"
        raise UsageError(problem, hint="write it out, or choose another --preset")
