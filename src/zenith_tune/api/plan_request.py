"""What a plan is asked for: names and numbers, as a user writes them, become model, cluster, job and search space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from zenith_tune.describe.cluster_catalog import LOCAL, catalog_cluster, load_cluster
from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.framework_spec import FrameworkSpec, load_framework
from zenith_tune.describe.gpu_catalog import find_gpu
from zenith_tune.describe.job_spec import DISPATCHERS, PRECISIONS, JobSpec
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.describe.topology import read_topology, tensor_reason, with_topology
from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.layouts.layout import Layout, parse_layout, parse_values
from zenith_tune.layouts.search_space import SearchSpace
from zenith_tune.planner.cost import Prices
from zenith_tune.planner.limits import IMBALANCE, MAX_BATCH, MAX_SEQ, MOST_IMBALANCE, RISK
from zenith_tune.planner.training_way import TrainingWay
from zenith_tune.presets.formats import ONE_EACH, format_named

if TYPE_CHECKING:
    # Imported where they are needed: a mistake is reported without them.
    from zenith_tune.estimates.calibration import Calibration
    from zenith_tune.planner.comparison import ClusterComparison
    from zenith_tune.planner.plan import Plan
    from zenith_tune.planner.planner import Planner
    from zenith_tune.planner.ways_out import WayOut
    from zenith_tune.planner.what_if import WhatIf

OWN_FRAMEWORK = "fsdp"
"""What a module of the user's own is planned for where nothing else is given, and adapters: it takes any module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A request for a plan."""

    model: ModelSpec
    cluster: ClusterSpec
    job: JobSpec
    global_batch: int
    space: SearchSpace
    risk: float = RISK
    calibration: Calibration | None = None
    warning: str = ""
    """A warning about the calibration; empty where there is none."""
    tensor_reason: str = ""
    """How large the links of the nodes let tensor parallelism be, where they were looked at."""
    is_least: bool = False
    """Whether the cluster has the least number of GPUs that fit, for want of a number."""
    may_leave_island: bool = False
    """Whether larger sizes of tensor parallelism than NVLink joins are planned where nothing else fits."""

    def within_island(self, emit: str | None) -> Self:
        """Keep tensor parallelism inside what NVLink joins."""
        space = self.space.tensor_within(self.cluster.fast_domain)
        is_whole = self.cluster.num_gpus <= space.max_tp
        may_leave = not is_whole and (emit is None or format_named(emit).tensor_across_nodes)
        return replace(self, space=space, may_leave_island=may_leave)

    def beyond_island(self) -> Self:
        """Let tensor parallelism be of any size, because nothing fits inside what NVLink joins."""
        known = f"{self.tensor_reason}; " if self.tensor_reason else "tensor parallelism: "
        reason = f"{known}nothing fits within {self.space.max_tp}, so that larger sizes are planned too"
        space = replace(self.space, max_tp=type(self.space)().max_tp)
        return replace(self, space=space, tensor_reason=reason, may_leave_island=False)

    def on_least_gpus(self) -> Self:
        """Take the least number of GPUs that a layout fits on; a whole node where none is found."""
        least = self.planner().least_gpus(self.global_batch, space=self.space, risk=self.risk)
        number = least or self.cluster.gpus_per_node
        return replace(self, cluster=catalog_cluster(self.cluster.gpu.name, number), is_least=least is not None)

    def planner(self) -> Planner:
        from zenith_tune.planner.planner import Planner

        return Planner(self.model, self.cluster, self.job, self.calibration)

    def layout(self, layout: Layout | str) -> Layout:
        """Return a layout of the request's GPUs and batch, read where it is written as text."""
        num_gpus, global_batch = self.cluster.num_gpus, self.global_batch
        if isinstance(layout, str):
            return parse_layout(layout, num_gpus=num_gpus, global_batch=global_batch)
        if (layout.num_gpus, layout.global_batch) != (num_gpus, global_batch):
            problem = f"the layout is of {layout.num_gpus} GPUs and a global batch of {layout.global_batch}"
            hint = "change the layout, or write it as text, which takes the job's"
            raise UsageError(f"{problem}, but the job has {num_gpus} and {global_batch}", hint=hint)
        return layout

    def planned(self, *, top: int = 10, what_if: str | None = None) -> PlanResult:
        """Plan, also beyond what NVLink joins where nothing fits inside it."""
        from zenith_tune.planner.infeasible import DeadEnd

        model, job, space, num_gpus = self.model, self.job, self.space, self.cluster.num_gpus
        DeadEnd(model=model, job=job, num_gpus=num_gpus, global_batch=self.global_batch, space=space).refuse()
        planner, gbs, risk = self.planner(), self.global_batch, self.risk
        changed = None if what_if is None else planner.what_if(gbs, what_if, top=top, space=space, risk=risk)
        plan = changed.before if changed is not None else planner.plan(gbs, top=top, space=space, risk=risk)
        found = PlanResult(request=self, planner=planner, plan=plan, what_if=changed)
        if self.may_leave_island and not found.fits:
            return self.beyond_island().planned(top=top, what_if=what_if)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """A plan with its request and its planner."""

    request: PlanRequest
    planner: Planner
    plan: Plan
    what_if: WhatIf | None = None
    """The plan next to one with changes, where that was asked for."""

    @property
    def ways_out(self) -> tuple[WayOut, ...]:
        """Ways to train on these GPUs, where no layout fits."""
        from zenith_tune.planner.planner import Planner
        from zenith_tune.planner.ways_out import ways_out

        if self.plan.best:
            return ()
        whole = replace(self.request.model, trained_share=1.0)
        return ways_out(Planner(whole, self.request.cluster, self.request.job), risk=self.request.risk)

    @property
    def fits(self) -> bool:
        """Whether any layout fits, of the job as it is or as it was changed."""
        return bool(self.plan.best or (self.what_if is not None and self.what_if.fits))


