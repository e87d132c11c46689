"""Which pods of semaphores' clients live: listed and watched by their label, and only their metadata.

The API server leaves out those that have ended, by a field selector. So what vanishes here has been deleted, has ended
or has lost its label; a pod whose node is unreachable stays, whatever has been asked for it, until its object goes.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any, Final

from kubernetes.aio import client

from semaphore_operator.kube import CALL_TIMEOUT, PAGE, KubeError, explained

if TYPE_CHECKING:
    from collections.abc import Iterable

    from semaphore_operator.kube import Kube
    from semaphore_operator.record import Record
    from semaphore_operator.settings import Settings

LABEL: Final = "semaphores.dev/client"
LIVING: Final = "status.phase!=Succeeded,status.phase!=Failed"
WATCH: Final = 300
"""Seconds after which pods are listed anew: a watch that has gone silent is noticed by then."""
PAUSE: Final = 2.0
"""Seconds until the next attempt after a failure."""
MEMORY: Final = 600.0
"""Seconds for which a pod that has vanished is remembered, at least."""
_AS: Final = "application/json;g=meta.k8s.io;v=v1;as="


class Pods:
    """The living pods with the label, as last seen."""

    def __init__(self, kube: Kube, settings: Settings, record: Record) -> None:
        self.changed = asyncio.Event()
        """Set when pods have vanished, or were listed."""
        self._core = client.CoreV1Api(kube.api)
        self._selector = f"{LABEL}={settings.pods}"
        self._scopes = settings.namespaces or (None,)
        self._record = record
        self._living: dict[str | None, set[str]] = {}
        self._vanished: dict[str, float] = {}

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        async with asyncio.TaskGroup() as group:
            for scope in self._scopes:
                group.create_task(self._follow(scope))

    def serves(self, namespace: str) -> bool:
        """Say whether the pods of a namespace are known."""
        return (namespace if None not in self._scopes else None) in self._living

    def lives(self, uid: str) -> bool:
        """Say whether a pod has the label and has not ended, as last seen."""
        return any(uid in living for living in self._living.values())

    def vanished(self, uid: str) -> bool:
        """Say whether a pod had the label, and does not live any more or has lost it."""
        return uid in self._vanished

    async def is_gone(self, namespace: str, name: str, uid: str) -> bool:
        """Ask whether a pod has ended or does not exist, whatever its labels; one call.

        Raises:
            KubeError: the account may not, or there is no answer.
        """
        uids, _ = await self._page(namespace, field_selector=f"metadata.name={name},{LIVING}")
        return uid not in uids

    async def _follow(self, scope: str | None) -> None:
        while True:
            try:
                version = await self._list(scope)
                self._record.went_well("pods")
                await self._watch(scope, version)
            except KubeError as error:
                self._record.failed("pods", str(error))
                await asyncio.sleep(PAUSE)

    async def _list(self, scope: str | None) -> str:
        """Take over what a listing shows; give its resourceVersion."""
        living: set[str] = set()
        following = None
        while True:
            uids, metadata = await self._page(
                scope, label_selector=self._selector, field_selector=LIVING, limit=PAGE, _continue=following
            )
            living |= uids
            following = metadata.get("continue")
            if not following:
                break
        forgotten = time.monotonic() - MEMORY
        self._vanished = {uid: when for uid, when in self._vanished.items() if when > forgotten}
        self._vanish(self._living.get(scope, set()) - living)
        self._living[scope] = living
        self.changed.set()
        return str(metadata["resourceVersion"])

    async def _watch(self, scope: str | None, version: str) -> None:
        """Follow the changes since a version, until the API server ends that."""
        living = self._living[scope]
        try:
            answer = await self._ask(
                scope,
                label_selector=self._selector,
                field_selector=LIVING,
                watch=True,
                resource_version=version,
                timeout_seconds=WATCH,
                _headers={"Accept": f"{_AS}PartialObjectMetadata"},
                _request_timeout=WATCH + CALL_TIMEOUT,
            )
            try:
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":  # the version is too old
                        return
                    uid = event["object"]["metadata"]["uid"]
                    if event["type"] == "DELETED":
                        living.discard(uid)
                        self._vanish([uid])
                    else:
                        living.add(uid)
            finally:
                answer.close()
        except Exception as error:
            raise explained(error, f"watch pods in {scope or 'all namespaces'}") from error

    def _vanish(self, uids: Iterable[str]) -> None:
        self._vanished |= dict.fromkeys(uids, time.monotonic())
        self.changed.set()

    async def _page(self, scope: str | None, **options: Any) -> tuple[set[str], Any]:
        """Give the uids of one page of pods, and its metadata."""
        headers = {"Accept": f"{_AS}PartialObjectMetadataList"}
        try:
            answer = await self._ask(scope, _headers=headers, _request_timeout=CALL_TIMEOUT, **options)
            page = json.loads(await answer.text())
            return {item["metadata"]["uid"] for item in page["items"] or ()}, page["metadata"]
        except Exception as error:
            raise explained(error, f"list pods in {scope or 'all namespaces'}") from error

    async def _ask(self, scope: str | None, **options: Any) -> Any:
        # The package's models would want a whole pod.
        if scope is None:
            answer = await self._core.list_pod_for_all_namespaces_without_preload_content(**options)
        else:
            answer = await self._core.list_namespaced_pod_without_preload_content(scope, **options)
        if answer.status != 200:
            raise client.ApiException(status=answer.status, body=await answer.text())
        return answer
