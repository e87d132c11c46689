"""Operator: what thousands of resources cost it, and how soon an edit is felt.

A real API server holds 5,000 resources; 200 of their semaphores are busy, so that their status changes in every sweep.
The operator starts with all of them new, works for a while, is ended and started again. API server, etcd, Redis, the
load and the operator share the machine.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.outcome import Bar, Column, Outcome, at_most
from benchmarks.workers import hear, processes
from kubernetes.aio import client, config
from prometheus_client.parser import text_string_to_metric_families

from controlplane import ControlPlane
from distributed_semaphore import AsyncSemaphore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from benchmarks.server import Bench

TITLE = "The operator with many resources"
RESOURCES = int(os.environ.get("BENCH_RESOURCES", "5000"))
BUSY = min(200, RESOURCES // 2)
EDITS = 100
WINDOW = 60.0
"""Seconds for which the sweeps are measured."""
READY_WITHIN = 300.0
AT_ONCE = 32
GROUP, VERSION, PLURAL = "semaphores.dev", "v1alpha1", "distributedsemaphores"
NAMESPACE = "default"
CRD = Path(__file__).resolve().parents[1] / "crds"
TICK = os.sysconf("SC_CLK_TCK")


def measure(bench: Bench) -> Outcome:
    """Start everything, and measure one life of the operator."""
    with ControlPlane() as plane, tempfile.TemporaryDirectory(prefix="bench-operator-") as folder:
        _kubectl(plane, "apply", f"--filename={CRD}")
        _kubectl(plane, "wait", "--for=condition=Established", f"crd/{PLURAL}.{GROUP}")
        figures, bars = asyncio.run(_life(bench, plane, Path(folder)))
    return Outcome(
        load=f"{RESOURCES:,} resources, {BUSY} busy, a sweep every 5 s, for {WINDOW:.0f} s; then {EDITS} edits.",
        columns={"what": Column("what"), "value": Column("measured", 2)},
        rows=figures,
        bars=bars,
    )


async def _life(bench: Bench, plane: ControlPlane, folder: Path) -> tuple[list[dict[str, Any]], list[Bar]]:
    configuration = client.Configuration()
    await config.load_kube_config(config_file=str(plane.kubeconfig), client_configuration=configuration)
    async with client.ApiClient(configuration) as api:
        objects = client.CustomObjectsApi(api)
        bench.say(f"writing {RESOURCES:,} resources")
        await _each(RESOURCES, lambda i: objects.create_namespaced_custom_object(
            GROUP, VERSION, NAMESPACE, PLURAL, _resource(f"s{i}", 0 if i >= RESOURCES - EDITS else 5)))  # fmt: skip
        with _operator(plane, bench.url, folder / "first.log") as operator:
            async with asyncio.TaskGroup() as tasks:
                probing = tasks.create_task(operator.probe())
                bench.say("waiting until all are Ready")
                ready_all = await _all_ready(objects, operator)
                figures = await _at_work(bench, operator)
                bench.say(f"editing {EDITS} limits")
                waits = await _edits(bench, objects)
                probing.cancel()
            livez = max(operator.livez) * 1000
            rss = operator.rss_mib
        bench.say("starting it again")
        with _operator(plane, bench.url, folder / "second.log") as operator:
            restart = await operator.until_ready()
    figures |= {
        "ready_all_s": ready_all,
        "restart_s": restart,
        "rss_mib": rss,
        "livez_max_ms": livez,
        "edit_to_hold_p50_ms": statistics.median(waits),
        "edit_to_hold_p99_ms": statistics.quantiles(waits, n=100)[98],
    }
    names = {
        "ready_all_s": "all Ready after a start with new resources, s",
        "restart_s": "ready after a restart, s",
        "cpu_s_per_sweep": "CPU of the process for each sweep, s",
        "sweep_s": "duration of a sweep, s",
        "patches_per_s": "status writes a second",
        "rss_mib": "memory, MiB",
        "livez_max_ms": "slowest /livez, ms",
        "edit_to_hold_p50_ms": "from an edited limit to the holder, p50, ms",
        "edit_to_hold_p99_ms": "the same, p99, ms",
    }
    rows = [{"what": what, "key": key, "value": round(figures[key], 3)} for key, what in names.items()]
    return rows, [
        at_most("all Ready ≤ 60 s after a fresh start", ready_all, 60, " s", 1),
        at_most("ready ≤ 15 s after a restart", restart, 15, " s", 1),
        at_most("a sweep < 0.7 s of CPU", figures["cpu_s_per_sweep"], 0.7, " s"),
        at_most("memory < 250 MiB", rss, 250, " MiB", 0),
        at_most("/livez < 0.5 s throughout", livez, 500, " ms", 0),
        at_most("edit → hold p99 ≤ 0.3 s", figures["edit_to_hold_p99_ms"], 300, " ms", 0),
        at_most("≤ 1 status write per busy resource and 5 s", figures["patches_per_s"], BUSY / 5 * 1.05, "/s", 1),
    ]


async def _at_work(bench: Bench, operator: Operator) -> dict[str, float]:
    """Keep some semaphores busy, and see what the operator spends."""
    with processes(_load, [(bench.url, NAMESPACE, BUSY)]) as (load,):
        hear(load)
        before, cpu, start = await operator.metrics(), operator.cpu, time.monotonic()
        for passed in range(0, int(WINDOW), 5):
            bench.say(f"{BUSY} busy semaphores, {passed} of {WINDOW:.0f} s")
            await asyncio.sleep(5)
        spent, seconds, after = operator.cpu - cpu, time.monotonic() - start, await operator.metrics()
        load.send("end")
    sweeps = after["semaphore_operator_sweeps_total"] - before["semaphore_operator_sweeps_total"]
    writes = after["semaphore_operator_status_writes_total"] - before["semaphore_operator_status_writes_total"]
    return {
        "cpu_s_per_sweep": spent / sweeps,
        "sweep_s": after["semaphore_operator_sweep_duration_seconds"],
        "patches_per_s": writes / seconds,
    }


async def _edits(bench: Bench, objects: client.CustomObjectsApi) -> list[float]:
    """Raise a limit from 0 through the API, again and again; give the times until a waiter holds (ms)."""
    waits = []
    for i in range(RESOURCES - EDITS, RESOURCES):
        semaphore = AsyncSemaphore(f"{NAMESPACE}/s{i}", redis=bench.url)
        waiter = asyncio.create_task(semaphore.acquire())
        while (await semaphore.statistics()).waiting == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        start = time.monotonic()
        await objects.patch_namespaced_custom_object(
            GROUP,
            VERSION,
            NAMESPACE,
            PLURAL,
            f"s{i}",
            {"spec": {"limit": 1}},
            _content_type="application/merge-patch+json",
        )
        slot = await waiter
        waits.append((time.monotonic() - start) * 1000)
        await semaphore.release(slot)
    return waits


async def _all_ready(objects: client.CustomObjectsApi, operator: Operator) -> float:
    while (passed := time.monotonic() - operator.started) < READY_WITHIN:
        await asyncio.sleep(2)
        ready, token = 0, ""
        while True:
            page: Any = await objects.list_namespaced_custom_object(
                GROUP, VERSION, NAMESPACE, PLURAL, limit=1000, _continue=token
            )
            ready += sum(map(_is_ready, page["items"]))
            if not (token := page["metadata"].get("continue", "")):
                break
        if ready == RESOURCES:
            return passed + 2
    raise ChildProcessError(f"{ready} of {RESOURCES} resources are Ready after {READY_WITHIN:.0f} s\n{operator.said()}")


def _is_ready(resource: dict[str, Any]) -> bool:
    conditions = resource.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


class Operator:
    """The operator as a process."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.started = time.monotonic()
        self.livez: list[float] = [0.0]
        """How long each answer of /livez took (s)."""
        self._process, self._log, self._address = process, log, ""

    @property
    def cpu(self) -> float:
        """CPU time of the process so far, user and system (s)."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    @property
    def rss_mib(self) -> float:
        """Memory of the process at its highest."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+)", status)
        return int(found[1]) / 1024 if found else 0.0

    def said(self) -> str:
        """Give the end of its log."""
        return self._log.read_text(errors="replace")[-2000:]

    async def get(self, path: str) -> str:
        """Read one of its pages; empty while it has none."""
        if not self._address and (found := re.search(r"on port (\d+)", self._log.read_text(errors="replace"))):
            self._address = f"http://127.0.0.1:{found[1]}"
        if not self._address:
            return ""
        try:
            return await asyncio.to_thread(_read, self._address + path)
        except OSError:
            return ""

    async def probe(self) -> None:
        """Ask for /livez five times a second, as long as it takes."""
        while True:
            start = time.monotonic()
            if await self.get("/livez"):
                self.livez.append(time.monotonic() - start)
            await asyncio.sleep(0.2)

    async def until_ready(self) -> float:
        """Wait for /readyz; give the time since the start (s)."""
        while not await self.get("/readyz"):
            if time.monotonic() - self.started > READY_WITHIN or self._process.poll() is not None:
                raise ChildProcessError(f"the operator does not get ready\n{self.said()}")
            await asyncio.sleep(0.05)
        return time.monotonic() - self.started

    async def metrics(self) -> dict[str, float]:
        """Read the metrics that have no labels."""
        text = await self.get("/metrics")
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return {sample.name: sample.value for sample in samples if not sample.labels}


