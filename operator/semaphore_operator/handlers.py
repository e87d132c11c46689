"""kopf's side: every event of a resource ends in `reconcile`. Runs in a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import kopf
from redis.exceptions import RedisError

from semaphore_operator.models import FINALIZER, GROUP, PLURAL, VERSION, DeletionPolicy, Resource
from semaphore_operator.reconcile import reconcile
from semaphore_operator.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from semaphore_operator.registry import Registry
    from semaphore_operator.settings import Settings

log = logging.getLogger(__name__)

RETRY: Final = 3.0
"""Seconds until a failed reconcile is tried again; the sweep tries too."""
STOP: Final = 5.0


class Watch:
    """kopf in its own thread: started when this process leads, stopped when it ends."""

    def __init__(
        self, settings: Settings, registry: Registry, notice: Callable[[Resource, tuple[str, str] | None], None]
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._notice = notice
        self._store = Store(settings)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Start watching."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, and wait until it has."""
        self._stop.set()
        self._thread.join(STOP)

    @property
    def alive(self) -> bool:
        """Whether it still watches."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            asyncio.run(self._operate())
        except BaseException as error:  # the main thread ends the process
            log.exception("the watch ended")
            self.failure = error

    async def _operate(self) -> None:
        registry = kopf.OperatorRegistry()
        kind = (GROUP, VERSION, PLURAL)
        kopf.on.login(id="login", registry=registry)(_login)
        for on in (kopf.on.create, kopf.on.update, kopf.on.resume):
            on(*kind, id="reconcile", registry=registry)(self._changed)
        kopf.on.delete(*kind, id="reconcile", registry=registry)(self._deleted)
        await kopf.operator(
            registry=registry,
            settings=_kopf_settings(),
            standalone=True,
            clusterwide=not self._settings.namespaces,
            namespaces=self._settings.namespaces,
            stop_flag=self._stop,
        )
        await self._store.close()

    async def _changed(self, body: kopf.Body, **_: Any) -> None:
        resource = Resource.read(body)
        await self._reconcile(resource)
        self._notice(resource, None)

    async def _deleted(self, body: kopf.Body, **_: Any) -> None:
        resource = Resource.read(body)
        try:
            await self._reconcile(resource)
        except kopf.TemporaryError as error:
            waited = (datetime.now(UTC) - datetime.fromisoformat(str(resource.deleted))).total_seconds()
            if waited < self._settings.finalizer:
                raise
            self._registry.remove(resource.uid)
            left = f"Redis cannot be reached ({error}); keys {resource.keys.prefix}* may be left in it"
            self._notice(resource, ("KeysLeft", left))
        else:
            self._notice(resource, None)

    async def _reconcile(self, resource: Resource) -> None:
        if resource.deleted and resource.spec.deletion_policy is DeletionPolicy.RETAIN:
            self._registry.remove(resource.uid)
            return
        try:
            await reconcile(resource, self._registry, await self._store.redis(), self._settings.epoch)
        except (RedisError, OSError, ValueError) as error:
            raise kopf.TemporaryError(str(error)[:1024], delay=RETRY) from None


def _login(**options: Any) -> kopf.ConnectionInfo | None:
    return kopf.login_with_service_account(**options) or kopf.login_with_kubeconfig(**options)


def _kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.persistence.finalizer = FINALIZER
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=GROUP)
    settings.posting.enabled = False  # Events are the sweep's: one a situation
    settings.watching.server_timeout = 300  # a silent watch is opened anew
    settings.networking.request_timeout = 30
    settings.scanning.disabled = False
    return settings
