"""A server of gRPC with Python's grpcio, for tests/bench/grpc.rs.

server.py

Prints the port of 127.0.0.1 that it listens on. /test.Calls/Echo answers with the message that it got, /test.Calls/Missing with NOT_FOUND. To
each line of its input it answers with one: how many calls of either there were, and how many bytes of messages Echo got. It ends with its input.
"""
import sys
import threading
from concurrent import futures

import grpc

lock = threading.Lock()
calls = {"Echo": 0, "Missing": 0}
length = 0


def echo(message, _):
    global length
    with lock:
        calls["Echo"] += 1
        length += len(message)
    return message


def missing(_, context):
    with lock:
        calls["Missing"] += 1
    context.abort(grpc.StatusCode.NOT_FOUND, "there is none")


server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
methods = {"Echo": grpc.unary_unary_rpc_method_handler(echo), "Missing": grpc.unary_unary_rpc_method_handler(missing)}
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Calls", methods),))
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
for _ in sys.stdin:
    with lock:
        print(calls["Echo"], calls["Missing"], length, flush=True)
server.stop(None)
