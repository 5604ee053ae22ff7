"""A collector of OpenTelemetry, for tests/operations/tracing.

collector.py PACKAGES PORT FILE BEHAVIOUR [KEY CERTIFICATE]

Serves at PORT of 127.0.0.1 until it is ended, and says so by printing PORT. Each batch that comes
is a line of JSON in FILE: its resource, its spans, and the fields of the call. BEHAVIOUR is what
calls get: `takes` them, `refuses` them, `rejects` some of their spans, or is `silent`. PACKAGES is
where opentelemetry-proto of PyPI has been installed.
"""
import concurrent.futures
import json
import sys
import threading
import time

packages, port, file, behaviour, *tls = sys.argv[1:]
sys.path.insert(0, packages)

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

written = threading.Lock()


def value(any_value):
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(each) for each in any_value.array_value.values]
    return getattr(any_value, kind)


def attributes(pairs):
    names = [pair.key for pair in pairs]
    assert len(names) == len(set(names)), names
    return {pair.key: value(pair.value) for pair in pairs}


def shown(span):
    return {
        "trace_id": span.trace_id.hex(),
        "span_id": span.span_id.hex(),
        "parent_id": span.parent_span_id.hex(),
        "state": span.trace_state,
        "name": span.name,
        "kind": span.kind,
        "start": span.start_time_unix_nano,
        "end": span.end_time_unix_nano,
        "error": span.status.code == 2,
        "attributes": attributes(span.attributes),
    }


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def Export(self, request, context):
        batches = []
        for of_resource in request.resource_spans:
            for of_scope in of_resource.scope_spans:
                batches.append({
                    "resource": attributes(of_resource.resource.attributes),
                    "scope": of_scope.scope.name,
                    "fields": dict(context.invocation_metadata()),
                    "spans": [shown(span) for span in of_scope.spans],
                })
        with written, open(file, "a") as out:
            for batch in batches:
                out.write(json.dumps(batch) + "\n")
        if behaviour == "silent":
            time.sleep(3600)
        if behaviour == "refuses":
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "who are you?")
        response = trace_service_pb2.ExportTraceServiceResponse()
        if behaviour == "rejects":
            response.partial_success.rejected_spans = 1
            response.partial_success.error_message = "too old"
        return response


server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Collector(), server)
address = f"127.0.0.1:{port}"
if tls:
    key, certificate = (open(path, "rb").read() for path in tls)
    server.add_secure_port(address, grpc.ssl_server_credentials([(key, certificate)]))
else:
    server.add_insecure_port(address)
server.start()
print(port, flush=True)
server.wait_for_termination()
