"""A disk that gets full while a study runs: said in a sentence, and the same call goes on."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A mount of its own namespace ends with the process, whatever happens.
_SMALL_DISK = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
_MOUNT = 'mount -t tmpfs -o size=600k none "$0" && exec "$@"'


@pytest.mark.cluster
def test_runs_that_fill_a_disk_say_so_and_complete_once_there_is_room(tmp_path: Path) -> None:
    folder, disk = tmp_path / "steps", tmp_path / "disk"
    folder.mkdir()
    disk.mkdir()
    small = [*_SMALL_DISK, _MOUNT, str(disk)]
    if (
        not shutil.which("unshare")
        or subprocess.run([*small, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no small disk can be had here")

    law = [sys.executable, "-m", "tests.runtime.full_disk", str(folder), str(disk)]
    answer = subprocess.run([*small, *law], cwd=ROOT, capture_output=True, text=True, check=False)

    assert answer.returncode == 0, answer.stderr[-3000:]
    assert list(disk.iterdir()) == []
