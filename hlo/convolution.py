"""Counts a convolution's multiply-adds from its window, as XLA's HloCostAnalysis does."""

import math

from hlo import xla_pb2
from hlo.module import Instruction


def multiply_adds(i: Instruction) -> int:
    """Returns a convolution's number of multiply-adds, without those that multiply padding.

    On a TPU matrix products are convolutions too. Their batch dimensions are spatial ones with a
    window of the same size, of whose elements all but one meet padding.
    """
    assert i.proto is not None
    numbers, window = i.proto.convolution_dimension_numbers, i.proto.window.dimensions
    left, kernel = i.operands[0].shape.dimensions, i.operands[1].shape.dimensions
    places = 1
    for k, dimension in enumerate(window):
        out = i.shape.dimensions[numbers.output_spatial_dimensions[k]]
        places *= _places(left[numbers.input_spatial_dimensions[k]], out, dimension)
    features = left[numbers.input_feature_dimension] // max(i.proto.feature_group_count, 1)
    made = kernel[numbers.kernel_output_feature_dimension]
    batch = left[numbers.input_batch_dimension] // max(i.proto.batch_group_count, 1)
    return features * made * batch * places


def _places(extent: int, out: int, window: xla_pb2.WindowDimension) -> int:
    """Counts pairs (output position, window element) that read an input element, not padding.

    Args:
      extent, out: extents of input and output in one dimension. window: of that dimension.
    """
    base, spread = max(window.base_dilation, 1), max(window.window_dilation, 1)
    stride = max(window.stride, 1)
    step = base // math.gcd(stride, base)
    pairs = 0
    for k in range(window.size):
        # The window's place p reads base * x = p * stride + k * spread - padding.
        shift = k * spread - window.padding_low
        first = max(-(shift // stride), 0) if shift < 0 else 0
        last = min((base * (extent - 1) - shift) // stride, out - 1)
        start = next(
            (p for p in range(first, first + step) if (p * stride + shift) % base == 0), None
        )
        if start is not None and start <= last:
            pairs += (last - start) // step + 1
    return pairs
