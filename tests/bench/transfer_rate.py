"""Goodput of a handoff (tests/bench/transfer_rate) as a share of ucx_perftest's with messages of the same size, both over
TCP on this machine, in turn. Prints a Markdown table of medians.

    tests/bench/transfer_rate.py [--rounds 3] [--configurations 1024:1:bf16:bf16,...] [--link-gbit 8]
        build/release/bin/transfer_rate

Without a link's rate the two ends share the machine's cores, and whoever does less per byte is faster: ucx_perftest
neither reads KV out of pages nor checks it, and lets the sender write into the receiver's memory. With --link-gbit, as
root, everything runs in a network namespace whose loopback is shaped to it, as on a network that is slower than memory.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import time

UCX = {**os.environ, "UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}
PORT = 13400
BYTES_MAX = 1 << 30  # of one perftest run
MESSAGES_MIN = 256  # likewise: in shorter runs what the sockets' buffers hold counts as sent
# tokens : requests at once : store : wire
CONFIGURATIONS = ["1024:1:bf16:bf16", "4096:1:bf16:bf16", "32768:1:bf16:bf16", "1024:64:bf16:bf16", "4096:1:int8:int8",
                  "32768:1:int8:int8", "1024:64:int8:int8", "4096:1:bf16:int8"]


@contextlib.contextmanager
def shaped(gbit):
    """What a command is put behind to run with a loopback of that rate; nothing without one."""
    if gbit is None:
        yield []
        return
    name = f"transfer-rate-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", "tbf",
                        "rate", f"{int(gbit * 1e9)}bit", "burst", "256kb", "latency", "50ms"], check=True)
        yield ["ip", "netns", "exec", name]
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def perftest(message_bytes, total_bytes, prefix):
    """Bytes a second of active messages, eight in flight."""
    server = subprocess.Popen([*prefix, "ucx_perftest", "-p", str(PORT)], env=UCX, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.3)
        count = max(MESSAGES_MIN, min(total_bytes, BYTES_MAX) // message_bytes)
        out = subprocess.run([*prefix, "ucx_perftest", "127.0.0.1", "-p", str(PORT), "-t", "ucp_am_bw", "-s", str(message_bytes),
                              "-n", str(count), "-w", "8", "-O", "8", "-f", "-v"], env=UCX, check=True,
                             capture_output=True, text=True, timeout=300).stdout
        header, values = [line.split(",") for line in out.strip().splitlines()[-2:]]
        return float(values[header.index("overall_bw")]) * (1 << 20)
    finally:
        server.terminate()
        server.wait()


def handoff(binary, configuration, prefix):
    out = subprocess.run([*prefix, binary, *configuration.split(":")], env=UCX, check=True, capture_output=True, text=True,
                         timeout=600).stdout
    return json.loads(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--configurations", default=",".join(CONFIGURATIONS))
    parser.add_argument("--link-gbit", type=float)
    options = parser.parse_args()
    print("| tokens | at once | store | wire | frame | handoff GB/s | ucx_perftest GB/s | share | encode GB/s | CRC GB/s "
          "| sender's CPU s/GB |")
    print("|---:|---:|---|---|---:|---:|---:|---:|---:|---:|---:|")
    with shaped(options.link_gbit) as prefix:
        for configuration in options.configurations.split(","):
            measure(options, configuration, prefix)


def measure(options, configuration, prefix):
    ours, theirs = [], []
    for _ in range(options.rounds):
        ours.append(handoff(options.binary, configuration, prefix))
        theirs.append(perftest(ours[-1]["frame_bytes"], int(ours[-1]["bytes"]), prefix))
    median = {key: statistics.median(run[key] for run in ours) for key in ours[0]}
    share = statistics.median(run["goodput"] / peer for run, peer in zip(ours, theirs))
    tokens, requests, store, wire = configuration.split(":")
    print(f"| {tokens} | {requests} | {store} | {wire} | {median['frame_bytes'] / 1024:.0f} KiB "
          f"| {median['goodput'] / 1e9:.2f} | {statistics.median(theirs) / 1e9:.2f} | {share:.0%} "
          f"| {median['encode_bytes_per_s'] / 1e9:.1f} | {median['crc_bytes_per_s'] / 1e9:.1f} "
          f"| {median['sender_cpu_s_per_gb']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
