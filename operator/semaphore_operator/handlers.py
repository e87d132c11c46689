"""kopf's side: every event of a resource ends in `reconcile`. Runs in a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import aiohttp
import kopf
from redis.exceptions import RedisError

from semaphore_operator.events import keys_left
from semaphore_operator.kube import COMPONENT, in_cluster, server_of_pod
from semaphore_operator.models import FINALIZER, GROUP, PLURAL, VERSION, Resource
from semaphore_operator.orders import RELEASE
from semaphore_operator.reconcile import reconcile
from semaphore_operator.status import clean
from semaphore_operator.store import Store

if TYPE_CHECKING:
    from semaphore_operator.record import Record
    from semaphore_operator.registry import Registry
    from semaphore_operator.release import Release
    from semaphore_operator.settings import Settings
    from semaphore_operator.sweep import Sweep

log = logging.getLogger(__name__)

LONGEST_BACK_OFF: Final = 15.0
"""Seconds between two attempts to delete a semaphore from a Redis that does not answer."""
STOP: Final = 5.0
CONNECTIONS: Final = 16
"""To the API server, besides one for each watch."""


class Watch:
    """kopf, in a thread that lives as long as `run`."""

    def __init__(self, settings: Settings, registry: Registry, sweep: Sweep, release: Release, record: Record) -> None:
        self._settings = settings
        self._registry = registry
        self._sweep = sweep
        self._release = release
        self._record = record

    async def run(self) -> None:
        """Watch until cancelled; begin again when kopf ends, which it does when a right or the CRD is taken away."""
        while True:
            await self._sweep.listed.wait()
            self._record.watching = True
            try:
                why = await self._watch()
            finally:
                self._record.watching = False
            self._record.errors["watch"] += 1
            log.error("the watch ended, and begins again: %s", why)
            self._sweep.relist()

    async def _watch(self) -> str:
        """Run one kopf until it ends or this is cancelled; say why it ended."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        kopfs_loop = asyncio.new_event_loop()
        operating = kopfs_loop.create_task(self._operate())
        why = "without a reason"

        def thread() -> None:
            nonlocal why
            try:
                with asyncio.Runner(loop_factory=lambda: kopfs_loop) as runner:
                    runner.run(asyncio.wait([operating]))
                operating.result()
            except Exception as error:  # noqa: BLE001  kopf ends with whatever has stopped it
                why = f"{type(error).__name__}: {getattr(error, 'message', None) or clean(error)}"
            except asyncio.CancelledError:
                pass
            with suppress(RuntimeError):  # the main loop may have ended first
                loop.call_soon_threadsafe(ended.set)

        def cancel() -> None:
            # Not kopf's stop flag, after which it waits 5 s for requests of its own start. What its generators have to
            # say when they are closed in the middle is of no interest.
            kopfs_loop.set_exception_handler(lambda *_: None)
            operating.cancel()

        running = threading.Thread(target=thread, name="kopf", daemon=True)
        running.start()
        try:
            await ended.wait()
        finally:
            with suppress(RuntimeError):  # it has ended
                kopfs_loop.call_soon_threadsafe(cancel)
            await asyncio.to_thread(running.join, STOP)
        return why

    async def _operate(self) -> None:
        handlers = Handlers(self._settings, self._registry, self._sweep, self._release)
        try:
            await kopf.operator(
                registry=handlers.registered(),
                settings=_kopf_settings(),
                standalone=True,
                identity=cast("Any", COMPONENT),  # kopf's own guess takes a passwd entry
                clusterwide=not self._settings.namespaces,
                namespaces=self._settings.namespaces,
            )
        finally:
            await handlers.close()


