"""A client of gRPC, for tests/http2/grpc.

client.py ADDRESS SCENARIO [AUTHORITIES [ARGUMENT...]]

Makes the calls of a scenario, which is a function below, at ADDRESS; over TLS where AUTHORITIES is the path of those to trust. It ends with 0 if all came as
expected, and never waits for longer than a minute.
"""
import asyncio
import collections
import os
import signal
import sys

import grpc

address, scenario, *more = sys.argv[1:]
authorities, arguments = (more[0] if more else ""), more[1:]

PATIENCE = 60


def channel(**options):
    # Each of its own connection; and none is made again sooner or later than the calls want.
    options = {"use_local_subchannel_pool": 1, "max_receive_message_length": -1, "max_send_message_length": -1, **options}
    options = [("grpc." + key, value) for key, value in options.items()] + [("grpc.enable_retries", 0)]
    if authorities:
        options.append(("grpc.ssl_target_name_override", "localhost"))
        with open(authorities, "rb") as file:
            return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(file.read()), options)
    return grpc.aio.insecure_channel(address, options)


class Calls:
    """The methods of the server, by their names."""

    def __init__(self, on, service="test.Calls"):
        self.on, self.service = on, service

    def path(self, method):
        return f"/{self.service}/{method}"

    def unary(self, method, request, **options):
        return self.on.unary_unary(self.path(method))(request, **{"timeout": PATIENCE, **options})

    def collect(self, method, requests=None, **options):
        return self.on.stream_unary(self.path(method))(requests, **{"timeout": PATIENCE, **options})

    def count(self, method, request, **options):
        return self.on.unary_stream(self.path(method))(request, **{"timeout": PATIENCE, **options})

    def chat(self, method, requests=None, **options):
        return self.on.stream_stream(self.path(method))(requests, **{"timeout": PATIENCE, **options})

    async def notes(self, word, until=None):
        """What the server has noted under a word, at once, or once it has noted this."""
        while True:
            noted = (await self.unary("Notes", word.encode())).decode().split("\n")
            if until is None or until in noted:
                return noted
            await asyncio.sleep(0.02)


def same(found, expected):
    if found != expected:
        sys.exit(f"{scenario}: {found!r:.2000} and not {expected!r:.2000}")


