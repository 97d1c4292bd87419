"""Messages of a chat with tools: as the model reads them, and its replies as messages."""

import pytest

from germline.endpoint.openai_requests import ChatRequest, Message
from germline.endpoint.openai_responses import Reply
from germline.endpoint.rows import RowResult
from germline.environments.tools import schema_prompt
from germline.types import Completion

PRICE = {
    "type": "function",
    "function": {"name": "price", "description": "", "parameters": {"type": "object"}},
}
TEA = {"role": "user", "content": "Tea?"}
CALL = 'Let me see.\n<tool_call>\n{"name": "price", "arguments": {"item": "tea"}}\n</tool_call>'


def chat(*messages, **more):
    return ChatRequest(model="center", messages=[Message(**one) for one in messages], **more)


def reply_message(text, *, has_tools=True):
    return Reply(chat(TEA, tools=[PRICE] if has_tools else []), "digest", []).message(text)


def test_tools_are_described_after_the_system_message():
    system = {"role": "developer", "content": "Be brief."}
    example = chat(system, TEA, tools=[PRICE]).example()
    assert example.prompt == "Tea?"
    assert example.context == (("system", "Be brief.\n\n" + schema_prompt([PRICE])),)
    assert chat(TEA, tools=[PRICE], tool_choice="none").example().context == ()


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
    example = chat(TEA, reply, *results).example()
    assert example.context == (("user", "Tea?"), ("assistant", CALL))
    shown = [f"<tool_response>\n{n}\n</tool_response>" for n in (3, 5)]
    assert example.prompt == "\n".join(shown)


def test_calls_end_a_choice_and_are_counted_in_a_stream():
    result = RowResult(Completion(CALL, (1, 2), "eos", 3))
    reply = Reply(chat(TEA, tools=[PRICE]), "digest", [result])
    (choice,) = reply.chat()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    events = list(reply.chat_events())
    assert '"tool_calls": [{"index": 0, "id": "call-1-0"' in events[0]
    assert '"finish_reason": "tool_calls"' in events[1]


def test_turns_of_a_seed_have_noise_of_their_own():
    user, reply = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    requests = [chat(user, seed=1), chat(user, reply, user, seed=1), chat(user, seed=1)]
    one, two, again = (request.sampled([request.example()])[0].index for request in requests)
    assert one == again != two
