"""The result page: golden files, both languages, failed runs.

``UPDATE_GOLDEN=1 pytest tests/pages/test_page.py`` writes the golden pages anew; look
at the difference before committing it.
"""

import re
from base64 import b64encode
from hashlib import sha256

import pytest

from support.comparison_records import replace_plan_fields
from support.document_texts import Reader, render_html, render_markdown
from support.exported_runs import write_two_ranks
from support.fakes import GOLDEN, check_golden
from trainmark import cases
from trainmark.errors import RecordError, UsageError
from trainmark.pages import page, pictures, rendering
from trainmark.pages.rendering import to_body_html, to_markdown
from trainmark.pages.sections.limits import describe_dominant_limit, find_limits
from trainmark.pages.sections.ranks import build_rank_strip
from trainmark.pages.site.views import Links, build_run_page, make_safe_file_name
from trainmark.pages.summary import build_first_sentence, build_title, list_first_lines
from trainmark.pages.texts import describe_dataset, describe_quality, translate
from trainmark.pages.tiles import Price
from trainmark.plan.witness import StepWork, Witness, WitnessSpec
from trainmark.published.importers.reference_rows import read_published
from trainmark.record.record import Cause, Record, Trust
from trainmark.record.trust import grade_reasons
from trainmark.record.work import find_row_differences
from trainmark.spec import PageSpec, Shown, TableSpec, Text, message

CJK = re.compile(r"[\u3000-\u9fff\uff00-\uffef]")
ESCAPED = r"\u001b"  # the escape character as pages and the index have it
HOSTILE = '<script>alert("x")</script>|a\nb\x1b[31m`c`**d**'


def read_record(name="distilbert"):
    """Return a golden record; that of DistilBERT ran on two A100 with 457.2 samples/s."""
    return Record.model_validate_json((GOLDEN / f"record_{name}.json").read_bytes())


def make_record(**changes):
    """Return the golden record of DistilBERT with other values of these top-level fields."""
    return read_record().model_copy(update=changes)


def make_planned_record(run_id="o", **changes):
    """Return the golden record of DistilBERT as another run, with changed fields of its plan."""
    return make_record(run_id=run_id, plan=read_record().plan.model_copy(update=changes))


def to_page_markdown(*records, lang="en"):
    """Return the page of these launches of the same work as Markdown."""
    return to_markdown([page.build_document(records)], lang)


def to_page_html(*records, lang="en"):
    """Return the page's part in one language, as it is on the site."""
    return to_body_html(page.build_document(records), lang, script_draws_charts=True)


def drop_figures():
    """Return the figures of the golden record without values, with a reason why there are none."""
    gone = {"value": None, "reason": message("no_train_time")}
    return {name: entry.model_copy(update=gone) for name, entry in read_record().figures.items()}


def make_failed_record(**changes):
    """Return a run whose rank 1 ran out of memory while it built the model, so without figures.

    Its page shows the facts of the cause, and of the traceback's 41 lines only the last ones.
    """
    record = make_record()
    cause = Cause(
        kind="oom",
        # With characters that Markdown and HTML must escape.
        message=message("exception", text="out of memory|after <2 GiB>"),
        rank=1,
        place="model_build",
        type="OutOfMemoryError",
        exit_code=1,
        traceback="Traceback\n"
        + "\n".join(f'  File "m.py", line {number}' for number in range(40)),
    )
    none = {
        "value": None,
        "history": [],
        "reached": False,
        "reason": message("ended_before_evaluation"),
    }
    empty = {"time_ns": [], "loss": [], "samples": []}
    return record.model_copy(
        update={
            "status": "oom",
            "cause": cause,
            "figures": drop_figures(),
            "quality": record.quality.model_copy(update=none),
            "steps": record.steps.model_copy(update=empty),
            **changes,
        }
    )


def remove_pictures(text):
    """Return a page without its pictures, which depend on library versions."""
    return re.sub(r"<svg .*?</svg>", "<svg/>", text, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("page.en.md", lambda: to_page_markdown(make_record())),
        ("page.zh.md", lambda: to_page_markdown(make_record(), lang="zh")),
        ("page.html", lambda: remove_pictures(render_html([make_record()]))),
        ("page.failed.en.md", lambda: to_page_markdown(make_failed_record())),
        ("page.sampled.en.md", lambda: to_page_markdown(read_record("sampled"))),
    ],
)
def test_pages_match_their_golden_files(name, make):
    check_golden(name, make())


def test_each_language_has_its_own_script():
    # ``CJK`` matches a Chinese character. ``make_record`` is the golden run, which passed, and
    # ``make_failed_record`` one without figures; English is the default.
    for page_of_record in (
        to_page_markdown(make_record()),
        to_page_html(make_record()),
        to_page_markdown(make_failed_record()),
        to_page_html(make_failed_record()),
    ):
        assert CJK.findall(page_of_record) == []
    # In Chinese pages, each heading has Chinese characters.
    headings = re.findall(
        r"^## (.*)$", to_page_markdown(make_failed_record(), lang="zh"), re.MULTILINE
    )
    assert [heading for heading in headings if not CJK.search(heading)] == []
    assert '<html lang="zh-Hans">' in render_html([make_record()], "zh")


def test_published_rows_of_other_work_are_marked():
    # Published runs train to the target. A sentence at their table says if this run does not.
    # The golden run's recipe is standard-1x8, which has a target; throughput recipes have none.
    assert "runs with recipe throughput-1x1 do not train to the target" in to_page_markdown(
        make_planned_record(recipe_name="throughput-1x1")
    )
    assert "do not train to the target" not in to_page_markdown(make_record())


def read_visible(document, lang="en"):
    """Return the words and the numbers of the unfolded part of a page's first screen.

    Both are lists of texts, in the order of the page; numbers are also among the words.
    """
    body = to_body_html(document, lang)
    # The first screen is the header; of what is folded, only the summary shows.
    body = re.sub(r"</header>.*", "", body, flags=re.DOTALL)
    body = re.sub(r"<svg .*?</svg>", "", body, flags=re.DOTALL)  # nobody reads axes first
    body = re.sub(
        r"(<details[^>]*>.*?</summary>).*?</details>", r"\1</details>", body, flags=re.DOTALL
    )
    words = Reader(f"{body}</header>").texts
    text = " ".join(word for word in words if word.strip())
    # With sign and decimals, but not as a part of a word such as "x86".
    numbers = re.findall(r"(?<![\w.])[-+×]?\d[\d,.]*", text)
    return text.split(), numbers


def test_the_first_screen_has_few_words_and_figures():
    # With results to compare (two more runs of the same work), failed, with telemetry, and of a
    # small case.
    others = [make_record(run_id=name) for name in ("x", "y")]
    for document in (
        page.build_document([make_record()], others),
        page.build_document([make_failed_record()]),
        page.build_document([read_record("sampled")]),
        page.build_document([read_record("toy")]),
    ):
        words, numbers = read_visible(document)
        assert len(words) <= 180, words  # limits of our own: more would not be read
        assert len(numbers) <= 50, numbers


