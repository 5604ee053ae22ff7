// spymemcached, by the binary protocol and by the text protocol.
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import net.spy.memcached.BinaryConnectionFactory;
import net.spy.memcached.CASResponse;
import net.spy.memcached.CASValue;
import net.spy.memcached.ConnectionFactory;
import net.spy.memcached.DefaultConnectionFactory;
import net.spy.memcached.MemcachedClient;

public class Spymemcached {
    static void check(boolean what) {
        if (!what) {
            throw new AssertionError();
        }
    }

    static void ask(ConnectionFactory factory, int port) throws Exception {
        List<InetSocketAddress> servers = List.of(new InetSocketAddress("127.0.0.1", port));
        MemcachedClient c = new MemcachedClient(factory, servers);
        check(c.set("a", 100, "1").get() && c.get("a").equals("1"));
        check(!c.add("a", 0, "2").get() && c.replace("a", 0, "3").get());
        check(c.get("none") == null);
        CASValue<Object> got = c.gets("a");
        check(c.cas("a", got.getCas(), "4") == CASResponse.OK);
        check(c.cas("a", got.getCas(), "5") == CASResponse.EXISTS);
        check(c.incr("n", 3, 5) == 5 && c.incr("n", 3, 5) == 8 && c.decr("n", 20) == 0);
        List<String> keys = new ArrayList<>();
        for (int i = 0; i < 300; i++) {
            keys.add("k" + i);
            c.set("k" + i, 0, "x".repeat(i));
        }
        check(c.set("last", 0, "1").get());
        Map<String, Object> all = c.getBulk(keys);
        check(all.size() == 300 && all.get("k299").equals("x".repeat(299)));
        check(c.touch("a", 50).get() && c.get("a").equals("4"));
        if (factory instanceof BinaryConnectionFactory) {
            check(c.getAndTouch("a", 60).getValue().equals("4"));
        }
        check(c.delete("a").get() && c.get("a") == null);
        check(c.getStats().values().iterator().next().containsKey("curr_items"));
        check(c.flush().get() && c.get("k5") == null);
        c.shutdown();
    }

    public static void main(String[] arguments) throws Exception {
        java.util.logging.LogManager.getLogManager().reset();
        System.setProperty("net.spy.log.LoggerImpl", "net.spy.memcached.compat.log.SunLogger");
        ask(new BinaryConnectionFactory(), Integer.parseInt(arguments[0]));
        ask(new DefaultConnectionFactory(), Integer.parseInt(arguments[0]));
        System.exit(0);
    }
}
