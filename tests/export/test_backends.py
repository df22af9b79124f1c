"""Each backend with its real program: all points, each once, also if a run is followed again.

`make test-nightly` installs the programs; without one its tests are skipped.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from support.fakes import EVALUATION
from support.telemetry_files import (
    GIB,
    make_devices_line,
    make_host_line,
    make_ranks_with_devices,
    make_start_line,
    write_sampled_run,
)
from trainmark.export.followers.reading import RunReader
from trainmark.plan.plan import read_plan
from trainmark.record import record, reduce

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")  # of the programs
MISSING = "not installed (make test-nightly)"
Values = dict[tuple[str, int], tuple[float, float]]  # value and time by series and number


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return a finished run of 16 steps on two ranks with a card each, which were read three times.

    Card ``index`` draws 100 W times the seconds of the reading (7, 8 and 9), plus ``index``.
    """
    lines: list[dict[str, Any]] = [make_start_line(0, 1)]  # the cards' indexes
    for t_s in (7.0, 8.0, 9.0):
        samples = [{"index": index, "power_w": 100.0 * t_s + index} for index in (0, 1)]
        lines += [make_devices_line(t_s, *samples), make_host_line(t_s, memory_used_bytes=GIB)]
    ranks = make_ranks_with_devices(2)
    for rank in ranks:
        # ``EVALUATION``: the index of the evaluation in the events of a rank.
        rank[EVALUATION]["detail"] = {"F1 score": 0.5}  # a name that backends must convert
    folder = write_sampled_run(tmp_path / "run", lines, ranks=ranks)
    record.write_record(reduce.reduce(folder), folder)
    return folder


