"""A client with Python's ssl module, for tests/tls/clients.rs.

client.py PORT AUTHORITIES [version=TLSv1.3] [tickets=off] [identity=NAME] [name=HOST] [times=N] [offers=PROTOCOL,...]

Asks for / so many times on new connections that share the newest session, and prints for each: the version, whether the
session went on, the protocol agreed upon, and the body. Between the first and the others it waits for a line on its input.
"""
import socket
import ssl
import sys

port, authorities, *options = sys.argv[1:]
options = dict(option.split("=", 1) for option in options)
name = options.get("name", "localhost")

context = ssl.create_default_context(cafile=authorities)
version = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}[options.get("version", "TLSv1.3")]
context.minimum_version = context.maximum_version = version
context.set_alpn_protocols(options.get("offers", "h2,http/1.1").split(","))
if options.get("tickets") == "off":
    context.options |= ssl.OP_NO_TICKET
if "identity" in options:
    context.load_cert_chain(options["identity"] + ".crt", options["identity"] + ".key")

session = None
for number in range(int(options.get("times", "2"))):
    if number == 1:
        sys.stdin.readline()
    with socket.create_connection(("127.0.0.1", int(port)), 60) as stream:
        with context.wrap_socket(stream, server_hostname=name, session=session) as tls:
            tls.sendall(f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
            response = b""
            while chunk := tls.recv(16384):
                response += chunk
            # The end is a close_notify, or recv would have raised an error.
            body = response.partition(b"\r\n\r\n")[2].decode().strip()
            print(tls.version(), "resumed" if tls.session_reused else "new", tls.selected_alpn_protocol(), body, flush=True)
            session = tls.session
