"""pymemcache of Debian, by the text protocol."""
import sys

from pymemcache.client.base import Client

c = Client(("127.0.0.1", int(sys.argv[1])), default_noreply=False)
assert c.set("a", "1", expire=100) and c.get("a") == b"1"
assert not c.add("a", "2") and c.replace("a", "3") and c.append("a", "4") and c.prepend("a", "2")
assert c.get("a") == b"234" and c.get("none") is None
value, cas = c.gets("a")
assert c.cas("a", "9", cas) and c.cas("a", "8", cas) is False
assert c.set("n", 5) and c.incr("n", 10) == 15 and c.decr("n", 20) == 0
assert c.set_many({f"k{number}": "x" * number for number in range(300)}) == []
many = c.get_many([f"k{number}" for number in range(300)])
assert sum(len(value) for value in many.values()) == 44850
assert c.touch("a", 50) and c.get("a") == b"9" and c.delete("a") and not c.delete("a")
assert c.stats()[b"curr_items"] == 301 and c.version().startswith(b"1.6.")
assert c.stats("settings")[b"maxconns"] == 1024
assert c.flush_all() and c.get("k5") is None
c.quit()