def test_first_screen_shows_speed_and_rating_and_limit():
    # The same figures on other devices, so the ratio of the two is 1.
    nearest = make_record(
        run_id="h100", environment=read_record().environment | {"devices": [{"name": "H100"}] * 2}
    )
    text = " ".join(read_visible(page.build_document([make_record()], [nearest]))[0])
    # The values of the golden record.
    assert "457 samples/s; reached acc 0.9117 (target 0.91) in 46.1 s" in text
    assert "Training speed p_train 457 samples/s 1 launch" in text
    assert "2 x H100 (your run, noisy) × 1.00" in text
    assert "computing + communication 89%" in text
    # The only other result is of another case.
    first_screen = " ".join(
        read_visible(page.build_document([make_record()], [make_planned_record("z", case="toy")]))[
            0
        ]
    )
    assert "No comparable result. The closest is 2 x NVIDIA A100" in first_screen
    assert "case: distilbert_sst2 in this run, toy in the other result" in first_screen


def test_run_that_its_evidence_contradicts_is_not_compared():
    # A file of the other run, its plan, was changed afterwards. In all else the two are the same
    # golden record, and so would be comparable. The texts are those of the page's first screen.
    # ``grade_reasons`` makes the trust in a run from the reasons to doubt it.
    trust = grade_reasons([message("evidence_altered", file="plan.json")])
    refuted = make_record(run_id="refuted", trust=trust)
    text = " ".join(read_visible(page.build_document([make_record()], [refuted]))[0])
    assert "the other runs of this case did not pass, or are contradicted by their evidence" in text
    assert "your run" not in text  # words of the bar that a comparable run has


def test_difference_of_two_long_texts_is_shown_where_they_differ():
    """Measured programs are compared by command; these are equal in their first 200 characters.

    A witness is such a program of the user's own; each run here has one, and its rate as its id.
    ``starts_ranks``: whether the command itself starts the ranks, as torchrun does.
    """
    runs = []
    for rate in ("0.1", "0.2"):
        witness = Witness(
            spec=WitnessSpec(name="my_mlp", precision="fp32", step=StepWork(samples=8)),
            command=("python", "train.py", "--data=" + "x" * 200, f"--lr={rate}"),
            folder="/work",
            starts_ranks=False,
        )
        runs.append(make_planned_record(rate, witness=witness))
    text = " ".join(read_visible(page.build_document(runs[:1], runs[1:]))[0])
    assert "--lr=0.1" in text
    assert "--lr=0.2" in text


def test_difference_of_two_witness_files_names_the_key():
    # A witness is a training program of the user's own that is measured; the file given with
    # ``--witness`` describes it (``spec``), here with different samples in a step. Each run has
    # this number as its id.
    runs = []
    for samples in (32, 64):
        witness = Witness(
            spec=WitnessSpec(name="my_mlp", precision="fp32", step=StepWork(samples=samples)),
            command=("python", "train.py"),
            folder="/work",
            starts_ranks=False,
        )
        runs.append(make_planned_record(str(samples), witness=witness))
    text = " ".join(read_visible(page.build_document(runs[:1], runs[1:]))[0])
    assert "step.samples in the --witness file: 32 in this run, 64 in the other" in text
    assert "train.py" not in text  # the command is the same


def test_charts_of_a_repeated_run_say_which_launch_they_show():
    # All launches have the same speed: of three, the second is the median. The charts of loss and
    # step time show that one alone.
    launches = [make_planned_record(f"r{number}", repeat_index=number) for number in (1, 2, 3)]
    document = page.build_document(launches)
    titles = [translate(chart.title, "en") for chart in pictures.list_charts([document]).values()]
    suffix = "; launch 2 (the launch with the median speed)"
    named = [title.removesuffix(suffix) for title in titles if title.endswith(suffix)]
    assert named[0].startswith("Training loss")
    assert named[1:] == ["Step time (ms); shaded: warm-up"]
    single = pictures.list_charts([page.build_document(launches[:1])])
    assert not any("launch" in translate(chart.title, "en") for chart in single.values())


def make_token_record(**changes):
    """Return the golden run, of 5714.5 tokens/s per device on two devices, as one of tokens.

    That is a run of a case whose work is counted in tokens, not in samples. ``changes``: other
    fields of its plan.
    """
    about = read_record().plan.about.model_copy(update={"work_unit": "tokens"})
    return make_planned_record(about=about, **changes)


def test_token_case_shows_tokens_first_and_its_cost_per_token():
    # Tokens are counted per device, so two devices for 36 EUR an hour.
    document = page.build_document([make_token_record()], price=Price.parse("36 EUR"))
    text = to_markdown([document])
    assert "5,710 tokens/s per device; reached acc" in text
    assert "- Training speed: 5,710 tokens/s per device (1 launch)" in text
    assert "Cost per million tokens: 0.875 EUR" in text  # 36 / 3600 / (5714.5 x 2) x 1,000,000
    row = list_first_lines([make_token_record()])[3]  # the line of key figures
    assert row.startswith("e2e_time 46.1 s · token/p/s 5714.5 tokens/s · p_whole 412.9, p_train")


@pytest.mark.parametrize(
    ("changes", "job", "lang", "size_name"),
    [
        (
            {"recipe_name": "tiny"},
            {"parameters": 12_690},
            "en",
            "DistilBERT on SST-2, 12.7k parameters · 2 x",
        ),
        ({}, {"parameters": 12_690}, "zh", "DistilBERT SST-2（12.7k 参数） · 2 x"),
        ({"recipe_name": "tiny"}, {"parameters": 66_362_880}, "en", "DistilBERT on SST-2 · 2 x"),
        ({}, {"parameters": 130_000_000}, "en", "DistilBERT on SST-2, 130M parameters · 2 x"),
        ({}, {}, "en", "DistilBERT on SST-2 · 2 x"),
    ],
)
def test_nonstandard_model_is_named_by_its_size(changes, job, lang, size_name):
    # ``job`` is what the job reports. The standard model has 66,955,010 parameters: a size near
    # it, or none, is not named. The recipe's name does not matter, even if it is that of a small
    # model.
    record = make_planned_record(**changes)
    record = record.model_copy(update={"environment": record.environment | {"job": job}})
    assert translate(build_title(record), lang).startswith(size_name)


@pytest.mark.parametrize(("lang", "word"), [("en", "open rules"), ("zh", "开放组规则")])
def test_open_rules_are_shown_in_every_title(lang, word):
    # ``rules``: "open" if the user changed what the closed rules fix, such as the weight decay. The
    # golden record of ``make_record`` is a closed one.
    record = make_planned_record(rules="open")
    assert translate(build_title(record), lang).endswith(f" · {word}")
    assert f" · {word}\n" in to_page_markdown(record, lang=lang)
    assert f" · {word}</h1>" in to_page_html(record, lang=lang)
    # Closed rules are what one expects.
    assert word not in translate(build_title(make_record()), lang)


def test_a_published_row_is_named_in_the_language_of_the_page():
    # The first row of the case's published results: eight A100, so not the work of the golden run
    # on two. The page names it as the closest result.
    (row, *_) = read_published(["distilbert_sst2"])
    document = page.build_document([make_record()], [row])
    assert "The closest is A100 1 node x 8 (1x8) (" in " ".join(read_visible(document)[0])
    assert "A100单机8卡（1x8）" in " ".join(read_visible(document, "zh")[0])


