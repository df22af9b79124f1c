"""Labels: device and world of a row, and contradictions within its label."""

from __future__ import annotations

import pytest

from trainmark.published.importers import labels


@pytest.mark.parametrize(
    ("label", "config_file", "device", "world"),
    [
        ("A100单机8卡（1x8）", "", "A100", (1, 8)),
        ("A100两机8卡（2x8）", "", "A100", (2, 8)),
        ("H800四机32卡（4x8）", "", "H800", (4, 8)),
        ("H1004机32卡（4x8）", "", "H100", (4, 8)),  # the last digit counts machines
        ("Atlas 800T A2单机8卡（1x8）（pretrain）", "", "Atlas 800T A2", (1, 8)),
        ("A100单机8卡（1x8*80G）", "config_TP1PP1SH2SP8A10080Gx1x8", "A100", (1, 8)),
        ("单机8卡", "config_A100x1x8", "A100", (1, 8)),
        ("两机8卡", "config_9100x2x8", "9100", (2, 8)),
        ("四机32卡", "", None, (4, 8)),
        ("A100双机8卡", "", "A100", (2, 8)),
        ("A100两机16卡", "", "A100", (2, 8)),
        ("A100 16卡", "", "A100", (2, 8)),  # a machine has at most 8 cards
        ("A100 16卡（1x16）", "", "A100", (1, 16)),
        ("A100（1×8）", "", "A100", (1, 8)),
        ("A100 2 nodes x 8 (2x8)", "", "A100", (2, 8)),
        ("NVIDIA A100-SXM4-40GB 1 node x 2 (1x2)", "", "NVIDIA A100-SXM4-40GB", (1, 2)),
        ("A100（0x8）", "", "A100", (None, None)),  # not a world
        ("GPT3-13B", "", None, (None, None)),
        ("H100 2x8", "", "H100", (2, 8)),
        ("8x7B", "", None, (None, None)),  # a model
        ("RTX 4090 x8", "", None, (None, None)),  # the number is the product's
        ("RTX 4090 2x8", "", "RTX 4090", (2, 8)),
        ("[1] NVIDIA A100-SXM4-40GB 1 node x 2 (1x2)", "", "NVIDIA A100-SXM4-40GB", (1, 2)),
    ],
)
def test_label_gives_device_and_world(label, config_file, device, world):
    # Founding pages name the device in the label or in the name of the configuration file.
    # ``world`` is (machines, devices of each). In the labels, 单机, 两机, 双机 and 四机 are 1, 2, 2
    # and 4 machines, and 卡 counts devices: of each machine ("两机8卡") or of all ("两机16卡").
    label_facts = labels.read_label(label, config_file)
    assert (label_facts.device, (label_facts.nnodes, label_facts.nproc), label_facts.notes) == (
        device,
        world,
        [],
    )


@pytest.mark.parametrize(
    ("label", "config_file", "code"),
    [
        ("A100单机8卡（1x1）", "", "label_contradicts_itself"),
        ("A1002机16卡（4x8）", "", "label_contradicts_itself"),
        ("单机8卡", "config_A100x2x8", "label_contradicts_itself"),
    ],
)
def test_contradiction_of_label_and_file_is_noted(label, config_file, code):
    assert [note.code for note in labels.read_label(label, config_file).notes] == [code]


@pytest.mark.parametrize(
    ("label", "columns", "device", "world", "codes"),
    [
        ("H100 (2x8)", "(2x8)", "H100", (2, 8), []),
        ("A100单机8卡", "(2x8)", "A100", (2, 8), ["label_contradicts_itself"]),
        ("RTX 4090 x8", "(1x8)", "RTX 4090 x8", (1, 8), []),
        ("", "(2x8)", None, (2, 8), []),
    ],
)
def test_world_of_columns_is_compared_with_label(label, columns, device, world, codes):
    # ``columns``: the world that other columns of the row give. A world in the label, such as
    # "(2x8)", is not part of the device's name. "x8" alone is none: the number before it may be
    # the product's, as in "4090 x8", so it stays in the name.
    label_facts = labels.read_label(label, world_of_columns=columns)
    assert (label_facts.device, (label_facts.nnodes, label_facts.nproc)) == (device, world)
    assert [note.code for note in label_facts.notes] == codes


def test_short_device_name_gives_device_and_vendor():
    # Cells of published pages: a vendor and its device, a vendor without a device ("/"), and a
    # device alone. What is in brackets, here the memory of 8 devices, is left out.
    assert labels.split_vendor("nvidia A100 (80G * 8) and (40G * 8)") == ("A100", "nvidia")
    assert labels.split_vendor("cambricon /") == (None, "cambricon")
    assert labels.split_vendor("R300") == ("R300", None)


def test_changed_hyperparameters_are_read():
    # As published pages print changed settings. The names are kept as printed; 数据精度 means
    # "precision of the data".
    assert labels.read_changes("bs=96,lr=0.00015") == {"bs": "96", "lr": "0.00015"}
    assert labels.read_changes("数据精度=fp16, local_batchsize=4") == {
        "数据精度": "fp16",
        "local_batchsize": "4",
    }
    assert labels.read_changes("MPE=2048 LBS=3  GAS=64")["GAS"] == "64"
    assert labels.read_changes("74/81") == {}  # no assignment


@pytest.mark.parametrize(
    ("command_line", "precision"),
    [
        ("--mixed_precision bf16 --fp16 1", "bf16"),
        ("--mixed_precision no --tf32 1", "tf32"),
        ("--mixed_precision no", None),  # it is not said in which precision matmuls run
        ("--fp16 0 --tf32 0", "fp32"),
    ],
)
def test_option_that_is_switched_off_is_no_precision(command_line, precision):
    assert labels.find_precision(labels.read_flags(command_line)) == precision
