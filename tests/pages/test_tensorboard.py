"""Event files of TensorBoard, read back by its own reader."""

import socket

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from exported_runs import write_two_ranks
from trainmark.pages.exports.trackers import write_tensorboard

START_S = 1767323045.0  # 2026-01-02T03:04:05Z


@pytest.fixture
def record(tmp_path):
    return write_two_ranks(tmp_path / "run")[0]


def read(folder):
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    return found.Reload()


def test_steps_evaluations_figures_and_settings_are_read_back(record, tmp_path):
    write_tensorboard([record], tmp_path / "boards")
    found = read(tmp_path / "boards" / record.run_id)
    series = {
        tag: [(item.step, item.value) for item in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }
    assert series["train/loss"] == list(enumerate(record.steps.loss, start=1))
    assert series["train/step_time_s"] == [(step, 0.125) for step in range(1, 13)]
    assert series["train/samples_per_s"] == [(step, 512.0) for step in range(1, 13)]
    assert series["eval/acc"] == [(4, 0.75), (12, 0.9375)]
    assert series["figure/p_train"] == [(12, 384.0)]
    known = {f"figure/{name}" for name, entry in record.figures.items() if entry.value is not None}
    assert known == {tag for tag in series if tag.startswith("figure/")}
    assert {item.wall_time for item in found.Scalars("train/loss")} == {START_S}
    (settings,) = found.Tensors("settings")
    (text,) = settings.tensor_proto.string_val
    assert (
        b"| recipe/micro\\_batch\\_size | 64 |" in text
        or b"| recipe/micro_batch_size | 64 |" in text
    )
    assert f"| run_id | {record.run_id} |".encode() in text


def test_neither_host_nor_process_is_in_the_name(record, tmp_path):
    write_tensorboard([record], tmp_path)
    (file,) = (tmp_path / record.run_id).iterdir()
    assert file.name == "events.out.tfevents.1767323045.trainmark"
    assert socket.gethostname().encode() not in file.read_bytes()
