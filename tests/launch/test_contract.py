"""Commands as text, the cluster file, and the script of a node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainmark.errors import UsageError
from trainmark.launch.cluster import Cluster, read_cluster
from trainmark.launch.launchers import EngineCommand


def test_pasted_script_runs_its_command(tmp_path: Path) -> None:
    """The folder, the argument and the file have texts that a shell changes unless quoted."""
    folder, text = tmp_path / "a b" / "it's", "a 'b' $HOME \"c\""
    # Prints its argument and the file; the output of a command that submits is the id of its job,
    # which the script writes into job.id.
    show = "import sys; print(repr((sys.argv[1:], open('f').read())))"
    command = EngineCommand(
        argv=(sys.executable, "-c", show, text), files={"f": text}, submits=True
    )
    subprocess.run(["sh"], input=command.render_script(folder), text=True, check=True)
    # The script writes the file with a line end behind its text.
    assert (folder / "job.id").read_text() == repr(([text], f"{text}\n")) + "\n"


def test_a_pasted_script_writes_into_no_other_folder(tmp_path: Path) -> None:
    """Neither into a folder that has files, nor into a path that is a file."""
    command = EngineCommand(argv=("true",), files={"f": "new"}, submits=True)
    used, file = tmp_path / "used", tmp_path / "file"
    used.mkdir()
    for path in (used / "f", file):
        path.write_text("old")
    for folder in (used, file):
        text = command.render_script(folder) + "echo went on\n"  # the user's shell must not exit
        process = subprocess.run(
            ["sh"], input=text, text=True, cwd=tmp_path, capture_output=True, check=True
        )
        assert process.stdout == "went on\n"
        assert process.stderr  # what is wrong
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["f", "file", "used"]
    assert (used / "f").read_text() == file.read_text() == "old"


def test_site_file_is_read_and_its_words_stay_text(tmp_path: Path) -> None:
    """A cluster file in YAML: the launcher, the number of nodes, and settings of ssh and Slurm.

    ``setup`` has commands that each node runs first.
    """
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "launcher: slurm\nnodes: 16\nssh: {run_root: /scratch}\n"
        "slurm: {exclusive: no, options: {time: 12:30:00, mem: 0}}\nsetup: [module load x]\n"
    )
    site = read_cluster(file)
    assert (site.launcher, site.nodes, site.ssh.run_root) == ("slurm", 16, Path("/scratch"))
    assert not site.slurm.exclusive
    # YAML alone would read 12:30:00 as a number of seconds, and 0 as a number.
    assert site.slurm.options == {"time": "12:30:00", "mem": "0"}
    assert site.setup == ("module load x",)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("nodes: 1\nslurm:\n  partiton: x\n", "slurm.partiton"),
        ("nodes: many\n", "nodes"),
        ("setup:\n  - a\n  - b: c\n", "setup.1"),
        ("master_port: 70000\n", "master_port"),
        ("environment:\n  A;touch x;B: y\n", "environment"),
        ("container: {image: a, mounts: [/a]}\n", "container.mounts.0"),
        ("container: {image: a, mounts: ['/a,b:/b']}\n", "container.mounts.0"),
    ],
)
def test_error_in_a_site_file_names_its_key(tmp_path: Path, text: str, word: str) -> None:
    """``text``: a cluster file with one error; ``word``: the path of its key in the message.

    The errors: a misspelled key, a word for a number, a mapping for a text, a port above 65535, a
    name that no variable can have, a mount without a target, and one with a comma.
    """
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_cluster(file)
    assert caught.value.where.startswith(str(file))
    assert word in str(caught.value)


def test_site_file_is_optional_but_a_named_one_must_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a path, the file is trainmark/cluster.yaml in the user's folder of settings.

    Without this file, too, all settings have their defaults, as in ``Cluster()``.
    """
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert read_cluster(path=None) == Cluster()
    with pytest.raises(UsageError):
        read_cluster(tmp_path / "none.yaml")
    (tmp_path / "trainmark").mkdir()
    (tmp_path / "trainmark/cluster.yaml").write_text("nodes: 3\n")
    assert read_cluster(path=None).nodes == 3


@pytest.mark.parametrize(
    ("fix", "instruction"),
    [
        (None, "set ssh.hosts"),
        ("write ssh: {hosts: [HOST, …]}", "write ssh: {hosts: [HOST, …]}"),
    ],
)
def test_error_without_a_site_file_says_how_to_pass_one(fix: str | None, instruction: str) -> None:
    """``Cluster()`` has only defaults, as without a file; ``ssh.hosts`` is the missing key.

    ``fix``: what to write into a file; None: the error says to set the key.
    """
    error = Cluster().build_error("ssh.hosts", "no host is given", fix=fix)
    assert error.what == "no host is given, and there is no cluster file"
    assert error.fix == (
        f"{instruction} in a file, and pass the file with --cluster cluster.yaml; "
        "see docs/launchers.md for the keys"
    )
