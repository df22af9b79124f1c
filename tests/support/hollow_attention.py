"""Which of torch's attention kernels each case runs on a card of compute capability 9.0.

``tests/hollow/test_attention.py`` checks the table with all admitted versions of torch.
"""

from __future__ import annotations

ADAPTERS = {"init": "random", "mmlu_mode": "off"}
# case, fields of its recipe, kernel in fp32 and TF32, kernel in bf16 and fp16
TABLE = [
    ("gpt_megatron", {"dropout": 0.0}, "efficient", "cudnn"),
    ("gpt_megatron", {"dropout": 0.1}, "efficient", "flash"),  # cuDNN drops in sixteenths
    ("gpt_megatron", {"dropout": 0.125}, "efficient", "cudnn"),
    ("glm_superglue", {"dropout": 0.0}, "efficient", "efficient"),  # a mask, varying shapes
    ("glm_superglue", {"dropout": 0.1}, "efficient", "efficient"),
    ("distilbert_sst2", {}, "efficient", "cudnn"),
    ("llama2_7b_lora", ADAPTERS, "efficient", "cudnn"),
    # Several heads share one of keys and values: in 32 bits no fused kernel takes that.
    ("llama31_8b", {}, "math", "cudnn"),
]


def format_table() -> str:
    """Return the table in Markdown."""
    lines = [
        "| case | dropout of attention | fp32, TF32 | bf16, fp16 |",
        "|---|---:|---|---|",
    ]
    for case, fields, in_32_bits, in_16_bits in TABLE:
        dropout = fields.get("dropout", 0.0)
        lines.append(f"| {case} | {dropout:g} | {in_32_bits} | {in_16_bits} |")
    return "\n".join(lines)