def follow(run_dir: Path, *args: str, code: int = 0, **variables: str) -> str:
    """Call ``trainmark follow`` in another process; return its output.

    Args:
        run_dir: folder of the run.
        args: targets.
        code: the expected exit code.
        variables: further environment variables.
    """
    command = [sys.executable, "-m", "trainmark", "follow", str(run_dir)]
    process = subprocess.run(
        [*command, *(part for word in args for part in ("--to", word))],
        env=os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"} | variables,
        cwd=run_dir.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == code, process.stdout + process.stderr
    return process.stdout + process.stderr


def list_expected(run_dir: Path) -> Values:
    """Return everything that a backend must have.

    ``Values`` has the value and the time of each series and number, such as train/loss and step 3.
    """
    reader = RunReader(read_plan(run_dir), run_dir)
    # Points are values at a number (a step or a reading) and a time.
    points = [point for part in reader.iterate_new() for point in part]
    values = {
        (name, point.number): (value, point.unix_ns / 1e9)
        for point in points
        for name, value in point.values.items()
    }
    result = reader.read_result()
    assert result is not None
    for name, value in result.figures.items():
        values[name, result.num_steps] = value, result.unix_ns / 1e9
    assert len(values) > 100  # or there would be little to compare
    return values


def assert_same(exported: Values, expected: Values, *, time_within_s: float) -> None:
    """Compare the values of a backend, and their times up to its resolution.

    A key is the name of a series and a number on its axis, such as a step; it has a value and a
    time.

    Args:
        exported: what was read from the backend.
        expected: what the program read in the run.
        time_within_s: how far a time may be off: the backend rounds times.
    """
    assert exported.keys() == expected.keys()
    for key, (value, time_s) in expected.items():
        exported_value, exported_time_s = exported[key]
        assert exported_value == pytest.approx(value, rel=1e-6), key  # TensorBoard has 32 bits
        assert exported_time_s == pytest.approx(time_s, abs=time_within_s), key


def test_tensorboard_has_all_values_of_the_run(run_dir: Path, tmp_path: Path) -> None:
    """TensorBoard itself reads all values of the run, each once, from two folders.

    ``MISSING`` is the reason why the test is skipped where TensorBoard is not installed.
    ``run_dir`` is a run of 16 steps. ``follow`` calls the program with these targets: the usual
    folder in the run, and one that is named, which gets a subfolder of the run's id.
    ``list_expected`` has what the program read in the run.
    """
    pytest.importorskip("tensorboard", reason=MISSING)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    # A file of another program in the same folder is kept.
    foreign = run_dir / "tensorboard" / "events.out.tfevents.1"
    foreign.parent.mkdir()
    foreign.write_bytes(b"")
    for _ in range(2):  # following again writes nothing twice
        assert "16 steps" in follow(run_dir, "tensorboard", f"tensorboard={tmp_path / 'logs'}")
    assert foreign.exists()
    run_id = read_plan(run_dir).run_id
    for folder in (run_dir / "tensorboard", tmp_path / "logs" / run_id):
        assert len(list(folder.glob("*.trainmark"))) == 1
        keep_all = {"scalars": 0, "tensors": 0}
        events = EventAccumulator(str(folder), size_guidance=keep_all)
        events.Reload()
        scalars = {
            tag: [(item.step, (item.value, item.wall_time)) for item in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
        }
        exported = {(tag, step): value for tag, items in scalars.items() for step, value in items}
        # No step of a series was written twice.
        assert sum(map(len, scalars.values())) == len(exported)
        assert_same(exported, list_expected(run_dir), time_within_s=1e-5)
        (text,) = events.Tensors("run")
        assert b"| precision | fp32 |" in text.tensor_proto.string_val[0]


def test_mlflow_database_has_all_values_of_the_run(run_dir: Path, tmp_path: Path) -> None:
    """A database of MLflow has all values of the run, each once, its settings and status.

    ``MISSING`` is the reason why the test is skipped where a package is not installed. ``run_dir``
    is a run of 16 steps of the case toy in fp32. ``follow`` calls the program with the target,
    ``list_expected`` has what the program read in the run. MLflow keeps times in ms.
    """
    for package in ("mlflow", "alembic", "sqlalchemy"):
        pytest.importorskip(package, reason=MISSING)
    target = f"mlflow=sqlite:///{tmp_path / 'mlflow.db'}"
    for _ in range(2):  # following again writes nothing twice
        assert "16 steps" in follow(run_dir, target)
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        rows = database.execute("select key, step, value, timestamp from metrics").fetchall()
        runs = database.execute("select run_uuid, name, status from runs").fetchall()
        names = database.execute("select name from experiments").fetchall()
        settings = dict(database.execute("select key, value from params").fetchall())
        tags = dict(database.execute("select key, value from tags").fetchall())
    exported = {(key, step): (value, time_ms / 1e3) for key, step, value, time_ms in rows}
    assert len(rows) == len(exported)  # nothing was written twice
    assert_same(exported, list_expected(run_dir), time_within_s=2e-3)
    plan = read_plan(run_dir)
    assert [(name, status) for _, name, status in runs] == [(plan.run_id, "FINISHED")]
    assert ("trainmark",) in names
    assert (settings["precision"], settings["case"]) == ("fp32", "toy")
    assert (tags["trainmark.run_id"], tags["trainmark.status"]) == (plan.run_id, "passed")


def test_mlflow_completes_what_a_killed_follower_left(run_dir: Path, tmp_path: Path) -> None:
    # ``run_dir`` is a run of 16 steps, ``MISSING`` why the test is skipped without a package.
    # ``follow`` exports the run to the target; ``list_expected`` has what must be there: for each
    # series and number, such as a step, the value and the time.
    for package in ("mlflow", "alembic", "sqlalchemy"):
        pytest.importorskip(package, reason=MISSING)
    target = f"mlflow=sqlite:///{tmp_path / 'mlflow.db'}"
    follow(run_dir, target)
    expected = list_expected(run_dir)
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        # As if the follower had been killed after step 7. ``latest_metrics`` has the last point of
        # each metric: none of the figures, nor of evaluations, which come after step 7.
        database.execute("delete from metrics where step > 7 or key like 'final/%'")
        database.execute("delete from latest_metrics where key like 'final/%' or key like 'eval/%'")
        database.execute("update latest_metrics set step = 7 where step > 7")
    follow(run_dir, target)
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        rows = database.execute("select key, step from metrics").fetchall()
    assert sorted(rows) == sorted(expected)


def test_mlflow_folder_has_all_values_of_the_run(run_dir: Path, tmp_path: Path) -> None:
    # ``MISSING`` is why the test is skipped where MLflow is not installed. ``run_dir`` is a run of
    # 16 steps; ``follow`` exports it to the target; ``list_expected`` has what the program read in
    # the run. MLflow keeps times in ms.
    pytest.importorskip("mlflow", reason=MISSING)
    folder = tmp_path / "mlruns"
    for _ in range(2):  # following again writes nothing twice
        follow(run_dir, f"mlflow=file:{folder}")
    (metrics,) = folder.glob("*/*/metrics")
    # A file for each series. Each line is time, value and step.
    rows = [
        (path.relative_to(metrics).as_posix(), *line.split())
        for path in metrics.rglob("*")
        if path.is_file()
        for line in path.read_text().splitlines()
    ]
    exported = {
        (key, int(step)): (float(value), int(time_ms) / 1e3) for key, time_ms, value, step in rows
    }
    assert len(rows) == len(exported)  # nothing was written twice
    assert_same(exported, list_expected(run_dir), time_within_s=2e-3)


def read_wandb_file(path: Path) -> Iterator[bytes]:
    """Yield the records of W&B's file of an offline run, a log in the form of LevelDB."""
    # A file header of 7 bytes; blocks of 32 KiB; in them parts of records, each with a header
    # of 7 bytes: checksum, size and kind. A rest of a block that fits no header is padding.
    header_bytes = 7
    block_bytes = 1 << 15
    data = path.read_bytes()
    position = header_bytes
    record_part = b""
    while position + header_bytes <= len(data):
        remaining_bytes = block_bytes - position % block_bytes
        if remaining_bytes < header_bytes:
            position += remaining_bytes
            continue
        _, size, kind = struct.unpack_from("<IHB", data, position)
        record_part += data[position + header_bytes : position + header_bytes + size]
        position += header_bytes + size
        if kind in (1, 4):  # 1: a whole record; 4: the last part of one
            yield record_part
            record_part = b""


def test_wandb_offline_run_has_all_values(run_dir: Path, tmp_path: Path) -> None:
    """The file of W&B has all values of the run, each once, and not the name of the machine.

    ``MISSING`` is the reason why the test is skipped where W&B is not installed. ``run_dir`` is a
    run of 16 steps. ``follow`` calls the program with the target: the project "speed".
    ``list_expected`` has what the program read in the run.
    """
    pytest.importorskip("wandb", reason=MISSING)
    from wandb.proto import wandb_internal_pb2

    for _ in range(2):  # following again writes nothing twice
        output = follow(run_dir, "wandb=speed", WANDB_MODE="offline")
        assert "16 steps" in output
    (path,) = run_dir.glob("wandb/offline-run-*/*.wandb")
    exported: Values = {}
    summary: dict[str, Any] = {}
    for data in read_wandb_file(path):
        item = wandb_internal_pb2.Record.FromString(data)
        if item.WhichOneof("record_type") == "history":
            row = {(x.key or "/".join(x.nested_key)): x.value_json for x in item.history.item}
            # The series that counts the points of this row.
            (axis,) = row.keys() & {"train/step", "eval/step", "sys/reading", "sys/gpu/reading"}
            for name in row.keys() - {axis, "_step", "_runtime", "_timestamp"}:
                key = name, int(row[axis])
                assert key not in exported  # nothing was written twice
                exported[key] = float(row[name]), float(row["_timestamp"])
        elif item.WhichOneof("record_type") == "summary":
            for entry in item.summary.update:
                summary[entry.key or "/".join(entry.nested_key)] = json.loads(entry.value_json)
        elif item.WhichOneof("record_type") == "run":
            assert (item.run.run_id, item.run.project) == (read_plan(run_dir).run_id, "speed")
            assert item.run.host == "-"  # the name of the machine is not sent
    expected = list_expected(run_dir)
    # Final values go to the summary, all others to the history.
    final = {key: value for key, value in expected.items() if key[0].startswith("final/")}
    assert_same(exported, {k: v for k, v in expected.items() if k not in final}, time_within_s=1e-3)
    assert {name: summary[name] for name, _ in final} == {
        name: pytest.approx(value) for (name, _), (value, _) in final.items()
    }
    assert summary["status"] == "passed"


def test_openmetrics_file_has_the_final_values(run_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason=MISSING)
    from prometheus_client.openmetrics import parser as openmetrics
    from prometheus_client.parser import text_string_to_metric_families

    # ``MISSING`` is why the test is skipped where the package is not installed.
    # ``run_dir`` is a run of 16 steps with a loss of 0.25 at last; its two cards were last read at
    # 9 s. ``follow`` calls the program with two targets: the file of the run, and a folder.
    collected = tmp_path / "collected"
    collected.mkdir()
    for _ in range(2):  # following again replaces the file
        follow(run_dir, "openmetrics", f"openmetrics={collected}")
    run_id = read_plan(run_dir).run_id
    assert [path.name for path in collected.iterdir()] == [f"trainmark_{run_id}.prom"]
    text = (run_dir / "metrics.prom").read_text()
    assert text == (collected / f"trainmark_{run_id}.prom").read_text()
    families = list(openmetrics.text_string_to_metric_families(text))
    assert families
    # As node_exporter reads it: the older form of text, in which the last line is a comment.
    older = [item for family in text_string_to_metric_families(text) for item in family.samples]
    samples = {(item.name, item.labels.get("gpu")): item.value for item in older}
    assert len(samples) == len(older)  # no name occurs twice
    newest: dict[str, float] = {}
    # The last value of each series, by its number.
    for (name, _), (value, _) in sorted(list_expected(run_dir).items(), key=lambda x: x[0][1]):
        newest[name] = value
    # The last loss of the run, and the last reading of card 1: 100 W x 9 + 1 W.
    assert samples["trainmark_train_loss", None] == newest["train/loss"] == 0.25
    assert samples["trainmark_sys_gpu_power_watts", "1"] == newest["sys/gpu1/power_watts"] == 901.0
    assert samples["trainmark_eval_F1_score", None] == 0.5
    assert samples["trainmark_train_step", None] == 16
    assert (samples["trainmark_run_active", None], samples["trainmark_run_passed", None]) == (0, 1)
    assert len(samples) == len(newest) + 3  # the last three above are of the run itself
    assert all(item.labels["run_id"] == run_id for item in older)


@pytest.mark.parametrize(
    ("target", "package", "fault"),
    [
        ("tensorboard={file}/x", "tensorboard", "NotADirectoryError"),
        ("openmetrics={file}/x", "prometheus_client", "NotADirectoryError"),
        ("openmetrics=/dev/full", "prometheus_client", "No space left on device"),
        ("mlflow=http://127.0.0.1:9", "mlflow", "Connection refused"),
        ("mlflow=sqlite:///{file}/x.db", "alembic", "unable to open database file"),
        ("wandb", "wandb", "API key"),
    ],
)
def test_unusable_destination_gives_one_remark(
    run_dir: Path, tmp_path: Path, target: str, package: str, fault: str
) -> None:
    pytest.importorskip(package, reason=MISSING)
    # ``target`` is a backend and its destination, ``package`` what the backend needs (``MISSING``
    # is why the test is skipped without it), ``fault`` a part of the remark. Nothing listens on
    # port 9, and /dev/full is a file on a full disk. ``follow`` calls the program, which must exit
    # with 1.
    file = tmp_path / "file"
    file.write_text("")  # no folder can be made below a file
    # Files of the run but hidden ones, which hold the follower's lock.
    before = sorted(path.name for path in run_dir.glob("[!.]*"))
    output = follow(
        run_dir,
        target.format(file=file),
        code=1,
        # W&B finds no key: neither in the environment nor in the user's folder.
        WANDB_API_KEY="",
        HOME=str(tmp_path),
        WANDB_MODE="online",
        MLFLOW_HTTP_REQUEST_MAX_RETRIES="0",
    )
    remarks = [line for line in output.splitlines() if line.startswith("trainmark:")]
    assert len(remarks) == 1
    # The database's own message is too long to be in the remark.
    assert fault in remarks[0] or package == "alembic", remarks
    assert "Traceback" not in output
    # Except for wandb's own folder, nothing was left in the run.
    assert sorted(path.name for path in run_dir.glob("[!.]*") if path.name != "wandb") == before
