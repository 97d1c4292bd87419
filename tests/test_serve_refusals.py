"""What `germline serve` refuses: fields, messages, prompts, tokens, and what an engine lacks."""

import json
import urllib.request

import pytest
from openai import BadRequestError, OpenAI

from germline.endpoint.openai_requests import ChatRequest, Message
from germline.endpoint.openai_responses import Reply
from germline.endpoint.rows import RowResult
from germline.environments.tools import schema_prompt
from germline.types import Completion
from tests.serving import chat, raw, refused, serving, text_of
from tests.tiny import save_tiny
from tests.toy_runs import run


@pytest.fixture(scope="module")
def url():
    with serving("nano") as address:
        yield address


@pytest.fixture
def client(url):
    with OpenAI(base_url=url, api_key="none", max_retries=0) as opened:
        yield opened


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"presence_penalty": 0.5}, "presence_penalty", "presence_penalty=0.5 is not supported"),
        ({"extra_body": {"best_of": 3}}, "best_of", "best_of=3 is not supported"),
        ({"extra_body": {"suffix": "x" * 99}}, "suffix", f"='{'x' * 59} is not supported"),
        ({"n": 1000}, "n", "n: Input should be less than or equal to 128"),
        ({"temperature": -1}, "temperature", "temperature: Input should be greater than"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools", "at least 1"),
        ({"tool_choice": "required"}, "tool_choice", "'none' or 'auto'"),
        ({"response_format": {"type": "json_object"}}, "response_format", "json_object'} is not"),
        ({"extra_body": {"guided_regex": "a*"}}, "guided_regex", "Extra inputs"),
        ({"max_tokens": 510}, "max_tokens", "context"),
        ({"stop": ""}, "stop", "at least 1 char"),
        ({"seed": 2**63}, "seed", "less than 9223372036854775808"),
        ({"logprobs": True}, "logprobs", "logprobs=True is not supported"),
        ({"top_p": "1"}, "top_p", "valid number"),
        ({"max_tokens": "8"}, "max_tokens", "valid integer"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(client, fields, param, said):
    error = refused(chat, client, "hello", **fields)
    assert error.status_code == 400
    assert error.param.startswith(param)
    assert said in error.message


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("messages", [], "at least 1 item"),
        ("messages", [{"role": "assistant", "content": "hello"}], "must be the user's"),
        ("messages", [{"role": "critic", "content": "4"}], "role"),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "'text'"),
        ("messages", [{"role": "user"}], "`content` is required"),
        ("messages", [{"role": "user", "content": "\ud800"}], "messages.0.content"),
        ("prompt", "", "has no tokens: ''; give it some text"),
        ("prompt", [], "at least 1 item"),
        ("prompt", [5, 10**6], "has token 1000000, but the model"),
        ("prompt", "word " * 1000, "context"),
        ("prompt", {"a": 1}, "valid string"),
        ("prompt", "\ud800", "unicode"),
        ("prompt", [1.0], "valid"),
    ],
)
def test_what_no_template_and_no_model_can_read_is_refused(url, name, value, said):
    path = "/chat/completions" if name == "messages" else "/completions"
    status, error = raw(url, {"model": "center", name: value}, path)
    assert status == 400
    assert said in error["message"]


def test_the_token_of_the_server_is_the_api_key_of_the_client():
    with serving("nano", token="secret") as url:
        with OpenAI(base_url=url, api_key="secret") as client:
            assert text_of(chat(client, "What is 3 plus 4?"))
        with OpenAI(base_url=url, api_key="other", max_retries=0) as client:
            assert refused(chat, client, "hello").status_code == 401
        with urllib.request.urlopen(f"{url.removesuffix('/v1')}/health") as response:
            assert json.loads(response.read()) == {"status": "ok", "queued": 0}


def test_a_model_without_a_chat_template_completes_texts(tmp_path):
    folder = save_tiny(tmp_path, "qwen2")
    (folder / "chat_template.jinja").unlink()
    with serving(folder) as url, OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        with pytest.raises(BadRequestError, match="use /v1/completions"):
            chat(client, "hello")
        # Greedy: a sampled completion may be empty.
        response = client.completions.create(model="center", prompt="fox", temperature=0)
        assert response.choices[0].text


