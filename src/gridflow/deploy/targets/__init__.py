"""The targets, each in a module with its rules and its driver; `base` says what a target is.

`objects` has what those on Kubernetes share, `registry` their names.
"""

from __future__ import annotations
