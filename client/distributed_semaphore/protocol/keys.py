"""Names and keys: every key of one semaphore shares one hash tag, so it lives on one Redis node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self
from urllib.parse import quote

#: Longest name, in bytes of UTF-8: two Kubernetes names of 253 characters and the slash between them.
MAX_NAME_BYTES = 507


class SemaphoreName(str):
    """A checked semaphore name, ``<namespace>/<name>`` for one that a resource declares.

    Any text of 1 to 507 bytes without control characters is a name; whatever Redis or its ACL patterns would
    read as syntax is percent-encoded in the key.

    Raises:
        ValueError: it is no text, empty, too long, or has control characters.
    """

    __slots__ = ()

    def __new__(cls, value: str) -> Self:
        """Check a name."""
        if not isinstance(value, str):
            raise ValueError(f"a semaphore's name is a text, not {value!r}")  # noqa: TRY004  as for any other wrong name
        if not value.isprintable():
            raise ValueError(f"a semaphore's name has no control characters: {value!r}")
        if not 0 < (size := len(value.encode())) <= MAX_NAME_BYTES:
            raise ValueError(f"a semaphore's name has 1 to {MAX_NAME_BYTES} bytes, this one has {size}")
        return super().__new__(cls, value)


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one semaphore."""

    prefix: str
    scripted: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """KEYS of every script, in the order in which the scripts expect them.

    The config's key is not among them: a client's Redis user may be allowed to read it only, and Redis asks for
    write permission on everything in KEYS. Scripts derive it from KEYS[1]; the shared tag keeps it on the node.
    """

    def __post_init__(self) -> None:
        """Put the keys together once, not for every call."""
        parts = ("holders", "queue", "clients", "grants", "identities", "counters")
        object.__setattr__(self, "scripted", tuple(self.prefix + part for part in parts))

    @classmethod
    def of(cls, name: str) -> Keys:
        """Give the keys of the semaphore of this name.

        Raises:
            ValueError: see `SemaphoreName`.
        """
        return cls(f"sem:{{{quote(SemaphoreName(name), safe='/')}}}:")

    @property
    def config(self) -> str:
        """Hash: limit, lease, state and the rest of the spec, with who wrote it."""
        return self.prefix + "config"

    def channel(self, client: str) -> str:
        """Channel on which one process hears of its own grants."""
        return f"{self.prefix}w:{client}"