def make_run_and_published_row():
    """Return a run that did the work of a published row, and that row."""
    row = next(
        x for x in read_published(["distilbert_sst2"]) if (x.nproc, x.changes) == (8, {"bs": "96"})
    )
    plan = read_record().plan
    # SST-2 has 67,349 training samples; the row was trained with bs=96 and a rate of 5e-5.
    data = plan.data.model_copy(update={"train_samples": 67_349})
    recipe = plan.recipe | {"learning_rate": 5e-5}
    changes = {"micro_batch_size": 96}
    return make_planned_record(nproc=8, data=data, recipe=recipe, fix_hp=changes), row


def test_a_published_row_is_compared_with_a_run_of_the_same_work():
    # The row is of eight A100. The run did its work, at the speed of the golden record.
    run, row = make_run_and_published_row()
    # The page prints fp32, but its program trained with TF32, which is what is compared.
    assert (row.nnodes, row.precision, row.stated.precision) == (1, "fp32", "tf32")
    text = " ".join(read_visible(page.build_document([run], [row]))[0])
    # The training speeds (p_train) in samples/s: 457.2 of the run, 2135.8 as the page prints it.
    assert "A100 1 node x 8 (1x8) (published) × 0.214" in text  # 457.2 / 2135.8


@pytest.mark.parametrize(
    ("plan", "environment", "expected"),
    [
        (
            {},
            {"job": {"parameters": 12_690}},
            "parameters: 12,690 in this run, 66,955,010 in the other result",
        ),
        ({"seq_length": 24}, {}, "seq_length: 24 in this run, 512 in the other result"),
        ({"micro_batch_size": 32}, {}, "micro_batch_size: 32 in this run, 96 in the other result"),
        ({"precision": "fp32"}, {}, "precision: fp32 in this run, tf32 in the other result"),
        (
            {"train_samples": 3_840},
            {},
            "training samples: 3,840 in this run, 67,349 in the other result",
        ),
        ({"nproc": 2}, {}, "nodes x devices: 1x2 in this run, 1x8 in the other result"),
    ],
)
def test_a_published_row_of_other_work_is_the_closest_result(plan, environment, expected):
    # The run has the work of the published row, until one of its fields is changed to that of
    # ``plan`` or ``environment``; ``expected`` names this difference. The row has eight A100, and
    # 66,955,010 is the size of the standard model.
    run, row = make_run_and_published_row()
    # ``plan`` holds recipe fields, and possibly ``train_samples`` and ``nproc``, which are not.
    recipe_fields = dict(plan)
    samples = recipe_fields.pop("train_samples", run.plan.data.train_samples)
    changes = {
        "nproc": recipe_fields.pop("nproc", 8),
        "recipe": run.plan.recipe | recipe_fields,
        "data": run.plan.data.model_copy(update={"train_samples": samples}),
    }
    run = run.model_copy(
        update={
            "plan": run.plan.model_copy(update=changes),
            "environment": run.environment | environment,
        }
    )
    text = " ".join(read_visible(page.build_document([run], [row]))[0])
    assert f"No comparable result. The closest is A100 1 node x 8 (1x8) ({expected})" in text
    assert "×" not in text  # no ratio is shown


@pytest.mark.parametrize(
    ("value", "other", "expected"),
    [
        (0.0, 0.1, "weight_decay: 0.0 in this run, 0.1 in the other result"),
        (0, "auto", "weight_decay: 0 in this run, auto in the other result"),
        ("auto", False, "weight_decay: auto in this run, no in the other result"),
        ("", "auto", "weight_decay: none in this run, auto in the other result"),
        # Only 60 characters of a long text are shown.
        (None, "x" * 99, f"weight_decay: none in this run, {'x' * 60}… in the other result"),
    ],
)
def test_zero_is_a_value_in_a_difference_of_work(value, other, expected):
    # Two runs that differ in one field of their recipe. The weight decay stands for any field, so
    # its values here have types that other fields have.
    run, other_run = (
        make_planned_record(name, recipe=read_record().plan.recipe | {"weight_decay": decay})
        for name, decay in (("a", value), ("b", other))
    )
    text = " ".join(read_visible(page.build_document([run], [other_run]))[0])
    assert expected in text


def test_published_row_is_assumed_to_use_the_standard_model():
    run, row = make_run_and_published_row()
    # A row of other people, which does not state how it was trained.
    foreign = row.model_copy(update={"stated": None, "precision": "tf32"})
    assert find_row_differences(run, foreign) == {}
    small = run.model_copy(update={"environment": run.environment | {"job": {"parameters": 610}}})
    assert find_row_differences(small, foreign) == {"parameters": (610, 66_955_010)}
    # Other data is a difference by itself; the model is then no longer compared.
    generated = foreign.model_copy(update={"data_origin": "generated"})
    assert find_row_differences(small, generated) == {"data": ("real", "generated")}


def test_settings_of_a_published_row_are_compared_by_their_values():
    # A row has the values of recipe fields as texts, a record as they are. ``fix_hp`` are the
    # fields that the user changed, of a row ``changes``; "lr" is short for ``learning_rate``. The
    # result has two texts for each difference: of the run and of the row.
    run, row = make_run_and_published_row()
    changes = {"compile": True, "learning_rate": 0.00015}
    run = run.model_copy(update={"plan": run.plan.model_copy(update={"fix_hp": changes})})
    row = row.model_copy(update={"changes": {"compile": "true", "learning_rate": "1.5e-4"}})
    assert "fix_hp" not in find_row_differences(run, row)
    other = row.model_copy(update={"changes": {"compile": "false", "learning_rate": "1.5e-4"}})
    assert find_row_differences(run, other)["fix_hp"] == (
        "compile=true,lr=0.00015",
        "compile=false,lr=0.00015",
    )


def test_a_throughput_that_counts_samples_several_times_is_not_compared():
    rows = list(read_published(["dlrm_criteo"]))
    # How many times a printed throughput counts each sample. On DLRM's page each of 1, 8 or 16
    # ranks counts the samples of all ranks, twice.
    assert [row.stated.sample_count for row in rows] == [2, 16, 32, 16, 2, 32]
    # The micro-batch of a rank is not counted several times: the first three rows divide 65,536
    # samples among 1, 8 and 16 ranks. The others print the batch of all of their 8, 1 and 16 ranks:
    # 2,097,152, 262,144 and 2,752,512.
    assert [row.stated.micro_batch_size for row in rows] == [
        65_536,
        8_192,
        4_096,
        262_144,
        262_144,
        172_032,
    ]
    assert find_row_differences(make_record(), rows[0])["sample_count"] == (1, 2)


def test_failed_run_shows_cause_rank_and_advice_first():
    document = page.build_document([make_failed_record()])
    # The words of the first screen; of an item that can be unfolded, only its summary.
    text = " ".join(read_visible(document)[0])
    expected = "out of memory while building the model, rank 1: out of memory|after <2 GiB>"
    assert f"not checked against raw events {expected} What to try lower bs" in text
    assert text.count(expected) == 1
    assert "Training" not in text
    # No tiles of figures either.
    assert "tile-" not in to_body_html(document, "en")


