"""Decode with less KV memory than its requests need: the youngest are parked, and every answer is right."""

import concurrent.futures
import functools
import re

import pytest
from processes import complete_locally, eventually, prompt_ids, service

# 64 pages; a request of the ones below begins with 11 and ends with 32; under h2o it has 6 all the time.
SMALL = ["--threads", "1", "--kv-store", "int8"]
POOL = ["--kv-memory", "12MiB", "--request-policies", "h2o"]
PROMPT_TOKENS, TOKENS = 100, 400
H2O = {"kind": "h2o", "budget": 90, "window": 16}
MIB = 1 << 20


@pytest.fixture(scope="module", params=["memory", "file"])
def crowded(request, real_model, tmp_path_factory):
    folder = ["--kv-park-folder", str(tmp_path_factory.mktemp("park"))] if request.param == "file" else []
    with service(real_model, worker_flags=SMALL, decode_flags=[*POOL, "--kv-park", "64MiB", *folder],
                 gateway_flags=["--queue-timeout", "1s"]) as running:
        yield running


def ask(running, seed, **more):
    return running.completion(prompt=prompt_ids(PROMPT_TOKENS, seed), max_tokens=TOKENS, ignore_eos=True,
                              return_token_ids=True, **more)


@functools.cache
def alone(model, seed, bounded):
    flags = ["--cache-policy", "h2o", "--cache-budget", "90", "--window", "16"] if bounded else []
    return complete_locally(model, prompt_ids(PROMPT_TOKENS, seed), TOKENS, "--ignore-eos", *SMALL, *flags)["ids"]


def test_requests_that_do_not_fit_together_are_all_answered_as_if_alone(crowded, real_model):
    policies = [{}, {}, {"cache_policy": H2O}, {}, {}]
    with concurrent.futures.ThreadPoolExecutor(len(policies)) as pool:
        answers = [pool.submit(ask, crowded, seed, **policy) for seed, policy in enumerate(policies)]
        parked = eventually(lambda: crowded.decode[0].metrics()["sluice_decode_requests_parked"], 60, "somebody is parked")
        assert parked >= 1
        # Who comes now is told so, with a hint.
        refused = crowded.completion(prompt=prompt_ids(10), max_tokens=1)
        still = crowded.decode[0].metrics()["sluice_decode_requests_parked"]
        assert refused.status_code == 429 or not still, refused.text
        if refused.status_code == 429:
            assert int(refused.headers["retry-after"]) >= 1 and "KV pages" in refused.json()["error"]["message"]
        answers = [answer.result() for answer in answers]
    metrics = crowded.decode[0].metrics()
    assert metrics["sluice_decode_parkings_total"] == metrics["sluice_decode_returns_total"] > 0
    assert metrics["sluice_decode_park_pages_used"] == 0
    crowded.await_all_pages_free()
    for seed, (answer, policy) in enumerate(zip(answers, policies)):
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["token_ids"] == alone(real_model, seed, bool(policy)), seed


def planned_mib(process):
    """The memory plan's regions in MiB by name, from what a worker logs as it starts."""
    plan = re.search(r"memory: (.*); together", process.log()).group(1)
    return {name: float(mib) for name, mib in re.findall(r"([a-zA-Z][\w ]*?) ([\d.]+) MiB", plan)}


# Region by region: the process itself takes a MiB more or less from one start to the next.
def test_the_plan_counts_what_is_parked_in_memory(real_model):
    planned = {}
    for flags, pages in (((), 0), (("--kv-park", "1MiB"), 5), (("--kv-park", "64MiB"), 342)):
        with service(real_model, worker_flags=SMALL, decode_flags=[*POOL, *flags]) as running:
            decode = running.decode[0]
            planned[pages] = planned_mib(decode)
            assert decode.metrics()["sluice_decode_park_pages_total"] == pages
            together = sum(planned[pages].values())
            assert decode.metrics()["sluice_decode_memory_planned_bytes"] / MIB == pytest.approx(together, abs=0.5)
    assert {pages: plan["parked KV"] for pages, plan in planned.items()} == {0: 0, 5: 1, 342: 64}
    # h2o's positions and scores stay with the request: 4 bytes each, of 30 layers with 3 heads, for the pages' 16 tokens.
    for pages, plan in planned.items():
        more = plan["positions and scores"] - planned[0]["positions and scores"]
        assert more == pytest.approx(pages * 16 * 30 * 3 * 8 / MIB, abs=0.11), planned
