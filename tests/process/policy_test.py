"""Cache policies end to end: three processes generate what an oracle with all keys does, send what is kept and no more,
and give every page back."""

import array
import concurrent.futures
import json
import struct

import pytest
from processes import DATA, complete_locally, eventually, prompt_ids, service

POLICIES = DATA / "policies"
EXACT = ["--exact", "--kv-store", "f32", "--threads", "1"]
ALL = "full,sink-window,h2o,snapkv,tova"
CASES = {c["name"]: c for c in json.loads((POLICIES / "cases.json").read_text())["cases"]
         if c["prefill"] == "dense" and c["model"] != "models/tiny-llama-uniform"}


def golden_ids(name, tensor):
    """An I32 tensor of a case."""
    data = (POLICIES / f"{name}.safetensors").read_bytes()
    header, = struct.unpack_from("<Q", data)
    begin, end = json.loads(data[8:8 + header])[tensor]["data_offsets"]
    return array.array("i", data[8 + header + begin:8 + header + end]).tolist()


def field(policy):
    """A case's policy as the body of a request names it."""
    named = {"kind": policy["kind"]}
    if policy["kind"] != "full":
        named.update(budget=policy["budget"], window=policy.get("recent", policy.get("window")))
    if policy.get("sinks") or policy["kind"] == "sink-window":
        named["sinks"] = policy["sinks"]
    return named


@pytest.fixture(scope="module", params=["tiny-llama-gqa", "tiny-deepseek-mla"])
def exact_service(request):
    with service(POLICIES / "models" / request.param, worker_flags=EXACT,
                 decode_flags=["--request-policies", ALL]) as running:
        running.model_name = request.param
        yield running


def test_tokens_are_the_oracles_under_every_policy(exact_service):
    cases = [c for c in CASES.values() if c["model"].endswith(exact_service.model_name)]
    assert len(cases) > 5

    def answer(case):
        prompt = golden_ids(case["name"], "prompt")
        body = dict(prompt=prompt, max_tokens=64, ignore_eos=True, temperature=0,
                    return_token_ids=True, return_timings=True, cache_policy=field(case["policy"]))
        return case, len(prompt), exact_service.completion(**body)

    # Together: different policies share the steps.
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for case, prompt, got in pool.map(answer, cases):
            assert got.status_code == 200, (case["name"], got.text)
            assert got.json()["choices"][0]["token_ids"] == golden_ids(case["name"], "tokens"), case["name"]
            kept = min(prompt, case["policy"].get("budget", prompt))
            timings = got.json()["timings"]
            assert (timings["kv_tokens_sent"], timings["kv_tokens_skipped"]) == (kept, prompt - kept), case["name"]
    exact_service.await_all_pages_free()


def test_choices_of_one_prompt_go_their_own_ways(exact_service):
    name = "mla_h2o_32_r16_p113" if "mla" in exact_service.model_name else "h2o_32_r16_p113"
    body = dict(prompt=golden_ids(name, "prompt"), max_tokens=64, ignore_eos=True, return_token_ids=True,
                cache_policy=field(CASES[name]["policy"]))
    # Greedy, each is the oracle's answer, though all write over slots of the same prompt.
    for choice in exact_service.completion(n=3, temperature=0, **body).json()["choices"]:
        assert choice["token_ids"] == golden_ids(name, "tokens")
    drawn = exact_service.completion(n=3, temperature=1, seed=5, **body).json()["choices"]
    alone = [exact_service.completion(n=3, temperature=1, seed=5, **body).json()["choices"][i] for i in range(3)]
    assert [c["token_ids"] for c in drawn] == [c["token_ids"] for c in alone]
    assert len({tuple(c["token_ids"]) for c in drawn}) == 3
    exact_service.await_all_pages_free()


CONTEXT = 1024  # of the tiny models
WINDOW = {"kind": "sink-window", "sinks": 4, "window": 28}


def ids_of_a_tiny_model(length):
    return [7 * i % 199 + 3 for i in range(length)]


@pytest.mark.parametrize("prompt_tokens", [113, CONTEXT - 1])
def test_a_window_that_moves_goes_on_beyond_the_models_context(exact_service, prompt_tokens):
    ids = ids_of_a_tiny_model(prompt_tokens)
    max_tokens = CONTEXT + 100
    flags = ["--ignore-eos", *EXACT, "--cache-policy", "sink-window", "--sinks", "4", "--window", "28"]
    whole = complete_locally(POLICIES / "models" / exact_service.model_name, ids, max_tokens, *flags)
    answer = exact_service.completion(prompt=ids, max_tokens=max_tokens, ignore_eos=True, temperature=0, n=2,
                                      return_token_ids=True, cache_policy=WINDOW)
    assert answer.status_code == 200, answer.text
    for choice in answer.json()["choices"]:
        assert len(choice["token_ids"]) == max_tokens and choice["finish_reason"] == "length"
        assert choice["token_ids"] == whole["ids"]
    exact_service.await_all_pages_free()


