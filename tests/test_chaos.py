"""Training killed with `kill -9` at random moments reaches the bits of a run left alone."""

import json
import random
import shutil
import time
from collections import Counter

import germline
from germline.record import RunDirectory
from tests.toy_runs import ADAM_FULL, MACHINE, finish, journal, settings
from tests.victims import Victim

# What is written is written often, so that moments fall into snapshots, scores and figures.
OFTEN = ("held_out.every=2", "record.snapshot_every=1")


def chaos(config, folder, phases):
    """Train, killed once in each of `phases` (shuffled), then to the end.

    `start` is anywhere between fork and the first message, `work` anywhere within a generation;
    both are parts of what was measured, so that they spread alike on slow and on fast machines.
    `write` is before one of the next writes: to rows, journal, snapshot, figure.
    """
    moments = random.Random(2)
    out = folder / "killed"
    kills = list(phases)
    moments.shuffle(kills)
    startup_timeout_s = 0.5
    for phase in kills:
        if phase == "write":
            Victim(config, out, writes=moments.randint(0, 18)).wait_for_death()
            continue
        victim = Victim(config, out)
        if phase == "start":
            time.sleep(moments.uniform(0, startup_timeout_s))
        else:
            startup_timeout_s = victim.wait_for(1)
            time.sleep(
                moments.uniform(0, victim.wait_for(moments.randint(0, 2)) or startup_timeout_s)
            )
        victim.kill()
        if out.exists() and not (out / "run.json").exists():
            shutil.rmtree(out)  # it was killed before the run began: there is nothing to resume
    Victim(config, out).finish()
    return out


def assert_same(killed, undisturbed):
    """Compare all that decides and all that describes two runs, clocks left out.

    Rollouts come first: their completions and failures show why a journal differs.
    """
    one, other = RunDirectory.open(killed), RunDirectory.open(undisturbed)
    for rollout, expected in zip(one.rollouts(), other.rollouts(), strict=True):
        assert rollout == expected
    assert journal(killed) == journal(undisturbed)
    assert one.held_out() == other.held_out()
    for row, expected in zip(one.generations(), other.generations(), strict=True):
        for key in row.keys() - {*MACHINE}:
            assert row[key] == expected[key]
    for path in (undisturbed / "snapshots").iterdir():
        assert (killed / "snapshots" / path.name).read_bytes() == path.read_bytes()


def assert_each_generation_once(folder, generations):
    """Every generation stands in every file exactly once, and in order."""
    directory = RunDirectory.open(folder)
    assert [row["generation"] for row in directory.generations()] == list(range(generations))
    counts = Counter(row["generation"] for row in directory.rollouts())
    assert counts == dict.fromkeys(range(generations), directory.config.record.rollouts)
    numbers = [json.loads(line)["generation"] for line in journal(folder).splitlines()]
    assert numbers == list(range(generations))


def test_twenty_kills_leave_no_trace(tmp_path):
    whatever_has_a_memory = (
        *ADAM_FULL,
        "strategy.optimizer.weight_decay=0.1",
        "strategy.optimizer.decay_to=start",
        "strategy.sigma={kind: plateau, start: 0.3, patience: 3, factor: 0.9}",
    )
    config = settings(*OFTEN, *whatever_has_a_memory, "record.tensorboard=true", "generations=50")
    killed = chaos(config, tmp_path, ["start", "work", "write", "write"] * 5)
    assert_each_generation_once(killed, 50)
    sigmas = {entry.update.sigma for entry in RunDirectory.open(killed).journal.read()}
    assert len(sigmas) > 3  # there was something to remember
    assert_same(killed, finish(germline.train(config, tmp_path / "undisturbed")))
