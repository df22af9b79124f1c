"""The page of published results: written from a folder of pages, the same in both languages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools import published

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PAGE = """\
| 指标名称 | 指标值 | 特殊说明 |
| --- | --- | --- |
| 模型 | dlrm | |
| 硬件设备简称 | nvidia A100 | |

| 配置 | precision | fix_hp | e2e_time | p_whole | p_train | p_core | auc | mem |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| A100单机8卡（1x8） | amp | / | 3485 | 1203787 | 1219744 | 1237773 | 0.8024/0.802 | 9.8/40.0 |
| A100单机8卡（1x8） | amp | bs=1 | / | 12 | 11 | 14 | / | 9.8/40.0 |
| A100单机8卡（1x8） | amp | bs=2 | / | / | / | / | / | 9.7/40.0 |
"""


def test_each_finding_has_its_row_and_each_row_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "DOCS", tmp_path)
    page = tmp_path / "pages" / "nvidia" / "dlrm-pytorch" / "README.md"
    page.parent.mkdir(parents=True)
    page.write_text(PAGE, encoding="utf-8")
    published.main(str(tmp_path / "pages"), "some/where", "training", "0123abc")
    english, chinese = (
        (tmp_path / name).read_text(encoding="utf-8").splitlines()
        for name in ("published.md", "published.zh.md")
    )
    for lines, counted, audited in (
        (english, "with a finding", "rows read and audited"),
        (chinese, "有发现", "已读取并审计的行"),
    ):
        assert f"| {audited} | 3 |" in lines
        assert f"| {counted} | 1 |" in lines
        (row,) = (line for line in lines if line.startswith("| ["))
        where = "https://github.com/some/where/blob/0123abc/training/nvidia/dlrm-pytorch/README.md"
        assert row.startswith(
            f"| [9]({where}?plain=1#L9) | A100单机8卡（1x8） | `ordering` | error |"
        )
        assert row.count(" | ") == 4
    assert "python tools/published.py FOLDER some/where training 0123abc" in english


def test_a_cell_cannot_end_its_row() -> None:
    assert published.cell("a | b\n<script>") == "a \\| b &lt;script>"
