"""Landscapes: every layout that was measured of one model on one cluster, read from files that are checked."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from layoutbench.protocol import Params, Problem, Result

SCHEMA = "layoutbench/1"
OUTCOMES = ("ok", "oom", "error")
SHIPPED = Path(__file__).with_name("landscapes")
"""The landscapes that come with the package."""
REQUIRED: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "model": {"name": str, "layers": int, "hidden": int, "heads": int},
    "job": {"framework": str, "seq_len": int},
    "cluster": {"gpu": str, "gpu_memory_gib": (int, float), "num_gpus": int},
    "source": {"id": str, "url": str, "licence": str, "rows": str, "cost": str},
}
"""What every landscape states, by section; a section may state more."""


class LandscapeError(ValueError):
    """Say in one line what is wrong with a landscape, and how to fix it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run of a layout: the seconds of each of its steady steps, or how it failed."""

    outcome: str
    steps_s: tuple[float, ...] = ()
    peak_memory_bytes: float | None = None
    cost_s: float
    """Wall time of the whole run, its start included; each GPU of the cluster is charged with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One layout and its repeated runs."""

    params: Params
    runs: tuple[Run, ...]

    @property
    def step_s(self) -> float:
        """The median over the runs that went well, which a tuner is judged by; infinite where none did."""
        steps = [median(run.steps_s) for run in self.runs if run.outcome == "ok"]
        return median(steps) if steps else math.inf

    @property
    def cost_s(self) -> float:
        """What a trial costs on average."""
        return math.fsum(run.cost_s for run in self.runs) / len(self.runs)

    def draw(self, rng: np.random.Generator) -> Result:
        """Return what one more trial would have measured: one of the runs, its steps drawn with replacement."""
        run = self.runs[int(rng.integers(len(self.runs)))]
        step_s = float(np.median(rng.choice(run.steps_s, len(run.steps_s)))) if run.outcome == "ok" else None
        return Result(outcome=run.outcome, step_s=step_s, peak_memory_bytes=run.peak_memory_bytes, cost_s=run.cost_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Landscape:
    """All layouts of one model on one cluster."""

    name: str
    model: Mapping[str, Any]
    job: Mapping[str, Any]
    cluster: Mapping[str, Any]
    axes: Mapping[str, Sequence[int | str]]
    layouts: tuple[Layout, ...]
    source: Mapping[str, str]
    used_for_fitting: tuple[str, ...] = ()
    """Tuners whose makers fitted something to it; they are not judged on it unless they leave it out themselves."""

    @property
    def best_s(self) -> float:
        """The step time of the best layout."""
        return min(layout.step_s for layout in self.layouts)

    @property
    def num_gpus(self) -> int:
        """How many GPUs a trial occupies."""
        return int(self.cluster["num_gpus"])

    @property
    def group(self) -> tuple[Any, ...]:
        """The model's shape and the cluster: what is left out together where something is fitted."""
        shape = tuple(self.model.get(name) for name in ("layers", "hidden", "experts"))
        return (*shape, self.cluster["gpu"], self.num_gpus)

    def problem(self, others: Sequence[Landscape] = ()) -> Problem:
        """Return what a tuner may know; of `others`, those of the same model and cluster are left out.

        Layouts come in the order of the axes, whatever the order of the file says of who measured it.
        """
        axes = [(name, list(axis)) for name, axis in self.axes.items()]
        layouts = [dict(layout.params) for layout in self.layouts]
        return Problem(
            model=self.model,
            job=self.job,
            cluster=self.cluster,
            axes=self.axes,
            layouts=sorted(layouts, key=lambda params: [axis.index(params[name]) for name, axis in axes]),
            others=[other for other in others if other.group != self.group],
        )


def load_landscapes(places: Sequence[Path]) -> list[Landscape]:
    """Read landscapes from files and from all folders below folders; two may not have one name."""
    found: dict[str, Path] = {}
    landscapes = []
    for place in places:
        if not place.exists():
            raise LandscapeError(f"there are no landscapes at {str(place)!r}: give a folder of *.json files")
        for path in sorted(place.rglob("*.json")) if place.is_dir() else [place]:
            landscape = read_landscape(path)
            if landscape.name in found:
                raise LandscapeError(
                    f"two landscapes are named {landscape.name!r}, {found[landscape.name]} and {path}: rename one"
                )
            found[landscape.name] = path
            landscapes.append(landscape)
    if not landscapes:
        raise LandscapeError(f"{', '.join(map(str, places))} must hold landscapes, *.json, but holds none")
    return landscapes


