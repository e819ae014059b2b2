"""All that KOSMOS takes from the private parts of Triton's interpreter, in one place.

`interpreting(hooks)` makes jitted functions callable as Python for a while, with Triton's own numpy interpreter
underneath. It needs no TRITON_INTERPRET: compiled and emulated launches live side by side in one process. On top of
Triton's interpreter it gives bf16 its right meaning (the stock one multiplies the raw 16 bits and truncates), the
builtins of kosmos.lang, and calls to `hooks` wherever time passes. `self_test()` says which part of a Triton version
does not fit.
"""

import contextlib
import inspect
import types
from typing import Protocol

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter as private
from triton.runtime.jit import JITFunction

from kosmos.errors import KosmosArgumentError, KosmosEnvironmentError
from kosmos.lang import device

Handle = private.TensorHandle
_ADD = private._ir.ATOMIC_OP.ADD


class Hooks(Protocol):
    """What the interpreter tells about and asks for while a kernel runs."""

    program: tuple[int, int, int]
    grid: tuple[int, int, int]

    def now(self) -> int: ...
    def cycles(self) -> int: ...
    def core(self) -> int: ...
    def nap(self) -> None: ...
    def before_atomic(self, address: int) -> None: ...
    def written(self, addresses: np.ndarray) -> None: ...
    def polls(self, address: int) -> None: ...
    def park(self, address: int) -> None: ...
    def touched(self, address: int) -> None: ...
    def moved(self, address: int, size: int) -> None: ...
    def multiplied(self, flops: int) -> None: ...
    def call(self, function, run, args, kwargs): ...


