"""Shows how far a build is: a live bar on a terminal, a plain line every 15 seconds elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from types import TracebackType

PLAIN_INTERVAL = 15.0


class Display(Protocol):
    """What the build tells of its progress; everything goes to standard error."""

    def __enter__(self) -> Self:
        """Begin to show."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop to show."""

    def show(self, phase: str, done: int, total: int) -> None:
        """Say that `done` of `total` steps of `phase` are behind us; a `total` of 0 means that nobody knows."""


def display() -> Display:
    """Return the display that fits standard error."""
    return _Bar() if sys.stderr.isatty() else _Lines()


class _Bar:
    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task("", total=None, count="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, phase: str, done: int, total: int) -> None:
        self._progress.update(
            self._task, description=phase, completed=done, total=total or None, count=_count(done, total)
        )


class _Lines:
    def __init__(self) -> None:
        self._started = time.monotonic()
        self._next = self._started + PLAIN_INTERVAL

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def show(self, phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + PLAIN_INTERVAL
        print(f"  {clock(now - self._started)}  {phase} {_count(done, total)}", file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """Write a duration as minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _count(done: int, total: int) -> str:
    if total:
        return f"{done:,} of {total:,}"
    return f"{done:,}" if done else ""
