"""The wire between prefill and decode as an operator and a bad network make it."""

import concurrent.futures
import subprocess

from processes import BINARY, complete_locally, service

SMALL = ["--threads", "1", "--kv-memory", "256MiB"]
IDS = list(range(300, 700))


def assert_serves_the_models_tokens(running, model):
    answer = running.completion(prompt=IDS, max_tokens=8, ignore_eos=True)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == complete_locally(model, IDS, 8, "--ignore-eos")["text"]
    running.await_all_pages_free()


def test_kv_goes_over_a_named_interface(real_model):
    with service(real_model, worker_flags=[*SMALL, "--kv-interface", "lo"]) as running:
        assert_serves_the_models_tokens(running, real_model)


def test_an_interface_that_does_not_exist_ends_the_start_and_names_what_there_is(tiny_model):
    for role in ("prefill", "decode"):
        ended = subprocess.run([BINARY, role, "--model", str(tiny_model), "--kv-interface", "nosuch0"], timeout=120,
                               env={"SLUICE_CLUSTER_KEY": "11" * 32}, capture_output=True, text=True)
        assert ended.returncode != 0
        assert "nosuch0" in ended.stderr and "lo (127.0.0.1)" in ended.stderr, ended.stderr


def test_messages_that_come_late_or_out_of_order_do_no_harm(real_model):
    late = ["--kv-test-faults", "seed=3,delay=0.2:30ms,reorder=0.3:50ms"]
    with service(real_model, worker_flags=[*SMALL, *late]) as running:
        for _ in range(5):
            assert_serves_the_models_tokens(running, real_model)


def test_kv_travels_in_the_named_codec_and_is_counted(real_model):
    with service(real_model, worker_flags=SMALL, prefill_flags=["--kv-wire", "int8"]) as running:
        answer = running.completion(prompt=IDS, max_tokens=8, ignore_eos=True)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 8
        metrics = running.prefill[0].metrics()
        assert [name for name in metrics if name.startswith("sluice_prefill_wire_codec_total")] == [
            'sluice_prefill_wire_codec_total{codec="int8"}']
        # 30 layers of K and V of 3 heads of 64: codes and a scale of 4 bytes for each row.
        assert metrics['sluice_prefill_kv_bytes_sent_total{codec="int8"}'] >= len(IDS) * 30 * 2 * 3 * 68
        running.await_all_pages_free()


def test_when_kv_leaves_changes_no_token(real_model):
    for send in ("chunk", "prompt"):
        with service(real_model, worker_flags=SMALL, prefill_flags=["--send", send]) as running:
            assert_serves_the_models_tokens(running, real_model)


def test_a_prompt_larger_than_every_buffer_on_its_way_passes_and_holds_nobody_up(real_model):
    # 9 MiB of KV in bf16: through 256 KiB in prefill and, recoded, 64 KiB in decode.
    small = ["--send-memory", "256KiB", "--connection-bytes", "128KiB", "--frame-bytes", "32KiB",
             "--frame-bytes-min", "8KiB"]
    for store, wire in (("bf16", "bf16"), ("bf16", "f32")):
        with service(real_model, worker_flags=[*SMALL, "--kv-store", store],
                     prefill_flags=[*small, "--kv-wire", wire],
                     decode_flags=["--connections", "1", "--staging-memory", "64KiB"]) as running:
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                answers = [pool.submit(running.completion, prompt=ids, max_tokens=8, ignore_eos=True)
                           for ids in (IDS, IDS[:20], IDS[5:30])]
                for ids, answer in zip((IDS, IDS[:20], IDS[5:30]), answers):
                    assert answer.result().status_code == 200, answer.result().text
                    whole = complete_locally(real_model, ids, 8, "--ignore-eos", "--kv-store", store)
                    assert answer.result().json()["choices"][0]["text"] == whole["text"]
            running.await_all_pages_free()
