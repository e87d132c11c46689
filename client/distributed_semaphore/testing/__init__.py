"""For tests of code that uses semaphores: a real server that starts in a moment and goes with the test."""

from distributed_semaphore.testing.server import RedisServer, ServerStartError, find_servers

__all__ = ["RedisServer", "ServerStartError", "find_servers"]
