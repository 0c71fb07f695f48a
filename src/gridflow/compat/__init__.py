"""The interfaces of older packages on top of gridflow; nothing below knows them.

`gridflow.compat.tfos` is TensorFlowOnSpark's, `gridflow.compat.mirrored` that of
spark-tensorflow-distributor, `gridflow.compat.hops` the helpers of Hops. A program changes an
import; ``docs/conversion.md`` says what becomes of each call, and what to write instead.
"""
