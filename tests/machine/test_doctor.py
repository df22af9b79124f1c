"""Checks of ``trainmark doctor``: each has a time limit and none can end the program."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from support.machines import Card, Reader, make_machine, read_single_condition, translate_condition
from trainmark import devices as registry
from trainmark.devices.vendors.cpu import Cpu
from trainmark.errors import EnvironmentFault, UsageError
from trainmark.machine import doctor
from trainmark.machine.doctor import CHECKS, describe_machine, examine
from trainmark.machine.host import Condition
from trainmark.plan.choosing import choose_work
from trainmark.plan.request import RunRequest
from trainmark.protocols import DeviceSample, DeviceSettings, MonitorFault, Occupant, Refusal
from trainmark.protocols.tested import RECORDED_OUTPUTS
from trainmark.spec import RankMemory

# Scripts compare codes: one that is renamed or dropped is a change for users.
CODES = [
    "memory",
    "cores",
    "governor",
    "numa",
    "shared_memory",
    "network",
    "device",
    "tested",
    "other_runs",
    "load",
    "out_folder",
    "occupants",
    "monitor",
    "settings",
    "driver",
    "data",
    "torch",
]


def test_findings_have_both_languages(tmp_path):
    checks = {"memory": doctor.host.check_memory}  # its text has numbers, which both texts show
    english, chinese = (
        examine(make_machine(tmp_path), checks, lang=x).checks for x in ("en", "zh")
    )
    # A machine of ``make_machine`` has 64 GiB of memory, of which 32 are available.
    assert english[0].what == "32.0 of 64.0 GiB of host memory is available"
    assert chinese[0].what == "可用内存 32.0 GiB，共 64.0 GiB"


def make_check(severity: str):
    """Return a check that finds one condition of a severity on every machine.

    Severities: ``fine``, ``unknown``, ``spoils`` (figures), ``stops`` (a run). All but ``fine``
    need an advice (``fix``). A check without a code gets the name that it is registered under.
    """

    def check(machine):
        fix = "" if severity == "fine" else "do this"
        yield Condition(code="", severity=severity, what="found", fix=fix)

    return check


def test_condition_codes_are_stable():
    assert list(CHECKS) == CODES


@pytest.mark.parametrize(
    ("severities", "code"),
    [
        ((), 0), (("fine",), 0), (("fine", "unknown"), 0), (("spoils", "fine"), 1),
        (("unknown", "spoils"), 1), (("stops", "spoils"), 2), (("fine", "stops"), 2),
    ],
)  # fmt: skip
def test_exit_code_follows_the_worst_condition(tmp_path, severities, code):
    # 2 if something stops a run, 1 if something spoils its figures, else 0: what is unknown does
    # not count. ``make_check`` makes a check that finds one condition of the severity.
    checks = {f"check{index}": make_check(severity) for index, severity in enumerate(severities)}
    # ``examine`` runs the checks on a sound machine and lists their conditions in this order.
    report = examine(make_machine(tmp_path), checks)
    assert report.exit_code == code
    assert [check.severity for check in report.checks] == list(severities)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("odd"),
        SystemExit(3),
        EnvironmentFault("no library"),
    ],
)
def test_failed_check_is_unknown_and_keeps_its_conditions(tmp_path, error):
    def check(machine):
        yield Condition(code="", severity="spoils", what="before", fix="do this")
        raise error

    # The failing check gives two results: what it found before the error, and the error. Any kind
    # of exception counts, even one that would end the program. ``make_check("fine")`` is a check
    # that finds nothing wrong.
    report = examine(make_machine(tmp_path), {"failing": check, "sound": make_check("fine")})
    assert [result.severity for result in report.checks] == ["spoils", "unknown", "fine"]
    assert all(result.fix for result in report.checks if result.severity != "fine")
    assert str(error) in report.checks[1].what


@pytest.fixture
def describe_request_machine(tmp_path):
    """Return a function that describes the machine for the arguments of a command line."""

    def describe(case="-", **fields):  # "-": no case is named
        return describe_machine(RunRequest(case=case, out=tmp_path, **fields), quick=False)

    return describe


def test_missing_device_stops_a_run(describe_request_machine, monkeypatch):
    # A fake vendor without any accelerator. Its absence is no error of the command, but a
    # condition. The machine is then described without a vendor, for a run of one rank.
    monkeypatch.setattr(registry, "list_vendors", lambda: {"fake": Card(devices=0)})
    machine = describe_request_machine(device="fake")
    assert (machine.vendor, machine.nproc) == (None, 1)
    assert read_single_condition(doctor.check_device(machine)).severity == "stops"


def test_unknown_device_case_or_recipe_is_an_error(describe_request_machine):
    # The fixture describes the machine for these options of ``trainmark doctor``. What the user
    # named wrongly is an error of the command, not a condition of the machine.
    with pytest.raises(UsageError):
        describe_request_machine(device="no_such_vendor")
    with pytest.raises(UsageError):
        describe_request_machine(case="no_such_case")
    with pytest.raises(UsageError):
        describe_request_machine(recipe="tiny")  # without a case no recipe is known


@pytest.fixture
def register_vendors(monkeypatch):
    """Return a function that sets the registry's vendors and import errors; it has no others."""

    def register(*vendors, faults=()):
        vendors_by_name = {vendor.name: vendor for vendor in vendors}
        monkeypatch.setattr(registry, "load_all", lambda: (vendors_by_name, list(faults)))

    return register


