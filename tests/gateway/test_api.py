"""The official client chats, streams, lists models and reads usage from a real server."""

import httpx
import openai
import pytest

from augury.errors import NotFiniteError
from gateway.generations import choice_seed
from gateway.model import ServedModel
from tests.gateway.conftest import REPLY
from tests.gateway.scripted import WINDOW, Script, ScriptedBackend

USER = [{"role": "user", "content": "hello"}]
PROMPT = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def sizes(model: ServedModel, *texts: str) -> list[int]:
    return [len(tokens) for tokens in model.encode(texts, add_special_tokens=False)]


def test_a_chat_is_answered(client: openai.OpenAI, model: ServedModel, backend: ScriptedBackend) -> None:
    answer = client.chat.completions.create(model="tiny", messages=USER)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", REPLY, "stop")
    (num_prompt, num_reply) = sizes(model, PROMPT, REPLY)
    assert answer.usage.prompt_tokens == num_prompt
    assert answer.usage.completion_tokens == num_reply + 1
    assert answer.usage.total_tokens == num_prompt + num_reply + 1
    assert answer.id.startswith("chatcmpl-")
    (asked,) = backend.seen
    assert model.tokenizer.decode(list(asked.prompt), skip_special_tokens=False) == PROMPT
    assert asked.stopping.stop_token_ids == {2}
    assert asked.stopping.max_tokens == WINDOW - num_prompt


@pytest.mark.parametrize("group", [1, 3, 100])
def test_a_stream_joins_to_the_answer(
    client: openai.OpenAI, model: ServedModel, backend: ScriptedBackend, group: int
) -> None:
    (tokens,) = model.encode([REPLY], add_special_tokens=False)
    backend.script = lambda _: Script(tokens=[*tokens, 2], group=group, num_cached=4)
    chunks = list(
        client.chat.completions.create(model="tiny", messages=USER, stream=True, stream_options={"include_usage": True})
    )
    *texts, usage = chunks
    assert texts[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in texts[1:])
    assert "".join(chunk.choices[0].delta.content or "" for chunk in texts) == REPLY
    assert [chunk.choices[0].finish_reason for chunk in texts] == [None] * (len(texts) - 1) + ["stop"]
    assert all(chunk.usage is None for chunk in texts)
    assert usage.choices == []
    assert usage.usage.completion_tokens == len(tokens) + 1
    assert usage.usage.prompt_tokens_details.cached_tokens == 4


def test_usage_tells_which_drafts_became_text(
    client: openai.OpenAI, model: ServedModel, backend: ScriptedBackend
) -> None:
    backend.script = lambda _: Script(tokens=[65, 66, 67], group=3, num_drafts=4)
    details = client.completions.create(model="tiny", prompt="a", max_tokens=9, n=2).usage.completion_tokens_details
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (12, 12)


def test_a_stop_string_leaves_cached_tokens_in_the_usage_and_cuts_the_accepted_drafts(
    client: openai.OpenAI, model: ServedModel, backend: ScriptedBackend
) -> None:
    (tokens,) = model.encode([REPLY], add_special_tokens=False)
    backend.script = lambda _: Script(tokens=tokens, group=100, num_cached=6, num_drafts=100)
    usage = client.completions.create(model="tiny", prompt="a", max_tokens=150, stop=" 🙂").usage
    assert usage.prompt_tokens_details.cached_tokens == 6
    details = usage.completion_tokens_details
    assert 0 < details.accepted_prediction_tokens == usage.completion_tokens < len(tokens)
    assert details.accepted_prediction_tokens + details.rejected_prediction_tokens == 100


def test_frames_are_those_of_the_reference(port: int) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 2, "stream": True, "ignore_eos": True}
    answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body)
    assert answer.headers["content-type"] == "text/event-stream"
    assert "content-length" not in answer.headers
    *frames, last, end = answer.text.split("\n\n")
    assert (last, end) == ("data: [DONE]", "")
    assert all(frame.startswith("data: {") and '"usage"' not in frame for frame in frames)


def test_usage_may_come_with_every_chunk(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = client.completions.create(model="tiny", prompt="a", max_tokens=3, stream=True, stream_options=options)
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-2:] == [3, 3]


