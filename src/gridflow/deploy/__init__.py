"""One job, many targets: documents for Docker, Compose, Kubernetes, Kubeflow, Marathon and Spark.

``description`` is the job, ``targets`` render it, ``lint`` looks what is wrong with documents,
``drivers`` start and follow it, ``inside`` runs in its containers. Users import from
`gridflow.job` and `gridflow.manifests`.
"""
