//! Clients of Debian's and tools that read statistics, each by the protocol that it has.

use std::process::Command;

use super::Server;

/// Runs a client's script against a server; a client that is not there is said.
fn run(server: &Server, client: &mut Command, missing: &str, package: &str) {
    let Ok(output) = client.arg(server.port.to_string()).output() else {
        eprintln!("skipped: the Debian package {package} is missing");
        return;
    };
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    if said.contains(missing) {
        eprintln!("skipped: the Debian package {package} is missing");
        return;
    }
    assert!(output.status.success(), "{said}");
}

/// libmemcached's client of Python, by both protocols.
const PYLIBMC: &str = r#"
import sys, pylibmc
for binary in (False, True):
    c = pylibmc.Client(["127.0.0.1:" + sys.argv[1]], binary=binary, behaviors={"cas": True})
    assert c.set("a", "1") and c.get("a") == "1"
    assert not c.add("a", "2") and c.replace("a", "3") and c.get("b") is None
    assert c.set("n", 5) and c.incr("n", 10) == 15 and c.decr("n", 1) == 14
    assert c.set_multi({str(n): "x" * n for n in range(300)}) == []
    many = c.get_multi([str(n) for n in range(300)])
    assert sum(len(v) for v in many.values()) == 44850
    value, cas = c.gets("a")
    assert c.cas("a", "9", cas) and not c.cas("a", "8", cas) and c.get("a") == "9"
    assert c.touch("a", 100) and c.delete("a") and not c.delete("a")
    assert c.set("large", "y" * 900000) and len(c.get("large")) == 900000
    assert b"curr_items" in c.get_stats()[0][1] or "curr_items" in c.get_stats()[0][1]
    c.flush_all()
    assert c.get("5") is None
"#;

#[test]
fn pylibmc_gets_along_with_it_by_both_protocols() {
    let server = Server::start(&[]);
    let mut client = Command::new("/usr/bin/python3");
    client.args(["-c", PYLIBMC]);
    run(
        &server,
        &mut client,
        "No module named 'pylibmc'",
        "python3-pylibmc",
    );
}

/// PHP's extension, by both protocols, and with a password.
const PHP_MEMCACHED: &str = r#"
if (!class_exists("Memcached")) { echo "no such class: Memcached"; exit(1); }
function check($what, $line) { if (!$what) { echo "line $line failed"; exit(1); } }
foreach ([false, true] as $binary) {
    $m = new Memcached();
    $m->setOption(Memcached::OPT_BINARY_PROTOCOL, $binary);
    $m->addServer("127.0.0.1", (int)$argv[1]);
    check($m->set("a", ["x" => 1], 100), __LINE__);
    check($m->get("a") == ["x" => 1], __LINE__);
    check(!$m->add("a", 2) && $m->getResultCode() == Memcached::RES_NOTSTORED
        || $m->getResultCode() == Memcached::RES_DATA_EXISTS, __LINE__);
    check($m->set("n", 5) && $m->increment("n", 3) == 8 && $m->decrement("n", 1) == 7, __LINE__);
    check($m->setMulti(["k1" => "v1", "k2" => "v2"]), __LINE__);
    check($m->getMulti(["k1", "k2", "k3"]) == ["k1" => "v1", "k2" => "v2"], __LINE__);
    $got = $m->get("k1", null, Memcached::GET_EXTENDED);
    check($m->cas($got["cas"], "k1", "w") && !$m->cas($got["cas"], "k1", "z"), __LINE__);
    check($m->get("k1") == "w" && $m->touch("k1", 50) && $m->delete("k1"), __LINE__);
    check($m->get("k1") === false && $m->getResultCode() == Memcached::RES_NOTFOUND, __LINE__);
    check(count($m->getStats()) == 1 && $m->flush() && $m->get("a") === false, __LINE__);
}
"#;

#[test]
fn phps_extension_gets_along_with_it_by_both_protocols() {
    let server = Server::start(&[]);
    let mut client = Command::new("php");
    client.args(["-r", PHP_MEMCACHED, "--"]);
    run(&server, &mut client, "no such class", "php-memcached");
}

/// Ruby's client, which speaks the binary protocol unless told.
const DALLI: &str = r#"
require "dalli"
c = Dalli::Client.new("127.0.0.1:#{ARGV[0]}")
def check(what, line) raise "line #{line} failed" unless what end
check c.set("a", "1", 100) && c.get("a") == "1", __LINE__
check !c.add("a", "2") && c.replace("a", "3"), __LINE__
check c.set("n", "5", 0, raw: true) && c.incr("n", 3) == 8 && c.decr("n", 10) == 0, __LINE__
check c.incr("new", 1, 0, 7) == 7, __LINE__
c.multi { 100.times { |n| c.set("k#{n}", "x" * n) } }
check c.get_multi(*(0...100).map { |n| "k#{n}" }).values.sum(&:length) == 4950, __LINE__
check c.cas("a") { |value| value + "4" } && c.get("a") == "34", __LINE__
check c.touch("a", 10) && c.delete("a") && c.get("a").nil?, __LINE__
check c.stats.values.first["curr_items"].to_i > 100 && c.flush_all, __LINE__
check c.get("k5").nil? && c.version.values.first.start_with?("1.6."), __LINE__
"#;

#[test]
fn dalli_gets_along_with_it() {
    let server = Server::start(&[]);
    let mut client = Command::new("ruby");
    client.args(["-e", DALLI]);
    run(&server, &mut client, "cannot load such file", "ruby-dalli");
}

