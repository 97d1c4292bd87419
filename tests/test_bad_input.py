"""Bad input: where every kind of it is tested; mistakes in configs and by callers from Python."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from germline.cli.application import app
from germline.config import load_config
from germline.spaces.tensor_selection import select_tensors
from germline.types import GermlineError, TensorInfo
from tests.places import absent
from tests.toy_runs import SETTINGS

HERE, MODELS, DISK = "test_bad_input", "test_bad_models", "test_bad_disk"
WHERE: dict[str, tuple[str, ...]] = {
    "unknown or misspelled setting": (
        "test_config::test_a_mistake_is_told_with_setting_value_and_remedy",
        "test_cli::test_a_mistyped_setting_gets_a_suggestion",
        f"{HERE}::test_a_setting_at_the_wrong_place_is_told_its_own",
    ),
    "misspelled kind": (f"{HERE}::test_a_misspelled_kind_gets_a_suggestion",),
    "wrong type": (f"{HERE}::test_a_value_of_another_type_is_told_in_words_of_a_config",),
    "population of 1, or odd with antithetic pairs": (
        "test_config::test_a_mistake_is_told_with_setting_value_and_remedy",
    ),
    "sigma or learning rate not finite": (
        f"{HERE}::test_a_step_that_is_no_positive_number_is_refused",
        f"{MODELS}::test_an_update_out_of_range_stops_the_run",
        f"{MODELS}::test_members_thrown_far_off_write_something_all_the_same",
    ),
    "rank above the matrix": (
        "test_spaces::test_a_rank_above_a_matrix_is_refused_with_the_largest_that_fits",
        "test_adapters::test_a_rank_above_a_matrix_is_refused_with_the_largest_that_fits",
    ),
    "pattern that matches nothing": (
        "test_spaces::test_a_pattern_that_matches_nothing_is_refused_with_near_names",
        f"{HERE}::test_near_misses_of_a_pattern_are_those_with_likely_parts",
    ),
    "layers out of range": (
        "test_spaces::test_layers_the_model_does_not_have_are_refused_with_those_it_has",
        "test_subspace_forward::test_layers_the_model_does_not_have_are_refused_in_every_space",
    ),
    "tied embeddings selected twice": (
        "test_spaces::test_a_tied_head_is_searched_once_under_the_name_of_the_embedding",
        "test_spaces::test_a_tied_head_selected_beside_its_embedding_is_refused_with_the_one_name",
    ),
    "more coordinates or singular values than there are": (
        "test_subspace_forward::test_more_coordinates_than_weights_are_refused",
        "test_subspace_forward::test_a_top_k_above_a_matrix_is_refused_with_the_largest_that_fits",
        "test_subspace_forward::test_a_factor_of_zeros_is_refused",
    ),
    "missing or corrupt model folder": (
        f"{MODELS}::test_a_damaged_model_folder_is_told_by_what_is_wrong",
        f"{MODELS}::test_a_model_that_is_nowhere_is_told_with_what_would_do",
    ),
    "tokenizer without chat template": (
        "test_engines::test_a_chat_task_without_a_chat_template_is_refused",
        f"{MODELS}::test_a_chat_template_that_fails_is_told_with_a_remedy",
    ),
    "empty dataset": (
        "test_tasks::test_bad_pairs_are_refused_with_their_place",
        "test_own_tasks::test_a_mistake_in_the_file_is_told_with_its_place",
        "test_jsonl_tasks::test_bad_rows_are_refused_with_their_place",
    ),
    "malformed JSONL line": (
        "test_tasks::test_bad_pairs_are_refused_with_their_place",
        "test_jsonl_tasks::test_bad_rows_are_refused_with_their_place",
    ),
    "task file without reward": (
        "test_own_tasks::test_a_mistake_in_the_file_is_told_with_its_place",
    ),
    "reward that raises, hangs or exits": (
        "test_own_tasks::test_what_a_text_does_to_a_reward_earns_the_floor",
        "test_own_tasks::test_a_reward_that_fails_on_every_answer_stops_a_run_before_it_begins",
    ),
    "reward that returns NaN": (
        "test_own_tasks::test_what_no_reward_is_stops_with_the_value_and_the_remedy",
    ),
    "reward that prints": ("test_own_tasks::test_a_reward_that_prints_disturbs_nothing",),
    "prompt longer than the context": (
        "test_engines::test_more_tokens_than_the_context_are_refused_with_both_numbers",
        f"{MODELS}::test_a_prompt_that_is_too_long_is_told_by_us_alone",
    ),
    "out of memory": (
        "test_engines::test_out_of_memory_names_the_setting_that_makes_cells_smaller",
    ),
    "disk full": (
        f"{DISK}::test_a_full_disk_is_told_and_the_run_goes_on_to_the_same_bits",
        f"{DISK}::test_a_disk_too_full_to_begin_on_says_so",
        f"{DISK}::test_what_did_not_fit_leaves_no_torn_line",
    ),
    "read-only directory": (
        f"{DISK}::test_a_folder_nobody_may_write_to_is_refused_before_anything_is_loaded",
        f"{DISK}::test_a_read_only_run_is_not_resumed_but_replayed",
    ),
    "run directory that exists": (
        f"{DISK}::test_a_place_that_is_taken_is_refused_before_anything_is_loaded",
        "test_cli_verbs::test_a_taken_folder_is_refused",
    ),
    "journal with a flipped byte": (
        "test_record_journal::test_any_flipped_byte_is_noticed",
        "test_run::test_a_journal_with_a_flipped_byte_is_refused",
    ),
    "journal with a torn last line": (
        "test_record_journal::test_a_torn_last_line_counts_as_never_written",
        "test_run::test_a_torn_last_line_counts_as_never_written",
    ),
    "journal without a middle line": (
        f"{DISK}::test_a_journal_without_its_middle_line_is_told_by_every_verb",
    ),
    "broken run.json": (f"{DISK}::test_a_damaged_run_json_is_told_by_every_verb",),
    "corrupt snapshot": (
        "test_run::test_damaged_snapshots_cost_time_only",
        "test_checkpoint::test_a_damaged_snapshot_costs_time_only",
    ),
    "resume with a changed config": (
        "test_run::test_a_resumed_run_may_not_become_another_one",
        "test_cli_verbs::test_resume_refuses_what_would_make_it_another_run",
    ),
    "resume of a finished run": ("test_run::test_resuming_a_finished_run_changes_nothing",),
    "replay of a generation that is not there": (
        "test_cli_verbs::test_replay_of_a_generation_that_never_was_is_an_error",
    ),
    "adapter of another base model": (
        "test_adapters::test_an_adapter_of_other_weights_is_refused_by_their_digest",
        "test_adapters::test_an_adapter_of_peft_for_a_model_of_another_name_is_refused",
    ),
    "integer-quantized weights": (
        f"{MODELS}::test_a_quantized_model_is_refused_by_the_name_of_a_tensor",
        f"{MODELS}::test_a_quantized_model_without_files_of_weights_is_refused_all_the_same",
    ),
    "layers that cannot be searched": (
        "test_spaces::test_matrices_that_are_no_linear_layers_are_refused_by_name",
    ),
    "two processes on one run directory": (
        "test_record::test_a_second_process_may_not_train_in_the_same_folder",
    ),
    "engine processes that die": (
        "test_lost_engines::test_losing_every_engine_stops_the_run_with_cause_and_remedy",
    ),
    "YAML": (f"{HERE}::test_a_mistake_in_yaml_is_told_with_its_line_and_a_remedy",),
    "overrides": (
        "test_config::test_what_is_no_override_says_how_one_looks",
        f"{HERE}::test_an_override_is_read_strictly_too",
    ),
    "arguments from Python": (f"{HERE}::test_a_wrong_argument_is_told_as_one",),
}
"""Every kind of bad input, and the tests of what is said to it."""


def test_every_kind_of_bad_input_has_tests() -> None:
    assert absent(place for places in WHERE.values() for place in places) == []


def refused(override: str) -> str:
    with pytest.raises(GermlineError) as caught:
        load_config({}, [override])
    return str(caught.value)


# --- settings


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "task={kind: arithmetic, scorers: {j: {kind: judge, base_url: x}}}",
            "task.scorers.j.base_url: unknown setting (did you mean 'url'?); known",
        ),
        ("task=contdown", "task: there is no kind 'contdown' (did you mean 'countdown'?); choose"),
        ("strategy.optimizer=adm", "strategy.optimizer: there is no kind 'adm' (did you mean 'ad"),
        ("strategy.sigma={kind: linaer}", "strategy.sigma: there is no kind 'linaer' (did you"),
        (
            "fleet=lokal",
            "fleet: there is no kind 'lokal' (did you mean 'local'?); choose one of 'local', 'ray'",
        ),
        ("engine.dtype=floot16", "engine.dtype: must be 'auto', 'float32', 'bfloat16' or 'float16"),
        ("engine.dtype=floot16", "(did you mean 'float16'?) (found 'floot16')"),
        ("strategy.sigma=AUTO", "strategy.sigma: must be a valid number (did you mean 'auto'?) (f"),
        ("strategy.learning_rate=Auto", "(did you mean 'auto'?) (found 'Auto')"),
        ("space=FULL", "space: there is no kind 'FULL' (did you mean 'full'?)"),
    ],
)
def test_a_misspelled_kind_gets_a_suggestion(override: str, message: str) -> None:
    assert message in refused(override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sigma=0.1", "sigma: unknown setting (did you mean 'strategy.sigma'?)"),
        ("strategy.momentum=0.9", "(did you mean 'strategy.optimizer.momentum'?)"),
        ("engine={kind: toy, device: cpu}", "device belongs to engine.kind='inprocess'"),
        ("strategy={optimizer: adam, optimiser: 1}", "(did you mean 'optimizer'?)"),
        ("strategy={optimizer.kind: adam}", "write it as a section, optimizer: {kind: ...}"),
    ],
)
def test_a_setting_at_the_wrong_place_is_told_its_own(override: str, message: str) -> None:
    assert message in refused(override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("strategy.sigma=abc", "strategy.sigma: must be a valid number, or one of 'linear', "),
        ("strategy.sigma={start: 1}", "strategy.sigma.end: is missing"),
        ("batch_size=x", "batch_size: must be an integer, such as the default 32 (found 'x')"),
        ("generations=1.5", "generations: must be an integer, such as the default 50 (found 1.5)"),
        ("task.top_p=half", "must be a valid number, such as the default 1.0 (found 'half')"),
        ("strategy.population=x", "strategy.population: must be an integer (found 'x')"),
        ("task.stop=3", "task.stop: must be a list such as [a, b] (found 3)"),
        ("task=null", "task: must be one of 'conciseness', "),
        (
            "microbatch=3",
            "microbatch: must be a section of settings, such as {name: value} (found 3)",
        ),
        ("model=''", "model: must not be empty (found '')"),
        (
            "generations=yes",
            "generations=true is no value of generations, which is never yes or no: Gen",
        ),
        ("strategy.sigma=off", "sigma=false is no value of sigma"),
        ("strategy.population=5", "strategy: population=5 is odd but"),
    ],
)
def test_a_value_of_another_type_is_told_in_words_of_a_config(override: str, message: str) -> None:
    said = refused(override)
    assert message in said
    assert "Input should" not in said
    assert "(found {" not in said or "is missing" in said  # sections are not printed whole


@pytest.mark.parametrize("setting", ["strategy.sigma", "strategy.learning_rate"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-0.1", "0", "{start: .nan, end: 1}"])
def test_a_step_that_is_no_positive_number_is_refused(setting: str, value: str) -> None:
    assert f"config: {setting}" in refused(f"{setting}={value}")


def test_many_mistakes_are_told_by_the_first_of_them() -> None:
    with pytest.raises(GermlineError) as caught:
        load_config({f"line{number}": 1 for number in range(30)})
    assert len(str(caught.value).splitlines()) == 11
    assert str(caught.value).endswith("and 20 more mistakes")


def test_near_misses_of_a_pattern_are_those_with_likely_parts() -> None:
    names = [f"model.layers.{n}.{part}.weight" for n in range(9) for part in ("attn.q", "mlp.up")]
    tensors = [TensorInfo(name, (4, 4), "linear", 0) for name in names]
    for name in ("include", "exclude"):
        with pytest.raises(GermlineError, match=r"near: model\.layers\.0\.mlp\.up\.weight, mod"):
            select_tensors(tensors, load_config({}, [f"space.{name}='*.mpl.*'"]).space)


# --- files of settings


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task:\n\tkind: countdown\n", "line 2, column 1: .*; indent with spaces, not with tabs"),
        ("seed: 1\ntask: countdown\nseed: 2\n", "line 3, column 1: 'seed' is given twice; kee"),
        ("strategy:\n  sigma: 1\n  sigma: 2\n", "line 3, column 3: 'sigma' is given twice"),
        ("task: countdown\n  seed: 1\n", r"line 2, column 7: .*\n +seed: 1\n +\^"),
        ("task:countdown\n", "found the text 'task:countdown': a space must follow the colon"),
        ("- task: countdown\n", "must hold settings like .*, found list"),
        ("# nothing yet\n", "is empty: write settings like `task: countdown`"),
        ("seed: 1\n---\nseed: 2\n", "line 2, column 1: .*another document"),
        ("strategy.sigma: 0.1\n", r"write it as a section, strategy: \{sigma: \.\.\.\}"),
        ("task: caf\xe9\n", "is not UTF-8 text .*: save it as UTF-8"),
    ],
)
def test_a_mistake_in_yaml_is_told_with_its_line_and_a_remedy(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(GermlineError, match=rf"(?s)^config: .*{message}"):
        load_config(file)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "must look like strategy.sigma=0.002"),
        (".seed=1", "must look like strategy.sigma=0.002"),
        ("task..stop=a", "must look like strategy.sigma=0.002"),
        ("strategy.sigma={start: 1, start: 2}", "'start' is given twice; keep one of them"),
    ],
)
def test_an_override_is_read_strictly_too(override: str, message: str) -> None:
    assert message in refused(override)


def test_a_value_with_no_room_for_more_is_told_with_its_whole_name() -> None:
    with pytest.raises(GermlineError, match=r"strategy\.sigma is a single value \(0\.3\), so stra"):
        load_config(SETTINGS, ["strategy.sigma.end=0.1"])


# --- callers from Python, as they are: without the checks of types that tests run under

CALLS = {
    "train(None)": "config: give the path of a YAML file, or a mapping of settings",
    "train(['task=countdown'])": "found ['task=countdown'] (list)",
    "train({1: 2})": "config: 1: the name of a setting must be a text",
    "train({}, out=3)": "out must be the path of a file or folder, found 3 (int)",
    "load_config({}, 'seed=3')": "overrides are a list of texts such as ['strategy.sigma=0.002'",
    "load_config({}, {'seed': 3})": "found {'seed': 3} (dict)",
    "load_config({}, [3])": "found [3] (list)",
    "resume(None)": "path must be the path of a file or folder, found None (NoneType)",
    "replay(3, 0)": "path must be the path of a file or folder, found 3 (int)",
    "export('run', None)": "out must be the path of a file or folder, found None",
    "export('run', 'out', form='peft')": "form must be 'adapter' or 'merged' or None, found 'peft'",
    "replay('run', 0, form='Merged')": "or None (did you mean 'merged'?), found 'Merged' (str)",
    "evaluate('nano', 'arithmetic', split='dev')": "split must be 'train' or 'test', found 'dev'",
    "evaluate('nano', 'arithmetic', split='tets')": "'test' (did you mean 'test'?), found 'tets'",
    "evaluate('nano', 'arithmetic', limit='3')": "limit must be a whole number, or None for all",
    "evaluate('nano', 3)": "config: task: must be one of 'conciseness'",
    "evaluate('nano', {'kind': 'arithmetik'})": "did you mean 'arithmetic'?",
    "evaluate('nano', 'arithmetic', overrides={'seed': 1})": "overrides are a list of texts",
    "evaluate('nano', 'arithmetic', out='.')": "out: . is a folder; name the file",
    "evaluate(3, 'arithmetic')": "source must be the path of a file or folder, found 3",
    "generate('nano', 'hello')": "prompts must be a list of texts, found the text 'hello': wrap",
    "generate('nano', None)": "prompts must be a list of texts, found None (NoneType)",
    "generate('nano', ['a', 3])": "prompts[1] must be a text, found 3 (int)",
    "generate('nano', ['\\ud800'])": "prompts[0] must be Unicode text",
    "generate('nano', [''], chat=False)": "the prompt of example 0 has no tokens: ''; give it",
    "generate('nano', ['a'], top_p=0)": "task.top_p: must be greater than 0 (found 0)",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is raised by every call, in one process."""
    script = (
        "import json, sys, germline\n"
        "said = {}\n"
        "for call in json.load(sys.stdin):\n"
        "    try:\n"
        "        said[call] = f'nothing: {eval(\"germline.\" + call)}'\n"
        "    except Exception as error:\n"
        "        said[call] = f'{type(error).__name__}: {error}'\n"
        "print(json.dumps(said))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        input=json.dumps(list(CALLS)),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path_factory.mktemp("calls"),
    )
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_argument_is_told_as_one(call: str, said: dict[str, str]) -> None:
    assert said[call].startswith("GermlineError: ")
    assert CALLS[call] in said[call]


def test_completions_that_could_not_be_written_are_not_computed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = [
        "eval",
        "no such model",
        "--task",
        "arithmetic",
        "--out",
        tmp_path / "file" / "c.jsonl",
    ]
    shown = CliRunner().invoke(app, [str(word) for word in words])
    assert shown.exit_code == 2
    assert "c.jsonl cannot be made, as " in shown.stderr
