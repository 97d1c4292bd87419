"""Tasks made of a JSONL file: prompts, answers, rubrics and splits, and what a bad file is told."""

import json

import pytest

from germline.config import load_config
from germline.tasks import make_task
from germline.types import GermlineError

ROW = {"question": "What is 3 + 5?", "answer": 8}
OTHER = {"question": "What is 1 + 1?", "answer": 2}


def written(folder, *rows, name="rows.jsonl"):
    path = folder / name
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text(text, encoding="utf-8")
    return path


def many(**fields):
    return [{"prompt": f"{n}?", "answer": n, **fields} for n in range(10)]


def task(path, *overrides):
    return make_task(load_config({"task": str(path)}, [f"task.{one}" for one in overrides]).task)


def everything(made):
    return [*made.examples("train"), *made.examples("test")]


def reward(made, text, example):
    parts = made.grader(text, example)
    return sum(weight * parts[name] for name, weight in made.rubric.items())


def test_rows_become_examples_split_four_to_one(tmp_path):
    made = task(written(tmp_path, *many()))
    assert [len(made.examples(split)) for split in ("train", "test")] == [8, 2]
    assert {(one.prompt, one.answer) for one in everything(made)} == {
        (f"{n}?", str(n)) for n in range(10)
    }
    assert (made.name, made.max_new_tokens, made.metric) == ("rows", 128, "exact")
    assert all(one.chat for one in everything(made))


def test_held_out_rows_may_stand_in_a_file_of_their_own(tmp_path):
    test = written(tmp_path, ROW, name="held_out.jsonl")
    made = task(written(tmp_path, *many()), f"test_path={test}")
    assert [len(made.examples(split)) for split in ("train", "test")] == [10, 1]


def test_a_template_makes_the_prompt(tmp_path):
    rows = many(lang="Irish", tags=["a", 1])
    template = 'Say {prompt} in {lang} {tags} as {{json}}: {"a": 1}'
    made = task(written(tmp_path, *rows), f"template={template}")
    assert {one.prompt for one in everything(made)} == {
        f'Say {n}? in Irish ["a", 1] as {{json}}: {{"a": 1}}' for n in range(10)
    }


@pytest.mark.parametrize(
    ("answer", "overrides", "right", "wrong"),
    [
        ("8", "reward=exact", ["8"], ["9"]),
        (8, "reward=exact", ["8"], ["8.0"]),
        (" 8\n", "reward=exact", ["8"], ["9"]),
        (True, "reward=exact", ["true"], ["True"]),
        (["1", "one"], "reward=exact", ["1", "one"], ['["1", "one"]', ""]),
        ([{"role": "assistant", "content": "9"}], "reward=exact", ["9"], ["8"]),
        ([3, 4], "reward=numeric", ["3", "4.0"], ["34"]),
        (8, "reward=numeric tolerance=0.5", ["8.4"], ["8.6"]),
        (["a+", "b+"], "reward=regex", ["aa", "b"], ["c"]),
        (None, "reward=regex pattern=^[a-z]+$", ["word"], ["2 words"]),
        ({"a": [1]}, "reward=json", ['{"a": [1.0]}'], ["{}"]),
        ([1, 2], "reward=json", ["[1,2]"], ["1"]),
        (None, "reward=json", ["[1]"], ["one"]),
    ],
)
def test_an_answer_is_text_or_a_list_or_messages(tmp_path, answer, overrides, right, wrong):
    rows = [{"prompt": f"{n}?"} | ({} if answer is None else {"gold": answer}) for n in range(2)]
    named = [] if answer is None else ["answer=gold"]
    made = task(written(tmp_path, *rows), *overrides.split(), *named)
    example = made.examples("train")[0]
    assert [reward(made, text, example) for text in right] == [1.0] * len(right)
    assert [reward(made, text, example) for text in wrong] == [0.0] * len(wrong)
    if answer is None or "regex" in overrides:
        assert example.answer == ""  # a pattern is not what a model should write


def test_the_field_of_an_answer_may_be_inside_another_one(tmp_path):
    rows = [{"prompt": f"{n}?", "reward_model": {"ground_truth": str(n)}} for n in range(4)]
    path = written(tmp_path, *rows)
    for name in ("answer=reward_model.ground_truth", "columns={answer: reward_model.ground_truth}"):
        assert {one.answer for one in everything(task(path, name))} == set("0123")
    made = task(path, "answer=prompt", "template=Say {reward_model.ground_truth}")
    assert {one.prompt for one in everything(made)} == {f"Say {n}" for n in range(4)}


