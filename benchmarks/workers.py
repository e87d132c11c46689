"""Processes that do the work of a benchmark, with a pipe to each."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

START_DELAY = 0.2
"""Seconds between the word to start and the start, so that all processes have heard it."""
PATIENCE = 120.0
"""Seconds until a process that does not answer is given up."""


@contextmanager
def processes(target: Callable[..., None], arguments: Sequence[tuple[object, ...]]) -> Iterator[list[Connection]]:
    """Run a function in one new process for each tuple of arguments, with a pipe to it as its first argument.

    At the end of the block they are waited for; if it ends with an error they are killed.
    """
    spawn = multiprocessing.get_context("spawn")
    running = []
    connections: list[Connection] = []
    try:
        for own in arguments:
            here, there = spawn.Pipe()
            process = spawn.Process(target=_run, args=(target, there, *own), daemon=True)
            process.start()
            there.close()
            running.append(process)
            connections.append(here)
        yield connections
        for process in running:
            process.join(PATIENCE)
    finally:
        for process, connection in zip(running, connections, strict=True):
            process.kill()
            process.join()
            connection.close()


def _run(target: Callable[..., None], *arguments: object) -> None:
    """Run in the new process: Ctrl-C is for the one that started it, which then ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target(*arguments)


def hear(connection: Connection) -> Any:
    """Receive what a process says.

    Raises:
        ChildProcessError: it has ended, or says nothing for two minutes.
    """
    if not connection.poll(PATIENCE):
        raise ChildProcessError(f"a worker process has not answered for {PATIENCE:.0f} s")
    try:
        return connection.recv()
    except EOFError:
        raise ChildProcessError("a worker process has failed; its error is printed above") from None


def start_together(connections: Sequence[Connection]) -> float:
    """Wait until all processes are ready, then give all of them one moment of the monotonic clock to start at."""
    for connection in connections:
        hear(connection)
    start = time.monotonic() + START_DELAY
    for connection in connections:
        connection.send(start)
    return start


async def start_signal(connection: Connection) -> float:
    """Say that this process is ready, and sleep until the moment that all start at, which is returned."""
    connection.send("ready")
    start: float = await asyncio.to_thread(connection.recv)
    await asyncio.sleep(start - time.monotonic())
    return start
