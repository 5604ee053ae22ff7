"""A client with Python's httpx, for tests/http2/clients.rs.

client.py URL AUTHORITIES FILE

Asks for URL fifty times at once and prints how many connections that took, then puts FILE to URL/up and gets it back, and prints whether
it is the same. Every answer has to be one of HTTP/2.
"""
import asyncio
import ssl
import sys

import httpx

url, authorities, file = sys.argv[1:]


async def ask(client, method, path, **options):
    response = await client.request(method, url + path, **options)
    if response.http_version != "HTTP/2":
        sys.exit(f"{path}: {response.http_version}")
    response.raise_for_status()
    return response


async def main():
    context = ssl.create_default_context(cafile=authorities)
    async with httpx.AsyncClient(http2=True, verify=context, trust_env=False, timeout=60) as client:
        first = await ask(client, "GET", "/show")
        print(first.text.strip())
        shown = await asyncio.gather(*(ask(client, "GET", "/connection") for _ in range(50)))
        print(len({response.text for response in shown}), "connection", len(shown), "responses")
        with open(file, "rb") as body:
            content = body.read()
        # One after the other: where another request is under way, httpcore may read the credit for an
        # upload in that one's turn, and then wait for credit that has come.
        put = await ask(client, "PUT", "/up", content=content)
        get = await ask(client, "GET", "/show")
        print(put.status_code, get.status_code)
        back = await ask(client, "GET", "/up")
        print("the same" if back.content == content else "another")


asyncio.run(main())
