"""The keys that a config.json must have: asked for one by one, reported all at once."""

from __future__ import annotations

from dataclasses import dataclass, field

from zenith_tune.describe.config_json import ConfigJson


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededKeys:
    """Ask a config for counts and note those that it does not have."""

    config: ConfigJson
    missing: list[str] = field(default_factory=list)

    def need(self, *keys: str, otherwise: int = 0) -> int:
        """Return the first of `keys` that the config has, or `otherwise`; where that is 0, note the key as missing."""
        count = self.config.count(*keys)
        if count is None and not otherwise:
            self.missing.append(keys[0])
        return count or otherwise

    def refuse_missing(self) -> None:
        """Raise one error that names every missing key."""
        if self.missing:
            raise self.config.refuse(f" must have {', '.join(self.missing)} for its language model, but has not")
