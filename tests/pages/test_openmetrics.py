"""OpenMetrics text, read by the public client's strict parser and by its Prometheus parser."""

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as collector_families

from exported_runs import write_two_ranks
from fakes import check_golden
from trainmark.pages.exports.openmetrics import to_openmetrics
from trainmark.record.record import FigureEntry


@pytest.fixture
def record(tmp_path):
    return write_two_ranks(tmp_path / "run")[0]


def samples(text, families=text_string_to_metric_families):
    return {
        (sample.labels["run_id"], sample.labels["figure"]): (family, sample)
        for family in families(text)
        for sample in family.samples
    }


def test_the_text_is_golden(record):
    check_golden("export_openmetrics.txt", to_openmetrics([record]))


def test_the_collectors_own_parser_reads_the_same(record):
    text = to_openmetrics([record, record.model_copy(update={"run_id": 'a"\\b'})])
    ours = {key: sample.value for key, (_, sample) in samples(text).items()}
    theirs = {key: sample.value for key, (_, sample) in samples(text, collector_families).items()}
    assert ours == theirs
    assert len(ours) == 2 * len(samples(to_openmetrics([record])))


def test_figures_whose_names_become_one_are_told_apart_by_their_label(record):
    own = {
        "a/b": FigureEntry(value=1.0, unit="x/y z"),
        "a b": FigureEntry(value=2.0, unit="x/y z"),
        "<&>": FigureEntry(value=3.0, unit=""),
    }
    found = samples(to_openmetrics([record.model_copy(update={"figures": own})]))
    named = {figure: (family.name, sample.value) for (_, figure), (family, sample) in found.items()}
    assert named == {
        "a/b": ("trainmark_a_b_x_per_y_z", 1.0),
        "a b": ("trainmark_a_b_x_per_y_z", 2.0),
        "<&>": ("trainmark", 3.0),
    }
