"""The service `germline serve --reward`: scores, batches, and wrong requests."""

import json
import re
from contextlib import contextmanager

import pytest

import germline
from germline.config.scorers import ClassifierSettings
from germline.engines.http_client import HttpConnection, RequestRefused
from germline.scorers.sequence_classifier import SequenceClassifier
from germline.services.scorer import scorer_service
from germline.types import Example, GermlineError
from tests.hang_limit import HANG_S
from tests.tiny_classifiers import save_classifier
from tests.toy_runs import finish, settings

PROMPTS = ["What is 1 + 2?", "Of France?"]
RESPONSES = ["three", "Paris " * 3]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scorers")
    for seed, role in enumerate(("reward", "cost")):
        save_classifier(folder / role, seed=seed)
    return {role: str(folder / role) for role in ("reward", "cost")}


def batch(*responses):
    return {"prompts": ["a"] * len(responses), "responses": list(responses)}


@contextmanager
def serving(sources, classifier=None, **more):
    with (
        scorer_service(
            sources,
            ClassifierSettings(batch_size=4, **(classifier or {})),
            port=0,
            **more,
        ) as server,
        server.in_background() as url,
    ):
        yield HttpConnection("the scorer", url, HANG_S, retry_timeout_s=HANG_S)


def direct(source, responses=RESPONSES, prompts=PROMPTS):
    model = SequenceClassifier(source, ClassifierSettings(batch_size=4), str)
    items = [
        (response, Example(0, prompt, "", chat=True))
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    return [score.value for score in model.score(items)]


def test_rewards_and_costs_are_those_of_the_models(sources):
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    with serving(sources) as service:
        scored = service.post("/score_batch", {"prompts": PROMPTS, "responses": RESPONSES})
        assert service.get("/health") == {"status": "ok", "models": sources}
        nothing = service.post("/score_batch", batch())
        chat = service.post("/score_batch", {"prompts": [messages], "responses": ["c"]})
        assert chat == service.post("/score_batch", {"prompts": ["a\nb"], "responses": ["c"]})
    assert scored["rewards"] == direct(sources["reward"])
    assert scored["costs"] == direct(sources["cost"])
    assert scored["costs_missing"] == [None, None]
    assert (nothing["rewards"], nothing["costs"]) == ([], [])


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/score_batch", {"prompts": ["a"], "responses": []}, 400, "1 prompts and 0 responses"),
        ("/score_batch", {"prompts": ["a"]}, 400, "responses: Field required"),
        ("/score_batch", {"prompts": [[]], "responses": ["a"]}, 400, "prompts"),
        ("/score_batch", batch() | {"responses": "a"}, 400, "responses: Input should be a valid l"),
        ("/score_batch", batch(None), 400, "responses.0: Input should be a valid string"),
        ("/score_batch", batch("a") | {"more": 1}, 400, "more: Extra inputs"),
        ("/score", {}, 404, "Not Found"),
    ],
)
def test_a_wrong_request_is_refused_and_says_why(sources, path, body, status, message):
    with (
        serving(sources) as service,
        pytest.raises(RequestRefused, match=re.escape(message)) as refused,
    ):
        service.post(path, body)
    assert refused.value.status == status


def scored(url, *overrides, **more):
    section = {"kind": "germline", "url": url, "timeout_s": HANG_S, "retry_timeout_s": HANG_S}
    return settings(f"task.scorers.harm={json.dumps(section | more)}", *overrides)


def test_a_run_scores_its_completions_by_the_service(sources, tmp_path):
    with serving(sources) as service:
        config = scored(service.url, "generations=1", output="cost", weight=-1)
        finish(germline.train(config, tmp_path / "run"))
    rows = [json.loads(line) for line in (tmp_path / "run/rollouts.jsonl").read_text().splitlines()]
    assert rows
    for row in rows:
        (cost,) = direct(sources["cost"], [row["completion"]], [row["prompt"]])
        assert row["parts"]["harm"] == cost


def test_a_model_that_the_service_lacks_is_named(sources, tmp_path):
    with (
        serving({"cost": sources["cost"]}) as service,
        pytest.raises(GermlineError, match=r"has no rewards: start it with --reward MODEL"),
    ):
        germline.train(scored(service.url), tmp_path / "run")
