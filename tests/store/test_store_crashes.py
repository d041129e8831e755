"""Killed writers and concurrent ones, in real processes, leave a store that is whole."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL"),
]


def tried(law: str, folder: Path) -> int:
    """Run a law of `tests.store.crashes`; return how much it was tried."""
    answer = subprocess.run(
        [sys.executable, "-m", "tests.store.crashes", law, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    return int(answer.stdout)


def test_a_writer_killed_at_any_call_leaves_every_state_whole_or_absent(tmp_path: Path) -> None:
    assert tried("killed_at_every_call", tmp_path) > 100


def test_a_writer_killed_at_any_moment_leaves_records_that_lead_to_states(tmp_path: Path) -> None:
    assert tried("killed_at_any_moment", tmp_path) == 100


def test_a_journal_whose_writer_is_killed_is_a_beginning_with_all_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    assert tried("killed_while_journaling", tmp_path) > 5


def test_those_who_commit_one_key_at_once_and_those_who_read_agree(tmp_path: Path) -> None:
    assert tried("commit_at_once", tmp_path) == 2


def test_a_cleaner_takes_nothing_that_is_being_written(tmp_path: Path) -> None:
    assert tried("clean_while_others_commit", tmp_path) >= 3


def test_of_those_who_take_over_a_dead_drivers_lock_one_has_it(tmp_path: Path) -> None:
    assert tried("take_over_at_once", tmp_path) == 4