def test_an_engine_without_a_tokenizer_says_what_it_lacks(tmp_path):
    folder = run(tmp_path / "toy", "generations=1")
    with serving(folder) as url, OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        assert text_of(chat(client, "hello", max_tokens=3))
        assert text_of(chat(client, "hello", "gen-0/member-5", max_tokens=3))
        with pytest.raises(BadRequestError, match=r"engine\.kind=toy has no tokenizer"):
            client.completions.create(model="center", prompt="hello", logprobs=0)


PRICE = {
    "type": "function",
    "function": {"name": "price", "description": "", "parameters": {"type": "object"}},
}
TEA = {"role": "user", "content": "Tea?"}
CALL = 'Let me see.\n<tool_call>\n{"name": "price", "arguments": {"item": "tea"}}\n</tool_call>'


def chat_request(*messages, **more):
    return ChatRequest(model="center", messages=[Message(**one) for one in messages], **more)


def reply_message(text, *, has_tools=True):
    return Reply(chat_request(TEA, tools=[PRICE] if has_tools else []), "digest", []).message(text)


def test_tools_are_described_after_the_system_message():
    system = {"role": "developer", "content": "Be brief."}
    example = chat_request(system, TEA, tools=[PRICE]).example()
    assert example.prompt == "Tea?"
    assert example.context == (("system", "Be brief.\n\n" + schema_prompt([PRICE])),)
    assert chat_request(TEA, tools=[PRICE], tool_choice="none").example().context == ()


def test_a_reply_with_calls_is_read_again_as_it_was_written():
    message = reply_message(CALL)
    assert message["content"] == "Let me see."
    (call,) = message["tool_calls"]
    assert call["id"] == "call-1-0"
    assert call["function"] == {"name": "price", "arguments": '{"item": "tea"}'}
    assert Message(**message).text == CALL
    assert reply_message(CALL, has_tools=False)["content"] == CALL


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('"parameters": {"item": "tea"}', '{"item": "tea"}'),  # as Llama writes it
        ('"arguments": null', "{}"),
        ('"arguments": null, "parameters": {"item": "tea"}', '{"item": "tea"}'),
        ('"arguments": "{\\"item\\": \\"tea\\"}"', '{"item": "tea"}'),
    ],
)
def test_other_forms_of_a_call_have_the_same_arguments(written, arguments):
    call = f'<tool_call>{{"name": "price", {written}}}</tool_call>'
    (found,) = reply_message(call)["tool_calls"]
    assert found["function"] == {"name": "price", "arguments": arguments}


def test_a_call_that_is_not_well_formed_has_no_name():
    message = reply_message("<tool_call>no json</tool_call>")
    assert message["tool_calls"][0]["function"] == {"name": "", "arguments": "no json"}
    assert Message(**message).text == "<tool_call>\nno json\n</tool_call>"


def test_results_that_follow_each_other_are_one_message():
    results = [{"role": "tool", "tool_call_id": str(n), "content": str(n)} for n in (3, 5)]
    reply = reply_message(CALL)
    example = chat_request(TEA, reply, *results).example()
    assert example.context == (("user", "Tea?"), ("assistant", CALL))
    shown = [f"<tool_response>\n{n}\n</tool_response>" for n in (3, 5)]
    assert example.prompt == "\n".join(shown)


def test_calls_end_a_choice_and_are_counted_in_a_stream():
    result = RowResult(Completion(CALL, (1, 2), "eos", 3))
    reply = Reply(chat_request(TEA, tools=[PRICE]), "digest", [result])
    (choice,) = reply.chat()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    events = list(reply.chat_events())
    assert '"tool_calls": [{"index": 0, "id": "call-1-0"' in events[0]
    assert '"finish_reason": "tool_calls"' in events[1]


def test_turns_of_a_seed_have_noise_of_their_own():
    user, reply = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    requests = [
        chat_request(user, seed=1),
        chat_request(user, reply, user, seed=1),
        chat_request(user, seed=1),
    ]
    one, two, again = (request.sampled([request.example()])[0].index for request in requests)
    assert one == again != two