def test_too_few_devices_stop_a_run(tmp_path):
    # A usual machine of ``make_machine`` has two devices.
    condition = read_single_condition(doctor.check_device(make_machine(tmp_path, nproc=3)))
    assert (condition.severity, condition.what) == (
        "stops",
        "3 fake devices are needed, but this machine has 2",
    )
    assert "--nproc to at most 2" in condition.fix
    # Ranks on a CPU may share cores; it is the check ``cores`` that reports it.
    cpu = make_machine(tmp_path, vendor=Card(name="cpu"), nproc=3)
    assert read_single_condition(doctor.check_device(cpu)).severity == "fine"


def test_vendor_without_real_runs_is_unknown_and_has_a_fix(tmp_path):
    # ``RECORDED_OUTPUTS`` says in both languages that a vendor's support was tested on outputs of
    # its tool that others published. ``Card`` is a fake vendor.
    checks = {"tested": doctor.check_tested}
    card = make_machine(tmp_path, vendor=Card(tested=RECORDED_OUTPUTS))
    for lang, what in (
        ("en", "fake, tested on: recorded outputs of its tool, but no real card yet"),
        ("zh", "fake，测试依据：公开的工具输出，尚未在真卡上测试"),
    ):
        (condition,) = examine(card, checks, lang=lang).checks
        assert (condition.severity, condition.what) == ("unknown", what)
        assert "docs/vendors" in condition.fix
    # The usual fake vendor was tested by real runs.
    (condition,) = examine(make_machine(tmp_path), checks).checks
    assert condition.severity == "fine"


def test_torch_is_opened_in_a_process_of_its_own(tmp_path):
    started = []  # the last arguments of each command, and its time limit

    def run_tool(argv, *, timeout_s):
        # The name of the vendor, the number of ranks, and the id of this process, because the
        # started one ends if this one dies.
        started.append((argv[-3:], timeout_s))
        # The last line has the precisions that a device refuses; a library prints before it.
        return 'a warning\n{"fp8": "no units", "tf32": "no units"}\n'

    condition = read_single_condition(doctor.check_torch(make_machine(tmp_path, tool=run_tool)))
    assert condition.severity == "fine"
    assert condition.what.endswith(
        "can open each rank's device; supported precisions: fp32, bf16, fp16"
    )
    assert started == [(["fake", "2", str(os.getpid())], doctor._OPENING_S)]


def test_a_precision_that_the_recipe_needs_and_the_device_refuses_stops_a_run(
    describe_case_machine,
):
    # The command that opens the devices, for which ``tool`` stands in, reports why they refuse a
    # precision: here fp32, in which the toy case trains by default. The first condition is about
    # opening them, the second about the precision of the recipe.
    machine = describe_case_machine("toy", tool=lambda *_, **__: '{"fp32": "no units"}')
    opening, refused = map(translate_condition, doctor.check_torch(machine))
    assert (opening.severity, refused.severity, refused.what) == ("fine", "stops", "fp32: no units")


@pytest.mark.parametrize(
    ("kind", "text"),
    [("failed", "python: exit code -11"), ("hung", "python: no answer in 40 s")],
)
def test_a_torch_that_crashes_or_hangs_stops_a_run(tmp_path, kind, text):
    # ``run_tool`` runs the process that opens torch; this is how it reports a crash or a hang. The
    # exit code -11 is a crash by signal 11 (SIGSEGV).
    def run_tool(*_, **__):
        raise MonitorFault(kind, text)

    condition = read_single_condition(doctor.check_torch(make_machine(tmp_path, tool=run_tool)))
    assert condition.severity == "stops"
    assert text in condition.what


