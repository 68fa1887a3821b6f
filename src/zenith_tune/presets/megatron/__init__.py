"""The documented preset of Megatron: import MegatronPreset from here."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zenith_tune.presets.megatron.documented.preset import MegatronPreset as MegatronPreset

__all__ = ["MegatronPreset"]


def __getattr__(name: str) -> Any:
    # Not at the top: recognising a command loads this package, and needs no preset.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from zenith_tune.presets.megatron.documented import preset

    return getattr(preset, name)
