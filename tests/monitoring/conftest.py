"""Debian's Prometheus and Alertmanager, and the alerts of the chart as helm renders them."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.cluster.conftest import cluster, crd, dsem, kubectl, namespace, redis_server, start_operator
from tests.cluster.releases import OPERATOR, make_helm

from controlplane.processes import Group, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["cluster", "crd", "dsem", "kubectl", "namespace", "redis_server", "start_operator"]

PROGRAMS = ("prometheus", "promtool", "prometheus-alertmanager")
MONITORING = {kind: {"enabled": True} for kind in ("serviceMonitor", "rules", "dashboard")}
START = 60.0


@pytest.fixture(scope="session", autouse=True)
def installed_programs() -> None:
    if missing := [program for program in PROGRAMS if not shutil.which(program)]:
        pytest.skip(f"no {', '.join(missing)} on PATH: apt-get install prometheus prometheus-alertmanager")


@pytest.fixture(scope="session")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the chart makes for Prometheus and Grafana, by kind."""
    home = tmp_path_factory.mktemp("helm")
    values = {"redis": {"url": "redis://redis:6379/0"}, "monitoring": MONITORING}
    made = yaml.safe_load_all(make_helm(home, home / "none")("template", "operator", OPERATOR, values=values))
    return {each["kind"]: each for each in made if each}


@pytest.fixture(scope="session")
def dashboard(rendered: dict[str, Any]) -> Any:
    return json.loads(rendered["ConfigMap"]["data"]["semaphores.json"])


def ask(port: int, path: str, **query: str) -> Any:
    """Ask Prometheus or Alertmanager; give the answer's JSON."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
        return json.load(answer)


class Monitoring:
    """A Prometheus that scrapes an operator as the ServiceMonitor says, and tells an Alertmanager."""

    def __init__(self, folder: Path, rendered: dict[str, Any], operator_port: int) -> None:
        self._folder = folder
        self._group = Group(logs=folder)
        self._prometheus, self._alertmanager = free_ports(2)
        [endpoint] = rendered["ServiceMonitor"]["spec"]["endpoints"]
        # What the Prometheus operator makes of a ServiceMonitor, with the target's own labels.
        scrape = {
            "job_name": "semaphore-operator",
            "metrics_path": endpoint["path"],
            "honor_labels": endpoint["honorLabels"],
            "static_configs": [
                {
                    "targets": [f"127.0.0.1:{operator_port}"],
                    "labels": {"namespace": "semaphores", "service": "semaphore-operator"},
                }
            ],
        }
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "scrape_configs": [scrape],
            "rule_files": ["rules.yaml"],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{self._alertmanager}"]}]}]},
        }
        routes = {"route": {"receiver": "nobody"}, "receivers": [{"name": "nobody"}]}
        for name, content in (
            ("prometheus.yaml", config),
            ("rules.yaml", rendered["PrometheusRule"]["spec"]),
            ("alertmanager.yaml", routes),
        ):
            (folder / name).write_text(yaml.safe_dump(content))

    def start(self) -> None:
        alertmanager, prometheus = (shutil.which(name) or name for name in ("prometheus-alertmanager", "prometheus"))
        self._group.start(
            [
                alertmanager,
                f"--config.file={self._folder / 'alertmanager.yaml'}",
                f"--storage.path={self._folder / 'alerts'}",
                f"--web.listen-address=127.0.0.1:{self._alertmanager}",
                "--cluster.listen-address=",
            ]
        )
        self._group.start(
            [
                prometheus,
                f"--config.file={self._folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={self._folder / 'series'}",
                f"--web.listen-address=127.0.0.1:{self._prometheus}",
            ]
        )
        self._group.wait_until("prometheus-alertmanager", lambda: _ready(self._alertmanager), START)
        self._group.wait_until("prometheus", lambda: _ready(self._prometheus), START)

    def query(self, expression: str) -> list[Any]:
        """Ask for the present values of an expression."""
        return ask(self._prometheus, "/api/v1/query", query=expression)["data"]["result"]

    def alerts(self) -> list[Any]:
        """The alerts that Alertmanager has, and that are not over."""
        return ask(self._alertmanager, "/api/v2/alerts", active="true")

    def close(self) -> None:
        self._group.close()


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture
def monitor(rendered: dict[str, Any], tmp_path: Path) -> Iterator[Any]:
    """Makes the monitoring of an operator, by its port; it ends with the test."""
    made: list[Monitoring] = []

    def start(port: int) -> Monitoring:
        made.append(Monitoring(tmp_path, rendered, port))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.close()