def read_landscape(path: Path) -> Landscape:
    """Read one landscape, or raise LandscapeError with what is wrong in it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return parse_landscape(content)
    except (OSError, ValueError) as error:
        raise LandscapeError(f"{path}: {error}") from None


def write_landscape(landscape: Landscape, path: Path) -> None:
    """Write a landscape with one layout per line, which keeps a change readable."""
    content = {"schema": SCHEMA} | {name: value for name, value in asdict(landscape).items() if name != "layouts"}
    layouts = [json.dumps(_without_blanks(asdict(layout))) for layout in landscape.layouts]
    head = json.dumps(content, indent=1)[:-2]
    lines = ",\n  ".join(layouts)
    path.write_text(f'{head},\n "layouts": [\n  {lines}\n ]\n}}\n', encoding="utf-8")


def _without_blanks(layout: dict[str, Any]) -> dict[str, Any]:
    runs = [{name: value for name, value in run.items() if value not in (None, ())} for run in layout["runs"]]
    return layout | {"runs": runs}


def parse_landscape(content: Any) -> Landscape:
    """Check what a file holds and return the landscape."""
    _need(isinstance(content, dict) and content.get("schema") == SCHEMA, f'"schema" must be "{SCHEMA}"')
    name = content.get("name")
    _need(isinstance(name, str) and bool(name), '"name" must be a text')
    for section, fields in REQUIRED.items():
        _need(isinstance(content.get(section), dict), f'"{section}" must be an object')
        for field, kind in fields.items():
            value = content[section].get(field)
            _need(_is_a(value, kind), f'"{section}.{field}" must be {_kind_name(kind)}, but got {value!r}')
    axes = content.get("axes")
    _need(isinstance(axes, dict) and all(isinstance(axis, list) and axis for axis in axes.values()),
          '"axes" must give a list of choices for each name')  # fmt: skip
    layouts = tuple(_layout(item, axes, number) for number, item in enumerate(content.get("layouts") or [], 1))
    _need(len({tuple(layout.params.items()) for layout in layouts}) == len(layouts), "a layout stands there twice")
    _need(any(math.isfinite(layout.step_s) for layout in layouts), 'of "layouts" at least one must have run')
    fitted = content.get("used_for_fitting")
    _need(isinstance(fitted, list), '"used_for_fitting" must be a list of tuners, empty where there is none')
    sections = {section: content[section] for section in REQUIRED}
    return Landscape(name=name, **sections, axes=axes, layouts=layouts, used_for_fitting=tuple(map(str, fitted)))


def _layout(item: Any, axes: Mapping[str, Sequence[int | str]], number: int) -> Layout:
    where = f"layout {number}"
    _need(isinstance(item, dict) and isinstance(item.get("params"), dict), f'{where} must have "params"')
    params = {name: item["params"].get(name) for name in axes}
    _need(item["params"].keys() == axes.keys(), f"{where} must have a choice of each axis ({', '.join(axes)})")
    for name, value in params.items():
        _need(value in axes[name], f"{where}: {name} must be one of {axes[name]}, but got {value!r}")
    runs = item.get("runs")
    _need(isinstance(runs, list) and bool(runs), f'{where} must have "runs", at least one')
    return Layout(params=params, runs=tuple(_run(run, where) for run in runs))


def _run(run: Any, where: str) -> Run:
    _need(isinstance(run, dict) and run.get("outcome") in OUTCOMES, f'{where}: "outcome" must be one of {OUTCOMES}')
    steps, cost, peak = run.get("steps_s", []), run.get("cost_s"), run.get("peak_memory_bytes")
    _need(isinstance(steps, list) and all(map(_is_positive, steps)), f'{where}: "steps_s" must be positive seconds')
    _need(bool(steps) == (run["outcome"] == "ok"), f'{where}: a run has "steps_s" exactly where its outcome is ok')
    _need(_is_positive(cost), f'{where}: "cost_s" must be the seconds of the whole run, but got {cost!r}')
    _need(peak is None or _is_positive(peak), f'{where}: "peak_memory_bytes" must be positive, but got {peak!r}')
    return Run(outcome=run["outcome"], steps_s=tuple(steps), peak_memory_bytes=peak, cost_s=cost)


def _is_a(value: Any, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and value != "" and (kind is str or _is_positive(value))


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _kind_name(kind: type | tuple[type, ...]) -> str:
    return "a text" if kind is str else "a positive number"


def _need(holds: bool, problem: str) -> None:
    if not holds:
        raise LandscapeError(problem)