def compared(
    requests: Sequence[PlanRequest], *, tokens: float | str | None = None, price: Prices = None
) -> ClusterComparison:
    """Plan one job on several clusters, and compare what so many tokens take."""
    from zenith_tune.planner.comparison import ClusterComparison

    if len({request.cluster for request in requests}) < 2:
        problem = "a comparison needs at least two different clusters"
        raise UsageError(problem, hint="write e.g. h100x64,h200x64")
    plans = tuple(request.planned(top=1).plan for request in requests)
    return ClusterComparison(plans=plans, costs=tuple(plan.cost(tokens, price=price) for plan in plans))


def read_request(
    model: ModelSpec | str | Path | None,
    cluster: ClusterSpec | str | Path,
    *,
    gbs: int,
    seq: int | None,
    gpus: int | None = None,
    module: str | None = None,
    framework: FrameworkSpec | str | None = None,
    lora: bool = False,
    qlora: bool = False,
    optimizer: str = "adam",
    offload: bool = False,
    reference: bool = False,
    precision: str = "bf16",
    dispatcher: str = "alltoall",
    imbalance: float = IMBALANCE,
    fix: Mapping[str, int | str] | str | None = None,
    max_sizes: Mapping[str, int | None] | None = None,
    space: str = "default",
    risk: float = RISK,
    topology: str | Path | None = None,
    calibration: Calibration | str | Path | None = None,
    emit: str | None = None,
    takes_kind: bool = False,
) -> PlanRequest:
    """Return what these names and numbers, as on the command line, ask for; `module` takes the place of a model.

    With `takes_kind` a kind of GPU is a cluster of as many as it takes.
    """
    _refuse_numbers(gbs, seq, imbalance, risk, has_module=module is not None)
    for kind, name, known in (("precision", precision, PRECISIONS), ("dispatcher", dispatcher, DISPATCHERS)):
        if name not in known:
            raise UnknownNameError(kind, name, known)
    limits = {name: size for name, size in (max_sizes or {}).items() if size is not None}
    searched = _space(space, limits, fix)
    way = TrainingWay(lora=lora, qlora=qlora, optimizer=optimizer, offload=offload)
    if emit is not None and not way.is_plain:
        raise UsageError(f"--emit writes plain training, but got {way.options}", hint="leave one of them out")
    runs_it = _framework(framework, emit, is_own=module is not None or not way.is_plain)
    is_kind = takes_kind and gpus is None and isinstance(cluster, str) and find_gpu(cluster) is not None
    machines = cluster if isinstance(cluster, ClusterSpec) else load_cluster(str(cluster), 1 if is_kind else gpus)
    spec, seq_len = _model(model, seq, module, framework=runs_it, precision=precision)
    if spec.traced:  # nothing of a module is split but over data-parallel ranks
        searched = replace(searched, pinned={**ONE_EACH, **searched.pinned})
    if emit is not None:
        searched = format_named(emit).narrowed(searched, runs_it.name)
    fitted, warning = _calibration(calibration, runs_it)
    request = PlanRequest(
        model=way.trained(spec),
        cluster=machines,
        job=JobSpec(
            seq_len=seq_len,
            framework=way.states(runs_it, spec),
            way=way.name,
            reference=reference,
            precision=precision,
            dispatcher=dispatcher,
            gathers_fp8=precision == "fp8",  # as --emit writes it
            imbalance=imbalance,
        ),
        global_batch=gbs,
        space=searched,
        risk=risk,
        calibration=fitted,
        warning=warning,
    )
    is_local = isinstance(cluster, str) and cluster.strip().lower() == LOCAL
    request = _linked(request, None if topology is None else Path(topology), is_local=is_local)
    is_given = "tp" in limits or "tp" in request.space.pinned
    bounded = request if is_given else request.within_island(emit)
    return bounded.on_least_gpus() if is_kind else bounded


