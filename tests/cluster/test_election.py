"""Several replicas of the operator, of which one leads: real API server, real Lease, real Redis, real clients."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import pytest
import yaml
from redis.asyncio import Redis
from tests.cluster.conftest import Resources, eventually
from tests.cluster.operator_process import COMPILED, OperatorProcess

import redis as redis_py
from distributed_semaphore import AsyncSemaphore
from distributed_semaphore.protocol import Keys
from distributed_semaphore.testing import RedisServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.cluster.conftest import StartOperator

    from controlplane import ControlPlane

DURATION: Final = 3
"""Lease duration (s): short, so that a crash is over soon."""
SHORT: Final = (
    f"--lease-duration={DURATION}",
    "--renew-deadline=2",
    "--retry-period=0.4",
    "--sweep=0.2",
    "--patch=0.2",
)
PROGRESS: Final = "semaphores.dev/reconcile"
"""Annotation in which kopf keeps what a handler has said."""
SOAK: Final = os.environ.get("SEMAPHORE_SOAK") == "1"
KILLS: Final = 20 if SOAK else 1


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


class Replicas:
    """Operators of one Lease and one namespace."""

    def __init__(self, dsem: Resources, server: RedisServer, start: StartOperator) -> None:
        self.dsem = dsem
        self.lease = f"{dsem.namespace}/operator"
        self.all: list[OperatorProcess] = []
        self.options = (f"--redis={server.url}", f"--namespaces={dsem.namespace}", f"--lease={self.lease}", *SHORT)
        self._start = start

    def add(self, **how: Any) -> OperatorProcess:
        process = self._start(*self.options, **how)
        self.all.append(process)
        return process

    @property
    def leaders(self) -> list[OperatorProcess]:
        """Those that say that they lead."""
        found = []
        for process in self.all:
            with contextlib.suppress(OSError):  # it has ended
                if process.running and process.metrics("semaphore_operator_leader") == {(): 1}:
                    found.append(process)
        return found

    def leader(self, timeout: float = 20) -> OperatorProcess:
        """Wait until one leads."""
        eventually(lambda: len(self.leaders) == 1, timeout)
        return self.leaders[0]

    def holder(self) -> str:
        return str(json.loads(self.dsem("get", "lease", "operator", "--output=json"))["spec"].get("holderIdentity", ""))


@pytest.fixture
def replicas(dsem: Resources, server: RedisServer, start_operator: StartOperator) -> Iterator[Replicas]:
    """Operators of the test's own Lease; no resource is left that waits for one."""
    yield Replicas(dsem, server, start_operator)
    for each in json.loads(dsem("get", "dsem", "--output=json"))["items"]:
        dsem("patch", "dsem", each["metadata"]["name"], "--type=merge", '--patch={"metadata":{"finalizers":null}}')


@contextlib.asynccontextmanager
async def load(name: str, url: str) -> AsyncIterator[list[float]]:
    """Six workers at two slots; gives the moments of their grants."""
    semaphore, grants, stop = AsyncSemaphore(name, redis=url), [], asyncio.Event()

    async def work() -> None:
        while not stop.is_set():
            async with semaphore:
                grants.append(time.monotonic())
                await asyncio.sleep(0.02)

    workers = [asyncio.create_task(work()) for _ in range(6)]
    try:
        yield grants
    finally:
        stop.set()
        await asyncio.gather(*workers)


class Proxy:
    """Stands between one client and the API server; once it is cut, connections stay open and carry nothing."""

    def __init__(self, server: str) -> None:
        self.cut = False
        self.url = ""
        self._address = urlsplit(server)
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1")
        self.url = f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._address.hostname, self._address.port)
        for source, sink in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._carry(source, sink))
            self._tasks.add(task)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while content := await source.read(65536):
                if not self.cut:
                    sink.write(content)
                    await sink.drain()
        finally:
            sink.close()


class ConfigWrites:
    """The epochs of all writes of a config, in the order in which Redis saw them."""

    def __init__(self, url: str, name: str) -> None:
        self.epochs: list[int] = []
        self._url, self._key = url, Keys.of(name).config

    async def __aenter__(self) -> Self:
        self._redis = Redis.from_url(self._url, decode_responses=True)
        self._monitor = await self._redis.monitor().__aenter__()
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._monitor.__aexit__(None, None, None)
        await self._redis.aclose()

    async def _read(self) -> None:
        async for command in self._monitor.listen():
            said = command["command"]
            if said.startswith("HSET") and self._key in said and (found := re.search(r'\bepoch"? "?(\d+)', said)):
                self.epochs.append(int(found[1]))