def test_each_trust_reason_is_shown_once_on_a_page():
    busy = message("machine_busy", share=0.81)
    reasons = [message("trust_generated_data"), busy, message("trust_cv", cv=0.3)]
    # The busy machine is a reason, a finding and a fact of the environment.
    doubtful = make_record(trust=Trust(grade="do_not_quote", reasons=reasons), findings=[busy])
    doubtful.environment["others_cpu_share"] = 0.8  # rounded otherwise, so that it would show
    # A doubt of the page has a short text, and says whether it forbids to quote the run.
    document = page.build_document([doubtful])
    assert [(translate(x.short, "en"), x.is_grave) for x in document.doubts] == [
        ("generated data", True),
        ("the machine was busy (other programs used 81% of the cores)", False),
        ("CV of the step time: 30.0%", False),
    ]
    text = to_page_markdown(doubtful)
    full = "the machine was busy: other programs used 81% of the cores during the run"
    assert text.count(full) == 1
    assert text.count("81%") == 1
    body = to_body_html(document, "en")
    assert '<span class="more">+1 more</span></summary>' in body  # the third one is folded
    assert body.count("<li>CV of the step time: 30.0%</li>") == 1


def test_worst_of_several_launches_is_not_taken_for_all_of_them():
    """Steps became slower in one of three launches, and faster in another."""
    slower, faster = (
        make_record(
            run_id=f"drift{drift}",
            trust=Trust(grade="noisy", reasons=[message("not_steady", drift=drift)]),
        )
        for drift in (0.8, -0.2)
    )
    calm = make_record(run_id="calm", trust=Trust(grade="usable", reasons=[]))
    unsteady, _few = page.build_document([faster, slower, calm]).doubts
    assert translate(unsteady.short, "en") == "steps became 80.0% slower during the run"
    text = translate(unsteady.full, "en")
    assert "80.0% slower" in text
    assert text.endswith("(in the worst launch; 2 of 3 launches are affected)")


def test_trust_reason_of_some_launches_shows_their_number():
    launch = make_record(trust=Trust(grade="noisy", reasons=[message("machine_busy", share=0.5)]))
    calm = make_record(run_id="calm", trust=Trust(grade="usable", reasons=[]))
    # The second reason is that of all pages with few launches.
    document = page.build_document([launch, calm])
    busy, few = document.doubts
    assert translate(busy.full, "en").endswith("during the run (1 of 2 launches)")
    assert translate(few.full, "en") == "only 2 launches (minimum: 5)"
    # A terminal shows all reasons of the same grade, here "noisy", in one line.
    (line,) = document.reasons
    assert translate(line, "en").count("(1 of 2 launches)") == 1
    assert "(minimum: 5)" in translate(line, "en")


def test_failed_run_shows_no_trust_reasons():
    document = page.build_document([make_failed_record()])
    assert (document.doubts, document.reasons) == ((), ())


def test_facts_of_a_run_are_shown_with_its_figures():
    # All values are those of the golden record; ``lead`` has the blocks of its first screen.
    lead = page.build_document([make_record()]).lead
    facts = {translate(name, "en"): translate(value, "en") for name, value in lead[0].items}
    assert facts == {
        "model": "67.0M parameters",
        "samples per step": "192 = 96 x 2",  # batch x devices
        "sequence length": "512",
        "data": "SST-2",
        "device memory": "40 GiB",
        "nodes": "1",
        "torch": "2.13.0+cu130",
        "driver": "580.65.06",
        "date": "2026-11-21",
        "rules": "closed rules, recipe standard-1x8",
    }
    generated = make_planned_record(
        data=read_record().plan.data.model_copy(update={"origin": "generated"})
    )
    assert "generated data in the format of SST-2" in to_page_markdown(generated)
    assert "SST-2 格式的生成数据" in to_page_markdown(generated, lang="zh")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "Model FLOPs utilization: 31.6 % (40.7% of the measured matmul rate)"),
        ({"MFU": None}, "Utilization of the matmul rate: 40.7 %"),
        (
            {"MFU": None, "MAMFU": None},
            "Model FLOPs utilization: – (no dense bf16 peak is known for X)",
        ),
    ],
)
def test_device_utilization_has_a_tile_or_a_reason(values, expected):
    # In the golden record, MFU, the share of the published peak, is 31.6%, and MAMFU, the share of
    # the matmul rate that was measured, 40.7%. ``values`` replaces them. None: not known, for the
    # reason below, that no peak of the product "X" is published.
    record = read_record()
    reason = message("peak_unknown", precision="bf16", product="X")
    figures = record.figures | {
        name: record.figures[name].model_copy(update={"value": value, "reason": reason})
        for name, value in values.items()
    }
    run = make_record(figures=figures)
    assert expected in to_page_markdown(run)
    if len(values) > 1:  # nothing is known: the table has the reason as well
        assert '<abbr title="no dense bf16 peak is known for X">–</abbr>' in to_page_html(run)


def test_unmeasured_figure_has_its_reason_as_a_tooltip():
    # ``p_core`` is a speed of the golden record, which here has no value for this reason.
    reason = message("no_train_time")
    entry = read_record().figures["p_core"].model_copy(update={"value": None, "reason": reason})
    page_text = to_page_html(make_record(figures=read_record().figures | {"p_core": entry}))
    # As on the founding pages, a slash stands for a figure without a value.
    assert '<abbr title="a rank did not report its training time">/</abbr>' in page_text


def make_waiting_record(share):
    """Return a run that waited for data in this share of its training, 1 s, and computed else.

    The parts of the training are in ns. All else is as in the golden record of DistilBERT.
    """
    record = read_record()
    parts = {"data_wait": int(share * 1e9), "compute": int((1 - share) * 1e9), "other": 0}
    spans = record.spans.model_copy(
        update={"by_name_ns": {"train": 10**9}, "train_parts_ns": parts}
    )
    return make_record(spans=spans)


def test_most_limiting_rule_gives_advice_with_its_arithmetic():
    # ``make_waiting_record`` takes the share of its time that a run waits for data; it computes in
    # the rest. Less than 5% of waiting, and up to 10% of the cores used by others, are not named.
    assert translate(describe_dominant_limit(make_waiting_record(0.31)), "en").startswith(
        "31% of the time was spent waiting for data"
    )
    # The matmul rate is that of the golden record.
    assert translate(describe_dominant_limit(make_waiting_record(0.04)), "en") == (
        "Compute takes 96% of the time and runs at 41% of the device's matmul rate; "
        "no bottleneck found."
    )
    # A rate that rounds to 100 is written as such, not as 1e+02.
    full_speed = make_waiting_record(0.04)
    rate = full_speed.figures["MAMFU"].model_copy(update={"value": 99.6})
    full_speed = full_speed.model_copy(update={"figures": full_speed.figures | {"MAMFU": rate}})
    assert "runs at 100% of" in translate(describe_dominant_limit(full_speed), "en")
    # A slow rank costs more than the wait for data: the page shows both rules, its rule first. Its
    # steps are 60% longer than the others' (1.6 instead of 1), so 0.6 / 1.6 of the time are lost.
    slow = make_waiting_record(0.1).model_copy(
        update={"findings": [message("slow_rank", rank=2, share=0.6)]}
    )
    assert translate(describe_dominant_limit(slow), "en").startswith("Every step waits for rank 2:")
    text = to_page_markdown(slow)
    assert "its processor first. (0.600 / 1.600 = 37.5%)" in text
    assert "more cores. (0.100 s / 1.000 s = 10.0% ≥ 5%)" in text
    assert "slowest: rank 2 (+60%)" in text
    busy = make_waiting_record(0.01)
    busy.environment["others_cpu_share"] = 0.47
    assert translate(describe_dominant_limit(busy), "en").startswith(
        "Other programs used this run's cores"
    )
    assert "idle machine. (47.0% > 10%)" in to_page_markdown(busy)