@contextmanager
def _operator(plane: ControlPlane, url: str, log: Path) -> Iterator[Operator]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEMAPHORE_")}
    environment |= {"KUBECONFIG": str(plane.kubeconfig), "SEMAPHORE_REDIS_URL": url}
    with log.open("wb") as out:
        command = [sys.executable, "-m", "semaphore_operator", "--host=127.0.0.1", "--port=0"]
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    try:
        yield Operator(process, log)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def _kubectl(plane: ControlPlane, *arguments: str) -> None:
    subprocess.run([plane.kubectl, f"--kubeconfig={plane.kubeconfig}", *arguments], check=True, capture_output=True)


def _resource(name: str, limit: int) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "DistributedSemaphore",
        "metadata": {"name": name},
        "spec": {"limit": limit, "lease": "30s"},
    }


async def _each(n: int, make: Any) -> None:
    """Do something for 0 to n - 1, some at once."""
    numbers = iter(range(n))

    async def some() -> None:
        for i in numbers:
            await make(i)

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))


def _load(connection: Connection, url: str, namespace: str, busy: int) -> None:
    asyncio.run(_work(connection, url, namespace, busy))


async def _work(connection: Connection, url: str, namespace: str, busy: int) -> None:
    async def work(semaphore: AsyncSemaphore) -> None:
        while True:
            async with semaphore:
                await asyncio.sleep(1)

    semaphores = [AsyncSemaphore(f"{namespace}/s{i}", redis=url) for i in range(busy)]
    tasks = [asyncio.create_task(work(semaphore)) for semaphore in semaphores for _ in range(8)]
    await asyncio.sleep(2)
    connection.send("busy")
    await asyncio.to_thread(connection.recv)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
