"""Data as the field keeps it: chat messages, columns, parquet and csv; settings of any task."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from germline.config import load_config
from germline.nano import NANO_DIR
from germline.run.dry_run import dry_run
from germline.run.model_prompts import fit_task
from germline.tasks import make_task
from germline.tasks.task_settings import without_thinking
from germline.types import Example, GermlineError, Split

ROWS = [{"question": f"What is {n} + 1?", "solution": str(n + 1), "level": n} for n in range(10)]
COLUMNS = {"answer": "solution"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what `datasets` caches out of the home folder."""
    datasets = pytest.importorskip("datasets", reason="the extra `datasets` is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def examples(side: Split = "train", **task: Any) -> tuple[Example, ...]:
    return tuple(make_task(load_config({"task": task}).task).examples(side))


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def written(folder: Path, ending: str) -> Path:
    """Write the rows in one of the forms that `datasets` reads."""
    import datasets

    data, path = datasets.Dataset.from_list(ROWS), folder / f"rows{ending}"
    if ending == ".parquet":
        data.to_parquet(str(path))
    elif ending == ".csv":
        data.to_csv(str(path))
    elif ending == ".json":
        data.to_json(str(path))
    else:
        data.save_to_disk(str(path))
    return path


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".json", ""])
def test_a_file_or_folder_of_datasets_is_a_task(tmp_path: Path, ending: str) -> None:
    path = written(tmp_path, ending)
    both = [
        *examples(kind="dataset", path=str(path), columns=COLUMNS),
        *examples("test", kind="dataset", path=str(path), columns=COLUMNS),
    ]
    assert {(one.prompt, one.answer) for one in both} == {
        (row["question"], row["solution"]) for row in ROWS
    }


def test_a_folder_with_splits_keeps_them_apart(tmp_path: Path) -> None:
    import datasets

    both = datasets.DatasetDict(
        {
            "train": datasets.Dataset.from_list(ROWS[:6]),
            "test": datasets.Dataset.from_list(ROWS[6:]),
        }
    )
    both.save_to_disk(str(tmp_path / "saved"))
    section = {"kind": "dataset", "path": str(tmp_path / "saved"), "columns": COLUMNS}
    held_out = examples("test", **section, test_split="test")
    assert [one.prompt for one in held_out] == [row["question"] for row in ROWS[6:]]


def test_messages_become_context_prompt_and_answer(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4"},
    ]
    path = str(jsonl(tmp_path / "rows.jsonl", [{"messages": messages}]))
    (one,) = examples(kind="jsonl", path=path, test_path=path)
    assert (one.prompt, one.answer) == ("2 + 2?", "4")
    assert one.context == (("system", "Be brief."), ("user", "Hello"), ("assistant", "Hi"))
    unanswered = jsonl(tmp_path / "unanswered.jsonl", [{"messages": messages[:-1]}])
    with pytest.raises(GermlineError, match=r"unanswered.jsonl, line 1: .*`answer` is missing"):
        examples(kind="jsonl", path=str(unanswered), test_path=path)


def test_solved_examples_stand_before_every_prompt_and_never_show_the_prompt_itself() -> None:
    plain = {one.prompt: one for one in examples(kind="arithmetic")}
    shown = examples(kind="arithmetic", few_shot=2)
    for one, example in zip(shown, plain.values(), strict=True):
        *solved, prompt = one.prompt.split("\n\n")
        assert prompt == example.prompt
        assert len(solved) == 2
        for text in solved:
            question, answer = text.rsplit("\n", 1)
            assert question != prompt
            assert plain[question].answer == answer
    assert examples("test", kind="arithmetic", few_shot=2)[0].prompt.count("\n\n") == 2


def test_other_conversations_with_the_same_last_message_are_solved_examples(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "Next?"}]
    rows = [
        {"prompt": [{"role": "system", "content": f"{n}"}, *turns], "answer": f"{n}"}
        for n in range(10)
    ]
    path = jsonl(tmp_path / "rows.jsonl", rows)
    for one in examples(kind="jsonl", path=str(path), few_shot=2):
        *shown, _ = one.prompt.split("\n\n")
        assert len(shown) == 2
        assert f"Next?\n{one.answer}" not in shown


