"""Tools of environments: their descriptions, and what a call or a wrong call is answered with."""

import asyncio
import json
import re
from typing import Literal, TypedDict

import pytest

from germline.environments.episode import EpisodeRubric
from germline.environments.grader import EnvironmentGrader
from germline.environments.tools import describe, find_calls, find_tools
from germline.example import Transcript
from germline.graders.worker_messages import InvalidGradeError
from germline.types import Example


def play(factory, *replies, is_final=False, **row):
    rubric = EpisodeRubric({"reward": 1.0}, {"reward": -1.0})
    example = Example(index=0, prompt="?", answer="", chat=False, facts=row)
    return EnvironmentGrader("mine", factory, rubric)(Transcript(replies, 5, is_final), example)


class Silent:
    """An environment that forgets its reward."""

    def reset(self):
        self.reward = None

    async def tool(self):
        """Wait for what was cancelled."""
        task = asyncio.ensure_future(asyncio.sleep(0))
        task.cancel()
        await task


def test_a_reward_of_none_is_an_error_and_a_cancelled_tool_tells_the_model():
    call_it = '<tool_call>{"name": "tool"}</tool_call>'
    assert "Error: CancelledError" in play(Silent, call_it)
    with pytest.raises(InvalidGradeError, match="no reward for an episode that was cut"):
        play(Silent, call_it, is_final=True)


class Tools:
    """An environment in the shape of TRL."""

    def reset(self, **row):
        self.reward = 0.0
        return f"Begin with {row['start']}."

    def count(self, until: int, names: list[str] | None = None) -> list[int]:
        """Count.

        Args:
            until: where to stop.
            names: of the numbers.

        Returns:
            The numbers.
        """
        self.reward += 1
        return list(range(until))

    def share(self, of: float, by: Literal["whole", "half"] = "whole", to=None) -> float:
        """Share."""
        self.reward += of
        return of / (1.0 + (by == "half"))

    def letter(self, code: int) -> str:
        """Return a letter."""
        return chr(code)

    def fail(self):
        """Raise an exception."""
        raise RuntimeError("broken")

    async def wait(self) -> str:
        """Wait."""
        return "waited"

    @property
    def secret(self):
        raise AssertionError("a property is no tool")

    def _private(self): ...


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def response(text):
    return f"<tool_response>\n{text}\n</tool_response>"


def test_public_methods_are_tools_described_by_signature_and_docstring():
    assert list(find_tools(Tools())) == ["count", "share", "letter", "fail", "wait"]

    def tool(code: Literal[b"x", "y"]): ...

    assert describe(tool)["function"]["parameters"]["properties"] == {"code": {}}
    integers = {"type": "integer", "description": "where to stop."}
    texts = {"type": "array", "items": {"type": "string"}}
    names = {"anyOf": [texts, {"type": "null"}], "description": "of the numbers."}
    assert describe(Tools().count) == {
        "type": "function",
        "function": {
            "name": "count",
            "description": "Count.",
            "parameters": {
                "type": "object",
                "properties": {"until": integers, "names": names},
                "required": ["until"],
            },
        },
    }