class Builder(private.InterpreterBuilder):
    """Triton's interpreting builder with hooks."""

    hooks: Hooks

    # the interpreter keeps the running program's index on the builder; here it is the running coroutine's
    grid_idx = property(lambda self: self.hooks.program)
    grid_dim = property(lambda self: self.hooks.grid)

    def kosmos_now(self):
        return Handle(np.array([self.hooks.now()], np.int64), tl.int64)

    def kosmos_cycles(self):
        return Handle(np.array([self.hooks.cycles()], np.int64), tl.int64)

    def kosmos_die(self):
        return Handle(np.zeros(1, np.int32), tl.int32)

    def kosmos_core(self):
        return Handle(np.array([self.hooks.core()], np.int32), tl.int32)

    def kosmos_gather_stores(self):
        return Handle(np.zeros(1, np.int32), tl.int32)

    kosmos_fence_async = kosmos_gather_stores

    def kosmos_hold(self, value):
        return value

    def kosmos_nap(self):
        self.hooks.nap()
        return Handle(np.zeros(1, np.int32), tl.int32)

    def kosmos_poll(self, pointer):
        self.hooks.polls(_first(pointer))
        everywhere, nothing = np.ones(pointer.data.shape, bool), np.zeros(pointer.data.shape, np.int32)
        return Handle(private._interpreter.load(pointer.data, everywhere, nothing, np.dtype(np.int32)), tl.int32)

    def kosmos_pause(self, pointer):
        self.hooks.park(_first(pointer))
        return Handle(np.zeros(1, np.int32), tl.int32)

    def create_atomic_rmw(self, op, pointer, value, *args):
        self.hooks.before_atomic(_first(pointer))
        result = super().create_atomic_rmw(op, pointer, value, *args)
        # adding nothing is how a workgroup reads
        if op != _ADD or value.data.any():
            self.hooks.written(pointer.data)
        return result

    def create_atomic_cas(self, pointer, *args):
        self.hooks.before_atomic(_first(pointer))
        result = super().create_atomic_cas(pointer, *args)
        self.hooks.written(pointer.data)
        return result

    # later Triton versions pass the cache policy in other arguments
    def create_load(self, pointer, *args, **kwargs):
        everywhere = Handle(np.ones(pointer.data.shape, bool), tl.int1)
        return self.create_masked_load(pointer, everywhere, None, *args, **kwargs)

    def create_store(self, pointer, value, *args, **kwargs):
        everywhere = Handle(np.ones(pointer.data.shape, bool), tl.int1)
        return self.create_masked_store(pointer, value, everywhere, *args, **kwargs)

    def create_masked_load(self, pointer, mask, other, *args, **kwargs):
        self._moved(pointer, mask, numpy_dtype(pointer.get_element_ty()).itemsize)
        return super().create_masked_load(pointer, mask, other, *args, **kwargs)

    def create_masked_store(self, pointer, value, mask, *args, **kwargs):
        self._moved(pointer, mask, value.data.itemsize)
        super().create_masked_store(pointer, value, mask, *args, **kwargs)
        if pointer.data.size == 1 and mask.data.all():
            self.hooks.written(pointer.data)

    def _moved(self, pointer, mask, itemsize):
        if pointer.data.size == 1:
            self.hooks.touched(_first(pointer))
        else:
            count = int(np.count_nonzero(mask.data))
            if count:
                self.hooks.moved(int(pointer.data.reshape(-1)[int(np.argmax(mask.data))]), count * itemsize)

    def create_dot(self, a, b, d, *args):
        rows, inner = a.data.shape[-2:]
        self.hooks.multiplied(2 * rows * inner * b.data.shape[-1])
        if a.dtype.scalar in (tl.bfloat16, tl.float16, tl.float32):
            return Handle(
                to_float32(a.data, a.dtype.scalar) @ to_float32(b.data, b.dtype.scalar) + d.data, d.dtype.scalar
            )
        return super().create_dot(a, b, d, *args)

    # bf16 values are their raw 16 bits: whatever looks at them as numbers goes through float32

    def cast_impl(self, source, target):
        source = _widened(source)
        if target.scalar == tl.bfloat16:
            return _narrowed(super().cast_impl(source, tl.float32))
        return super().cast_impl(source, target)

    create_fp_trunc = create_fp_ext = lambda self, source, target: self.cast_impl(source, target)

    def get_bf16(self, value):
        return Handle(round_to_bfloat16(np.array([value], np.float32)), tl.bfloat16)

    def binary_op(self, lhs, rhs, op):
        if lhs.dtype.scalar != tl.bfloat16:
            return super().binary_op(lhs, rhs, op)
        result = super().binary_op(_widened(lhs), _widened(rhs), op)
        return result if result.data.dtype == bool else _narrowed(result)

    def unary_op(self, arg, op):
        if arg.dtype.scalar != tl.bfloat16:
            return super().unary_op(arg, op)
        return _narrowed(super().unary_op(_widened(arg), op))

    def create_clampf(self, arg, *args):
        if arg.dtype.scalar != tl.bfloat16:
            return super().create_clampf(arg, *args)
        return _narrowed(super().create_clampf(*(_widened(a) if isinstance(a, Handle) else a for a in (arg, *args))))

    def create_fma(self, x, y, z):
        if z.dtype.scalar != tl.bfloat16:
            return super().create_fma(x, y, z)
        return _narrowed(super().create_fma(_widened(x), _widened(y), _widened(z)))


def _widened(handle):
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return Handle(to_float32(handle.data, tl.bfloat16), tl.float32)


def _narrowed(handle):
    return Handle(round_to_bfloat16(handle.data), tl.bfloat16)


def _reduce_wide(stock):
    """A reduction or scan that looks at bf16 tensors as float32."""

    def apply(self, tensors):
        if all(tensor.dtype.scalar != tl.bfloat16 for tensor in tensors):
            return stock(self, tensors)
        results = stock(self, tuple(tensor.to(tl.float32) for tensor in tensors))
        return [
            result.to(tl.bfloat16) if tensor.dtype.scalar == tl.bfloat16 and result.dtype.is_floating() else result
            for tensor, result in zip(tensors, results if isinstance(results, list | tuple) else [results], strict=True)
        ]

    return apply


def _first(pointer) -> int:
    return int(pointer.data.reshape(-1)[0])


def to_float32(data: np.ndarray, dtype) -> np.ndarray:
    """Values of a Triton dtype (bf16 as its raw 16 bits) as float32, in the same memory order."""
    if dtype == tl.bfloat16:
        return (data.astype(np.uint32) << 16).view(np.float32)
    return data.astype(np.float32, copy=False)


