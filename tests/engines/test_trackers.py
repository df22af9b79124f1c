"""Runs written to W&B and MLflow without a network, read back as those programs keep them."""

import getpass
import json
import re
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from exported_runs import write_two_ranks

# Of MLflow's own code.
pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")

HOSTILE = "../../x\n:::MLLOG '\"); DROP TABLE runs;--\x1b[31m"
_BLOCK_BYTES, _HEADER_BYTES = 32_768, 7  # LevelDB's log format


@pytest.fixture
def record(tmp_path, request):
    name = "mlflow" if "mlflow" in request.node.name else "wandb"
    pytest.importorskip(name, reason=f"no {name} here (make test-engines)")
    return write_two_ranks(tmp_path / "run")[0]


def export(form, run, output):
    """Run the program in a process of its own, without a network where the kernel allows it."""
    apart = ["unshare", "--map-root-user", "--net"]
    allowed = subprocess.run([*apart, "true"], capture_output=True, check=False).returncode == 0
    words = ["export", run, "--to", form, "-o", output]
    code = (  # the evidence is invented
        "from trainmark.library import selection\nselection.checked = lambda record, _: record\n"
        "from trainmark.cli.app import main\nmain()\n"
    )
    return subprocess.run(
        [*(apart if allowed else []), sys.executable, "-c", code, *map(str, words)],
        capture_output=True, text=True, check=False, timeout=200, cwd=run.parent,
    )  # fmt: skip


def wandb_records(file: Path):
    """Return the records of an offline run."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, found, part = file.read_bytes(), [], b""
    assert data[:4] == b":W&B"
    at = _HEADER_BYTES
    while at < len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEADER_BYTES:  # padding
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        part += data[at + _HEADER_BYTES : at + _HEADER_BYTES + size]
        at += _HEADER_BYTES + size
        if kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(part))
            part = b""
    return found


def items(found):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in found}


def test_wandb_keeps_steps_evaluations_figures_and_settings(record, tmp_path):
    done = export("wandb", tmp_path / "run", tmp_path / "wandb_runs")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    (file,) = (tmp_path / "wandb_runs" / record.run_id / "wandb").glob("offline-run-*/*.wandb")
    found = wandb_records(file)
    (run,) = [item.run for item in found if item.WhichOneof("record_type") == "run"]
    assert (run.run_id, run.project) == (record.run_id, "trainmark")
    config = items(run.config.update)
    assert config["run_id"] == record.run_id
    assert config["recipe/micro_batch_size"] == 64
    history = [items(item.history.item) for item in found if item.HasField("history")]
    values = [(row["_step"], name, row[name]) for row in history for name in row if name[0] != "_"]
    losses = [(step, value) for step, name, value in values if name == "train/loss"]
    assert losses == list(enumerate(record.steps.loss, start=1))
    assert [x for x in values if x[1] == "eval/acc"] == [
        (4, "eval/acc", 0.75),
        (12, "eval/acc", 0.9375),
    ]
    assert (12, "figure/p_train", 384.0) in values
    (end,) = [item.exit for item in found if item.HasField("exit")]
    assert end.exit_code == 0
    assert not [item for item in found if item.HasField("stats")]


def test_neither_host_nor_user_nor_program_goes_to_wandb(record, tmp_path):
    export("wandb", tmp_path / "run", tmp_path / "wandb_runs")
    (file,) = (tmp_path / "wandb_runs" / record.run_id / "wandb").glob("offline-run-*/*.wandb")
    found = wandb_records(file)
    (run,) = [item.run for item in found if item.WhichOneof("record_type") == "run"]
    assert (run.host, run.entity, run.git.remote_url) == ("", "", "")
    content = file.read_bytes()
    for private in (socket.gethostname(), str(tmp_path), sys.executable, str(Path.home())):
        assert not re.search(rb"\b" + re.escape(private.encode()) + rb"\b", content)
    assert not list(file.parent.glob("files/wandb-metadata.json"))


def client(folder):
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")


def runs_in(store):
    experiment = store.get_experiment_by_name("trainmark")
    return store.search_runs([experiment.experiment_id])


def test_mlflow_keeps_steps_evaluations_figures_and_settings(record, tmp_path):
    done = export("mlflow", tmp_path / "run", tmp_path / "store")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    store = client(tmp_path / "store")
    (run,) = runs_in(store)
    assert (run.info.run_name, run.info.status) == (record.run_id, "FINISHED")
    assert run.info.start_time == 1767323045000
    assert run.info.user_id != getpass.getuser()

    def history(name):
        return [(x.step, x.value) for x in store.get_metric_history(run.info.run_id, name)]

    assert history("train/loss") == list(enumerate(record.steps.loss, start=1))
    assert history("eval/acc") == [(4, 0.75), (12, 0.9375)]
    assert run.data.metrics["figure/p_train"] == 384.0
    assert run.data.params["recipe/micro_batch_size"] == "64"


def test_mlflow_keeps_a_run_once(record, tmp_path):
    for _ in range(2):
        assert export("mlflow", tmp_path / "run", tmp_path / "store").returncode == 0
    (run,) = runs_in(client(tmp_path / "store"))
    assert run.info.run_name == record.run_id
