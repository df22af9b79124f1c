"""Contents of a bundle: redacted, reproducible bytes, written atomically."""

from __future__ import annotations

import errno
import getpass
import json
import shutil
import socket
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trainmark.errors import EnvironmentFault
from trainmark.record import record, reduce
from trainmark.results import bundle
from trainmark.results.archive import BundleError, write_archive
from trainmark.results.selection import find_runs

if TYPE_CHECKING:
    from collections.abc import Callable

KIND = "OPENSSH PRIVATE KEY-----"
KEY = f"-----BEGIN {KIND}\nb3BlbnNzaC1rZXktdjEA\nAAAABG5vbmUAAAAE\n-----END {KIND}"
# Text with a secret, and the part of the text that no bundle may contain, by kind of secret.
PLANTED = {
    "token": ("hf_AbCdEfGh12345678", "hf_AbCdEfGh"),
    "key of a cloud": ("AKIAABCDEFGHIJKLMNOP", "AKIAABCDEF"),
    "password": ("password=hush-1", "hush-1"),
    "password in a URL": ("https://ann:hush-2@pypi.org/simple", "hush-2"),
    "password of an index": ("--index-url https://ann:hush-4@pypi.internal/simple", "hush-4"),
    "index in quotes": ("PIP_EXTRA_INDEX_URL='https://ann:hu%20h-5@10.1.2.3:8080/x'", "h-5"),
    "signed request": ("Authorization: Basic aHVzaC0z", "aHVzaC0z"),
    "e-mail": ("ann.lee@lab.example.org", "ann.lee@"),
    "IPv4": ("listening on 10.11.12.13:29500", "10.11.12.13"),
    "IPv6": ("peer fe80::1ff:fe23:4567:890a", "fe23"),
    "MAC": ("eth0 0c:42:a1:7b:22:9f", "42:a1"),
    "host": ("running on gpu-node17 now", "gpu-node17"),
    "host elsewhere": ("connecting to trainer5.cluster.local:29500", "trainer5"),
    "user": ("started by annlee here", "annlee"),
    "home": ("/home/annlee2/data/x", "annlee2"),
    "folder": ("reads /mnt/secret-project/a.bin", "secret-project"),
}
ALL_SECRETS = "\n".join(text for text, _ in PLANTED.values())
FILES_WITH_SECRETS = {
    "log.rank0.txt": f"{ALL_SECRETS}\n{KEY}\nlast line\n",
    "log.launcher.txt": ALL_SECRETS,
    "log.job.txt": ALL_SECRETS.replace("\n", "\r\n"),
    "stacks.rank0.txt": ALL_SECRETS,
    "node.sh": f"# {ALL_SECRETS}\n".replace("\n", "\n# "),
    "job.sbatch": ALL_SECRETS,
    "job.yaml": "\n".join(f"- '{text}'" for text, _ in PLANTED.values()),
    "cluster.json": json.dumps(
        {
            "user": "bo",
            "hosts": ALL_SECRETS.split("\n"),
            "key": KEY,
            "pip_index": "http://a:hush-4@h/",
        },
        indent=2,
    ),
    "ssh.nodes.json": json.dumps({"nodes": [{"host": "n1", "options": ALL_SECRETS.split("\n")}]}),
}


