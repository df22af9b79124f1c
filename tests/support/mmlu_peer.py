"""The same questions and the same random model for our MMLU scores and for lm-eval's.

``python tests/support/mmlu_peer.py`` writes ``golden/mmlu_lm_eval.json`` anew; it needs lm-eval.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from trainmark.cases.llama2_7b_lora.case import CASE
from trainmark.cases.llama2_7b_lora.data import generating
from trainmark.cases.llama2_7b_lora.mmlu.questions import DEV_ROWS, Question, Subject
from trainmark.cases.llama2_7b_lora.model_files import PRESETS, compute_expected_shapes

GOLDEN = Path(__file__).parents[1] / "golden" / "mmlu_lm_eval.json"
NAMES = ("abstract_algebra", "college_biology", "high_school_us_history", "virology")
ITEMS = 9


def make_subjects():
    """Return four subjects; some questions have blanks around them, and one is very long.

    The four answers of each question are in random order. The names of the subjects (``NAMES``) are
    MMLU's. Each has 5 questions that are shown with their answers (``DEV_ROWS``) and 9 that the
    model is asked (``ITEMS``). The seeds are fixed, so the same questions are made each time.
    """
    made_subjects = []
    for number, name in enumerate(NAMES):
        rng = np.random.default_rng(number)
        rows = []
        for row, item in enumerate(generating.draw_questions(name, rows=DEV_ROWS + ITEMS, seed=7)):
            order = rng.permutation(4)
            text = item.text
            if row % 3 == 0:  # lm-eval strips both ends, but not the blank within
                text = f"  {item.text}\nWhat is out ? \n"
            if row == DEV_ROWS + 4:  # one of the items: so long that it must be cut
                text = " ".join([text] * 12)
            choices = tuple(item.choices[place] for place in order)
            answer = int(np.flatnonzero(order == item.answer)[0])  # its new place
            rows.append(Question(text, choices, answer))
        made_subjects.append(Subject(name, tuple(rows[:DEV_ROWS]), tuple(rows[DEV_ROWS:])))
    return tuple(made_subjects)


def write_model(folder):
    """Write the tiny model and its tokenizer, with weights drawn here.

    The stored (golden) scores are of these, whatever the case's generator draws: the generator
    writes the files, and then those of the weights are replaced. ``PRESETS["tiny"]`` are the
    model's sizes. Weights of a norm are 1, all others random; 0.2 and the seed are any numbers.
    """
    recipe = CASE.recipes["tiny"]
    generating.write_model(folder, recipe)
    rng = np.random.default_rng([recipe.seed, 3])
    weights = {
        name: np.ones(shape, np.float32)
        if len(shape) == 1  # of a norm
        else 0.2 * rng.standard_normal(shape, np.float32)
        for name, shape in compute_expected_shapes(PRESETS["tiny"]).items()
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def open_model(folder):
    """Return the model in ``folder`` as the library ``transformers`` reads it, for evaluation."""
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder, attn_implementation="sdpa").eval()


def score_with_lm_eval(folder, batch_size=4):
    """Return lm-eval's scores: by subject those of each question, under ``acc`` those of subjects.

    A question has ``log_probabilities`` of its four answers, and ``acc``: 1.0 if the right one has
    the highest. The tasks are its own ``mmlu`` tasks, read from files instead of the hub.

    Args:
        folder: has the model and its tokenizer in ``model``; the files of the tasks go into it.
        batch_size: how many answers are scored at once.
    """
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from transformers import AutoTokenizer

    task_folder = Path(lm_eval.__file__).parent / "tasks" / "mmlu" / "default"
    tasks = folder / "tasks"
    tasks.mkdir()
    for subject in make_subjects():
        files = {}
        for split, rows in (("dev", subject.shots), ("test", subject.items)):
            files[split] = str(tasks / f"{subject.name}_{split}.jsonl")
            lines = [
                {"question": row.text, "choices": list(row.choices), "answer": row.answer}
                for row in rows
            ]
            Path(files[split]).write_text("".join(json.dumps(line) + "\n" for line in lines))
        config = {
            "include": str(task_folder / f"mmlu_{subject.name}.yaml"),
            "task": f"peer_{subject.name}",
            "dataset_path": "json",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": files, "cache_dir": str(folder / "cache")},
        }
        (tasks / f"{subject.name}.yaml").write_text(json.dumps(config))
    model = HFLM(
        pretrained=open_model(folder / "model"),
        tokenizer=AutoTokenizer.from_pretrained(folder / "model"),
        batch_size=batch_size,
        device="cpu",
    )
    results = lm_eval.simple_evaluate(
        model,
        tasks=[f"peer_{name}" for name in NAMES],
        num_fewshot=DEV_ROWS,
        log_samples=True,
        bootstrap_iters=0,
        task_manager=TaskManager(include_path=str(tasks)),
    )
    # A response is the log-probability of an answer, and whether it is the likeliest text. The key
    # "acc,none" is the metric and the filter of responses, here none.
    return {
        name: [
            {
                "log_probabilities": [round(float(x[0]), 6) for x in sample["filtered_resps"]],
                "acc": float(sample["acc"]),
            }
            for sample in sorted(results["samples"][f"peer_{name}"], key=lambda x: x["doc_id"])
        ]
        for name in NAMES
    } | {"acc": {name: results["results"][f"peer_{name}"]["acc,none"] for name in NAMES}}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        write_model(Path(place) / "model")
        scores = score_with_lm_eval(Path(place))
    GOLDEN.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")
