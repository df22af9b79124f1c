"""Pages about many runs: the list, a page for each case, and one for all machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmark.judge.comparison.history import change_points
from trainmark.pages import cells, chart_specs
from trainmark.pages.document import Bar, Bars, Block, Chart, Paragraph, Section, build_table
from trainmark.pages.rendering import render_template
from trainmark.pages.site.launches import (
    WORK_KEYS,
    compute_mean,
    find_worst_grade_of_launches,
    format_work_values,
    get_known_speed,
    get_speed,
    get_speed_unit,
    group_launches_by_work,
    list_differing_settings,
    name_speed_column,
    select_launches,
)
from trainmark.pages.site.rows import (
    FILTERED_FIGURES,
    LIST_COLUMNS,
    OPTIONAL_COLUMNS,
    build_row,
    format_date,
    format_speed,
    list_shown_columns,
)
from trainmark.pages.site.views import MAX_COMPARED, build_page
from trainmark.pages.texts import Link, Phrase, count_in_words, phrase, translate_headings
from trainmark.record.figures import FIGURES
from trainmark.results.store.columns import IMPORTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trainmark.pages.document import Table
    from trainmark.pages.site.launches import Launch, Run
    from trainmark.pages.site.views import Links

MAX_ROWS = 2_000  # of the list, which the site's script filters; of a line over time
# Columns of the tables on a case's page.
_CASE_COLUMNS = (
    "device",
    "precision",
    "world",
    "settings",
    "speed",
    "interval",
    "MFU",
    "quality",
    "recipe",
    "started_utc",
    "trust",
    "run_id",
)
_NUMBERS = ("world", "speed", "MFU", "quality")  # columns that are aligned as numbers
_MAX_LINES = 7  # of a history


def build_list_page(runs: Sequence[Run], links: Links) -> str:
    """Return the page with the list of the newest runs.

    Args:
        runs: the launches of each run, of all cases; the newest run first.
        links: addresses of other pages, in the language of this one.
    """
    newest_runs = runs[:MAX_ROWS]
    total = cells.format_integer(len(runs))
    counted = phrase("site.counted", shown=cells.format_integer(len(newest_runs)), total=total)
    rows = [
        build_row(run, links, settings)
        for run, settings in zip(newest_runs, list_differing_settings(newest_runs), strict=True)
    ]
    return render_template(
        "site/list.html.j2",
        links.lang,
        links=links,
        rows=rows,
        columns=list_shown_columns(LIST_COLUMNS, rows),
        numbers=_NUMBERS,  # the columns that are aligned as numbers
        counted=counted,
        total=total,
        # Units of the figures that a filter can name. A few of them are not in `FIGURES`.
        units={name: FIGURES[name].unit for name in FILTERED_FIGURES if name in FIGURES},
        cases=sorted({run[0]["case"] for run in runs}),
        most=MAX_COMPARED,  # the number of runs that a reader can choose for a comparison
        charts=False,  # the page does not load the script that draws charts
    )


def build_case_page(runs: Sequence[Run], case: str, links: Links) -> str:
    """Return the page of a case: a table of speeds, bars that compare devices, speed over time.

    All three show the launches whose figures may be quoted. If there are none for a device with
    some number of ranks, they show all launches with this device and number that passed. Imported
    rows have a table of their own.

    Args:
        runs: the launches of each run; those of other cases are left out.
        case: its name.
        links: addresses of other pages, in the language of this one.
    """
    launches = [x for run in runs for x in run if x["case"] == case]
    works = group_launches_by_work(select_launches(launches))  # launches by the name of their work
    # Rows that were imported from other projects, each a run of its own.
    imported = [[launch] for launch in launches if launch["status"] == IMPORTED]
    imported_sections = []
    if imported:
        heading = phrase(f"status.{IMPORTED}")
        imported_table = _build_case_table(imported, links)
        imported_sections.append(Section(heading, IMPORTED, (imported_table,)))
    if not works:
        return build_page(
            links, case, imported_sections, lead=[Paragraph(phrase("site.none_good"), "warn")]
        )
    sections = [Section(phrase("site.best"), "best", (_build_case_table(works.values(), links),))]
    bars = _build_bars(works)
    if bars:
        sections.append(Section(phrase("site.devices"), "devices", bars))
    any_launch = next(iter(works.values()))[0]  # the unit is the same for all of a case
    speed_heading = phrase("site.speed_unit", unit=get_speed_unit(any_launch))
    history = _build_history(works, speed_heading, links)
    sections.append(Section(phrase("site.over_time"), "over-time", (history,)))
    return build_page(links, case, [*sections, *imported_sections])


def _build_case_table(runs: Iterable[Run], links: Links) -> Table:
    """Return a table for the page of a case, a row for each run, the machine in the first column.

    Its cells are those of the page with the list of runs, and a few more.

    Args:
        runs: all of one case. Each is a list of launches that did the same work, or a list of a
            single imported row.
        links: addresses of other pages.
    """
    listed_runs = list(runs)
    # Of each run what its row of the list shows: a text and a sort value by column in ``cells``.
    list_rows = [
        build_row(run, links, settings)
        for run, settings in zip(listed_runs, list_differing_settings(listed_runs), strict=True)
    ]
    # Only the optional columns are looked up in the rows of the list, which lack some columns of
    # this table, such as the interval.
    optional_columns = list_shown_columns(OPTIONAL_COLUMNS, list_rows)
    columns = [
        name for name in _CASE_COLUMNS if name not in OPTIONAL_COLUMNS or name in optional_columns
    ]
    rows: list[list[Phrase]] = []
    for run, list_row in zip(listed_runs, list_rows, strict=True):
        texts = {name: text for name, (text, _) in list_row["cells"].items()}
        texts["run_id"] = list_row["short_id"]
        speed = get_speed(run)  # None: an imported row without this figure
        # Without its unit, which is in the heading.
        texts["speed"] = None if speed is None else format_speed(speed)
        if list_row["address"]:  # measured here: it has a page, a grade of trust, and launches
            texts["device"] = Link(texts["device"], list_row["address"])
            texts["trust"] = phrase(f"trust.{find_worst_grade_of_launches(run)}")
            texts["interval"] = list_row["speed_interval"] or count_in_words("launches", 1)
        else:  # an imported row; its badge says so
            texts["trust"] = list_row["badge"]
            texts["interval"] = ""
        # None is shown as a dash.
        rows.append([texts[name] or None for name in columns])
    headings: list[Phrase] = []
    for name in columns:
        if name == "speed":
            # The unit is the same for all runs of a case.
            unit = get_speed_unit(listed_runs[0][0])
            headings.append(phrase("site.speed_unit", unit=unit))
        else:
            headings.append(phrase(f"site.{name}"))
    return build_table(headings, rows)


def _build_bars(works: dict[str, list[Launch]]) -> tuple[Block, ...]:
    """Return bars that compare the speeds of devices, with their power.

    A work is all that must be equal for launches to be comparable, with the devices. Works that
    differ only in their devices form a group. Each group of at least two has a block, with a bar
    for each work.

    Args:
        works: launches of each work, by the work's name; the fastest work first.
    """
    # The column ``comparable`` has a hash of the work without its devices.
    groups: dict[str, list[list[Launch]]] = {}  # the launches of each work of a group, by this hash
    for launches in works.values():
        groups.setdefault(launches[0]["comparable"], []).append(launches)
    blocks: list[Block] = []
    for group in groups.values():
        if len(group) < 2:
            continue
        highest_speed = get_known_speed(group[0])  # its bar has the whole width
        bars = []
        for launches in group:
            speed = get_known_speed(launches)
            power = compute_mean(launches, "power")
            unit = get_speed_unit(launches[0])
            shown: tuple[Phrase, ...] = (cells.format_rate(speed), " ", unit)
            if power:
                shown += (f" · {power:,.0f} W · {cells.format_rate(speed / power)} ", unit, "/W")
            bars.append(
                Bar(
                    launches[0]["device"],
                    start=0.0,
                    end=speed / highest_speed,
                    colour="other",
                    shown=shown,
                )
            )
        # The title names recipe, precision and number of ranks.
        work = " · ".join(format_work_values(group[0][0], WORK_KEYS))
        title = phrase("site.same_work", what=work)
        blocks.append(Bars(title, tuple(bars)))
    return tuple(blocks)


def build_machines_page(runs: Sequence[Run], links: Links) -> str:
    """Return all cases on one page: a row for each machine, a column for each case.

    A machine is a device with a number of ranks. If it did a case in several ways, with other
    recipes or settings for instance, the cell is of the fastest. The cell has the speed, and the
    time to the target if it was reached.

    Args:
        runs: the launches of each run, of all cases.
        links: addresses of other pages.
    """
    # A work can have launches of several runs, so all launches are grouped anew.
    works = group_launches_by_work(select_launches([launch for run in runs for launch in run]))
    cases = sorted({launches[0]["case"] for launches in works.values()})
    cells_by_machine: dict[tuple[str, str], dict[str, Phrase]] = {}
    for launches in works.values():  # the fastest first
        first_launch = launches[0]
        machine = (first_launch["device"], first_launch["world"])  # "world": the number of ranks
        machine_cells = cells_by_machine.setdefault(machine, {})
        if first_launch["case"] not in machine_cells:
            address = links.get_run_address(first_launch["run_id"])
            machine_cells[first_launch["case"]] = Link(_describe_speed(launches), address)
    rows = [
        [*machine, *(machine_cells.get(case) for case in cases)]
        for machine, machine_cells in cells_by_machine.items()
    ]
    columns = [
        *translate_headings("site.device", "site.world"),
        *(Link(case, links.get_case_address(case)) for case in cases),
    ]
    section = Section(phrase("site.machines_lead"), "machines", (build_table(columns, rows),))
    return build_page(links, phrase("site.machines"), [section])


def _describe_speed(launches: list[Launch]) -> Phrase:
    """Return the time to the target if it was reached, the speed, and a grade below ``usable``.

    Time and speed are means over the launches. The grade is the worst grade of trust among them.

    Args:
        launches: of one work, all of which have a speed.
    """
    time = compute_mean([x for x in launches if x["quality_reached"]], "e2e_time")
    time_text = "" if time is None else f"{cells.format_duration(time)} · "
    speed_text = format_speed(get_known_speed(launches))
    text: Phrase = (time_text, speed_text, " ", get_speed_unit(launches[0]))
    grade = find_worst_grade_of_launches(launches)
    if grade == "usable":  # nothing to warn of
        return text
    return (text, " [", phrase(f"trust.{grade}"), "]")


def _build_history(works: dict[str, list[Launch]], speed_heading: Phrase, links: Links) -> Chart:
    """Return a chart of speeds over time, a line for each of the works with the most launches.

    It marks the launches at which the level of a line changes. The table of its values also has the
    relative change, and the commit of Trainmark that made each launch.

    Args:
        works: launches of each work, by its name.
        speed_heading: the word for speed with its unit.
        links: addresses of other pages.
    """
    # Names of works, which are the series of the chart.
    most_frequent = sorted(works, key=lambda name: len(works[name]), reverse=True)[:_MAX_LINES]
    points: list[dict[str, Any]] = []  # data of the lines, an entry for each launch
    change_marks: list[dict[str, Any]] = []  # data of the marks, an entry for each change
    rows: list[list[Phrase]] = []  # of the table
    for name in most_frequent:
        oldest_first = sorted(works[name], key=lambda launch: launch["started_utc"])
        launches = oldest_first[-MAX_ROWS:]  # the newest
        times = [launch["started_utc"] for launch in launches]
        speeds = [launch[name_speed_column(launch)] for launch in launches]
        # By the index of the first launch after the change.
        changes = {change.index: change for change in change_points(times, speeds)}
        change_marks += [{"series": name, "started": times[index]} for index in changes]
        for index, (launch, speed) in enumerate(zip(launches, speeds, strict=True)):
            points.append({"series": name, "started": times[index], "value": speed})
            change_text = None
            if index in changes:
                change = changes[index]  # has the median speeds before and after it
                change_text = f"{change.after / change.before - 1:+.1%}"
            when = Link(format_date(launch), links.get_run_address(launch["run_id"]))
            commit = (launch["suite_commit"] or cells.NOTHING)[:10]
            rows.append([when, name, cells.format_rate(speed), change_text, commit])
    columns = [
        phrase("site.started_utc"),
        phrase("site.series"),
        speed_heading,
        phrase("site.changes"),
        phrase("site.commit"),
    ]
    description = phrase(
        "site.history_seen",
        launches=len(points),
        series=len(most_frequent),
        steps=len(change_marks),  # sudden changes of the speed, no steps of a training
    )
    return Chart(
        "history",
        phrase("site.history", figure=speed_heading),
        description,
        chart_specs.draw_history(has_changes=bool(change_marks)),
        {"history": points, "changes": change_marks},
        build_table(columns, rows),
    )
