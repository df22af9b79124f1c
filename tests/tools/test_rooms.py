"""The sizes of rooms: what counts, and that a room over its line is refused."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_room_over_its_line_is_refused(tmp_path):
    package = tmp_path / "src" / "trainmark"
    (package / "cases" / "toy").mkdir(parents=True)
    (tmp_path / "tools").mkdir()
    tool = tmp_path / "tools" / "rooms.py"
    tool.write_text((ROOT / "tools" / "rooms.py").read_text())
    # 24 tokens: docstrings and comments are none.
    line = "a = 1 + 2 + 3 + 4 + 5\n"
    (package / "spec.py").write_text('"""Text."""\n' + line * 2 + "b = 1  # why\n")
    (package / "cases" / "toy" / "job.py").write_text(line * 8)
    limits = tmp_path / "tools" / "rooms.toml"

    def call():
        return subprocess.run(
            [sys.executable, tool, "--print"], capture_output=True, text=True, check=False
        )

    limits.write_text('[most_lines]\nroot = 3\n"cases/toy" = 9\n')
    held = call()
    assert (held.returncode, held.stdout.split()) == (0, ["9", "cases/toy", "3", "root"])
    limits.write_text("[most_lines]\nroot = 2\n")
    refused = call()
    assert refused.returncode == 1
    assert "root has 3 lines" in refused.stdout
    assert "cases/toy has 9 lines" in refused.stdout
