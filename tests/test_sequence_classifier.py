"""Sequence classifiers as scorers: what they read, and scores that do not depend on the batch."""

import json
import re
from contextlib import contextmanager
from math import isnan

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import germline
from germline.config import load_config
from germline.config.scorers import Classifier, ClassifierSettings
from germline.engines.http_client import HttpConnection, RequestRefused
from germline.graders.fuzz_texts import HOSTILE
from germline.scorers.sequence_classifier import SequenceClassifier
from germline.services.scorer import scorer_service
from germline.types import Example, GermlineError
from tests.hang_limit import HANG_S
from tests.tiny import save_tiny
from tests.tiny_classifiers import save_classifier, save_pku_model
from tests.toy_runs import finish, settings

SUM = Example(0, "What is 1 + 2?", "3", chat=True)
TEXTS = ["3", "", "the answer is three", "user " * 20, "fox", "a b c d e f g h i j k l m n o"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_classifier(tmp_path_factory.mktemp("classifier"))


def classifier(folder, **section):
    settings = ClassifierSettings(**section)
    return SequenceClassifier(str(folder), settings, lambda name: f"task.scorers.good.{name}")


def direct(folder, ids):
    """Score token ids by the library alone, in a batch of one without padding."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    model.config.pad_token_id = -1  # no token of the text is padding
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids])).logits[0].tolist()


def score(model, *texts):
    return model.score_ids([model.encode_pair((text, SUM)) for text in texts])


@pytest.mark.parametrize("family", ["qwen2", "llama", "bert"])
def test_a_score_is_that_of_the_model_on_the_text_alone(tmp_path, family):
    save_classifier(tmp_path, family)
    words = AutoTokenizer.from_pretrained(tmp_path)
    (found,) = score(classifier(tmp_path), "three")
    (expected,) = direct(tmp_path, words("What is 1 + 2?\nthree")["input_ids"])
    assert found.value == pytest.approx(expected, abs=1e-5)
    assert found.missing is None


def test_scores_do_not_depend_on_the_texts_beside_them(folder, monkeypatch):
    model = classifier(folder, batch_size=4)
    forward, shapes = model._model.forward, []

    def watched(**inputs):
        shapes.append(tuple(inputs["input_ids"].shape))
        return forward(**inputs)

    monkeypatch.setattr(model._model, "forward", watched)
    together = score(model, *TEXTS)
    alone = [score(model, text)[0] for text in TEXTS]
    assert together == alone
    assert len({one.value for one in alone}) == len(TEXTS)
    assert score(model, *reversed(TEXTS)) == alone[::-1]
    assert {rows for rows, _ in shapes} == {4}  # because of shapes that a text alone decides
    assert {length for _, length in shapes} <= {32, 64, 128}


def test_a_text_that_ends_with_the_padding_token_is_read_to_its_end(folder):
    model = classifier(folder)
    pad = AutoTokenizer.from_pretrained(folder).pad_token_id
    ids = [*model.encode_text("fox"), pad]
    (found,) = model.score_ids([ids])
    assert found.value == pytest.approx(direct(folder, ids)[0], abs=1e-5)


def test_a_text_that_is_too_long_is_truncated_and_the_log_says_so_once(folder, caplog):
    model = classifier(folder, max_tokens=40)
    long, longer, _ = score(model, "fox " * 100, "fox " * 200, "fox")
    assert caplog.messages == [f"{folder}: texts of more than 40 tokens are cut"]
    assert long.value == longer.value
    assert len(model.encode_text("fox " * 100)) == 40
    assert len(classifier(folder).encode_text("fox " * 1000)) == 128  # the model's context


def test_a_conversation_is_written_in_the_chat_template_of_the_model(tmp_path):
    save_classifier(tmp_path, chat=True)
    words = AutoTokenizer.from_pretrained(tmp_path)
    model = classifier(tmp_path)
    asked = Example(0, "b", "", chat=True, context=(("user", "a"), ("assistant", "x")))
    messages = [
        *({"role": role, "content": content} for role, content in asked.context),
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
    ]
    expected = words(words.apply_chat_template(messages, tokenize=False))["input_ids"]
    assert model.encode_pair(("c", asked)) == expected
    lines = classifier(tmp_path, template="lines").encode_pair(("c", asked))
    assert words.decode(lines) == "a\nx\nb\nc"


def test_a_chat_template_that_reads_the_clock_gives_the_same_score_on_every_day(tmp_path):
    save_classifier(tmp_path, chat=True)
    template = "{{ strftime_now('%d %b %Y') }} {{ messages[-1]['content'] }}"
    (tmp_path / "chat_template.jinja").write_text(template)
    model = classifier(tmp_path)
    expected = model.encode_text("26 Jul 2024 c", add_special_tokens=False)
    assert model.encode_pair(("c", Example(0, "b", "", chat=True))) == expected


def test_a_model_of_several_classes_needs_to_be_told_which(tmp_path):
    save_classifier(tmp_path, labels=3)
    for wrong in (None, "LABEL_9"):
        with pytest.raises(GermlineError, match=rf"label={wrong}: .* 3 classes.* 0 \(LABEL_0\)"):
            classifier(tmp_path, label=wrong)
    logits = torch.tensor(direct(tmp_path, classifier(tmp_path, label=0).encode_text("fox")))
    for label in (2, "LABEL_2"):
        model = classifier(tmp_path, label=label, output="probability")
        (found,) = model.score_ids([model.encode_text("fox")])
        assert found.value == pytest.approx(float(logits.softmax(-1)[2]), abs=1e-5)


def test_reward_models_of_pku_are_read_with_their_head_and_text(tmp_path):
    save_pku_model(tmp_path / "pku", bias=0.5)
    save_classifier(tmp_path / "plain", "llama")
    words = AutoTokenizer.from_pretrained(tmp_path / "pku")
    model = classifier(tmp_path / "pku", template="pku")
    text = "BEGINNING OF CONVERSATION: USER: What is 1 + 2? ASSISTANT:three"
    ids = [*words(text)["input_ids"], words.eos_token_id]
    assert model.encode_pair(("three", SUM)) == ids
    (found,) = score(model, "three")
    assert found.value == pytest.approx(direct(tmp_path / "plain", ids)[0] + 0.5, abs=1e-5)


def test_what_is_no_classifier_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for source, problem in {
        save_tiny(tmp_path / "tiny"): r"does not hold score\.weight: it is no sequence",
        "no such model": r"is no folder in .*OWNER/NAME",
        tmp_path / "empty": "cannot be loaded",
    }.items():
        with pytest.raises(GermlineError, match=rf"task\.scorers\.good\.model: .*{problem}"):
            classifier(source)


def test_hostile_texts_are_scored(folder):
    scorer = SequenceClassifier.from_config(Classifier(model=str(folder)), "good")
    assert not any(isnan(one.value) for one in scorer.score([(text, SUM) for text in HOSTILE]))


def test_a_run_on_a_classifier_is_resumed_from_another_folder(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder.parent)
    section = {"kind": "classifier", "model": folder.name, "max_tokens": 20}
    config = settings(f"task.scorers.good={json.dumps(section)}", "generations=2")
    finish(germline.train(config, tmp_path / "run"))
    lines = (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert all("good" in row["parts"] for row in rows)
    recorded = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert recorded["task"]["scorers"]["good"]["model"] == str(folder)
    assert load_config(tmp_path / "run").task.scorers["good"].weight == 1.0


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
            sources, ClassifierSettings(batch_size=4, **(classifier or {})), port=0, **more
        ) as server,
        server.in_background() as url,
    ):
        yield HttpConnection("the scorer", url, HANG_S, retry_timeout_s=HANG_S)


def of_the_models(source, responses=RESPONSES, prompts=PROMPTS):
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
    assert scored["rewards"] == of_the_models(sources["reward"])
    assert scored["costs"] == of_the_models(sources["cost"])
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
        (cost,) = of_the_models(sources["cost"], [row["completion"]], [row["prompt"]])
        assert row["parts"]["harm"] == cost


def test_a_model_that_the_service_lacks_is_named(sources, tmp_path):
    with (
        serving({"cost": sources["cost"]}) as service,
        pytest.raises(GermlineError, match=r"has no rewards: start it with --reward MODEL"),
    ):
        germline.train(scored(service.url), tmp_path / "run")
