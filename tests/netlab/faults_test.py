"""What a bad network does to a handoff: the right answer, late perhaps, or an error; never a wrong token, no page lost."""

import concurrent.futures
import contextlib
import signal
import time

import pytest
from processes import complete_locally, eventually, prompt_ids

STORE = ["--kv-store", "bf16"]
WIRE = ["--kv-wire", "bf16"]
FLAGS = ["--threads", "1", "--kv-memory", "128MiB", *STORE]
PROMPT = 240
TOKEN_BYTES = 2 * 30 * 3 * 64 * 2  # SmolLM2 in bf16
KV_BYTES = PROMPT * TOKEN_BYTES


@pytest.fixture(scope="session")
def reference(real_model):
    """The prompt of these tests, and what the model says to it when it is served whole."""
    ids = prompt_ids(PROMPT)
    return ids, complete_locally(real_model, ids, 8, "--ignore-eos", *STORE)["text"]


@pytest.fixture
def joined(cable, lab_service, real_model):
    """A service over the cable."""
    return lab_service(real_model, prefill=2, worker_flags=FLAGS, prefill_flags=WIRE)


def ask(running, reference):
    return running.completion(prompt=reference[0], max_tokens=8, ignore_eos=True)


@contextlib.contextmanager
def asked(running, reference):
    """Asks, and gives the future answer."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield pool.submit(ask, running, reference)


def is_right(answer, reference):
    if answer.status_code == 200:
        assert answer.json()["choices"][0]["text"] == reference[1]
        assert answer.json()["usage"]["completion_tokens"] == 8
        return True
    assert answer.status_code in (500, 502, 503, 504), answer.text
    assert answer.json()["error"]["message"]
    return False


def total(running, name):
    return sum(worker.metrics()["sluice_decode_" + name] for worker in running.decode)


def test_a_slow_way_changes_nothing(cable, joined, reference):
    cable.delay_s = 0.05
    started = time.monotonic()
    assert is_right(ask(joined, reference), reference)
    assert cable.bytes > 0.95 * KV_BYTES  # it went this way
    assert time.monotonic() - started > 0.1  # there and back, at least for the commit
    joined.await_all_pages_free()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.97])
def test_a_flipped_byte_is_noticed_and_never_decoded(cable, joined, reference, share):
    cable.flip_at(int(share * KV_BYTES))
    answer = ask(joined, reference)
    assert cable.flipped == 1
    is_right(answer, reference)
    assert total(joined, "crc_failures_total") == 1
    assert is_right(ask(joined, reference), reference)
    joined.await_all_pages_free()


def test_bytes_flipped_again_and_again_end_in_an_error(cable, joined, reference):
    cable.flip_at(*range(0, 40 * KV_BYTES, 50000))
    assert not is_right(ask(joined, reference), reference)
    cable.flip_at()
    joined.await_all_pages_free()
    eventually(lambda: is_right(ask(joined, reference), reference), 30, "served again")
    joined.await_all_pages_free()


def test_a_connection_that_is_cut_once_costs_a_retry_only(cable, joined, reference):
    cable.cut_at(KV_BYTES // 2)
    with asked(joined, reference) as answer:
        eventually(lambda: cable.cuts or answer.done(), 60, "a connection was cut")
        cable.mend()
    assert cable.cuts > 0
    assert is_right(answer.result(), reference)
    joined.await_all_pages_free()


@pytest.mark.parametrize("how", ["unplugged", "down"])
def test_traffic_resumes_after_a_link_was_down_for_3_s(cable, lab, joined, reference, how):
    with asked(joined, reference) as answer:
        before = cable.bytes
        eventually(lambda: cable.bytes > before + KV_BYTES // 4 or answer.done(), 60, "KV is on its way")
        if how == "unplugged":
            cable.plugged = False
        else:
            lab.set_link("decode", "down")
        time.sleep(3)
        if how == "unplugged":
            cable.plugged = True
        else:
            lab.set_link("decode", "up")
        up_at = time.monotonic()
    is_right(answer.result(), reference)
    eventually(lambda: is_right(ask(joined, reference), reference), 30, "served again")
    assert time.monotonic() - up_at < 30
    joined.await_all_pages_free()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_decode_that_sleeps_for_two_leases_says_nothing_wrong(cable, lab_service, real_model, reference, share):
    running = lab_service(real_model, worker_flags=FLAGS, prefill_flags=WIRE, decode_flags=["--lease", "1500ms"])
    with asked(running, reference) as answer:
        before = cable.bytes
        eventually(lambda: cable.bytes - before >= share * KV_BYTES or answer.done(), 60, "KV is on its way")
        running.decode[0].popen.send_signal(signal.SIGSTOP)
        time.sleep(3)
        running.decode[0].popen.send_signal(signal.SIGCONT)
    is_right(answer.result(), reference)
    eventually(lambda: is_right(ask(running, reference), reference), 30, "served again")
    running.await_all_pages_free()


def test_16_decodes_that_start_at_once_all_get_their_first_handoff(cable, lab_service, tiny_model):
    running = lab_service(tiny_model, decode=16, worker_flags=["--threads", "1", "--kv-memory", "4MiB", *STORE],
                          prefill_flags=WIRE)
    prompts = [list(range(3 + i, 90 + i)) for i in range(64)]  # nothing in common that would draw them to one decode
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda ids: running.completion(prompt=ids, max_tokens=4, ignore_eos=True), prompts))
    assert [a.status_code for a in answers] == [200] * 64
    for ids, answer in list(zip(prompts, answers))[::8]:
        expected = complete_locally(tiny_model, ids, 4, "--ignore-eos", *STORE)["text"]
        assert answer.json()["choices"][0]["text"] == expected
    assert all(d.metrics()["sluice_decode_commits_total"] > 0 for d in running.decode)
    running.await_all_pages_free()
