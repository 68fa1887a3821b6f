"""The base of the frameworks' presets: a job that is read from the command, the space of its points, and its levers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from zenith_tune.describe.job_spec import JobSpec, PlanSubject
from zenith_tune.errors import UsageError
from zenith_tune.presets.arguments import FrameworkArguments, refuse_sizes, sizes_of
from zenith_tune.presets.levers import Declared, LeverChoice, lever_label, lever_parameters
from zenith_tune.presets.parts import CompletePreset
from zenith_tune.presets.shared.subject import LookedUp, seen_cluster
from zenith_tune.study.parameters import CategoricalParameter, Parameter, Params, Value

if TYPE_CHECKING:
    from zenith_tune.describe.model_spec import ModelSpec
    from zenith_tune.layouts.layout import Layout
    from zenith_tune.strategies.base import TuningStrategy


class JobSpace(Protocol):
    """What is searched of one job."""

    def parameters(self) -> Mapping[str, Parameter]:
        """Return the search space."""

    def explain(self, params: Mapping[str, Value]) -> str | None:
        """Return which rule a point breaks, or None."""

    def layout(self, params: Mapping[str, Value]) -> Layout:
        """Return the layout that a point stands for."""

    def near_points(self) -> Iterator[Params]:
        """Yield points by which to say which levers may be tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisSpace:
    """A space of independent axes; the first choice of each is what the job has as it is."""

    axes: Mapping[str, tuple[Value, ...]]

    def parameters(self) -> dict[str, CategoricalParameter]:
        return {name: CategoricalParameter(choices) for name, choices in self.axes.items()}

    @property
    def first_point(self) -> Params:
        return {name: choices[0] for name, choices in self.axes.items()}

    def near_points(self) -> Iterator[Params]:
        """Yield the job as it is, and every point that differs in one value."""
        yield self.first_point
        yield from ({**self.first_point, name: value} for name in self.axes for value in self.axes[name][1:])

    def levers_of(self, params: Mapping[str, Value]) -> dict[str, Value]:
        return {name: value for name, value in params.items() if name not in self.axes}


S = TypeVar("S", bound=JobSpace)
A = TypeVar("A", bound=FrameworkArguments)


class FrameworkPreset(CompletePreset, Generic[S, A]):
    """A preset that reads its job from the command; its arguments are the fields of a `FrameworkArguments`."""

    title: ClassVar[str]
    declared: ClassVar[Declared] = ()
    most_grid_points = 100

    def __init__(self, given: A) -> None:
        refuse_sizes(**sizes_of(given))
        self._given = given
        self._levers = LeverChoice.of(given.levers, given.allow, self.declared)
        self._bound: S | None = None
        self._subject: LookedUp[PlanSubject] = LookedUp(self._looked_up)

    @abstractmethod
    def _looked_up(self) -> PlanSubject:
        """Return model, cluster and job, or raise UsageError with what is missing and how to give it."""

    @property
    def _space(self) -> S:
        """What is searched of the command that the preset is bound to."""
        if self._bound is None:
            raise UsageError(f"{self.title} reads its job from a command, but has none: bind a command first")
        return self._bound

    def _bind_space(self, space: S) -> S:
        """Search another space from now on; the subject is looked up again when it is asked for next."""
        self._bound, self._subject = space, LookedUp(self._looked_up)
        return space

    def _planned_job(
        self,
        model: ModelSpec,
        framework: str,
        *,
        num_gpus: int,
        seq_len: int | None,
        precision: str,
        gpu: str | None = None,
        new_shapes: float = 0.0,
    ) -> PlanSubject:
        """Return model, cluster and job, or raise UsageError where the sequences or the machines are not known."""
        # Not at the top: the catalogs are loaded only where a plan is made.
        from zenith_tune.describe.framework_spec import load_framework

        seq_len = (model.traced.num_tokens if model.traced else None) or seq_len
        if seq_len is None:
            problem = "the length of the sequences is not known: the command has no --max_seq_length or the like"
            raise UsageError(problem, hint="give --seq 2048")
        spec = JobSpec(seq_len=seq_len, framework=load_framework(framework), precision=precision, new_shapes=new_shapes)
        machines = seen_cluster(self._given.cluster, num_gpus, self._given.topology, gpu)
        return PlanSubject(model=model, cluster=machines, job=spec)

    @property
    def _known_subject(self) -> PlanSubject | None:
        found = self._subject.get()
        return None if isinstance(found, UsageError) else found

    def get_search_space(self) -> dict[str, Parameter]:
        return {**self._space.parameters()}

    def explain(self, params: Mapping[str, Value]) -> str | None:
        return self._space.explain(params)

    def layout(self, params: Mapping[str, Value]) -> Layout:
        return self._space.layout(params)

    def subject(self, command: str) -> PlanSubject:
        return self._subject.required()

    def describe_job(self, command: str) -> str:
        subject, point = self._known_subject, self.own_point(command)
        layout = self.layout(point) if point is not None else None
        batch = [f"batch {layout.global_batch}"] if layout is not None else []
        if subject is None:
            return ", ".join([*(self._model_names() or [self.title]), *batch])
        gpus = f"{subject.cluster.num_gpus} {subject.cluster.gpu.name}"
        return ", ".join([f"{subject.model.name} on {gpus}", *batch, f"sequence {subject.job.seq_len}"])

    def _model_names(self) -> list[str]:
        """Return the model's name where it is known without the rest of a plan."""
        return []

    def lever_space(self) -> dict[str, Parameter]:
        return {**lever_parameters(self.declared, self._space.parameters())}

    def _lever_notes(self, command: str) -> list[str]:
        """Return which levers may be tried on the job as it is, or on a point near to it."""
        points = [point for point in self._space.near_points() if self._space.explain(point) is None]
        near = {lever.name for point in points for lever in self.levers(command, point) if not lever.missing}
        return self._levers.note(self.declared, near)

    def _plan_notes(self) -> list[str]:
        """Return why layouts are not planned, where they are not."""
        found = self._subject.get()
        return [f"layouts are not planned before a trial: {found}"] if isinstance(found, UsageError) else []

    def _labelled(self, words: list[str], params: Mapping[str, Value]) -> str:
        searched = self._space.parameters()
        levers = (lever_label(name, value) for name, value in params.items() if name not in searched)
        return " ".join([*words, *levers])

    def get_recommended_strategy(self) -> TuningStrategy:
        """Return the guided strategy where layouts can be planned, else one by the number of points."""
        from zenith_tune.strategies.guided.strategy import GuidedStrategy

        return super().get_recommended_strategy() if self._known_subject is None else GuidedStrategy()