@pytest.mark.parametrize(
    ("torch_type", "threads", "advises"),
    [("cpu", "2", True), ("cpu", "1", False), ("cuda", "2", False)],
)
def test_fewer_threads_are_advised_only_on_a_busy_cpu(torch_type, threads, advises):
    # ``torch_type``: the kind of device that trains; ``threads``: how many each rank may use. On a
    # CPU the threads compete with other programs; with one thread there are none to give up.
    plan = read_record().plan
    device = plan.device.model_copy(update={"torch_type": torch_type})
    facts = {"others_cpu_share": 0.47, "variables": {"OMP_NUM_THREADS": threads}}
    # Other programs used 47% of the cores; the rule is the one about them.
    busy = make_record(
        plan=plan.model_copy(update={"device": device}),
        environment=read_record().environment | facts,
    )
    (limit,) = [candidate for candidate in find_limits(busy) if candidate.rule == "other_work"]
    assert ("OMP_NUM_THREADS=1" in translate(limit.advice, "en")) is advises
    assert ("OMP_NUM_THREADS=1" in translate(limit.advice, "zh")) is advises


def test_sections_are_in_reading_order():
    # The golden record "sampled" has readings of its devices over time, which the sections "ranks"
    # and "time" show; a page without readings may lack these two.
    anchors = [section.anchor for section in page.build_document([read_record("sampled")]).sections]
    expected = ["performance", "ranks", "time", "figures", "quality"]
    assert [*anchors[:5], anchors[-1]] == [*expected, "provenance"]


def test_a_quality_that_was_not_measured_has_its_reason():
    # The golden record's quality is its accuracy "acc". Its reason here is borrowed: any message of
    # a missing value does.
    quality = read_record().quality.model_copy(
        update={"value": None, "reached": False, "reason": message("no_train_time")}
    )
    text = to_page_markdown(make_record(quality=quality))
    assert "Not measured: acc (a rank did not report its training time)" in text
    # It has no row in the table of figures.
    assert "| acc |" not in text.split("## Figures")[1].split("##")[0]


def test_unmeasured_figures_are_grouped_by_their_reason():
    # Three figures without a value, for two reasons; ``entry``, a figure of the golden record,
    # serves as their form. Measured figures have rows in the table of the section "Figures".
    entry = read_record().figures["p_core"]
    reasons = {
        "power": "devices_unmonitored",
        "MFU": "no_flop_formula",
        "temperature": "devices_unmonitored",
    }
    figures = {
        name: entry.model_copy(update={"value": None, "reason": message(reason)})
        for name, reason in reasons.items()
    }
    text = to_page_markdown(make_record(figures=read_record().figures | figures))
    assert (
        "Not measured: MFU (this case has no FLOP formula); power, temperature "
        "(no library or tool on this machine can take readings from these devices)"
    ) in text
    assert not any(f"| {name} |" in text.split("## Figures")[1] for name in figures)


def test_spans_are_shown_to_the_millisecond_and_name_their_rank_once():
    spans = {"launch": 2_000_000_000, "init": 999_999, "train": 1_234_567}  # ns
    spans_of_run = read_record().spans.model_copy(
        update={"by_name_ns": spans, "wall_ns": 4 * 10**9}
    )
    text = to_page_markdown(make_record(spans=spans_of_run))
    # "start-up" is the span ``launch``, "set-up" is ``init``. Only the first row names the rank,
    # whose spans they are: of the golden run, rank 1 ended last.
    # 2 of the 4 s of wall time are 50%; ``train`` is shown as "measured steps", 1.23 ms of 4 s.
    assert "| start-up | 2.000 | s | 50.0% of the wall time of rank 1 |" in text
    assert "| measured steps | 0.001 | s | 0.0% |" in text
    assert "| set-up |" not in text  # less than a millisecond is not shown


def test_earlier_evaluations_link_to_the_full_record():
    (point, *_) = read_record().quality.history
    record = make_record(quality=read_record().quality.model_copy(update={"history": [point] * 7}))
    # Of 7 evaluations, the last 5 are on the page.
    link = '<a href="{}">2 earlier evaluations are listed in record.json.</a>'
    assert link.format("record.json") in render_html([record])
    other_record = make_record(run_id="other", quality=record.quality)
    # A page of several runs has no record beside it.
    assert "<a href=" not in render_html([record, other_record])
    site = build_run_page(record, [record.run_id], Links("runs/x.html", "zh"))
    assert f'href="../../runs/{make_safe_file_name(record.run_id)}.json">更早的 2 次' in site
    # Control characters are escaped before the name of the file is made.
    # ``ESCAPED`` is the same control character as it is printed.
    hostile = record.model_copy(update={"run_id": "a\x1b"})
    site = build_run_page(hostile, [hostile.run_id], Links("runs/x.html"))
    assert f'href="../runs/{make_safe_file_name("a" + ESCAPED)}.json">2 earlier' in site


def make_throttled_record(**shares):
    """Return a run whose devices were throttled for some shares of its intervals.

    Args:
        shares: shares by reason, by the name of an interval and the index of a device, for
            example ``measured1={"hot": 0.4}``. The interval ``measured`` has the steps after the
            warm-up, ``run`` is the whole run. Others: not throttled.
    """
    record = read_record("sampled")
    devices = [
        device.model_copy(
            update={
                "over": {
                    name: use.model_copy(update={"throttled": shares.get(f"{name}{index}", {})})
                    for name, use in device.over.items()
                }
            }
        )
        for index, device in enumerate(record.telemetry.devices)
    ]
    return record.model_copy(
        update={"telemetry": record.telemetry.model_copy(update={"devices": devices})}
    )


def test_minor_limits_are_those_of_the_launch_whose_dominant_limit_is_shown():
    fast = make_throttled_record().model_copy(update={"run_id": "fast"})
    # The slower of two launches stands for both. Its clocks were lowered, and it shared the cores.
    slow = make_throttled_record(measured1={"hot": 0.4})
    p_train = slow.figures["p_train"]
    slow = slow.model_copy(
        update={
            "environment": slow.environment | {"others_cpu_share": 0.47},
            "figures": slow.figures
            | {"p_train": p_train.model_copy(update={"value": p_train.value / 2})},
        }
    )
    # ``find_limits`` returns what limits a run's speed, the costliest first. Nothing limits the
    # fast launch; the slow one has throttled clocks for 40% of its measured time, and other
    # programs used 47% of its cores. The arithmetic names the limit from which each counts.
    assert find_limits(fast) == []
    dominant_limit, minor_limit = find_limits(slow)
    assert (dominant_limit.arithmetic, minor_limit.arithmetic) == ("40.0% > 1%", "47.0% > 10%")
    assert "(47.0% &gt; 10%)" in to_page_html(fast, slow)


