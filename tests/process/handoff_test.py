"""Disaggregated output is the output of the same model served whole, token for token."""

import concurrent.futures

import pytest
from processes import complete_locally, prompt_ids, service

PAGE = 16


@pytest.mark.parametrize("length", [1, 2, PAGE - 1, PAGE, PAGE + 1, *[k * PAGE for k in range(2, 9)], 4000])
def test_tokens_equal_the_model_served_whole(real_service, real_model, length):
    ids = prompt_ids(length)
    whole = complete_locally(real_model, ids, 12, "--ignore-eos", "--logprobs", "0")
    answer = real_service.completion(prompt=ids, max_tokens=12, ignore_eos=True, logprobs=0)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    assert choice["text"] == whole["text"]
    assert answer.json()["usage"] == {"prompt_tokens": length, "completion_tokens": 12, "total_tokens": length + 12,
                                      "prompt_tokens_details": {"cached_tokens": 0}}
    # Log-probabilities are of the same logits, bit for bit, the first token's (prefill's) included.
    assert choice["logprobs"]["token_logprobs"] == [entry["logprob"] for entry in whole["logprobs"]]


@pytest.mark.parametrize("max_tokens", [1, 2])
def test_max_tokens_is_met_exactly(real_service, real_model, max_tokens):
    ids = prompt_ids(20)
    answer = real_service.completion(prompt=ids, max_tokens=max_tokens, ignore_eos=True).json()
    assert answer["usage"]["completion_tokens"] == max_tokens
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["text"] == complete_locally(real_model, ids, max_tokens, "--ignore-eos")["text"]


def test_a_first_token_that_ends_the_text_ends_it_at_once(real_service):
    # After the end of an assistant's turn SmolLM2's likeliest token is a line break; a logit bias makes it <|im_end|>.
    answer = real_service.completion(prompt=prompt_ids(20), max_tokens=50, logit_bias={"2": 100})
    assert answer.status_code == 200
    choice = answer.json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
    assert answer.json()["usage"]["completion_tokens"] == 1
    real_service.await_all_pages_free()


def test_a_stop_token_or_string_equal_to_the_first_token_ends_it_at_once(real_service, real_model):
    ids = prompt_ids(33)
    first = complete_locally(real_model, ids, 1, "--ignore-eos")
    by_id = real_service.completion(prompt=ids, max_tokens=50, stop_token_ids=first["ids"], ignore_eos=True).json()
    assert (by_id["choices"][0]["text"], by_id["choices"][0]["finish_reason"]) == ("", "stop")
    if first["text"]:
        by_text = real_service.completion(prompt=ids, max_tokens=50, stop=first["text"], ignore_eos=True).json()
        assert (by_text["choices"][0]["text"], by_text["choices"][0]["finish_reason"]) == ("", "stop")
    real_service.await_all_pages_free()


def test_four_choices_come_from_one_prompt(real_service):
    body = dict(prompt=prompt_ids(40), max_tokens=8, n=4, temperature=1, seed=7, ignore_eos=True)
    answer = real_service.completion(**body).json()
    texts = [c["text"] for c in sorted(answer["choices"], key=lambda c: c["index"])]
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert len(set(texts)) > 1
    assert answer["usage"]["completion_tokens"] == 4 * 8
    assert answer["usage"]["prompt_tokens"] == 40
    again = real_service.completion(**body).json()
    assert [c["text"] for c in sorted(again["choices"], key=lambda c: c["index"])] == texts


@pytest.mark.parametrize("count", [0, 5])
def test_log_probabilities_have_one_entry_a_token(real_service, count):
    answer = real_service.completion(prompt=prompt_ids(20), max_tokens=9, logprobs=count, ignore_eos=True).json()
    logprobs = answer["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == len(logprobs["tokens"]) == answer["usage"]["completion_tokens"] == 9
    assert all(value <= 0 for value in logprobs["token_logprobs"])
    if count:
        assert all(len(top) == count for top in logprobs["top_logprobs"])


def test_a_seed_gives_the_same_text_whatever_else_runs(real_service):
    body = dict(prompt=prompt_ids(25), max_tokens=16, temperature=1, seed=11, ignore_eos=True)
    alone = real_service.completion(**body).json()["choices"][0]["text"]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        others = [pool.submit(real_service.completion, prompt=prompt_ids(30 + i), max_tokens=24, temperature=1)
                  for i in range(7)]
        together = pool.submit(real_service.completion, **body).result().json()["choices"][0]["text"]
        assert all(o.result().status_code == 200 for o in others)
    assert together == alone


def test_32_clients_at_once_each_get_their_own_answer(real_service, real_model):
    prompts = [prompt_ids(5 + 3 * i, seed=2) for i in range(32)]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(
            lambda ids: real_service.completion(prompt=ids, max_tokens=8, ignore_eos=True), prompts))
    assert [a.status_code for a in answers] == [200] * 32, answers[0].text
    texts = [a.json()["choices"][0]["text"] for a in answers]
    for i in (0, 9, 31):
        assert texts[i] == complete_locally(real_model, prompts[i], 8, "--ignore-eos")["text"]
    assert [a.json()["usage"]["prompt_tokens"] for a in answers] == [len(p) for p in prompts]
    real_service.await_all_pages_free()


def test_several_prefill_and_decode_processes_share_the_work(real_model):
    with service(real_model, prefill=2, decode=2, worker_flags=["--threads", "1", "--kv-memory", "128MiB"]) as running:
        prompts = [prompt_ids(50 + i, seed=3) for i in range(12)]
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(
                lambda ids: running.completion(prompt=ids, max_tokens=16, ignore_eos=True), prompts))
        assert [a.status_code for a in answers] == [200] * 12
        assert answers[5].json()["choices"][0]["text"] == complete_locally(
            real_model, prompts[5], 16, "--ignore-eos")["text"]
        used = [w.metrics()["sluice_decode_commits_total"] for w in running.decode]
        assert min(used) > 0, used
        running.await_all_pages_free()
