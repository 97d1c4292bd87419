"""`germline elo`: synthetic judges with known strengths and biases, and judges that fail."""

import itertools
import json
import math
import random
import threading

import pytest

from germline.config.scorers import PairwiseJudgeSettings
from germline.run.elo import ELO_SCALE, Verdict, compare_models, open_models, rate_models
from germline.scorers.judges import PairwiseJudge
from germline.types import GermlineError
from tests.command_line import command
from tests.hang_limit import HANG_S
from tests.judges import judging, longer
from tests.toy_runs import run


@pytest.fixture(scope="module")
def trained(graded_in_process, tmp_path_factory):
    """A toy run whose generations write different texts."""
    folder = tmp_path_factory.mktemp("elo") / "run"
    return run(
        folder, "held_out.every=100", "strategy.learning_rate=2", "task.stop=['Z','$','-','=']"
    )


def judge_at(server, **settings):
    settings = {"retry_timeout_s": 0, "url": server.url} | settings
    return PairwiseJudge(PairwiseJudgeSettings(**settings))


def compared(decide, folder, trained, *, generations=(-1, 3), limit=12, **settings):
    """Compare generations of a run by a synthetic judge."""
    models = open_models([str(trained)], None, generations, limit=limit)
    with judging(decide) as server:
        return compare_models(models, judge_at(server), folder / "elo.jsonl", **settings), server


def in_order(folder):
    """Return the replies of a file by example and models: it has them as they came."""
    return sorted(rows(folder), key=lambda row: (row["example"], row["models"]))


def rows(folder):
    return [json.loads(line) for line in (folder / "elo.jsonl").read_text().splitlines()]


def test_a_judge_that_prefers_what_is_first_gives_abstentions_alone(tmp_path, trained):
    result, _ = compared(lambda *_: "[[A]]", tmp_path, trained)
    assert result.abstained > 6
    assert (result.decided, result.no_verdict) == (0, 0)
    assert result.first_preferred == 1.0
    assert [(one.wins, one.losses) for one in result.ratings] == [(0, 0), (0, 0)]
    assert len(rows(tmp_path)) == 2 * result.abstained


@pytest.mark.parametrize(  # test_scorers.py and test_scorers.py have what a reply may say
    ("reply", "failure"),
    [
        ("and so on " * 500, "no verdict, [[A]] or [[B]]"),
        ((200, {"choices": []}), "no chat completion"),
        ((400, {"error": "too long"}), "too long"),
    ],
)
def test_a_reply_without_a_verdict_is_recorded_and_no_loss(tmp_path, trained, reply, failure):
    def sometimes(first, second):
        return reply if "M" in first else longer(first, second)

    result, _ = compared(sometimes, tmp_path, trained)
    failed = [row for row in rows(tmp_path) if row["preferred"] is None]
    assert result.no_verdict >= len(failed) / 2 > 1
    assert result.decided == sum(one.wins for one in result.ratings) > 0
    assert all(failure in one["failure"] for one in failed)
    if isinstance(reply, str):
        assert all(one["text"] == reply for one in failed)


def test_a_request_that_was_refused_is_asked_again_and_a_reply_is_not(tmp_path, trained):
    compared(lambda *_: (400, {"error": "too long"}), tmp_path, trained)
    asked = len(rows(tmp_path))
    result, _ = compared(lambda *_: "no idea", tmp_path, trained)
    assert (result.decided, 2 * result.no_verdict) == (0, asked)
    assert len(rows(tmp_path)) == 2 * asked
    with judging(longer) as server:
        models = open_models([str(trained)], None, (-1, 3), limit=12)
        compare_models(models, judge_at(server), tmp_path / "elo.jsonl")
        assert server.bodies("/chat/completions") == []


def test_a_judge_that_goes_away_leaves_its_verdicts_and_elo_goes_on(tmp_path, trained):
    numbers = itertools.count(1)  # threads of the server share it: `+= 1` would lose a request

    def short_lived(first, second):
        return (503, "gone") if next(numbers) > 9 else longer(first, second)

    with pytest.raises(GermlineError, match=r"503.*of 12 pairs are judged and kept in .*elo.jsonl"):
        compared(short_lived, tmp_path, trained)
    kept = rows(tmp_path)
    assert len(kept) == 9
    result, server = compared(longer, tmp_path, trained)
    assert rows(tmp_path)[: len(kept)] == kept
    assert len(server.bodies("/chat/completions")) == 2 * 12 - len(kept)
    (tmp_path / "whole").mkdir()
    whole, _ = compared(longer, tmp_path / "whole", trained)
    assert whole.ratings == result.ratings
    assert in_order(tmp_path / "whole") == in_order(tmp_path)


def test_what_is_judged_after_the_request_that_fails_is_kept_too(tmp_path, trained):
    others = threading.Semaphore(0)
    lock = threading.Lock()
    first_request: list[str] = []

    def one_fails(first, second):
        with lock:
            is_first = not first_request
            first_request.append(first)
        if not is_first:
            others.release()
            return longer(first, second)
        for _ in range(2 * 12 - 1):
            assert others.acquire(timeout=HANG_S)
        return 503, "too much"

    with pytest.raises(GermlineError, match=r"503.* ([89]|1[01]) of 12 pairs are judged and"):
        compared(one_fails, tmp_path, trained)
    assert 1 <= compared(longer, tmp_path, trained)[0].requests <= 4


def test_a_line_that_was_cut_by_a_kill_is_judged_again(tmp_path, trained):
    compared(longer, tmp_path, trained)
    file = tmp_path / "elo.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-40])
    result, _ = compared(longer, tmp_path, trained)
    assert result.requests == 1
    assert [json.loads(line) for line in whole.splitlines()] == rows(tmp_path)


