"""Checks that schemas lack: names, quantities, ports, restart policies, selectors, secrets.

Those of Kubernetes' kinds are here, with `report` and `cluster` for all targets.
"""
