from __future__ import annotations

import os

# Before TensorFlow is imported: no search for a GPU, no noise in the output.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
