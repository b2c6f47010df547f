"""Networks of a test's own: namespaces and the link between prefill and decode.

A namespace is held by a descriptor of this process and by nothing else: no name, no mount. So it goes with the last
process in it, however the test ends, and nothing that the machine already has can be met or disturbed. Needs Linux, root
and `ip`, `tc`, `nsenter`, `unshare`, `setpriv`.

Rejected: `ip netns`, whose names outlive a test that is killed.
"""

import contextlib
import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
import threading
import time

from processes import Place, eventually

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN_NO_PI = 0x0001 | 0x1000

KV = "kv0"  # the link between prefill and decode, at both of its ends
KV_ADDRESS = {"prefill": "198.18.0.1", "decode": "198.18.0.2"}
CONTROL_ADDRESS = {"prefill": "198.18.1.2", "decode": "198.18.2.2"}  # .1: the test's and the gateway's end

_libc = ctypes.CDLL(None, use_errno=True)


def _enter(fd):
    if _libc.setns(fd, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _own_namespace():
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def why_not():
    """Why there can be no namespaces here; empty where there can."""
    missing = [tool for tool in ("ip", "tc", "nsenter", "unshare", "setpriv") if not shutil.which(tool)]
    if missing:
        return f"network namespaces need {', '.join(missing)}"
    if os.geteuid() != 0:
        return "network namespaces need root"
    made = subprocess.run(["unshare", "--net", "--mount", "mount", "-t", "sysfs", "sysfs", "/sys"], capture_output=True,
                          text=True)
    if made.returncode != 0:
        return "no network namespace can be made: " + made.stderr.strip()
    return ""


class Namespace:
    def __init__(self):
        before = _own_namespace()
        try:
            if _libc.unshare(CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "unshare")
            self.fd = _own_namespace()
        finally:
            _enter(before)
            os.close(before)
        self.run("ip", "link", "set", "lo", "up")

    @contextlib.contextmanager
    def entered(self):
        """This thread, and what it starts meanwhile, is in the namespace."""
        before = _own_namespace()
        _enter(self.fd)
        try:
            yield
        finally:
            _enter(before)
            os.close(before)

    @property
    def path(self):
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def prefix(self):
        """Puts a command into it, for as long as this process lives. /sys is mounted anew because UCX looks for
        interfaces in /sys/class/net, which shows those of the namespace that mounted it."""
        return ["nsenter", "--net=" + self.path, "--", "unshare", "--mount", "--", "sh", "-c",
                'mount -t sysfs sysfs /sys && exec setpriv --pdeathsig KILL -- "$0" "$@"']

    def run(self, *command):
        subprocess.run(["nsenter", "--net=" + self.path, "--", *command], check=True)

    def address(self, interface, address):
        self.run("ip", "address", "add", address + "/24", "dev", interface)
        self.run("ip", "link", "set", interface, "up")

    def is_running(self, interface):
        shown = subprocess.run(["nsenter", "--net=" + self.path, "--", "ip", "-brief", "link", "show", interface],
                               check=True, capture_output=True, text=True)
        return "LOWER_UP" in shown.stdout and " UP " in shown.stdout

    def tun(self, name, mtu):
        """The other end of an interface: what the kernel sends comes out of the descriptor, what is written is received."""
        with self.entered():
            fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
            fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN_NO_PI))
        self.run("ip", "link", "set", name, "mtu", str(mtu), "txqueuelen", "2000")
        return fd

    def close(self):
        os.close(self.fd)


class Lab:
    """Prefill's namespace and decode's, each with a control link to the namespace that the test (and so the gateway)
    is in. Control never touches the KV link, and UCX may use nothing but that link, so what is measured on it is KV."""

    def __init__(self):
        self.test = Namespace()
        self.of = {role: Namespace() for role in KV_ADDRESS}
        with self.test.entered():
            for role, address in CONTROL_ADDRESS.items():
                self.test.run("ip", "link", "add", role, "type", "veth", "peer", "name", "control", "netns",
                              self.of[role].path)
                self.test.address(role, address.rsplit(".", 1)[0] + ".1")
                self.of[role].address("control", address)

    def veth(self, bytes_per_s=None):
        """Joins prefill and decode by a veth pair, shaped to `bytes_per_s` both ways, Ethernet's headers included."""
        self.of["prefill"].run("ip", "link", "add", KV, "type", "veth", "peer", "name", KV, "netns",
                               self.of["decode"].path)
        for role, address in KV_ADDRESS.items():
            self.of[role].address(KV, address)
        # The kernel says a moment later that it runs, and until then UCX finds no device.
        eventually(lambda: all(namespace.is_running(KV) for namespace in self.of.values()), 10, "the link is up")
        if bytes_per_s:
            self.shape(bytes_per_s)

    def shape(self, bytes_per_s):
        for namespace in self.of.values():
            namespace.run("tc", "qdisc", "replace", "dev", KV, "root", "tbf", "rate", f"{int(bytes_per_s * 8)}bit",
                          "burst", str(max(16384, int(bytes_per_s / 250))), "limit", str(1 << 20))

    def unshape(self):
        for namespace in self.of.values():
            namespace.run("tc", "qdisc", "delete", "dev", KV, "root")

    def tuns(self, mtu=9000):
        """Joins them by nothing: two descriptors, prefill's and decode's, between which somebody has to carry packets."""
        fds = [self.of[role].tun(KV, mtu) for role in KV_ADDRESS]
        for role, address in KV_ADDRESS.items():
            self.of[role].address(KV, address)
        return fds

    def set_link(self, role, state):
        self.of[role].run("ip", "link", "set", KV, state)

    def places(self):
        # UCX's default list of transports would go around the link through shared memory.
        return {role: Place(self.of[role].prefix(), {"UCX_TLS": "tcp"}, CONTROL_ADDRESS[role], KV_ADDRESS[role],
                            ["--kv-interface", KV])
                for role in self.of}

    def close(self):
        for namespace in [self.test, *self.of.values()]:
            namespace.close()


def sent_bytes(process, interface=KV):
    """What has left through an interface of the namespace that a process is in."""
    with open(f"/proc/{process.popen.pid}/net/dev") as f:
        for line in f:
            name, _, counters = line.partition(":")
            if name.strip() == interface:
                return int(counters.split()[8])
    raise KeyError(interface)


class RateMeter:
    """Bytes a second through an interface while it is busy: between the moments when a tenth and nine tenths of what
    was sent during `with` had left."""

    def __init__(self, process, interface=KV):
        self._process, self._interface = process, interface
        self._samples = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def _sample(self):
        while True:
            self._samples.append((time.monotonic(), sent_bytes(self._process, self._interface)))
            if self._over.wait(0.005):
                return

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    @property
    def bytes(self):
        return self._samples[-1][1] - self._samples[0][1]

    def bytes_per_s(self):
        first = self._samples[0][1]
        begin = next(s for s in self._samples if s[1] - first >= 0.1 * self.bytes)
        end = next(s for s in self._samples if s[1] - first >= 0.9 * self.bytes)
        return (end[1] - begin[1]) / (end[0] - begin[0])
