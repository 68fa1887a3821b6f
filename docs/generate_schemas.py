"""Writes docs/schemas/*.json, the JSON Schemas of what `--json` prints, or checks that they are not stale.

What is printed field by field has its shape below; what is printed as it is comes from its dataclass.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import json
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from typing_extensions import TypedDict

from zenith_tune.doctor.causes.cause import CauseKind, Figure
from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.plan import Obstacle
from zenith_tune.study.parameters import Value
from zenith_tune.study.study import EndReason
from zenith_tune.study.trial import Findings, Outcome
from zenith_tune.study.verdict import Verdict

FOLDER = Path(__file__).with_name("schemas")
Interval = tuple[float, float]


class Trial(TypedDict):
    """A run that ended; it may have other measurements, such as tflops_per_gpu."""

    number: int
    outcome: Outcome
    value: float | None
    """None unless it went well."""
    unit: str
    spread: float | None
    """Relative spread of the value over steady iterations: 0.01 is 1%."""
    error: float | None
    """Relative standard error of the value."""
    num_samples: int | None
    """Steady iterations behind the value."""
    step_s: float | None
    peak_memory_bytes: int | None
    duration_s: float | None
    early: str | None
    """Why it was stopped early."""
    failure: str | None
    """The kind of failure, such as "out of memory"."""
    cause: str | None
    """Why it did not go well, in one line."""
    why: str
    """Why it was picked, in one line."""
    command: str
    """The exact command, with secrets masked."""
    folder: str | None
    is_baseline: bool
    """Whether it is your own command."""
    rerun_of: int | None
    """The number of the run that it repeats."""
    parameters: dict[str, Value]


class BestTrial(Trial):
    """The best trial, with the measurements of the last of its runs."""

    reruns: list[int]
    """Numbers of the runs that repeated it."""


class StudyStarted(TypedDict):
    """The study before its first trial."""

    event: Literal["study_started"]
    study_name: str
    preset: str
    strategy: str
    evaluator: str
    command: str
    n_trials: int | None
    max_trials: int | None
    """An upper bound on the trials."""
    num_finished: int
    """Trials found in the record of a resumed study."""
    warnings: list[str]
    notes: list[str]
    title: str
    """The job in one line."""
    own_label: str
    """The layout of your own command, where it is known."""
    num_slots: int
    """How many trials run side by side."""
    num_gpus: int
    first_state: str


class TrialStarted(TypedDict):
    """A trial that starts."""

    event: Literal["trial_started"]
    number: int
    label: str
    log: str
    limit_s: float | None
    why: str


class TrialState(TypedDict):
    """What a trial waits for, or where it runs."""

    event: Literal["trial_state"]
    number: int
    state: str


class TrialProgress(TypedDict):
    """How far a trial is."""

    event: Literal["trial_progress"]
    number: int
    num_iterations: int
    value: float | None
    """Its value by the iterations that are steady."""
    unit: str


class TrialOutlook(TypedDict):
    """What is known of a trial that runs, and about how long it still does."""

    event: Literal["trial_outlook"]
    number: int
    known: str
    left_s: float | None


class TrialMemory(TypedDict):
    """The most GPU memory that a trial has taken so far."""

    event: Literal["trial_memory"]
    number: int
    peak_memory_bytes: int


class TrialFinished(Trial):
    """A trial that ended."""

    event: Literal["trial_finished"]
    label: str
    best_value: float | None
    """The best value so far."""
    gpu_hours_spent: float


class TrialRecalled(Trial):
    """A trial that an earlier run of the study, or another tuner, finished."""

    event: Literal["trial_recalled"]
    label: str


class PointRepeated(Trial):
    """A point that was tried before, answered from the record."""

    event: Literal["point_repeated"]
    label: str


class PointPruned(TypedDict):
    """A point that is not worth a trial."""

    event: Literal["point_pruned"]
    parameters: dict[str, Value]
    label: str
    reason: str


class Note(TypedDict):
    """A note that you should read."""

    event: Literal["note"]
    text: str


class Explanation(TypedDict):
    """How the study goes about it."""

    event: Literal["explanation"]
    text: str


class SearchBegan(TypedDict):
    """What is searched and what that will take."""

    event: Literal["search_began"]
    outlook: str


class StudyEnded(TypedDict):
    """The result."""

    event: Literal["study_ended"]
    reason: EndReason
    why: str
    best: BestTrial | None
    baseline: Trial | None
    gain: float | None
    """Relative gain of the best over your own command: 0.4 is 40% faster."""
    best_is_own: bool
    is_within_noise: bool
    batch_note: str
    outcomes: dict[str, int]
    """How many runs ended in each way."""
    num_pruned: int
    num_repeated: int
    verdict: Verdict | None
    best_command: str | None
    study_name: str
    warnings: list[str]
    csv: str
    json: str
    trials: str
    """The folder of the trials."""
    database: str
    findings: Findings | None


Event = (
    StudyStarted
    | TrialStarted
    | TrialState
    | TrialProgress
    | TrialOutlook
    | TrialMemory
    | TrialFinished
    | TrialRecalled
    | PointRepeated
    | PointPruned
    | Note
    | Explanation
    | SearchBegan
    | StudyEnded
)


class FullLayout(Layout):
    """A layout with what follows from its sizes."""

    dp: int
    edp: int
    """Data parallelism of the experts."""
    num_micro_batches: int


class ImbalancedRouting(TypedDict):
    """Memory of a mixture of experts whose tokens are not spread evenly."""

    busiest_over_mean: float
    memory_bytes: float
    balanced_memory_bytes: float


class Planned(TypedDict):
    """A layout and its estimate."""

    name: str
    layout: FullLayout
    step_s: float
    expected_step_s: float
    """Mean step time, with a penalty for the risk of running out of memory."""
    step_interval_90_s: Interval
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    bound: str
    """The largest part of a step."""
    time_parts_s: dict[str, float]
    memory_bytes: float
    memory_interval_90_bytes: Interval
    imbalanced_routing: NotRequired[ImbalancedRouting]
    headroom_bytes: float
    oom_probability: float
    memory_parts_bytes: dict[str, float]


class Cost(TypedDict):
    """What a training takes."""

    tokens: float
    seconds: float
    interval_90_s: Interval
    days: float
    gpu_hours: float
    usd_per_gpu_hour: float | None
    price_is_public: bool
    usd: float | None


class WayOut(TypedDict):
    """A way to train where nothing fits."""

    name: str
    how: str
    options: str
    """Options of `zenithtune plan` that plan it."""
    fits: bool
    memory_bytes: float
    capacity_bytes: float
    oom_probability: float
    recompute: str
    host_bytes: float


class Dropped(TypedDict):
    """A rule, and how many layouts it dropped."""

    rule: str
    law: str
    count: int
    of: str
    example: str


class NearMiss(Planned):
    """A layout that would be faster than the best, and why it is not chosen."""

    obstacle: Obstacle
    gain: float | None
    """None where nothing fits."""
    reason: str
    hint: str


class Situation(TypedDict):
    """A job on a cluster."""

    model: str
    num_params: int
    cluster: str
    gpu: str
    num_gpus: int
    memory_bytes_per_gpu: int
    framework: str
    precision: str
    way: NotRequired[str]
    """LoRA, QLoRA, or another way to save memory that was asked for."""
    reference: NotRequired[bool]
    dispatcher: NotRequired[str]
    seq_len: int
    global_batch: int


class Emitted(TypedDict):
    """A layout as a framework takes it."""

    file_name: str
    text: str
    notes: list[str]


class Asked(TypedDict):
    """Answers to further options."""

    tensor_parallel_reason: NotRequired[str]
    emit: NotRequired[Emitted]
    least_gpus: NotRequired[int]
    longest_seq_len: NotRequired[int | None]
    pareto: NotRequired[list[Planned]]


class PlainPlan(Situation):
    """The layouts of one job, the best first."""

    cost: NotRequired[Cost]
    risk: float
    """The probability of running out of memory below which a layout counts as fitting."""
    num_considered: int
    num_fitting: int
    num_not_fitting: int
    dropped: list[Dropped]
    left_out: list[str]
    """Choices that were not tried, with the reason."""
    enough_gpus: int | None
    """How many GPUs would do where nothing fits."""
    ways_out: list[WayOut]
    best: list[Planned]
    assumptions: list[str]
    num_tied: int
    """Layouts at the head that tie with the fastest."""
    tied_within: float
    near_misses: list[NearMiss]


class Plan(PlainPlan, Asked):
    """What `zenithtune plan` prints."""


class WhatIf(Asked):
    """What `plan --what-if` prints."""

    what_if: str
    gain: float | None
    hint: str | None
    before: PlainPlan
    after: PlainPlan


class StageMemory(TypedDict):
    """Memory of a pipeline stage."""

    stage: int
    memory_parts_bytes: dict[str, float]


class BetterLayout(Planned):
    """A change that makes the explained layout better."""

    change: str
    gain: float | None
    saved_bytes: float


class ExplainedLayout(Asked):
    """What `plan --explain` prints."""

    layout: FullLayout | Layout
    """Without what follows from its sizes where they do not multiply to the GPUs."""
    broken_rules: list[str]
    fits: bool
    verdict: str
    cost: NotRequired[Cost]
    estimate: Planned | None
    stages: list[StageMemory]
    better: list[BetterLayout]


class ComparedCluster(Situation):
    """The best layout on one of the clusters that are compared."""

    best: Planned | None
    cost: Cost | None


class Comparison(TypedDict):
    """What `plan --compare` prints."""

    compared: list[ComparedCluster]
    fastest: str | None
    cheapest: str | None
    cheapest_below_usd_per_gpu_hour: dict[str, float]
    """Prices below which each other cluster would be the cheapest."""


class Measured(TypedDict):
    """What a log or a trial says of the run."""

    step_s: float | None
    peak_memory_bytes: float | None
    out_of_memory: bool
    cause: str | None
    phases_s: dict[str, float]
    """Seconds of each phase of a step, the longest first; empty where its log shows none."""
    phase_findings: list[PhaseFinding]


class PhaseFinding(TypedDict):
    """What keeps a phase of the steps waiting, or makes it longer than it need be."""

    phase: str
    finding: str
    change: str
    gain: float
    """Share of a step that the change saves at most."""


class Cause(TypedDict):
    """What ended the run, keeps it waiting or slows it down."""

    name: CauseKind
    is_fatal: bool
    finding: str
    rank: int | None
    figures: dict[str, Figure]
    evidence: list[str]
    actions: list[str]


class Advice(TypedDict):
    """A change that makes the run faster."""

    name: str
    number: float
    """The figure that the finding rests on."""
    unit: str | None
    finding: str
    change: str
    planned: Planned
    gain: float
    """Relative gain in tokens per second."""
    caution: str | None
    command: str | None


class Remedy(TypedDict):
    """A change that makes the run fit."""

    name: str
    change: str | None
    planned: Planned | None
    fits: bool
    cost: float | None
    """Relative increase of the step time."""
    why_not: str | None


class ReferenceRun(TypedDict):
    """A run that another is held against."""

    software: str
    model: str
    cluster: str
    seq_len: int
    precision: str
    layout: str
    states_recompute: bool
    global_batch: int
    step_s: float
    tflops_per_gpu: float


class PublishedRun(ReferenceRun):
    """A published run."""

    source: str
    url: str
    year: int


class OwnRun(ReferenceRun):
    """Another run of one's own."""

    run: str


