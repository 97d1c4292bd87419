"""The thread that owns the engine: batches, the queue, cancelled rows, failures."""

import threading
from dataclasses import replace

import pytest

from germline.endpoint.engine_batcher import EngineBatcher
from germline.endpoint.http_app import RequestError
from germline.endpoint.row_generator import generate_rows
from germline.endpoint.rows import RowRequest, SelectedWeights
from germline.services.serve import ServedWeights
from germline.types import Decoding, EngineLost, Example, GermlineError, SeedPerturbation
from tests.hang_limit import HANG_S, wait_until
from tests.tiny_engines import SPACES, inprocess
from tests.toy_runs import run

GREEDY = Decoding(64)
MEMBERS = [None, *(SeedPerturbation(0, 0, number, 1, 0.3) for number in range(3))]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run(tmp_path_factory.mktemp("batcher") / "run", "generations=2")


class WatchedBatcher(EngineBatcher):
    """Notes its batches, and waits before each one until it may go on."""

    def __init__(self, weights, **limits):
        self.batches = []
        self.reached = threading.Semaphore(0)
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.failure = None
        super().__init__(weights, **{"max_rows": 100} | limits)
        self._generate = self._generator.generate
        setattr(self._generator, "generate", self._watched)  # noqa: B010 - a method, to mypy

    def _watched(self, batch):
        self.batches.append([row.example.prompt for row in batch])
        self.reached.release()
        assert self.may_go_on.wait(HANG_S)
        if self.failure:
            raise self.failure
        return self._generate(batch)

    def hold(self):
        """Let the thread wait in a batch of one row, so that others gather."""
        self.may_go_on.clear()
        while self.reached.acquire(blocking=False):
            pass  # batches of tests before this one
        held = self.submit([request("held", generation=self._weights.select("center").generation)])
        assert self.reached.acquire(timeout=HANG_S)
        return held

    def drained(self):
        """Wait until no row is left."""
        wait_until(lambda: not self.rows)


@pytest.fixture
def batcher(trained):
    made = WatchedBatcher(ServedWeights.open(str(trained)))
    yield made
    made.may_go_on.set()
    made.close()


def request(prompt="!", decoding=GREEDY, longest=4, generation=1, member=None):
    example = Example(0, prompt, "", chat=False)
    return RowRequest(SelectedWeights(generation, member, ""), example, decoding, longest)


def results(futures):
    return [future.result(timeout=HANG_S) for future in futures]


def failure_of(future):
    error = future.exception(timeout=HANG_S)
    assert isinstance(error, RequestError)
    return error


SAMPLED = replace(GREEDY, temperature=0.5)


@pytest.mark.parametrize(
    ("others", "batches"),
    [
        ([request("other", member=MEMBERS[1])], ["a b other"]),
        ([request("other", decoding=replace(GREEDY, top_p=0.5))], ["a b other"]),
        ([request("other", generation=0)], ["a b", "other"]),
        ([request("other", decoding=replace(GREEDY, stop=("x",)))], ["a b", "other"]),
        ([request("other", longest=5)], ["a b", "other"]),
        ([request("c", SAMPLED), request("d", replace(SAMPLED, top_p=0.5))], ["a b", "c", "d"]),
        ([request("c", SAMPLED), request("d", SAMPLED)], ["a b", "c d"]),
        ([request(name) for name in "cdefg"], ["a c d e", "b f g"]),
    ],
)
def test_rows_that_can_be_generated_together_are_one_batch(trained, others, batches):
    batcher = WatchedBatcher(ServedWeights.open(str(trained)), max_rows=4)
    batcher.hold()
    futures = batcher.submit([request("a"), *others[:-1], request("b"), others[-1]])
    batcher.may_go_on.set()
    results(futures)
    in_order = [" ".join(sorted(batch)) for batch in batcher.batches]
    assert in_order == ["held", *batches]
    batcher.close()


