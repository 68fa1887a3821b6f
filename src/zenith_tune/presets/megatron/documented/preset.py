"""Fine-tuning and pre-training with Megatron-LM and ms-swift on several GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zenith_tune.describe.job_spec import JobSpec, PlanSubject
from zenith_tune.describe.megatron.version import MegatronVersion, megatron_version
from zenith_tune.describe.model_catalog import ModelConfig, read_model_config
from zenith_tune.errors import ModelConfigError, UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.rules import JobFacts
from zenith_tune.presets.arguments import FrameworkArguments, refuse_sizes
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.megatron.command import find_pretrain_run, without_layout
from zenith_tune.presets.megatron.documented.command import (
    MegatronCommand,
    find_swift_run,
    runs_ms_swift,
    runs_pretrain_script,
    swift_resources,
)
from zenith_tune.presets.megatron.documented.dialect import (
    INTERLEAVING,
    describes_dense_model,
    edit_command,
    interleaving,
    log_option,
    own_values,
    says_false,
    swift_version,
    switched_on,
    with_underscores,
)
from zenith_tune.presets.megatron.documented.space import SIZES, MegatronSpace
from zenith_tune.presets.megatron.evaluator import SEQUENCE_OPTIONS, sequence_in_command
from zenith_tune.presets.megatron.options import (
    CUSTOM_SPLITS,
    OPTIONS,
    RECOMPUTE,
    SEQUENCE_PARALLEL,
    Wanted,
    dumped_sizes,
)
from zenith_tune.presets.megatron.preset import MegatronFamily
from zenith_tune.presets.shared.launched_gpus import launched_resources
from zenith_tune.presets.shared.subject import job_cluster, job_model
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.placeholders import fill_placeholders, placeholder_names
from zenith_tune.strategies.base import TuningStrategy
from zenith_tune.study.parameters import Params, Value
from zenith_tune.study.resources import Resources
from zenith_tune.units import whole

if TYPE_CHECKING:
    from zenith_tune.layouts.layout_batch import LayoutBatch, PointTable

_, *ONLY_WITH_FULL, SELECTIVE_FLAG = RECOMPUTE
"""The last is Megatron's short form, which overrides --recompute-granularity."""
LABELS = {
    **{name: name.upper() + "{}" for name in (*SIZES, "vp")},
    "mbs": "mbs{}",
    "recompute_granularity": "{}",
    "recompute_method": "{}",
    "recompute_num_layers": "layers{}",
    "vit_gradient_checkpointing": "vit off",
}
UNSAID: Mapping[str, Value] = {
    **dict.fromkeys((*SIZES, "vp"), 1),
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
    "vit_gradient_checkpointing": "true",
}


