"""Durations as Kubernetes writes them: `30s`, `1m30s`, `1500ms` (GEP-2257)."""

from __future__ import annotations

import re
from typing import Final

#: What the API server's CEL `duration()` understands too, so that both sides agree.
PATTERN: Final = "^([0-9]{1,5}(h|m|s|ms)){1,4}$"
_PART: Final = re.compile(r"([0-9]{1,5})(ms|h|m|s)")
_MS: Final = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}


def milliseconds(text: str) -> int:
    """Read a duration.

    Raises:
        ValueError: it is not one.
    """
    if not re.match(PATTERN, text):
        raise ValueError(f"a duration is written like 30s, 1m30s or 2h, not {text!r}")
    return sum(int(number) * _MS[unit] for number, unit in _PART.findall(text))


def seconds(text: str) -> float:
    """Read a duration in seconds."""
    return milliseconds(text) / 1000


def rough(length: float | None) -> str | None:
    """Write an estimate in seconds for people: `0.4s`, `42s`, `3m20s`, `2h5m`; nothing for none."""
    if length is None:
        return None
    whole = round(length)
    if whole < 10:
        return f"{length:.1f}s"
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60}s"
    return f"{whole // 3600}h{whole % 3600 // 60}m"
