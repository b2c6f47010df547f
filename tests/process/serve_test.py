"""`sluice serve` and the commands that talk to it, as a person types them."""

import contextlib
import json
import os
import signal
import subprocess
import time

import httpx
import pytest
from processes import BINARY, complete_locally, eventually, free_port


class Serve:
    def __init__(self, model, log, *flags):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        with open(log, "wb") as out:
            self.popen = subprocess.Popen([BINARY, "serve", "--model", model, "--port", str(self.port), "--threads", "1",
                                           "--kv-memory", "128MiB", *flags], stdout=out, stderr=out)

    def ready(self):
        try:
            return httpx.get(self.url + "/ready", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def children(self):
        """pid -> subcommand of every living child."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as f:
                    fields = f.read().rsplit(")", 1)[1].split()
                with open(f"/proc/{pid}/cmdline") as f:
                    words = f.read().split("\0")
            except OSError:
                continue
            # A process that is just ending, or has not become `sluice` yet, has no words.
            if int(fields[1]) == self.popen.pid and fields[0] != "Z" and len(words) > 1:
                found[int(pid)] = words[1]
        return found

    def command_line(self, role):
        pid = next(pid for pid, name in self.children().items() if name == role)
        with open(f"/proc/{pid}/cmdline") as f:
            return f.read().split("\0")


@contextlib.contextmanager
def running_serve(*args):
    running = Serve(*args)
    try:
        eventually(running.ready, 120, "ready")
        yield running
    finally:
        running.popen.terminate()
        running.popen.wait(60)


@pytest.fixture
def serve(real_model, tmp_path):
    with running_serve(real_model, tmp_path / "log", "--prefill", "1", "--decode", "1") as running:
        yield running


def test_three_processes_answer_and_all_end_with_it(serve):
    children = serve.children()
    assert sorted(children.values()) == ["decode", "gateway", "prefill"]
    serve.popen.send_signal(signal.SIGINT)
    assert serve.popen.wait(60) == 0
    assert not [pid for pid in children if os.path.exists(f"/proc/{pid}")]


def test_each_flag_reaches_the_process_that_it_is_of(real_model, tmp_path):
    cache = {"cache-policy": "h2o", "cache-budget": "20%", "sinks": "2", "window": "9", "score-decay": "0.9",
             "score-by-age": "true"}
    config = tmp_path / "config.toml"
    config.write_text("[serve]\n" + "".join(f'{flag} = "{value}"\n' for flag, value in cache.items()))
    with running_serve(real_model, tmp_path / "log", "--request-timeout", "20m", "--default-max-tokens", "7",
                       "--config", config) as serve:
        decode = serve.command_line("decode")
        assert {f"--{flag}={value}" for flag, value in cache.items()} <= set(decode), decode
        gateway = " ".join(serve.command_line("gateway"))
        assert "--request-timeout 20m" in gateway and "--default-max-tokens 7" in gateway
        answer = httpx.post(serve.url + "/v1/completions", timeout=60, json={"prompt": [50] * 100, "max_tokens": 2})
        assert answer.status_code == 200, answer.text


def test_children_end_when_their_supervisor_is_killed(serve):
    children = serve.children()
    serve.popen.kill()
    serve.popen.wait()
    eventually(lambda: not [pid for pid in children if os.path.exists(f"/proc/{pid}")], 30, "all children ended")


@pytest.mark.parametrize("role", ["prefill", "decode", "gateway"])
def test_a_child_that_dies_is_started_again(serve, role):
    pid = next(pid for pid, name in serve.children().items() if name == role)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: pid not in serve.children() and role in serve.children().values(), 20, f"another {role}")

    def answered():
        try:
            return httpx.post(serve.url + "/v1/completions", timeout=30,
                              json={"prompt": [50] * 8, "max_tokens": 2}).status_code == 200
        except httpx.HTTPError:
            return False
    eventually(answered, 60, "answers again")


def test_complete_says_the_same_through_the_service_and_without_it(serve, real_model):
    ids = [504, 33059, 40061, 30324, 260, 24224]
    through = subprocess.run([BINARY, "complete", "--url", serve.url, "--prompt-ids", ",".join(map(str, ids)),
                              "--max-tokens", "10", "--temperature", "0", "--json"], check=True, capture_output=True)
    answer = json.loads(through.stdout)
    whole = complete_locally(real_model, ids, 10)
    assert (answer["text"], answer["ids"]) == (whole["text"], whole["ids"])
    assert answer["timings"]


def test_chat_answers_what_is_piped_into_it(serve):
    out = subprocess.run([BINARY, "chat", "--url", serve.url, "--max-tokens", "30", "--temperature", "0"],
                         input=b"Why is the sky blue? Answer in one sentence.\n", check=True, capture_output=True, timeout=120)
    assert b"sky" in out.stdout


def test_a_taken_port_is_said_and_nothing_is_left_behind(serve, real_model):
    started = time.monotonic()
    second = subprocess.run([BINARY, "serve", "--model", real_model, "--port", str(serve.port), "--threads", "1",
                             "--kv-memory", "64MiB"], capture_output=True, timeout=120)
    assert second.returncode == 1
    assert str(serve.port).encode() in second.stderr + second.stdout
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("args, words", [
    (["serve"], "--model"),
    (["serve", "--model", "/nowhere.gguf"], "/nowhere.gguf"),
    (["complete", "--model", "/nowhere.gguf", "--prompt", "a"], "/nowhere.gguf"),
    (["complete", "--prompt", "a"], "--model"),
    (["complete", "--url", "http://127.0.0.1:1", "--prompt", "a", "--exact"], "--exact"),
    (["chat", "--url", "http://127.0.0.1:1", "--threads", "2"], "--threads"),
    (["nonsense"], "nonsense"),
])
def test_wrong_command_lines_end_in_one_clear_sentence(args, words):
    out = subprocess.run([BINARY, *args], capture_output=True, timeout=60)
    assert out.returncode in (1, 2)
    assert words in (out.stderr + out.stdout).decode()