def test_throttling_is_named_by_rank_and_distinguished_by_its_time():
    # Shares of time in which clocks were lowered by heat: ``measured1`` of the device with index 1
    # in the steps after the warm-up, ``run0`` of the other one in the whole run. Their ranks have
    # the same numbers. 40% is also what the limit costs.
    hot = make_throttled_record(measured1={"hot": 0.4}, run0={"hot": 0.1}, run1={"hot": 0.3})
    sentence = translate(build_rank_strip(hot).sentence, "en")
    assert "throttled: rank 1 (40% of the measured time)" in sentence
    assert "throttled only outside the measured time (ranks: 0)" in sentence
    assert [limit.rule for limit in find_limits(hot)] == ["clocks"]
    (clocks,) = find_limits(hot)
    assert (clocks.cost, clocks.arithmetic) == (0.4, "40.0% > 1%")
    # 1% of the time is too little to name, and a power cap is how a device is meant to work.
    assert (
        find_limits(make_throttled_record(measured0={"hot": 0.01}, measured1={"power_cap": 0.9}))
        == []
    )
    # Of more than four such ranks, here 0 to 5, the first four are named and the others counted.
    devices = [hot.telemetry.devices[0].model_copy(update={"ranks": [rank]}) for rank in range(6)]
    many = hot.model_copy(
        update={"telemetry": hot.telemetry.model_copy(update={"devices": devices})}
    )
    sentence = translate(build_rank_strip(many).sentence, "en")
    assert "(ranks: 0, 1, 2, 3, 2 more)" in sentence
    # The strip has a tone for each rank of each node.
    nodes = [[tone for tone, _ in node] for node in build_rank_strip(hot).nodes]
    assert nodes == [["plain", "warn"]]
    findings = [message("slow_rank", rank=1, share=0.6)]
    (tones,) = build_rank_strip(hot.model_copy(update={"findings": findings})).nodes
    assert [tone for tone, _ in tones] == ["plain", "bad"]  # slowness is shown before throttling


@pytest.mark.parametrize(
    ("medians_ms", "torch_type", "expected"),
    [
        (
            (100, 100),
            "cuda",
            "the steps of the slowest rank are 0.0% longer than those of the median rank",
        ),
        (
            (100, 103),
            "cuda",
            "the steps of the slowest rank are 3.0% longer than those of the median rank",
        ),
        (
            (100, 115),
            "cuda",
            "the steps of the slowest rank are 15.0% longer than those of the median rank; "
            "the measured time was too short to tell whether any rank is slow",
        ),
        (
            (100, 103),
            "cpu",
            "the steps of the slowest rank are 3.0% longer than those of the median rank; "
            "the ranks share the host's cores, so their devices are not compared",
        ),
        ((100, None), "cuda", "fewer than two ranks have measured steps"),
    ],
)
def test_rank_strip_states_the_spread_of_ranks(medians_ms, torch_type, expected):
    # ``medians_ms``: median step time of each rank; None: it measured no step. Of two ranks, the
    # faster one counts as the median rank. A rank that is 15% slower would have a finding if slow
    # ranks had been looked for. Only ranks on a CPU share cores; all others have a device each.
    record = read_record()
    ranks = [
        rank.model_copy(update={"step_ns": None if ms is None else ms * 10**6})
        for rank, ms in zip(record.ranks, medians_ms, strict=True)
    ]
    device = record.plan.device.model_copy(update={"torch_type": torch_type})
    run = make_planned_record(device=device).model_copy(update={"ranks": ranks})
    assert translate(build_rank_strip(run).sentence, "en") == expected


def test_spread_of_ranks_that_share_cores_is_not_explained_by_a_short_time():
    record = read_record()
    ranks = [
        rank.model_copy(update={"step_ns": ms * 10**6})
        for rank, ms in zip(record.ranks, (100, 115), strict=True)
    ]
    device = record.plan.device.model_copy(update={"torch_type": "cpu"})  # the ranks share cores
    # "oversubscribed": more ranks than cores, so ranks were not searched for a slow one. Without
    # the label, the sentence would say that the measured time was too short to tell.
    planned = make_planned_record(device=device, labels=["oversubscribed"])
    strip = build_rank_strip(planned.model_copy(update={"ranks": ranks}))
    # Of two ranks, the faster one is the median rank.
    assert translate(strip.sentence, "en") == (
        "the steps of the slowest rank are 15.0% longer than those of the median rank; "
        "the ranks share the host's cores, so their devices are not compared"
    )


def test_larger_batch_is_advised_for_an_underused_device():
    record = read_record()
    values = {"MAMFU": 20.0, "mem": 10e9, "mem_total": 40e9}
    figures = record.figures | {
        name: record.figures["p_train"].model_copy(update={"value": value})
        for name, value in values.items()
    }
    # It hardly waits for data, computes at a low rate and has three quarters of the memory free.
    # In percent and bytes: ``MAMFU`` is the share of the measured matmul rate that the run reaches,
    # ``mem`` the used memory and ``mem_total`` all of it. ``make_waiting_record(0.01)`` is a run
    # that waits for data 1% of its time. Only the rule "batch" applies to it.
    small = make_waiting_record(0.01).model_copy(update={"figures": figures})
    assert [limit.rule for limit in find_limits(small)] == ["batch"]
    # With three quarters of the memory used, a larger batch may not fit.
    full = figures | {"mem": figures["mem"].model_copy(update={"value": 30e9})}
    assert find_limits(small.model_copy(update={"figures": full})) == []


def test_price_has_one_number_and_one_currency():
    assert Price.parse("$2.50") == Price(2.5, "$")
    for text in ("free", "12.5", "$12.5 USD"):  # without a number, a currency, or with two of them
        with pytest.raises(UsageError):
            Price.parse(text)


def test_price_gives_the_cost_per_million_samples():
    # The price of an hour of all devices; the golden run trains 457.2 samples/s.
    document = page.build_document([make_record()], price=Price.parse("36 EUR"))
    text = to_markdown([document])
    assert "Cost per million samples: 21.9 EUR" in text  # 36 / 3600 / 457.2 x 1,000,000
    # The page shows the arithmetic.
    how = "36 / 3600 s / 457.2 samples/s x 1,000,000"
    assert f"| Cost per million samples | 21.9 | EUR | {how} |" in text
    assert how in to_body_html(document, "en")


def test_hang_of_many_ranks_has_one_row_per_position():
    # 700 ranks hang in a barrier; one does not answer.
    waiting = ",".join(str(rank) for rank in range(10, 1410, 2))
    groups = [
        {"ranks": waiting, "state": "collective", "call": "barrier", "where": "a.py:1 f"},
        {"ranks": "9", "state": "silent", "call": None, "where": "zombie"},
    ]
    # ``ranks``: their numbers, separated by commas, here each second one from 10 to 1408;
    # ``where``: the place in the program. The two ``stacks`` are names of files, which the page
    # counts.
    message_of_cause = message("timed_out", limit_s=5, steps=8)
    cause = Cause(kind="timeout", message=message_of_cause, stacks=["a", "b"], hang=groups)
    page_text = to_page_markdown(make_record(status="timed_out", cause=cause), lang="zh")
    assert "stacks.rank&lt;N>.txt (2)" in page_text
    # The list of ranks is cut.
    first = "10,12,14,16,18,20,22,24,26,28,30,32,34,3…"
    assert f"| {first} | 正在进行集合通信 barrier | a.py:1 f |" in page_text
    assert "| 9 | 未响应 | zombie |" in page_text


