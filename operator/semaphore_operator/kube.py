"""What the operator asks of the API server besides kopf's watch: list, write a status, write an Event."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self

from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.config import ConfigException

from semaphore_operator.conditions import LONGEST_TEXT
from semaphore_operator.identities import cut
from semaphore_operator.models import GROUP, KIND, PLURAL, VERSION, Resource
from semaphore_operator.orders import RELEASE
from semaphore_operator.status import clean, dump

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from semaphore_operator.events import Announcement
    from semaphore_operator.models import Status
    from semaphore_operator.orders import Order

log = logging.getLogger(__name__)

PAGE: Final = 500
CALL_TIMEOUT: Final = 10
COMPONENT: Final = "semaphore-operator"
GRANT: Final = "grant it the rules of docs/reference.md, or correct --namespaces (chart: rbac.create, namespaces)"


class KubeError(Exception):
    """The API server did not do what was asked; the text says what to change."""


class KubeUnreachableError(KubeError):
    """The API server did not answer."""


def in_cluster() -> bool:
    """Whether the account of this pod is the one to use: in a pod, unless KUBECONFIG says otherwise."""
    return "KUBERNETES_SERVICE_HOST" in os.environ and not os.environ.get("KUBECONFIG")


def server_of_pod() -> str:
    """Give the API server's address as every pod is told it."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


