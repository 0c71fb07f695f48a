"""Field names of the documents' objects, to find typos without a schema.

From Kubernetes 1.37; for custom kinds, from the versions listed in docs/targets.md.
"""

from __future__ import annotations

from typing import Final

_NAMES: Final = {
    "ObjectMeta": """
        annotations creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers
        generateName generation labels managedFields name namespace ownerReferences resourceVersion
        selfLink uid
    """,
    "PodTemplateSpec": """
        metadata spec
    """,
    "PodSpec": """
        activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy
        enableServiceLinks ephemeralContainers evictionResponders hostAliases hostIPC hostNetwork
        hostPID hostUsers hostname hostnameOverride imagePullSecrets initContainers nodeName
        nodeSelector os overhead preemptionPolicy priority priorityClassName readinessGates
        resourceClaims resources restartPolicy runtimeClassName schedulerName schedulingGates
        schedulingGroup securityContext serviceAccount serviceAccountName setHostnameAsFQDN
        shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations
        topologySpreadConstraints volumes
    """,
    "Container": """
        args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports
        readinessProbe resizePolicy resources restartPolicy restartPolicyRules securityContext
        startupProbe stdin stdinOnce terminationMessagePath terminationMessagePolicy tty
        volumeDevices volumeMounts workingDir
    """,
    "EnvVar": """
        name value valueFrom
    """,
    "EnvVarSource": """
        configMapKeyRef fieldRef fileKeyRef resourceFieldRef secretKeyRef
    """,
    "ContainerPort": """
        containerPort hostIP hostPort name protocol
    """,
    "VolumeMount": """
        bindMountOptions mountPath mountPropagation name readOnly recursiveReadOnly subPath
        subPathExpr
    """,
    "ResourceRequirements": """
        claims limits requests
    """,
    "Toleration": """
        effect key operator tolerationSeconds value
    """,
    "Volume": """
        awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI emptyDir
        ephemeral fc flexVolume flocker gcePersistentDisk gitRepo glusterfs hostPath image iscsi
        name nfs persistentVolumeClaim photonPersistentDisk portworxVolume projected quobyte rbd
        scaleIO secret storageos vsphereVolume
    """,
    "JobSpec": """
        activeDeadlineSeconds backoffLimit backoffLimitPerIndex completionMode completions
        managedBy manualSelector maxFailedIndexes parallelism podFailurePolicy podReplacementPolicy
        scheduling selector successPolicy suspend template ttlSecondsAfterFinished
    """,
    "ServiceSpec": """
        allocateLoadBalancerNodePorts clusterIP clusterIPs externalIPs externalName
        externalTrafficPolicy healthCheckNodePort internalTrafficPolicy ipFamilies ipFamilyPolicy
        loadBalancerClass loadBalancerIP loadBalancerSourceRanges ports publishNotReadyAddresses
        selector sessionAffinity sessionAffinityConfig trafficDistribution type
    """,
    "ServicePort": """
        appProtocol name nodePort port protocol targetPort
    """,
    "DeploymentSpec": """
        minReadySeconds paused progressDeadlineSeconds replicas revisionHistoryLimit selector
        strategy template
    """,
    "PersistentVolumeClaimSpec": """
        accessModes dataSource dataSourceRef resources selector storageClassName
        volumeAttributesClassName volumeMode volumeName
    """,
    "TFJobSpec": """
        enableDynamicWorker runPolicy successPolicy tfReplicaSpecs
    """,
    "TFJobRunPolicy": """
        activeDeadlineSeconds backoffLimit cleanPodPolicy managedBy schedulingPolicy suspend
        ttlSecondsAfterFinished
    """,
    "TFJobReplica": """
        replicas restartPolicy template
    """,
    "TFJobSchedulingPolicy": """
        minAvailable minResources priorityClass queue scheduleTimeoutSeconds
    """,
    "JobSetSpec": """
        coordinator failurePolicy managedBy network replicatedJobs startupPolicy successPolicy
        suspend ttlSecondsAfterFinished volumeClaimPolicies
    """,
    "ReplicatedJob": """
        dependsOn groupName name replicas template
    """,
    "TrainJobSpec": """
        activeDeadlineSeconds initializer managedBy runtimePatches runtimeRef suspend trainer
    """,
    "Trainer": """
        args command env image numNodes numProcPerNode resourcesPerNode
    """,
    "TrainingRuntimeSpec": """
        mlPolicy podGroupPolicy template
    """,
    "VolcanoSpec": """
        maxRetry minAvailable minSuccess networkTopology plugins policies priorityClassName queue
        runningEstimate schedulerName tasks ttlSecondsAfterFinished volumes
    """,
    "VolcanoTask": """
        dependsOn maxRetry minAvailable name partitionPolicy policies replicas template
        topologyPolicy
    """,
    "SparkSpec": """
        arguments batchScheduler batchSchedulerOptions deps driver driverIngressOptions
        driverPodDisruptionBudget dynamicAllocation executor failureRetries hadoopConf
        hadoopConfigMap image imagePullPolicy imagePullSecrets mainApplicationFile mainClass
        memoryOverheadFactor mode monitoring nodeSelector proxyUser pythonVersion restartPolicy
        retryInterval sparkConf sparkConfigMap sparkUIOptions sparkVersion suspend
        timeToLiveSeconds type volumes
    """,
    "SparkDriver": """
        affinity annotations configMaps coreLimit coreRequest cores dnsConfig env envFrom
        envSecretKeyRefs envVars gpu hostAliases hostNetwork image initContainers javaOptions
        kubernetesMaster labels lifecycle memory memoryLimit memoryOverhead nodeSelector podName
        podSecurityContext ports priorityClassName schedulerName secrets securityContext
        serviceAccount serviceAnnotations serviceLabels shareProcessNamespace sidecars template
        terminationGracePeriodSeconds tolerations volumeMounts
    """,
    "SparkExecutor": """
        affinity annotations configMaps coreLimit coreRequest cores deleteOnTermination dnsConfig
        env envFrom envSecretKeyRefs envVars gpu hostAliases hostNetwork image initContainers
        instances javaOptions labels lifecycle memory memoryLimit memoryOverhead nodeSelector
        podSecurityContext ports priorityClassName schedulerName secrets securityContext
        serviceAccount shareProcessNamespace sidecars template terminationGracePeriodSeconds
        tolerations volumeMounts
    """,
    "Predictor": """
        activeDeadlineSeconds affinity annotations autoScaling automountServiceAccountToken batcher
        canaryTrafficPercent containerConcurrency containers deploymentStrategy dnsConfig dnsPolicy
        enableServiceLinks hostAliases hostIPC hostNetwork hostPID hostUsers hostname
        hostnameOverride huggingface imagePullSecrets initContainers labels lightgbm logger
        maxReplicas minReplicas model name nodeName nodeSelector onnx os overhead paddle pmml
        preemptionPolicy priority priorityClassName pytorch readinessGates resourceClaims resources
        restartPolicy runtimeClassName scaleMetric scaleMetricType scaleTarget schedulerName
        schedulingGates securityContext serviceAccount serviceAccountName setHostnameAsFQDN
        shareProcessNamespace sklearn storageContainerName storageUris subdomain tensorflow
        terminationGracePeriodSeconds timeout tolerations topologySpreadConstraints triton volumes
        workerSpec xgboost
    """,
    "PredictorModel": """
        args command confidential env envFrom image imagePullPolicy lifecycle livenessProbe
        modelFormat name ports protocolVersion readinessProbe resizePolicy resources restartPolicy
        restartPolicyRules runtime runtimeVersion securityContext startupProbe stdin stdinOnce
        storage storageUri terminationMessagePath terminationMessagePolicy tty volumeDevices
        volumeMounts workingDir
    """,
    "PodGroupSpec": """
        minMember minResources minTaskMember networkTopology priorityClassName queue subGroupPolicy
    """,
    "MarathonGroup": """
        apps dependencies enforceRole groups id scaleBy version
    """,
    "MarathonApp": """
        acceptedResourceRoles args backoffFactor backoffSeconds check cmd constraints container
        cpus dependencies disk env executor executorResources fetch gpus healthChecks id instances
        ipAddress killSelection labels maxLaunchDelaySeconds mem networks portDefinitions ports
        readinessChecks requirePorts residency resourceLimits role secrets
        taskKillGracePeriodSeconds tty unreachableStrategy upgradeStrategy uris user version
        versionInfo
    """,
    "ComposeService": """
        annotations attach blkio_config build cap_add cap_drop cgroup cgroup_parent command configs
        container_name cpu_count cpu_percent cpu_period cpu_quota cpu_rt_period cpu_rt_runtime
        cpu_shares cpus cpuset credential_spec depends_on deploy develop device_cgroup_rules
        devices dns dns_opt dns_search domainname entrypoint env_file environment expose extends
        external_links extra_hosts gpus group_add healthcheck hostname image init ipc isolation
        label_file labels links logging mac_address mem_limit mem_reservation mem_swappiness
        memswap_limit models network_mode networks oom_kill_disable oom_score_adj pid pids_limit
        platform ports post_start pre_stop privileged profiles provider pull_policy
        pull_refresh_after read_only restart runtime scale secrets security_opt shm_size stdin_open
        stop_grace_period stop_signal storage_opt sysctls tmpfs tty ulimits use_api_socket user
        userns_mode uts volumes volumes_from working_dir
    """,
    "StackService": """
        build cap_add cap_drop cgroup_parent cgroupns_mode command configs container_name
        credential_spec depends_on deploy devices dns dns_search domainname entrypoint
        env_file environment expose external_links extra_hosts healthcheck hostname image
        init ipc isolation labels links logging mac_address network_mode networks
        oom_score_adj pid ports privileged read_only restart secrets security_opt shm_size
        stdin_open stop_grace_period stop_signal sysctls tmpfs tty ulimits user userns_mode
        volumes working_dir
    """,
    # docker/cli, cli/compose/types/types.go, UnsupportedProperties and DeprecatedProperties; no
    # depends_on is read in cli/compose/convert.
    "IgnoredInStacks": """
        build cgroup_parent cgroupns_mode container_name depends_on devices domainname expose
        external_links ipc links mac_address network_mode pid privileged restart security_opt
        shm_size userns_mode
    """,
    "Stack": """
        configs networks secrets services version volumes
    """,
    "Compose": """
        configs include models name networks secrets services version volumes
    """,
}
FIELDS: Final = {shape: frozenset(names.split()) for shape, names in _NAMES.items()}
