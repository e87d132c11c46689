"""What the base install does without."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_the_client_alone_imports_nothing_but_redis():
    optional = {
        "prometheus_client",
        "kubernetes",
        "yaml",
        "pydantic",
        "kopf",
    }  # redis-py looks for OpenTelemetry itself
    program = f"import sys, distributed_semaphore; print({optional!r} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "set()\n"


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [("prometheus", "prometheus_client", "prometheus"), ("opentelemetry", "opentelemetry", "otel")],
)
def test_a_module_whose_extra_is_missing_names_it(monkeypatch, module, missing, extra):
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, f"distributed_semaphore.{module}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'distributed-semaphore\[{extra}\]'"):
        __import__(f"distributed_semaphore.{module}")
