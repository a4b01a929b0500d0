"""The manifest: what really ran. A thin, typed view over the recorded JSON object, which is kept whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from narrows.inquiry.codec import check_schema, digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One run's manifest. Fields that were not recorded are absent from ``raw``, never empty stand-ins."""

    raw: Mapping[str, Any]

    @classmethod
    def of(cls, raw: Mapping[str, Any], where: str) -> Manifest:
        """Raises ``ValueError`` naming ``where`` for a manifest of an unknown schema or kind."""
        check_schema(raw.get("schema"), where)
        if raw.get("kind") != "manifest":
            raise ValueError(f"{where}: kind is {raw.get('kind')!r}; expected 'manifest'")
        return cls(raw=raw)

    @property
    def device(self) -> str | None:
        return self.raw.get("device")

    @property
    def emulated(self) -> bool:
        return bool(self.raw.get("emulated"))

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.raw.get("config") or {})

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names in node-rank order."""
        seen: dict[str, None] = {}
        for place in self.raw.get("placement") or ():
            seen.setdefault(str(place["host"]))
        return tuple(seen)

    @property
    def world_size(self) -> int | None:
        placed = self.raw.get("placement")
        return len(placed) if placed else None

    def digest(self) -> str:
        return digest(self.raw)
