"""The nodes of an ONNX graph while it is written: their names, constants, and shapes that depend on the batch size."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fragmenta.errors import ConfigError

IR_VERSION, OPSET = 9, 18
"""Older than what onnx writes by default, so that older runtimes can read it, too."""


class Nodes:
    """Collects nodes and constants. A value is the name of a tensor, or an array if it is known while writing."""

    def __init__(self, batch_input: str, batch: Any) -> None:
        """`batch_input` is an input whose first dimension is the symbolic size `batch`."""
        self.onnx = onnx_package()
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._batch_input, self._batch = batch_input, batch
        self._batch_name: str | None = None
        self._count = 0

    def add(self, operator: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> list[str]:
        """Add a node; returns the names of its outputs."""
        names = [self._new_name(operator) for _ in range(outputs)]
        self.name_outputs(operator, [self.name(value) for value in inputs], names, **attributes)
        return names

    def name_outputs(self, operator: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
        """Add a node whose outputs have these names."""
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, outputs, **attributes))

    def name(self, value: Any) -> str:
        """The name of a tensor; an array becomes a constant of the graph."""
        if isinstance(value, str):
            return value
        array = np.asarray(value)
        name = self._new_name("constant")
        self.constants.append(self.onnx.numpy_helper.from_array(array.astype(plain_dtype(array.dtype)), name))
        return name

    def type_of(self, dtype: Any) -> int:
        """ONNX's number for a dtype."""
        return self.onnx.helper.np_dtype_to_tensor_dtype(plain_dtype(dtype))

    def cast(self, value: Any, dtype: Any) -> list[str]:
        """The value in another dtype."""
        return self.add("Cast", value, to=self.type_of(dtype))

    def reshape(self, value: Any, shape: Sequence[Any]) -> list[str]:
        """The value in another shape of the same size."""
        return self.add("Reshape", value, self.shape(shape))

    def shape(self, shape: Sequence[Any]) -> Any:
        """A shape as a vector of integers; dimensions that depend on the batch size are computed."""
        if all(is_known(size) for size in shape):
            return np.asarray(shape, np.int64)
        return self.add("Concat", *(self._size(size) for size in shape), axis=0)[0]

    def _size(self, size: Any) -> Any:
        if is_known(size):
            return np.asarray([size], np.int64)
        if self._batch_name is None:
            (self._batch_name,) = self.add("Shape", self._batch_input, start=0, end=1)
        factor = size // self._batch
        if not is_known(factor) or factor * self._batch != size:
            raise ConfigError(f"no policy.onnx for a policy with an array of length {size}: export without --onnx")
        return self.add("Mul", self._batch_name, np.asarray([factor], np.int64))[0]

    def _new_name(self, base: str) -> str:
        self._count += 1
        return f"{base.lower()}_{self._count}"


def is_known(size: Any) -> bool:
    """Whether a dimension is a plain number, independent of the batch size."""
    return isinstance(size, int | np.integer)


def plain_dtype(dtype: Any) -> np.dtype:
    """The dtype in the file: runtimes compute in float32 where the policy computes in bfloat16."""
    return np.dtype(np.float32) if str(dtype) == "bfloat16" else np.dtype(dtype)


def onnx_package() -> Any:
    """The package onnx; ConfigError if it is not installed."""
    try:
        import onnx  # pyright: ignore[reportMissingImports]
        import onnx.helper  # pyright: ignore[reportMissingImports]
        import onnx.numpy_helper  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError("policy.onnx needs onnx, which is not installed: pip install 'fragmenta[onnx]'") from None
    return onnx
