"""Vulkan devices through torchvulkan, written as docs/adding-a-device.md says.

Serves tests only: it counts Mesa's software driver, which computes on the processor.
"""

from time import perf_counter_ns

from trainmark.devices.torch_vendor import TorchVendor


class Vulkan(TorchVendor):
    """Planning's view of Mesa's software driver; imports no torch."""

    name = "vulkan"
    torch_type = "vulkan"
    collective_backend = "gloo"
    visible_devices = None
    recorded_variables = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "LP_NUM_THREADS")
    # The driver has no device file; this is what the Vulkan loader finds it by.
    nodes = "/usr/share/vulkan/icd.d/lvp_icd*.json"
    package = "torchvulkan"
    module = None
    pci_vendor = 0x10005  # VK_VENDOR_ID_MESA of the Vulkan registry: on no PCI bus

    def monitor(self):
        """Return None: the driver has no tool."""

    def product_names(self):
        """Return Mesa's name of its software driver for each device."""
        return ["llvmpipe"] * self.count()

    def open(self, local_rank, ranks_here):
        """Give the backend the events that it lacks, then open the device."""
        import torchvulkan

        torchvulkan.Event = WaitingEvent
        return super().open(local_rank, ranks_here)


class WaitingEvent:
    """An event that waits for the device and reads the host's clock."""

    def __init__(self, enable_timing=False):
        # ``enable_timing`` is as in torch's events; this one always keeps the time.
        self._recorded_ns = 0

    def record(self):
        """Wait for all work, and keep the time."""
        import torchvulkan

        torchvulkan.synchronize()
        self._recorded_ns = perf_counter_ns()

    def elapsed_time(self, end):
        """Return the milliseconds from this event to ``end``."""
        return (end._recorded_ns - self._recorded_ns) / 1e6
