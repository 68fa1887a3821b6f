"""Fine-tuning and pre-training with Megatron-LM and ms-swift on several GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.describe.model_catalog import ModelConfig, read_model_config
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.rules import JobFacts
from zenith_tune.presets.arguments import FrameworkArguments, refuse_sizes
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.megatron.command import without_layout
from zenith_tune.presets.megatron.documented.command import (
    find_swift_run,
    has_layout_variable,
    in_full,
    runs_ms_swift,
    runs_pretrain_script,
    swift_resources,
)
from zenith_tune.presets.megatron.documented.space import SIZES, MegatronRules, MegatronSpace
from zenith_tune.presets.megatron.documented.swift import (
    INTERLEAVING,
    batch_notes,
    interleaving,
    log_option,
    megatron_subject,
    says_false,
    swift_version,
    switched_on,
    tokens_notes,
    with_underscores,
)
from zenith_tune.presets.megatron.documented.written import describes_dense_model, edit_command, own_values
from zenith_tune.presets.megatron.evaluator import sequence_in_command
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
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.placeholders import fill_placeholders, placeholder_names
from zenith_tune.strategies.base import TuningStrategy
from zenith_tune.study.parameters import Params, Value
from zenith_tune.study.resources import Resources

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
        self.model_config = None if model is None else read_model_config(model)
        rules = _rules(self.model_config, num_layers, num_query_groups, folding=folding)
        self._bind_space(MegatronSpace(n_gpus=n_gpus, gbs=gbs, mbs_max=mbs_max, vp_max=vp_max, rules=rules))
        self.facts = rules.facts
        self._command = self._full_text = ""
        self._has_layout_variable = False

    def bind(self, command: str) -> None:
        self._command, self._full_text = command, in_full(command)
        self._has_layout_variable = has_layout_variable(command)
        if self.facts.num_experts is None and describes_dense_model(command):
            self.facts = replace(self.facts, num_experts=0)
            self._bind_space(replace(self._space, rules=replace(self._space.rules, facts=self.facts)))
        if filled := placeholder_names(command, self.get_search_space()):
            own = {**UNSAID, "mbs": 1, "recompute_granularity": "full", **own_values(self._full_text)}
            fixed = {name: own[name] for name in self.get_search_space() if name not in filled}
            self._bind_space(replace(self._space, fixed=fixed))
        if self.vp_max == 1:
            return
        if self._swift_major(command) == 3 and self.facts.num_layers is None:
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
        sharded, sp = self._planned(command, tp=int(params["tp"]), ep=int(params["ep"]))
        return self._space.layout(params, sharded=sharded, sp=sp)

    def _planned_layouts(self, command: str, table: PointTable) -> LayoutBatch:
        sharded, sp = self._planned(command, tp=table["tp"], ep=table["ep"])
        return self._space.layouts(table, sharded=sharded, sp=sp)

    def _planned(self, command: str, *, tp: Any, ep: Any) -> tuple[bool, Any]:
        """Return whether the optimizer is sharded, and where trials have sequence parallelism."""
        sharded, sp = switched_on(self._fixed(command))
        adds = self.folding and self._adds_sequence_parallel(command, tp=tp, ep=ep)
        return sharded, (tp > 1) & (adds | sp)

    def subject(self, command: str) -> PlanSubject:
        return megatron_subject(
            self._full(command), model=self.model, cluster=self._given.cluster, n_gpus=self.n_gpus, seq=self.seq
        )

    def _looked_up(self) -> PlanSubject:
        return self.subject(self._command)

    def own_point(self, command: str) -> Params | None:
        full, space = self._full(command), self.get_search_space()
        own = own_values(full)
        if own.get("gbs") != self.gbs or placeholder_names(command, self.placeholder_names()):
            return None
        if own.get("recompute_granularity") == "selective" and self.folding:
            own |= {"recompute_method": "uniform", "recompute_num_layers": 1}  # as the one name of it has them
        if self.model_config is not None and not self.model_config.is_vision_language:
            own.setdefault("vit_gradient_checkpointing", "true")
        line = ParsedCommand.of(full)
        if not any(map(line.has, INTERLEAVING)):
            own["vp"] = 1
        elif self._has_layout_variable and "vp" not in space:
            return None  # trials are without
        if self._has_layout_variable and any(map(line.has, CUSTOM_SPLITS)):
            return None
        if any(name not in own or not parameter.contains(own[name]) for name, parameter in space.items()):
            return None
        point = {name: own[name] for name in space}
        has_sp = switched_on(full)[1]
        adds_sp = self.folding and self._adds_sequence_parallel(command, tp=point["tp"], ep=point["ep"])
        return None if adds_sp and not has_sp else point

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        """Return `command` with the options set, or with its placeholders such as {tp}, {gbs} and {n_gpus} filled."""
        values = {**params, "gbs": self.gbs, "n_gpus": self.n_gpus}
        if placeholder_names(command, params):  # the user's own template, which may have no place for other options
            return fill_placeholders(command, values)[0]
        full = self._fixed(command)
        if not self.folding:
            return self._without_layout(edit_command(command, values, {}))
        is_swift, interleaved = runs_ms_swift(full), self._interleaving(command, params)
        wanted: Wanted = {SELECTIVE_FLAG: None, **interleaved}
        if params.get("recompute_granularity") == "selective":
            wanted |= dict.fromkeys(ONLY_WITH_FULL)
        if runs_pretrain_script(full):
            wanted[OPTIONS["vit_gradient_checkpointing"]] = None
        if self._adds_sequence_parallel(command, tp=int(params["tp"]), ep=int(params["ep"])):
            wanted[SEQUENCE_PARALLEL] = "true" if is_swift else True
        edited = edit_command(command, values, wanted)
        if is_swift:
            edited = with_underscores(edited, command, (*OPTIONS.values(), SEQUENCE_PARALLEL, *interleaved))
        return self._without_layout(edited)

    def _full(self, command: str) -> str:
        return self._full_text if command == self._command else in_full(command)

    def _fixed(self, command: str) -> str:
        """Return what a command runs without the layout that its script has by itself."""
        return in_full(without_layout(command)) if self._has_layout_variable else self._full(command)

    def _without_layout(self, command: str) -> str:
        return without_layout(command) if self._has_layout_variable else command

    def trial_command(self, command: str) -> str:
        """Return the command with a line of the log for every iteration; a template may have no place for options."""
        option = log_option(self._full(command))
        is_template = bool(placeholder_names(self._command, self.placeholder_names()))
        if option is None or (is_template and not ParsedCommand.of(command).has(option)):
            return command
        edited = ParsedCommand.of(command).set({option: 1}).text
        return with_underscores(edited, command, [option]) if runs_ms_swift(self._full(command)) else edited

    def _interleaving(self, command: str, params: Mapping[str, Value]) -> dict[str, Value | None]:
        if self.vp_max == 1 or "vp" in placeholder_names(command, ["vp"]):
            return {}
        layout, num_layers = self.layout(params), self.facts.num_layers
        return interleaving(layout, num_layers=num_layers, major=self._swift_major(command))

    def _swift_major(self, command: str) -> int | None:
        full = self._full(command)
        return swift_version(full).major if runs_ms_swift(full) else None

    def _adds_sequence_parallel(self, command: str, *, tp: Any, ep: Any) -> Any:
        """Return whether a trial gets sequence parallelism, which goes with tensor parallelism alone.

        Experts refuse to train without it. Everywhere else it only saves memory; ms-swift has norms that support it, so
        it is set unless the command says no. Megatron-LM's own scripts may run without such norms: there it stays as it
        is in the command.
        """
        full = self._fixed(command)
        always = self.facts.num_experts or (runs_ms_swift(full) and not says_false(full, SEQUENCE_PARALLEL))
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

        return MegatronEvaluator(gbs=self.gbs, seq=self.seq or sequence_in_command(self._full_text))

    def notes(self, command: str) -> list[str]:
        full = self._full(command)
        notes = [*batch_notes(full, self.gbs), *tokens_notes(full)]
        if self.facts.num_experts == 0 and self.n_gpus > 1:
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
        if runs_pretrain_script(full):
            notes.append(
                "Megatron-LM's own scripts refuse --vit-gradient-checkpointing, and selective recomputation with a "
                "method, which the documented rules set: folding=true leaves both out"
            )
        return notes


def _rules(
    config: ModelConfig | None, num_layers: int | None, num_query_groups: int | None, *, folding: bool
) -> MegatronRules:
    """Return the rules for a model; what the user says wins over what its config says."""
    if config is None:
        facts = JobFacts(num_layers=num_layers, num_query_groups=num_query_groups)
        return MegatronRules(facts=facts, folding=folding)
    facts = JobFacts(
        num_layers=num_layers or config.num_layers,
        num_query_groups=num_query_groups or config.num_query_groups,
        num_attention_heads=config.num_attention_heads,
        num_experts=config.num_experts or 0,
    )
    return MegatronRules(facts=facts, is_vision_language=config.is_vision_language, folding=folding)
