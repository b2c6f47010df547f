"""Prefill and decode joined by a link of known rate."""

from network import RateMeter, sent_bytes
from processes import complete_locally, prompt_ids

MB = 1e6
STORE = ["--kv-store", "bf16"]


def kv_sent(prefill):
    return prefill.metrics().get('sluice_prefill_kv_bytes_sent_total{codec="bf16"}', 0)


def test_kv_fills_the_link_and_nothing_else_carries_it(lab, lab_service, real_model):
    rate = 1.5 * MB
    lab.veth(rate)
    running = lab_service(real_model, worker_flags=["--threads", "1", "--kv-memory", "128MiB", *STORE],
                          prefill_flags=["--kv-wire", "bf16"])
    ids = prompt_ids(256)
    control_before, kv_before = sent_bytes(running.prefill[0], "control"), kv_sent(running.prefill[0])
    with RateMeter(running.prefill[0]) as link:
        answer = running.completion(prompt=ids, max_tokens=8, ignore_eos=True)
    assert answer.status_code == 200, answer.text
    kv_bytes = kv_sent(running.prefill[0]) - kv_before
    assert kv_bytes > 4 * MB
    assert 0.5 * rate < link.bytes_per_s() < rate
    assert kv_bytes <= link.bytes < 1.1 * kv_bytes
    assert sent_bytes(running.prefill[0], "control") - control_before < 0.05 * kv_bytes
    assert answer.json()["choices"][0]["text"] == complete_locally(real_model, ids, 8, "--ignore-eos", *STORE)["text"]
    running.await_all_pages_free()