def test_completions_take_texts_and_token_ids(client: openai.OpenAI, backend: ScriptedBackend) -> None:
    for prompt, num_choices in (("a", 1), (["a", "the fox"], 2), ([5, 6], 1), ([[5, 6], [7]], 2)):
        answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=1)
        assert [choice.index for choice in answer.choices] == list(range(num_choices))
    assert [asked.prompt for asked in backend.seen[-2:]] == [(5, 6), (7,)]


def test_choices_and_prompts_are_all_answered_and_prompts_counted_once(
    client: openai.OpenAI, backend: ScriptedBackend
) -> None:
    backend.script = lambda asked: Script(tokens=asked.prompt, num_cached=1)
    answer = client.completions.create(model="tiny", prompt=[[65, 66], [67]], n=3, max_tokens=3, seed=11)
    texts = [choice.text for choice in answer.choices]
    assert len(set(texts[:3])) == len(set(texts[3:])) == 1
    assert texts[0] != texts[3]
    assert answer.usage.prompt_tokens == 3
    assert answer.usage.completion_tokens == 18
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    seeds = [asked.sampling.seed for asked in backend.seen]
    assert seeds[0] == 11
    assert seeds[:3] == seeds[3:] == [choice_seed(11, index) for index in range(3)]
    assert len(set(seeds)) == 3


def test_choices_stream_side_by_side(client: openai.OpenAI, backend: ScriptedBackend) -> None:
    chunks = list(client.chat.completions.create(model="tiny", messages=USER, n=3, stream=True))
    texts = ["", "", ""]
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [REPLY] * 3
    assert {chunk.choices[0].index for chunk in chunks[:3]} == {0, 1, 2}


def test_without_a_seed_every_request_draws_one(client: openai.OpenAI, backend: ScriptedBackend) -> None:
    for _ in range(3):
        client.completions.create(model="tiny", prompt="a", max_tokens=1)
    assert len({asked.sampling.seed for asked in backend.seen}) == 3


def test_a_stop_string_ends_text_request_and_usage(
    client: openai.OpenAI, model: ServedModel, backend: ScriptedBackend
) -> None:
    (tokens,) = model.encode([REPLY], add_special_tokens=False)
    backend.script = lambda _: Script(tokens=tokens, group=4)
    for stop in (" 🙂", [" stop", "🙂", " 🙂"]):
        answer = client.completions.create(model="tiny", prompt="a", max_tokens=150, stop=stop)
        assert answer.choices[0].text == REPLY.partition(" 🙂")[0]
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.completion_tokens == sizes(model, REPLY.partition(" stop")[0])[0]
    assert len(backend.cancelled) == 2
    chunks = client.completions.create(model="tiny", prompt="a", max_tokens=150, stop=" 🙂", stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == REPLY.partition(" 🙂")[0]


def test_length_and_ignored_end(client: openai.OpenAI, backend: ScriptedBackend) -> None:
    answer = client.completions.create(model="tiny", prompt="a", max_tokens=50, extra_body={"ignore_eos": True})
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].text.startswith(REPLY + REPLY[:3])
    assert answer.usage.completion_tokens == 50
    assert backend.seen[0].stopping.stop_token_ids == set()


def test_sampling_fields_reach_the_backend(client: openai.OpenAI, backend: ScriptedBackend) -> None:
    extra = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "min_tokens": 2, "stop_token_ids": [9], "priority": 3}
    extra["max_drafts"] = 0
    client.chat.completions.create(
        model="tiny",
        messages=USER,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.3,
        frequency_penalty=-0.4,
        logit_bias={"7": -100},
        seed=-1,
        max_completion_tokens=9,
        extra_body=extra,
    )
    (asked,) = backend.seen
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 5, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.3, -0.4)
    assert (sampling.repetition_penalty, sampling.logit_bias, sampling.seed) == (1.2, {7: -100}, 2**64 - 1)
    assert (asked.stopping.max_tokens, asked.stopping.min_tokens) == (9, 2)
    assert (asked.stopping.stop_token_ids, asked.priority, asked.max_drafts) == ({2, 9}, 3, 0)


def test_null_means_left_out_and_off_values_of_unsupported_fields_pass(client: openai.OpenAI) -> None:
    nulls = dict.fromkeys(("n", "stop", "seed", "max_tokens", "temperature", "tools", "logprobs", "audio"))
    off = {"tool_choice": "none", "response_format": {"type": "text"}}
    answer = client.chat.completions.create(model="tiny", messages=USER, extra_body={**nulls, **off})
    assert answer.choices[0].message.content == REPLY