@PresetRegistry.register("megatron")
class MegatronPreset(MegatronFamily[MegatronSpace, FrameworkArguments]):
    """Tune parallel sizes, the micro-batch and recomputation; GPUs and the global batch stay as they are.

    `model` is a Hugging Face id or a local path, from whose config.json the number of layers and of query groups is
    read; explicit `num_layers` and `num_query_groups` win. `folding` uses the rules of Megatron Core and ms-swift,
    which lay the experts over the same ranks as the dense layers, in place of the documented ones. `cluster` names the
    GPUs, and `seq` the sequence length where the command does not say it: with `model` they are what a plan needs.
    `vp_max` above 1, with `folding`, searches interleaved pipelines of up to so many model chunks per rank as well.

    >>> preset = MegatronPreset(n_gpus=8, gbs=16, num_query_groups=4)
    >>> preset.get_search_space()["tp"]
    CategoricalParameter(choices=(1, 2, 4, 8))
    """

    title = "preset megatron"

    def __init__(
        self,
        *,
        n_gpus: int,
        mbs_max: int = 8,
        gbs: int,
        model: str | None = None,
        num_layers: int | None = None,
        num_query_groups: int | None = None,
        folding: bool = False,
        cluster: str | None = None,
        seq: int | None = None,
        vp_max: int = 1,
    ) -> None:
        super().__init__(FrameworkArguments(n_gpus=n_gpus, model=model, cluster=cluster, mbs_max=mbs_max))
        refuse_sizes(gbs=gbs, seq=seq, vp_max=vp_max, num_layers=num_layers, num_query_groups=num_query_groups)
        if vp_max > 1 and not folding:
            raise UsageError(f"vp_max above 1 needs folding=true, but got vp_max={vp_max} without", hint="give both")
        self.n_gpus, self.gbs, self.model, self.seq = n_gpus, gbs, model, seq
        self.vp_max, self.folding = vp_max, folding
        space = MegatronSpace(
            n_gpus=n_gpus,
            gbs=gbs,
            mbs_max=mbs_max,
            vp_max=vp_max,
            facts=JobFacts(num_layers=num_layers, num_query_groups=num_query_groups),
            is_vision_language=False,
            folding=folding,
            selective_alone=folding,
        )
        self._bind_space(space)
        self._command = MegatronCommand("")
        self.model_config: ModelConfig | None = None
        self._unread_model = ""
        """The reason why the shape of the command's own model is not known."""
        self._version: MegatronVersion | None = None
        """Version of the Megatron Core that the command uses; None where it is not found."""
        if model is not None:
            self._keep_shape_of(model)

    def _keep_shape_of(self, model: str) -> None:
        """Rule out what does not go with the shape of a model, as far as the user does not say it."""
        self.model_config = config = read_model_config(model)
        given = self._space.facts
        facts = JobFacts(
            num_layers=given.num_layers or config.num_layers,
            num_query_groups=given.num_query_groups or config.num_query_groups,
            num_attention_heads=config.num_attention_heads,
            num_experts=config.num_experts or 0,
        )
        self._bind_space(replace(self._space, facts=facts, is_vision_language=config.is_vision_language))

    def bind(self, command: str) -> None:
        self._command = run = MegatronCommand(command)
        swift = find_swift_run(command)
        if self.model is None and swift is not None:
            try:
                if named := ParsedCommand.from_argv([swift.program, *swift.arguments]).get("--model"):
                    self._keep_shape_of(named)
            except ModelConfigError as error:
                self._unread_model = str(error)
        if (program := swift or find_pretrain_run(command)) is not None:
            self._version = megatron_version(program)
        if self._version is not None:
            self._bind_space(replace(self._space, selective_alone=True))
        if self._space.facts.num_experts is None and describes_dense_model(command):
            self._bind_space(replace(self._space, facts=replace(self._space.facts, num_experts=0)))
        if filled := placeholder_names(command, self.get_search_space()):
            own = {**UNSAID, "mbs": 1, "recompute_granularity": "full", **own_values(run.full)}
            fixed = {name: own[name] for name in self.get_search_space() if name not in filled}
            self._bind_space(replace(self._space, fixed=fixed))
        if self.vp_max == 1:
            return
        if run.is_swift and swift_version(run.full).major == 3 and self._space.facts.num_layers is None:
            problem = (
                "vp_max above 1 with ms-swift 3 needs the number of layers, because it takes the layers of a chunk"
            )
            raise UsageError(problem, hint="give model=NAME or num_layers=48")
        # A command with no place for the option is refused now, not at the first trial that sets it.
        self.apply_parameters(command, {name: axis.grid(1)[-1] for name, axis in self.get_search_space().items()})

    def logged_as(self, params: Mapping[str, Value]) -> dict[str, Value]:
        is_full = params.get("recompute_granularity") == "full"
        names = ("recompute_granularity", *(("recompute_method", "recompute_num_layers") if is_full else ()))
        return dumped_sizes(params) | {name: params[name] for name in names if name in params}

    def planned_layout(self, command: str, params: Mapping[str, Value]) -> Layout:
        return replace(self._space.layout(params), **self._planned(command, tp=int(params["tp"]), ep=int(params["ep"])))

    def _planned_layouts(self, command: str, table: PointTable) -> LayoutBatch:
        return self._space.layouts(table, **self._planned(command, tp=table["tp"], ep=table["ep"]))

    def _planned(self, command: str, *, tp: Any, ep: Any) -> dict[str, Any]:
        """Return how the optimizer is sharded, and where trials have sequence parallelism."""
        run = self._run(command)
        is_sharded, sp = switched_on(run.fixed)
        adds = self._adds_sequence_parallel(run, tp=tp, ep=ep)
        return {"zero": int(is_sharded), "sequence_parallel": (tp > 1) & (adds | sp)}

    def subject(self, command: str) -> PlanSubject:
        full = self._run(command).full
        return megatron_subject(full, model=self.model, cluster=self._given.cluster, n_gpus=self.n_gpus, seq=self.seq)

    def _looked_up(self) -> PlanSubject:
        return self.subject(self._command.text)

    def own_point(self, command: str) -> Params | None:
        run, space = self._run(command), self.get_search_space()
        own = own_values(run.full)
        if own.get("gbs") != self.gbs or placeholder_names(command, self.placeholder_names()):
            return None
        if own.get("recompute_granularity") == "selective" and self._space.selective_alone:
            own |= {"recompute_method": "uniform", "recompute_num_layers": 1}  # as the one name of it has them
        if self.model_config is not None and not self.model_config.is_vision_language:
            own.setdefault("vit_gradient_checkpointing", "true")
        line, has_layout_variable = ParsedCommand.of(run.full), self._command.has_layout_variable
        if not any(map(line.has, INTERLEAVING)):
            own["vp"] = 1
        elif has_layout_variable and "vp" not in space:
            return None  # trials are without
        if has_layout_variable and any(map(line.has, CUSTOM_SPLITS)):
            return None
        if any(name not in own or not parameter.contains(own[name]) for name, parameter in space.items()):
            return None
        point = {name: own[name] for name in space}
        adds_sp = self._adds_sequence_parallel(run, tp=point["tp"], ep=point["ep"])
        return None if adds_sp and not switched_on(run.full)[1] else point

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        """Return `command` with the options set, or with its placeholders such as {tp}, {gbs} and {n_gpus} filled."""
        values = {**params, "gbs": self.gbs, "n_gpus": self.n_gpus}
        if placeholder_names(command, params):  # the user's own template, which may have no place for other options
            return fill_placeholders(command, values)[0]
        run = self._run(command)
        wanted: Wanted = {}
        if self._space.selective_alone and params.get("recompute_granularity") == "selective":
            wanted |= dict.fromkeys(ONLY_WITH_FULL)
        if self.folding:
            wanted[SELECTIVE_FLAG] = None
            if self.vp_max > 1:
                wanted |= interleaving(self.layout(params), run.full, self._space.facts.num_layers)
            if runs_pretrain_script(run.fixed):
                wanted[OPTIONS["vit_gradient_checkpointing"]] = None
            if self._adds_sequence_parallel(run, tp=int(params["tp"]), ep=int(params["ep"])):
                wanted[SEQUENCE_PARALLEL] = "true" if run.is_swift else True
        edited = edit_command(command, values, wanted)
        if self.folding and run.is_swift:
            edited = with_underscores(edited, command, (*OPTIONS.values(), *wanted))
        return without_layout(edited) if self._command.has_layout_variable else edited

    def _run(self, command: str) -> MegatronCommand:
        return self._command if command == self._command.text else MegatronCommand(command)

    def trial_command(self, command: str) -> str:
        """Return the command with a line of the log for every iteration; a template may have no place for options."""
        run = self._run(command)
        option = log_option(run.full)
        is_template = bool(placeholder_names(self._command.text, self.placeholder_names()))
        if option is None or (is_template and not ParsedCommand.of(command).has(option)):
            return command
        edited = ParsedCommand.of(command).set({option: 1}).text
        return with_underscores(edited, command, [option]) if run.is_swift else edited

    def _adds_sequence_parallel(self, run: MegatronCommand, *, tp: Any, ep: Any) -> Any:
        """Return whether a trial gets sequence parallelism, which goes with tensor parallelism alone.

        Experts refuse to train without it. Everywhere else it only saves memory; ms-swift has norms that support it, so
        it is set unless the command says no. Megatron-LM's own scripts may run without such norms: there it stays as it
        is in the command.
        """
        if not self.folding:
            return False
        always = self._space.facts.num_experts or (run.is_swift and not says_false(run.fixed, SEQUENCE_PARALLEL))
        return (tp > 1) & ((ep > 1) | bool(always))

    def resources(self, command: str) -> Resources:
        found, run = launched_resources(command, self.n_gpus), find_swift_run(command)
        return found if run is None or found.nodes > 1 else found.given(nodes=swift_resources(run).nodes)

    def label(self, params: Mapping[str, Value]) -> str:
        """Return a point in a few words; what is 1, or as it is by default, goes without saying."""
        said = {name: params[name] for name in LABELS if name in params and params[name] != UNSAID.get(name)}
        return " ".join(LABELS[name].format(value) for name, value in said.items())

    def get_recommended_strategy(self) -> TuningStrategy:
        if self.model is not None and self._given.cluster is not None:
            from zenith_tune.strategies.guided.strategy import GuidedStrategy

            return GuidedStrategy()
        if self._space.fixed:
            from zenith_tune.strategies.grid import GridStrategy

            return GridStrategy()
        from zenith_tune.strategies.megatron_heuristic import MegatronHeuristicStrategy

        return MegatronHeuristicStrategy(n_gpus=self.n_gpus)

    def evaluator(self) -> TuningEvaluator:
        from zenith_tune.presets.megatron.evaluator import MegatronEvaluator

        return MegatronEvaluator(gbs=self.gbs, seq=self.seq or sequence_in_command(self._command.full))

    def warnings(self, command: str) -> list[str]:
        full, notes = self._run(command).full, []
        line = ParsedCommand.of(full)
        said = line.get("--global-batch-size") or ""
        if (batch := whole(said)) is not None and batch != self.gbs:
            notes.append(
                f"your own command has a global batch of {said} and the trials of {self.gbs}: the gain compares both"
            )
        is_packed = (line.get("--packing") or "").lower() == "true"
        if runs_ms_swift(full) and not is_packed and sequence_in_command(full) is not None:
            notes.append(
                "tokens/s takes every sample for --max_length tokens, of which it has fewer without --packing true"
            )
        if self._unread_model:
            notes.append(
                f"the shape of your command's model is not known, and rules no layout out: {self._unread_model}"
            )
        if self.folding:
            return notes
        if self._version is None and (runs_ms_swift(full) or runs_pretrain_script(full)):
            notes.append(
                "no Megatron found for your command: trials with selective recomputation have a method and a number of "
                "layers, as documented, which Megatron Core refuses: folding=true leaves both out"
            )
        if runs_pretrain_script(full):
            notes.append(
                "Megatron-LM's own scripts refuse --vit-gradient-checkpointing, which the documented rules set: "
                "folding=true leaves it out"
            )
        return notes

    def notes(self, command: str) -> list[str]:
        full, notes = self._run(command).full, []
        if self._space.facts.num_experts == 0 and self.n_gpus > 1:
            who = self.model_config.source if self.model_config is not None else "the model of your command"
            notes.append(f"{who} has no experts: no expert parallelism is tried (ep and etp stay 1)")
        if self.vp_max > 1 and runs_ms_swift(full):
            version = swift_version(full)
            notes.append(f"vp is written for ms-swift {version.major}: {version.source}")
        if self.folding:
            return notes
        if self.model_config is not None and self.model_config.num_experts is not None:
            notes.append(
                f"{self.model_config.source} is a mixture of {self.model_config.num_experts} experts: documented is "
                "DP = n_gpus/(tp*pp*cp*ep*etp), Megatron DP = n_gpus/(tp*pp*cp); folding=true uses it"
            )
        if self._version is not None:
            notes.append(
                f"Megatron {self._version.name} refuses selective recomputation with a method or a number of layers, "
                "which the documented rules set: trials are without"
            )
        return notes


def megatron_subject(
    command: str, *, model: str | None, cluster: str | None, n_gpus: int, seq: int | None
) -> PlanSubject:
    """Return model, cluster and job, or raise UsageError with what is missing and how to give it."""
    # Not at the top: the catalogs are loaded only where a plan is made.
    from zenith_tune.describe.framework_spec import load_framework

    shape, seq_len = job_model(model), seq or sequence_in_command(command)
    if seq_len is None:
        raise UsageError(f"the command has neither {' nor '.join(SEQUENCE_OPTIONS)}", hint="give --seq 4096")
    job = JobSpec(seq_len=seq_len, framework=load_framework("megatron"))
    return PlanSubject(model=shape, cluster=job_cluster(cluster, n_gpus), job=job)
