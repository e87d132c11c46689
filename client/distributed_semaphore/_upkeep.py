"""What the upkeep of connections needs: tasks that are held, and pauses that grow."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Coroutine

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0

_random = random.Random()  # noqa: S311  one of our own: a program that has seeded Python's gets the numbers it expects


class Tasks:
    """Tasks that are held for as long as they run: the loop itself only remembers them weakly."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)


class Backoff:
    """Pauses between attempts, each up to twice as long as the one before, until one succeeds."""

    def __init__(self) -> None:
        self._next = FIRST_PAUSE

    def succeeded(self) -> None:
        """Begin with the shortest again."""
        self._next = FIRST_PAUSE

    async def pause(self) -> None:
        """Wait; not all processes equally long."""
        seconds, self._next = self._next, min(2 * self._next, LONGEST_PAUSE)
        await asyncio.sleep(seconds * _random.uniform(0.5, 1.0))