def test_the_split_keeps_conversations_apart_by_all_of_their_messages(tmp_path):
    user = {"role": "user", "content": "Next?"}
    rows = [
        {"messages": [{"role": "system", "content": f"{n % 10}"}, user], "answer": "x"}
        for n in range(20)
    ]
    made = task(written(tmp_path, *rows))
    train, test = ({one.context for one in made.examples(side)} for side in ("train", "test"))
    assert (len(train), len(test)) == (8, 2)
    assert not train & test


def test_a_rubric_weighs_its_rewards(tmp_path):
    made = task(written(tmp_path, *many()), "reward={numeric: 2, length: 0.5, json: 0}")
    example = made.examples("test")[0]
    assert reward(made, example.answer, example) == 2.0
    assert reward(made, example.answer + ".0", example) == 2.0 - 0.5 * 2
    assert made.floor == {"numeric": 0.0, "json": 0.0, "length": -2000.0}


def test_the_metric_is_the_heaviest_or_the_one_named_whatever_the_order(tmp_path):
    path = written(tmp_path, *many())
    one, other = task(path, "reward={exact: 1, json: 1}"), task(path, "reward={json: 1, exact: 1}")
    assert (list(one.rubric), one.metric) == (list(other.rubric), other.metric)
    assert task(path, "reward={length: 0.1, exact: 1}").metric == "exact"
    assert task(path, "reward={length: 0.1, exact: 0}", "metric=exact").metric == "exact"


@pytest.mark.parametrize(
    ("rows", "overrides", "complaint"),
    [
        ([ROW, '{"question": '], [], r"rows\.jsonl, line 2, column 14: not valid JSON: Exp"),
        (
            [ROW, '{"question": "a", "answer": "1", "question": "b"}'],
            [],
            "line 2: two fields have the same name: rename one, found .*'question'",
        ),
        ([ROW, "", [1]], [], r"line 3: a row must be a JSON object, found \[1\]"),
        ([""], [], r"rows\.jsonl: the file holds no rows"),
        ([ROW], [], "at least 2 different examples, found 1"),
        (
            [{"question": f"{n}?", "gold": "1"} for n in range(30)],
            [],
            r"line 1: the field `answer` is missing; fields found: `question`, `gold`\. .*=NAME",
        ),
        ([{"text": "?"}], [], r"line 1: a row needs a `prompt`.*found: `text`\. .*task\.columns="),
        ([{**ROW, "question": " "}], [], "line 1: the prompt is empty: ' '"),
        *(
            ([ROW, {**OTHER, "answer": value}], [], f"line 2: the field `answer` .*found {found}:")
            for value, found in (
                (float("nan"), "nan"),
                (float("-inf"), "-inf"),
                (["2", float("nan")], "nan"),
            )
        ),
        ([{**ROW, "answer": {"a": float("inf")}}], ["reward=json"], "line 1: .*found {'a': inf}:"),
        (
            [ROW, {**OTHER, "answer": None}],
            [],
            r"line 2: the field `answer` is missing; .* `answer` \(null\)",
        ),
        ([{**ROW, "answer": {"text": ["x"]}}, OTHER], [], r"line 1: .*, such as answer\.text"),
        (
            [{**ROW, "answer": [{"role": "user", "content": "9"}]}, OTHER],
            [],
            "line 1: the field `answer` must be text",
        ),
        (
            [ROW, {"answer": 1}],
            ["template=Tell me {question}"],
            r"line 2: task\.template names the field `question`, which is missing; .*\{\{question",
        ),
        (
            [ROW, {**OTHER, "answer": "eight"}],
            ["reward=numeric"],
            "line 2: the field `answer` must be one number for reward=numeric, found 'eight'",
        ),
        ([{**ROW, "answer": "("}, OTHER], ["reward=regex"], "line 1: .* must be a regular expr"),
        ([{**ROW, "answer": "("}, OTHER], ["reward=json"], r"line 1: .* must be JSON .* '\('"),
        *(
            ([{**ROW, "answer": ""}, OTHER], [f"reward={name}"], "line 1: .* must not be empty")
            for name in ("contains", "regex")  # an empty pattern would match any text
        ),
        ([ROW, "[" * 100_000], [], "line 2: not valid JSON: maximum recursion depth"),
        ([{**ROW, "question": 5, "answer": 1}, [1] * 10**5], [], r"line 2: .{,150}1, 1.{,250}$"),
        ([{**ROW, "answer": "x" * 10**5}, OTHER], ["reward=numeric"], r"line 1: .{,400}$"),
    ],
)
def test_bad_rows_are_refused_with_their_place(tmp_path, rows, overrides, complaint):
    with pytest.raises(GermlineError, match=complaint):
        task(written(tmp_path, *rows), *overrides)
