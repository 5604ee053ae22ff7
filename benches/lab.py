"""What the benches share: a server in a folder of its own, its CPU time, its memory, and the machine's limits."""
import contextlib
import os
import random
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TIDEGATE = os.environ.get("TIDEGATE_BINARY", f"{ROOT}/target/release/tidegate")
XTASK = os.environ.get("XTASK_BINARY", f"{ROOT}/target/release/xtask")
NGINX = os.environ.get("NGINX_BINARY", "/usr/sbin/nginx")
BOOTSTRAP_SAMPLES = 5000


def say(text):
    print(text, file=sys.stderr, flush=True)


def version(binary):
    return subprocess.run([binary, "-v"], capture_output=True, text=True).stderr.strip()


def is_nginx(binary):
    return "tidegate" not in version(binary)


def interval(values):
    """Median and bootstrap 95 % interval of the median."""
    values = list(values)
    medians = sorted(statistics.median(random.choices(values, k=len(values))) for _ in range(BOOTSTRAP_SAMPLES))
    return [medians[int(0.025 * len(medians))], statistics.median(values), medians[int(0.975 * len(medians)) - 1]]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def awake(cores):
    """Keeps these cores from halting: on each a process spins that has its turn only when nothing else wants the core. A virtual
    core that halts costs its host time to wake, which others see as stolen and which scatters every figure."""
    def before(core):
        os.sched_setaffinity(0, {core})
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # It ends with whatever started it, however that ends.
    spin = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(1000000): pass"
    spinners = [subprocess.Popen([sys.executable, "-c", spin], preexec_fn=lambda core=core: before(core)) for core in cores]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def raise_descriptor_limit():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def need(*programs):
    """Ends the program if one of these cannot be run."""
    for program in programs:
        if not shutil.which(program):
            sys.exit(f"{program} is missing")


def family(pid):
    """The process and all its descendants."""
    parents = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as stat:
                parents[int(entry)] = int(stat.read().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError):
            pass  # it has ended meanwhile
    pids = {pid}
    while True:
        more = {child for child, parent in parents.items() if parent in pids} - pids
        if not more:
            return pids
        pids |= more


def pss(pid):
    """Proportional set size of the process and its descendants, in bytes."""
    total = 0
    for member in family(pid):
        try:
            with open(f"/proc/{member}/smaps_rollup") as rollup:
                total += int(re.search(r"^Pss:\s+(\d+) kB", rollup.read(), re.M)[1]) * 1024
        except (OSError, TypeError):
            pass  # it has ended meanwhile
    return total


class Account:
    """The CPU time of one server and its children, in seconds: from a cgroup where there is one."""

    def __init__(self, name):
        self.folder, self.file, self.unit, self.pid = None, None, 1, None
        for parent, file, unit in (("/sys/fs/cgroup/cpuacct", "cpuacct.usage", 1e-9), ("/sys/fs/cgroup", "cpu.stat", 1e-6)):
            if file == "cpu.stat" and not os.path.exists(f"{parent}/cgroup.controllers"):
                continue
            try:
                folder = f"{parent}/tidegate-bench-{os.getpid()}-{name}"
                os.mkdir(folder)
                self.folder, self.file, self.unit = folder, file, unit
                break
            except OSError:
                continue

    def enter(self):
        """Called in the child before exec."""
        if self.folder:
            with open(f"{self.folder}/cgroup.procs", "w") as procs:
                procs.write(str(os.getpid()))

    def seconds(self):
        if not self.folder:
            return sum(self.of_process(pid) for pid in family(self.pid))
        with open(f"{self.folder}/{self.file}") as usage:
            text = usage.read()
        value = re.search(r"usage_usec (\d+)", text)[1] if self.file == "cpu.stat" else text
        return int(value) * self.unit

    @staticmethod
    def of_process(pid):
        total = 0
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/schedstat") as schedstat:
                    total += int(schedstat.read().split()[0])
        except OSError:
            pass
        return total * 1e-9

    def remove(self):
        if self.folder:
            try:
                os.rmdir(self.folder)
            except OSError:
                pass


