"""The public API as users meet it: the official OpenAI client, plain HTTP, error bodies, health and metrics."""

import json

import httpx
import openai
import pytest
from processes import DATA


@pytest.fixture(scope="module")
def client(real_service):
    with openai.OpenAI(base_url=real_service.url + "/v1", api_key="none", max_retries=0) as c:
        yield c


@pytest.fixture(scope="module")
def model_name(client):
    return client.models.list().data[0].id


QUESTION = [{"role": "user", "content": "Why is the sky blue? Answer in two sentences."}]  # no near tie, in any codec


def test_a_chat_is_answered(client, model_name):
    answer = client.chat.completions.create(model=model_name, messages=QUESTION, temperature=0, max_tokens=40)
    assert "sky" in answer.choices[0].message.content
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_streamed_chat_says_the_same(client, model_name):
    options = dict(model=model_name, messages=QUESTION, temperature=0, max_tokens=40)
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage and not chunks[-1].choices
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert len(chunks) > 3  # it was streamed


def test_no_character_arrives_broken(client, model_name):
    chunks = client.chat.completions.create(
        model=model_name, messages=[{"role": "user", "content": "Write three emoji and a line in Japanese: 日本語 🎉"}],
        temperature=1, seed=3, max_tokens=60, stream=True)
    assert all("\ufffd" not in (c.choices[0].delta.content or "") for c in chunks)


def test_a_text_completion_takes_text_and_ids(client, model_name, real_service):
    text = "The lighthouse keeper climbed the stairs every evening, and when the fog came in he would"
    ids = [504, 33059, 40061, 30324, 260, 24224, 897, 9053, 28, 284, 645, 260, 19998, 2422, 281, 384, 736]
    by_text = client.completions.create(model=model_name, prompt=text, temperature=0, max_tokens=12)
    by_ids = client.completions.create(model=model_name, prompt=ids, temperature=0, max_tokens=12)
    assert by_text.choices[0].text == by_ids.choices[0].text != ""
    assert by_text.usage.prompt_tokens == len(ids)


def test_log_probabilities_of_a_chat(client, model_name):
    answer = client.chat.completions.create(model=model_name, messages=QUESTION, temperature=0, max_tokens=6,
                                            logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    assert all(len(entry.top_logprobs) == 3 for entry in content)
    assert "".join(bytes(entry.bytes).decode() for entry in content if entry.bytes) .startswith(
        answer.choices[0].message.content[:3])


def test_stop_strings_cut_across_token_borders(client, model_name):
    whole = client.completions.create(model=model_name, prompt="Count: one, two, three,", temperature=0, max_tokens=24)
    text = whole.choices[0].text
    stop = text[7:12]
    cut = client.completions.create(model=model_name, prompt="Count: one, two, three,", temperature=0, max_tokens=24,
                                    stop=[stop, "never in the text"])
    assert cut.choices[0].text == text[:text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("body, field", [
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"top_p": 0}, "top_p"),
    ({"n": 1000}, "n"),
    ({"stop": [1, 2]}, "stop"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"prompt": [0, 10**6]}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"echo": True}, "echo"),
    ({"kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params"),
    ({"prompt": [20] * 9000}, "8192"),
])
def test_bad_values_get_a_400_that_names_them(real_service, body, field):
    answer = real_service.http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 2, **body})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert field in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"prompt": "a", "prompt"', b"\xff\xfe", b"[" * 100000])
def test_bodies_that_are_not_json_get_a_400(real_service, content):
    answer = real_service.http.post("/v1/completions", content=content)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_unknown_paths_and_methods(real_service):
    assert real_service.http.get("/v1/nothing").status_code == 404
    assert real_service.http.get("/v1/completions").status_code == 405
    assert real_service.http.post("/v1/chat/completions", content=b"x" * (64 << 20)).status_code == 413


def test_the_openai_client_raises_its_own_errors(client, model_name):
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model=model_name, messages=QUESTION, temperature=9)


def test_health_readiness_and_metrics(real_service):
    assert real_service.http.get("/health").status_code == 200
    assert real_service.http.get("/ready").status_code == 200
    text = real_service.http.get("/metrics").text
    assert "sluice_gateway_prompt_tokens_total" in text
    for worker in real_service.prefill + real_service.decode:
        free, total = real_service.pages_free(worker)
        assert 0 < free <= total


def prompt_tokens(running, messages):
    answer = running.http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens"]


def test_a_conversation_has_the_tokens_of_the_reference(real_service):
    goldens = json.loads((DATA / "real/smollm2/goldens.json").read_text())
    chats = [p for p in goldens["prompts"] if p.get("messages")]
    assert chats
    for chat in chats:
        assert prompt_tokens(real_service, chat["messages"]) == len(chat["ids"]), chat["name"]


def test_content_in_parts_is_the_same_text(real_service):
    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    assert prompt_tokens(real_service, parts) == prompt_tokens(real_service, QUESTION)


def test_cached_tokens_of_a_repeated_chat_are_whole_pages(client, model_name):
    usages = [client.chat.completions.create(model=model_name, messages=QUESTION, max_tokens=2).usage for _ in range(3)]
    for usage in usages[1:]:
        cached = usage.prompt_tokens_details.cached_tokens
        assert cached == (usage.prompt_tokens - 1) // 16 * 16


def test_server_sent_events_are_well_formed(real_service):
    with httpx.stream("POST", real_service.url + "/v1/completions", timeout=60,
                      json={"prompt": "Hello", "max_tokens": 4, "stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        json.loads(line[6:])
