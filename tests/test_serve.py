"""`germline serve` with the official `openai` client, against the engine called directly."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from openai import AsyncOpenAI, NotFoundError, OpenAI

import germline
from germline.record import RunDirectory
from germline.run.weights import load_engine
from germline.services.serve import ServedWeights, endpoint
from germline.types import Completion, Decoding, Example
from tests.serving import chat, serving, text_of

MEMBERS = 16
QUESTIONS = (
    "What is the capital of France?",
    "What is 3 plus 4?",
    "What is 12 plus 30?",
    "What is the opposite of hot?",
)
CONFIG = {
    "task": "conciseness",
    "space": {"kind": "low_rank", "rank": 1},
    "strategy": {"population": MEMBERS, "sigma": 0.05, "learning_rate": 0.05},
    "generations": 2,
    "batch_size": 2,
    "held_out": {"examples": 2, "every": 100},
    "record": {"tensorboard": False},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve") / "run"
    germline.train(CONFIG, folder).run()
    return folder


@pytest.fixture(scope="module")
def url(trained):
    with serving(trained) as address:
        yield address


@pytest.fixture
def client(url):
    with OpenAI(base_url=url, api_key="none", max_retries=0) as opened:
        yield opened


def test_greedy_answers_and_texts_are_those_of_germline_generate(client, trained):
    expected = germline.generate(str(trained), QUESTIONS, max_new_tokens=24)
    for question, completion in zip(QUESTIONS, expected, strict=True):
        response = chat(client, question)
        assert text_of(response) == completion.text
        assert response.usage.prompt_tokens == completion.prompt_tokens
        assert response.usage.completion_tokens == len(completion.tokens)
        assert response.choices[0].finish_reason == "stop"
        assert response.model == "center"
    prompts = ["The capital of", "3 plus 4 is"]
    expected = germline.generate(str(trained), prompts, chat=False, max_new_tokens=8)
    response = client.completions.create(
        model="center", prompt=prompts, temperature=0, max_tokens=8
    )
    assert [choice.text for choice in response.choices] == [one.text for one in expected]
    assert [choice.index for choice in response.choices] == [0, 1]


@pytest.mark.parametrize(("name", "generation"), [("base", -1), ("gen-0", 0), ("gen-1", 1)])
def test_a_generation_answers_with_its_own_weights(client, trained, name, generation):
    directory = RunDirectory.open(trained)
    engine = load_engine(directory, generation=generation)
    example = Example(0, QUESTIONS[0], "", chat=True)
    response = chat(client, QUESTIONS[0], name)
    assert text_of(response) == engine.generate([None], [example], Decoding(24))[0][0].text
    assert response.system_fingerprint == engine.weights.digest()


def test_models_are_listed_and_named(client):
    listed = [model.id for model in client.models.list()]
    assert listed == ["base", "center", "gen-0", "gen-1"]
    assert client.models.retrieve("gen-1/member-3").id == "gen-1/member-3"
    with pytest.raises(NotFoundError, match="gen-0/member-0 to gen-1/member-15"):
        client.models.retrieve("gen-1/member-16")
    with pytest.raises(NotFoundError, match="base, center, gen-0 to gen-1"):
        chat(client, "hello", "gpt-5")


def test_members_of_64_clients_get_their_own_texts_in_few_batches(trained, monkeypatch):
    weights = ServedWeights.open(str(trained))
    names = [f"gen-1/member-{number}" for number in range(MEMBERS)]
    examples = [Example(0, question, "", chat=True) for question in QUESTIONS]
    weights.load(weights.select(names[0]))
    members = [weights.select(name).member for name in names]
    expected = weights.engine.generate(members, examples, Decoding(24))
    assert len({tuple(one.text for one in row) for row in expected}) > MEMBERS // 2

    batches = []
    with endpoint(str(trained), port=0) as (server, served):
        load = served.load

        def watched(selected):
            batches.append(selected)
            load(selected)

        monkeypatch.setattr(served, "load", watched)
        with server.in_background() as address:

            async def ask_all():
                async with AsyncOpenAI(base_url=f"{address}/v1", api_key="none") as client:
                    return await asyncio.gather(
                        *(chat(client, question, name) for question in QUESTIONS for name in names)
                    )

            responses = iter(asyncio.run(ask_all()))
    for place in range(len(QUESTIONS)):
        for row in expected:
            response = next(responses)
            assert text_of(response) == row[place].text
            assert response.choices[0].finish_reason in ("stop", "length")
    assert len(batches) < 32


def test_an_echoed_prompt_of_token_ids_is_scored_as_lm_eval_asks_for_it(client, trained):
    engine: Any = load_engine(RunDirectory.open(trained))
    text = "The capital of France is Paris."
    ids = engine.encoder.encode(Example(0, text, "", chat=False))
    common = {"model": "center", "temperature": 0, "max_tokens": 1, "logprobs": 1, "echo": True}
    response = client.completions.create(prompt=[ids, ids[:1]], **common)
    of_text, single = response.choices
    first = Example(0, "", "", chat=False, token_ids=tuple(ids[:1]))
    rest = Completion("", tuple(ids[1:]), "length", 1)
    expected = engine.log_probabilities([None], [first], [[rest]])[0][0]
    assert of_text.logprobs.token_logprobs[0] is None
    assert of_text.logprobs.token_logprobs[1:-1] == pytest.approx(expected, abs=1e-5)
    assert "".join(of_text.logprobs.tokens[:-1]) == text
    assert of_text.text.startswith(text)
    offsets = of_text.logprobs.text_offset
    assert [of_text.text[begin:end] for begin, end in pairwise(offsets)] == (
        of_text.logprobs.tokens[:-1]
    )
    assert of_text.logprobs.top_logprobs[0] is None
    pairs = zip(of_text.logprobs.token_logprobs, of_text.logprobs.top_logprobs, strict=True)
    for logprob, top in list(pairs)[1:]:
        assert logprob in top.values()
        assert max(top.values()) >= logprob
    assert len(single.logprobs.tokens) == 2
    again = client.completions.create(prompt=text, **common).choices[0]
    assert again.text == of_text.text
    assert again.logprobs.token_logprobs[1:] == pytest.approx(
        of_text.logprobs.token_logprobs[1:], abs=1e-5
    )
    more = {"max_tokens": 0, "logprobs": 0}  # a prompt may be scored without a completion
    (alone,) = client.completions.create(prompt=text, **common | more).choices
    assert (alone.text, alone.logprobs.top_logprobs) == (text, [None] * len(alone.logprobs.tokens))


def sample(client, **more):
    response = chat(client, "Tell me a story.", temperature=1.5, **more)
    return [choice.message.content for choice in response.choices]


def test_a_seed_repeats_its_texts_and_choices_differ(client):
    first = sample(client, seed=7, n=4)
    assert sample(client, seed=7, n=4) == first
    assert sample(client, seed=7) == first[:1]
    assert len(set(first)) > 1
    assert sample(client, seed=8, n=4) != first
    assert sample(client, n=4) != sample(client, n=4)
    assert sample(client, seed=7, n=4, top_p=0) != first
    common = {"model": "center", "temperature": 1.5, "seed": 7, "max_tokens": 12}
    prompts = ["Tell me a st"] * 4  # equal prompts of one request have noise of their own
    texts = [one.text for one in client.completions.create(prompt=prompts, **common).choices]
    assert len(set(texts)) > 1
    (alone,) = client.completions.create(prompt=prompts[:1], **common).choices
    assert alone.text == texts[0]


def test_greedy_choices_are_the_same_text_and_short_ones_its_beginning(client, trained):
    whole = chat(client, QUESTIONS[0])
    response = chat(client, QUESTIONS[0], n=3)
    assert [choice.index for choice in response.choices] == [0, 1, 2]
    assert {choice.message.content for choice in response.choices} == {text_of(whole)}
    assert response.usage.prompt_tokens == whole.usage.prompt_tokens
    for asked in (1, 5):
        expected = germline.generate(str(trained), QUESTIONS[:1], max_new_tokens=asked)[0]
        response = chat(client, QUESTIONS[0], max_completion_tokens=asked)
        assert text_of(response) == expected.text
        assert response.choices[0].finish_reason == "length"
        assert response.usage.completion_tokens == asked


def test_a_stop_string_ends_a_text_and_is_not_part_of_it(client):
    whole = text_of(chat(client, QUESTIONS[0]))
    stop = whole[4:7]
    response = chat(client, QUESTIONS[0], stop=[stop, "never written"])
    assert text_of(response) == whole[: whole.index(stop)]
    assert response.choices[0].finish_reason == "stop"
    assert text_of(chat(client, QUESTIONS[0], stop=stop)) == text_of(response)


def test_a_streamed_answer_is_the_same_answer(client):
    whole = chat(client, QUESTIONS[0])
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = chat(client, QUESTIONS[0], **options)
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(deltas) == text_of(whole)
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert last.choices == []
    assert last.usage.total_tokens == whole.usage.total_tokens
    assert {chunk.system_fingerprint for chunk in chunks} == {whole.system_fingerprint}
    streamed = client.completions.create(
        model="center", prompt="The", temperature=0, max_tokens=4, stream=True
    )
    plain = client.completions.create(model="center", prompt="The", temperature=0, max_tokens=4)
    assert "".join(chunk.choices[0].text for chunk in streamed) == plain.choices[0].text


def test_fields_that_change_nothing_are_accepted(client):
    response = chat(client, "word " * 400, max_tokens=None, temperature=1.9, seed=1)
    assert response.usage.total_tokens <= 512  # at most, the answer fills the context
    fields = {
        "user": "me",
        "metadata": {"a": "b"},
        "presence_penalty": 0,
        "tools": [],
        "response_format": {"type": "text"},
        "extra_body": {"top_k": -1, "ignore_eos": False, "best_of": 1, "guided_regex": None},
    }
    assert text_of(chat(client, QUESTIONS[0], **fields)) == text_of(chat(client, QUESTIONS[0]))
