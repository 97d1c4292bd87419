"""Files of settings laid over a config, between and after single settings."""

from pathlib import Path

import pytest

from germline.config import LowRank, load_config

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


def test_a_replaced_section_warns_of_the_settings_that_it_drops(file, caplog):
    base = {**BASE, "space": {"kind": "low_rank", "rank": 3}, "task": {"max_new_tokens": 5}}
    full = file("space: {kind: full, layers: '3'}\n")
    for override, dropped in {
        "space=lora": "space.rank=3",
        "task=countdown": "task.max_new_tokens=5",
        full: "space.rank=3",
        "space.kind=full": "space.rank=3",
    }.items():
        caplog.clear()
        load_config(base, [override])
        assert dropped in caplog.text
    caplog.clear()
    load_config(load_config(base), ["engine=toy", "seed=3"])
    judge = "held_out.scorers.j={kind: judge, url: 'http://localhost:%d/v1', model: m}"
    load_config(load_config(base, [judge % 1]), [judge % 2])
    assert caplog.text == ""  # the other settings of the judge are at their defaults


def test_sections_at_their_defaults_are_no_dropped_settings(caplog):
    load_config(load_config({}), ["space=lora", "strategy=cma"])
    assert caplog.text == ""


def test_another_kind_keeps_the_settings_that_both_have():
    base = {**BASE, "space": {"kind": "low_rank", "rank": 3, "include": ["*mlp*"]}}
    space = load_config(base, ["space.kind=lora"]).space
    assert (space.kind, space.rank, space.include) == ("lora", 3, ("*mlp*",))  # type: ignore[attr-defined]


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


def test_models_and_adapters_beside_their_config_are_found(tmp_path, monkeypatch):
    folder = tmp_path / "study"
    for name in ("base", "adapter", "rewards"):
        (folder / name).mkdir(parents=True)
    (folder / "set.py").write_text("")
    (folder / "c.yaml").write_text(
        "model: base\nspace: {kind: lora, init_adapter: adapter}\n"
        "task: {kind: verifiers, env: set.py, scorers: {r: {kind: classifier, model: rewards}}}\n"
        "held_out: {scorers: {r: {kind: classifier, model: rewards}}}\n"
    )
    (folder / "nano").mkdir()
    (folder / "nano.yaml").write_text(
        "model: nano\ntask: {scorers: {j: {kind: judge, model: rewards, url: 'http://x'}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    config = load_config("study/c.yaml")
    given = (config.model, config.space.init_adapter, config.task.env)  # type: ignore[attr-defined]
    assert given == ("study/base", "study/adapter", "study/set.py")
    assert {one.model for one in config.scorers.values()} == {"study/rewards"}  # type: ignore[attr-defined]
    absolute = config.with_absolute_paths()
    assert absolute.model == str(folder / "base")
    assert absolute.space.init_adapter == str(folder / "adapter")  # type: ignore[attr-defined]
    nano = load_config("study/nano.yaml")
    judge = nano.task.scorers["j"]
    assert (nano.model, judge.model) == ("nano", "rewards")  # type: ignore[attr-defined]


# --- values


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("task.stop=###", ("###",)),
        ("task.stop=# a\n", ("# a\n",)),
        ("task.stop=[a, 'b c']", ("a", "b c")),
        ("task.stop=null", None),
        ("task.system_prompt=# Role", "# Role"),
        ("task.system_prompt=Solve it. #no words", "Solve it. #no words"),
        ("task.system_prompt=one\n two\n", "one\n two\n"),
        ("task.system_prompt=1e5", "1e5"),
        ("task.system_prompt='quoted'", "'quoted'"),
        ("task.system_prompt=null", None),
        ("task.template=! {question}", "! {question}"),
        ("task.template=Question: {question}", "Question: {question}"),
        ("task.template={question}", "{question}"),
        ("task.path=rows #2.jsonl", Path("rows #2.jsonl")),
        ("task.columns.prompt=a: b", {"prompt": "a: b"}),
        ("space.include=*mix*", ("*mix*",)),
        ("model=inf", "inf"),
        ("model=no", "no"),
    ],
)
def test_a_text_is_taken_as_it_is_written(override, value):
    base = {"task": {"kind": "jsonl", "path": "rows.jsonl"}}
    section, _, name = override.partition("=")[0].partition(".")
    config = load_config(base, [override])
    found = getattr(config, section)
    assert (getattr(found, name.partition(".")[0]) if name else found) == value


def test_a_task_file_is_named_as_it_is():
    assert load_config({}, ["task=rows #2.jsonl"]).task.path == Path("rows #2.jsonl")  # type: ignore[attr-defined]


def test_words_of_a_file_are_those_of_yaml_1_2(file):
    config = load_config({}, [file("task: {kind: jsonl, path: x, answer: no}\nmodel: 12:30:00\n")])
    assert (config.task.answer, config.model) == ("no", "12:30:00")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "seed"), [("010", 10), ("-007", -7), ("0x10", 16), ("1_000", 1000), ("0", 0)]
)
def test_a_number_with_a_leading_zero_is_decimal(file, text, seed):
    assert load_config(BASE, [file(f"seed: {text}\n")]).seed == seed
    assert load_config(BASE, [f"seed={text}"]).seed == seed


def test_a_model_may_be_a_path():
    assert load_config({"model": Path("models/mine")}).model == "models/mine"
