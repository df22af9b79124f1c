"""The device's memory: storages of torch's PrivateUse1 whose bytes lie in host memory.

A storage is made through DLPack, whose extension device torch takes for PrivateUse1: real sizes,
real addresses, freed with the last tensor. So views, saved activations and whatever else torch
copies without asking the device share memory as they do on a card.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import partial

import torch
from torch import Tensor, UntypedStorage

from trainmark_stand_in.vendor import NAME

# dlpack.h: DLManagedTensor{DLTensor{data, DLDevice{device_type, device_id}, …}, …}
_TYPE_AT, _ID_AT = 8, 12  # offsets in bytes of the device's type and number
_EXTENSION_DEVICE = 12  # kDLExtDev
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
# Called with a tensor, sizes, strides, and what is added to its offset.
_with_sizes = torch._C._dynamo.guards._reinterpret_tensor


class Memory:
    """The device's memory, which is storages of the host: what is allocated, by address.

    Args:
        total_bytes: size of the device's memory.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = self.peak_bytes = 0
        # The host's storage behind each device storage, by address. Weak: torch keeps it alive as
        # long as the device's storage, and no longer.
        self._host: dict[int, weakref.ref[UntypedStorage]] = {}

    def host_tensor(self, tensor: Tensor) -> Tensor:
        """Return the host's view of a device tensor: same memory, sizes and strides."""
        # ``_host`` has weak references to the host's storages by the address of their bytes.
        storage = self._host[tensor.untyped_storage().data_ptr()]()
        assert storage is not None
        host = torch.empty(0, dtype=tensor.dtype)
        return host.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())

    def adopt(self, host: Tensor) -> Tensor:
        """Return a device tensor that takes over the memory of a tensor which nobody else uses.

        Raises:
            torch.OutOfMemoryError: the device is full.
        """
        storage = host.untyped_storage()
        if storage.nbytes() == 0:  # it has no address, by which storages are found
            storage = UntypedStorage(1)  # of one byte, which has an address
        # The tensor of the storage's bytes, seen with the type, sizes and strides of ``host``.
        return view_on_device(self._adopt(storage), host)

    def _adopt(self, storage: UntypedStorage) -> Tensor:
        """Return a tensor of bytes on the device that keeps the storage alive.

        The storage's Python object, too: torch frees it only with the memory that it stands for. So
        the weak reference to it ends when the last tensor of this memory does.
        """
        size, address = storage.nbytes(), storage.data_ptr()
        if self.used_bytes + size > self.total_bytes:
            raise torch.OutOfMemoryError(
                f"{NAME} out of memory: {size} bytes asked for, {self.used_bytes} of "
                f"{self.total_bytes} in use"
            )
        self.used_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        self._host[address] = weakref.ref(storage, partial(self._free, address, size))
        # A tensor of the host is exported through DLPack, relabelled as one of device 0 of an
        # extension, and imported again: torch takes that for a tensor of this device.
        # ``_TYPE_AT`` and ``_ID_AT``: where in DLPack's structure the device's type and number are.
        # ``_EXTENSION_DEVICE``: DLPack's number for the type "extension".
        capsule = torch._C._to_dlpack(torch.empty(0, dtype=torch.uint8).set_(storage))
        managed = _pointer(capsule, b"dltensor")  # the address of the DLManagedTensor
        ctypes.c_int32.from_address(managed + _TYPE_AT).value = _EXTENSION_DEVICE
        ctypes.c_int32.from_address(managed + _ID_AT).value = 0
        return torch._C._from_dlpack(capsule)

    def _free(self, address: int, size: int, _: object) -> None:
        """Forget a storage of this size; called with its weak reference when torch frees it."""
        del self._host[address]
        self.used_bytes -= size

    def reset_peak(self) -> None:
        """Count the peak from what is in use now."""
        self.peak_bytes = self.used_bytes


def view_on_device(base: Tensor, host: Tensor) -> Tensor:
    """Return a device tensor in the storage of ``base`` with everything else like ``host``."""
    # An empty tensor at the beginning of the storage, from which the call below counts offsets. The
    # last argument is added to the offset of ``base``, which makes it 0. Torch's operation then
    # makes a tensor of any type, shape and strides at an offset of bytes from there.
    whole_storage = _with_sizes(base, (0,), (1,), -base.storage_offset())
    offset = host.storage_offset() * host.element_size()  # in bytes
    return torch.ops.inductor._alloc_from_pool(
        whole_storage, offset, host.dtype, host.shape, host.stride()
    )
