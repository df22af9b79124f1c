"""Bundles where words name results."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from trainmark.library.selection import select
from trainmark.record import record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_bundle_gives_the_records_in_it(packed: Path, run_dir: Path) -> None:
    found = select([str(packed), str(run_dir)])
    first, second = found.records
    assert (first.figures, first.steps) == (second.figures, second.steps)
    assert second == record.read(run_dir).model_copy(update={"verification": "verified"})
    assert found.places == [f"{packed}/1-toy", str(run_dir)]
    assert found.refuted == []


def test_the_program_reports_bundles_and_verifies_several_paths(
    packed: Path, run_dir: Path, cli: Callable[..., Any]
) -> None:
    code, out, _ = cli("report", packed, "--format", "md")
    assert (code, "toy" in out) == (0, True)
    code, out, _ = cli("verify", packed, run_dir)
    printed = out.splitlines()
    assert code == 0
    assert [line for line in printed if not line.startswith(" ")] == [str(packed), str(run_dir)]
    assert any(line.startswith("  ok    record: ") for line in printed)
    assert any(line.startswith("  ok    record 1-toy: ") for line in printed)
    (told,) = [line for line in printed if line.startswith("  -     trust: ")]
    assert "do not quote, generated data" in told
    (run_dir / "plan.json").write_text("{}")
    assert cli("verify", packed, run_dir)[0] == 1
    (run_dir / "record.json").unlink()
    code, out, err = cli("verify", run_dir, packed, "--json")
    assert [item["path"] for item in json.loads(out)] == [str(packed)]
    assert (code, f"{run_dir}: cannot be read" in err) == (2, True)


def test_a_record_of_a_folder_that_cannot_be_read_is_skipped_with_a_note(
    run_dir: Path, cli: Callable[..., Any]
) -> None:
    broken, folder = run_dir.with_name("broken"), str(run_dir.parent)
    broken.mkdir()
    (broken / "record.json").write_text('{"suite": ')
    code, out, err = cli("report", folder, "--format", "md")
    assert (code, "toy" in out, str(broken) in err) == (0, True, True)
    shutil.rmtree(run_dir)
    code, _, err = cli("report", folder)
    assert (code, str(broken) in err) == (2, True)
