"""Bundles where words name results."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from trainmark.library.selection import select
from trainmark.record import record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest


def test_a_bundle_gives_the_records_in_it(packed: Path, run_dir: Path) -> None:
    found = select([str(packed), str(run_dir)])
    first, second = found.records
    assert (first.figures, first.steps) == (second.figures, second.steps)
    assert second == record.read(run_dir).model_copy(update={"verification": "verified"})
    assert found.places == [f"{packed}/1-toy", str(run_dir)]
    assert found.refuted == []


def test_the_program_reports_bundles_and_verifies_several_paths(
    packed: Path, run_dir: Path, trainmark_ends: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert trainmark_ends("report", str(packed), "--format", "md") == 0
    assert "toy" in capsys.readouterr().out
    assert trainmark_ends("verify", str(packed), str(run_dir)) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if not line.startswith(" ")] == [str(packed), str(run_dir)]
    assert any(line.startswith("  ok    record: ") for line in printed)
    assert any(line.startswith("  ok    record 1-toy: ") for line in printed)
    (told,) = [line for line in printed if line.startswith("  -     trust: ")]
    assert "do not quote, generated data" in told
    (run_dir / "plan.json").write_text("{}")
    assert trainmark_ends("verify", str(packed), str(run_dir)) == 1
    (run_dir / "record.json").unlink()
    capsys.readouterr()
    assert trainmark_ends("verify", str(run_dir), str(packed), "--json") == 2
    printed = capsys.readouterr()
    assert [item["path"] for item in json.loads(printed.out)] == [str(packed)]
    assert f"{run_dir}: cannot be read" in printed.err


def test_a_record_of_a_folder_that_cannot_be_read_is_skipped_with_a_note(
    run_dir: Path, trainmark_ends: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    broken, folder = run_dir.with_name("broken"), str(run_dir.parent)
    broken.mkdir()
    (broken / "record.json").write_text('{"suite": ')
    assert trainmark_ends("report", folder, "--format", "md") == 0
    printed = capsys.readouterr()
    assert "toy" in printed.out
    assert str(broken) in printed.err
    shutil.rmtree(run_dir)
    assert trainmark_ends("report", folder) == 2
    assert str(broken) in capsys.readouterr().err
