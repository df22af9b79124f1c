"""The tables of ``trainmark ceilings``, from a document written by hand."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from trainmark.pages.ceilings import build_ceilings, has_wrong_results
from trainmark.pages.document import Paragraph, Table
from trainmark.pages.texts import translate
from trainmark.spec import message


def make_point(size: list[int], rate: float | None, **more: Any) -> dict[str, Any]:
    """Return a measurement at one size of the work; the highest rate is a third above the median.

    Args:
        size: the three sizes of a matmul, or the bytes of a copy.
        rate: the highest rate that was measured; None: none was.
        more: replace or add fields.
    """
    rates = None if rate is None else {"median": 3 * rate / 4, "max": rate}
    return {
        "size": size,
        "status": "measured" if rate else "skipped",
        "reason": None,
        "rate": rates,
        "swing": 0.05,
        **more,
    }


def make_kind(name: str, *points: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the measurements of one kind of work on a rank; the first point is the best one.

    Args:
        name: of the work; one that begins with "matmul" is measured in FLOP/s, others in bytes/s.
        points: of ``make_point``.
        more: replace or add fields.
    """
    return {
        "name": name,
        "unit": "FLOP/s" if name.startswith("matmul") else "bytes/s",
        "reason": None,
        "points": list(points),
        "best": 0 if points else None,
        "bus_factor": None,
        "peak": None,
        "share_of_peak": None,
        **more,
    }


