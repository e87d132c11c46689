"""Each way to a server: TLS, both protocols, old servers and unusual ones."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from tests.redis.conftest import SERVERS

from controlplane.pki import Authority
from distributed_semaphore import AsyncSemaphore, Unavailable
from distributed_semaphore.testing import RedisServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


async def works(name: str, url: str) -> None:
    """Hold, wait and hand over, from two processes as Redis sees it."""
    here, there = (
        AsyncSemaphore(name, redis=address, limit=1, lease=30) for address in (url, url + "&socket_keepalive=1")
    )
    async with here.slot():
        waiter = asyncio.create_task(there.acquire())
        while (await here.statistics()).waiting == 0:
            await asyncio.sleep(0.005)
    # The heartbeat would bring it after 1.7 s at most; the message does at once.
    await there.release(await asyncio.wait_for(waiter, 1.5))


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("fast", [True, False], ids=["hiredis", "pure"])
async def test_both_protocols_with_and_without_hiredis(server, name, monkeypatch, protocol, fast):
    monkeypatch.setattr("distributed_semaphore._wire.FAST", fast)
    await works(name, f"{server.url}?protocol={protocol}&client_name=fast{fast}")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the files of an authority and of a server's certificate into one folder."""
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority()
    server = authority.server(["127.0.0.1"], ["localhost"])
    (folder / "ca.crt").write_bytes(authority.certificate)
    (folder / "server.crt").write_bytes(server.certificate)
    (folder / "server.key").write_bytes(server.key)
    return folder


@pytest.fixture(scope="module", params=sorted(SERVERS))
def tls_port(request: pytest.FixtureRequest, authority: Path) -> Iterator[int]:
    """Run a server that speaks TLS beside its plain port."""
    probe = RedisServer(SERVERS[request.param])
    files = [("--tls-cert-file", "server.crt"), ("--tls-key-file", "server.key"), ("--tls-ca-cert-file", "ca.crt")]
    options = [word for option, file in files for word in (option, str(authority / file))]
    try:
        with RedisServer(SERVERS[request.param], ("--tls-port", str(probe.port), "--tls-auth-clients", "no", *options)):
            yield probe.port
    except RuntimeError as error:
        if "tls" in str(error).lower():
            pytest.skip("this server was built without TLS")
        raise


async def test_tls(tls_port, authority, name):
    await works(name, f"rediss://127.0.0.1:{tls_port}/0?ssl_ca_certs={authority / 'ca.crt'}")


async def test_a_certificate_of_an_unknown_authority_is_not_trusted(tls_port, name):
    semaphore = AsyncSemaphore(name, redis=f"rediss://127.0.0.1:{tls_port}/0", limit=1, lease=30)
    with pytest.raises(Unavailable, match="certificate verify failed"):
        await semaphore.acquire(timeout=1)


@asynccontextmanager
async def imitation(replies: dict[str, bytes]) -> AsyncIterator[str]:
    """Listen as a server that knows a few commands only, and give its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            words = []
            for _ in range(int(line[1:])):
                size = int((await reader.readline())[1:])
                words.append((await reader.readexactly(size + 2))[:-2].decode())
            if words[0] == "SUBSCRIBE":
                writer.write(b"*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:1\r\n" % (len(words[1]), words[1].encode()))
            else:
                writer.write(replies.get(words[0], b"-ERR unknown command\r\n"))
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        yield f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}/0"


OLD = b"*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n6.0.16\r\n"


async def test_a_server_that_is_too_old_is_refused_at_the_start(name):
    async with imitation({"HELLO": OLD, "CLIENT": b"+OK\r\n"}) as url:
        semaphore = AsyncSemaphore(name, redis=url, limit=1, lease=30)
        with pytest.raises(Unavailable, match=r"version 6\.0\.16, and 6\.2 is the oldest"):
            await semaphore.acquire(timeout=5)


async def test_a_server_without_hello_works_with_protocol_2_and_says_why_not_with_3(name):
    """neodb#1585."""
    with RedisServer(args=("--rename-command", "HELLO", "")) as server:
        await works(name, server.url + "?protocol=2")
        semaphore = AsyncSemaphore(name, redis=server.url + "?protocol=3", limit=1, lease=30)
        with pytest.raises(Unavailable, match="HELLO"):
            await semaphore.acquire(timeout=1)
