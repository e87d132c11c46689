"""What the scenarios share: conditions to wait for, and client processes that may be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from distributed_semaphore import AsyncSemaphore

#: For each line "name url" on its standard input it forks a child that takes a slot; says which was born and
#: which holds. Forking makes a client process cost milliseconds, not the start of an interpreter.
PREFORK = """
import os, signal, sys
from distributed_semaphore import Semaphore

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in iter(sys.stdin.readline, ""):
    name, url = line.split()
    if not (pid := os.fork()):
        os.write(1, f"born {os.getpid()}\\n".encode())
        slot = Semaphore(name, redis=url).acquire()  # kept: nothing else gives it back
        os.write(1, f"holds {os.getpid()}\\n".encode())
        while True:
            signal.pause()
"""


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition, within the time of a hung test."""
    async with asyncio.timeout(20):
        while not await condition():
            await asyncio.sleep(0.01)


async def shows(semaphore: AsyncSemaphore, **wanted: int) -> None:
    """Wait until the semaphore's statistics show these numbers."""

    async def condition() -> bool:
        statistics = await semaphore.statistics()
        return all(getattr(statistics, field) == value for field, value in wanted.items())

    await until(condition)


class Prefork:
    """A process that forks clients which take a slot and keep it; all of them end with the block."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._pids: set[int] = set()
        self._born: asyncio.Queue[int] = asyncio.Queue()
        self._holds: dict[int, asyncio.Event] = defaultdict(asyncio.Event)

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PREFORK, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._process is not None
        assert self._reading is not None
        for pid in list(self._pids):
            self.kill(pid)
        self._process.kill()
        await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            what, pid = line.decode().split()
            if what == "born":
                self._born.put_nowait(int(pid))
            else:
                self._holds[int(pid)].set()

    async def start(self, name: str, url: str) -> int:
        """Fork a client that asks for a slot, and give its process id."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {url}\n".encode())
        pid = await asyncio.wait_for(self._born.get(), 20)
        self._pids.add(pid)
        return pid

    async def holding(self, pid: int) -> None:
        """Wait until a client has a slot."""
        await asyncio.wait_for(self._holds[pid].wait(), 20)

    async def holder(self, name: str, url: str) -> int:
        """Fork a client and wait until it holds a slot."""
        pid = await self.start(name, url)
        await self.holding(pid)
        return pid

    def holds(self, pid: int) -> bool:
        """Whether a client has said that it has a slot."""
        return self._holds[pid].is_set()

    def kill(self, pid: int) -> None:
        """End a client by SIGKILL."""
        self._pids.discard(pid)
        os.kill(pid, signal.SIGKILL)