def test_training_on_fewer_examples_leaves_the_held_out_ones() -> None:
    few = examples(kind="arithmetic", train_examples=5)
    assert few == examples(kind="arithmetic")[:5]
    held_out = examples("test", kind="arithmetic", train_examples=5)
    assert held_out == examples("test", kind="arithmetic")


@pytest.mark.parametrize(
    ("text", "rest", "rest_if_opened"),
    [
        ("<think>1 + 1</think>\n2", "2", "2"),
        ("1 + 1</think> 2", "2", "2"),
        ("<think>no end", "", ""),
        ("5 <think>no end", "5 ", ""),
        ("no tag", "no tag", ""),
        ("<think>a</think> x <think>b</think> 3", "3", "3"),
        ("<think>a</think>3 <think>no end", "3 ", "3 "),
        ("<think>a<think>b</think>c</think>3", "3", "3"),
        ("<think>a <think> tag</think>3", "3", "3"),
        ("<THINK>a</Think> 3", "3", "3"),
        ("<Think>no end", "", ""),
    ],
)
def test_thinking_is_removed(text: str, rest: str, rest_if_opened: str) -> None:
    assert without_thinking(text, "think") == rest
    assert without_thinking(text, "think", is_opened=True) == rest_if_opened


def test_thinking_that_the_template_opens_and_nothing_closes_is_removed(tmp_path: Path) -> None:
    shutil.copytree(NANO_DIR, tmp_path / "model")
    config = load_config(
        {"model": str(tmp_path / "model"), "task": {"kind": "arithmetic", "strip_thinking": True}}
    )
    task = make_task(config.task)
    example = task.examples("test")[0]

    def graded(text: str) -> float:
        return fit_task(config, task).grader(text, example)["exact"]

    assert [graded(example.answer), graded(f"x</think>{example.answer}")] == [1.0, 1.0]
    file = tmp_path / "model" / "chat_template.jinja"
    template = file.read_text()
    assert graded(example.answer) == 1.0
    file.write_text(template + "{% if add_generation_prompt %}<think>\n{% endif %}")
    assert [graded(example.answer), graded(f"x</think>{example.answer}")] == [0.0, 1.0]


def test_the_grader_gets_the_text_without_its_thinking() -> None:
    task = make_task(load_config({"task": {"kind": "arithmetic", "strip_thinking": True}}).task)
    example = task.examples("test")[0]
    texts = (f"<think>hm</think>{example.answer}", f"<think>{example.answer}")
    assert [task.grader(text, example)["exact"] for text in texts] == [1.0, 0.0]
    # A prompt may open the thinking without a chat.
    section = {"kind": "countdown", "split": "seeded", "strip_thinking": True}
    task = make_task(load_config({"task": section}).task)
    example = task.examples("test")[0]
    assert task.grader(example.answer.replace("</think>", ""), example)["answer"] == 0.0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": "hello"}, "`messages` must be a list of messages .*, found 'hello'$"),
        ({"messages": {"role": "user", "content": "x"}}, "`messages` must be a list of messages"),
        ({"messages": []}, "must end with a user message"),
        ({"messages": [{"role": "human", "content": "x"}]}, "has the role 'human'"),
        ({"messages": [{"role": "user", "content": 3}]}, "must be str"),
    ],
)
def test_other_messages_are_refused_with_their_place(
    tmp_path: Path, row: dict[str, object], message: str
) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [row, {"messages": [{"role": "user", "content": "y"}]}])
    with pytest.raises(GermlineError, match=message) as refused:
        examples(kind="jsonl", path=str(path))
    assert "line 1" in str(refused.value)


CSV = "question,answer\nzip?,02134\nprice?,1.50\ntrue?,True\nmissing?,NA\nnone?,None\n"
CELLS = ["02134", "1.50", "True", "NA", "None"]


