"""Each language case learns with its tiny recipe from the command line, up to its target."""

from __future__ import annotations

import json

import pytest

from trainmark.record.index_record import round_result
from trainmark.record.record import read_record

# By case: the file of its speed below ``index``, the speed's unit, and the bounds of the reached
# quality divided by the best possible one (a loss ends above the best one, an accuracy below).
CASES = {
    "glm_superglue": ("nlp_glm-tiny_sp_bs16_fp32_1_speed", "samples/s", (0.9, 1.0)),
    "gpt_oss_20b": ("nlp_gpt-oss-20b-tiny_sp_bs16_fp32_1_speed", "tokens/s", (1.0, 1.09)),
    "gpt_megatron": ("nlp_gpt-tiny_sp_bs32_fp32_1_speed", "tokens/s", (1.0, 1.05)),
    "llama2_7b_lora": ("nlp_llama2-7b-lora-tiny_sp_bs6_fp32_1_speed", "tokens/s", (0.75, 1.0)),
    "llama31_8b": ("nlp_llama3.1-8b-tiny_sp_bs16_fp32_1_speed", "tokens/s", (1.0, 1.09)),
}


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
def test_tiny_recipe_reaches_its_target(trainmark, tmp_path, case):
    """``CASES`` has, by case, a file, a unit, and bounds of the quality that training must reach.

    The file is the index record's, below ``index``, and has the speed in this unit. The bounds are
    of the reached quality divided by the best possible one.
    """
    index_file, unit, (min_ratio, max_ratio) = CASES[case]
    args = ("run", case, "--out", "run", "--quiet")
    process = trainmark(*args)
    assert process.returncode == 0, process.stdout + process.stderr
    record = read_record(tmp_path / "run")
    # The best quality that the generated data allows is known: a loss ends above it, an accuracy
    # below.
    ratio_to_best = record.quality.value / record.quality.best_possible
    assert min_ratio <= ratio_to_best <= max_ratio
    if case == "glm_superglue":
        assert record.quality.eval_samples == record.plan.data.eval_samples
        # Throughputs of samples, sequences and tokens are counts divided by the same time.
        for work_unit, count in (
            ("sequences", record.counts.sequences),
            ("tokens", record.counts.tokens),
        ):
            ratio = record.figure(f"p_train_{work_unit}") / record.figure("p_train")
            assert ratio == pytest.approx(count / record.counts.samples, rel=1e-9)
    # The file of the index record states the same result as the record.
    speed = json.loads((tmp_path / "run/index" / index_file).read_text())
    assert (speed["JOB_FAIL_FLAG"], speed["UNIT"]) == (0, unit)  # 0: it did not fail
    assert speed["FINAL_RESULT"] == round_result(record.figure("final_result"))
    if case == "llama2_7b_lora":  # it saves its adapters, and the pages show their settings
        assert sorted(path.name for path in (tmp_path / "run/artifacts/adapters").iterdir()) == [
            "adapter_config.json",
            "adapter_model.safetensors",
        ]
        assert record.spans.by_name_ns["checkpoint"] > 0
        for lang in ("en", "zh"):
            assert "LoraConfig(" in (tmp_path / f"run/page.{lang}.md").read_text()
