"""Real processes: one `sluice` subcommand, and a service of gateway, prefill and decode. Where they run and what they
listen on is the business of a Place; without one that is here, on loopback."""

import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import tempfile
import time

import httpx

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get("SLUICE_TEST_BINARY", str(ROOT / "build/release/bin/sluice"))
DATA = ROOT / "tests/data"
MODEL = os.environ.get("SLUICE_TEST_MODEL", "")
VOCAB = 49152  # of SmolLM2
START_S = 120  # instrumented builds start slowly


def eventually(condition, timeout_s, what):
    """Waits until condition() is true; its last falsy value is in the failure."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"after {timeout_s} s still not: {what} (last: {value!r})"
        time.sleep(0.05)


def prompt_ids(length, seed=1):
    draw = random.Random(seed * 100003 + length)
    return [draw.randrange(17, VOCAB) for _ in range(length)]


def parse_metrics(text):
    values = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            values[name] = float(value)
    return values


class Place:
    """Where a process runs: what its command is put behind, its environment, its addresses for control and for KV, and
    flags that belong to the place."""

    def __init__(self, prefix=(), env=None, host="127.0.0.1", kv_host="127.0.0.1", flags=()):
        self.prefix, self.env, self.host, self.kv_host, self.flags = list(prefix), env or {}, host, kv_host, list(flags)


class Process:
    """One `sluice` subcommand with its announcement. REQUIRES: a prefix keeps the process id and inherits descriptors."""

    def __init__(self, args, log, env=None, prefix=()):
        read_fd, write_fd = os.pipe()
        self.log_path = log
        with open(log, "ab") as out:
            self.popen = subprocess.Popen([*prefix, BINARY, *args, "--announce-fd", str(write_fd)], stdout=out, stderr=out,
                                          stdin=subprocess.DEVNULL, pass_fds=[write_fd],
                                          env={**os.environ, **(env or {})})
        os.close(write_fd)
        self._read_fd = read_fd
        self.args = args
        self.announced = None

    def await_announcement(self):
        with os.fdopen(self._read_fd) as pipe:
            line = pipe.readline()
        assert line, f"{self.args[0]} ended while starting:\n" + self.log()
        self.announced = json.loads(line)
        return self.announced

    def metrics(self):
        return parse_metrics(httpx.get(f"http://{self.announced['metrics']}/metrics", timeout=10).text)

    def resident_bytes(self, field="VmRSS"):
        status = pathlib.Path(f"/proc/{self.popen.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(field))

    def peak_bytes(self):
        return self.resident_bytes("VmHWM")

    def model_hash(self):
        shown = subprocess.run([BINARY, "models", "show", self.args[self.args.index("--model") + 1], "--json"],
                               check=True, capture_output=True)
        return json.loads(shown.stdout)["model_hash"]

    def log(self):
        return pathlib.Path(self.log_path).read_text(errors="replace")[-4000:]

    def kill(self):
        self.popen.kill()
        self.popen.wait()

    def stop(self, timeout_s=30):
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGCONT)
            self.popen.terminate()
            try:
                self.popen.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        return self.popen.returncode


class Service:
    """Gateway, prefill and decode processes, each started by hand so that a test can kill one of them."""

    def __init__(self, model, prefill=1, decode=1, worker_flags=(), prefill_flags=(), decode_flags=(), gateway_flags=(),
                 places=None, local_prefill_tokens=0):
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-test.")
        self.env = {"SLUICE_CLUSTER_KEY": "11" * 32}
        self.model = str(model)
        self.worker_flags = list(worker_flags)
        self.places = {"prefill": Place(), "decode": Place(), **(places or {})}
        # Answers are compared with those of one process: the wire must not take what a busy machine makes of its link.
        wire = [] if "--kv-wire" in [*worker_flags, *prefill_flags] else ["--kv-wire", "store"]
        # Unless a test asks for it decode computes no prompts: tests of the handoff use short ones.
        self.flags = {"prefill": [*wire, *prefill_flags],
                      "decode": ["--local-prefill-tokens", str(local_prefill_tokens), *decode_flags]}
        self.decode = [self._spawn("decode", i) for i in range(decode)]
        self.prefill = [self._spawn("prefill", i) for i in range(prefill)]
        for worker in self.decode + self.prefill:
            worker.await_announcement()
        self.gateway = Process(["gateway", "--model", self.model, "--listen", "127.0.0.1:0",
                                "--prefill", ",".join(p.announced["grpc"] for p in self.prefill),
                                "--decode", ",".join(d.announced["grpc"] for d in self.decode), *gateway_flags],
                               self._log("gateway"), self.env)
        self.gateway.await_announcement()
        self.url = "http://" + self.gateway.announced["http"]
        self.http = httpx.Client(base_url=self.url, timeout=120)

    def _log(self, name):
        return os.path.join(self.folder.name, name + ".log")

    def _spawn(self, role, index, listen=None, kv_listen=None):
        place = self.places[role]
        flags = ["--model", self.model, "--listen", listen or place.host + ":0", "--metrics-listen", place.host + ":0"]
        if role == "decode":
            flags += ["--kv-listen", kv_listen or place.kv_host + ":0"]
        return Process([role, *flags, *place.flags, *self.worker_flags, *self.flags[role]], self._log(f"{role}{index}"),
                       {**self.env, **place.env}, place.prefix)

    def restart(self, role, index):
        """A new process on the old one's ports."""
        workers = getattr(self, role)
        old = workers[index]
        kv = {"kv_listen": old.announced["kv"]} if role == "decode" else {}
        workers[index] = self._spawn(role, index, old.announced["grpc"], **kv)
        workers[index].await_announcement()
        return workers[index]

    def await_ready(self, timeout_s=START_S):
        eventually(lambda: self.http.get("/ready").status_code == 200, timeout_s, "ready")
        return self

    def completion(self, **body):
        return self.http.post("/v1/completions", json={"temperature": 0, **body})

    def pages_free(self, worker):
        """How many pages nobody uses, those that caches keep among them, and how many there are."""
        metrics = worker.metrics()
        role = "decode" if worker in self.decode else "prefill"
        free, cached, total = (metrics.get(f"sluice_{role}_kv_pages_{what}", 0) for what in ("free", "cached", "total"))
        return free + cached, total

    def await_all_pages_free(self, timeout_s=10):
        def all_free():
            return all(free == total for free, total in map(self.pages_free, self._alive()))
        eventually(all_free, timeout_s, "free pages equal total pages")

    def _alive(self):
        return [w for w in self.decode + self.prefill if w.popen.poll() is None]

    def close(self):
        self.http.close()
        statuses = [p.stop() for p in [self.gateway, *self.prefill, *self.decode] if p.popen.poll() is None]
        logs = {p.args[0]: p.log() for p in [self.gateway, *self.prefill, *self.decode]}
        self.folder.cleanup()
        assert all(status == 0 for status in statuses), f"ended with {statuses}: {logs}"


@contextlib.contextmanager
def service(*args, **kwargs):
    running = Service(*args, **kwargs)
    try:
        yield running.await_ready()
    finally:
        running.close()


def complete_locally(model, ids, max_tokens, *flags):
    """The same model served whole: `sluice complete` in one process."""
    out = subprocess.run([BINARY, "complete", "--model", str(model), "--prompt-ids", ",".join(map(str, ids)),
                          "--max-tokens", str(max_tokens), "--temperature", "0", "--json", *flags],
                         check=True, capture_output=True, timeout=300)
    return json.loads(out.stdout)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
