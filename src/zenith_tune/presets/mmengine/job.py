"""A job of MMEngine: the configuration that its run prints, what is searched of it, and its lines of iterations.

Keys and lines are those of 0.10.7, which mmdet, mmseg, mmpretrain and the others train by. A pass is an iteration, and
an update is made of `accumulative_counts` of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zenith_tune.evaluators.steps import LoggedSteps, Step, first_flaw
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.rules import BATCH
from zenith_tune.presets.levers import ASSUMED
from zenith_tune.presets.shared.config_job import MBS, ConfigJob, ConfigLever
from zenith_tune.presets.shared.training_files import flat
from zenith_tune.study.parameters import Value

MICRO_BATCH, WORKERS = "train_dataloader.batch_size", "train_dataloader.num_workers"
PERSISTENT = "train_dataloader.persistent_workers"
ACCUMULATION = "optim_wrapper.accumulative_counts"
OPTIMIZER, BY_EPOCH = "optim_wrapper.type", "train_cfg.by_epoch"
NUM_WORKERS = (2, 4, 8, 16)
RULES = (BATCH,)


@dataclass(frozen=True, slots=True, kw_only=True)
class MMEngineJob(ConfigJob):
    """A job of MMEngine; before a run of it nothing is known but its command."""

    @property
    def is_known(self) -> bool:
        return bool(self.values)

    @property
    def micro_batch(self) -> int:
        return self.count(MICRO_BATCH)

    @property
    def global_batch(self) -> int:
        return self.micro_batch * self.count(ACCUMULATION) * self.num_gpus

    @property
    def on_request(self) -> tuple[str, ...]:
        """The micro-batch, which BatchNorm and schedules by iterations see."""
        return (MBS,)

    @property
    def workers(self) -> int:
        own = self.values.get(WORKERS)
        return own if type(own) is int and own >= 0 else 0

    def choices(self) -> Mapping[str, tuple[Value, ...]]:
        others = NUM_WORKERS if self.is_known else ()
        return {"workers": (self.workers, *(num for num in others if num != self.workers))}

    def layout(self, params: Mapping[str, Value]) -> Layout:
        return Layout(num_gpus=self.num_gpus, micro_batch=int(params[MBS]), global_batch=self.global_batch)

    def settings(self, params: Mapping[str, Value]) -> dict[str, Value]:
        layout, found = self.layout(params), dict[str, Value]()
        if params["workers"] != self.workers:
            found = {WORKERS: params["workers"], PERSISTENT: True}
        if layout.micro_batch != self.micro_batch:
            found |= {MICRO_BATCH: layout.micro_batch, ACCUMULATION: layout.num_micro_batches}
        return found


LEVERS: tuple[ConfigLever[MMEngineJob], ...] = (
    ConfigLever(
        name="compile",
        sets={"compile": True},
        goes=lambda at: at.job.is_known,
        saves={"compute": 0.05, "overhead": 0.3},
        is_alone=True,
        source=f"{ASSUMED}: fused kernels and fewer launches",
    ),
    ConfigLever(
        name="cudnn_benchmark",
        sets={"env_cfg.cudnn_benchmark": True},
        goes=lambda at: at.job.is_known,
        saves={"compute": 0.05},
        source=f"{ASSUMED}: cuDNN tries its convolutions once for each size of its inputs",
    ),
    ConfigLever(
        name="amp",
        sets={OPTIMIZER: "AmpOptimWrapper", "optim_wrapper.dtype": "bfloat16"},
        goes=lambda at: at.job.values.get(OPTIMIZER) == "OptimWrapper",
        saves={"compute": 0.4},
        memory=-0.2,
        numerics=True,
        is_alone=True,
        source=f"{ASSUMED}: Micikevicius et al. 2017 (arXiv 1710.03740), with bfloat16",
    ),
)

_LINE = r"^(?:[0-9/]{5,10} [0-9:]{8} - mmengine - \w+ - )"
_DUMP = re.compile(rf"{_LINE}Config:\n((?:(?![0-9/]{{5,10}} [0-9:]{{8}} - mmengine).*\n)+)", re.MULTILINE)
_STEP = re.compile(
    rf"{_LINE}(?:Epoch|Iter)\(train\) [^\n]{{1,200}}?  time: ([0-9.]{{1,12}})  data_time: [0-9.]{{1,12}}"
    r"(?:  memory: ([0-9]{1,9}))?([^\n]*)",
    re.MULTILINE,
)
_LOSS = re.compile(r"\bloss: ([0-9.eE+-]{1,30}|nan|-?inf)")
_RANKS = re.compile(r"^ {4}GPU number: ([0-9]{1,6})$", re.MULTILINE)


def printed_job(log: str) -> MMEngineJob | None:
    """Return the job by what its run prints of the configuration and the environment."""
    dump, ranks = _DUMP.search(log), _RANKS.search(log)
    if dump is None:
        return None
    try:
        lines = ast.parse(dump[1]).body
    except (SyntaxError, RecursionError, ValueError):
        return None
    values = {
        line.targets[0].id: _value(line.value)
        for line in lines
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)
    }
    return MMEngineJob(num_gpus=int(ranks[1]) if ranks else 1, values=flat(values))


def _value(node: ast.expr) -> Any:
    """Return a value of a printed configuration, where dictionaries are calls of dict."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        return {each.arg: _value(each.value) for each in node.keywords if each.arg}
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError):
        return ast.unparse(node)


def read_steps(log: str) -> LoggedSteps:
    """Return the iterations of a log, each as the time of an update; the memory is what was allocated at most."""
    job = printed_job(log)
    passes = job.count(ACCUMULATION) if job else 1
    steps, peak = [], 0
    for number, match in enumerate(_STEP.finditer(log), start=1):
        loss = _LOSS.search(match[3])
        peak = max(peak, int(match[2] or 0))
        flaw = first_flaw({"loss": loss[1] if loss else ""})
        seconds = float(match[1]) * passes
        if seconds > 0:
            steps.append(Step(number=number, seconds=seconds, flaw=flaw, position=match.start()))
    return LoggedSteps(steps=steps, peak_bytes=peak * 2**20 or None)
