"""A model with latent attention in real processes: latents cross from prefill to decode, and the answers and the bytes
on the wire are what one process says of them."""

import json
import subprocess

import pytest
from processes import BINARY, complete_locally, prompt_ids, service

LAYERS, LATENT, ROPE, PAGE = 4, 512, 64, 16
BYTES = {"bf16": 2 * (LATENT + ROPE), "mla-fp8": LATENT + 4 * LATENT // 128 + 2 * ROPE}  # a token and layer
QUIET = ["--canary-period", "600s"]  # canaries are KV on the wire, too
SMALL = ["--threads", "1", "--kv-memory", "64MiB"]


@pytest.fixture(scope="module")
def latent_model(tmp_path_factory):
    """The attention of DeepSeek-V2-Lite with few layers and random weights."""
    folder = tmp_path_factory.mktemp("models") / "latent"
    subprocess.run([BINARY, "models", "synth", "--out", str(folder), "--like", "v2-lite", "--layers", str(LAYERS)], check=True)
    return folder


def ids_of(length, seed):
    return [id % 256 for id in prompt_ids(length, seed)]


def on_the_wire(running):
    """Bytes of KV by what prefill sent, in each codec, and by what decode received."""
    name = "sluice_prefill_kv_bytes_sent_total"
    sent = {key[len(name) + 8:-2]: value for key, value in running.prefill[0].metrics().items() if key.startswith(name)}
    received = running.decode[0].metrics()
    return sent, received["sluice_decode_kv_bytes_received_total"], received["sluice_decode_kv_bytes_recoded_total"]


def ask(running, ids, max_tokens):
    answer = running.completion(prompt=ids, max_tokens=max_tokens, ignore_eos=True, return_token_ids=True, logprobs=0)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_token_of_a_layer_has_656_bytes_in_fp8(latent_model):
    shown = json.loads(subprocess.run([BINARY, "models", "show", str(latent_model), "--json"], check=True,
                                      capture_output=True).stdout)
    assert BYTES["mla-fp8"] == 656
    for codec, size in BYTES.items():
        assert shown["kv_bytes_per_token"][codec] == LAYERS * size


@pytest.mark.parametrize("store", ["bf16", "mla-fp8"])
def test_tokens_are_those_of_one_process_that_stores_alike(latent_model, store):
    with service(latent_model, worker_flags=[*SMALL, "--kv-store", store], gateway_flags=QUIET) as running:
        for length in (1, PAGE - 1, PAGE, PAGE + 1, 300):
            ids = ids_of(length, seed=30)
            sent, received, _ = on_the_wire(running)
            answer = ask(running, ids, 12)
            whole = complete_locally(latent_model, ids, 12, "--ignore-eos", "--logprobs", "0", "--kv-store", store)
            choice = answer["choices"][0]
            assert choice["token_ids"] == whole["ids"], length
            assert choice["logprobs"]["token_logprobs"] == [entry["logprob"] for entry in whole["logprobs"]]
            sent_now, received_now, recoded = on_the_wire(running)
            assert sent_now[store] - sent.get(store, 0) == received_now - received == length * LAYERS * BYTES[store]
            assert list(sent_now) == [store] and recoded == 0
        # Asked again: latents that both have are neither computed nor sent.
        again = ask(running, ids, 12)
        assert again["choices"][0]["token_ids"] == whole["ids"]
        cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == 299 // PAGE * PAGE
        assert on_the_wire(running)[1] - received_now == (300 - cached) * LAYERS * BYTES[store]
        running.await_all_pages_free()


def test_a_narrower_wire_is_recoded_into_the_store(latent_model):
    flags = dict(worker_flags=[*SMALL, "--kv-store", "bf16"], prefill_flags=["--kv-wire", "mla-fp8"])
    with service(latent_model, gateway_flags=QUIET, **flags) as running:
        for length in (1, PAGE + 1, 300):
            ids = ids_of(length, seed=31)
            sent, received, recoded = on_the_wire(running)
            answer = ask(running, ids, 12)
            # The first token is prefill's, from latents as it stores them; what rounding does to the others is
            # compared in decode_pair_test.
            whole = complete_locally(latent_model, ids, 12, "--ignore-eos", "--kv-store", "bf16")
            assert answer["choices"][0]["token_ids"][0] == whole["ids"][0]
            assert answer["usage"]["completion_tokens"] == 12
            sent_now, received_now, recoded_now = on_the_wire(running)
            assert list(sent_now) == ["mla-fp8"]
            assert sent_now["mla-fp8"] - sent.get("mla-fp8", 0) == length * LAYERS * 656
            assert received_now - received == recoded_now - recoded == length * LAYERS * 656
        running.await_all_pages_free()