def _refuse_numbers(gbs: int, seq: int | None, imbalance: float, risk: float, *, has_module: bool) -> None:
    counts: dict[str, tuple[Any, int]] = {"gbs": (gbs, MAX_BATCH)}
    if seq is not None or not has_module:
        counts["seq"] = (seq, MAX_SEQ)
    for name, (number, most) in counts.items():
        if type(number) is not int or not 1 <= number <= most:
            raise UsageError(f"{name} must be a whole number from 1 to {most}, but got {number!r}", hint="change it")
    if not 0 <= imbalance <= MOST_IMBALANCE:
        raise UsageError(f"imbalance must be from 0 to {MOST_IMBALANCE}, but got {imbalance!r}", hint="change it")
    if not 0 < risk <= 1:
        raise UsageError(f"risk must be above 0 and at most 1, but got {risk!r}", hint="give a probability")


def _space(name: str, limits: Mapping[str, int], fix: Mapping[str, int | str] | str | None) -> SearchSpace:
    if isinstance(fix, Mapping):
        fix = ",".join(f"{name}={value}" for name, value in fix.items())
    pinned = parse_values(fix, what="--fix") if fix is not None else {}
    return SearchSpace.named(name, max_sizes=limits, pinned=pinned)


def _model(
    model: ModelSpec | str | Path | None,
    seq: int | None,
    module: str | None,
    *,
    framework: FrameworkSpec,
    precision: str,
) -> tuple[ModelSpec, int]:
    """Return what is trained, and the length of its sequences."""
    if module:
        from zenith_tune.presets.own_module import traced_model

        return traced_model(module, framework=framework, precision=precision, seq_len=seq)
    if model is None or seq is None:
        raise UsageError("a plan needs a model and the length of its sequences", hint="give model and seq")
    return model if isinstance(model, ModelSpec) else load_model(str(model)), seq


def _calibration(given: Calibration | str | Path | None, framework: FrameworkSpec) -> tuple[Calibration | None, str]:
    """Return the calibration, and a warning where it is of another framework."""
    fitted = given
    if isinstance(fitted, str | Path):
        from zenith_tune.calibrate.calibration_file import load_calibration

        fitted = load_calibration(Path(fitted))
    if fitted is None or fitted.framework == framework.name:
        return fitted, ""
    what = f"{given if isinstance(given, str | Path) else 'the calibration'} was fitted to runs"
    return fitted, f"{what} of {fitted.framework}, but the plan is for {framework.name}: its figures may be off"


def _framework(framework: FrameworkSpec | str | None, emit: str | None, *, is_own: bool) -> FrameworkSpec:
    known = format_named(emit).frameworks if emit is not None else ("megatron", OWN_FRAMEWORK)
    usual = OWN_FRAMEWORK if is_own and OWN_FRAMEWORK in known else known[0]
    found = framework if isinstance(framework, FrameworkSpec) else load_framework(framework or usual)
    if emit is not None:
        format_named(emit).refuse_framework(found.name)
    return found


def _linked(request: PlanRequest, path: Path | None, *, is_local: bool) -> PlanRequest:
    """Return the request with its nodes linked as a file says; what was looked at is reported."""
    topology = read_topology(path) if path is not None else None
    if topology is not None and path is not None:
        request = replace(request, cluster=with_topology(request.cluster, topology, path.name))
    if topology is None and not is_local:
        return request
    return replace(request, tensor_reason=tensor_reason(request.cluster, topology))
