"""The operator as a program: `semaphore-operator`, `python -m semaphore_operator`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from typing import TYPE_CHECKING, Final

from semaphore_operator import __version__
from semaphore_operator.handlers import Watch
from semaphore_operator.kube import Kube
from semaphore_operator.registry import Registry
from semaphore_operator.settings import parse
from semaphore_operator.sweep import Sweep
from semaphore_operator.web import Web

if TYPE_CHECKING:
    from semaphore_operator.settings import Settings

log = logging.getLogger("semaphore_operator")

LOOK: Final = 0.5
"""Seconds between two looks whether the watch still runs."""


async def operate(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; give the exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with await Kube.connect() as kube:
        registry = Registry()
        sweep = Sweep(settings, registry, kube)
        watch = Watch(settings, registry, sweep.notice)
        web = Web(settings, sweep.record, lambda: watch.alive)
        port = await web.start()
        log.info("version %s, serving /livez, /readyz and /metrics on port %d", __version__, port)
        sweeping = asyncio.create_task(sweep.run())
        watch.start()
        try:
            while not stop.is_set() and watch.alive and not sweeping.done():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), LOOK)
        finally:
            await asyncio.to_thread(watch.stop)
            sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sweeping
            await web.stop()
    return 0 if stop.is_set() else 1


def main() -> None:
    """Read the command line and run."""
    settings = parse()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    sys.exit(asyncio.run(operate(settings)))


if __name__ == "__main__":
    main()