def test_so_does_one_that_is_the_deployments():
    model = POLICIES / "models" / "tiny-llama-gqa"
    flags = ["--cache-policy", "sink-window", "--sinks", "4", "--window", "28"]
    ids = ids_of_a_tiny_model(50)
    whole = complete_locally(model, ids, CONTEXT, "--ignore-eos", *EXACT, *flags)
    with service(model, worker_flags=EXACT, decode_flags=flags) as running:
        answer = running.completion(prompt=ids, max_tokens=CONTEXT, ignore_eos=True, temperature=0,
                                    return_token_ids=True)
        assert answer.json()["choices"][0]["token_ids"] == whole["ids"] and len(whole["ids"]) == CONTEXT
        running.await_all_pages_free()


@pytest.mark.parametrize("policy", ["full", {"kind": "snapkv", "budget": 32},
                                    {"kind": "sink-window", "budget": CONTEXT}])
def test_other_answers_end_with_the_models_context(exact_service, policy):
    ids = ids_of_a_tiny_model(CONTEXT - 20)
    answer = exact_service.completion(prompt=ids, max_tokens=100, ignore_eos=True, cache_policy=policy)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 20
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    exact_service.await_all_pages_free()


@pytest.mark.parametrize("policy", ["full", WINDOW])
def test_a_prompt_has_to_fit_the_context_under_every_policy(exact_service, policy):
    answer = exact_service.completion(prompt=[1] * CONTEXT, max_tokens=4, cache_policy=policy)
    assert answer.status_code == 400, answer.text
    assert f"has {CONTEXT} tokens, must be at most {CONTEXT - 1}" in answer.json()["error"]["message"]


def test_an_answer_has_an_end_that_is_told(exact_service):
    answer = exact_service.completion(prompt=[1], max_tokens=(1 << 24) + 1, cache_policy=WINDOW)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "max_tokens", answer.text
    assert "16777217" in answer.json()["error"]["message"] and "16777216" in answer.json()["error"]["message"]


@pytest.mark.parametrize("policy, why", [
    ("lru", "'lru' is none of full, sink-window, h2o"),
    ({"budget": 5}, "cache_policy.kind is missing"),
    ({"kind": "h2o"}, "needs a budget"),
    ({"kind": "h2o", "budget": "0%"}, "'0%' is neither"),
    ({"kind": "h2o", "budget": 8, "window": 9}, "window is 9, not 1 to 8"),
    ({"kind": "h2o", "budget": 8, "heads": 2}, 'the member "heads"'),
    ({"kind": "sink-window", "budget": -1}, "cache_policy.budget is -1"),
    ({"kind": "h2o", "budget": 0.2}, 'cache_policy.budget is 0.2, must be a number of slots or a share'),
    (7, "cache_policy is 7"),
])
def test_a_policy_that_is_none_is_refused_by_name(exact_service, policy, why):
    answer = exact_service.completion(prompt=[1, 2, 3], max_tokens=4, cache_policy=policy)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "cache_policy", answer.text
    assert why in answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def bounded_service(real_model):
    flags = ["--cache-policy", "h2o", "--cache-budget", "20%", "--request-policies", "sink-window"]
    with service(real_model, worker_flags=["--threads", "2"], decode_flags=flags) as running:
        yield running


def test_the_deployments_policy_is_that_of_a_request_without_one(bounded_service, real_model):
    ids = prompt_ids(500)
    flags = ["--ignore-eos", "--logprobs", "0", "--cache-policy", "h2o", "--cache-budget", "20%"]
    whole = complete_locally(real_model, ids, 40, *flags)
    answer = bounded_service.completion(prompt=ids, max_tokens=40, ignore_eos=True, temperature=0, logprobs=0,
                                        return_timings=True)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    assert choice["text"] == whole["text"]
    assert choice["logprobs"]["token_logprobs"] == [entry["logprob"] for entry in whole["logprobs"]]
    # int8: 64 codes and a scale of 4 bytes for each of K and V, 3 heads and 30 layers; and of each of their tokens which
    # it is, in one or two bytes, and a score in 4.
    timings = answer.json()["timings"]
    assert (timings["kv_tokens_sent"], timings["kv_tokens_skipped"]) == (100, 400)
    assert 100 * (2 * 68 + 5) * 3 * 30 <= timings["kv_bytes_wire"] <= 100 * (2 * 68 + 6.5) * 3 * 30
    bounded_service.await_all_pages_free()


