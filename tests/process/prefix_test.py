"""Many turns: what is cached is not computed and not sent again, and every answer is the one of the model served whole."""

import concurrent.futures

import pytest
from processes import complete_locally, parse_metrics, prompt_ids, service

PAGE = 16
STORE = ["--kv-store", "bf16"]
SMALL = ["--threads", "1", "--kv-memory", "128MiB", *STORE]
QUIET = ["--canary-period", "600s"]  # canaries are KV on the wire, too


@pytest.fixture(scope="module")
def running(real_model):
    with service(real_model, worker_flags=SMALL, gateway_flags=QUIET) as running:
        yield running
        running.await_all_pages_free()


def whole_pages(tokens):
    return tokens // PAGE * PAGE


def ask(running, ids, max_tokens=20, **body):
    answer = running.completion(prompt=ids, max_tokens=max_tokens, ignore_eos=True, return_token_ids=True, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def kv_bytes(running):
    return sum(decode.metrics()["sluice_decode_kv_bytes_received_total"] for decode in running.decode)


def expect_whole(real_model, ids, answer, max_tokens=20):
    whole = complete_locally(real_model, ids, max_tokens, "--ignore-eos", *STORE)
    assert answer["choices"][0]["token_ids"] == whole["ids"]


def test_later_turns_compute_and_send_only_what_is_new(running, real_model):
    ids, before, bytes_a_token = prompt_ids(100, seed=10), 0, None
    for turn in range(3):
        sent = kv_bytes(running)
        answer = ask(running, ids)
        sent = kv_bytes(running) - sent
        expect_whole(real_model, ids, answer)
        # Prefill has the former prompt; decode the former answer, too, but for its last token.
        assert cached(answer) == (whole_pages(before) if turn else 0)
        new = len(ids) - (whole_pages(before + 19) if turn else 0)
        bytes_a_token = bytes_a_token or sent / new
        assert sent == pytest.approx(bytes_a_token * new)
        before = len(ids)
        ids = ids + answer["choices"][0]["token_ids"] + prompt_ids(30 + turn, seed=11)


@pytest.mark.parametrize("length", [PAGE, 2 * PAGE, 7 * PAGE, 7 * PAGE + 1, 1000])
def test_the_same_prompt_three_times(running, real_model, length):
    ids = prompt_ids(length, seed=12)
    answers = [ask(running, ids) for _ in range(3)]
    assert [cached(a) for a in answers] == [0, whole_pages(length - 1), whole_pages(length - 1)]
    expect_whole(real_model, ids, answers[0])
    assert [a["choices"][0]["token_ids"] for a in answers] == [answers[0]["choices"][0]["token_ids"]] * 3


def test_a_stream_says_the_same_of_its_usage(running):
    ids = prompt_ids(50, seed=13)
    ask(running, ids)
    body = dict(prompt=ids, max_tokens=4, temperature=0, stream=True, stream_options={"include_usage": True})
    text = running.http.post("/v1/completions", json=body).text
    assert '"cached_tokens":48' in text.replace(" ", "")


def test_four_choices_of_a_cached_prompt(running):
    body = dict(max_tokens=12, n=4, temperature=1, seed=3)
    ids = prompt_ids(70, seed=14)
    cold, warm = ask(running, ids, **body), ask(running, ids, **body)
    assert cached(warm) == 64
    assert [c["token_ids"] for c in warm["choices"]] == [c["token_ids"] for c in cold["choices"]]
    assert warm["usage"]["completion_tokens"] == 4 * 12


def test_a_prefill_that_is_killed_between_turns_costs_only_time(real_model):
    with service(real_model, worker_flags=SMALL, gateway_flags=QUIET) as running:
        ids = prompt_ids(80, seed=15)
        answer = ask(running, ids)
        running.prefill[0].kill()
        running.restart("prefill", 0)
        running.await_ready()
        ids = ids + answer["choices"][0]["token_ids"] + prompt_ids(10, seed=16)
        answer = ask(running, ids)
        assert cached(answer) == 0
        expect_whole(real_model, ids, answer)
        running.await_all_pages_free()


def test_more_prompts_than_the_cache_holds_all_end(real_model):
    # Four prompts of seven pages; no prompt waits for what another one has only cached.
    with service(real_model, worker_flags=["--threads", "1", *STORE], prefill_flags=["--kv-memory", "32MiB",
                 "--prefix-cache-pages", "28"], decode_flags=["--kv-memory", "64MiB"]) as running:
        prompts = [prompt_ids(7 * PAGE, seed=20 + i) for i in range(32)]
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(lambda ids: ask(running, ids, 4), prompts))
        expect_whole(real_model, prompts[7], answers[7], 4)
        metrics = running.prefill[0].metrics()
        assert metrics["sluice_prefill_prefix_evictions_total"] > 0
        assert metrics["sluice_prefill_kv_pages_cached"] <= 28
        running.await_all_pages_free()


def test_a_short_rest_is_computed_by_decode(real_model):
    with service(real_model, worker_flags=SMALL, gateway_flags=QUIET, local_prefill_tokens=64) as running:
        ids = prompt_ids(400, seed=17)
        answer = ask(running, ids)
        # Prefill forgets, so that shipping would mean computing all of it again.
        running.prefill[0].kill()
        running.restart("prefill", 0)
        running.await_ready()
        ids = ids + answer["choices"][0]["token_ids"] + prompt_ids(20, seed=18)
        sent = kv_bytes(running)
        answer = ask(running, ids, logprobs=0)
        assert kv_bytes(running) - sent == 0
        assert cached(answer) == whole_pages(400 + 19)
        whole = complete_locally(real_model, ids, 20, "--ignore-eos", "--logprobs", "0", *STORE)
        assert answer["choices"][0]["token_ids"] == whole["ids"]
        assert answer["choices"][0]["logprobs"]["token_logprobs"] == [e["logprob"] for e in whole["logprobs"]]
        metrics = parse_metrics(running.http.get("/metrics").text)
        assert metrics['sluice_gateway_route_decisions_total{outcome="local"}'] == 1
        assert metrics['sluice_gateway_route_decisions_total{outcome="disaggregated"}'] == 1
        running.await_all_pages_free()
