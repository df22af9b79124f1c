"""Readings, ranks and memory of the hollow card, as the program sees them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
import torch

from trainmark.devices.vendors.nvidia import driver, nvml

GIB = 2**30
MIB = 2**20

# A rank of a node with two ranks. It prints for each of four devices whether it has used memory.
RANK_SCRIPT = """
import os
import torch
from support import hollow_card
from trainmark import devices
from trainmark.rank.process_group import join_ranks

device = devices.choose_vendor("nvidia").open(int(os.environ["LOCAL_RANK"]), 2)
join_ranks("nccl", device, timeout_s=300)
torch.distributed.all_reduce(device.place(torch.ones(1000)))
hosts = torch.distributed.new_group(backend="gloo")  # NCCL on this card never waits
torch.distributed.barrier(hosts)
print(*(hollow_card.read_used_bytes(number) > 0 for number in range(4)), flush=True)
os._exit(0)
"""


def test_nvml_reads_the_card_through_pynvml():
    """The numbers are constants of the simulated card, which stand in ``card/``."""
    monitor = nvml.NvmlMonitor()
    assert monitor.name == "nvml 13.580.0"
    (sample,) = monitor.read()
    assert (sample.index, sample.name) == (0, "NVIDIA H200")
    assert sample.memory_total_bytes == 143771 * MIB
    assert (sample.temperature_c, sample.power_w, sample.clock_mhz) == (45, 650.0, 1755)
    assert sample.throttle_reasons == ()
    assert sample.energy_j > 0


def test_driver_and_nvml_name_the_same_card():
    """The address on the bus is a constant of the simulated card; NVML finds a card by it."""
    (card,) = driver.list_visible_cards()
    assert card.bus == "0000:41:00.0"
    assert nvml.find_index(card) == 0
    assert nvml.list_occupants(card) == []
    context_bytes = 530 * MIB  # that the card takes for each process that uses it
    allocated = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    used = torch.cuda.memory_reserved()
    # The simulated card has 143,771 MiB.
    assert nvml.read_free_bytes(card) == 143771 * MIB - context_bytes - used
    del allocated  # it had to live until here


def test_ranks_take_memory_only_on_their_own_device():
    """Two nodes with two ranks each and four visible devices: no rank takes another's.

    The devices are simulated by the hollow card, a stand-in of the driver that `make test-hollow`
    loads through ``PYTHONPATH``.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        "HOLLOW_DEVICES": "4",
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # ``RANK_SCRIPT`` imports helpers from the folder ``tests``.
        "PYTHONPATH": f"tests{os.pathsep}{os.environ['PYTHONPATH']}",
    }
    variables = [{"RANK": str(rank), "LOCAL_RANK": str(rank % 2)} for rank in range(4)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK_SCRIPT],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | common | own_variables,
        )
        for own_variables in variables
    ]
    # Each rank prints for each device whether it has used memory.
    uses_device = [process.communicate()[0].split() for process in ranks]
    only_first_device = ["True", "False", "False", "False"]
    only_second_device = ["False", "True", "False", "False"]
    assert uses_device == [only_first_device, only_second_device] * 2  # on each of two nodes


def test_memory_beyond_the_card_is_an_out_of_memory_error(device):
    # ``device``: the card was opened, as for a run. The test itself uses it by torch alone.
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(141 * GIB, dtype=torch.uint8, device="cuda")  # the card has 140.4 GiB
    torch.empty(GIB, dtype=torch.uint8, device="cuda")  # the card is usable again
