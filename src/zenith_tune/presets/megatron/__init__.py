"""The documented preset of Megatron: import MegatronPreset from here."""

from zenith_tune.presets.megatron.documented.preset import MegatronPreset

__all__ = ["MegatronPreset"]
