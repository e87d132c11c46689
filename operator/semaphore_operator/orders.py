"""Orders to take a slot away, as an annotation of the resource gives them: pure functions of its metadata."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Self

RELEASE: Final = "semaphores.dev/release"
FORMS: Final = "pod/NAME, pod/NAMESPACE/NAME, fence/NUMBER or token/TOKEN"
_FORM: Final = re.compile(
    r"pod/((?P<namespace>[a-z0-9-]+)/)?(?P<pod>[a-z0-9][a-z0-9.-]*)|fence/(?P<fence>\d{1,16})|token/(?P<token>\w+\.\d+\.\d+)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Target:
    """Whose slots and places are meant."""

    kind: str
    """pod, fence or token."""
    value: str
    namespace: str = ""
    """Of a pod; none: of any namespace."""


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked for, and by whom."""

    text: str
    by: str
    """The field manager that owns the annotation, such as kubectl-annotate; none if nothing says so."""

    @classmethod
    def read(cls, metadata: Any) -> Self | None:
        """Give the order that stands in a resource's metadata."""
        text = (metadata.get("annotations") or {}).get(RELEASE)
        return None if text is None else cls(str(text), _manager(metadata))

    def target(self) -> Target | None:
        """Give whom it means; None if it is of no known form."""
        if (match := _FORM.fullmatch(self.text.strip())) is None:
            return None
        kind = str(match.lastgroup)
        return Target(kind, match[kind], match["namespace"] or "")


def _manager(metadata: Any) -> str:
    for entry in metadata.get("managedFields") or ():
        fields = (entry.get("fieldsV1") or {}).get("f:metadata") or {}
        if f"f:{RELEASE}" in (fields.get("f:annotations") or {}):
            return str(entry.get("manager", ""))
    return ""
