"""Incidents of one semaphore's users, on a real API server and a real Redis: what is seen of each, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from tests.cluster.conftest import Resources
from tests.cluster.evidence import Seen, changes, check_alerts, look, operating, sweeps, until
from tests.cluster.incidents import SIDE_BY_SIDE, Incident
from tests.cluster.operator_process import OperatorProcess

from distributed_semaphore import AsyncSemaphore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cluster.conftest import Kubectl

    from controlplane import ControlPlane
    from distributed_semaphore.testing import RedisServer

QUICK = ("--sweep=0.1", "--patch=0.1")


def expected(incident: Incident) -> Seen:
    return Seen.of(incident.conditions, incident.events, incident.trouble)


@dataclass(frozen=True)
class Staged:
    """What was seen when every incident was on."""

    seen: dict[str, Seen]
    page: str
    changed: set[str]
    """Metrics that the operator has of itself and that did not stay the same."""


async def stage(dsem: Resources, operator: OperatorProcess, url: str) -> Staged:
    """Let all incidents happen side by side, and look when each is on."""
    applied = (asyncio.to_thread(dsem.apply, name, **incident.spec) for name, incident in SIDE_BY_SIDE.items())
    await asyncio.gather(*applied)
    await asyncio.to_thread(dsem.ready, *SIDE_BY_SIDE)
    before = operating(operator)
    async with contextlib.AsyncExitStack() as stack:
        entered = (
            stack.enter_async_context(incident.stage(AsyncSemaphore(f"{dsem.namespace}/{name}", redis=url), url))
            for name, incident in SIDE_BY_SIDE.items()
        )
        await asyncio.gather(*entered)

        def all_on() -> bool:
            seen = look(dsem, operator)
            return all(seen[name] == expected(incident) for name, incident in SIDE_BY_SIDE.items())

        with contextlib.suppress(AssertionError):  # the tests say what is missing
            await until(all_on)
        await sweeps(operator)
        seen = await asyncio.to_thread(look, dsem, operator)
        return Staged(seen, operator.get("/metrics")[1], changes(before, operator))


@pytest.fixture(scope="module")
def staged(
    cluster: ControlPlane,
    crd: None,
    kubectl: Kubectl,
    redis_server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Staged]:
    name = f"test-{secrets.token_hex(4)}"
    kubectl("create", "namespace", name)
    log = tmp_path_factory.mktemp("operator") / "log"
    options = ("--redis", redis_server.url, "--namespaces", name, *QUICK)
    operator = OperatorProcess(cluster.kubeconfig, log, *options).start()
    try:
        yield asyncio.run(stage(Resources(kubectl, name), operator, redis_server.url))
        kubectl("delete", "dsem", "--all", f"--namespace={name}", "--timeout=20s")
        kubectl("delete", "namespace", name, "--wait=false")
    finally:
        assert operator.stop() == 0
    assert "Traceback" not in operator.text, operator.text


@pytest.mark.parametrize("name", SIDE_BY_SIDE)
def test_an_incident_is_seen_as_what_it_is_and_nothing_else(staged: Staged, name: str) -> None:
    assert staged.seen[name] == expected(SIDE_BY_SIDE[name])


def test_these_alerts_fire_and_no_others(staged: Staged, tmp_path: Path) -> None:
    wanted = {(alert, name) for name, incident in SIDE_BY_SIDE.items() for alert in incident.alerts}
    check_alerts(staged.page, wanted, tmp_path)


def test_the_operator_has_no_trouble_of_its_own(staged: Staged) -> None:
    assert staged.changed == set()