def make_ceilings(*ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the document of ``trainmark ceilings`` with these kinds of work on each rank.

    Args:
        ranks: for each rank, the measurements of ``make_kind``. Other programs used 2% of the cores
            meanwhile.
    """
    return {
        "nproc": len(ranks),
        "others_cpu_share": 0.02,
        "ranks": [
            {"rank": number, "device": {"name": "Card"}, "measurements": kinds}
            for number, kinds in enumerate(ranks)
        ],
    }


def list_tables(document: dict[str, Any]) -> list[Table]:
    """Return the tables of the page of a document of ``make_ceilings``."""
    return [block for block in build_ceilings(document) if isinstance(block, Table)]


def list_lines(document: dict[str, Any]) -> list[str]:
    """Return the lines of text outside of tables, in English; the first one names the device."""
    return [
        translate(block.text, "en")
        for block in build_ceilings(document)
        if isinstance(block, Paragraph)
    ]


def test_table_shows_the_slowest_rank_of_each_kind() -> None:
    # A point of ``make_point`` has ``rate`` as its maximum, three quarters of it as its median, and
    # a swing of 0.05.
    fast = make_kind("matmul_bf16", make_point([8, 8, 8], rate=8e12), share_of_peak=0.8)
    slow = make_kind("matmul_bf16", make_point([8, 8, 8], rate=4e12), share_of_peak=0.4)
    (first,) = list_tables(make_ceilings([fast], [slow]))
    assert [translate(x, "en") for x in first.headers[:2]] == ["work", "size"]
    assert [translate(x, "zh") for x in first.headers[:2]] == ["项目", "大小"]
    (row,) = first.rows
    assert [translate(x, "en") for x in row] == [
        "matmul bf16",
        "8x8x8",
        "3.000",  # median and maximum of the slow rank
        "4.000",
        "TFLOP/s",
        "5.0%",  # swing of the rates
        "40.0%",  # share of the peak
    ]


def test_wrong_result_is_named_with_its_rank() -> None:
    # Three ranks copy 1 MiB (``1 << 20``): rank 0 with 5 GB/s, the others with a wrong result.
    right = make_kind("memory_copy", make_point([1 << 20], rate=5e9))
    bad = make_point([1 << 20], rate=None, status="wrong", reason="7 numbers are wrong")
    wrong = make_kind("memory_copy", bad, best=None)
    ceilings = make_ceilings([right], [wrong], [wrong])
    assert has_wrong_results(ceilings)
    # The first line names the device.
    assert list_lines(ceilings)[1:] == ["rank 1, 2: memory copy wrong: 1 MiB (7 numbers are wrong)"]
    assert list_tables(ceilings) == []  # the slowest rank has no rate
    assert not has_wrong_results(make_ceilings([right], [right]))


def test_any_rank_above_the_published_peak_is_named() -> None:
    fast = make_kind("memory_copy", make_point([1 << 30], rate=5e12), share_of_peak=1.25)
    slow = make_kind("memory_copy", make_point([1 << 30], rate=3e12), share_of_peak=0.75)
    # Rank 0 is the slow one, which the table shows; a share above 1 of rank 1 is still reported.
    assert [line for line in list_lines(make_ceilings([slow], [fast])) if "peak" in line] == [
        "rank 1: memory copy: above the published peak: the timing or the peak is wrong"
    ]


def test_skipped_and_unsupported_measurements_are_listed() -> None:
    bf16_points = (
        make_point([64, 64, 64], rate=2e12),
        make_point([8, 8, 8], rate=None, reason="would take 3 s"),
    )
    ceilings = make_ceilings(
        [make_kind("matmul_bf16", *bf16_points), make_kind("matmul_tf32", reason="no such units")]
    )
    # "Card" is the name of the device in ``make_ceilings``. A kind without points, here tf32, could
    # not be measured at all; a point with the rate None was skipped.
    assert list_lines(ceilings) == [
        "Card",
        "rank 0: matmul bf16 skipped: 8x8x8 (would take 3 s)",
        "rank 0: matmul tf32: no such units",
    ]


def test_notes_are_in_the_language_of_the_page() -> None:
    # ``reason`` is the English text, ``why`` the message from which any language is made. On one
    # rank: a size of bf16 was skipped, and fp8 and copies to the device could not be measured.
    why = asdict(message("ceiling_time", needed_s=3.0, left_s=1.0))
    skipped = make_point([8, 8, 8], rate=None, reason="3 s needed, 1 s left", why=why)
    refused = make_kind(
        "matmul_fp8",
        reason="no such units",
        why=asdict(message("ceiling_precision", precision="fp8")),
    )
    copied = make_kind(
        "host_to_device", why=asdict(message("ceiling_host_memory")), reason="no copies"
    )
    ceilings = make_ceilings(
        [make_kind("matmul_bf16", make_point([64, 64, 64], rate=2e12), skipped), refused, copied]
    )
    # The first two blocks are the device and the table.
    assert [translate(x.text, "zh") for x in build_ceilings(ceilings)[2:]] == [
        "rank 0：矩阵乘 bf16 已跳过：8x8x8（需要 3 s，但只剩 1 s）",
        "rank 0：矩阵乘 fp8：该设备不支持 fp8 精度的计算",
        "rank 0：主机到设备：设备直接使用主机内存，主机与设备之间没有可测量的拷贝",
    ]
    assert list_lines(ceilings)[1] == "rank 0: matmul bf16 skipped: 8x8x8 (3 s needed, 1 s left)"
    (table,) = list_tables(ceilings)
    assert translate(table.rows[0][0], "zh") == "矩阵乘 bf16"


def test_a_collective_shows_its_bus_bandwidth() -> None:
    # The measured rate already counts the bytes on each link, ``bus_factor`` for each byte of a
    # message. The page only names it so and does not multiply it again.
    measured_point = make_point([1 << 20], rate=3e9)
    (table,) = list_tables(make_ceilings([make_kind("all_reduce", measured_point, bus_factor=1.5)]))
    (row,) = table.rows
    # Cells of the row: the work, the size, median, maximum, and the unit. The median of
    # ``make_point`` is three quarters of the maximum.
    assert (translate(row[0], "en"), *row[1:5]) == (
        "all reduce (bus)",
        "1 MiB",
        "2.250",
        "3.000",
        "GB/s",
    )


def test_use_by_other_processes_is_reported() -> None:
    ceilings = make_ceilings([make_kind("memory_copy", make_point([1 << 20], rate=5e9))])
    # The 2% that ``make_ceilings`` gives other programs are too little to report: it needs 10%.
    assert not any("other programs" in line for line in list_lines(ceilings))
    assert any(
        "other programs used 71%" in x for x in list_lines(ceilings | {"others_cpu_share": 0.71})
    )


def make_pair(ranks: list[int], rate: float | None, **more: Any) -> dict[str, Any]:
    """Return the measurement between two ranks with messages of 64 MiB.

    Args:
        ranks: numbers of the two.
        rate: the highest rate in one direction (bytes/s), None if none was measured; the median is
            three quarters of it.
        more: other fields of the measurement, such as its ``status``.
    """
    return {"ranks": ranks, "point": make_point([64 << 20], rate=rate, **more)}


def test_pairs_are_listed_from_the_slowest() -> None:
    # Three ranks, whose own measurements do not matter here; ``links`` has those between pairs.
    ceilings = make_ceilings([], [], [])
    ceilings["links"] = {
        "reason": None,
        "why": None,
        "pairs": [
            make_pair([0, 1], rate=40e9),
            make_pair([0, 2], rate=20e9),
            make_pair([1, 2], rate=50e9),
        ],
    }

    (links,) = list_tables(ceilings)
    # Median and maximum rate, swing, and the maximum's share of the median of all pairs. The points
    # of ``make_pair`` have three quarters of the maximum as the median, and a swing of 5%.
    assert [[translate(cell, "en") for cell in row] for row in links.rows] == [
        ["rank 0 - rank 2", "15.0", "20.0", "GB/s", "5.0%", "50%"],
        ["rank 0 - rank 1", "30.0", "40.0", "GB/s", "5.0%", "100%"],
        ["rank 1 - rank 2", "37.5", "50.0", "GB/s", "5.0%", "125%"],
    ]
    (slowest_pair_line,) = [
        line for line in list_lines(ceilings) if line.startswith("slowest pair")
    ]
    assert "rank 0 - rank 2, 20.0 GB/s (50% of the median over 3 pairs)" in slowest_pair_line
    assert "64 MiB in both directions" in slowest_pair_line  # the size of ``make_pair``'s points


def test_pairs_that_were_not_measured_have_a_reason() -> None:
    # ``links``: measurements between pairs of ranks. ``reason`` is the English text, ``why`` the
    # message from which any language is made. A rank's list is empty: only pairs matter here.
    single_rank = make_ceilings([])
    why = message("ceiling_one_process")
    single_rank["links"] = {"reason": "one process", "why": asdict(why), "pairs": None}
    assert "pairs of ranks: one process" in list_lines(single_rank)

    # A pair that received wrong numbers has no rate.
    wrong = make_ceilings([], [])
    fault = message("ceiling_numbers", wrong=1, of=9)
    faulty = {
        "status": "wrong",
        "reason": "1 of 9 numbers in the result are wrong",
        "why": asdict(fault),
    }
    wrong["links"] = {
        "reason": None,
        "why": None,
        "pairs": [make_pair([0, 1], rate=None, **faulty)],
    }
    assert "rank 0 - rank 1: 1 of 9 numbers in the result are wrong" in list_lines(wrong)
    assert has_wrong_results(wrong)
    assert list_tables(wrong) == []