def test_a_cancelled_row_leaves_the_queue(trained):
    batcher = WatchedBatcher(ServedWeights.open(str(trained)))
    batcher.hold()
    waiting = batcher.submit([request("a"), request("b")])
    assert waiting[0].cancel()
    batcher.may_go_on.set()
    results(waiting[1:])
    assert batcher.batches == [["held"], ["b"]]
    batcher.drained()
    batcher.close()


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (EngineLost("the server is gone"), 503, "engine_lost"),
        (GermlineError("out of memory"), 500, None),
        (ZeroDivisionError(), 500, None),
    ],
)
def test_a_batch_that_fails_fails_its_rows_and_no_others(batcher, failure, status, code):
    batcher.failure = failure
    errors = [failure_of(future) for future in batcher.submit([request("a"), request("b")])]
    assert [(error.status_code, error.code) for error in errors] == [(status, code)] * 2
    batcher.failure = None
    assert results(batcher.submit([request("c")]))
    assert batcher.is_alive
    batcher.drained()


def test_closing_ends_the_rows_that_wait(trained):
    batcher = WatchedBatcher(ServedWeights.open(str(trained)))
    (held,) = batcher.hold()
    (waiting,) = batcher.submit([request("a")])
    closing = threading.Thread(target=batcher.close)
    closing.start()
    batcher.may_go_on.set()
    closing.join()
    assert held.result()
    assert waiting.cancelled()
    with pytest.raises(RequestError, match="closing"):
        batcher.submit([request("b")])


@pytest.fixture(scope="module")
def of_nano():
    batcher = WatchedBatcher(ServedWeights.open("nano"))
    yield batcher
    batcher.close()


def test_a_row_that_does_not_fit_the_context_is_refused_alone(of_nano):
    row = request(longest=12, generation=-1)
    full = replace(row, example=replace(row.example, token_ids=(5,) * 500))
    none_left = replace(row.example, token_ids=(5,) * 512)
    refused = [
        replace(full, max_new_tokens=13),
        replace(row, example=none_left, max_new_tokens=None),
    ]
    fits, *errors = of_nano.submit([full, *refused])
    assert results([fits])
    for error in map(failure_of, errors):
        assert (error.status_code, error.code) == (400, "context_length_exceeded")


def test_a_tokenizer_that_fails_fails_its_row_and_no_others(of_nano, monkeypatch):
    encoder = of_nano._weights.engine.encoder

    def broken(_example):
        raise TypeError

    with monkeypatch.context() as patched:
        patched.setattr(encoder, "encode", broken)
        error = failure_of(of_nano.submit([request(generation=-1)])[0])
    assert error.status_code == 500
    assert results(of_nano.submit([request("text", generation=-1)]))
    assert not any("text" in str(key) for key in encoder._encoded)  # prompts are not kept


def rows_of(*counts, shared=True):
    """Return rows of some members: so many each, with the same prompts or different ones."""
    return [
        (member, Example(0, f"What is {number} + {0 if shared else place} fox?", "", chat=False))
        for place, (member, count) in enumerate(zip(MEMBERS, counts, strict=False))
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("rows", "calls"),
    [
        (rows_of(2, 2, 2), ["generate 3 x 2"]),
        (list(reversed(rows_of(2, 2, 2))), ["generate 3 x 2"]),
        (rows_of(2, 3, 2), ["converse 3 x 3"]),
        (rows_of(2, 2, 2, shared=False), ["converse 3 x 2"]),
        (rows_of(1, 2, 8, 9), ["converse 1 x 1", "converse 1 x 2", "converse 2 x 9"]),
    ],
)
def test_rows_are_generated_in_few_batches_with_the_texts_of_their_own(rows, calls, monkeypatch):
    engine = inprocess("qwen2", SPACES["rank 1"])
    decoding = Decoding(6)
    expected = [engine.generate([member], [one], decoding)[0][0] for member, one in rows]
    assert len({completion.text for completion in expected}) > 1
    made = []
    generate, converse = engine.generate, engine.converse

    def watched_generate(members, examples, decoding):
        made.append(f"generate {len(members)} x {len(examples)}")
        return generate(members, examples, decoding)

    def watched_converse(members, prompts, *rest):
        made.append(f"converse {len(members)} x {max(map(len, prompts))}")
        return converse(members, prompts, *rest)

    monkeypatch.setattr(engine, "generate", watched_generate)
    monkeypatch.setattr(engine, "converse", watched_converse)
    assert generate_rows(engine, rows, decoding) == expected
    assert made == calls
