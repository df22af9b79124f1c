"""The compiled loops over embedding rows on a CPU.

Owns the work on one range of samples or one table. In torch, ``index_select`` does not
prefetch, and each operation that adds rows sorts them, or uses one thread, or dispatches once
per row. Must not know of tensors or threads: the loops take arrays and release the global
interpreter lock.

Compiled by numba on first use. Addresses are plain integers here.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

AHEAD = 8  # rows between a prefetch and its use: 4 KiB in flight at 128 numbers a row
LINE_BYTES = 64
FLOAT_BYTES = 4
WIDTH = 8  # numbers per vector instruction, if a row's length is a multiple of it
WIDE_BYTES = WIDTH * FLOAT_BYTES

_WIDE = ir.VectorType(ir.FloatType(), WIDTH)


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(_typing: Any, _address: Any) -> Any:
    """Prefetch the cache line at an address; any address is allowed."""

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        number, pointer = ir.IntType(32), builder.inttoptr(values[0], ir.PointerType())
        shape = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], shape)
        read, keep, data = number(0), number(3), number(1)
        builder.call(prefetch, [pointer, read, keep, data])
        return context.get_dummy_value()

    return types.void(types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def _add_scaled(_typing: Any, _target: Any, _source: Any, _scale: Any) -> Any:
    """Add ``scale x source`` to ``WIDTH`` numbers at an address.

    Written as vector code, because the compiler does not vectorise over arrays that may overlap.
    """

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        to, origin = (builder.inttoptr(value, ir.PointerType()) for value in values[:2])
        nothing, first = ir.Constant(_WIDE, ir.Undefined), ir.IntType(32)(0)
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
        scale = builder.insert_element(nothing, values[2], first)
        scale = builder.shuffle_vector(scale, nothing, lanes)
        change = builder.fmul(scale, builder.load(origin, typ=_WIDE, align=FLOAT_BYTES))
        numbers = builder.fadd(builder.load(to, typ=_WIDE, align=FLOAT_BYTES), change)
        builder.store(numbers, to, align=FLOAT_BYTES)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.float32), generate


def _look_up_samples(  # noqa: PLR0917 - numba has no arguments by keyword alone
    weight: Any, starts: Any, cardinalities: Any, ids: Any, out: Any,
    first: int, last: int,
) -> int:  # fmt: skip
    """Fill ``out`` for a range of samples; return where an id is outside its table, or -1."""
    tables, samples = ids.shape
    dim = weight.shape[1]
    row_bytes = dim * FLOAT_BYTES
    origin = weight.ctypes.data
    next_sample, next_table = first + AHEAD // tables, AHEAD % tables
    for sample in range(first, last):
        for table in range(tables):
            if next_sample < last:
                row = starts[next_table] + ids[next_table, next_sample]
                for offset in range(0, row_bytes, LINE_BYTES):
                    _prefetch(origin + row * row_bytes + offset)
                next_table += 1
                if next_table == tables:
                    next_table, next_sample = 0, next_sample + 1
            number = ids[table, sample]
            if number < 0 or number >= cardinalities[table]:
                return int(table * samples + sample)
            row = starts[table] + number
            for i in range(dim):
                out[sample, table, i] = weight[row, i]
    return -1


def _add_to_table(  # noqa: PLR0917
    weight: Any, starts: Any, ids: Any, grads: Any, stride: int, factor: float,
    table: int, share: int, shares: int,
) -> None:  # fmt: skip
    """Update the rows of one table whose number modulo ``shares`` is ``share``."""
    samples, dim = ids.shape[1], weight.shape[1]
    row_bytes = dim * FLOAT_BYTES
    first, gradients = weight.ctypes.data, grads.ctypes.data + table * row_bytes
    scale, wide = types.float32(factor), dim % WIDTH == 0
    for sample in range(samples):
        if sample + AHEAD < samples:
            number = ids[table, sample + AHEAD]
            if shares == 1 or number % shares == share:
                row = first + (starts[table] + number) * row_bytes
                grad = gradients + (sample + AHEAD) * stride * FLOAT_BYTES
                for offset in range(0, row_bytes, LINE_BYTES):
                    _prefetch(row + offset)
                    _prefetch(grad + offset)
        number = ids[table, sample]
        if shares == 1 or number % shares == share:
            row = starts[table] + number
            if wide:
                target = first + row * row_bytes
                source = gradients + sample * stride * FLOAT_BYTES
                for offset in range(0, row_bytes, WIDE_BYTES):
                    _add_scaled(target + offset, source + offset, scale)
            else:
                begin = sample * stride + table * dim
                for i in range(dim):
                    weight[row, i] += scale * grads[begin + i]


_compiled = njit(nogil=True, error_model="numpy")
look_up_samples: Any = _compiled(_look_up_samples)
add_to_table: Any = _compiled(_add_to_table)