def test_processes_on_the_devices_are_named(tmp_path, register_vendors):
    # Of two processes on the device, one computes, which spoils figures; the other only draws a
    # screen (``computes=False``). The processes are read from the registered vendor, so it is the
    # same card.
    users = (
        Occupant("card 0", "python (process 7)", used_bytes=2 << 30, computes=True),
        Occupant("card 0", "Xorg (process 8)", used_bytes=1 << 20, computes=False),
    )
    card = Card(users=users)
    register_vendors(card)
    conditions = list(
        map(translate_condition, doctor.check_occupants(make_machine(tmp_path, vendor=card)))
    )
    assert [condition.severity for condition in conditions] == ["spoils", "fine"]
    assert "python (process 7), 2.0 GiB" in conditions[0].what
    register_vendors(Card())  # without other processes
    assert read_single_condition(doctor.check_occupants(make_machine(tmp_path))).severity == "fine"


@pytest.mark.parametrize(
    # What reading the monitor gives: so many devices, no monitor, or a fault of this kind.
    ("reads", "severity", "text"),
    [
        (2, "fine", "card-smi 1.0 can read 2 devices"),
        (None, "unknown", "power and temperature"),
        ("hung", "unknown", "hung: no answer"),
    ],
)
def test_the_monitor_is_tried_once(tmp_path, monkeypatch, reads, severity, text):
    # ``Card`` is a fake vendor, whose monitor is a ``Reader`` called "card-smi 1.0". If it is to
    # fail, its error is "no answer". Without a monitor, the text says what cannot be read.
    calls = []
    read = Reader.read

    def note_and_read(self):
        calls.append("read")
        return read(self)

    monkeypatch.setattr(Reader, "read", note_and_read)
    monkeypatch.setattr(Reader, "close", lambda _: calls.append("close"))
    condition = read_single_condition(
        doctor.check_monitor(make_machine(tmp_path, vendor=Card(reads=reads)))
    )
    assert condition.severity == severity
    assert text in condition.what
    # A monitor that was opened is closed, even if it failed.
    assert calls == ([] if reads is None else ["read", "close"])


@pytest.mark.parametrize(("busy", "num_conditions"), [(None, 1), (10.0, 1), (11.0, 2)])
def test_device_busy_before_the_run_is_found(tmp_path, monkeypatch, busy, num_conditions):
    """More than 10% is busy; of the monitor's devices 3 and 4 the run would use the device 4."""
    # ``busy``: percent of both devices' time, None: not known. ``Reader`` is the monitor of the
    # fake vendor ``Card``, and ``monitored`` says which of its devices the run would use.
    samples = [DeviceSample(index=i, utilization_percent=busy) for i in (3, 4)]
    monkeypatch.setattr(Reader, "read", lambda _: samples)
    monkeypatch.setattr(Card, "monitored", lambda *_: [4])
    # The first condition is that the monitor can read devices.
    conditions = list(map(translate_condition, doctor.check_monitor(make_machine(tmp_path))))
    assert len(conditions) == num_conditions
    assert [condition.severity for condition in conditions[1:]] == ["spoils"] * (num_conditions - 1)
    assert all("device 4 is busy 11%" in condition.what for condition in conditions[1:])


@pytest.mark.parametrize(
    ("reasons", "codes"),
    [
        ((), []),
        (("power_cap",), []),  # at rest a power cap is no fault
        (("set_clocks", "thermal", "power_cap"), ["clocks"]),
    ],
)
def test_lowered_clocks_at_rest_are_found(tmp_path, monkeypatch, reasons, codes):
    # ``reasons``: why the device says that its clocks are lowered. ``Reader`` is the monitor of the
    # fake vendor ``Card``, and ``monitored`` says which of its devices the run would use: number 0.
    sample = DeviceSample(index=0, throttle_reasons=reasons)
    monkeypatch.setattr(Reader, "read", lambda _: [sample])
    monkeypatch.setattr(Card, "monitored", lambda *_: [0])
    # The first condition is that the monitor can read devices.
    _, *others = map(translate_condition, doctor.check_monitor(make_machine(tmp_path)))
    assert [condition.code for condition in others] == codes
    assert all(
        "device 0 is throttled: set_clocks, thermal" in condition.what for condition in others
    )


@pytest.fixture
def describe_case_machine(tmp_path, monkeypatch):
    """Return a function that describes a fake machine for a run of a case on one CPU rank.

    Its other keyword arguments are changes for ``make_machine``.
    """
    monkeypatch.setenv("TRAINMARK_CACHE", str(tmp_path / "cache"))

    def describe(case, *, recipe=None, **changes):
        request = RunRequest(case=case, recipe=recipe, data=changes.get("data"), nproc=1)
        usual = {"vendor": Cpu(), "nproc": 1, "choice": choose_work(request)}
        return make_machine(tmp_path, **(usual | changes))

    return describe


