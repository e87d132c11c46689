"""Reading a DistributedSemaphore resource, and making sure that a Redis serves it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import redis
from distributed_semaphore._errors import ResourceUnreadable, Unavailable, WrongRedis
from distributed_semaphore.protocol.address import without_password
from distributed_semaphore.protocol.keys import Keys

if TYPE_CHECKING:
    from types import ModuleType

GROUP, VERSION, PLURAL = "semaphores.dev", "v1alpha1", "distributedsemaphores"
POD_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT_KUBECONFIG: Final = Path("~/.kube/config")
CALL_TIMEOUT: Final = 10.0
LOOK_AGAIN: Final = 0.2


def resource_name(name: str, namespace: str | None, url: str, patience: float) -> str:
    """Read a resource and give the name of its semaphore, once this Redis serves its present generation.

    Raises:
        ResourceUnreadable, WrongRedis, Unavailable: as `AsyncSemaphore.from_resource` says.
    """
    resource = _read(name, namespace)
    metadata, spec = resource["metadata"], resource.get("spec", {})
    semaphore = f"{metadata['namespace']}/{spec.get('name') or metadata['name']}"
    where, uid, generation = without_password(url), metadata["uid"], int(metadata["generation"])
    deadline = time.monotonic() + patience
    with redis.Redis.from_url(url, decode_responses=True, socket_timeout=CALL_TIMEOUT) as connection:
        while True:
            try:
                stored: list[str | None] = connection.hmget(Keys.of(semaphore).config, ["uid", "generation"])
            except redis.RedisError as error:
                raise Unavailable(f"Redis {where} cannot be used: {error}") from None
            if stored[0] == uid and int(stored[1] or 0) >= generation:
                return semaphore
            if time.monotonic() > deadline:
                break
            time.sleep(LOOK_AGAIN)
    kind = f"DistributedSemaphore {metadata['namespace']}/{name}"
    if stored[0] == uid:
        raise WrongRedis(
            f"Redis {where} has generation {stored[1]} of {kind}, Kubernetes has {generation}: the operator has not "
            "brought it over; see its log and `kubectl describe dsem`"
        )
    found = "nothing of that name" if stored[0] is None else "that name from another resource or cluster"
    raise WrongRedis(
        f"Redis {where} does not serve {kind}: it has {found}. Point SEMAPHORE_REDIS_URL at the Redis that this "
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