@pytest.mark.parametrize("ending", ["csv", "tsv"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_every_cell_of_a_file_is_its_text(tmp_path: Path, kind: str, ending: str) -> None:
    path = tmp_path / "data" / f"rows.{ending}"
    path.parent.mkdir()
    text = CSV + "a b,\n"
    path.write_text(text if ending == "csv" else text.replace(",", "\t"))
    named = path if kind == "file" else path.parent
    columns = {"prompt": "question"}
    section: dict[str, Any] = {"kind": "dataset", "path": str(named), "columns": columns}
    section["split"] = "train[:5]"
    both = examples(**section, test_split="train[:5]")
    assert [one.answer for one in both] == CELLS
    with pytest.raises(GermlineError, match="`answer` is missing"):  # an empty cell, the last one
        examples(kind="dataset", path=str(named), columns=columns)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"columns": {"answer": "gold"}}, "names the column `gold`.*`question`, `solution`"),
        ({"split": "validation", "columns": COLUMNS}, "the split 'validation' .* cannot be loaded"),
        ({"few_shot": 100_000, "columns": COLUMNS}, "task.few_shot asks for up to 100000"),
    ],
)
def test_wrong_columns_and_splits_are_refused(
    tmp_path: Path, task: dict[str, Any], message: str
) -> None:
    with pytest.raises(GermlineError, match=message):
        examples(kind="dataset", path=str(written(tmp_path, ".parquet")), **task)


@pytest.mark.parametrize("split", ["train[98%:]", "train[:0]"])
def test_a_split_without_rows_is_refused(tmp_path: Path, split: str) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [{"prompt": f"{n}?", "answer": "1"} for n in range(10)])
    message = r"the split .* of .*rows\.jsonl holds no rows: correct task\.split or task\.test_spl"
    for setting in ("split", "test_split"):
        section: dict[str, Any] = {setting: split}
        with pytest.raises(GermlineError, match=message):
            examples(kind="dataset", path=str(path), **section)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.csv", b"question,answer\ncaf\xe9,1\n", "cannot be read as UTF-8"),
        ("rows.csv", b"question,answer\na,b\nc,d,e\n", "line 3: there must be 2 cells"),
        ("rows.csv", b"prompt;answer\nx;1\ny;2\n", "fields found: `prompt;answer`"),
        ("rows.csv", b'prompt,answer\n"x,1\n', "line 2: not valid CSV"),
        ("rows.csv", b"question,answer\n", "holds no rows"),
        ("rows.json", b'{"question": ', "line 1, column 14: not valid JSON: "),
        ("rows.json", b'[{"question": "a"}, 3]', "row 1: a row must be a JSON object"),
        ("rows.parquet", b"", "cannot be loaded"),
        ("rows.parquet", b"PAR1 and no more", "cannot be loaded"),
        ("rows.arrow", b"no table at all", "cannot be loaded"),
        ("rows.xml", b"<rows/>", "file of no known kind"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, content: bytes, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(GermlineError, match=message) as refused:
        examples(kind="dataset", path=str(tmp_path / name))
    assert name in str(refused.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "name", ["rows.csv", "/no/data/rows", "../rows", "~/no/rows", "a/b/c.json"]
)
def test_a_path_that_does_not_exist_is_not_looked_up_on_the_hub(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import datasets

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("the hub was asked"))
    with pytest.raises(GermlineError, match=r"there is no file or folder .*OWNER/NAME"):
        examples(kind="dataset", path=name)
    with pytest.raises(GermlineError, match="there is no file or folder"):
        dry_run({"task": {"kind": "dataset", "path": name}, "engine": "toy"})


@pytest.mark.parametrize("name", ["squad", "openai/gsm8k", "some-one/rows_2.1"])
def test_other_names_are_looked_up_on_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def load(path: str, **source: object) -> list[dict[str, object]]:
        assert (path, source["name"], source["revision"]) == (name, "main", "v1")
        return ROWS

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert examples(kind="dataset", path=name, subset="main", revision="v1", columns=COLUMNS)
