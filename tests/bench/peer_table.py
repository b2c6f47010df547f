"""Runs engine_bench and llama.cpp's benchmarks in turns and prints one table; peer_table.sh builds both and calls this."""

import argparse
import json
import shlex
import statistics
import subprocess
import sys

# What a user sees, engine_bench's name, llama.cpp's program and its arguments, the least ratio that we hold ourselves to.
CASES = [
    ("prefill 512", "prefill-512", "llama-bench", "-p 512 -n 0", 2.0),
    ("prefill 2048", "prefill-2048", "llama-bench", "-p 2048 -n 0", 1.8),
    ("one stream, short context", "decode-1", "llama-bench", "-p 0 -n 128", 1.1),
    ("32 streams, 128-token prompts", "decode-32", "llama-batched-bench", "-c 8192 -npp 128 -ntg 128 -npl 32", 3.0),
    ("one stream at depth 4096", "decode-1-depth-4096", "llama-bench", "-p 0 -n 32 -d 4096", 2.0),
]


def run(before: str, command: list[str]) -> str:
    return subprocess.run(shlex.split(before) + command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def sluice(args: argparse.Namespace, case: str) -> float:
    out = run(args.before, [args.engine, "--model", args.model, "--threads", str(args.threads), "--case", case])
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return lines[-1]["tokens_per_s"]


def llama(args: argparse.Namespace, program: str, arguments: str) -> float:
    command = [f"{args.llama}/{program}", "-m", args.model, "-t", str(args.threads), *arguments.split()]
    if program == "llama-bench":
        return json.loads(run(args.before, command + ["-r", "1", "-o", "json"]))[0]["avg_ts"]
    out = run(args.before, command + ["--output-format", "jsonl"])
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")][-1]["speed_tg"]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", required=True)
    parser.add_argument("--llama", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--before", default="")
    args = parser.parse_args()

    print("| tok/s | llama.cpp | Sluice | ratio | at least |")
    print("|---|---|---|---|---|")
    missed = 0
    for title, case, program, arguments, least in CASES:
        pairs = []
        for i in range(args.rounds):
            pairs.append((llama(args, program, arguments), sluice(args, case)))
            print(f"{title}, round {i + 1}: {pairs[-1][0]:.1f} {pairs[-1][1]:.1f}", file=sys.stderr)
        ratio = statistics.median(ours / theirs for theirs, ours in pairs)
        theirs, ours = (statistics.median(column) for column in zip(*pairs))
        missed += ratio < least
        print(f"| {title} | {theirs:.0f} | {ours:.0f} | {ratio:.2f} | {least:.1f} |", flush=True)
    return 1 if missed else 0


sys.exit(main())