def test_unknown_fields_are_accepted_and_named(client: openai.OpenAI) -> None:
    extra = {"thinking_mode": 1, "bad\r\nname": 2}
    answer = client.chat.completions.with_raw_response.create(model="tiny", messages=USER, extra_body=extra)
    assert answer.headers["warning"] == '299 augury "unknown fields ignored: thinking_mode,bad??name"'


def test_text_parts_and_the_developer_role_reach_the_template(
    client: openai.OpenAI, model: ServedModel, backend: ScriptedBackend
) -> None:
    parts = [{"type": "text", "text": "the"}, {"type": "text", "text": "fox"}]
    messages = [{"role": "developer", "content": "brief"}, {"role": "user", "content": parts}]
    client.chat.completions.create(model="tiny", messages=messages)
    prompt = model.tokenizer.decode(list(backend.seen[0].prompt), skip_special_tokens=False)
    assert prompt.startswith("<|im_start|>system\nbrief<|im_end|>\n<|im_start|>user\nthe\nfox<|im_end|>")


def test_the_last_message_can_be_continued(client: openai.OpenAI, model: ServedModel, backend: ScriptedBackend) -> None:
    messages = [*USER, {"role": "assistant", "content": "the quick"}]
    client.chat.completions.create(model="tiny", messages=messages, extra_body={"continue_final_message": True})
    prompt = model.tokenizer.decode(list(backend.seen[0].prompt), skip_special_tokens=False)
    assert prompt.endswith("<|im_start|>assistant\nthe quick")


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [card.id for card in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other/model")


def test_a_failure_before_the_first_token_is_an_ordinary_error(client: openai.OpenAI, backend: ScriptedBackend) -> None:
    backend.script = lambda _: Script(tokens=[], error=NotFiniteError("the output is not finite"))
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model="tiny", messages=USER, stream=stream)
        assert caught.value.code == "not_finite"


def test_a_failure_in_mid_stream_is_told_and_the_stream_ended(port: int, backend: ScriptedBackend) -> None:
    backend.script = lambda _: Script(tokens=[65, 66], error=NotFiniteError("the output is not finite"))
    body = {"prompt": "a", "stream": True, "stream_options": {"include_usage": True}}
    frames = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body).text.split("\n\n")
    assert len(frames) == 5
    assert '"error":{"message":"the output is not finite","type":"server_error"' in frames[2]
    assert frames[3:] == ["data: [DONE]", ""]


def test_without_a_worker_requests_are_to_be_repeated(client: openai.OpenAI, backend: ScriptedBackend) -> None:
    backend.num_workers = 0
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="tiny", messages=USER)
    assert caught.value.status_code == 503
    assert caught.value.code == "no_worker"
    assert caught.value.response.headers["retry-after"] == "1"
    backend.num_workers = 1
    assert client.chat.completions.create(model="tiny", messages=USER).choices


def test_request_ids_are_returned_and_may_be_used_twice_at_once(client: openai.OpenAI, port: int) -> None:
    headers = {"x-request-id": "mine-7"}
    streams = [
        client.chat.completions.create(model="tiny", messages=USER, stream=True, extra_headers=headers)
        for _ in range(2)
    ]
    assert [stream.response.headers["x-request-id"] for stream in streams] == ["mine-7"] * 2
    ids = [{chunk.id for chunk in stream} for stream in streams]
    assert ids[0].isdisjoint(ids[1])
    hostile = httpx.get(f"http://127.0.0.1:{port}/version", headers={"x-request-id": "a b" * 99})
    assert len(hostile.headers["x-request-id"]) == 32


def test_health_tells_whether_a_worker_is_ready(port: int, backend: ScriptedBackend) -> None:
    url = f"http://127.0.0.1:{port}/health"
    assert [httpx.get(url + path).status_code for path in ("", "/ready", "/live")] == [200, 200, 200]
    backend.num_workers = 0
    assert [httpx.get(url + path).status_code for path in ("", "/ready", "/live")] == [503, 503, 200]
    backend.reachable = False
    assert httpx.get(url).json()["error"]["code"] == "no_worker"


def test_tokens_and_text_convert_both_ways(port: int, model: ServedModel) -> None:
    url = f"http://127.0.0.1:{port}"
    answer = httpx.post(f"{url}/tokenize", json={"prompt": REPLY}).json()
    assert answer["count"] == len(answer["tokens"]) == sizes(model, REPLY)[0]
    assert httpx.post(f"{url}/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": REPLY}
