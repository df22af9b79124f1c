"""``trainmark import`` as a user calls it: output, exit codes, hostile files."""

from __future__ import annotations

import json
import os

from support.fakes import check_golden

PAGE = """\
| 指标名称 | 指标值 | 特殊说明 |
| --- | --- | --- |
| 模型 | X net | |
| 硬件设备简称 | acme X100 | |

| 配置 | precision | fix_hp | e2e_time | p_whole | acc | mem |
| --- | --- | --- | --- | --- | --- | --- |
| X100单机8卡（2x8） | fp32 | bs=96 | 361 | 1,764.0 | 0.915/0.91 | 59.23*8G |
| X100单机单卡（1x1） | amp | / | | 3-4 | 91.5% | OOM |
2x8 follows
"""


def test_json_is_exactly_rows_and_unread(cli, tmp_path):
    # ``PAGE`` is a page with facts about a model and a table of two results of a device "X100".
    (tmp_path / "README.md").write_text(PAGE)
    code, out, err = cli("import", "README.md", "--json")
    document = json.loads(out)
    assert code == 0
    assert list(document) == ["rows", "unread"]
    assert {"file", "line", "configuration", "figures", "raw"} <= document["rows"][0].keys()
    assert {"file", "line", "kind", "reason"} <= document["unread"][0].keys()
    # Both rows are read. Two items are not: a figure of the second row that is a range, "3-4", and
    # the line of text behind the rows, "2x8 follows".
    assert err.startswith("rows read: 2; items skipped: 2\n")
    # The whole document, with all keys.
    check_golden("import.json", json.dumps(document, ensure_ascii=False, indent=1) + "\n")


def test_each_cell_that_is_not_read_is_named_up_to_five_of_a_kind(cli, tmp_path):
    # The column ``speed`` has no known unit; that of step times has. Not read are the seven speeds,
    # x0 to x6, and the step time "???"; ``n/a`` counts as an empty cell.
    rows = "".join(f"| A100 | {500 + i} | x{i} | 1.8 |\n" for i in range(7))
    (tmp_path / "t.md").write_text(
        "| device | step time (ms) | speed | loss |\n|---|---|---|---|\n"
        + rows
        + "| A100 | ??? | n/a | 1.8 |\n"
    )
    code, _, err = cli("import", "t.md")
    lines = err.splitlines()
    assert code == 0
    assert lines[0] == "rows read: 8; items skipped: 8"
    assert [line for line in lines if line.startswith("t.md:")] == [
        *(f"t.md:{3 + i}: 'x{i}' is not a number" for i in range(5)),
        "t.md:10: '???' is not a number (known units: ms)",
    ]
    assert "2; `--json`" in err  # x5 and x6


def test_missing_path_is_a_usage_error(cli):
    code, out, err = cli("import", "nonesuch.md", "--json")
    assert (code, out) == (2, "")
    assert "nonesuch.md" in err


def test_folder_with_mixed_files_is_read(cli, tmp_path):
    folder = tmp_path / "all"
    folder.mkdir()
    os.mkfifo(folder / "pipe.md")  # reading it would wait for ever
    (folder / "loop.md").symlink_to("loop.md")
    (folder / "gone.md").symlink_to("nonesuch.md")
    (folder / "up").symlink_to("..")  # which contains this folder again
    (folder / os.fsdecode(b"name\xff.md")).write_text(PAGE)
    # Half a character: the first one of a surrogate pair.
    (folder / "half.log").write_text(
        '[PerfLog] {"event": "FINISHED", "value": {"case": "\\ud800"}}'
    )
    (folder / "other.json").write_text('{"a": 1}')
    # A table of HTML, which is not read; what looks like a table of Markdown is a cell of it.
    (folder / "table.html.md").write_text("<table><tr><td>|---|</td></tr></table>")
    # Lists in quotations, 5,000 deep.
    (folder / "nested.md").write_text("> - " * 5000 + PAGE)
    with (folder / "big.bin").open("wb") as file:
        file.truncate(100 << 20)  # zeros, more than a file may have
    code, out, err = cli("import", "all", "--json")
    assert code == 0
    assert "Traceback" not in err
    document = json.loads(out)
    assert {entry["file"] for entry in document["unread"]} >= {
        f"all/{name}"
        for name in (
            "pipe.md",
            "loop.md",
            "gone.md",
            "half.log",
            "other.json",
            "big.bin",
            "table.html.md",
        )
    }
    assert {row["file"] for row in document["rows"]} == {"all/name\ufffd.md", "all/nested.md"}


def test_own_runs_are_not_read_as_results_of_others(cli, tmp_path):
    # ``run`` is the folder of a run of this program. A folder of runs alone has no file to read.
    # The exit code 1 says that nothing was read.
    run = tmp_path / "runs" / "run"
    run.mkdir(parents=True)
    (run / "record.json").write_text('{"throughput": "300 samples/s"}')
    for place, reason in (
        ("runs", "folder_without_files_of_others"),
        ("runs/run", "folder_without_files_of_others"),
        ("runs/run/record.json", "file_is_own_record"),
    ):
        code, out, _ = cli("import", place, "--json")
        document = json.loads(out)
        assert (code, document["rows"]) == (1, [])
        (unread,) = document["unread"]
        assert (unread["file"], unread["reason"]["code"]) == (place, reason)