def round_to_bfloat16(data: np.ndarray) -> np.ndarray:
    """float32 as raw bf16, rounded to nearest even; a NaN stays one."""
    bits = np.ascontiguousarray(data).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(data), (bits >> 16) | 0x40, rounded).astype(np.uint16)


_stock_numpy_dtype = private._get_np_dtype
_numpy_dtypes: dict = {}


def numpy_dtype(dtype) -> np.dtype:
    """Triton's own mapping, remembered: it builds a dictionary at every call."""
    known = _numpy_dtypes.get(id(dtype))
    if known is None:
        # the dtype is kept beside the answer, so that its id is not given to another one
        known = _numpy_dtypes[id(dtype)] = (_stock_numpy_dtype(dtype), dtype)
    return known[0]


def python_function(kernel):
    """The interpretable form of a jitted function."""
    return private.InterpretedFunction(kernel.fn).rewrite()


def kernel_arguments(kernel, arguments: dict) -> dict:
    """Host arguments as the interpreter wants them: tensors as pointers, numbers as scalars, constexprs as they are."""
    parameters = inspect.signature(kernel.fn).parameters
    constant = {name for name, parameter in parameters.items() if "constexpr" in str(parameter.annotation)}
    for name, value in arguments.items():
        if name not in constant and not (isinstance(value, int | float) or _on_cpu(value)):
            raise KosmosArgumentError(f"{name}={value!r} must be a number or a tensor on the CPU to be emulated")
    return {name: value if name in constant else private._implicit_cvt(value) for name, value in arguments.items()}


def _on_cpu(value) -> bool:
    return hasattr(value, "data_ptr") and value.device.type == "cpu"


@contextlib.contextmanager
def interpreting(hooks: Hooks):
    """While it lasts, calls of jitted functions are interpreted and `hooks` is told."""
    builder = private.interpreter_builder
    with contextlib.ExitStack() as undo:

        def put(owner, name, value):
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)

        put(builder, "__class__", Builder)
        builder.hooks = hooks
        undo.callback(delattr, builder, "hooks")
        # the overflow check makes ten operations of each integer operation
        put(builder, "options", private.InterpreterOptions(sanitize_overflow=False))
        put(device, "emulated_semantic", private.interpreter_semantic)
        put(private, "_get_np_dtype", numpy_dtype)
        for reductions in (private.ReduceOps, private.ScanOps):
            put(reductions, "apply_impl", _reduce_wide(reductions.apply_impl))
        # the function only lends its globals: through them Triton finds the modules to patch
        scope = private._patch_lang(types.FunctionType((lambda: None).__code__, {"tl": tl, "core": tl.core}))
        undo.callback(scope.restore)
        # numpy 2.4 no longer turns a one-element array into an index
        scope.set_attr(tl.tensor, "__index__", lambda self: int(self.handle.data.reshape(-1)[0]))
        run_jitted = lambda self, *args, **kwargs: hooks.call(self, python_function(self), args, kwargs)  # noqa: E731
        put(JITFunction, "__call__", run_jitted)
        yield


def self_test() -> None:
    """Raise KosmosEnvironmentError that names the missing piece if this Triton's interpreter does not fit."""
    needed = {
        private: "InterpreterBuilder InterpreterOptions InterpretedFunction TensorHandle interpreter_builder "
        "interpreter_semantic ReduceOps ScanOps _interpreter _ir _patch_lang _implicit_cvt _get_np_dtype",
        private.InterpreterBuilder: "create_atomic_rmw create_atomic_cas create_masked_load create_masked_store "
        "create_dot cast_impl",
        JITFunction: "__call__",
    }
    for owner, names in needed.items():
        for name in names.split():
            if not hasattr(owner, name):
                raise KosmosEnvironmentError(
                    f"the emulator does not fit Triton {triton.__version__}: {owner.__name__} has no {name}; "
                    "Triton 3.6 to 3.9 are known to work"
                )