@pytest.fixture(autouse=True)
def fake_user_and_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a user and a host name that no bundle may contain."""
    monkeypatch.setattr(getpass, "getuser", lambda: "annlee")
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-node17")


def read_contents(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode("latin-1") for name in archive.namelist()}


def find_leaks(texts: dict[str, str], *more: str) -> list[tuple[str, str]]:
    secret = [sign for _, sign in PLANTED.values()] + ["b3Blbn", "AAAABG5v", *more]
    return [(name, sign) for name, text in texts.items() for sign in secret if sign in text]


def test_bundle_has_no_planted_secret_and_run_is_unchanged(run_dir: Path, tmp_path: Path) -> None:
    """A bundle has a run's files for others to see, without anything private in them.

    ``PLANTED`` has 16 kinds of secrets, such as a token or an address, each as a text and the part
    of it that must not stay. ``ALL_SECRETS`` is these texts together. ``FILES_WITH_SECRETS`` has
    the contents of nine files of a run by name, each with all of them.
    """
    for name, text in FILES_WITH_SECRETS.items():
        (run_dir / name).write_text(text)
    not_bundled = ("page.html", "page.zh.md", "artifacts/model.txt", "index/speed", ".hidden.txt")
    for name in not_bundled:
        (run_dir / name).parent.mkdir(exist_ok=True)
        (run_dir / name).write_text(ALL_SECRETS)
    plan = json.loads((run_dir / "plan.json").read_text())
    plan["about"]["dataset"] = ALL_SECRETS
    plan["run_dir"] = str(run_dir)  # the ranks need the real path
    (run_dir / "plan.json").write_text(json.dumps(plan))
    for name in ("events.rank0.jsonl", "events.launcher.jsonl"):
        with (run_dir / name).open("a") as file:
            file.write(json.dumps({"event": "span", "t_ns": 1, "text": ALL_SECRETS}) + "\n")
    (run_dir / "record.json").unlink()
    record.write_record(reduce.reduce(run_dir), run_dir)
    before = {path.name: path.read_bytes() for path in run_dir.iterdir() if path.is_file()}
    # The search finds every secret in each of the nine files, as long as they are not bundled.
    assert len(find_leaks(FILES_WITH_SECRETS)) >= 9 * len(PLANTED)

    path = tmp_path / "x.trainmark.zip"
    bundle.pack([[run_dir]], path)
    texts = read_contents(path)
    assert {f"1-toy/{name}" for name in FILES_WITH_SECRETS} < texts.keys()
    # No secret is left, nor the folder of the run, the host of ssh.nodes.json (n1) and the user of
    # cluster.json (bo).
    assert find_leaks(texts, str(tmp_path), '"n1"', '"bo"') == []
    # A private key was before the last line of this log.
    assert texts["1-toy/log.rank0.txt"].endswith("<secret>\nlast line\n")
    assert json.loads(texts["1-toy/cluster.json"])["user"] == "<user>"
    assert json.loads(texts["1-toy/plan.json"])["run_dir"] == "<run>"
    # The run's folder in the bundle has only files, and none of those that are not bundled: neither
    # at its place nor without its subfolder.
    assert all(name.count("/") == 1 for name in texts if name != "manifest.json")
    file_names = {name.rpartition("/")[2] for name in texts}
    assert not file_names & {name.rpartition("/")[2] for name in not_bundled}
    assert bundle.verify(path).exit_code == 0
    after = {path.name: path.read_bytes() for path in run_dir.iterdir() if path.is_file()}
    assert after == before
    # Packed again, the bytes are the same.
    anew = tmp_path / "2.trainmark.zip"
    bundle.pack([[run_dir]], anew)
    assert anew.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ["log.rank0.txt", "events.rank7.jsonl", "notes.json"])
def test_file_that_is_too_large_for_a_bundle_is_named_before_anything_is_copied(
    run_dir: Path, tmp_path: Path, name: str
) -> None:
    # The file has 100 GiB: 100 * 2**30 = 107,374,182,400 bytes, which the error names.
    with (run_dir / name).open("wb") as file:
        file.truncate(100 << 30)  # bytes of a hole, which take no space on the disk
    with pytest.raises(BundleError, match="107,374,182,400 bytes") as caught:
        bundle.pack([[run_dir]], tmp_path / "x.trainmark.zip")
    assert caught.value.where == str(run_dir / name)
    assert not (tmp_path / "x.trainmark.zip").exists()


@pytest.fixture
def repeated_run(run_dir: Path, tmp_path: Path) -> Path:
    """Return the folder of a run that was repeated: three launches, copies of ``run_dir``."""
    folder = tmp_path / "series"
    for number in (1, 2, 3):
        launch = folder / f"r{number}"
        launch.mkdir(parents=True)
        for path in run_dir.iterdir():
            (launch / path.name).write_bytes(path.read_bytes())
        (launch / "record.json").unlink()
        plan = json.loads((launch / "plan.json").read_text())
        # The number of the launch, how many there are, and an id of its own.
        plan |= {"repeat_index": number, "repeat_count": 3, "run_id": f"{plan['run_id']}{number}"}
        (launch / "plan.json").write_text(json.dumps(plan))
        record.write_record(reduce.reduce(launch), launch)
    return folder


def test_same_input_gives_the_same_bytes(
    repeated_run: Path, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ``repeated_run`` is the folder of a run with the launches r1, r2 and r3, each a copy of the
    # run in ``run_dir``, which is named "run". ``pack`` writes runs, each a list of its launches,
    # into a bundle, and names them by their number and case: 1-toy and 2-toy.
    first, second = tmp_path / "1.trainmark.zip", tmp_path / "2.trainmark.zip"
    bundle.pack([*find_runs(repeated_run), [run_dir]], first)
    (tmp_path / "there").mkdir()
    # Another folder, other times, and paths that are relative.
    moved = repeated_run.rename(tmp_path / "there" / "moved")
    for path in moved.rglob("*"):
        path.touch()  # another time of change
    monkeypatch.chdir(tmp_path)
    bundle.pack([*find_runs(Path("there/moved")), [Path("run")]], second)
    assert first.read_bytes() == second.read_bytes()
    names = read_contents(first)
    assert {"1-toy/r1/record.json", "1-toy/r3/plan.json", "2-toy/record.json"} < names.keys()
    verification = bundle.verify(first)
    records = {check.place: check.state for check in verification.checks if check.name == "record"}
    assert records == dict.fromkeys(("1-toy/r1", "1-toy/r2", "1-toy/r3", "2-toy"), "held")
    broken = [check for check in verification.checks if check.state == "broken"]
    assert {check.name for check in broken} == {"audit"}  # the launches are copies of one
    assert "audit_copy" in {sentence.code for check in broken for sentence in check.sentences}
    with zipfile.ZipFile(first) as archive:
        assert archive.testzip() is None


def test_bundle_is_written_atomically(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out" / "x.trainmark.zip"
    with pytest.raises(EnvironmentFault, match="cannot write"):  # there is no such folder
        bundle.pack([[run_dir]], path)
    path.parent.mkdir()
    path.write_text("mine")  # a file of this name, which must stay until the new one is complete

    def raise_disk_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("trainmark.results.archive.write_archive", raise_disk_full)
        with pytest.raises(EnvironmentFault, match="No space left"):
            bundle.pack([[run_dir]], path)
    assert [(item.name, item.read_text()) for item in path.parent.iterdir()] == [
        ("x.trainmark.zip", "mine")
    ]
    bundle.pack([[run_dir]], path)
    assert bundle.verify(path).exit_code == 0


def test_bundle_without_its_ending_in_the_name_is_refused(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="not a valid bundle name"):
        bundle.pack([[run_dir]], tmp_path / "x.zip")  # not ``.trainmark.zip``


def test_run_without_its_evidence_is_not_bundled(
    run_dir: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    # Evidence are the files of which a record is computed: the plan and the events. ``cli`` returns
    # exit code, stdout and stderr of the program.
    for entry in reduce.list_evidence(run_dir):
        (run_dir / entry.name).unlink()
    with pytest.raises(BundleError, match="plan or the event files of the run are missing"):
        bundle.pack([[run_dir]], tmp_path / "x.trainmark.zip")
    for path in (run_dir, tmp_path / "none"):  # without evidence, and not there at all
        code, _, err = cli("bundle", path, "-o", tmp_path / "x.trainmark.zip")
        assert code == 2
        assert err.startswith(
            f"trainmark: {path}: the plan or the event files of the run are missing"
        )


@pytest.mark.parametrize(
    ("damage", "place"),
    [
        (lambda text: text.replace("{", "(", 1), "1"),  # no JSON from its first line on
        (lambda text: "\n".join(text.splitlines()[:4]), "4"),  # cut off behind its fourth line
        (lambda text: json.dumps(json.loads(text) | {"nproc": 0}), "nproc"),
        (lambda text: "{}", "suite_version"),  # without a key that it must have
    ],
)
def test_damaged_plan_is_one_error_with_its_line_or_key(
    run_dir: Path, tmp_path: Path, cli: Any, damage: Callable[[str], str], place: str
) -> None:
    # ``damage`` changes the text of a valid plan. ``cli`` returns the program's exit code, stdout
    # and stderr.
    file = run_dir / "plan.json"
    document = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(damage(json.dumps(document, indent=2)), encoding="utf-8")
    output = tmp_path / "run.trainmark.zip"
    code, _, err = cli("bundle", run_dir, "-o", output)
    assert code == 2
    assert not output.exists()
    # ``place``: the line of what is no JSON, or the key of a wrong value.
    assert err.startswith(f"trainmark: {file}:{place}: ")
    assert "Traceback" not in err


def test_record_that_its_evidence_contradicts_is_not_bundled(
    run_dir: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    # Twice the throughput that the run's events give. ``cli`` returns the program's exit code,
    # stdout and stderr.
    document = json.loads((run_dir / "record.json").read_text())
    document["figures"]["p_train"]["value"] *= 2
    (run_dir / "record.json").write_text(json.dumps(document))
    code, _, err = cli("bundle", run_dir, "-o", tmp_path / "x.trainmark.zip")
    assert code == 2
    assert "the run's evidence contradicts the record" in err
    assert "trainmark verify" in err
    assert not (tmp_path / "x.trainmark.zip").exists()


def test_run_that_is_given_twice_is_refused(
    run_dir: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    # The same launch: by the same path, by the path of its record, and as a copy of its folder.
    # ``cli`` runs the program with these words; it returns exit code, stdout and stderr.
    copy = shutil.copytree(run_dir, tmp_path / "copy")
    output = tmp_path / "x.trainmark.zip"
    run_id = record.read_record(run_dir).run_id
    for again in (run_dir, run_dir / "record.json", copy):
        for command in (
            ("bundle", run_dir, again, "-o", output),
            ("export", run_dir, again, "--to", "index", "-o", output),
            ("report", run_dir, again, "--format", "md", "-o", output),
        ):
            code, _, err = cli(*command)
            assert code == 2, command
            assert err.startswith(f"trainmark: {run_id}: ")
            assert not output.exists()


def test_launch_that_is_in_a_bundle_twice_fails_its_verification(
    bundle_path: Path, tmp_path: Path
) -> None:
    # The bundle's run in its folder 1-toy is copied to 2-toy, and the bundle is written again with
    # a new manifest that lists both. The check that finds the copy is called "audit".
    content = tmp_path / "content"
    with zipfile.ZipFile(bundle_path) as archive:
        archive.extractall(content)
    (content / "manifest.json").unlink()
    shutil.copytree(content / "1-toy", content / "2-toy")
    path = tmp_path / "twice.trainmark.zip"
    with path.open("wb") as file:
        write_archive(file, content)
    verification = bundle.verify(path)
    assert verification.exit_code == 1
    (fault,) = [check for check in verification.checks if check.state == "broken"]
    assert (fault.name, fault.place) == ("audit", "2-toy")
    (sentence,) = fault.sentences
    assert (sentence.code, sentence.args["place"]) == ("bundle_repeated", "1-toy")
