"""Reading a DistributedSemaphore resource, and making sure that a Redis serves it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from distributed_semaphore._errors import ResourceUnreadable, WrongRedis

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from distributed_semaphore.protocol.config import Config

GROUP, VERSION, PLURAL = "semaphores.dev", "v1alpha1", "distributedsemaphores"
POD_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT_KUBECONFIG: Final = Path("~/.kube/config")
CALL_TIMEOUT: Final = 10.0
LOOK_AGAIN: Final = 0.2


class Resource(NamedTuple):
    """A DistributedSemaphore as Kubernetes has it."""

    where: str
    """Namespace and name, as `kubectl` takes them."""
    semaphore: str
    """The semaphore's name in Redis."""
    uid: str
    generation: int


def find_resource(name: str, namespace: str | None) -> Resource:
    """Read a resource: one call to Kubernetes.

    Raises:
        ResourceUnreadable: there is no such resource, or it may not be read.
    """
    resource = _read(name, namespace)
    metadata, spec = resource["metadata"], resource.get("spec", {})
    space, own = metadata["namespace"], metadata["name"]
    semaphore = f"{space}/{spec.get('name') or own}"
    return Resource(f"{space}/{own}", semaphore, metadata["uid"], int(metadata["generation"]))


def wait_until_served(resource: Resource, redis: str, patience: float, look: Callable[[], Config | None]) -> None:
    """Wait until a Redis has the present generation of a resource, for as long as the operator may take.

    Args:
        resource: which.
        redis: the address, as it may be shown.
        patience: seconds.
        look: gives the config that stands there.

    Raises:
        WrongRedis: it has not.
    """
    deadline = time.monotonic() + patience
    while True:
        stored = look()
        ours = stored is not None and stored.uid == resource.uid
        if stored and ours and stored.generation >= resource.generation:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(LOOK_AGAIN)
    kind = f"DistributedSemaphore {resource.where}"
    if stored and ours:
        raise WrongRedis(
            f"Redis {redis} has generation {stored.generation} of {kind}, Kubernetes has {resource.generation}: the "
            "operator has not brought it over; see its log and `kubectl describe dsem`"
        )
    found = "that name from another resource or cluster" if stored else "nothing of that name"
    raise WrongRedis(
        f"Redis {redis} does not serve {kind}: it has {found}. Point SEMAPHORE_REDIS_URL at the Redis that this "
        "cluster's operator uses"
    )


def _read(name: str, namespace: str | None) -> dict[str, Any]:
    client, config = _kubernetes()
    access = _access(client, config)
    space = namespace or access.namespace
    where = f"DistributedSemaphore {space}/{name}"
    with client.ApiClient(access.configuration) as api:
        try:
            found: dict[str, Any] = client.CustomObjectsApi(api).get_namespaced_custom_object(
                GROUP, VERSION, space, PLURAL, name, _request_timeout=CALL_TIMEOUT
            )
        except client.ApiException as error:
            hint = {
                404: f"there is none; `kubectl get dsem -n {space}` lists those that exist",
                403: f"this account may not read it; allow `get` on {PLURAL}.{GROUP}",
                401: "the credentials are refused",
            }.get(error.status, error.reason)
            raise ResourceUnreadable(f"{where} cannot be read: {hint}") from None
        except Exception as error:  # urllib3's errors, which the kubernetes package passes through
            raise ResourceUnreadable(f"{where} cannot be read: {error}") from error
    return found


class Access(NamedTuple):
    """How Kubernetes is reached from here."""

    configuration: Any
    """A `kubernetes.client.Configuration` of our own: the program's default one is left alone."""
    namespace: str


def _access(client: ModuleType, config: ModuleType) -> Access:
    """Find a way to Kubernetes: the kubeconfig files if there are any, as kubectl reads them, else the pod's account.

    Raises:
        ResourceUnreadable: there is neither, or a file cannot be used.
    """
    # Called by its class, a Configuration would be a copy of the program's default one, credentials and all.
    configuration = type.__call__(client.Configuration)
    own = os.environ.get("POD_NAMESPACE") or (
        POD_NAMESPACE_FILE.read_text().strip() if POD_NAMESPACE_FILE.is_file() else ""
    )
    places = os.environ.get("KUBECONFIG") or str(DEFAULT_KUBECONFIG)
    files = [path for place in places.split(os.pathsep) if place and (path := Path(place).expanduser()).is_file()]
    try:
        if not files:
            config.load_incluster_config(client_configuration=configuration)
            return Access(configuration, own or "default")
        files, context = _first_context(files)
        merged = os.pathsep.join(map(str, files))
        config.load_kube_config(merged, context, client_configuration=configuration, persist_config=False)
        if not own:
            contexts, current = config.list_kube_config_contexts(merged)
            chosen = next((known for known in contexts if known["name"] == context), current)
            own = chosen["context"].get("namespace", "default")
    except Exception as error:  # as many kinds as there are ways to spoil a file
        said = str(error)
        if not files:
            said = f"there is no kubeconfig ({places}), and this is no pod ({said.rstrip('.')})"
        raise ResourceUnreadable(f"no access to Kubernetes: {said}; set KUBECONFIG or run in a pod") from error
    return Access(configuration, own)


def _first_context(files: list[Path]) -> tuple[list[Path], str | None]:
    """Leave out empty files, and take the current context of the first file that names one.

    Both as kubectl does; the kubernetes package refuses the ones and takes the last of the others.
    """
    import yaml  # noqa: PLC0415  the kubernetes package brings it

    documents = {path: document for path in files if (document := yaml.safe_load(path.read_text()))}
    contexts = (document.get("current-context") for document in documents.values())
    return list(documents), next(filter(None, contexts), None)


def _kubernetes() -> tuple[ModuleType, ModuleType]:
    try:
        from kubernetes import client, config  # noqa: PLC0415  optional: the extra `kubernetes`
    except ImportError:
        raise ResourceUnreadable(
            "reading a resource takes the kubernetes package: pip install 'distributed-semaphore[kubernetes]'"
        ) from None
    return client, config
