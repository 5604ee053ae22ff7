"""meta-memcache of PyPI, by the meta protocol."""
import os
import sys

from meta_memcache import CacheClient, Key, ServerAddress, SetMode, connection_pool_factory_builder

client = CacheClient.cache_client_from_servers(
    servers=[ServerAddress("127.0.0.1", int(sys.argv[1]))],
    connection_pool_factory_fn=connection_pool_factory_builder(),
)


def main():
    a, n = Key("a"), Key("n")
    assert client.set(a, "1", ttl=100) and client.get(a) == "1"
    assert not client.set(a, "2", ttl=100, set_mode=SetMode.ADD) and client.get(Key("none")) is None
    assert client.set(a, "3", ttl=100, set_mode=SetMode.REPLACE)
    value, cas = client.get_cas(a)
    assert value == "3" and client.set(a, "4", ttl=100, cas_token=cas)
    assert not client.set(a, "5", ttl=100, cas_token=cas)
    assert client.delta_initialize_and_get(n, delta=3, initial_value=5, initial_ttl=100) == 5
    assert client.delta_and_get(n, delta=3) == 8 and client.delta_and_get(n, delta=-20) == 0
    keys = [Key(f"k{number}") for number in range(300)]
    for number, key in enumerate(keys):
        assert client.set(key, "x" * number, ttl=100)
    many = client.multi_get(keys)
    assert sum(len(value) for value in many.values()) == 44850
    assert client.touch(a, ttl=50) and client.get(a, touch_ttl=60) == "4"
    assert client.invalidate(a) and client.get(a) is None
    binary = Key("schl\u00fcssel \u00e4")  # sent in base64
    assert client.set(binary, {"x": 1}, ttl=100) and client.get(binary) == {"x": 1}
    assert client.delete(binary) and client.get(binary) is None


try:
    main()
except BaseException as error:
    print(repr(error), error.__traceback__.tb_next.tb_lineno)
    os._exit(1)
os._exit(0)  # its pools have threads