@pytest.mark.parametrize("text", ["{\n}", '{"a": 1}\n{"a": 2}', "a note"])
def test_another_file_is_refused_and_left_as_it_was(tmp_path, trained, text):
    (tmp_path / "elo.jsonl").write_text(text)
    with pytest.raises(GermlineError, match=r"is no file of replies.* name another --out"):
        compared(longer, tmp_path, trained)
    assert (tmp_path / "elo.jsonl").read_text() == text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-g", "-1"), "has nothing to be compared with"),
        (("-g", "-1", "-g", "-1"), "@-1 is given twice"),
        (("-g", "late", "-g", "1"), "late is neither a number nor best"),
        (("-g", "-1", "-g", "3", "strategy.sigma=1"), "elo: strategy.sigma=1 has no effect here"),
        (("-g", "-1", "-g", "3", "judge.token_env=NO_SUCH"), "judge.token_env=NO_SUCH"),
        (("-g", "-1", "-g", "3", "judge.modelx=x"), "judge.modelx: unknown setting"),
        (("-g", "-1", "-g", "3", "judge.timeout_s=0"), "judge.timeout_s"),
    ],
)
def test_what_cannot_be_compared_is_refused(trained, words, said):
    with judging(longer) as server:
        done = command("elo", trained, *words, f"judge.url={server.url}")
        assert done.exit_code == 2
        assert said in done.stderr
        assert server.bodies("/chat/completions") == []


def test_the_command_prints_ratings_and_counts(tmp_path, trained):
    words = ("elo", trained, "-g", "-1", "-g", "3", "--limit", "12", "--out", tmp_path / "elo")
    with judging(longer) as server:
        done = command(*words, f"judge.url={server.url}")
        again = json.loads(command(*words, f"judge.url={server.url}", "--json").stdout)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[1].startswith(f"{trained}@3\t")
    assert again["requests"] == 0
    assert again["judge"] == {"url": server.url, "model": "the-judge"}
    assert again["decided"] + again["abstained"] == 12
    assert [one["model"] for one in again["ratings"]] == [f"{trained}@{one}" for one in (3, -1)]


STRENGTHS = {"weak": 900.0, "base": 1000.0, "good": 1080.0, "best": 1250.0}


def chance(first, second):
    return 1 / (1 + 10 ** ((STRENGTHS[second] - STRENGTHS[first]) / 400))


def drawn(prompts, seed=0):
    """Draw one verdict per prompt and pair from known strengths."""
    generator = random.Random(seed)
    names = sorted(STRENGTHS)
    return [
        Verdict(prompt, *((one, two) if generator.random() < chance(one, two) else (two, one)))
        for prompt in range(prompts)
        for number, one in enumerate(names)
        for two in names[number + 1 :]
    ]


def games(first, second, won, lost):
    """Return games of two models, each on a prompt of its own."""
    return [
        Verdict(prompt, *((first, second) if prompt < won else (second, first)))
        for prompt in range(won + lost)
    ]


def by_name(found):
    return {one.model: one for one in found}


def test_expected_wins_are_the_wins_that_were_counted():
    # The condition of the maximum: the gradient of the log-likelihood is 0.
    verdicts = drawn(50)
    found = by_name(rate_models(list(STRENGTHS), verdicts, "base"))
    for name in STRENGTHS:
        expected = sum(
            1 / (1 + math.exp((found[other].rating - found[name].rating) / ELO_SCALE))
            for one in verdicts
            for other in {one.winner, one.loser} - {name}
            if name in (one.winner, one.loser)
        )
        added = sum(  # one more win and one more loss against every other model
            2 / (1 + math.exp((found[other].rating - found[name].rating) / ELO_SCALE)) - 1
            for other in {*STRENGTHS} - {name}
        )
        assert expected + added == pytest.approx(found[name].wins, abs=1e-8)


def test_known_strengths_are_within_the_intervals():
    # 30 intervals of 95 %: with independent ones, 25 or more contain the strength in 99.9 %.
    inside = 0
    for seed in range(10):
        found = by_name(rate_models(list(STRENGTHS), drawn(120, seed), "base"))
        for name in ("weak", "good", "best"):
            inside += found[name].low <= STRENGTHS[name] <= found[name].high
            assert found[name].high - found[name].low < 250
    assert inside >= 25


def test_the_order_of_models_and_verdicts_changes_no_bit():
    verdicts = drawn(40)
    expected = rate_models(sorted(STRENGTHS), verdicts, "base", seed=3)
    for seed in range(5):
        shuffled, names = list(verdicts), list(STRENGTHS)
        random.Random(seed).shuffle(shuffled)
        random.Random(seed).shuffle(names)
        assert rate_models(names, shuffled, "base", seed=3) == expected
    assert rate_models(names, shuffled, "base", seed=4) != expected


@pytest.mark.parametrize("won", [20, 200])
def test_who_never_lost_is_above_by_what_a_few_losses_would_mean(won):
    # The rule of three: up to 3 losses in so many games are compatible with none.
    high, low = rate_models(["a", "b"], games("a", "b", won, 0), "b")
    assert (high.model, low.rating) == ("a", 1000)
    assert high.rating == pytest.approx(1000 + 400 * math.log10(won + 1))
    assert high.low == pytest.approx(1000 + 400 * math.log10(won / 3), abs=100)


def test_verdicts_about_one_prompt_are_resampled_together():
    alone = games("a", "b", 24, 16)
    together = [Verdict(one.prompt // 8, one.winner, one.loser) for one in alone]
    spreads = []
    for verdicts in (alone, together):
        found = by_name(rate_models(["a", "b"], verdicts, "b"))["a"]
        spreads.append(found.high - found.low)
    assert spreads[1] > 1.3 * spreads[0]