async def test_one_of_three_leads_and_a_killed_leader_is_replaced_while_grants_go_on(
    replicas: Replicas, server: RedisServer
) -> None:
    """kopf#51, #734, #1266; kubernetes-client/python#1669: SIGKILL under load, again and again."""
    for _ in range(3):
        await asyncio.to_thread(replicas.add)
    replicas.dsem.apply("api", limit=2)
    await asyncio.to_thread(replicas.dsem.ready, "api")
    name = f"{replicas.dsem.namespace}/api"
    took, granted = [], []
    async with ConfigWrites(server.url, name) as writes, load(name, server.url) as grants:
        for _ in range(KILLS):
            leader = await asyncio.to_thread(replicas.leader)
            followers = [process for process in replicas.all if process is not leader]
            assert [process.get("/readyz")[0] for process in followers] == [200, 200]
            before, start = replicas.holder(), time.monotonic()
            leader.kill()
            await asyncio.to_thread(replicas.leader)
            took.append(time.monotonic() - start)
            granted.append(sum(moment > start for moment in grants))
            assert replicas.holder() != before
            await asyncio.to_thread(leader.start)
        leader = await asyncio.to_thread(replicas.leader)
        replicas.dsem("scale", "dsem", "api", "--replicas=1")
        await asyncio.to_thread(eventually, lambda: replicas.dsem.status("api")["limit"] == 1)
    if SOAK:  # run by hand, on a quiet machine
        assert max(took) < DURATION + 2, took
        assert max(later - earlier for earlier, later in itertools.pairwise(grants)) < DURATION - 0.5
    assert min(granted) > 10, "grants waited for the next leader"
    assert writes.epochs == sorted(writes.epochs), "an earlier leader wrote after a later one"
    assert len(set(writes.epochs)) >= KILLS


async def test_a_leader_that_is_told_to_end_hands_over_and_so_an_update_has_one_writer(
    replicas: Replicas, server: RedisServer
) -> None:
    """kopf#51, #734: a rolling update of two, newcomer first; exit code 0, the next leads within moments."""
    # So late would the next one lead if it had to wait for the expiry; each step here may take 20 s.
    replicas.options += ("--lease-duration=90", "--renew-deadline=60")
    replicas.dsem.apply("api", limit=2)
    await asyncio.to_thread(replicas.add)
    await asyncio.to_thread(replicas.leader)
    await asyncio.to_thread(replicas.add)
    await asyncio.to_thread(replicas.dsem.ready, "api")
    name = f"{replicas.dsem.namespace}/api"
    async with ConfigWrites(server.url, name) as writes, load(name, server.url) as grants:
        for _ in range(2):
            old = await asyncio.to_thread(replicas.leader)
            new = await asyncio.to_thread(replicas.add)
            await asyncio.to_thread(eventually, lambda new=new: new.get("/readyz")[0] == 200)
            start = time.monotonic()
            assert await asyncio.to_thread(old.stop) == 0
            await asyncio.to_thread(replicas.leader)
            assert any(moment > start for moment in grants)
        await asyncio.to_thread(eventually, lambda: len(set(writes.epochs)) >= 2)
    assert writes.epochs == sorted(writes.epochs)


async def test_a_stopped_leader_that_wakes_up_late_ends_and_changes_nothing(
    replicas: Replicas, server: RedisServer, cluster: ControlPlane, tmp_path: Path
) -> None:
    """What it had in mind to write comes after the next leader's writes, and is refused."""
    late = OperatorProcess(cluster.kubeconfig, tmp_path / "late.log", *replicas.options).start()
    try:
        replicas.dsem.apply("api", limit=2)
        await asyncio.to_thread(replicas.dsem.ready, "api")
        next_one = await asyncio.to_thread(replicas.add)
        async with ConfigWrites(server.url, f"{replicas.dsem.namespace}/api") as writes:
            os.kill(late.pid, signal.SIGSTOP)
            await asyncio.to_thread(replicas.leader)
            replicas.dsem("scale", "dsem", "api", "--replicas=5")
            await asyncio.to_thread(eventually, lambda: replicas.dsem.status("api")["limit"] == 5)
            os.kill(late.pid, signal.SIGCONT)
            assert await asyncio.to_thread(late.end) == 3
            replicas.dsem("scale", "dsem", "api", "--replicas=6")
            await asyncio.to_thread(eventually, lambda: replicas.dsem.status("api")["limit"] == 6)
        assert len(set(writes.epochs)) == 1, "only the new leader's"
        assert next_one.running
        assert "no longer leads, and ends" in late.text
    finally:
        late.kill()


