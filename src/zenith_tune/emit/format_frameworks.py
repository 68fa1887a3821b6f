"""The formats by name, each with the frameworks whose plans it can say; nothing heavy is loaded for it."""

from __future__ import annotations

from zenith_tune.errors import UsageError

FRAMEWORKS = {
    "megatron": ("megatron", "megatron-local", "megatron-ci"),
    "ms-swift": ("megatron",),
    "deepspeed": ("deepspeed",),
    "accelerate": ("megatron", "fsdp", "deepspeed", "hf-accelerate"),
}
"""The first is the one that is planned for where none is given."""


def refuse_framework(name: str, framework: str) -> None:
    """Raise where a format would say another run than the one that was planned."""
    known = FRAMEWORKS[name]
    if framework in known:
        return
    others = [other for other, takes in FRAMEWORKS.items() if framework in takes]
    cure = f", or take --emit {' or '.join(others)}" if others else ""
    law = f"--emit {name} writes plans for {' or '.join(known)}"
    raise UsageError(f"{law}, but the framework is {framework}: leave --framework out{cure}")
