"""The formats that a layout can be written in, and what of the search space each can say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.layouts.layout import RECOMPUTE_NAMES
from zenith_tune.layouts.search_space import SearchSpace
from zenith_tune.presets.emission import DATA_PARALLEL_ONLY, SIZES, Emission, Target
from zenith_tune.registry import of_sibling

ONE_EACH = dict.fromkeys(SIZES, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format for layouts: who writes it, and what it cannot say."""

    name: str
    frameworks: tuple[str, ...]
    """Whose plans it writes; the first is the one that is planned for where none is given."""
    writer: str
    """Who writes it, as module:function, which is loaded when something is written."""
    pinned: dict[str, int] = field(default_factory=dict)
    uneven_splits: bool = True
    recompute: tuple[str, ...] = RECOMPUTE_NAMES
    tensor_across_nodes: bool = True
    """Whether tensor parallelism may leave what fast links join where nothing else fits."""

    def refuse_framework(self, framework: str) -> None:
        """Raise where it would say another run than the one that was planned."""
        if framework in self.frameworks:
            return
        others = [other.name for other in FORMATS.values() if framework in other.frameworks]
        hint = f", or take --emit {' or '.join(others)}" if others else ""
        problem = f"--emit {self.name} writes plans for {' or '.join(self.frameworks)}"
        raise UsageError(f"{problem}, but the framework is {framework}", hint=f"leave --framework out{hint}")

    def emit(self, target: Target) -> Emission:
        """Return a layout written down, or raise where the format cannot say it."""
        self.refuse_framework(target.job.framework.name)
        found: Emission = of_sibling(self.writer, f"--emit {self.name}", "kubernetes")(target)
        return found

    def narrowed(self, space: SearchSpace, framework: str) -> SearchSpace:
        """Return the part of a space that this format can say of a framework."""
        self.refuse_framework(framework)
        if framework in DATA_PARALLEL_ONLY:
            return replace(space, pinned={**ONE_EACH, **space.pinned})
        return replace(
            space,
            pinned={**self.pinned, **space.pinned},
            uneven_splits=space.uneven_splits and self.uneven_splits,
            recompute=tuple(kind for kind in space.recompute if kind in self.recompute),
        )


FORMATS = {
    each.name: each
    for each in (
        Format(
            name="megatron",
            frameworks=("megatron", "megatron-local", "megatron-ci"),
            writer="zenith_tune.presets.megatron.emit:emit_megatron",
        ),
        Format(
            name="trainjob",
            frameworks=("megatron", "megatron-local", "megatron-ci"),
            writer="zenith_kubernetes.emit:emit_train_job",
        ),
        Format(name="ms-swift", frameworks=("megatron",), writer="zenith_tune.presets.megatron.emit:emit_ms_swift"),
        Format(
            name="deepspeed",
            frameworks=("deepspeed",),
            writer="zenith_tune.presets.deepspeed.emit:emit_deepspeed",
            pinned=ONE_EACH,
        ),
        Format(
            name="accelerate",
            frameworks=("megatron", *DATA_PARALLEL_ONLY),
            writer="zenith_tune.presets.accelerate.emit:emit_accelerate",
            pinned={"vp": 1, "cp": 1},
            uneven_splits=False,
            recompute=("none", "full/uniform", "full/block"),
            tensor_across_nodes=False,
        ),
    )
}


def default_format(framework: str) -> str | None:
    """Return the format that says most of a framework's plans; None where there is none for it."""
    return next((name for name, each in FORMATS.items() if framework in each.frameworks), None)


def writes(form: str, framework: str) -> bool:
    """Return whether there is a format of this name that writes a framework's plans."""
    return form in FORMATS and framework in FORMATS[form].frameworks


def writable(space: SearchSpace, form: str, framework: str) -> SearchSpace:
    """Return the part of a space that what runs the job can be given; all of it where no format writes for that."""
    return FORMATS[form].narrowed(space, framework) if writes(form, framework) else space


def format_named(name: str) -> Format:
    """Return a format by its name."""
    if name not in FORMATS:
        raise UnknownNameError("format", name, FORMATS)
    return FORMATS[name]
