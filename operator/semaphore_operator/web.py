"""/livez, /readyz and /metrics."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from semaphore_operator.metrics import Metrics

if TYPE_CHECKING:
    from semaphore_operator.record import Record
    from semaphore_operator.settings import Settings

SILENCE: Final = 60.0
"""Seconds without a finished sweep, beyond its period, after which the process should be started anew."""


class Web:
    """The operator's own web server; started first, so that probes have an answer from the beginning."""

    def __init__(self, settings: Settings, record: Record) -> None:
        self._settings = settings
        self._record = record
        self._metrics = CollectorRegistry(auto_describe=False)
        self._metrics.register(Metrics(record))
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics_page)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)

    async def start(self) -> int:
        """Start it; give the port."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._settings.host, self._settings.port, reuse_address=True)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop it."""
        await self._runner.cleanup()

    async def _livez(self, _: web.Request) -> web.Response:
        """Fail when the sweep hangs; a loop that hangs cannot answer. Redis or Kubernetes being away is no reason.

        A sweep that found either of them away has run, too.
        """
        silence = time.monotonic() - self._record.finished
        if silence > SILENCE + self._settings.sweep:
            return web.Response(status=503, text=f"no sweep finished for {silence:.0f}s\n")
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        """Fail until resources have been listed and are watched, or, while another leads, the Lease can be read."""
        record = self._record
        if record.standby or (record.kube_up and record.sweeps and record.watching):
            return web.Response(text="ok\n")
        return web.Response(status=503, text="the resources or the Lease cannot be read or watched; the log says why\n")

    async def _metrics_page(self, _: web.Request) -> web.Response:
        page = await asyncio.to_thread(generate_latest, self._metrics)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST})
