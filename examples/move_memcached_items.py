#!/usr/bin/env python3
"""Copies the items of a memcached server into another one that serves already.

move_memcached_items.py OLD_PORT NEW_PORT: keys come by `lru_crawler metadump`, values, flags and
times to live by `mg`. What the new one has by then stays as it is.
"""
import base64, socket, sys
from urllib.parse import unquote_to_bytes

def word(key):
    plain = all(33 <= byte < 127 for byte in key)
    return key if plain else base64.b64encode(key) + b" b"

old, new = (socket.create_connection(("127.0.0.1", int(port))) for port in sys.argv[1:])
told, answers = old.makefile("rb"), new.makefile("rb")
old.sendall(b"lru_crawler metadump all\r\n")
keys = []
for line in iter(told.readline, b"END\r\n"):
    if not line.startswith(b"key="):
        sys.exit(line.decode())
    keys.append(unquote_to_bytes(line[4:].split(b" ")[0]))
for at in range(0, len(keys), 100):
    batch = keys[at:at + 100]
    asked = (b"mg %s v f t s Oitem%d\r\n" % (word(key), at) for at, key in enumerate(batch))
    old.sendall(b"".join(asked) + b"mn\r\n")
    for line in iter(told.readline, b"MN\r\n"):
        if not line.startswith(b"VA "):
            continue  # it has gone meanwhile
        flags = {flag[:1]: flag[1:].decode() for flag in line.split()[2:]}
        value = told.read(int(flags[b"s"]) + 2)
        key, expires = word(batch[int(flags[b"O"][4:])]), flags[b"t"].replace("-1", "0")
        key, _, binary = key.partition(b" ")
        store = f"{flags['s'.encode()]} ME q F{flags[b'f']} T{expires}".encode()
        new.sendall(b"ms " + key + b" " + store + (b" b" if binary else b"") + b"\r\n" + value)
new.sendall(b"mn\r\n")
while answers.readline() != b"MN\r\n":
    pass