class GapCause(TypedDict):
    """A share of the gap to another run."""

    name: str
    factor: float
    """How many times faster the other run is for it."""
    share: float | None
    basis: Literal["predicted", "measured", "unexplained"]
    through: str | None
    """The part of a step that changes most."""
    change: str


class Gap(TypedDict):
    """The run against the nearest published one or another of one's own."""

    published: NotRequired[PublishedRun]
    own: NotRequired[OwnRun]
    tflops_per_gpu: float
    is_measured: bool
    gap: float
    """Speed of the other run over that of the run."""
    causes: list[GapCause]


class NotCompared(TypedDict):
    """Why there is no comparison."""

    not_compared: str
    published: PublishedRun | None


class AnyDiagnosis(TypedDict):
    """What every diagnosis has."""

    run: str
    tensor_parallel_reason: NotRequired[str]
    cluster_reason: NotRequired[str]
    against: NotRequired[Gap | NotCompared]
    measured: Measured
    is_healthy: bool
    causes: list[Cause]


class Diagnosis(AnyDiagnosis):
    """A run that could be planned."""

    model: str
    cluster: str
    framework: str
    seq_len: int
    global_batch: int
    planned: Planned
    fits: bool
    warnings: list[str]
    advice: list[Advice]
    remedies: list[Remedy]
    way_out: Planned | None
    ways_out: list[WayOut]