def test_what_needs_more_room_than_the_deployments_policy_is_refused(bounded_service):
    def ask(policy):
        return bounded_service.completion(prompt=prompt_ids(500), max_tokens=40, cache_policy=policy)
    for policy, why in [("full", "full is none that a request may name"),
                        ({"kind": "tova", "budget": 10}, "tova is none that a request may name here (sink-window, h2o)"),
                        ({"kind": "sink-window", "budget": 300}, "needs 301 slots, this deployment's h2o 100")]:
        answer = ask(policy)
        assert answer.status_code == 400, (policy, answer.text)
        assert why in answer.json()["error"]["message"]
    assert ask({"kind": "sink-window", "budget": 64}).status_code == 200
    bounded_service.await_all_pages_free()


def test_a_reservation_is_for_what_is_kept(bounded_service):
    def decode(what):
        return bounded_service.decode[0].metrics()[f"sluice_decode_kv_{what}"]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(bounded_service.completion, prompt=prompt_ids(2000, seed=3), max_tokens=300, ignore_eos=True)
        # 20 % of 2000 and a slot for the step, where all of it and the answer would be 144 pages.
        eventually(lambda: decode("pages_reserved") > 0, 30, "pages are reserved")
        assert decode("pages_reserved") == -(-401 // 16)
        # The slot for the step and what is left of the last page stay empty between steps.
        eventually(lambda: decode("slots_used") > 0, 30, "it runs")
        assert decode("slots_used") == 400
        assert answer.result().status_code == 200
    bounded_service.await_all_pages_free()


def test_a_second_turn_on_a_pruned_cache_is_a_prompt_of_its_own(bounded_service, real_model):
    first = prompt_ids(300, seed=4)
    answered = bounded_service.completion(prompt=first, max_tokens=20, ignore_eos=True, temperature=0,
                                          return_token_ids=True).json()["choices"][0]["token_ids"]
    second = first + answered + prompt_ids(30, seed=5)
    flags = ["--ignore-eos", "--cache-policy", "h2o", "--cache-budget", "20%"]
    whole = complete_locally(real_model, second, 20, *flags)
    answer = bounded_service.completion(prompt=second, max_tokens=20, ignore_eos=True, temperature=0).json()
    assert answer["choices"][0]["text"] == whole["text"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    bounded_service.await_all_pages_free()


def test_peak_memory_of_a_long_prompt_that_is_pruned_is_the_plans_within_5_percent(real_model):
    """All of it is kept, so that scores, lists and the message that tells of them are as large as they can be; KV is
    small, so that they weigh."""
    with service(real_model, worker_flags=["--threads", "2", "--kv-memory", "32MiB", "--kv-store", "int4"],
                 decode_flags=["--cache-policy", "h2o", "--cache-budget", "100%"]) as running:
        answer = running.completion(prompt=prompt_ids(5000, seed=7), max_tokens=8, ignore_eos=True)
        assert answer.status_code == 200, answer.text
        for worker in running.decode + running.prefill:
            peak, planned = worker.peak_bytes(), worker.metrics()[f"sluice_{worker.args[0]}_memory_planned_bytes"]
            assert abs(peak - planned) < 0.05 * planned, (worker.args[0], peak, planned)


def test_decodes_memory_is_the_same_after_2_thousand_tokens_and_after_64_thousand():
    flags = ["--cache-policy", "sink-window", "--sinks", "4", "--window", "508"]
    with service(POLICIES / "models/tiny-llama-gqa", worker_flags=["--threads", "1", "--kv-memory", "8MiB"],
                 decode_flags=flags) as running:
        body = dict(prompt=[i % 250 for i in range(100)], max_tokens=65536, ignore_eos=True, stream=True, temperature=1,
                    seed=1, return_token_ids=True)
        tokens, resident = 0, []
        with running.http.stream("POST", "/v1/completions", json=body, timeout=600) as answer:
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                tokens += sum(len(choice.get("token_ids", [])) for choice in json.loads(line[len("data: "):])["choices"])
                if tokens // 2048 > len(resident):
                    resident.append(running.decode[0].resident_bytes())
        assert tokens == 65536
        assert max(resident) <= 1.01 * resident[0], resident
        running.await_all_pages_free()


def test_a_prefill_that_dies_is_replaced_and_what_is_kept_is_the_same(real_model):
    flags = ["--cache-policy", "snapkv", "--cache-budget", "64"]
    with service(real_model, prefill=2, worker_flags=["--threads", "1"], decode_flags=flags) as running:
        ids = prompt_ids(3000, seed=6)
        whole = complete_locally(real_model, ids, 16, "--ignore-eos", *flags)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(running.completion, prompt=ids, max_tokens=16, ignore_eos=True, temperature=0)
            busy = eventually(lambda: next((p for p in running.prefill
                                            if p.metrics()["sluice_prefill_requests_active"] > 0), None), 30, "one computes")
            busy.kill()
            assert answer.result().status_code == 200, answer.result().text
            assert answer.result().json()["choices"][0]["text"] == whole["text"]
