"""What clients say of themselves, as far as it is shown: they write it, so it is bounded here, in bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST: Final = {"pod": 253, "namespace": 63, "node": 63, "app": 63, "host": 63, "pid": 10}
"""What of an identity is shown, the most telling first, and how many bytes of it."""
ROOM: Final = 4400
"""Bytes for ten parties in a status: enough for ten pods with names as long as Kubernetes takes, so that an object with
holders, waiters and messages about them stays below 16 KiB."""
REST: Final = 100
"""Bytes of a party in a status besides what it says of itself."""
ESCAPED: Final = str.maketrans(dict.fromkeys('"\\<>&', "?"))
"""Letters that take up to six bytes in the API server's JSON; no name of Kubernetes has one."""


def identified(identity: Any) -> dict[str, str]:
    """Give what of an identity may be shown, whatever a client has written into it."""
    if not isinstance(identity, dict):
        return {}
    known = {name: str(identity[name]) for name in LONGEST if identity.get(name) not in (None, "")}
    return {name: cut(text.translate(ESCAPED), LONGEST[name]) for name, text in known.items() if text.isprintable()}


def fitted(identities: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """Shorten a list of identities to `ROOM`: a pod's other names go first, the least telling before, then the last.

    Names of pods stay whole, since whoever reads them gives them to kubectl.
    """
    left = list(identities)
    for name in ("pid", "host", "app", "node"):
        if sum(map(_size, left)) <= ROOM:
            break
        left = [{key: text for key, text in each.items() if key != name or "pod" not in each} for each in left]
    while sum(map(_size, left)) > ROOM:
        left.pop()
    return left


def _size(identity: dict[str, str]) -> int:
    return REST + sum(len(f'"{name}":"{text}",'.encode()) for name, text in identity.items())


def cut(text: str, most: int) -> str:
    """Give as much of a text as fits into so many bytes."""
    return text.encode(errors="replace")[:most].decode(errors="ignore")
