"""Field names of Kubernetes' objects, to find typos without a schema.

From Kubernetes 1.37; for custom kinds, from the versions listed in docs/targets.md.
"""

from __future__ import annotations

from typing import Final

from gridflow.deploy.lint.report import shapes

FIELDS: Final = shapes(
    ObjectMeta="""
        annotations creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers
        generateName generation labels managedFields name namespace ownerReferences resourceVersion
        selfLink uid
    """,
    PodTemplateSpec="""
        metadata spec
    """,
    PodSpec="""
        activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy
        enableServiceLinks ephemeralContainers evictionResponders hostAliases hostIPC hostNetwork
        hostPID hostUsers hostname hostnameOverride imagePullSecrets initContainers nodeName
        nodeSelector os overhead preemptionPolicy priority priorityClassName readinessGates
        resourceClaims resources restartPolicy runtimeClassName schedulerName schedulingGates
        schedulingGroup securityContext serviceAccount serviceAccountName setHostnameAsFQDN
        shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations
        topologySpreadConstraints volumes
    """,
    Container="""
        args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports
        readinessProbe resizePolicy resources restartPolicy restartPolicyRules securityContext
        startupProbe stdin stdinOnce terminationMessagePath terminationMessagePolicy tty
        volumeDevices volumeMounts workingDir
    """,
    EnvVar="""
        name value valueFrom
    """,
    EnvVarSource="""
        configMapKeyRef fieldRef fileKeyRef resourceFieldRef secretKeyRef
    """,
    ContainerPort="""
        containerPort hostIP hostPort name protocol
    """,
    VolumeMount="""
        bindMountOptions mountPath mountPropagation name readOnly recursiveReadOnly subPath
        subPathExpr
    """,
    ResourceRequirements="""
        claims limits requests
    """,
    Toleration="""
        effect key operator tolerationSeconds value
    """,
    Volume="""
        awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI emptyDir
        ephemeral fc flexVolume flocker gcePersistentDisk gitRepo glusterfs hostPath image iscsi
        name nfs persistentVolumeClaim photonPersistentDisk portworxVolume projected quobyte rbd
        scaleIO secret storageos vsphereVolume
    """,
    JobSpec="""
        activeDeadlineSeconds backoffLimit backoffLimitPerIndex completionMode completions
        managedBy manualSelector maxFailedIndexes parallelism podFailurePolicy podReplacementPolicy
        scheduling selector successPolicy suspend template ttlSecondsAfterFinished
    """,
    ServiceSpec="""
        allocateLoadBalancerNodePorts clusterIP clusterIPs externalIPs externalName
        externalTrafficPolicy healthCheckNodePort internalTrafficPolicy ipFamilies ipFamilyPolicy
        loadBalancerClass loadBalancerIP loadBalancerSourceRanges ports publishNotReadyAddresses
        selector sessionAffinity sessionAffinityConfig trafficDistribution type
    """,
    ServicePort="""
        appProtocol name nodePort port protocol targetPort
    """,
    DeploymentSpec="""
        minReadySeconds paused progressDeadlineSeconds replicas revisionHistoryLimit selector
        strategy template
    """,
    PersistentVolumeClaimSpec="""
        accessModes dataSource dataSourceRef resources selector storageClassName
        volumeAttributesClassName volumeMode volumeName
    """,
    TFJobSpec="""
        enableDynamicWorker runPolicy successPolicy tfReplicaSpecs
    """,
    TFJobRunPolicy="""
        activeDeadlineSeconds backoffLimit cleanPodPolicy managedBy schedulingPolicy suspend
        ttlSecondsAfterFinished
    """,
    TFJobReplica="""
        replicas restartPolicy template
    """,
    TFJobSchedulingPolicy="""
        minAvailable minResources priorityClass queue scheduleTimeoutSeconds
    """,
    JobSetSpec="""
        coordinator failurePolicy managedBy network replicatedJobs startupPolicy successPolicy
        suspend ttlSecondsAfterFinished volumeClaimPolicies
    """,
    ReplicatedJob="""
        dependsOn groupName name replicas template
    """,
    TrainJobSpec="""
        activeDeadlineSeconds initializer managedBy runtimePatches runtimeRef suspend trainer
    """,
    Trainer="""
        args command env image numNodes numProcPerNode resourcesPerNode
    """,
    TrainingRuntimeSpec="""
        mlPolicy podGroupPolicy template
    """,
    VolcanoSpec="""
        maxRetry minAvailable minSuccess networkTopology plugins policies priorityClassName queue
        runningEstimate schedulerName tasks ttlSecondsAfterFinished volumes
    """,
    VolcanoTask="""
        dependsOn maxRetry minAvailable name partitionPolicy policies replicas template
        topologyPolicy
    """,
    SparkSpec="""
        arguments batchScheduler batchSchedulerOptions deps driver driverIngressOptions
        driverPodDisruptionBudget dynamicAllocation executor failureRetries hadoopConf
        hadoopConfigMap image imagePullPolicy imagePullSecrets mainApplicationFile mainClass
        memoryOverheadFactor mode monitoring nodeSelector proxyUser pythonVersion restartPolicy
        retryInterval sparkConf sparkConfigMap sparkUIOptions sparkVersion suspend
        timeToLiveSeconds type volumes
    """,
    SparkDriver="""
        affinity annotations configMaps coreLimit coreRequest cores dnsConfig env envFrom
        envSecretKeyRefs envVars gpu hostAliases hostNetwork image initContainers javaOptions
        kubernetesMaster labels lifecycle memory memoryLimit memoryOverhead nodeSelector podName
        podSecurityContext ports priorityClassName schedulerName secrets securityContext
        serviceAccount serviceAnnotations serviceLabels shareProcessNamespace sidecars template
        terminationGracePeriodSeconds tolerations volumeMounts
    """,
    SparkExecutor="""
        affinity annotations configMaps coreLimit coreRequest cores deleteOnTermination dnsConfig
        env envFrom envSecretKeyRefs envVars gpu hostAliases hostNetwork image initContainers
        instances javaOptions labels lifecycle memory memoryLimit memoryOverhead nodeSelector
        podSecurityContext ports priorityClassName schedulerName secrets securityContext
        serviceAccount shareProcessNamespace sidecars template terminationGracePeriodSeconds
        tolerations volumeMounts
    """,
    Predictor="""
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
    PredictorModel="""
        args command confidential env envFrom image imagePullPolicy lifecycle livenessProbe
        modelFormat name ports protocolVersion readinessProbe resizePolicy resources restartPolicy
        restartPolicyRules runtime runtimeVersion securityContext startupProbe stdin stdinOnce
        storage storageUri terminationMessagePath terminationMessagePolicy tty volumeDevices
        volumeMounts workingDir
    """,
    PodGroupSpec="""
        minMember minResources minTaskMember networkTopology priorityClassName queue subGroupPolicy
    """,
)
