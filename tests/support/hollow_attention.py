"""Which of torch's attention kernels each case runs on a card of compute capability 9.0.

``tests/hollow/test_attention.py`` checks the table with the oldest and the newest torch for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

ADAPTERS = {"init": "random", "mmlu_mode": "off"}
IN_32_BITS, IN_16_BITS = ("fp32", "tf32"), ("bf16", "fp16")


class Row(NamedTuple):
    """The kernel of a case's attention, by precision.

    Args:
        fields: of its tiny recipe.
        in_16_bits: the kernel's name.
        in_32_bits: the same; None: the card cannot run the step, because the host reads what the
            device should have computed.
        in_32_bits_of_2_11: with torch 2.11, if that is another.
    """

    case: str
    fields: dict[str, Any]
    in_32_bits: str | None
    in_16_bits: str
    in_32_bits_of_2_11: str | None = None

    def kernel(self, precision: str, torch_version: str) -> str | None:
        """Return the kernel with torch 2.11 or with a newer one; None: the step cannot run.

        ``in_32_bits_of_2_11`` is None if torch 2.11 has the same kernel as newer ones. The
        precisions ``IN_16_BITS`` are bf16 and fp16; the others are fp32 and TF32.
        """
        if precision in IN_16_BITS:
            return self.in_16_bits
        if torch_version.startswith("2.11.") and self.in_32_bits_of_2_11 is not None:
            return self.in_32_bits_of_2_11
        return self.in_32_bits


# Case, fields, kernel in 32 bits, kernel in 16 bits.
TABLE = [
    Row("gpt_megatron", {"dropout": 0.0}, "efficient", "cudnn"),
    Row("gpt_megatron", {"dropout": 0.1}, "efficient", "flash"),  # cuDNN drops in sixteenths
    Row("gpt_megatron", {"dropout": 0.125}, "efficient", "cudnn"),
    Row("glm_superglue", {"dropout": 0.0}, "efficient", "efficient"),  # a mask, varying shapes
    Row("glm_superglue", {"dropout": 0.1}, "efficient", "efficient"),
    Row("distilbert_sst2", {}, "efficient", "cudnn"),
    Row("llama2_7b_lora", ADAPTERS, "efficient", "cudnn"),
    # Several heads share one of keys and values, which no fused kernel of torch 2.11 takes in fp32.
    Row("llama31_8b", {}, "efficient", "cudnn", in_32_bits_of_2_11="math"),
    Row("gpt_oss_20b", {"precision": "bf16"}, in_32_bits=None, in_16_bits="cudnn"),
]


def format_table() -> str:
    """Return the table in Markdown.

    In 16 bits every row has the name of a kernel; in 32 bits it is None if the step cannot run.
    """
    lines = [
        "| case | dropout of attention | fp32, TF32 | bf16, fp16 |",
        "|---|---:|---|---|",
    ]
    for row in TABLE:
        dropout = row.fields.get("dropout", 0.0)
        in_32_bits = row.in_32_bits or "not run"
        if row.in_32_bits_of_2_11 is not None:
            in_32_bits += f"; torch 2.11: {row.in_32_bits_of_2_11}"
        in_16_bits = row.in_16_bits
        if "precision" in row.fields:  # the row is for this precision alone
            in_16_bits += f" ({row.fields['precision']})"
        lines.append(f"| {row.case} | {dropout:g} | {in_32_bits} | {in_16_bits} |")
    return "\n".join(lines)
