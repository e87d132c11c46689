"""The pytest plugin, as a user's own tests see it."""

from __future__ import annotations

pytest_plugins = ["pytester"]

TESTS = """
import asyncio
from distributed_semaphore import AsyncSemaphore, Semaphore

def test_a_semaphore_finds_the_server(semaphore_redis):
    with Semaphore("export", limit=1) as slot:
        assert slot.fence

def test_each_test_begins_with_an_empty_server(semaphore_redis):
    async def granted():
        async with AsyncSemaphore("another", limit=1) as slot:
            return (await AsyncSemaphore("another").statistics()).totals.granted
    assert asyncio.run(granted()) == 1
"""


def test_a_users_tests_get_a_server_by_asking_for_it(pytester):
    pytester.makepyfile(TESTS)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)