class Handlers:
    """What kopf calls, in its event loop."""

    def __init__(self, settings: Settings, registry: Registry, sweep: Sweep, release: Release) -> None:
        self._settings = settings
        self._registry = registry
        self._sweep = sweep
        self._release = release
        self._store = Store(settings)

    def registered(self) -> kopf.OperatorRegistry:
        """Give kopf's registry of handlers."""
        registry = kopf.OperatorRegistry()
        kind = (GROUP, VERSION, PLURAL)
        watches = max(1, len(self._settings.namespaces))
        kopf.on.login(id="login", registry=registry)(partial(_login, CONNECTIONS + watches))
        for on in (kopf.on.create, kopf.on.update, kopf.on.resume):
            on(*kind, id="reconcile", registry=registry)(self.changed)
        kopf.on.delete(*kind, id="reconcile", registry=registry)(self.deleted)
        kopf.on.event(*kind, id="release", annotations={RELEASE: kopf.PRESENT}, registry=registry)(self.ordered)
        return registry

    async def close(self) -> None:
        """Close the connections."""
        await self._store.close()

    async def changed(self, body: kopf.Body, **_: Any) -> None:
        """Write a config. When Redis does not answer, the sweep does it later: a retry of kopf's costs two patches."""
        if (resource := _read(body)) is None:
            return
        with suppress(RedisError, OSError, ValueError):  # the sweep says so
            await reconcile(resource, self._registry, self._store, self._settings.epoch)
        self._sweep.notice(resource.uid)

    async def ordered(self, body: kopf.Body, **_: Any) -> None:
        """Hand over an order to take a slot away."""
        if body.meta.deletion_timestamp is None and (resource := _read(body)) is not None:
            self._release.take(resource)

    async def deleted(self, body: kopf.Body, retry: int, **_: Any) -> None:
        """Withdraw a semaphore; a Redis that does not answer holds this up for a while, and not for ever.

        Raises:
            kopf.TemporaryError: Redis did not answer; kopf calls again.
        """
        if (resource := _read(body)) is None:
            return
        try:
            await reconcile(resource, self._registry, self._store, self._settings.epoch)
        except (RedisError, OSError, ValueError) as error:
            waited = (datetime.now(UTC) - datetime.fromisoformat(str(resource.deleted))).total_seconds()
            left = self._settings.finalizer - waited
            if left > 0:
                back_off = min(2.0**retry, LONGEST_BACK_OFF) * random.uniform(0.8, 1.2)  # noqa: S311
                raise kopf.TemporaryError(clean(error)[:200], delay=min(back_off, left)) from None
            self._registry.remove(resource.uid)
            self._sweep.announce(resource, keys_left(resource, clean(error)))
        self._sweep.notice(resource.uid)
        if heir := self._registry.owner(resource.semaphore):
            self._sweep.notice(heir.uid)


def _read(body: kopf.Body) -> Resource | None:
    try:
        return Resource.read(body)
    except (ValueError, KeyError, TypeError) as error:
        log.error("left out, not as the CRD has it: %s/%s: %s", body.meta.namespace, body.meta.name, clean(error))  # noqa: TRY400
        return None


async def _login(connections: int, **options: Any) -> kopf.AiohttpSession | None:
    """Find the API server as `Kube.connect` does; called again when a token is refused, so a new one is read."""
    if not in_cluster():
        account = kopf.login_with_kubeconfig(**options)
    elif account := kopf.login_with_service_account(**options):
        # kopf goes to kubernetes.default.svc, which takes a cluster's DNS.
        account = replace(account, server=server_of_pod())
    if account is None:
        return None
    # kopf's own session has no limit: at a start with many resources hundreds of connections, 0.4 MiB of TLS each.
    connector = aiohttp.TCPConnector(limit=connections, ssl=account.as_ssl_context())
    session = aiohttp.ClientSession(
        connector=connector, headers=account.as_http_headers(), proxy=account.proxy_url, trust_env=account.trust_env
    )
    return kopf.AiohttpSession(
        server=account.server, default_namespace=account.default_namespace, aiohttp_session=session
    )


def _kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.persistence.finalizer = FINALIZER
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    settings.posting.enabled = False  # Events are written by the sweep, one a situation
    settings.scanning.disabled = True  # so that it takes no rights on CRDs and namespaces; `Watch.run` begins again
    settings.watching.server_timeout = 300  # a silent watch is opened anew
    settings.queueing.exit_timeout = 0.2
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = (1, 2, 4)  # then `Watch.run` begins again, and says why
    return settings
