"""Requests that prefill cannot begin with soon wait at the gateway and hold no memory of decode."""

import concurrent.futures

from processes import complete_locally, eventually, parse_metrics, prompt_ids, service

PAGE = 16
TOKENS = 800
CLIENTS = 12


def gateway_metrics(running):
    return parse_metrics(running.http.get("/metrics").text)


def queued(running):
    return gateway_metrics(running)["sluice_gateway_requests_queued"]


def test_decode_reserves_no_pages_for_prompts_that_queue(real_model):
    # A prompt's pages are reserved once prefill has computed all before it: then that one is handed over and decoded
    # while the next is computed. One more for what lies between two looks at the metrics.
    held_max = 3
    with service(real_model, worker_flags=["--threads", "1", "--kv-memory", "512MiB"],
                 gateway_flags=["--prefill-queue-max", "0s", "--canary-period", "600s"]) as running:
        prompts = [prompt_ids(TOKENS, seed=40 + i) for i in range(CLIENTS)]
        reserved, waiting = [], []
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            answers = [pool.submit(running.completion, prompt=ids, max_tokens=4, ignore_eos=True) for ids in prompts]
            while not all(answer.done() for answer in answers):
                metrics = running.decode[0].metrics()
                reserved.append((metrics["sluice_decode_reservations"], metrics["sluice_decode_kv_pages_reserved"]))
                waiting.append(queued(running))
        assert [answer.result().status_code for answer in answers] == [200] * CLIENTS
        texts = [answer.result().json()["choices"][0]["text"] for answer in answers]
        assert texts[-1] == complete_locally(real_model, prompts[-1], 4, "--ignore-eos")["text"]
        assert max(waiting) >= CLIENTS - held_max
        assert max(requests for requests, _ in reserved) <= held_max, reserved
        assert max(pages for _, pages in reserved) <= held_max * (TOKENS + 3 + PAGE - 1) // PAGE, reserved
        assert gateway_metrics(running)["sluice_gateway_queue_seconds_count"] >= CLIENTS
        assert queued(running) == 0
        running.await_all_pages_free()


def test_the_queue_outlives_its_prefill_only_where_there_is_another(real_model):
    with service(real_model, worker_flags=["--threads", "1", "--kv-memory", "256MiB"],
                 gateway_flags=["--prefill-queue-max", "0s", "--canary-period", "600s"]) as running:
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            answers = [pool.submit(running.completion, prompt=prompt_ids(4000, seed=60 + i), max_tokens=4)
                       for i in range(6)]
            eventually(lambda: queued(running) == 5, 60, "five of six queue")
            running.prefill[0].kill()
            assert [answer.result().status_code for answer in answers] == [503] * 6
        assert queued(running) == 0
        running.await_all_pages_free(5)
        running.restart("prefill", 0)
        running.await_ready(30)
        assert running.completion(prompt=[50] * 10, max_tokens=2).status_code == 200
