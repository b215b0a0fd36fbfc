"""Pointers into numpy arrays, indexed like them: `pointers` for compiled functions.

Handing an array on costs seven numbers and two atomic counts of its references, which took more
time than all that the functions here do. A pointer is one number. Nobody owns what it points at:
the caller from Python holds the arrays.
"""

from __future__ import annotations

import operator
from typing import Any

from numba import extending, types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.typing.templates import AbstractTemplate, infer_global, signature


class Rows(types.Type):
    """A pointer to records: an element is the record in its place, not a copy as numba makes."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Rows({dtype})")


@extending.register_model(Rows)
class RowsModel(models.PrimitiveModel):
    """One number, as a record in its place is."""

    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, dmm.lookup(fe_type.dtype).get_value_type())


@infer_global(operator.getitem)
class RowsGetItem(AbstractTemplate):
    """Types rows[i]."""

    def generic(self, args: Any, kws: Any) -> Any:
        del kws
        rows, index = args
        if isinstance(rows, Rows) and isinstance(index, types.Integer):
            return signature(rows.dtype, rows, types.intp)
        return None


@extending.lower_builtin(operator.getitem, Rows, types.Integer)
def rows_getitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """Compute the address of rows[i]."""
    return _advance(context, builder, sig.args[0], *args)


def _advance(context: Any, builder: Any, kind: Any, at: Any, count: Any) -> Any:
    size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    step = builder.mul(count, count.type(size))
    return cgutils.pointer_add(builder, at, step, return_type=at.type)


def _pointer(context: Any, array: Any) -> Any:
    """Point at an array's first element."""
    del context
    kind = Rows if isinstance(array.dtype, types.Record) else types.CPointer
    pointed = kind(array.dtype)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        view = context.make_array(sig.args[0])(context, builder, args[0])
        return builder.bitcast(view.data, context.get_value_type(pointed))

    return pointed(array), codegen


def _moved(context: Any, at: Any, count: Any) -> Any:
    """Point so many elements further."""
    del context, count

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _advance(context, builder, sig.args[0], *args)

    return at(at, types.intp), codegen


def pointing(kind: Any) -> Any:
    """Make the function that takes an address, a number, for a pointer of one kind."""

    def pointed(context: Any, address: Any) -> Any:
        del context

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            del sig
            return builder.inttoptr(args[0], context.get_value_type(kind))

        return kind(address), codegen

    return extending.intrinsic(pointed)


pointer: Any = extending.intrinsic(_pointer)
moved: Any = extending.intrinsic(_moved)
