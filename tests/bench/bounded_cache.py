"""What bounded caches are worth on this machine, in one run: prints Markdown tables.

    tests/bench/bounded_cache.py --model FILE.gguf [--bin build/release/bin] [--parts attention,steps,room,wire,chat]
                                 [--chat-tokens 65536] [--before "chrt -f 1"]

Needs the Python packages of tests/requirements.txt. The figures, and what they are to reach, are explained in
docs/cache-policies.md. `--before` is put before each measured program, so that a busy machine gives it its cores.
"""

import argparse
import json
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/process"))
import processes  # noqa: E402

TINY = ROOT / "tests/data/policies/models/tiny-llama-gqa"
MIB = 1 << 20


def table(title, header, rows):
    print(f"\n{title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")
    sys.stdout.flush()


class Machine:
    def __init__(self, options):
        self.bin, self.before, self.model = pathlib.Path(options.bin), shlex.split(options.before), options.model

    def run(self, program, *args):
        return subprocess.run([*self.before, self.bin / program, *map(str, args)], check=True, capture_output=True,
                              text=True, timeout=600).stdout

    def attention(self, *args):
        """GB/s, share of what reading memory takes, and microseconds a layer."""
        out = self.run("attention_bench", "--codec", "int8", "--rounds", 5, *args)
        rate, share, layer = re.search(r"int8 +([\d.]+) GB/s +([\d.]+) of stream read +([\d.]+) us", out).groups()
        return float(rate), float(share), float(layer)


def attention(machine, _):
    rows = []
    for head_dim in (64, 128):
        for group in (1, 4):
            rate, share, _ = machine.attention("--batch", 8, "--head-dim", head_dim, "--group", group)
            rows.append([head_dim, group, f"{rate:.1f}", f"{share:.2f}"])
    table("Decode attention, batch 8, 8192 slots, int8", ["head_dim", "query heads a kv head", "GB/s", "of stream read"], rows)
    shape = ["--batch", 1, "--head-dim", 128, "--group", 4]
    full = machine.attention(*shape, "--context", 32768)[2]
    kept = machine.attention(*shape, "--context", 3277, "--weights")[2]
    table("Attention of one layer of a step at 32,768 tokens, head_dim 128, 8 kv heads of 4, int8",
          ["full", "h2o 10 %, its weights given out", "ratio"], [[f"{full:.0f} µs", f"{kept:.0f} µs", f"{full / kept:.1f}"]])


def steps(machine, _):
    """A tiny model that is told it has a long context: attention and the policy's own work are most of a step."""
    lengths = [1024, 4096, 16384, 65536]
    with tempfile.TemporaryDirectory() as folder:
        for file in TINY.iterdir():
            (pathlib.Path(folder) / file.name).write_bytes(file.read_bytes())
        config = json.loads((TINY / "config.json").read_text())
        config["max_position_embeddings"] = 2 * lengths[-1]
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        rows = []
        streamed = ["--prefill", "streamed"]
        for policy in (["full"], ["h2o", "--cache-budget", "1024", *streamed], ["tova", "--cache-budget", "1024", *streamed],
                       ["sink-window", "--sinks", "4", "--window", "1020", *streamed]):
            row = []
            for length in lengths:
                flags = pathlib.Path(folder) / "flags"  # a command line holds fewer ids
                flags.write_text(f"[complete]\nprompt-ids = {[i % 250 for i in range(length)]}\n")
                took = []
                for _ in range(3 if policy[1:] else 1):
                    out = machine.run("sluice", "complete", "--config", flags, "--model", folder, "--max-tokens", 513, "--ignore-eos",
                                      "--temperature", 0, "--json", "--threads", 1, "--cache-policy", *policy)
                    took.append(1e6 / json.loads(out)["timings"]["decode_tokens_per_s"])
                row.append(statistics.median(took))
            rows.append([policy[0], *(f"{step:.0f}" for step in row), f"{row[-1] / row[0]:.2f}"])
    table("A step of a tiny model (3 layers, 2 kv heads of 32) after so many tokens, bounded caches of 1024; µs",
          ["policy", *(f"{length:,}" for length in lengths), "last / first"], rows)


