"""What a slow link costs: time to first token over that with an unshaped link, for link rates, wire codecs and moments of
sending. A benchmark, run by hand as root with the tests' Python:

    .cache/test-venv/bin/python tests/netlab/q_sweep.py --model MODEL --out FOLDER [--wires bf16,int8] [--sends layer] ...

q is the link's bytes a second over those of KV that prefill would produce in bf16: bytes a token x tokens a second, the
latter measured in the same service. Each round asks once with each link, unshaped ones among them, so a ratio is between
neighbours in time; a cell is the median of its rounds. Prints a Markdown table, writes q-sweep.json and q-sweep.svg.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "process"))

import network  # noqa: E402
from processes import VOCAB, prompt_ids, service  # noqa: E402
from svg_plot import plot  # noqa: E402

FREE = float("inf")


def first_token_s(running, ids):
    """From the request to the first token at the gateway. Of two tokens, since KV is not sent for an answer of one."""
    body = {"prompt": ids, "max_tokens": 2, "temperature": 0, "ignore_eos": True, "stream": True}
    started, took = time.monotonic(), None
    with running.http.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            assert '"error"' not in line, line
            if took is None and line.startswith("data: {"):
                took = time.monotonic() - started
    return took


class Cell:
    """One way of sending, over all links."""

    def __init__(self, lab, options, wire, send):
        self.lab, self.options, self.wire, self.send = lab, options, wire, send
        self.took = {q: [] for q in [FREE, *options.qs]}
        self.rates = []

    def run(self):
        workers = ["--threads", "1", "--kv-store", self.options.store, "--kv-memory", self.options.kv_memory]
        prefill = ["--kv-wire", self.wire, "--send", self.send, "--prefix-cache-pages", "0"]
        with service(self.options.model, worker_flags=workers, prefill_flags=prefill, places=self.lab.places()) as running:
            first_token_s(running, self.prompt())
            rate = self.tokens_per_s(running)
            for _ in range(self.options.rounds):
                for q in self.took:
                    self.ask(running, q, rate)
        return self

    def prompt(self):
        self.options.prompts += 1  # no prompt twice: none shall be in a cache
        return [token % self.options.vocab for token in prompt_ids(self.options.tokens, self.options.prompts)]

    def tokens_per_s(self, running):
        """How fast prefill computes, from its own account."""
        def computed():
            metrics = running.prefill[0].metrics()
            return metrics["sluice_prefill_prompt_tokens_total"], metrics["sluice_prefill_compute_seconds_sum"]
        rates = []
        for _ in range(3):
            tokens, seconds = computed()
            first_token_s(running, self.prompt())
            rates.append((computed()[0] - tokens) / (computed()[1] - seconds))
        self.rates.append(statistics.median(rates))
        return self.rates[-1]

    def ask(self, running, q, rate):
        if q != FREE:
            self.lab.shape(q * self.options.bf16_bytes * rate)
        try:
            self.took[q].append(first_token_s(running, self.prompt()))
        finally:
            if q != FREE:
                self.lab.unshape()

    def ratios(self):
        return {q: statistics.median(t / free for t, free in zip(self.took[q], self.took[FREE]))
                for q in self.options.qs}


def parse():
    def names(text):
        return text.split(",")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--bf16-bytes", type=int, required=True, help="KV bytes of a token in bf16: `sluice plan MODEL`")
    parser.add_argument("--vocab", type=int, default=VOCAB)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", default="bf16")
    parser.add_argument("--kv-memory", default="128MiB")
    parser.add_argument("--wires", type=names, default=["bf16", "fp8", "int8", "int4"])
    parser.add_argument("--sends", type=names, default=["prompt", "chunk", "layer"])
    parser.add_argument("--qs", type=lambda text: [float(q) for q in text.split(",")], default=[0.25, 0.5, 1, 2, 5, 20])
    options = parser.parse_args()
    options.prompts = 0
    return options


def print_table(options, cells):
    print("| send | wire | tokens/s | unshaped, s | " + " | ".join(f"q = {q:g}" for q in options.qs) + " |")
    print("|---|---|" + "---:|" * (len(options.qs) + 2))
    for cell in cells:
        ratios = " | ".join(f"{ratio:.2f}" for ratio in cell.ratios().values())
        print(f"| {cell.send} | {cell.wire} | {cell.rates[0]:.0f} | {statistics.median(cell.took[FREE]):.2f} | {ratios} |")


def main():
    options = parse()
    reason = network.why_not()
    if reason:
        sys.exit(reason)
    lab = network.Lab()
    lab.veth()
    options.out.mkdir(parents=True, exist_ok=True)
    cells = []
    with lab.test.entered():
        for send in options.sends:
            for wire in options.wires:
                cells.append(Cell(lab, options, wire, send).run())
                print(send, wire, {q: round(r, 3) for q, r in cells[-1].ratios().items()}, file=sys.stderr, flush=True)
    lab.close()
    print_table(options, cells)
    (options.out / "q-sweep.json").write_text(json.dumps([
        {"send": c.send, "wire": c.wire, "tokens": options.tokens, "tokens_per_s": c.rates[0],
         "first_token_s": {str(q): took for q, took in c.took.items()}, "ratios": c.ratios()} for c in cells], indent=1))
    panels = {send: {c.wire: c.ratios() for c in cells if c.send == send} for send in options.sends}
    (options.out / "q-sweep.svg").write_text(plot(panels))


if __name__ == "__main__":
    main()
