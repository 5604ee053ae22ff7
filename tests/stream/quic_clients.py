"""Two servers and two clients of QUIC (aioquic): each client asks for its server by name through a
port that both share, says something over one stream after the other, and must hear it back from
that server. Half way it says "half" and goes on with the next line of its input.

quic_clients.py FRONT FIRST SECOND CERTIFICATE KEY
"""
import asyncio
import ssl
import sys

from aioquic.asyncio import QuicConnectionProtocol, connect, serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import StreamDataReceived

ROUNDS = 10


class Echo(QuicConnectionProtocol):
    name = b""

    def quic_event_received(self, event):
        if isinstance(event, StreamDataReceived):
            data = self.name * bool(event.data) + event.data
            self._quic.send_stream_data(event.stream_id, data, event.end_stream)
            self.transmit()


async def listen(port, name, certificate, key):
    configuration = QuicConfiguration(is_client=False, alpn_protocols=["echo"])
    configuration.load_cert_chain(certificate, key)
    protocol = type("Named", (Echo,), {"name": name.encode()})
    await serve("127.0.0.1", port, configuration=configuration, create_protocol=protocol)


async def talk(port, host, name, half, go_on):
    configuration = QuicConfiguration(
        is_client=True,
        alpn_protocols=["echo"],
        server_name=host,
        verify_mode=ssl.CERT_NONE,
    )
    async with connect("127.0.0.1", port, configuration=configuration) as client:
        for number in range(ROUNDS):
            reader, writer = await client.create_stream()
            said = b"x" * 20_000 + str(number).encode()
            writer.write(said)
            writer.write_eof()
            heard = await asyncio.wait_for(reader.read(), 10)
            assert name.encode() in heard, (host, heard[:20])
            assert heard.replace(name.encode(), b"") == said, (host, number, len(heard))
            if number == ROUNDS // 2:
                half.release()
                await go_on.wait()


async def main(front, first, second, certificate, key):
    await listen(first, "A", certificate, key)
    await listen(second, "B", certificate, key)
    half, go_on = asyncio.Semaphore(0), asyncio.Event()
    talks = [
        asyncio.create_task(talk(front, "a.example", "A", half, go_on)),
        asyncio.create_task(talk(front, "b.example", "B", half, go_on)),
    ]
    for _ in talks:
        await half.acquire()
    print("half", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    go_on.set()
    await asyncio.gather(*talks)
    print("done", flush=True)


asyncio.run(main(*map(int, sys.argv[1:4]), *sys.argv[4:]))
