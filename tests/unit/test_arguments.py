"""Whatever a caller may pass: what is wrong is refused at the call, with an error that names what is allowed."""

from __future__ import annotations

import inspect
from fractions import Fraction
from math import inf, nan
from typing import TYPE_CHECKING, Any

import pytest

import distributed_semaphore
from distributed_semaphore import AsyncSemaphore, InvalidArgument, Semaphore, add_listener, opentelemetry, prometheus
from distributed_semaphore.protocol import Config, Keys
from distributed_semaphore.testing import RedisServer, ServerStartError

if TYPE_CHECKING:
    from collections.abc import Iterator

REDIS = "redis://127.0.0.1:1/0"  # nobody listens there: whoever asked it would hear `Unavailable`
NO_WHOLE = [None, True, 1.5, nan, inf, "1", 10**400, -(10**400)]
NO_SECONDS = [True, "1", nan, inf, -inf, -0.001, 10**400, 1e300, Fraction(1)]

#: For each argument of each method of both twins what must be refused, and words of the error that name the range.
METHODS: dict[tuple[str, str], tuple[list[Any], str]] = {
    ("acquire", "timeout"): (
        NO_SECONDS,
        "timeout is a number of seconds from 0 to 31622400, or None",
    ),
    ("acquire", "weight"): ([*NO_WHOLE, 0, -1, 100_001], "weight is a whole number from 1 to 100000"),
    ("acquire", "priority"): ([*NO_WHOLE, 8001, -8001], "priority is a whole number from -8000 to 8000"),
    ("try_acquire", "weight"): ([*NO_WHOLE, 0, 100_001], "weight is a whole number from 1 to 100000"),
    ("slot", "timeout"): (NO_SECONDS, "timeout is a number of seconds from 0 to"),
    ("slot", "weight"): ([*NO_WHOLE, 0], "weight is a whole number from 1 to 100000"),
    ("slot", "priority"): ([*NO_WHOLE, 8001], "priority is a whole number from -8000 to 8000"),
    ("slot", "on_lost"): ([1, "stop"], "on_lost is something to call"),
    ("release", "slot"): ([None, "token", 7], "slot is a Slot"),
    ("call", "fn"): ([None, 3, "name"], "what needs a slot is something to call"),
    ("limit", "fn"): ([None, 3, "name"], "what needs a slot is something to call"),
    ("from_resource", "name"): ([None, "", "a/b", "A", "-a", "a" * 254, 3], "name is that of a resource"),
    ("from_resource", "namespace"): (["", "a/b", 3, "a_b"], "namespace is that of a resource"),
    ("from_resource", "redis"): (["", "http://host", 3], "redis"),
    ("from_resource", "per_process_limit"): (
        [*NO_WHOLE[1:], 0, -1, 100_001],
        "per_process_limit is a whole number from 1 to 100000",
    ),
    ("from_resource", "patience"): ([None, *NO_SECONDS], "patience is a number of seconds from 0 to"),
}
ABSENT = {("statistics", ""), ("call", "args"), ("call", "kwargs")}  # what is passed on is the function's business
CONSTRUCTION: dict[str, tuple[list[Any], str]] = {
    "name": ([None, 5, b"x", "", "a\nb", "x" * 508, "\ud800"], "name|utf-8"),
    "redis": ([5, b"redis://h", "", "http://h", "redis://", "redis://h:port/0", "redis://h:99999/0"], "redis|Redis"),
    "limit": ([*NO_WHOLE[1:], -1, 100_001], "limit is a whole number from 0 to 100000"),
    "lease": (
        [*NO_SECONDS, "5 minutes", 0, -1, 0.0004, 3601],
        "lease is a number of seconds from 1 to 3600",
    ),
    "per_process_limit": ([*NO_WHOLE[1:], 0, -1, 100_001], "per_process_limit is a whole number from 1 to 100000"),
}


def wrong_calls() -> Iterator[Any]:
    for (method, argument), (values, words) in METHODS.items():
        for kind in (AsyncSemaphore, Semaphore):
            for value in values:
                if argument in inspect.signature(getattr(kind, method)).parameters:
                    yield pytest.param(
                        kind, method, argument, value, words, id=f"{kind.__name__}.{method} {argument}={value!r:.20}"
                    )


