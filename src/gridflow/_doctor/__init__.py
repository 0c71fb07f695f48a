"""``gridflow doctor``: what stands between a machine or a cluster and its first job."""
