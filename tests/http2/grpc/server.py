"""A server of gRPC, for tests/http2/grpc.

server.py PORT NAME STREAMS [KEY CERTIFICATE]

Serves at PORT of 127.0.0.1, or at a socket (unix:PATH), until it is ended, and says so by printing PORT. It takes STREAMS calls at once on a
connection (0 is no limit). Messages are bytes, in no format.

What it notes of calls is asked for by `Notes`, with the word that the calls were given as `x-word`.
"""
import asyncio
import collections
import os
import sys

import grpc

port, name, streams, *tls = sys.argv[1:]

notes = collections.defaultdict(list)
peers = collections.defaultdict(set)
# Calls of Meet that wait, by their words.
meetings = collections.defaultdict(set)


def sent(context):
    """The fields of a call that the client has set."""
    return [(key, value) for key, value in context.invocation_metadata() if key.startswith("x-")]


def word(context):
    peer_word = dict(context.invocation_metadata()).get("x-word", "")
    peers[peer_word].add(context.peer())
    return peer_word


async def echo(request, context):
    """Gives the message back, and what the client has set as metadata and as trailers."""
    word(context)
    await context.send_initial_metadata([("x-name", name)] + sent(context))
    context.set_trailing_metadata([(key.replace("x-", "y-", 1), value) for key, value in sent(context)])
    return request


async def collect(requests, context):
    """How many messages come, and of how many bytes."""
    word(context)
    count = total = 0
    async for request in requests:
        count += 1
        total += len(request)
    return b"%d messages, %d bytes" % (count, total)


async def count(request, context):
    """As many messages as asked for, each of so many bytes."""
    word(context)
    number, length = map(int, request.split())
    context.set_trailing_metadata([("y-sent", str(number))])
    for each in range(number):
        yield (b"%d " % each).ljust(length, b".")


async def chat(requests, context):
    """Answers each message as it comes."""
    word(context)
    async for request in requests:
        yield b"heard " + request


async def fail(request, context):
    """Ends with the status and the words asked for."""
    word(context)
    code, _, words = request.decode().partition(" ")
    context.set_trailing_metadata([("y-why-bin", b"\x00\xff"), ("y-why", "asked")])
    by_number = {status.value[0]: status for status in grpc.StatusCode}
    await context.abort(by_number[int(code)], words)


async def fail_later(request, context):
    """The same once a message has been sent."""
    yield b"first"
    await fail(request, context)


async def stay(requests, context):
    """Says that it has begun, and waits; notes how long there was, and that the call was given up."""
    given = word(context)
    left = context.time_remaining()
    notes[given].append("begun" if left is None else f"begun with {'less' if left < 60 else 'more'} than a minute")
    try:
        await context.send_initial_metadata([])
        yield b"begun"
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        notes[given].append("given up")
        raise


async def wait(request, context):
    """Waits, and has sent nothing."""
    given = word(context)
    notes[given].append("begun")
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        notes[given].append("given up")
        raise


async def nap(request, context):
    """Says which server this is, a moment later."""
    await asyncio.sleep(0.02)
    return name.encode()


async def meet(request, context):
    """Waits until as many calls as asked for wait, all at once; then all are answered."""
    given = word(context)
    arrived = asyncio.get_running_loop().create_future()
    meetings[given].add(arrived)
    if len(meetings[given]) == int(request):
        for other in meetings.pop(given):
            if not other.done():
                other.set_result(None)
    await arrived
    return b"met"


async def told(request, context):
    """What has been noted under a word, and on how many connections its calls have come."""
    given = request.decode()
    return "\n".join(notes[given] + [f"connections: {len(peers[given])}"]).encode()


def varint(number, value):
    """A field of a protocol buffer that is a number."""
    return bytes([number << 3, value])


def text(number, value):
    """A field of a protocol buffer that is a text or a message, shorter than 128 bytes."""
    return bytes([number << 3 | 2, len(value)]) + value


SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


async def check(request, context):
    """grpc.health.v1.Health/Check: HealthCheckRequest has the name of a service in field 1, HealthCheckResponse its status."""
    if request in (b"", text(1, b"test.Calls")):
        return varint(1, SERVING)
    if request == text(1, b"test.Resting"):
        return varint(1, NOT_SERVING)
    await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")


async def watch(request, context):
    """grpc.health.v1.Health/Watch: the same now, and whenever it changes, which it does not."""
    word(context)
    yield varint(1, SERVING if request in (b"", text(1, b"test.Calls")) else SERVICE_UNKNOWN)
    await asyncio.sleep(3600)


async def reflect(requests, context):
    """grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo, of which the list of services (field 7) is answered (field 6)."""
    async for request in requests:
        listed = text(1, text(1, b"test.Calls")) + text(1, text(1, b"grpc.health.v1.Health"))
        unimplemented = varint(1, 12) + text(2, b"only lists")
        what = text(6, listed) if request[:1] == b"\x3a" else text(7, unimplemented)
        yield text(2, request) + what


def handlers():
    unary, from_stream = grpc.unary_unary_rpc_method_handler, grpc.stream_unary_rpc_method_handler
    to_stream, both = grpc.unary_stream_rpc_method_handler, grpc.stream_stream_rpc_method_handler
    yield "test.Calls", {
        "Echo": unary(echo),
        "Collect": from_stream(collect),
        "Count": to_stream(count),
        "Chat": both(chat),
        "Fail": unary(fail),
        "FailLater": to_stream(fail_later),
        "Stay": both(stay),
        "Wait": unary(wait),
        "Nap": unary(nap),
        "Meet": unary(meet),
        "Notes": unary(told),
    }
    yield "grpc.health.v1.Health", {"Check": unary(check), "Watch": to_stream(watch)}
    yield "grpc.reflection.v1alpha.ServerReflection", {"ServerReflectionInfo": both(reflect)}


async def main():
    options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    if streams != "0":
        options.append(("grpc.max_concurrent_streams", int(streams)))
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, methods) for service, methods in handlers()]
    )
    address = port if port.startswith("unix:") else f"127.0.0.1:{port}"
    if tls:
        key, certificate = (open(path, "rb").read() for path in tls)
        server.add_secure_port(address, grpc.ssl_server_credentials([(key, certificate)]))
    else:
        server.add_insecure_port(address)
    await server.start()
    if port.startswith("unix:"):
        os.chmod(port.removeprefix("unix:"), 0o666)  # workers are of another user
    print(port, flush=True)
    await server.wait_for_termination()


asyncio.run(main())