def test_html_is_one_file_in_both_languages_that_loads_nothing():
    # Two runs of different cases, opened in Chinese. ``Reader`` parses the page: ``tags`` are the
    # names of its elements, and ``list_attributes`` gives the values of attributes.
    page_text = render_html([make_failed_record(), make_planned_record(case="other")], "zh")
    reader = Reader(page_text)
    assert not {"link", "img", "iframe", "object", "form"} & set(reader.tags)
    assert reader.list_attributes("src", "srcset", "action") == []
    style = page_text[page_text.index("<style>") : page_text.index("</style>")]
    assert "url(" not in style
    # Without a script: if the button of one language is chosen, texts in the other are hidden.
    assert ":root:has(#lang-zh:checked) .in-en { display: none; }" in style
    # Only this script may run, by its hash.
    (program,) = re.findall(r"<script>(.*?)</script>", page_text, re.DOTALL)
    digest = b64encode(sha256(program.encode()).digest()).decode()
    (policy,) = [value for value in reader.list_attributes("content") if "default-src" in value]
    assert f"script-src 'sha256-{digest}';" in policy
    ids = reader.list_attributes("id")
    assert len(ids) == len(set(ids))
    # Links lead to places on the page itself.
    assert {link[1:] for link in reader.list_attributes("href")} <= set(ids)
    # What is chosen when the page opens: the language, and the colours of the system. In an
    # element, the attribute ``value`` stands directly before ``checked``.
    checked = [place for place, pair in enumerate(reader.attributes) if pair == ("checked", None)]
    assert [reader.attributes[place - 1] for place in checked] == [
        ("value", "zh"),
        ("value", "auto"),
    ]
    assert reader.tags.count("table") == reader.tags.count("caption") > 10
    # Each head of a table says whether it is of a column or a row.
    scopes = page_text.count('<th scope="col">') + page_text.count('<th scope="row">')
    assert page_text.count("<th>") + page_text.count("<th ") == scopes


def test_page_rendering_reports_its_progress():
    reports = []
    pages = page.build_documents([make_record(), make_planned_record("b", case="other")])
    rendering.to_html(pages, progress=lambda *report: reports.append(report))
    assert len(pages) == 3  # an overview and a page for each case
    # A report for each chart: loss, step times and quality of each of two cases.
    assert reports == [(number, 6) for number in range(1, 7)]
    assert list(pictures.list_charts(pages))[:3] == ["1-loss", "1-step_time", "1-quality"]


def test_curves_of_different_work_of_a_case_share_one_chart():
    # The golden run has a micro-batch (bs) of 96; the second run is the same with 32.
    recipe = read_record().plan.recipe | {"micro_batch_size": 32}
    overview, *_ = page.build_documents([make_record(), make_planned_record("b", recipe=recipe)])
    assert translate(overview.title, "en") == "2 workloads, 2 launches"
    names = [chart.name for chart in overview.charts]
    # The charts of the first table of the overview, which has a row for each of the two.
    assert names == ["table1-loss", "table1-step_time", "table1-quality"]
    sides = {translate(row["side"], "en") for row in overview.charts[0].data["steps"]}
    assert sides == {
        "[1] · 2 x NVIDIA A100-SXM4-40GB, bs=96",
        "[2] · 2 x NVIDIA A100-SXM4-40GB, bs=32",
    }


def test_page_shows_the_command_as_typed():
    # ``HOSTILE`` is text with a script, which begins with ``<script>``. Words are quoted as a shell
    # needs it, and then escaped for HTML: a quote is ``&#39;``.
    argv = ["trainmark", "run", "toy", "--out", "a b", HOSTILE]
    assert "trainmark run toy --out &#39;a b&#39; &#39;&lt;script&gt;" in to_page_html(
        make_record(argv=argv)
    )


def test_several_launches_share_a_page_with_their_geometric_mean():
    record = make_record()
    entry = record.figures["p_train"].model_copy(update={"value": 500.0})
    second = make_record(run_id="second", figures=record.figures | {"p_train": entry})
    launches = (record, second, make_failed_record(run_id="third"))
    text = to_page_markdown(*launches)
    # The rows of a table of launches begin with their numbers, in brackets that Markdown escapes.
    assert re.findall(r"^\| \\\[(\d)\\\] NVIDIA", text, re.MULTILINE) == ["1", "2", "3"]
    assert "2 of 3 launches passed" in text
    assert "excluded from every figure: third (out of memory)" in text
    # The geometric mean of the two launches that passed: 457.2 and 500 samples/s.
    assert "- Training speed: 478 samples/s (457 – 500 (range), 2 launches)\n" in text
    html = to_page_html(*launches)
    assert "Figures are geometric means over 2 launches;" in html  # the failed one has none
    # Ids of the launches' parts do not collide.
    ids = Reader(html).list_attributes("id")
    assert len(ids) == len(set(ids))


def test_different_work_gets_a_table_and_one_page_each():
    # All but the last two are the golden record of DistilBERT on two A100, with other ids.
    recipe, device = read_record().plan.recipe, read_record().plan.device
    records = [
        make_record(),
        make_record(run_id="again"),
        make_planned_record("eight", nproc=8),
        make_planned_record("bf16", recipe=recipe | {"precision": "bf16"}),
        make_planned_record("host", device=device.model_copy(update={"torch_type": "cpu"})),
        make_record(run_id="simulated", labels=["simulated-device"]),
        make_failed_record(run_id="failed"),
        read_record("toy"),
        read_record("sampled"),
    ]
    documents = page.build_documents(records)
    # An overview and five pages: "eight", "bf16", toy and sampled have one each; the other five
    # runs have the same work and device names, and share one.
    assert len(documents) == 1 + 5
    text = render_markdown(records, "zh")
    assert "[模拟设备" in text
    bodies = "".join(
        to_body_html(document, "en", script_draws_charts=True) for document in documents
    )
    ids = re.findall(r' id="([^"]*)"', bodies)
    assert len(ids) == len(set(ids))
    # The same run given twice counts once.
    assert render_markdown([make_record(), make_record()]) == render_markdown([make_record()])


def test_interrupted_run_has_a_page(tmp_path):
    # ``write_two_ranks`` writes a toy run of two ranks, and returns its record first. The events of
    # both ranks end after seven, in the middle of the training.
    broken, _ = write_two_ranks(tmp_path / "run", ends_after=7)
    # ``Reader`` raises if the HTML is not well-formed.
    _overview, _passed, interrupted = (
        Reader(to_body_html(document, "en", script_draws_charts=True))
        for document in page.build_documents([make_record(), broken])
    )
    assert "Toy classification · Fake CPU, 2 ranks · fp32" in interrupted.texts
    reason = "failed: rank 0 ended before it had written all its events"
    assert reason in interrupted.texts


def test_missing_record_or_language_is_refused():
    # A page needs a record at least; there are pages in English (en) and Chinese (zh) only.
    with pytest.raises(RecordError, match="no record"):
        render_html([])
    with pytest.raises(UsageError, match="'fr'"):
        render_markdown([make_record()], "fr")