@pytest.mark.parametrize(
    ("reply", "responses"),
    [
        (call("count", until=2), "[0, 1]"),
        ('Let me see. <tool_call>\n{"name": "wait"}\n', "waited"),
        ('<tool_call>{"name": "count", "arguments": "{\\"until\\": 1}"}</tool_call>', "[0]"),
        (call("count", until=2).replace("arguments", "parameters"), ">\n[0, 1]\n<"),  # Llama
        ('<tool_call>{"name": "wait", "arguments": null}</tool_call>', "waited"),
        ('<tool_call>{"name": "wait", "arguments": "null"}</tool_call>', "waited"),
        ('<tool_call>{"name": "wait", "arguments": ""}</tool_call>', "waited"),
        ('<tool_call>{"function": {"name": "wait", "arguments": "{}"}}</tool_call>', "waited"),
        ('<tool_call>{"name": "count", "arguments": ["x1"]}</tool_call>', "must be a JSON object"),
        ('<tool_call>{"name": "wait", "arguments": 0}</tool_call>', "must be a JSON object"),
        (call("count", till=2), "Error: wrong arguments of count: missing a required.*'until'"),
        (
            call("count", until="5"),
            "arguments of count: 'until': Input should be a valid integer, found",
        ),
        (call("count", until=True), "'until': Input should be a valid integer, found True"),
        (
            call("count", until=1, names=[2]),
            r"'names': Input should be a valid string, found \[2\]",
        ),
        (call("count", until=1, names=None), "[0]"),
        (call("count", until=-(10**5), names=["\ud800"]), "'names': Invalid JSON"),
        (call("share", of=1), "1.0"),
        (call("share", of="1"), "of share: 'of': Input should be a valid number, found '1'"),
        (call("share", of=float("nan")), "'of': Out of range float values"),
        (call("share", of=1).replace("1}", "1e999}"), "'of': Out of range float values"),
        (call("share", of=1, by="third"), "'by': Input should be 'whole' or 'half', found 'third'"),
        (call("share", of=1, to=[{"x": [-float("inf")]}]), "'to': Out of range float values"),
        (call("share", of=1, to=0).replace("0}", f"{'[' * 5000}NaN{']' * 5000}}}"), "Error: "),
        (call("letter", code=0xD800), "<tool_response>\n?\n"),
        (call("fail"), "Error: RuntimeError: broken"),
        (call("coun", until=2), r"no tool 'coun' \(did you mean 'count'\?\); the tools are count"),
        (call("reset"), "Error: there is no tool 'reset'"),
        ("<tool_call>{'name'</tool_call>", "Error: a tool call must be a JSON object such as"),
        ("<tool_call>[]</tool_call>", "Error: a tool call must be a JSON object such as"),
        ("<tool_call>" + "[" * 100_000, "Error: a tool call must be a JSON object such as"),
    ],
)
def test_the_model_is_told_the_result_of_a_call_or_what_is_wrong_with_it(reply, responses):
    answer = play(Tools, reply, start=1)
    assert answer.startswith("<tool_response>\n")
    assert responses in answer or re.search(responses, answer)


class Place(TypedDict):
    """A kind of pydantic's own `typing_extensions` alone, on Python 3.11."""

    x: int


class Map:
    reward = 1.0

    def reset(self): ...

    def look(self, place: Place):
        """Look at a place."""
        return place["x"]


def test_an_argument_of_a_kind_that_pydantic_refuses_may_be_any_json():
    assert "3" in str(play(Map, call("look", place={"x": 3})))


def test_a_reply_may_hold_several_calls():
    replies = call("count", until=1) + call("wait")
    assert play(Tools, replies, start=1) == f"{response('[0]')}\n{response('waited')}"


TAGGED = '{"name": "say", "arguments": {"text": "a </tool_call> b <tool_call> c"}}'


@pytest.mark.parametrize(
    ("reply", "calls"),
    [
        (f"<tool_call>{TAGGED}</tool_call>", [TAGGED]),
        (f"Well.<tool_call>\n {TAGGED} \n</tool_call>Then.", [TAGGED]),
        (f"<tool_call>{TAGGED}</tool_call>\n<tool_call>{TAGGED}", [TAGGED, TAGGED]),
        (f"<tool_call>{TAGGED}<tool_call>[]</tool_call>", [TAGGED, "[]"]),
        (f"<tool_call>{TAGGED} and more</tool_call>", [f"{TAGGED} and more"]),
        ('<tool_call>{"a": </tool_call>", "b": 1}</tool_call>', ['{"a":']),
        ('<tool_call>{"a": "cut </tool_call>', ['{"a": "cut']),
        ("<tool_call></tool_call><tool_call> ", ["", ""]),
        ("</tool_call>none", []),
    ],
)
def test_a_call_ends_at_the_first_tag_after_its_json(reply, calls):
    assert find_calls(reply) == calls


def test_the_end_of_a_call_is_not_looked_for_beyond_the_next_one():
    class Reply(str):
        read = 0

        def find(self, *arguments):
            place = super().find(*arguments)
            Reply.read += (len(self) if place < 0 else place) - arguments[1]
            return place

    reply = Reply("<tool_call>" * 1000)
    assert find_calls(reply) == [""] * 1000
    assert Reply.read <= len(reply)


def test_a_reply_without_a_call_ends_the_episode_and_the_attribute_is_the_reward():
    assert play(Tools, start=1) == "Begin with 1."
    assert play(Tools, call("count", until=2), "Done.", start=1) == {"reward": 1.0}


def test_tools_without_a_reward_are_an_error():
    class Mine:
        def reset(self): ...

        def tool(self): ...

    with pytest.raises(InvalidGradeError, match=r"method get_reward\(\)"):
        play(Mine, "Done.")