@pytest.mark.parametrize(("kind", "method", "argument", "value", "words"), [*wrong_calls()])
async def test_a_wrong_argument_is_refused_at_the_call(kind, method, argument, value, words):
    """redis-py PR #4282, node-redlock#120: where it is written, and before anything is asked of Redis."""
    bound = getattr(kind("x", redis=REDIS), method)
    parameters = inspect.signature(bound).parameters
    needed = {"name": "x"} if method == "from_resource" else {}
    with pytest.raises(InvalidArgument, match=words):
        if parameters[argument].kind is inspect.Parameter.POSITIONAL_ONLY:
            answer = bound(value)
        else:
            answer = bound(**{**needed, argument: value})
        if inspect.isawaitable(answer):
            await answer


@pytest.mark.parametrize("kind", [AsyncSemaphore, Semaphore])
@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        pytest.param(argument, value, words, id=f"{argument}={value!r:.20}")
        for argument, (values, words) in CONSTRUCTION.items()
        for value in values
    ],
)
def test_a_wrong_argument_is_refused_at_construction(kind, argument, value, words):
    with pytest.raises(InvalidArgument, match=words):
        kind(**{"name": "x", "redis": REDIS, "limit": 1, argument: value})


def test_every_argument_of_every_method_is_in_the_tables():
    for kind in (AsyncSemaphore, Semaphore):
        methods = {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}
        there = {
            (method, parameter)
            for method in methods
            for parameter in inspect.signature(getattr(kind, method)).parameters
            if parameter != "self"
        }
        assert there - set(METHODS) - ABSENT == set()
        assert set(inspect.signature(kind).parameters) == set(CONSTRUCTION)
    public = {name: getattr(distributed_semaphore, name) for name in distributed_semaphore.__all__}
    functions = {name for name, thing in public.items() if inspect.isfunction(thing)}
    assert functions == {"add_listener", "remove_listener"}  # below, and test_listeners


def test_a_lease_goes_with_a_limit():
    with pytest.raises(InvalidArgument, match="a lease goes with a limit"):
        Semaphore("x", redis=REDIS, lease=10)


def test_a_client_of_redis_in_place_of_its_address_is_not_shown():
    class Client:
        def __repr__(self) -> str:
            return "Redis(password=secret)"

    with pytest.raises(InvalidArgument, match=r"redis is an address .*, not a Client") as raised:
        Semaphore("x", redis=Client())  # type: ignore[arg-type]
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("value", [None, 3])
def test_a_listener_can_be_called(value):
    with pytest.raises(InvalidArgument, match="listener is something to call"):
        add_listener(value)


def test_instruments_know_their_registry_and_providers():
    with pytest.raises(InvalidArgument, match="registry is a CollectorRegistry"):
        prometheus.instrument("registry")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="tracer_provider is a TracerProvider"):
        opentelemetry.instrument("provider")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="meter_provider is a MeterProvider"):
        opentelemetry.instrument(meter_provider="provider")  # type: ignore[arg-type]


def test_a_server_of_ones_own_knows_its_options():
    with pytest.raises(InvalidArgument, match="args are several texts"):
        RedisServer(args="--save")
    with pytest.raises(InvalidArgument, match="port is a whole number from 1 to 65535"):
        RedisServer(port=70_000)
    with pytest.raises(ServerStartError, match="/nowhere/redis-server is no program"):
        RedisServer("/nowhere/redis-server")


@pytest.mark.parametrize(
    ("field", "values", "words"),
    [
        ("limit", [-1, 100_001, 1.5, "5", True, None], "limit is a whole number from 0 to 100000"),
        ("lease_ms", [999, 3_600_001, 0], "lease is 1s to 3600s"),
        ("lease_ms", [-1, 1500.5, "30s", None], "lease_ms is a whole number"),
        *(
            (field, [-1, 1.5, "x", None], f"{field} is a whole number from 0 to")
            for field in ("max_waiting", "max_wait_ms", "max_hold_ms", "per_process_limit")
        ),
        *((field, [-1, 2**54, None], f"{field} is a whole number") for field in ("generation", "epoch", "lifetime_ms")),
    ],
)
def test_a_config_keeps_to_the_bounds_of_the_resource(field, values, words):
    for value in values:
        with pytest.raises(ValueError, match=words):
            Config(**{"limit": 1, "lease_ms": 1000, field: value})


@pytest.mark.parametrize("name", [None, 3, b"x", "", "\t", "x" * 508])
def test_keys_are_those_of_a_name(name):
    with pytest.raises(ValueError, match="name"):
        Keys.of(name)