def test_generated_data_is_sound(describe_case_machine):
    # The toy case generates its data, so no folder can be missing. ``check_plan`` finds two
    # conditions, about the recipe and the data; the texts name the case's usual recipe and numbers
    # of samples.
    recipe, data = map(translate_condition, doctor.check_plan(describe_case_machine("toy")))
    assert (recipe.code, recipe.severity, recipe.what) == (
        "recipe",
        "fine",
        "recipe tiny can run on 1 rank",
    )
    assert (data.code, data.severity) == ("", "fine")  # the runner gives it the check's name
    assert data.what == (
        "4,096 training and 1,000 evaluation samples, generated; the result must not be quoted"
    )


def test_a_missing_folder_stops_a_run(describe_case_machine, tmp_path):
    # The case needs a folder with real data, and this one does not exist. The advice (``fix``)
    # names the command ``trainmark prepare``, which makes such a folder.
    condition = read_single_condition(
        doctor.check_plan(describe_case_machine("distilbert_sst2", data=tmp_path / "none"))
    )
    assert (condition.code, condition.severity) == ("data", "stops")
    assert str(tmp_path / "none") in condition.what
    assert "prepare" in condition.fix


def test_a_missing_folder_is_reported_besides_a_recipe_that_cannot_run(
    describe_case_machine, tmp_path
):
    class Refusing(Cpu):  # refuses every recipe
        def refuse(self, recipe, nproc):
            return Refusal("no", "another device")  # the reason, and what would help

    # ``check_plan`` finds a condition about the recipe and one about the data; "none" is a folder
    # that does not exist. The planning chooses the vendor by itself, so it is replaced there as
    # well.
    vendor = Refusing()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "choose_vendor", lambda _: vendor)
        machine = describe_case_machine("toy", vendor=vendor, data=tmp_path / "none")
        conditions = list(doctor.check_plan(machine))
    codes = [(condition.code, condition.severity) for condition in conditions]
    assert codes == [("recipe", "stops"), ("data", "stops")]


def test_a_recipe_that_does_not_fit_stops_a_run(describe_case_machine):
    class SmallMachine(Cpu):
        def rank_memory(self, nproc):
            # 1 MiB, which is too little for the model of any recipe of gpt_megatron.
            return RankMemory(rank_bytes=1 << 20, machine_bytes=1 << 20)

    with pytest.MonkeyPatch.context() as patch:
        # The check plans a run, and the planning chooses the vendor by itself.
        patch.setattr(registry, "choose_vendor", lambda _: SmallMachine())
        condition = read_single_condition(
            doctor.check_plan(describe_case_machine("gpt_megatron", vendor=SmallMachine()))
        )
    assert (condition.code, condition.severity) == ("recipe", "stops")
    assert "needs about" in condition.what


@dataclass
class SetUpCard(Card):
    """Accelerators that report their settings."""

    shown: tuple[DeviceSettings, ...] = ()

    def read_settings(self, nproc: int) -> list[DeviceSettings]:
        return list(self.shown[:nproc])


def test_device_settings_are_shown_and_lowered_power_limit_skews_results(tmp_path):
    # Two equal devices share a line; the third has a lower limit; of the fourth nothing is known.
    usual = {"power_limit_w": 700.0, "default_power_limit_w": 700.0, "persistence": True}
    settings = (
        DeviceSettings(index=0, ecc=True, partitioned=False, **usual),
        DeviceSettings(index=1, ecc=True, partitioned=False, **usual),
        DeviceSettings(index=2, ecc=False, **(usual | {"power_limit_w": 500.0})),
        DeviceSettings(index=3),
    )
    # ``SetUpCard`` is a fake vendor that reports these settings of its devices; MIG is their
    # partition.
    machine = make_machine(tmp_path, vendor=SetUpCard(shown=settings), nproc=4)
    conditions = [translate_condition(condition) for condition in doctor.check_settings(machine)]
    assert [(condition.severity, condition.what) for condition in conditions] == [
        ("fine", "device 0-1: power limit 700 W (default 700 W), persistence on, ECC on, MIG off"),
        ("spoils", "device 2: power limit 500 W (default 700 W), persistence on, ECC off"),
        ("fine", "device 3: –"),
    ]
    assert "nvidia-smi --power-limit" in conditions[1].fix
    assert list(doctor.check_settings(make_machine(tmp_path))) == []  # a vendor without settings