class Kube:
    """The API server, as the operator's account may use it."""

    def __init__(self, api: client.ApiClient) -> None:
        self.api = api
        self._objects = client.CustomObjectsApi(api)
        self._events = client.EventsV1Api(api)

    @classmethod
    async def connect(cls) -> Self:
        """Find the API server: by the pod's account in a pod, else by KUBECONFIG or ~/.kube/config. Asks nothing yet.

        Raises:
            KubeError: there is neither.
        """
        configuration = client.Configuration()
        try:
            if in_cluster():
                config.load_incluster_config(configuration)
            else:
                await config.load_kube_config(client_configuration=configuration)
        except (ConfigException, OSError) as error:
            raise KubeError(f"which Kubernetes? not in a pod, and no kubeconfig: {error}; set KUBECONFIG") from None
        return cls(client.ApiClient(configuration))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.api.close()

    async def list(self, namespaces: Sequence[str]) -> list[Resource]:
        """Read every resource of these namespaces, or of all. One that cannot be read is left out, and logged.

        Raises:
            KubeError: the CRD is not installed, or the account may not.
        """
        found: list[Resource] = []
        for namespace in namespaces or (None,):
            following = None
            while True:
                page = await self._page(namespace, following)
                for body in page["items"]:
                    try:
                        found.append(Resource.read(body))
                    except (ValueError, KeyError, TypeError) as error:
                        log.warning("left out, no resource: %.200s: %s", body, clean(error))
                following = page["metadata"].get("continue")
                if not following:
                    break
        return found

    async def discovered(self) -> bool:
        """Say whether discovery, which kopf goes by, shows the resource too: a moment later than it can be listed.

        Raises:
            KubeError: the account may not ask.
        """
        try:
            groups = await client.ApisApi(self.api).get_api_versions(_request_timeout=CALL_TIMEOUT)
            if GROUP not in {group.name for group in groups.groups}:
                return False
            found = await self._objects.get_api_resources(GROUP, VERSION, _request_timeout=CALL_TIMEOUT)
        except Exception as error:
            raise explained(error, f"discover {GROUP}/{VERSION}") from error
        return PLURAL in {resource.name for resource in found.resources}

    async def _page(self, namespace: str | None, following: str | None) -> Any:
        options: dict[str, Any] = {"limit": PAGE, "_continue": following, "_request_timeout": CALL_TIMEOUT}
        wish = f"list {PLURAL} in {namespace or 'all namespaces'}"
        try:
            if namespace is None:
                page = await self._objects.list_cluster_custom_object(GROUP, VERSION, PLURAL, **options)
            else:
                page = await self._objects.list_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, **options)
        except Exception as error:
            raise explained(error, wish) from error
        if not isinstance(page, dict) or not {"items", "metadata"} <= page.keys():
            raise KubeError(f"the API server, or what stands before it, gave no list (wanted: {wish}): {page!r:.200}")
        return page

    async def write_status(self, resource: Resource, status: Status) -> bool:
        """Write a status.

        Returns:
            False if the resource has gone.

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
                # With the uid, so that it cannot fall on a namesake that has come since.
                {"metadata": {"uid": resource.uid}, "status": dump(status)},
                _content_type="application/merge-patch+json",
                _request_timeout=CALL_TIMEOUT,
            )
        except Exception as error:
            if isinstance(error, ApiException) and error.status in (404, 409):
                return False
            raise explained(error, f"patch {PLURAL}/status of {resource.namespace}/{resource.name}") from error
        return True

    async def take_order(self, resource: Resource, order: Order) -> bool:
        """Remove the order from a resource, if it still stands there.

        Raises:
            KubeError: the account may not, or there is no answer.
        """
        path = "/metadata/annotations/" + RELEASE.replace("/", "~1")
        patch: Any = [
            {"op": "test", "path": "/metadata/uid", "value": resource.uid},
            {"op": "test", "path": path, "value": order.text},
            {"op": "remove", "path": path},
        ]
        try:
            await self._objects.patch_namespaced_custom_object(
                GROUP,
                VERSION,
                resource.namespace,
                PLURAL,
                resource.name,
                patch,
                _content_type="application/json-patch+json",
                _request_timeout=CALL_TIMEOUT,
            )
        except Exception as error:
            if isinstance(error, ApiException) and error.status in (404, 409, 422):
                return False
            raise explained(error, f"patch {PLURAL} {resource.namespace}/{resource.name}") from error
        return True

    async def event(self, resource: Resource, announcement: Announcement) -> None:
        """Write an Event on a resource; one that cannot be written is only logged."""
        body: Any = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"generateName": f"{resource.name[:200]}-", "namespace": resource.namespace},
            "eventTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "reportingController": f"{GROUP}/operator",
            "reportingInstance": COMPONENT,
            "action": announcement.action,
            "reason": announcement.reason,
            "note": cut(announcement.message, LONGEST_TEXT),  # the API server counts bytes
            "type": "Warning" if announcement.warning else "Normal",
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
            if _namespace_ends(error):
                return
            said = explained(error, "create events.events.k8s.io")
            log.warning("no Event %s on %s/%s: %s", announcement.reason, resource.namespace, resource.name, said)


def explained(error: Exception, wish: str) -> KubeError:
    """Say what to change so that the API server does as wished."""
    if not isinstance(error, ApiException):
        return KubeUnreachableError(f"the API server does not answer (wanted: {wish}): {clean(error)}")
    said = _message(error)
    if error.status == 401:
        return KubeError(f"the API server does not know this account (wanted: {wish}): {said}")
    if error.status == 403:
        return KubeError(f"this account may not {wish}: {said}; {GRANT}")
    if error.status == 404 and (PLURAL in wish or GROUP in wish):
        return KubeError(f"{PLURAL}.{GROUP} is not installed here (wanted: {wish}): kubectl apply -f crds/")
    return KubeError(f"the API server refused to {wish}: {error.status} {said}")


def _namespace_ends(error: Exception) -> bool:
    """Say whether it was refused because the namespace is being deleted: a 403, but no right is missing."""
    return isinstance(error, ApiException) and error.status == 403 and '"NamespaceTerminating"' in str(error.body)


def _message(error: ApiException) -> str:
    try:
        said = json.loads(error.body or "")["message"]
    except (ValueError, KeyError, TypeError):
        said = error.body or error.reason
    return cut(str(said), LONGEST_TEXT)
