"""Drivers for Kubernetes and for jobs in this process, and what all drivers share."""

from __future__ import annotations
