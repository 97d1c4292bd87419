"""Files of settings laid over a config, between and after single settings."""

import re
from pathlib import Path

import pytest

from germline.config import LowRank, load_config
from germline.types import GermlineError

BASE = {"task": "arithmetic", "space": "low_rank", "strategy": {"population": 6, "sigma": 0.1}}


@pytest.fixture
def file(tmp_path):
    def write(text, name="over.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_a_file_replaces_what_it_names_and_nothing_else(file):
    config = load_config(BASE, [file("strategy: {sigma: 0.2}\nbatch_size: 7\n")])
    assert (config.strategy.sigma, config.strategy.population) == (0.2, 6)  # type: ignore[attr-defined]
    assert (config.batch_size, config.task.kind) == (7, "arithmetic")


def test_files_and_settings_count_in_the_order_given(file):
    first, second = file("seed: 1\nbatch_size: 2\n", "a.yaml"), file("seed: 3\n", "b.yml")
    config = load_config(BASE, ["batch_size=9", first, second, "generations=5"])
    assert (config.seed, config.batch_size, config.generations) == (3, 2, 5)
    assert load_config(BASE, [first, "batch_size=9"]).batch_size == 9


def test_a_section_of_another_kind_takes_the_whole_place(file):
    base = {**BASE, "space": {"kind": "low_rank", "rank": 3}}
    config = load_config(base, [file("space: {kind: full, layers: '3'}\n")])
    assert (config.space.kind, config.space.layers) == ("full", "3")


def test_a_section_of_the_same_kind_is_refined_however_it_is_spelled(file):
    refined = file("space: {kind: low_rank, rank: 2}\ntask: {max_new_tokens: 5}\n")
    config = load_config(BASE, [refined])
    assert config.space == LowRank(rank=2)
    assert (config.task.kind, config.task.max_new_tokens) == ("arithmetic", 5)


def test_the_value_of_a_setting_may_look_like_a_file():
    assert load_config(BASE, ["model=my.yaml"]).model == "my.yaml"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("missing.yaml", r"there is no file 'missing.yaml'"),
        ("sigma", r"'sigma' must look like strategy.sigma=0.002, or be a .yaml file"),
    ],
)
def test_what_is_neither_file_nor_setting_is_refused(override, message):
    with pytest.raises(GermlineError, match=message):
        load_config(BASE, [override])


def test_a_file_that_holds_no_settings_is_refused(file):
    with pytest.raises(GermlineError, match=r"over.yaml must hold settings"):
        load_config(BASE, [file("0.02\n")])


def test_a_replaced_section_says_which_settings_are_dropped(file, caplog):
    base = {**BASE, "space": {"kind": "low_rank", "rank": 3}, "task": {"max_new_tokens": 5}}
    load_config(base, ["space=lora"])
    assert (
        "config: space=lora replaces the whole section, so space.rank=3 is dropped; set space.kind"
        in caplog.text
    )
    caplog.clear()
    load_config(base, ["task=countdown"])
    assert "task=countdown replaces the whole section, so task.max_new_tokens=5" in caplog.text
    caplog.clear()
    load_config(base, [file("space: {kind: full, layers: '3'}\n")])
    assert "space=full replaces the whole section, so space.rank=3 is dropped" in caplog.text
    caplog.clear()
    load_config(load_config(base).model_dump(), ["space.kind=lora", "engine=toy", "seed=3"])
    assert caplog.text == ""
    judge = "held_out.scorers.j={kind: judge, url: 'http://localhost:%d/v1', model: m}"
    load_config(load_config(base, [judge % 1]).model_dump(), [judge % 2])
    assert caplog.text == ""  # the other settings of the judge are at their defaults


def test_dropped_settings_follow_the_error_that_they_cause(caplog):
    base = {"task": {"kind": "dataset", "path": "rows.parquet", "reward": "exact"}}
    with pytest.raises(GermlineError) as caught:
        load_config(base, ["task={kind: dataset, path: other.parquet, pattern: a}"])
    first, second = str(caught.value).split("\n")
    assert "task.pattern" in first
    assert second.startswith("task=dataset replaces the whole section, so task.reward=exact is")
    assert caplog.text == ""  # a warning before the error would be read first


