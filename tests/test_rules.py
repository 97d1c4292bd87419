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


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("noun.py", GOOD + "A = 1\n" * 400, "401 lines"),
        *((f"{name}.py", GOOD, "names nothing in particular") for name in ("utils", "common")),
        ("helpers/noun.py", GOOD, "names nothing in particular"),
        ("noun.py", "A = 1\n", "no module docstring"),
        ("noun.py", '"""No full stop at the end"""\n', "one whole sentence"),
        ("noun.py", '"""One sentence. And one more."""\n', "one whole sentence"),
        ("noun.py", '"""A line that goes\non."""\n', "one whole sentence"),
        ("noun.py", '"""' + "long " * 20 + 'sentence."""\n', "109 characters"),
        ("noun.py", f"{GOOD}# luck in a comment is prose\nluck = 1\n", "line 3: 'luck' is "),
        ("noun.py", f"{GOOD}A = 1  # {'TO' + 'DO'}: more\n", "line 2"),
    ],
)
def test_a_violation_is_found(tmp_path, name, text, said):
    (line,) = violations(write(tmp_path, f"germline/{name}", text))
    assert line.startswith(f"germline/{name}: ")
    assert said in line


@pytest.mark.parametrize("folder", ["germline", "tests", "benchmarks", "checks", "examples"])
def test_every_folder_of_code_is_searched(tmp_path, folder):
    assert len(violations(write(tmp_path, f"{folder}/deep/noun.py", "A = 1\n"))) == 1


@pytest.mark.slow
def test_this_repository_keeps_its_rules():
    assert violations(Path(__file__).parents[1]) == []