async def failure(call):
    """How a call fails: its status and its message."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details()
    except asyncio.CancelledError:
        return await call.code(), await call.details()
    sys.exit(f"{scenario}: answered by {answer!r:.200}, and not by a failure")


def fields(metadata, *names):
    """Those of these names, in their order."""
    return [(key, value) for key, value in metadata if key in names]


async def unary():
    async with channel() as on:
        calls = Calls(on)
        for request in (b"", b"hello", b"\x00\xff" * 5_000):
            same(await calls.unary("Echo", request), request)


async def client_streaming():
    async with channel() as on:
        calls = Calls(on)

        async def messages():
            for number in range(500):
                yield b"m" * number

        same(await calls.collect("Collect", messages()), b"500 messages, 124750 bytes")

        async def none():
            return
            yield

        same(await calls.collect("Collect", none()), b"0 messages, 0 bytes")


async def server_streaming():
    async with channel() as on:
        calls = Calls(on)
        for number, length in ((0, 0), (1, 10), (500, 1000), (20_000, 10)):
            call = calls.count("Count", b"%d %d" % (number, length))
            same([message async for message in call], [(b"%d " % each).ljust(length, b".") for each in range(number)])
            same(fields(await call.trailing_metadata(), "y-sent"), [("y-sent", str(number))])


async def bidirectional_streaming():
    async with channel() as on:
        call = Calls(on).chat("Chat")
        # Each goes out when the one before has been answered: nothing on the way waits for more.
        for number in range(200):
            await call.write(b"%d" % number)
            same(await call.read(), b"heard %d" % number)
        await call.done_writing()
        same(await call.read(), grpc.aio.EOF)
        same(await call.code(), grpc.StatusCode.OK)


async def both_ways():
    """Large messages, which go out as fast as they can while their answers come."""
    length = 256 * 1024
    messages = [number.to_bytes(8, "big") * (length // 8) for number in range(100)]
    async with channel() as on:
        call = Calls(on).chat("Chat")

        async def write():
            for message in messages:
                await call.write(message)
            await call.done_writing()

        writing = asyncio.ensure_future(write())
        answers = [answer async for answer in call]
        await writing
        same([answer == b"heard " + message for answer, message in zip(answers, messages)], [True] * len(messages))


async def metadata():
    async with channel() as on:
        given = [
            ("x-text", "plain"),
            ("x-twice", "one"),
            ("x-twice", "two"),
            ("x-empty", ""),
            ("x-some-bin", b"\x00\x01\xfe\xff"),
            ("x-long", "l" * 2000),
            ("x-printable", "a=b; c,d \"e\" ~"),
        ]
        call = Calls(on).unary("Echo", b"", metadata=given)
        await call
        names = sorted({key for key, _ in given})
        first = fields(await call.initial_metadata(), *names)
        same(sorted(first), sorted(given))
        last = fields(await call.trailing_metadata(), *("y" + key[1:] for key in names))
        same(sorted(last), sorted(("y" + key[1:], value) for key, value in given))


async def statuses():
    async with channel() as on:
        calls = Calls(on)
        for status in grpc.StatusCode:
            if status is grpc.StatusCode.OK:
                continue
            for words in ("", "no such thing", "100% of \u00e4 and\n\u2713"):
                request = f"{status.value[0]} {words}".encode()
                call = calls.unary("Fail", request)
                same(await failure(call), (status.name, words))
                trailers = fields(await call.trailing_metadata(), "y-why", "y-why-bin")
                same(sorted(trailers), [("y-why", "asked"), ("y-why-bin", b"\x00\xff")])
        call = calls.count("FailLater", b"9 too late")
        same(await call.read(), b"first")
        same(await failure(call.read()), ("FAILED_PRECONDITION", "too late"))
        same(await failure(calls.unary("Nothing", b"")), ("UNIMPLEMENTED", "Method not found!"))


async def deadline():
    async with channel() as on:
        calls = Calls(on)
        # A handshake is not part of what the deadlines are for.
        await calls.notes("late")
        # Before anything of an answer, and within one.
        waits = calls.unary("Wait", b"", timeout=0.3, metadata=[("x-word", "late")])
        same((await failure(waits))[0], "DEADLINE_EXCEEDED")
        same(await calls.notes("late", "given up"), ["begun", "given up", "connections: 1"])
        stays = calls.chat("Stay", timeout=0.5, metadata=[("x-word", "later")])
        same(await stays.read(), b"begun")
        same((await failure(stays.read()))[0], "DEADLINE_EXCEEDED")
        same((await calls.notes("later", "given up"))[:2], ["begun with less than a minute", "given up"])
        # What is answered in time is not touched.
        same(await calls.unary("Echo", b"in time", timeout=30), b"in time")


async def cancellation():
    async with channel() as on:
        calls = Calls(on)
        other = calls.chat("Chat")
        await other.write(b"before")
        same(await other.read(), b"heard before")
        waits = calls.unary("Wait", b"", metadata=[("x-word", "waits")])
        stays = calls.chat("Stay", metadata=[("x-word", "stays")], timeout=3600)
        same(await stays.read(), b"begun")
        await calls.notes("waits", "begun")
        waits.cancel()
        stays.cancel()
        same(await calls.notes("waits", "given up"), ["begun", "given up", "connections: 1"])
        same((await calls.notes("stays", "given up"))[:2], ["begun with more than a minute", "given up"])
        # Another call on the same connections goes on.
        await other.write(b"behind")
        same(await other.read(), b"heard behind")
        await other.done_writing()
        same(await other.read(), grpc.aio.EOF)


async def large():
    length = 16 * 1024 * 1024
    message = os.urandom(1024) * (length // 1024)
    async with channel() as on:
        calls = Calls(on)
        same(await calls.unary("Echo", message) == message, True)

        async def twice():
            yield message
            yield message

        same(await calls.collect("Collect", twice()), b"2 messages, %d bytes" % (2 * length))
        lengths = [len(each) async for each in calls.count("Count", b"2 %d" % length)]
        same(lengths, [length, length])


async def at_once():
    """As many streams as the argument says: all are there before the first is answered."""
    count = int(arguments[0])
    async with channel() as on:
        calls = Calls(on)
        same(await calls.unary("Echo", b"first"), b"first")
        given = [("x-word", "meeting")]
        meeting = [calls.unary("Meet", b"%d" % count, metadata=given) for _ in range(count)]
        same(await asyncio.gather(*meeting), [b"met"] * count)
        print(*await calls.notes("meeting"))


async def late_at_once():
    """The deadline of as many calls as the argument says is over at the same time, and others on the connection go on."""
    async with channel() as on:
        calls = Calls(on)
        other = calls.chat("Chat")
        await other.write(b"before")
        same(await other.read(), b"heard before")
        until = asyncio.get_running_loop().time() + 2
        left = lambda: until - asyncio.get_running_loop().time()
        late = [failure(calls.unary("Wait", b"", timeout=left())) for _ in range(int(arguments[0]))]
        same({code for code, _ in await asyncio.gather(*late)}, {"DEADLINE_EXCEEDED"})
        await other.write(b"behind")
        same(await other.read(), b"heard behind")
        await other.done_writing()
        same(await other.read(), grpc.aio.EOF)


async def health():
    async with channel() as on:
        calls = Calls(on, "grpc.health.v1.Health")
        same(await calls.unary("Check", b""), b"\x08\x01")
        same(await calls.unary("Check", b"\x0a\x0atest.Calls"), b"\x08\x01")
        same(await failure(calls.unary("Check", b"\x0a\x05other")), ("NOT_FOUND", "unknown service"))
        watching = calls.count("Watch", b"\x0a\x05other")
        same(await watching.read(), b"\x08\x03")
        watching.cancel()


async def reflection():
    async with channel() as on:
        call = Calls(on, "grpc.reflection.v1alpha.ServerReflection").chat("ServerReflectionInfo")
        await call.write(b"\x3a\x01*")
        names = (b"test.Calls", b"grpc.health.v1.Health")
        services = b"".join(b"\x0a" + bytes([len(name) + 2]) + b"\x0a" + bytes([len(name)]) + name for name in names)
        same(await call.read(), b"\x12\x03\x3a\x01*" + b"\x32" + bytes([len(services)]) + services)
        await call.write(b"\x1a\x01x")
        same((await call.read())[:6], b"\x12\x03\x1a\x01x\x3a")
        await call.done_writing()
        same(await call.read(), grpc.aio.EOF)


async def killed():
    """The server, whose process is the argument, ends in the middle of calls of every kind."""
    async with channel() as on:
        calls = Calls(on)
        given = [("x-word", "killed")]
        waits = [calls.unary("Wait", b"", metadata=given) for _ in range(20)]
        stays = [calls.chat("Stay", metadata=given) for _ in range(20)]
        for call in stays:
            same(await call.read(), b"begun")
        sending = calls.collect("Collect", metadata=given)
        await sending.write(b"some")
        while (await calls.notes("killed")).count("begun") < len(waits):
            await asyncio.sleep(0.02)
        os.kill(int(arguments[0]), signal.SIGKILL)
        unary = [failure(call) for call in waits + [sending]]
        streams = [failure(call.read()) for call in stays]
        for code, words in await asyncio.gather(*unary):
            print(code, words)
        for code, words in await asyncio.gather(*streams):
            print(code, words)
        # And none is there for the next.
        print(*await failure(calls.unary("Echo", b"")))


async def load():
    """Unary calls on as many channels as the argument says, four at a time on each, until the input ends: how many were answered by which server, and how
    the others failed."""
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    outcomes = collections.Counter()

    async def one_after_the_other(calls):
        while not over.done():
            try:
                outcomes["OK " + (await calls.unary("Nap", b"request")).decode()] += 1
            except grpc.aio.AioRpcError as error:
                outcomes[f"{error.code().name} {error.details()}"] += 1

    async def on_a_channel():
        async with channel() as on:
            await asyncio.gather(*(one_after_the_other(Calls(on)) for _ in range(4)))

    print("begun", flush=True)
    await asyncio.gather(*(on_a_channel() for _ in range(int(arguments[0]))))
    for outcome, count in sorted(outcomes.items()):
        print(count, outcome)


async def main():
    await asyncio.wait_for(globals()[scenario](), PATIENCE + 20)


asyncio.run(main())
