"""The interfaces of older packages, implemented on top of gridflow.

`gridflow.compat.tfos` provides TensorFlowOnSpark's interface, `gridflow.compat.mirrored` that of
spark-tensorflow-distributor and `gridflow.compat.hops` the helpers of Hops. A program only changes
an import; ``docs/conversion.md`` covers each call and its native replacement. No other part of
gridflow depends on this package.
"""