def test_dropped_settings_are_no_part_of_another_error(caplog):
    base = {**BASE, "space": {"kind": "low_rank", "rank": 3}}
    with pytest.raises(GermlineError, match=r"^config: seed: .*") as caught:
        load_config(base, ["space=lora", "seed=x"])
    assert "space=lora" not in str(caught.value) + caplog.text


# --- relative paths in a config file


def written(folder):
    folder.mkdir(exist_ok=True)
    (folder / "riddles.jsonl").write_text('{"prompt": "1?", "answer": "1"}\n')
    (folder / "a.yaml").write_text("task: riddles.jsonl\n")
    (folder / "b.yaml").write_text("task: {kind: jsonl, path: riddles.jsonl}\n")


def path_of(*given):
    return load_config(*given).task.model_dump()["path"]


def test_a_task_beside_its_config_is_found_from_any_folder(tmp_path, monkeypatch):
    written(tmp_path / "tasks")
    monkeypatch.chdir(tmp_path)
    for config in ("tasks/a.yaml", "tasks/b.yaml"):
        assert path_of(config) == Path("tasks/riddles.jsonl")
    assert path_of({}, ["tasks/a.yaml"]) == Path("tasks/riddles.jsonl")
    assert path_of({}, ["task=riddles.jsonl"]) == Path("riddles.jsonl")


def test_a_task_in_the_working_directory_comes_first(tmp_path, monkeypatch):
    written(tmp_path / "tasks")
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert path_of("tasks/a.yaml") == Path("riddles.jsonl")


def test_a_short_name_is_no_path(tmp_path, monkeypatch):
    written(tmp_path / "tasks")
    (tmp_path / "tasks" / "arithmetic").mkdir()
    (tmp_path / "tasks" / "c.yaml").write_text("task: arithmetic\n")
    monkeypatch.chdir(tmp_path)
    assert load_config("tasks/c.yaml").task.kind == "arithmetic"


# --- values


@pytest.mark.parametrize(
    ("text", "seed"), [("010", 10), ("-007", -7), ("0x10", 16), ("1_000", 1000), ("0", 0)]
)
def test_a_number_with_a_leading_zero_is_decimal(file, text, seed):
    assert load_config(BASE, [file(f"seed: {text}\n")]).seed == seed
    assert load_config(BASE, [f"seed={text}"]).seed == seed


def test_a_model_may_be_a_path():
    assert load_config({"model": Path("models/mine")}).model == "models/mine"


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("lr=0.1", "did you mean 'strategy.learning_rate'"),
        ("strategy.lr=0.1", "did you mean 'learning_rate'"),
        ("max_tokens=5", "did you mean 'task.max_new_tokens'"),
        ("strategy.popsize=5", "did you mean 'population'"),
        ("alpha=0.1", "did you mean 'space.alpha'"),
    ],
)
def test_names_of_other_libraries_get_a_hint(override, hint):
    with pytest.raises(GermlineError, match=re.escape(hint)):
        load_config(BASE, [override])


def test_a_refused_config_names_its_files_unless_a_setting_was_the_cause(tmp_path):
    config, more = tmp_path / "run.yaml", tmp_path / "more.yaml"
    config.write_text("generations: many\n")
    more.write_text("seed: 3\n")
    with pytest.raises(GermlineError, match=re.escape(f"read from {config}, {more}")):
        load_config(config, [str(more)])
    with pytest.raises(GermlineError, match="generations: must be") as refused:
        load_config(config, ["generations=some"])
    assert "read from" not in str(refused.value)
    with pytest.raises(GermlineError, match="generations: must be") as refused:
        load_config({"generations": "many"})
    assert "read from" not in str(refused.value)


def test_a_value_of_an_override_is_not_said_to_be_read_from_the_file(file):
    even, odd = (
        file("strategy: {population: 16}\n"),
        file("strategy: {population: 15}\n", "odd.yaml"),
    )
    with pytest.raises(GermlineError, match="population=7 is odd") as error:
        load_config(even, ["strategy.population=7"])
    assert "read from" not in str(error.value)
    with pytest.raises(GermlineError, match=r"population=15 is odd[^$]*read from .*odd\.yaml"):
        load_config(odd, ["strategy.sigma=0.1"])
