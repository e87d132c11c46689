"""What the operator asks of the API server besides kopf's watch: list, write a status, write an Event."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self

from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from semaphore_operator.models import GROUP, KIND, PLURAL, VERSION, Resource
from semaphore_operator.status import LONGEST_TEXT, dump

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from semaphore_operator.models import Status

log = logging.getLogger(__name__)

PAGE: Final = 500
CALL_TIMEOUT: Final = 10
COMPONENT: Final = "semaphore-operator"


class KubeError(Exception):
    """The API server did not do what was asked; the text says what to change."""


class Kube:
    """The API server, as the operator's account may use it."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        self._objects = client.CustomObjectsApi(api)
        self._events = client.EventsV1Api(api)

    @classmethod
    async def connect(cls) -> Self:
        """Find the API server as kubectl does: the pod's account, else KUBECONFIG."""
        await config.load_config()  # type: ignore[no-untyped-call]
        return cls(client.ApiClient())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._api.close()  # type: ignore[no-untyped-call]

    async def list(self, namespaces: Sequence[str]) -> list[Resource]:
        """Read every resource of these namespaces, or of all.

        Raises:
            KubeError: the CRD is not installed, or the account may not.
        """
        found: list[Resource] = []
        for namespace in namespaces or (None,):
            following = None
            page: Any
            while True:
                options: dict[str, Any] = {"limit": PAGE, "_continue": following, "_request_timeout": CALL_TIMEOUT}
                try:
                    if namespace is None:
                        page = await self._objects.list_cluster_custom_object(GROUP, VERSION, PLURAL, **options)
                    else:
                        page = await self._objects.list_namespaced_custom_object(
                            GROUP, VERSION, namespace, PLURAL, **options
                        )
                except Exception as error:
                    raise _explained(
                        error, "list", f"namespace {namespace}" if namespace else "all namespaces"
                    ) from error
                found += [Resource.read(body) for body in page["items"]]
                following = page["metadata"].get("continue")
                if not following:
                    break
        return found

    async def write_status(self, resource: Resource, status: Status) -> None:
        """Write a status. Returns quietly when the resource is gone.

        Raises:
            KubeError: the account may not, or the API server refuses it.
        """
        try:
            await self._objects.patch_namespaced_custom_object_status(
                GROUP,
                VERSION,
                resource.namespace,
                PLURAL,
                resource.name,
                {"metadata": {"uid": resource.uid}, "status": dump(status)},
                _content_type="application/merge-patch+json",
                _request_timeout=CALL_TIMEOUT,
            )
        except Exception as error:
            if isinstance(error, ApiException) and error.status in (404, 409):
                return
            raise _explained(error, "patch the status of", f"{resource.namespace}/{resource.name}") from error

    async def event(self, resource: Resource, *, warning: bool, reason: str, message: str, action: str) -> None:
        """Write an Event on a resource; one that cannot be written is only logged."""
        body: Any = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"generateName": f"{resource.name[:200]}-", "namespace": resource.namespace},
            "eventTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "reportingController": GROUP + "/operator",
            "reportingInstance": COMPONENT,
            "action": action,
            "reason": reason,
            "note": message[:LONGEST_TEXT],
            "type": "Warning" if warning else "Normal",
            "regarding": {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": KIND,
                "namespace": resource.namespace,
                "name": resource.name,
                "uid": resource.uid,
            },
        }
        try:
            await self._events.create_namespaced_event(resource.namespace, body, _request_timeout=CALL_TIMEOUT)
        except Exception as error:  # noqa: BLE001  an Event is a courtesy: whatever fails, the sweep goes on
            log.warning(
                "no Event on %s/%s: %s", resource.namespace, resource.name, _explained(error, "create", "Events")
            )


def _explained(error: Exception, verb: str, what: str) -> KubeError:
    """Say what to change."""
    if not isinstance(error, ApiException):
        return KubeError(f"the API server cannot be reached to {verb} {what}: {str(error) or type(error).__name__}")
    if error.status == 403:
        return KubeError(
            f"this account may not {verb} {PLURAL}.{GROUP} ({what}): {_text(error)}; grant it, see docs/reference.md"
        )
    if error.status == 404:
        return KubeError(f"{PLURAL}.{GROUP} is not installed here: kubectl apply -f crds/ (or helm, crds.enabled)")
    return KubeError(f"the API server refused to {verb} {what}: {error.status} {_text(error)}")


def _text(error: ApiException) -> str:
    return str(error.body or error.reason)[:LONGEST_TEXT]
