"""Each project rule finds the violation it exists for, in a temporary tree."""

from pathlib import Path

import pytest

from checks.rules import violations

GOOD = '"""What this file is, in one sentence."""\n'


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return root


def test_a_tidy_tree_has_no_violations(tmp_path):
    write(tmp_path, "germline/noun.py", GOOD + "A = 1\n" * 399)
    write(tmp_path, "germline/__init__.py", "")
    assert violations(tmp_path) == []


def test_a_file_of_401_lines_is_too_long(tmp_path):
    (line,) = violations(write(tmp_path, "germline/noun.py", GOOD + "A = 1\n" * 400))
    assert line.startswith("germline/noun.py: 401 lines")


@pytest.mark.parametrize("name", ["utils.py", "helpers.py", "common.py", "utils/noun.py"])
def test_a_name_that_says_nothing_is_refused(tmp_path, name):
    (line,) = violations(write(tmp_path, f"germline/{name}", GOOD))
    assert "names nothing in particular" in line


def test_a_module_without_a_docstring_is_found(tmp_path):
    (line,) = violations(write(tmp_path, "germline/noun.py", "A = 1\n"))
    assert "no module docstring" in line


@pytest.mark.parametrize(
    "first", ["No full stop at the end", "One sentence. And one more.", "A line that goes\non."]
)
def test_a_docstring_whose_first_line_is_not_one_sentence_is_found(tmp_path, first):
    (line,) = violations(write(tmp_path, "germline/noun.py", f'"""{first}"""\n'))
    assert "one whole sentence" in line


def test_a_first_line_too_long_for_a_table_of_contents_is_found(tmp_path):
    text = '"""' + "long " * 20 + 'sentence."""\n'
    (line,) = violations(write(tmp_path, "germline/noun.py", text))
    assert "109 characters" in line


@pytest.mark.parametrize("name", ["Seeded", "luck", "centre"])
def test_a_retired_word_as_a_name_is_found(tmp_path, name):
    text = f"{GOOD}# {name} in a comment is prose\n{name} = 1\n"
    (line,) = violations(write(tmp_path, "germline/noun.py", text))
    assert line.startswith(f"germline/noun.py: line 3: {name!r} is ")


@pytest.mark.parametrize("word", ["TO" + "DO", "FIX" + "ME"])
def test_unfinished_work_is_found(tmp_path, word):
    (line,) = violations(write(tmp_path, "germline/noun.py", f"{GOOD}A = 1  # {word}: more\n"))
    assert line.startswith("germline/noun.py: line 2")


@pytest.mark.parametrize("folder", ["germline", "tests", "benchmarks", "checks", "examples"])
def test_every_folder_of_code_is_searched(tmp_path, folder):
    assert len(violations(write(tmp_path, f"{folder}/deep/noun.py", "A = 1\n"))) == 1


@pytest.mark.slow
def test_this_repository_keeps_its_rules():
    assert violations(Path(__file__).parents[1]) == []
