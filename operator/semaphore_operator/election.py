"""Leader election on a Lease (coordination.k8s.io): one replica writes, the others stand by.

The rules are client-go's: who stands by takes the Lease over once it has not changed for its duration, by its own
monotonic clock; who leads counts a renewal from the moment it was asked for, and stops at the renew deadline, which is
shorter. So no two clocks are compared. What a leader that was stopped in the middle of a write does later is fenced in
Redis by the epoch. (The elector of the kubernetes package renews on when the task of its leader has died, knows neither
release nor transitions, and keeps its record in an annotation.)
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ApiException

from semaphore_operator.kube import KubeError, explained

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from semaphore_operator.kube import Kube
    from semaphore_operator.record import Record
    from semaphore_operator.settings import Settings

log = logging.getLogger(__name__)

LOOK: Final = 0.5
"""Seconds between two looks of a follower, if the retry period is not shorter: how soon a released Lease is taken."""
RELEASE: Final = 2.0
"""Seconds that the release may take."""
EPOCHS: Final = 2**20
"""Leaders that one Lease may have: an epoch stays below 2^53, which a number in Lua holds exactly, until 2242."""


class Election:
    """One process's part in the election of a leader."""

    def __init__(self, kube: Kube, settings: Settings, record: Record) -> None:
        self._leases = client.CoordinationV1Api(kube.api)
        self._namespace, _, self._name = settings.lease.partition("/")
        self._settings = settings
        self._record = record
        self._version = ""
        self._renewed = 0.0
        self.identity = f"{socket.gethostname()}_{secrets.token_hex(4)}"
        """What the Lease calls this process: its host, and a word that no other process has."""

    async def win(self, stop: asyncio.Event) -> int | None:
        """Stand by until this process leads; give its epoch, which is higher than that of every leader before.

        Returns:
            None if it is to stop before. No attempt is broken off, so that no Lease is taken and left.
        """
        self._record.leading = False
        seen, since = "", 0.0
        while not stop.is_set():
            asked = time.monotonic()
            try:
                async with asyncio.timeout(self._patience):
                    lease = await self._read()
                    if lease is not None and lease.metadata.resource_version != seen:
                        seen, since = lease.metadata.resource_version, time.monotonic()
                    if lease is None or self._is_free(lease, since):
                        lease = await self._take(lease)
            except (KubeError, TimeoutError) as error:
                self._failed(error)
                self._record.standby = False
            else:
                self._record.went_well("lease")
                self._record.standby = True
                if lease is not None and lease.spec.holder_identity == self.identity:
                    return self._won(lease, asked)
            self._record.finished = time.monotonic()  # who stands by is alive
            with suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK, self._settings.retry_period)):
                    await stop.wait()
        return None

    async def keep(self) -> str:
        """Renew the Lease for as long as that works; say why this process may no longer lead."""
        while True:
            await asyncio.sleep(self._settings.retry_period)
            asked, deadline = time.monotonic(), self._renewed + self._settings.renew_deadline
            try:
                async with asyncio.timeout(deadline - asked):
                    renewed = await self._patch(self._version, renewTime=_now())
                    lease = renewed or await self._read()
            except TimeoutError:
                return f"the Lease {self._settings.lease} was not renewed for {self._settings.renew_deadline:g} s"
            except KubeError as error:
                self._failed(error)
                continue
            if lease is None or lease.spec.holder_identity != self.identity:
                return f"the Lease {self._settings.lease} has {'been deleted' if lease is None else 'another holder'}"
            self._record.went_well("lease")
            self._version = lease.metadata.resource_version
            if renewed:
                self._renewed = asked

    async def release(self) -> None:
        """Leave the Lease to whoever looks next; call it when nothing is written any more."""
        self._record.leading = False
        try:
            async with asyncio.timeout(RELEASE):
                released = await self._patch(self._version, holderIdentity="", renewTime=_now())
        except (KubeError, TimeoutError) as error:
            log.warning("the Lease was not released, and runs out: %s", str(error) or "no answer")
        else:
            log.info("the Lease was released" if released else "the Lease has changed, and is not released")

    def _won(self, lease: Any, asked: float) -> int:
        self._version, self._renewed = lease.metadata.resource_version, asked
        self._record.leading, self._record.standby = True, False
        epoch: int = int(lease.metadata.creation_timestamp.timestamp()) * EPOCHS + lease.spec.lease_transitions
        log.info("leads as %s, epoch %d", self.identity, epoch)
        return epoch

    def _is_free(self, lease: Any, since: float) -> bool:
        """Say whether it may be taken: released, run out, or taken by this process in a call whose reply was lost."""
        if lease.spec.holder_identity in (None, "", self.identity):
            return True
        duration = lease.spec.lease_duration_seconds or self._settings.lease_duration
        return time.monotonic() - since >= duration

    async def _take(self, lease: Any | None) -> Any | None:
        """Write this process into the Lease; None if another was faster."""
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._settings.lease_duration,
            "acquireTime": _now(),
            "renewTime": _now(),
        }
        if lease is not None:
            transitions = (lease.spec.lease_transitions or 0) + 1
            return await self._patch(lease.metadata.resource_version, leaseTransitions=transitions, **spec)
        body: Any = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": spec | {"leaseTransitions": 0},
        }
        created = self._leases.create_namespaced_lease(self._namespace, body, _request_timeout=self._patience)
        return await self._asked("create", created, 409)

    async def _read(self) -> Any | None:
        read = self._leases.read_namespaced_lease(self._name, self._namespace, _request_timeout=self._patience)
        return await self._asked("get", read, 404)

    async def _patch(self, version: str, **spec: Any) -> Any | None:
        """Change the Lease if it still has this version, else give None. What others wrote into its metadata stays."""
        patch = self._leases.patch_namespaced_lease(
            self._name,
            self._namespace,
            {"metadata": {"resourceVersion": version}, "spec": spec},
            _content_type="application/merge-patch+json",
            _request_timeout=self._patience,
        )
        return await self._asked("patch", patch, 404, 409)

    async def _asked(self, verb: str, call: Awaitable[Any], *otherwise: int) -> Any | None:
        try:
            return await call
        except Exception as error:
            if isinstance(error, ApiException) and error.status in otherwise:
                return None
            raise explained(error, f"{verb} leases.coordination.k8s.io {self._settings.lease}") from error

    @property
    def _patience(self) -> float:
        """Seconds for one call: a connection that has gone silent leaves time for another."""
        return self._settings.renew_deadline / 2

    def _failed(self, error: Exception) -> None:
        self._record.failed(
            "lease", str(error) or f"the API server did not answer about the Lease {self._settings.lease}"
        )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