# What the page of a case adds: the list "Ranks" … "Width" of facts of the job, the run and the
# recipe, and a table with a row for each entry of the job's ``layers``.
SPREAD = PageSpec(
    tables=(
        TableSpec(
            heading=Text("Parallel strategy", "并行策略"),
            entries=(
                Shown(name=Text("Ranks", "rank 划分"), value="job.parallel"),
                Shown(name=Text("Share"), value="job.share", form=".1%"),
                Shown(name=Text("Batch"), value="run.global_batch_size", form=","),
                Shown(name=Text("Width"), value="recipe.width"),
            ),
        ),
        TableSpec(
            heading=Text("Layers", "各层"),
            entries=(
                Shown(name=Text("rows"), value="rows", form=","),
                Shown(name=Text("of"), value="of"),
            ),
            rows="layers",
        ),
    )
)


def make_spread_model_record(**job):
    """Return a run whose case adds ``SPREAD`` to its page.

    ``SPREAD`` is a list of ranks (``job.parallel``), share (``job.share``), batch and width (a
    recipe field that no recipe has), and a table of the job's ``layers``.

    Args:
        job: facts that the job reports.
    """
    record = make_record()
    about = record.plan.about.model_copy(update={"page": SPREAD})
    job_facts = {**(record.environment["job"] or {}), **job}
    plan = record.plan.model_copy(update={"about": about})
    return make_record(plan=plan, environment=record.environment | {"job": job_facts})


def test_lists_and_tables_of_a_case_are_filled_from_the_run():
    # ``make_spread_model_record`` returns a run with these facts, which its job reported. Its case
    # adds lists to the page: ranks (``parallel``), ``share``, batch and width; and a table
    # (``layers``).
    spread = make_spread_model_record(parallel={"data": 4, "tensor": 2, "fsdp": True}, share=0.125)
    # The global batch is that of the golden run: 96 samples on each of two ranks.
    assert (
        "- Ranks: data 4, tensor 2, fsdp yes\n- Share: 12.5%\n- Batch: 192\n"
        in to_page_markdown(spread)
    )
    assert "- rank 划分：data 4，tensor 2，fsdp 是" in to_page_markdown(spread, lang="zh")
    # A fact that is None was not used, one that is missing is not known.
    none = to_page_markdown(make_spread_model_record(parallel=None))
    assert "- Ranks: none\n- Share: not known\n- Batch: 192\n- Width: not known\n" in none
    page_text = to_page_markdown(
        make_spread_model_record(layers=[{"rows": 1200, "of": "a"}, {"rows": 7}])
    )
    assert (
        "### Layers\n\n| rows | of |\n| --- | --- |\n| 1,200 | a |\n| 7 | not known |\n"
        in page_text
    )
    # A table without rows is not shown.
    assert "### Layers" not in to_page_markdown(make_spread_model_record())


@pytest.mark.parametrize(("higher", "words"), [(True, "expected best"), (False, "expected lowest")])
def test_verdict_names_the_expected_best_quality(higher, words):
    # The data of this run is generated, so the best quality that a model can reach is known, and
    # the page shows it. ``higher``: the metric is like an accuracy, of which more is better.
    run = read_record("sampled")
    about = run.plan.about.model_copy(update={"higher_is_better": higher})
    run = replace_plan_fields(run, about=about)
    assert words in translate(describe_quality(run), "en")


def test_first_sentence_names_a_missed_target_that_is_not_required():
    # The run still passed: only some recipes require the target, and the status is not changed
    # here.
    quality = read_record().quality.model_copy(
        update={"value": 0.75, "target": 0.8, "reached": False}
    )
    sentence = build_first_sentence([make_record(quality=quality)])
    assert "the target 0.8 was not reached" in translate(sentence, "en")
    assert "未达到目标 0.8" in translate(sentence, "zh")


def test_automatic_kernel_choice_shows_the_kernels_that_ran():
    record = read_record()
    # What the job reports: for each operation, whether Trainmark's kernel ("own") or PyTorch's
    # ("library") ran. The recipe's field ``kernels`` asks for one of them.
    job = (record.environment.get("job") or {}) | {
        "kernels": {"attention": "own", "cross_entropy": "library"}
    }
    # None: the job chooses.
    recipe = record.plan.recipe | {"kernels": None}
    changes = {"plan": record.plan.model_copy(update={"recipe": recipe})}
    ran = make_record(environment=record.environment | {"job": job}, **changes)
    text = to_page_markdown(ran)
    assert "Kernels: attention: Trainmark's CPU kernel, cross_entropy: PyTorch" in text
    assert "kernels=none" not in text
    # A job that did not report its kernels.
    assert "kernels=none" in to_page_markdown(make_record(**changes))


def test_data_set_described_in_words_is_chinese_on_chinese_pages():
    # Other cases name their data, such as "SST-2"; the toy case describes what it generates.
    toy = read_record("toy")
    # The golden record is older than the Chinese description.
    about = toy.plan.about.model_copy(update={"dataset": cases.load("toy").dataset})
    name = describe_dataset(replace_plan_fields(toy, about=about))
    assert not re.search("[A-Za-z]", translate(name, "zh"))
    assert "two Gaussian clouds" in translate(name, "en")


def make_balanced_record(**changes):
    """Return the run of ``make_moe_record`` with all experts given equal loads.

    Its routing and its label say so, and it has no target.
    """
    plan = read_record().plan
    recipe = plan.recipe | {"routing": "balanced", "target_value": None}
    labels = [*plan.labels, "balanced-bound"]
    return make_record(
        run_id="bound", plan=plan.model_copy(update={"recipe": recipe, "labels": labels}), **changes
    )


def make_moe_record():
    """Return a run whose recipe has the router of a mixture of experts, which is trained."""
    plan = read_record().plan
    recipe = plan.recipe | {"routing": "trained"}
    return make_record(plan=plan.model_copy(update={"recipe": recipe}))


def test_page_shows_the_gain_of_balanced_experts():
    rate = make_moe_record().figures["p_train"]
    faster = rate.model_copy(update={"value": 1.25 * rate.value})  # 571.5 instead of 457.2
    # Models with experts send each token to some of them, which a router chooses. With equal loads
    # of all experts ("balanced"): the upper bound of the speed of a trained router.
    bound = make_balanced_record(figures=make_moe_record().figures | {"p_train": faster})
    expected = (
        "trains 1.250 times as fast: 571.5 samples/s instead of 457.2 samples/s with the trained"
    )
    # On the page of either run, compared with the other.
    for run, other in ((make_moe_record(), bound), (bound, make_moe_record())):
        assert expected in to_markdown([page.build_document([run], [other])])
        assert expected in "\n".join(list_first_lines([run], [other]))
    both = to_markdown(page.build_documents([make_moe_record(), bound]))
    assert both.count(expected) == 2  # once on the page of each run
    # Another run with a trained router gives no bound.
    document = page.build_document(
        [make_moe_record()], [make_record(run_id="other", plan=make_moe_record().plan)]
    )
    assert "Speedup from perfect balance" not in to_markdown([document])


def test_balanced_run_of_other_work_does_not_show_the_gain():
    plan = make_balanced_record().plan
    longer = plan.model_copy(update={"recipe": plan.recipe | {"max_steps": 7}})
    # The gain is shown beside a run of the same work whose tokens were spread evenly over experts
    # (the bound), but not beside one of more steps or one that failed.
    for other in (make_record(run_id="x", plan=longer), make_balanced_record(status="failed")):
        document = page.build_document([make_moe_record()], [other])
        assert "Speedup from perfect balance" not in to_markdown([document])