/// The client of Perl that is written in C.
const PERL: &str = r#"
use Cache::Memcached::Fast;
my $c = Cache::Memcached::Fast->new({servers => ["127.0.0.1:$ARGV[0]"]});
sub check { my ($what, $line) = @_; die "line $line failed" unless $what }
check($c->set("a", "1", 100) && $c->get("a") eq "1", __LINE__);
check(!$c->add("a", "2") && $c->replace("a", "3") && $c->append("a", "4"), __LINE__);
check($c->get("a") eq "34" && !defined $c->get("b"), __LINE__);
my $got = $c->gets("a");
check($c->cas("a", $got->[0], "5") && !$c->cas("a", $got->[0], "6"), __LINE__);
check($c->incr("a", 2) == 7 && $c->decr("a", 10) == 0, __LINE__);
$c->set_multi(map { ["k$_", "x" x $_] } 0 .. 99);
my $many = $c->get_multi(map { "k$_" } 0 .. 99);
check(keys(%$many) == 100 && length($many->{k99}) == 99, __LINE__);
check($c->delete("k1") && $c->flush_all && !defined $c->get("k2"), __LINE__);
"#;

#[test]
fn perls_fast_client_gets_along_with_it() {
    let server = Server::start(&[]);
    let mut client = Command::new("perl");
    client.args(["-e", PERL]);
    let package = "libcache-memcached-fast-perl";
    run(
        &server,
        &mut client,
        "Can't locate Cache/Memcached/Fast.pm",
        package,
    );
}

/// What tests/install-packages has put into target/tools.
fn installed(name: &str) -> std::path::PathBuf {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("target/tools/memcached-clients").join(name)
}

/// A client's program in this folder.
fn script(name: &str) -> std::path::PathBuf {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("tests/stream/memcached_server/clients")
        .join(name)
}

#[test]
fn pymemcache_gets_along_with_it() {
    let server = Server::start(&[]);
    let mut client = Command::new("/usr/bin/python3");
    client.arg(script("pymemcache_client.py"));
    let missing = "No module named 'pymemcache'";
    run(&server, &mut client, missing, "python3-pymemcache");
}

#[test]
fn spymemcached_gets_along_with_it_by_both_protocols() {
    let jar = "/usr/share/java/spymemcached.jar";
    if !std::path::Path::new(jar).exists() {
        eprintln!("skipped: the Debian package libspymemcached-java is missing");
        return;
    }
    let server = Server::start(&[]);
    let mut client = Command::new("java");
    client.args(["-cp", jar]).arg(script("Spymemcached.java"));
    run(
        &server,
        &mut client,
        "no such client",
        "default-jdk-headless",
    );
}

#[test]
fn memjs_gets_along_with_it_and_says_who_it_is_by_sasl() {
    if !installed("node_modules/memjs").exists() {
        eprintln!("skipped: memjs is missing (tests/install-packages)");
        return;
    }
    let folder = super::folder();
    let users = folder.join("users");
    std::fs::write(&users, "anna:secret\n").unwrap();
    let users = users.display().to_string();
    for (options, user) in [
        (&[][..], &[][..]),
        (&["-S", "-Y", &users][..], &["anna", "secret"][..]),
    ] {
        let server = Server::start(options);
        let mut client = Command::new("node");
        client.env("NODE_PATH", installed("node_modules"));
        client.arg(script("memjs.js")).arg(server.port.to_string());
        let output = client.args(user).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{options:?}: {said}");
    }
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn gomemcache_gets_along_with_it() {
    let client = installed("gomemcache");
    if !client.exists() {
        eprintln!("skipped: gomemcache is missing (tests/install-packages)");
        return;
    }
    let server = Server::start(&[]);
    run(
        &server,
        &mut Command::new(client),
        "no such client",
        "golang",
    );
}

#[test]
fn meta_memcache_gets_along_with_it() {
    if !installed("python/meta_memcache").exists() {
        eprintln!("skipped: meta-memcache is missing (tests/install-packages)");
        return;
    }
    let server = Server::start(&[]);
    let mut client = Command::new("python3");
    client.env("PYTHONPATH", installed("python"));
    client.arg(script("meta_memcache_client.py"));
    run(&server, &mut client, "no such client", "python3");
}

#[test]
fn tools_read_the_statistics() {
    let server = Server::start(&[]);
    let value = "v".repeat(500);
    for number in 0..20 {
        let line = format!("set key{number} 0 0 500\r\n{value}\r\n");
        assert_eq!(server.ask(line.as_bytes()), "STORED\r\n");
    }
    let at = format!("127.0.0.1:{}", server.port);
    let told = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let tool = "/usr/share/memcached/scripts/memcached-tool";
    match told(tool, &[&at, "display"]) {
        None => eprintln!("skipped: the Debian package memcached is missing"),
        Some(display) => {
            // Class, size of a chunk, age, pages, items, whether it is full, what was evicted.
            let line = display.lines().nth(1).unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(
                (words[0], words[1], words[4]),
                ("9", "600B", "20"),
                "{display}"
            );
            let stats = told(tool, &[&at, "stats"]).unwrap();
            assert!(stats.contains("curr_items") && stats.contains("hash_power_level"));
            let sizes = told(tool, &[&at, "sizes"]).unwrap();
            assert!(sizes.contains("576") && sizes.contains("20"), "{sizes}");
            let dump = told(tool, &[&at, "dump"]).unwrap();
            assert_eq!(dump.matches("add key").count(), 20, "{dump}");
        }
    }
    match told("memcstat", &[&format!("--servers={at}")]) {
        None => eprintln!("skipped: the Debian package libmemcached-tools is missing"),
        Some(stats) => assert!(stats.contains("curr_items: 20"), "{stats}"),
    }
}
