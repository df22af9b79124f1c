"""Audits of the founding pages, of correct rows and of rows with unknown facts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainmark.published.audit
from trainmark import cases
from trainmark.published.audit import RULES, audit, subject, views
from trainmark.published.audit.qualities import is_fraction
from trainmark.record.messages import render
from trainmark.record.work import Reading, Row
from trainmark.results.selection import select_results
from trainmark.spec import message
from trainmark.toml_file import read_toml

if TYPE_CHECKING:
    from trainmark.published.audit import Finding

DOCS = Path(__file__).parents[2] / "docs"


def make_subject(figures: dict[str, float], **row_fields: Any) -> subject.AuditSubject:
    """Return a row with these figures, as the audit sees it.

    Args:
        figures: values by name, without units.
        row_fields: other fields of ``Row``, such as the device; the rest have any values.
    """
    read = {name: Reading(value=x, unit="", raw=repr(x)) for name, x in figures.items()}
    common = {"file": "page.md", "line": 3, "form": "csv", "raw": "", "configuration": "one"}
    return views.view_row(Row(**common | row_fields, figures=read))


def audit_reference(case: str) -> list[Finding]:
    """Return the findings in the published results that are shipped with a case."""
    return audit([views.view_row(row) for row in select_results([f"reference:{case}"]).rows])


def list_argument_values(findings: list[Finding], code: str, name: str) -> list[Any]:
    """Return an argument of the messages with this code, such as ``share``, in their order."""
    return [finding.message.args[name] for finding in findings if finding.message.code == code]


def test_rows_of_distilbert_stopped_after_different_epochs_and_ran_in_tf32() -> None:
    # The four published rows of this case, which are shipped with it. All say fp32, on A100.
    findings = audit_reference("distilbert_sst2")
    # Passes of each row over the data: printed time x printed samples/s / training samples. In the
    # first row, 361 s x 1,764 samples/s / 67,349 samples are 9.46 passes.
    assert {*list_argument_values(findings, "audit_passes_differ", "passes")} == {
        "9.5, 10.0, 3.0, 3.1"
    }
    # How many times the fp32 peak of an A100, 19.5 TFLOP/s, a device reached in each row. This is
    # only possible with TF32, which libraries may use for what a page calls fp32.
    shares = list_argument_values(findings, "audit_tf32", "share")
    assert [round(share, 1) for share in shares] == [1.8, 2.0, 2.1, 1.9]
    assert {finding.severity for finding in findings} == {"warning"}


def test_rows_of_dlrm_count_samples_twice_for_each_device() -> None:
    # The published rows of this case that print a time: of 1, 8 and 16 devices, one epoch each.
    findings = audit_reference("dlrm_criteo")
    # How often each sample was counted: twice for each device.
    assert list_argument_values(findings, "audit_per_rank", "times") == [2, 16, 32]
    # The rate if each sample is counted once, in millions of samples/s: the 4,195,197,692 rows of
    # an epoch / the printed times of 1,152 s, 3,485 s and 4,779 s.
    once = list_argument_values(findings, "audit_per_rank", "once")
    assert [round(rate / 1e6, 2) for rate in once] == [3.64, 1.20, 0.88]


@pytest.mark.parametrize("case", ["llama2_7b_lora", "glm_superglue"])
def test_sound_rows_of_founding_pages_have_no_finding(case: str) -> None:
    """Figures fit each other, such as 4017 tokens/s and an MFU of 36.1% of llama2_7b_lora."""
    assert audit_reference(case) == []


@given(passes=st.floats(0.1, 1.0), starting_s=st.floats(0, 120), seconds=st.floats(1, 1e6))
def test_row_with_at_most_one_pass_has_no_finding(
    passes: float, starting_s: float, seconds: float
) -> None:
    # ``starting_s`` is a time before the training that only the end-to-end time contains.
    # The rate with which ``passes`` of the training rows are read in ``seconds``.
    rate = passes * 4_195_197_692 / seconds  # rows of a pass: the case's ``samples_per_pass``
    figures = {"e2e_time": seconds + starting_s, "p_whole": rate}
    assert audit([make_subject(figures, case="dlrm_criteo", nnodes=1, nproc=8)]) == []


@pytest.mark.parametrize(
    ("metric", "value", "rules"),
    [
        ("val_loss", 2.9, []), ("val_loss", 3.1, ["target"]),
        ("acc", 3.1, []), ("acc", 2.9, ["target"]),
        ("wer", 2.9, []), ("wer", 3.1, ["target"]),
        ("nuv", 3.1, []),
    ],
)  # fmt: skip
def test_target_is_judged_by_direction_of_metric(
    metric: str, value: float, rules: list[str]
) -> None:
    # ``rules`` are those that the row breaks. "target": its ``value`` misses the target of 3.0,
    # though a published result should have reached it.
    # A lower loss or error rate is better, a higher accuracy; the direction of nuv is not known.
    figures = {metric: value, f"{metric}_target": 3.0}
    findings = audit([make_subject(figures, case="distilbert_sst2", metric=metric)])
    assert [finding.rule for finding in findings] == rules


def test_unknown_device_or_model_has_no_finding() -> None:
    # Impossible figures: speeds far above any peak, and a device with a memory of 1 byte
    # (``mem_total``). Speeds can only be checked if both the model and the device are known.
    figures = {"token/p/s": 1e9, "MFU": 3.0, "p_core": 1e12, "mem_total": 1.0}
    # No model has this name, but the A100 is known: its memory is checked.
    assert audit([make_subject(figures, model="nobody's", device="A100", precision="fp32")]) != []
    # This model is known, but no device has the name X1: neither speed nor memory is checked.
    assert audit([make_subject(figures, model="llama3 8b", device="X1", precision="fp32")]) == []
    # Without the memory, nothing is left that can be checked without the model.
    figures.pop("mem_total")
    assert audit([make_subject(figures, model="nobody's", device="A100", precision="fp32")]) == []


@pytest.mark.parametrize(
    ("printed", "precision"),
    [
        ("AMP", "fp16"),
        ('fp16, level="O2"', "fp16"),
        ("tf32", "tf32"),
        ("bf16+fp8", None),
        ("fp32/amp/fp16", None),
        ("int8", None),
    ],
)
def test_declared_precision_is_read_from_printed_words(printed: str, precision: str | None) -> None:
    assert make_subject({}, cells={"precision": printed}).precision == precision


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("acc", True), ("final_acc1", True), ("mlm_acc", True), ("Top-1 accuracy", True),
        ("mIoU", True), ("rougeLsum", True), ("map_bbox && map_segm", True), ("收敛精度", True),
        ("GradAccum", False),
        ("# Accelerators", False), ("accumulation", False), ("mapping", False), ("ppl", False),
    ],
)  # fmt: skip
def test_share_is_recognised_by_whole_words(name: str, share: bool) -> None:
    assert is_fraction(name) is share


def test_percentage_among_fractions_is_found_in_csv(tmp_path: Path) -> None:
    file = tmp_path / "r.csv"
    # Line 3 prints the AUC in percent, the others as a fraction.
    lines = ["device,samples/s,auc", "A100,9,0.8026", "A100,9.1,80.24", "A100,9.2,0.8025"]
    file.write_text("\n".join(lines), encoding="utf-8")
    findings = audit([views.view_row(row) for row in select_results([str(file)]).rows])
    assert [(row.rule, row.subject.line) for row in findings] == [("range", 3)]


def test_translation_of_page_is_not_copy(tmp_path: Path) -> None:
    # Two pages in two languages have the same table. Its row fits itself: 3,314 tokens/s on each of
    # 8 devices are 51 samples/s of about 520 tokens.
    table = "| GPUs | tokens/s/GPU | samples/s |\n|---|---|---|\n| 8 | 3314 | 51 |\n"
    for name, title in (("en.md", "Performance"), ("zh.md", "性能")):
        (tmp_path / name).write_text(f"# {title}\n\n{table}", encoding="utf-8")

    def audit_folder() -> list[Finding]:
        return audit([views.view_row(row) for row in select_results([str(tmp_path)]).rows])

    assert audit_folder() == []
    # Equal figures of two models on one page are a copy.
    text = f"# Performance\n\n## Small\n\n{table}\n## Large\n\n{table}"
    (tmp_path / "zh.md").unlink()
    (tmp_path / "en.md").write_text(text, encoding="utf-8")
    assert [finding.rule for finding in audit_folder()] == ["same_figures"]


def test_missing_sequence_length_counts_as_shortest() -> None:
    """If a page names no changed settings, 320 samples/s may be of 128 tokens or of 512.

    With 512 tokens a sample, they are more than the peak of a V100.
    """
    figures = {"p_whole": 320.0}
    row_fields = {"model": "bert large uncased", "device": "V100", "nnodes": 1, "nproc": 1}
    assert audit([make_subject(figures, **row_fields)]) == []
    # This page has a column of changed settings, and the row changes none: the usual length, 512.
    findings = audit([make_subject(figures, **row_fields, cells={"fix_hp": "/"})])
    assert [finding.message.code for finding in findings] == ["audit_peak"]


@pytest.mark.parametrize(
    ("printed", "length"),
    [("512", 512), ("1,024", 1024), ("1k", 1024), ("1,048,576", 1048576), ("1,02", None)],
)
def test_printed_sequence_length_is_read(printed: str, length: int | None) -> None:
    assert make_subject({}, changes={"seq_length": printed}).sequence_length == length


@pytest.mark.parametrize(
    ("model", "changes", "codes"),
    [
        ("qwen3_8b", {}, ["audit_peak"]),
        ("qwen3_8b", {"method": "LoRA"}, []),  # which trains few of the weights
        # Mixtures of experts: a speed says nothing if the page does not describe how tokens are
        # routed to experts, as a loss that balances them or the kind of router does.
        ("mixtral_8x7b", {}, ["audit_routing_unnamed"]),
        ("mixtral_8x7b", {"aux_loss": "0.01"}, []),
        ("qwen3-30b-a3b", {"router": "trained, dropless"}, []),
        ("mine", {}, []),  # the name states no size
        ("mine", {"parameters": "8,030,000,000"}, ["audit_peak"]),
        ("mine", {"parameters": "8 B"}, ["audit_peak"]),
    ],
)
def test_size_of_language_model_is_read_from_name(
    model: str, changes: dict[str, str], codes: list[str]
) -> None:
    row_fields = {"model": model, "device": "A100", "precision": "bf16", "changes": changes}
    # The speed is above the peak of an A100 for a model of 8 billion weights: at 6 FLOPs for each
    # weight and token, 7,766 tokens/s are 373 TFLOP/s, and the bf16 peak is 312. ``changes`` are
    # settings that the row prints, ``codes`` those of the findings.
    findings = audit([make_subject({"token/p/s": 7766.36}, **row_fields)])
    assert [finding.message.code for finding in findings] == codes


def test_workloads_have_source_and_unique_name() -> None:
    # The file tells what the audit knows of models, by the names that pages give them: the work of
    # a sample, or the size, and the benchmark case, if there is one.
    document = read_toml(Path(trainmark.published.audit.__file__).with_name("workloads.toml"))
    entries = [*document["workload"], *document["sizes"]]
    # A source has its address and the date on which it was read.
    assert all("https://" in entry["source"] and "2026-" in entry["source"] for entry in entries)
    names = [name for entry in entries for name in entry["names"]]
    assert len(names) == len(set(names))
    assert {entry["case"] for entry in entries if "case" in entry} <= set(cases.list_names())


@pytest.mark.parametrize(("page", "lang"), [("audit.md", "en"), ("audit.zh.md", "zh")])
def test_page_lists_all_rules(page: str, lang: str) -> None:
    # The page has a table with a line for each rule: its name, the severities of its findings, and
    # a sentence on what it checks.
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    for name, rule in RULES.items():
        checks = render(message(f"audit_rule.{name}"), lang)
        assert f"| `{name}` | {rule.severities} | {checks} |" in lines


def test_both_pages_of_published_results_have_the_same_findings() -> None:
    # A finding is a line of a table, whose first cell is a link to the published page. Both pages
    # together would also be equal if nothing were found in them, so more than 20 are expected.
    findings = [
        [
            line.split(" | ")[:4]  # the columns that are the same in both languages
            for line in (DOCS / page).read_text(encoding="utf-8").splitlines()
            if line.startswith("| [")
        ]
        for page in ("published.md", "published.zh.md")
    ]
    assert findings[0] == findings[1]
    assert len(findings[0]) > 20


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({}, ["audit_routing_unnamed"]),
        ({"force_load_balancing": "true"}, ["audit_routing_forced"]),
        ({"moe_router_force_load_balancing": "True"}, ["audit_routing_forced"]),
        ({"force_load_balancing": "false"}, []),
        ({"routing": "balanced"}, ["audit_routing_forced"]),
        ({"capacity_factor": "1.0"}, ["audit_routing_drops"]),
        ({"moe_token_dropping": "true", "router": "top 4"}, ["audit_routing_drops"]),
        ({"dropped": "68%"}, ["audit_routing_drops"]),
        ({"token_dropping": "false", "aux_loss_coeff": "0.001"}, []),
    ],
)
def test_speed_of_mixture_of_experts_must_state_its_routing(
    changes: dict[str, str], codes: list[str]
) -> None:
    row_fields = {"device": "H100", "precision": "bf16", "changes": changes}
    # ``changes`` are settings that the row prints: on a routing that is forced to be even, on one
    # that drops tokens, or on another. How tokens reach experts changes the speed, so both figures
    # of speed need it; memory does not, nor does a model without experts, such as llama3 8b.
    for figure in ({"token/p/s": 3000.0}, {"MFU": 30.0}):
        findings = audit([make_subject(figure, model="gpt_oss_20b", **row_fields)])
        assert [finding.message.code for finding in findings if finding.rule == "routing"] == codes
    assert not [
        finding
        for finding in audit([make_subject({"mem": 1e9}, model="gpt_oss_20b", **row_fields)])
        if finding.rule == "routing"
    ]
    assert not [
        finding
        for finding in audit([make_subject({"token/p/s": 3000.0}, model="llama3 8b", **row_fields)])
        if finding.rule == "routing"
    ]


@pytest.mark.parametrize(
    ("changes", "mfu", "codes"),
    [
        ({"dropped": "68%"}, 21.83, ["audit_mfu_dropped"]),
        ({"token_drop_rate": "0.68"}, 21.83, ["audit_mfu_dropped"]),
        ({"dropped": "68%"}, 11.97, []),  # fits the tokens that were not dropped
        ({"dropped": "68%"}, 60.0, ["audit_mfu_row"]),  # fits neither all tokens nor those
        ({"capacity_factor": "1.25"}, 21.83, []),  # how many were dropped is not printed
        ({"dropped": "0"}, 21.83, []),
        ({"drop_policy": "0", "token_drop_rate": "0.68"}, 21.83, ["audit_mfu_dropped"]),
        ({"dropout": "0.68"}, 21.83, []),  # regularization, which drops no tokens
        ({"drop_path_rate": "0.68"}, 21.83, []),
    ],
)
def test_mfu_of_mixture_of_experts_excludes_dropped_tokens(
    changes: dict[str, str], mfu: float, codes: list[str]
) -> None:
    row_fields = {"device": "H100", "precision": "bf16", "changes": changes}
    # 10,000 tokens/s of this model on an H100 are an MFU of 21.83% if none is dropped. The experts,
    # 2.39 of the 3.6 billion parameters that a token uses, compute nothing for dropped tokens. If
    # 68% are dropped, the MFU is 21.83% x (1 - 0.68 x 2.39 / 3.6) = 11.97%.
    findings = audit(
        [make_subject({"token/p/s": 10_000.0, "MFU": mfu}, model="gpt_oss_20b", **row_fields)]
    )
    assert [finding.message.code for finding in findings if finding.rule == "mfu"] == codes
