"""Charts of a run's own files, of references and of scaling: exact numbers, golden files."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from comparison_records import row, series
from fakes import check_golden
from telemetry_files import GIB, busy, cards, devices, end, host, sampled_run, start
from trainmark.pages import drawing
from trainmark.pages.charts import efficiency, over_time, ranks, references
from trainmark.pages.document import Chart, Paragraph
from trainmark.pages.page import compose, pages_of
from trainmark.record import building
from trainmark.record.rows import Reading
from trainmark.record.series import MOST_LINES, RunSeries, step_shares
from trainmark.record.trust import with_findings
from trainmark.spec import message

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trainmark.pages.document import Section
    from trainmark.record.record import Record

LANGUAGES = pytest.mark.parametrize("lang", ["en", "zh"])
TIMES_S = (0.0, 4.0, 8.0, 9.0, 12.0)
HOSTILE = "</script><b>&\x1b[31m\u202e"


def golden(name: str, chart: Chart) -> None:
    """Compare what this chart alone has: all charts share the configuration."""
    document = chart.spec | {"datasets": chart.data}
    text = json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True)
    check_golden(f"chart.{name}.json", text + "\n")


def charts_of(section: Section | None) -> dict[str, Chart]:
    assert section is not None
    return {block.name: block for block in section.blocks if isinstance(block, Chart)}


def paragraphs(section: Section | None) -> list[str]:
    assert section is not None
    return [block.text for block in section.blocks if isinstance(block, Paragraph)]


def sampled(tmp_path: Path, world: int = 2, **told: Any) -> Record:
    lines = [start(*range(world))]
    for t_s in TIMES_S:
        hot = {"throttle_reasons": ["thermal"]} if t_s == 9.0 else {}
        samples = [busy(t_s, n, temperature_c=40.0 + n + t_s, **told | hot) for n in range(world)]
        lines += [devices(t_s, *samples), host(t_s, cpu_percent=25.0, memory_used_bytes=8 * GIB)]
    folder = sampled_run(tmp_path / "run", [*lines, end()], ranks=cards(world))
    return building.build(folder)


def test_each_quantity_has_a_chart_in_its_order(tmp_path: Path) -> None:
    drawn = charts_of(over_time.section(sampled(tmp_path), "en"))
    assert list(drawn) == [
        "time-device-memory", "time-device-busy", "time-device-power", "time-device-temperature",
        "time-host-memory", "time-host-busy",
    ]  # fmt: skip
    memory = drawn["time-device-memory"]
    assert memory.data["lines"][2:4] == [{"s": 8.0, "v": 10.0, "of": "0"},
                                         {"s": 9.0, "v": 10.0, "of": "0"}]  # fmt: skip
    assert memory.data["measured"] == [{"from": 8.0, "to": 9.625}]
    heat = drawn["time-device-temperature"]
    assert heat.table.rows == (
        ("1", "41.0", "53.0", "12.0", "1", "5"), ("0", "40.0", "52.0", "12.0", "1", "5"),
    )  # fmt: skip
    assert heat.description == (
        "Temperature, 2 devices: 40.0 to 53.0 °C, highest on rank 1 at 12.0 s. "
        "Triangles mark readings with clocks lowered beyond the set limits: 2."
    )
    assert heat.data["lowered"] == [
        {"s": 9.0, "v": 50.0, "of": "1", "why": "thermal"},
        {"s": 9.0, "v": 49.0, "of": "0", "why": "thermal"},
    ]
    golden("temperature", heat)


def test_many_devices_are_a_band(tmp_path: Path) -> None:
    record = sampled(tmp_path, world=MOST_LINES + 1)
    heat = charts_of(over_time.section(record, "en"))["time-device-temperature"]
    assert heat.data["lines"][0] == {"s": 0.03, "lowest": 40.0, "median": 44.0, "highest": 48.0}
    assert len(heat.data["lines"]) == len(TIMES_S)
    assert [row[0] for row in heat.table.rows] == [str(n) for n in range(8, -1, -1)]
    golden("temperature_of_many", heat)


def ranked(record: Record, step_ns: Sequence[int], **fields: Sequence[Any]) -> Record:
    entries = [
        record.ranks[0].model_copy(
            update={"rank": rank, "step_ns": time_ns} | {n: x[rank] for n, x in fields.items()}
        )
        for rank, time_ns in enumerate(step_ns)
    ]
    return record.model_copy(update={"ranks": entries})


def with_series(record: Record, **series: Any) -> Record:
    return record.model_copy(update={"series": RunSeries(**series)})


def some_record() -> Record:
    return series("r", [100.0])[0]


def test_the_slowest_rank_is_named_and_comes_first() -> None:
    record = ranked(some_record(), [100_000_000, 110_000_000, 100_000_000, 99_000_000])
    found = step_shares([np.array([time] * 4) for time in (100, 110, 100, 99)])
    assert found is not None
    drawn = charts_of(ranks.section(with_series(record, steps=found), "en"))
    steps = drawn["ranks-steps"]
    assert steps.data["cells"][0] == {"of": "1, slowest", "step": 1, "over": 0.1}
    assert [row["over"] for row in steps.data["cells"]] == [0.1] * 4 + [0.0] * 8 + [-0.01] * 4
    assert steps.table.rows[0] == ("1", "1.100", "1.100", "1–1")
    assert steps.description == (
        "Time of 4 ranks over 4 steps, each stretch of steps over that of the median rank in it. "
        "Rank 1 is the slowest: its median step takes 0.11 s, 10.0% more than the median rank's. "
        "The longest single step against its median is step 1 of rank 1: 1.10 times."
    )
    golden("ranks_steps", steps)


def test_without_events_the_record_names_the_slowest() -> None:
    record = ranked(
        some_record(), [100, 100, 120], wait_ns=[10, 30, 10],
        matmul_flops_per_second=[4e12, 2e12, 4e12],
    )  # fmt: skip
    drawn = charts_of(ranks.section(record, "en"))
    assert list(drawn) == ["ranks-known"]
    cells = {(one["of"], one["what"]): one["over"] for one in drawn["ranks-known"].data["cells"]}
    assert cells["2, slowest", "median step"] == 0.2
    assert cells["1", "wait for data, of a step"] == 0.2
    assert cells["1", "matmul rate"] == 0.5
    assert cells["0", "matmul rate"] == 0.0
    golden("ranks_known", drawn["ranks-known"])


def test_of_ranks_that_are_alike_none_is_called_slowest() -> None:
    drawn = charts_of(ranks.section(ranked(some_record(), [100, 100]), "en"))["ranks-known"]
    assert {one["of"] for one in drawn.data["cells"]} == {"0", "1"}
    assert "slowest" not in drawn.description


def test_a_thousand_ranks_keep_the_slowest_and_the_worst_of_each_row() -> None:
    world, slow, spiked = 1024, 700, 3
    times = [np.full(400, 100) for _ in range(world)]
    times[slow] = times[slow] + 20
    times[spiked][:2] = 150
    found = step_shares(times)
    record = ranked(some_record(), [100 + 20 * (rank == slow) for rank in range(world)])
    steps = charts_of(ranks.section(with_series(record, steps=found), "en"))["ranks-steps"]
    rows = list(dict.fromkeys(one["of"] for one in steps.data["cells"]))
    assert len(rows) == ranks.MOST_ROWS + 1
    assert rows[:2] == ["700, slowest", "0-31"]
    assert "672-699,701-704" in rows
    first = [one["over"] for one in steps.data["cells"] if one["of"] == "0-31"]
    assert first == [0.5] + [0.0] * 99
    assert len(steps.table.rows) <= 40
    assert steps.table.rows[0][0] == "700"
    assert len(json.dumps(drawing.document(steps))) < 250_000


def test_one_rank_or_none_with_steps_is_no_section() -> None:
    assert ranks.section(ranked(some_record(), [100]), "en") is None
    silent = ranked(some_record(), [0, 0])
    assert ranks.section(silent, "en") is None
    why = message("ranks_not_compared", cells=10, most=5)
    assert paragraphs(ranks.section(with_series(silent, no_steps=why), "en"))[-1] == (
        "steps of ranks are not compared: 10 of all ranks, beyond 5"
    )


def launches(name: str, rates: Sequence[float]) -> list[Record]:
    changed = {"micro_batch_size": 96, "learning_rate": 0.00015}
    return [
        one.model_copy(update={"plan": one.plan.model_copy(update={"fix_hp": changed})})
        for one in series(name, rates)
    ]


def test_bars_of_each_kind_of_evidence() -> None:
    own = launches("b", [100.0, 101.0, 99.0, 100.5, 99.5])
    bare = [with_findings(one, [message("evidence_absent")]) for one in launches("c", [50.0] * 5)]
    rows = [row(3), row(4, 80.0, evidence="B", device=HOSTILE)]
    section = references.section(own, [*bare, *rows, own[0]], "en")
    chart = charts_of(section)["against"]
    shown = {one["label"]: one for one in chart.data["bars"]}
    assert [(one["kind"].partition(":")[0], one["value"]) for one in shown.values()] == [
        ("own runs, evidence agrees", 100.0), ("own runs without evidence", 50.0), ("C", 200.0),
        ("B", 80.0),
    ]  # fmt: skip
    first, second, *printed = chart.data["bars"]
    assert (first["low"], first["high"]) == (99.0, 101.0)
    assert second["shown"].startswith("NVIDIA A100-SXM4-40GB 1 node x 2 (1x2) [2]:  50.0  ×2.00 (")
    assert printed[0]["shown"] == "A100 1x2:  200.0  ×0.500"
    assert printed[1]["shown"].endswith("1x2:  80.0  ×1.25")
    assert [one["low"] for one in printed] == [None, None]
    assert chart.table.rows[2] == (
        "A100 1x2", "C: published figures alone", "200.0", "/", "1", "0.500", "page.md:3",
    )  # fmt: skip
    assert "\x1b" not in json.dumps(drawing.document(chart))
    layer = chart.spec["layer"][0]["encoding"]
    assert len(set(layer["fill"]["scale"]["range"])) == 4
    assert len(set(map(tuple, layer["strokeDash"]["scale"]["range"]))) == 2
    golden("against", references.section(own, rows[:1], "en").blocks[0])  # type: ignore[union-attr, arg-type]


def test_a_bar_is_over_the_launches_that_count() -> None:
    missed = [one.model_copy(update={"status": "target_missed"}) for one in launches("m", [900.0])]
    other = [*launches("c", [50.0, 51.0]), *missed]
    section = references.section(launches("b", [100.0]), other, "en")
    _, bar = charts_of(section)["against"].data["bars"]
    assert (bar["value"], bar["low"], bar["high"]) == (50.5, 50.0, 51.0)


def test_every_kind_differs_in_colour_and_in_shape() -> None:
    looks = references.LOOKS.values()
    assert len({colour for colour, *_ in looks}) == len(looks) == len({look[1] for look in looks})


def test_other_work_is_refused_with_the_key_and_no_bar() -> None:
    own = launches("b", [100.0, 101.0])
    rows = [row(1, nproc=8), row(2, nproc=8), row(3, precision="fp32"), row(4, None)]
    section = references.section(own, rows, "en")
    assert charts_of(section) == {}
    assert paragraphs(section) == [
        "References that are not compared, because ran_world is not the same (1x2 / 1x8): 2",
        "References that are not compared, because precision is not the same (tf32 / fp32): 1",
        "References that are not compared, because it tells no throughput of a passed run "
        "in the same unit: 1",
    ]
    other = [one.model_copy(update={"run_id": f"o{one.run_id}"}) for one in series("o", [90.0])]
    changed = other[0].plan.recipe | {"precision": "bf16"}
    plan = other[0].plan.model_copy(update={"recipe": changed})
    (said,) = paragraphs(
        references.section(own, [other[0].model_copy(update={"plan": plan})], "zh")
    )
    assert "precision 不同（tf32 / bf16）" in said


def test_a_figure_in_another_unit_is_no_bar() -> None:
    told = {"p_core": Reading(value=5e4, unit="tokens/s", raw="", how="number")}
    section = references.section(launches("b", [100.0]), [row(1, figures=told), row(2)], "en")
    chart = charts_of(section)["against"]
    assert [one["value"] for one in chart.data["bars"]] == [100.0, 200.0]
    assert len(paragraphs(section)) == 2  # one says why


@pytest.mark.parametrize(("nproc", "compared"), [(2, True), (8, False)])
def test_only_a_comparison_stands_above_the_figures(nproc: int, compared: bool) -> None:
    made = compose(launches("b", [100.0, 101.0]), against=[row(1, nproc=nproc)])
    anchors = [section.anchor for section in made.sections]
    assert (anchors.index("against") < anchors.index("figures")) is compared


def test_a_page_shows_rows_of_its_case_or_of_an_unknown_one() -> None:
    against = [row(1), row(2, case=None), row(3, case=None, model="resnet50"), row(4, case="toy")]
    made = pages_of(launches("b", [100.0]), ["en"], against=against)["en"][0]
    chart = charts_of(next(one for one in made.sections if one.anchor == "against"))["against"]
    assert [cells[-1] for cells in chart.table.rows] == ["b1", "page.md:1", "page.md:2"]


def test_very_many_references_are_some_bars_and_a_count() -> None:
    rows = [row(line, 100.0 + line) for line in range(30)]
    section = references.section(launches("b", [100.0]), rows, "en")
    assert len(charts_of(section)["against"].data["bars"]) == 25
    assert paragraphs(section)[-1] == "and 6 more references that are not drawn"


def test_figures_beyond_all_bounds_are_still_drawn() -> None:
    record = ranked(some_record(), [1, 2**63 - 1], matmul_flops_per_second=[5e-324, 1e150])
    drawn = charts_of(ranks.section(record, "en"))["ranks-known"]
    assert {one["over"] for one in drawn.data["cells"]} == {1e6, 0.0, -1e6}
    section = references.section(launches("b", [1e-150]), [row(3, 1e150)], "en")
    for chart in (drawn, charts_of(section)["against"]):
        ET.fromstring(drawing.svg(chart))


def test_runs_of_other_devices_are_compared_and_named() -> None:
    own, other = launches("b", [100.0] * 5), launches("d", [50.0] * 5)
    named = {"devices": [{"name": "Other 9000"}] * 2}
    other = [one.model_copy(update={"environment": one.environment | named}) for one in other]
    chart = charts_of(references.section(own, other, "en"))["against"]
    assert chart.data["bars"][1]["label"] == "Other 9000 1 node x 2 (1x2)"


def test_failed_runs_and_no_references_are_no_section() -> None:
    own = launches("b", [100.0])
    failed = [one.model_copy(update={"status": "failed"}) for one in own]
    assert references.section(failed, [row(3)], "en") is None
    assert references.section(own, [], "en") is None
    assert references.section(own, own, "en") is None


def worlds() -> list[dict[str, Any]]:
    return [
        {"world": "1x1", "efficiency": [1.0, 1.0, 1.0]},
        {"world": "1x8", "efficiency": [0.95, 0.91, 0.99]},
        {"world": "2x8", "efficiency": [0.85, 0.77, 0.94]},
    ]


def test_scaling_has_its_interval_and_the_ideal() -> None:
    chart = efficiency.chart(worlds(), "en")
    assert [(one["devices"], one["share"]) for one in chart.data["worlds"]] == [
        (1, 100.0), (8, 95.0), (16, 85.0),
    ]  # fmt: skip
    assert chart.data["ideal"] == [{"share": 100}]
    assert chart.table.rows[-1] == ("2x8", "16", "85.0%", "77.0%", "94.0%")
    golden("efficiency", chart)


@LANGUAGES
def test_all_are_drawn_in_both_languages(tmp_path: Path, lang: str) -> None:
    record = sampled(tmp_path)
    own = launches("b", [100.0] * 5)
    drawn = [
        *charts_of(over_time.section(record, lang)).values(),
        *charts_of(ranks.section(record, lang)).values(),
        *charts_of(references.section(own, [row(3, configuration=HOSTILE)], lang)).values(),
        efficiency.chart(worlds(), lang),
    ]
    assert len({chart.name for chart in drawn}) == len(drawn) == 10
    for chart in drawn:
        picture = drawing.svg(chart)
        ET.fromstring(picture)
        assert "NaN" not in picture
        assert "undefined" not in picture