class Unplanned(AnyDiagnosis):
    """A run that could not be planned."""

    planned: None
    not_planned: str
    """Why, and what would help."""


SCHEMAS: dict[str, tuple[str, Any]] = {
    "events": ("A line of `zenithtune optimize --json`", Event),
    "plan": ("The output of `zenithtune plan --json`", Plan | WhatIf | ExplainedLayout | Comparison),
    "doctor": ("The output of `zenithtune doctor --json`", Diagnosis | Unplanned),
}
PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


class Schema:
    """A schema that is built from a type, with each class that it names under `$defs`."""

    def __init__(self, title: str, root: Any) -> None:
        self._classes: dict[str, Any] = {}
        form = self._form(root)
        head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
        self.content = {**head, **form, "$defs": dict(sorted(self._classes.items()))}

    def _form(self, kind: Any) -> dict[str, Any]:
        origin, inner = get_origin(kind), get_args(kind)
        if kind in PLAIN:
            return {"type": PLAIN[kind]}
        if origin in (Union, types.UnionType) and all(each in PLAIN for each in inner):
            return {"type": [PLAIN[each] for each in inner]}
        if origin in (Union, types.UnionType):
            return {"anyOf": [self._form(each) for each in inner]}
        if origin is Literal:
            return {"enum": list(inner)}
        if origin is NotRequired:
            return self._form(inner[0])
        if origin is tuple and inner[-1] is not Ellipsis:
            items = {"prefixItems": [self._form(each) for each in inner], "items": False}
            return {"type": "array", **items, "minItems": len(inner)}
        if isinstance(origin, type) and issubclass(origin, Sequence):
            return {"type": "array", "items": self._form(inner[0])}
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self._form(inner[1])}
        if isinstance(kind, type) and issubclass(kind, enum.StrEnum):
            return {"enum": [str(each) for each in kind]}
        if kind.__name__ not in self._classes:
            self._classes[kind.__name__] = {}  # it may name itself
            self._classes[kind.__name__] = self._object(kind)
        return {"$ref": f"#/$defs/{kind.__name__}"}

    def _object(self, kind: type) -> dict[str, Any]:
        hints, docs = get_type_hints(kind, include_extras=True), _field_docs(kind)
        properties = {
            name: {**self._form(hint), **({"description": docs[name]} if name in docs else {})}
            for name, hint in hints.items()
        }
        required = [name for name, hint in hints.items() if get_origin(hint) is not NotRequired]
        about = {"description": inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")}
        return {"type": "object", **about, "properties": properties, "required": required}


def _field_docs(kind: type) -> dict[str, str]:
    """Return the strings below a class's fields, with those of its bases."""
    bases = kind.__dict__.get("__orig_bases__", kind.__bases__)
    found = {name: text for base in bases if _has_fields(base) for name, text in _field_docs(base).items()}
    [tree] = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(doc))):
                found[name] = " ".join(doc.split())
    return found


def _has_fields(base: Any) -> bool:
    return is_typeddict(base) or dataclasses.is_dataclass(base)


def main() -> int:
    """Write the files, or with --check compare them."""
    texts = {
        FOLDER / f"{name}.json": json.dumps(Schema(*about).content, indent=1) + "\n" for name, about in SCHEMAS.items()
    }
    if "--check" not in sys.argv[1:]:
        FOLDER.mkdir(exist_ok=True)
        for path, text in texts.items():
            path.write_text(text)
        return 0
    if all(path.is_file() and path.read_text() == text for path, text in texts.items()):
        return 0
    print("docs/schemas is stale: run `make docs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