async def test_a_leader_cut_off_from_the_api_server_ends_before_another_leads(
    replicas: Replicas, server: RedisServer, cluster: ControlPlane, tmp_path: Path
) -> None:
    """kubernetes-client/python#1669: its connections stay open, and nothing comes through them any more."""
    async with Proxy(cluster.server) as proxy:
        kubeconfig = tmp_path / "cut.kubeconfig"
        kubeconfig.write_text(cluster.kubeconfig.read_text().replace(cluster.server, proxy.url))
        process = OperatorProcess(kubeconfig, tmp_path / "cut.log", *replicas.options)
        await asyncio.to_thread(process.start)
        try:
            replicas.dsem.apply("api", limit=2)
            await asyncio.to_thread(replicas.dsem.ready, "api")
            await asyncio.to_thread(replicas.add)
            proxy.cut = True
            start = time.monotonic()
            while not replicas.leaders:
                assert time.monotonic() - start < 20
                await asyncio.sleep(0.02)
            assert not process.running, "two at once"
            assert process.end() == 3
            assert "was not renewed for 2 s" in process.text
        finally:
            process.kill()
        replicas.dsem("scale", "dsem", "api", "--replicas=3")
        await asyncio.to_thread(eventually, lambda: replicas.dsem.status("api")["limit"] == 3)


def test_a_deletion_is_not_done_by_an_earlier_leader(replicas: Replicas, server: RedisServer) -> None:
    """A later leader's config stays, and so does the finalizer, until that leader looks at it."""
    replicas.dsem.apply("api", limit=2)
    replicas.add()
    replicas.dsem.ready("api")
    eventually(lambda: "finalizers" in replicas.dsem.get("api")["metadata"])
    config = Keys.of(f"{replicas.dsem.namespace}/api").config
    with redis_py.Redis.from_url(server.url, decode_responses=True) as store:
        mine = store.hget(config, "epoch")
        store.hset(config, "epoch", 2**52)
        replicas.dsem("delete", "dsem", "api", "--wait=false")
        eventually(lambda: "later leader" in replicas.dsem.get("api")["metadata"]["annotations"].get(PROGRESS, ""))
        assert store.hget(config, "limit") == "2"
        assert replicas.dsem.get("api")["metadata"]["finalizers"]
        store.hset(config, "epoch", mine)
        replicas.dsem("wait", "--for=delete", "dsem/api", "--timeout=30s")
        assert store.keys(f"{Keys.of(f'{replicas.dsem.namespace}/api').prefix}*") == []


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can make a pod's surroundings")
def test_it_runs_as_in_a_pod_under_a_uid_without_a_name_and_without_dns(
    dsem: Resources, server: RedisServer, own_cluster: ControlPlane, tmp_path: Path
) -> None:
    """With the mounted account alone: no kubeconfig, no HOME, no passwd entry, no name kubernetes.default.svc."""
    dsem("create", "clusterrolebinding", dsem.namespace, "--clusterrole=cluster-admin",
         f"--serviceaccount={dsem.namespace}:default")  # fmt: skip
    cluster = yaml.safe_load(own_cluster.kubeconfig.read_text())["clusters"][0]["cluster"]
    account = tmp_path / "account"
    account.mkdir()
    (account / "ca.crt").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    (account / "token").write_text(dsem("create", "token", "default"))
    (account / "namespace").write_text(dsem.namespace)
    address = urlsplit(own_cluster.server)
    mount = "/run/secrets/kubernetes.io/serviceaccount"
    script = (
        f"mount -t tmpfs none /run && mkdir -p {mount} && mount --bind {account} {mount} &&"
        f" exec env -i KUBERNETES_SERVICE_HOST={address.hostname} KUBERNETES_SERVICE_PORT={address.port}"
        f" PYTHONPATH='{os.pathsep.join(sys.path)}' PYTHONPYCACHEPREFIX='{COMPILED}'"
        # The one privilege that a pod would not have: to read the interpreter wherever root has it.
        " setpriv --reuid=65532 --regid=65532 --clear-groups --inh-caps=+dac_override --ambient-caps=+dac_override"
        ' "$@"'
    )
    options = (f"--redis={server.url}", f"--namespaces={dsem.namespace}", f"--lease={dsem.namespace}/operator", *SHORT)
    within = ("unshare", "--mount", "sh", "-c", script, "sh")
    process = OperatorProcess(tmp_path, tmp_path / "pod.log", *options, within=within)
    try:
        process.start()
        dsem.apply("api", limit=2)
        dsem.ready("api")
        eventually(lambda: "finalizers" in dsem.get("api")["metadata"])
        dsem("delete", "dsem", "api", "--timeout=10s")
        assert process.stop() == 0
        assert "Traceback" not in process.text, process.text
    finally:
        process.kill()
        dsem("delete", "clusterrolebinding", dsem.namespace)