def room(machine, _):
    config = json.loads(machine.run("sluice", "models", "show", machine.model, "--json"))["config"]
    shape = ",".join(f"{field}={config[field]}" for field in ("layers", "heads", "kv_heads", "head_dim"))
    plan = json.loads(machine.run("sluice", "plan", "--shape", shape, "--context", 8192, "--device-memory", "1GiB",
                                  "--policies", "sink-window:4+1020", "--json"))
    full, bounded = (next(row["requests"] for row in plan["contexts"][0]["rows"]
                          if row["codec"] == codec and row["policy"].startswith(policy))
                     for codec, policy in (("bf16", "full"), ("int8", "sink-window")))
    table("Requests of 8192 tokens in 1 GiB of KV", ["bf16, full", "int8, sink-window 4+1020", "ratio"],
          [[full, bounded, f"{bounded / full:.1f}"]])


def wire(machine, _):
    sent = {}
    for name, flags in (("bf16, full", ["--kv-store", "bf16"]), ("int8, full", ["--kv-store", "int8"]),
                        ("int8, h2o 20 %", ["--kv-store", "int8"])):
        policy = ["--cache-policy", "h2o", "--cache-budget", "20%"] if "h2o" in name else []
        with processes.service(machine.model, worker_flags=["--threads", "2", *flags], decode_flags=policy) as running:
            answer = running.completion(prompt=processes.prompt_ids(8000), max_tokens=2, ignore_eos=True, return_timings=True)
            assert answer.status_code == 200, answer.text
            timings = answer.json()["timings"]
            sent[name] = timings["kv_bytes_wire"]
    bytes_full = sent["bf16, full"]
    table("Bytes of KV on the wire, a prompt of 8000 tokens", [*sent, "ratio of first and last"],
          [[*(f"{each / MIB:.1f} MiB" for each in sent.values()), f"{bytes_full / sent['int8, h2o 20 %']:.2f}"]])


def chat(machine, options):
    """One answer far beyond the model's context."""
    policy = ["--cache-policy", "sink-window", "--sinks", "4", "--window", "1020"]
    block = 1024
    taken, resident = [], []
    with processes.service(machine.model, worker_flags=["--threads", "2", "--kv-memory", "128MiB"], decode_flags=policy,
                           gateway_flags=["--request-timeout", "3600s"]) as running:
        body = {"prompt": processes.prompt_ids(200), "max_tokens": options.chat_tokens, "ignore_eos": True, "stream": True,
                "temperature": 1, "seed": 1, "return_token_ids": True}
        with running.http.stream("POST", "/v1/completions", json=body, timeout=600) as answer:
            assert answer.status_code == 200, answer.read()
            tokens, since = 0, time.monotonic()
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                for choice in json.loads(line[len("data: "):])["choices"]:
                    tokens += len(choice.get("token_ids", []))
                if tokens >= block * (len(taken) + 1):
                    taken.append((time.monotonic() - since) / block * 1e3)
                    resident.append(running.decode[0].resident_bytes())
                    since = time.monotonic()
        assert tokens == options.chat_tokens, f"the answer ended after {tokens} tokens"
    after = resident[1:]  # from 2K tokens on
    shown = [i for i in (0, 1, 3, 7, 15, 31, 63) if i < len(taken)]
    table(f"One answer of {options.chat_tokens:,} tokens through sink-window 4+1020: decode's memory and time a token",
          ["tokens", "resident MiB", "ms a token"],
          [[f"{(i + 1) * block:,}", f"{resident[i] / MIB:.2f}", f"{taken[i]:.2f}"] for i in shown])
    print(f"\nFrom 2048 tokens on memory differs by {(max(after) / min(after) - 1) * 100:.3f} %; the median token of the last "
          f"quarter takes {statistics.median(taken[-len(taken) // 4:]) / statistics.median(taken[1:len(taken) // 4 + 1]):.2f} "
          "times that of the first.")


PARTS = {part.__name__: part for part in (attention, steps, room, wire, chat)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--bin", default=str(ROOT / "build/release/bin"))
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--chat-tokens", type=int, default=65536)
    parser.add_argument("--before", default="")
    options = parser.parse_args()
    processes.BINARY = str(pathlib.Path(options.bin) / "sluice")
    for part in options.parts.split(","):
        PARTS[part](Machine(options), options)


if __name__ == "__main__":
    main()