class Server:
    """One running server with its own prefix, port and account.

    `http` is the text of the http block without its braces; @PORT@ in it becomes the port. `prepare` runs in the
    child before exec.
    """

    def __init__(self, name, binary, http, folder, engine="", core=None, prepare=None):
        self.name, self.binary, self.port = name, binary, free_port()
        self.prefix = f"{folder}/{name}"
        for part in ("logs", "temp"):
            os.makedirs(f"{self.prefix}/{part}")
        os.chmod(self.prefix, 0o755)
        os.chmod(f"{self.prefix}/logs", 0o777)
        with open(f"{self.prefix}/nginx.conf", "w") as conf:
            conf.write(self.configuration(http.replace("@PORT@", str(self.port)), engine))
        self.account = Account(name)

        def before():
            if core is not None:
                os.sched_setaffinity(0, {core})
            self.account.enter()
            if prepare:
                prepare()

        command = self.command()
        with open(f"{self.prefix}/output", "w") as output:
            self.process = subprocess.Popen(command, preexec_fn=before, stdout=subprocess.DEVNULL, stderr=output)
        self.account.pid = self.process.pid
        self.wait()

    def command(self):
        return [self.binary, "-p", self.prefix + "/", "-c", f"{self.prefix}/nginx.conf", "-e", "logs/error.log"]

    def configuration(self, http, engine):
        # Folders of modules that Tidegate does not have yet.
        temporary = "fastcgi_temp_path temp/f; uwsgi_temp_path temp/u; scgi_temp_path temp/s;" if is_nginx(self.binary) else ""
        user = "user nobody nogroup;" if os.geteuid() == 0 else ""
        log = "" if "access_log" in http else "access_log off;"
        return f"""daemon off;
{user}
worker_processes 1;
worker_rlimit_nofile 20000;
pid logs/nginx.pid;
error_log logs/error.log crit;
events {{ worker_connections 19000; {f'use {engine};' if engine else ''} }}
http {{
types {{ image/jpeg jpg; }}
default_type application/octet-stream;
sendfile on;
keepalive_timeout 600s;
keepalive_requests 1000000000;
client_body_temp_path temp/b;
proxy_temp_path temp/p;
{temporary}
{log}
{http}
}}
"""

    def wait(self):
        end = time.time() + 10
        while time.time() < end and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.02)
        with open(f"{self.prefix}/output") as output:
            sys.exit(f"{self.name} does not start:\n{output.read()}")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        time.sleep(0.05)
        self.account.remove()

    def forget_logs(self):
        for name in ("access", "error"):
            path = f"{self.prefix}/logs/{name}.log"
            if os.path.exists(path):
                os.truncate(path, 0)


class Floor(Server):
    """`xtask floor`: a server that does nothing but receive and send."""

    def __init__(self, folder, response, arguments, core, name=None):
        self.response, self.arguments = response, arguments
        name = name or ("floor-watching" if "--watch" in arguments else "floor")
        super().__init__(name, XTASK, "", folder, core=core)

    def command(self):
        path = f"{self.prefix}/response"
        with open(path, "wb") as file:
            file.write(self.response)
        return [self.binary, "floor", "--address", f"127.0.0.1:{self.port}", "--response", path] + self.arguments


class H2o(Server):
    """h2o with one thread, as Debian has it, for files."""

    def __init__(self, binary, folder, root, tls, core):
        self.root, self.tls, self.folder = root, tls, folder
        super().__init__("h2o", binary, "", folder, core=core)

    def command(self):
        return [self.binary, "-c", f"{self.prefix}/nginx.conf"]

    def configuration(self, http, engine):
        tls = f"""
  ssl:
    certificate-file: {self.folder}/certificate.pem
    key-file: {self.folder}/key.pem
    minimum-version: TLSv1.2""" if self.tls else ""
        return f"""user: root
num-threads: 1
max-connections: 19000
http2-idle-timeout: 600
listen:
  host: 127.0.0.1
  port: {self.port}{tls}
hosts:
  default:
    paths:
      /:
        file.dir: {self.root}
"""


class HaProxy(Server):
    """HAProxy with one thread, as Debian has it, before one upstream with connections that are kept."""

    def __init__(self, binary, folder, upstream, core, options=""):
        self.upstream, self.options = upstream, options
        super().__init__("haproxy", binary, "", folder, core=core)

    def command(self):
        return [self.binary, "-db", "-f", f"{self.prefix}/nginx.conf"]

    def configuration(self, http, engine):
        return f"""global
  maxconn 9000
  nbthread 1
defaults
  mode http
  timeout connect 60s
  timeout client 600s
  timeout server 60s
frontend clients
  bind 127.0.0.1:{self.port} backlog 4096
  default_backend upstreams
backend upstreams
  server first 127.0.0.1:{self.upstream} {self.options}
"""


class Varnish(Server):
    """Varnish with one pool of threads, before one upstream, answers in memory for as long as a run takes."""

    def __init__(self, binary, folder, upstream, core, options=()):
        self.upstream, self.options = upstream, list(options)
        super().__init__("varnish", binary, "", folder, core=core)

    def command(self):
        return [self.binary, "-F", "-j", "none", "-n", f"{self.prefix}/state", "-a", f"127.0.0.1:{self.port}", "-b", f"127.0.0.1:{self.upstream}",
                "-s", "malloc,256m", "-t", "86400", "-p", "thread_pools=1", "-p", "timeout_idle=600"] + self.options

    def configuration(self, http, engine):
        return ""


def contenders(binary, engines):
    """What the benches about one server at a time run: name, binary, engine."""
    return [(f"tidegate-{engine}", binary, engine) for engine in engines.split(",") if engine] + [("nginx", NGINX, "")]
