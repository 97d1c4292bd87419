"""A real SGLang server: started and ended, shared between engines, left changed, and lost."""

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from germline.config import load_config
from germline.engines.http_client import RequestRefused
from germline.engines.sglang.engine import VERSION_PREFIX
from germline.run.build_parts import make_engine
from germline.types import Decoding, EngineLost, Example, GermlineError, SeedPerturbation, Update
from tests.engines_real.recordings import interpreter
from tests.tiny_engines import folder

SPACE = {"kind": "low_rank", "rank": 2}
MEMBERS = [
    SeedPerturbation(7, 0, direction, sign, 0.02) for direction in (0, 1, 2) for sign in (1, -1)
]
EXAMPLES = [Example(k, f"What is {k} + 4?", "", chat=True) for k in range(4)]
DECODING = Decoding(max_new_tokens=12)
UPDATE = Update(7, 0, 0.02, 0.5, (0.3, -0.2, 0.1))


def config(engine, space=SPACE, model="nano"):
    return load_config({"model": model, "space": space, "engine": engine})


@pytest.fixture(scope="module")
def own():
    """An engine with a server of its own, which evaluates three members in one batch."""
    section = {"python": interpreter("sglang"), "threads": 1, "adapters": 3}
    engine = make_engine(config({"kind": "sglang", "launch": True, **section}))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def here():
    return make_engine(config({"kind": "inprocess", "threads": 1}))


@pytest.fixture
def beside(own):
    """Make further engines on the server of `own`, as on a user's."""

    def make(space=SPACE, model="nano", *, searched=True):
        url = own._client.connection.url
        found = config({"kind": "sglang", "base_url": url}, space, model)
        return make_engine(found, searched=searched)

    return make


def test_more_members_than_slots_generate_the_same_as_inprocess(own, here):
    members = [None, *MEMBERS]
    expected = here.generate(members, EXAMPLES, DECODING)
    assert own.generate(members, EXAMPLES, DECODING) == expected


def test_members_score_texts_as_inprocess_does(own, here):
    members = [None, *MEMBERS]
    written = here.generate([None] * len(members), EXAMPLES, DECODING)
    found, expected = (one.log_probabilities(members, EXAMPLES, written) for one in (own, here))
    for row, other in zip(found, expected, strict=True):
        for scores, same in zip(row, other, strict=True):
            assert scores == pytest.approx(same, abs=1e-3)
    # The texts are the same for all: members differ in their weights alone.
    assert len({scores[0] for row in found for scores in row[:1]}) == len(members)


def test_no_adapter_is_left_loaded(own):
    answer = own._client.connection.get("/v1/models")
    assert [one["id"] for one in answer["data"] if one["id"].startswith(VERSION_PREFIX)] == []


def test_an_engine_that_closes_leaves_a_server_as_it_was(own, here, beside):
    with closing(beside()) as writing:
        writing.apply(UPDATE)
        moved = writing.generate([None], EXAMPLES, DECODING)
    with closing(beside(searched=False)) as reading:
        found = reading.generate([None], EXAMPLES, DECODING)
    assert found == here.generate([None], EXAMPLES, DECODING) != moved


def test_the_weights_of_a_killed_run_are_replaced_by_the_next_run(here, beside):
    killed = beside({"kind": "full"})
    killed.generate(MEMBERS[:1], EXAMPLES, DECODING)
    with closing(beside(searched=False)) as engine:
        found = engine.generate([None], EXAMPLES, DECODING)
    assert found == here.generate([None], EXAMPLES, DECODING)


def test_a_run_whose_weights_were_overwritten_writes_and_evaluates_again(own, here, beside):
    expected = here.generate(MEMBERS, EXAMPLES, DECODING)
    own.generate([None], EXAMPLES, DECODING)
    with closing(beside()) as other:
        other.apply(UPDATE)
        other.generate([None], EXAMPLES, DECODING)
        assert own.generate(MEMBERS, EXAMPLES, DECODING) == expected


def test_a_cache_that_is_kept_across_weights_changes_outputs(own, beside, monkeypatch):
    """Mistake 15: the same prompt after an update, with and without the old prefix cache."""

    def answers(flushes):
        with closing(beside()) as engine:
            engine.generate([None], EXAMPLES, DECODING)
            original = engine._client.connection.post

            def post(path, body):
                changed = {"flush_cache": flushes} if "flush_cache" in body else {}
                return original(path, {**body, **changed})

            monkeypatch.setattr(engine._client.connection, "post", post)
            engine.apply(UPDATE)
            found = engine.generate([None], EXAMPLES, DECODING)
            monkeypatch.undo()
            return found

    kept, flushed = answers(flushes=False), answers(flushes=True)
    assert kept != flushed


@pytest.mark.parametrize("kind", ["low_rank", "lora"])
def test_adapters_above_the_server_s_rank_are_refused(beside, kind):
    with (
        closing(beside({"kind": kind, "rank": 4})) as engine,
        pytest.raises(GermlineError, match=r"Start the server with .* --max-lora-rank 4"),
    ):
        engine.generate(MEMBERS[:1], EXAMPLES, DECODING)


def test_another_model_than_the_server_has_is_refused(beside):
    with pytest.raises(GermlineError, match="with other weights than model="):
        beside(model=str(folder("qwen2")))


def test_a_refusal_has_the_server_s_reason(own):
    with pytest.raises(RequestRefused, match="longer than the model's context length"):
        own._client.connection.post("/generate", {"input_ids": [[5] * 600]})


def test_a_server_that_dies_is_a_lost_engine_with_its_last_output(own):
    """The last test here: there is no server after it."""
    guard = own._launched._watchdog.pid
    (process,) = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
    os.killpg(int(process), signal.SIGKILL)
    with pytest.raises(EngineLost, match=r"ended with status 137; a resumed run starts another"):
        own.generate([None], EXAMPLES, DECODING)
