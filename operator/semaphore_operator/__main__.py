"""The operator as a program: `semaphore-operator`, `python -m semaphore_operator`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

# Before the rest, which takes a second or more to import: process 1 of a container that has no handler yet is not ended
# by SIGTERM, but by SIGKILL at the end of the pod's grace period.
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

# ruff: noqa: E402
from semaphore_operator import __version__
from semaphore_operator.departed import Departed
from semaphore_operator.election import Election
from semaphore_operator.handlers import Watch
from semaphore_operator.kube import Kube, KubeError
from semaphore_operator.pods import Pods
from semaphore_operator.record import Record
from semaphore_operator.registry import Registry
from semaphore_operator.release import Release
from semaphore_operator.settings import parse
from semaphore_operator.sweep import Sweep
from semaphore_operator.web import Web

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from semaphore_operator.settings import Settings

log = logging.getLogger("semaphore_operator")

AGAIN: Final = 0.4
"""Seconds until a task that has not ended is cancelled again; kopf takes a tenth of it."""
LOST: Final = 3
"""Exit code of a leader that has lost its Lease."""


async def operate(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; give the exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    record = Record()
    web = Web(settings, record)
    try:
        port = await web.start()  # first, so that probes have an answer from the beginning
        log.info("version %s, serving /livez, /readyz and /metrics on port %d", __version__, port)
        async with await Kube.connect() as kube:
            if not settings.lease:
                await _work(settings, kube, record, stop)
            else:
                election = Election(kube, settings, record)
                if (epoch := await election.win(stop)) is not None:
                    await _work(replace(settings, epoch=epoch), kube, record, stop, _kept(election))
                    await election.release()
    except (KubeError, OSError) as error:
        log.error("%s", error)  # noqa: TRY400  it says what to do, a trace would not
        return 1
    finally:
        await web.stop()
    return 0 if stop.is_set() else 1


async def _kept(election: Election) -> None:
    """Renew the Lease; end the process at once when it is lost: what it still writes could fall into another's time."""
    why = await election.keep()
    log.critical("no longer leads, and ends: %s", why)
    logging.shutdown()
    os._exit(LOST)


async def _work(
    settings: Settings, kube: Kube, record: Record, stop: asyncio.Event, *beside: Coroutine[Any, Any, None]
) -> None:
    """Sweep and watch until it is to stop, or one of the parts ends by a fault."""
    registry = Registry()
    sweep = Sweep(settings, registry, kube, record)
    release = Release(settings, registry, sweep, kube, record)
    watch = Watch(settings, registry, sweep, release, record)
    parts = [stop.wait(), sweep.run(), watch.run(), release.run(), *beside]
    if settings.pods:
        pods = Pods(kube, settings, record)
        parts += [pods.run(), Departed(settings, pods, registry, sweep, record).run()]
    tasks = [asyncio.create_task(part) for part in parts]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await _end(tasks)


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they have ended; log what ended by a fault.

    Once may not be enough: `asyncio.wait_for` of Python 3.11, through which redis-py sends, swallows a cancellation
    that comes at the moment of success (https://github.com/python/cpython/issues/86296).
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=AGAIN)
        for task in done:
            if not task.cancelled() and (fault := task.exception()):
                log.error("ended by a fault", exc_info=fault)


def main() -> None:
    """Read the command line and run."""
    settings = parse()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # warns that signals are not its affair
    sys.exit(asyncio.run(operate(settings)))


if __name__ == "__main__":
    main()
