"""Sixteen numbers as one value in Numba, so that compiled loops work on sixteen pairs at a time.

Left to itself the compiler makes half-width vectors behind run-time checks for overlapping arrays.
A value of LLVM's own vector type is held in a register, as wide as the machine has them.

Numba keeps compiled functions on disk and compiles them again when their own file changes, not
when this one does: after a change here, touch sweep.py.
"""

import operator
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import models, overload, register_model

LANES = 16
intrinsic: Any = numba.extending.intrinsic  # it changes signatures in a way no checker follows


class Lanes(types.Type):
    """The Numba type of sixteen numbers of one floating-point type."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        scalar = ir.FloatType() if lanes.dtype == types.float32 else ir.DoubleType()
        super().__init__(manager, lanes, ir.VectorType(scalar, LANES))  # type: ignore[no-untyped-call]


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    values = context.make_array(array_type)(context, builder, array)
    vector = context.get_value_type(Lanes(array_type.dtype))
    return builder.bitcast(builder.gep(values.data, [index]), vector.as_pointer())


@intrinsic
def load(typing: Any, array: Any, index: Any) -> Any:
    """The sixteen numbers of a flat array from an index on."""
    lanes = Lanes(array.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, array, *arguments)
        return builder.load(pointer, align=array.dtype.bitwidth // 8)

    return lanes(array, types.intp), generate


@intrinsic
def item(typing: Any, array: Any, index: Any) -> Any:
    """One number of a flat array, without Python's rule that negative indices count backwards."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values = context.make_array(array)(context, builder, arguments[0])
        return builder.load(builder.gep(values.data, [arguments[1]]))

    return array.dtype(array, types.intp), generate


@intrinsic
def store(typing: Any, array: Any, index: Any, lanes: Any) -> Any:
    """Writes sixteen numbers into a flat array from an index on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, array, *arguments[:2])
        builder.store(arguments[2], pointer, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), generate


@intrinsic
def splat(typing: Any, like: Any, number: Any) -> Any:
    """One number, sixteen times, in the precision of an array or of other lanes."""
    lanes = Lanes(like.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = context.get_value_type(lanes)
        value = context.cast(builder, arguments[1], number, lanes.dtype)
        nothing = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return builder.shuffle_vector(first, nothing, zeros)

    return lanes(like, number), generate


def _library(name: str, count: int) -> Any:
    """An intrinsic that is LLVM's own function of that name, on `count` vectors."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = context.get_value_type(signature.return_type)
        bits = signature.return_type.dtype.bitwidth
        function = builder.module.declare_intrinsic(
            f"llvm.{name}.v{LANES}f{bits}", (), ir.FunctionType(vector, [vector] * count)
        )
        return builder.call(function, arguments)

    return generate


@intrinsic
def fused(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """The sum a * b + c, rounded once."""
    return a(a, a, a), _library("fma", 3)


@intrinsic
def root(typing: Any, a: Any) -> Any:
    """The square root."""
    return a(a), _library("sqrt", 1)


@intrinsic
def magnitude(typing: Any, a: Any) -> Any:
    """The absolute value."""
    return a(a), _library("fabs", 1)


@intrinsic
def with_sign(typing: Any, a: Any, b: Any) -> Any:
    """The size of a with the sign of b."""
    return a(a, a), _library("copysign", 2)


@intrinsic
def smaller(typing: Any, a: Any, b: Any) -> Any:
    """The smaller of the two in each lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", *arguments), *arguments)

    return a(a, a), generate


@intrinsic
def where_above(typing: Any, a: Any, b: Any, yes: Any, no: Any) -> Any:
    """`yes` in the lanes where a > b, `no` in the others."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        above = builder.fcmp_ordered(">", arguments[0], arguments[1])
        return builder.select(above, arguments[2], arguments[3])

    return a(a, a, a, a), generate


def _arithmetic(instruction: str) -> Any:
    @intrinsic
    def operate(typing: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, instruction)(*arguments)

        return a(a, a), generate

    return operate


def _give_operator(symbol: Any, operation: Any) -> None:
    """Has Numba use the operation wherever the operator stands between two `Lanes`."""

    @overload(symbol)
    def choose(a: Any, b: Any) -> Any:
        def operate(a: Any, b: Any) -> Any:  # Numba wants the very same signature
            return operation(a, b)

        return operate if isinstance(a, Lanes) and a == b else None


_give_operator(operator.add, _arithmetic("fadd"))
_give_operator(operator.sub, _arithmetic("fsub"))
_give_operator(operator.mul, _arithmetic("fmul"))


def compiled(function: Any) -> Any:
    """The function compiled, without the interpreter's lock, and kept on disk where one can."""
    try:
        return numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # no place to write to
        return numba.njit(nogil=True, error_model="numpy")(function)
