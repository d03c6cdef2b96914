package reference

import (
	"fmt"
	"strings"

	"github.com/nodelet/nodelet/config"
)

// elsewhere is said of fields that the kubelet does not act on either.
const elsewhere config.Support = "of another component"

const (
	scheduler = "the scheduler decides about it"
	evictor   = "the component that evicts the pod decides about it"
	windows   = "for Windows"
	claims    = "the controller manager creates the claim"

	translated = "the CSI driver has no such attribute"
)

// podFields says what nodelet does with each field of PodSpec and of the types that it consists of, in the order of the
// API. "*" stands for all fields of a type; it is used only where nothing of the type has an effect.
var podFields = []struct {
	typ     string
	support config.Support
	fields  string
	note    string
}{
	{"PodSpec", config.Acts,
		"volumes initContainers containers ephemeralContainers restartPolicy terminationGracePeriodSeconds " +
			"activeDeadlineSeconds dnsPolicy nodeSelector serviceAccountName nodeName hostNetwork hostPID hostIPC " +
			"shareProcessNamespace securityContext imagePullSecrets hostname subdomain affinity tolerations " +
			"hostAliases priorityClassName priority dnsConfig readinessGates runtimeClassName enableServiceLinks " +
			"overhead setHostnameAsFQDN os hostUsers resourceClaims resources hostnameOverride", ""},
	{"PodSpec", elsewhere, "serviceAccount", "the older name of serviceAccountName"},
	{"PodSpec", elsewhere, "automountServiceAccountToken", "the API server adds the volume"},
	{"PodSpec", elsewhere,
		"schedulerName preemptionPolicy topologySpreadConstraints schedulingGates schedulingGroup", scheduler},
	{"PodSpec", elsewhere, "evictionResponders", evictor},
	{"Volume", config.Acts, "name", ""},
	{"VolumeSource", config.Acts,
		"hostPath emptyDir nfs iscsi persistentVolumeClaim csi ephemeral image", ""},
	{"VolumeSource", config.Differs, "configMap",
		"at most 256 MiB for all of a pod together; the kubelet lets them fill the disk"},
	{"VolumeSource", config.Differs, "secret downwardAPI projected",
		"at most 32 MiB for all of a pod together, with 1 KiB for each file and directory; the kubelet lets each grow to " +
			"the memory limit of the pod, or the memory of the node. All pods with more than 2 MiB may have a quarter of the " +
			"agent's memory together"},
	{"VolumeSource", config.Acts,
		"gcePersistentDisk awsElasticBlockStore cinder azureFile vsphereVolume azureDisk portworxVolume",
		"mounted by the CSI driver that replaces this kind"},
	{"VolumeSource", config.Refused,
		"rbd cephfs", "removed from Kubernetes; use the CSI driver that the error names"},
	{"VolumeSource", config.Refused,
		"glusterfs flocker quobyte photonPersistentDisk scaleIO storageos", "removed from Kubernetes"},
	{"VolumeSource", config.Refused, "gitRepo", "use an init container that clones into an emptyDir"},
	{"VolumeSource", config.Refused, "fc flexVolume", "use a CSI driver"},
	{"HostPathVolumeSource", config.Acts, "path type", ""},
	{"EmptyDirVolumeSource", config.Acts, "medium sizeLimit mode", ""},
	{"GCEPersistentDiskVolumeSource", config.Acts, "pdName fsType partition readOnly", ""},
	{"AWSElasticBlockStoreVolumeSource", config.Acts, "volumeID fsType partition readOnly", ""},
	{"GitRepoVolumeSource", config.Refused, "*", "the volume is refused"},
	{"SecretVolumeSource", config.Acts, "secretName items defaultMode optional defaultUser", ""},
	{"KeyToPath", config.Acts, "key path mode user", ""},
	{"NFSVolumeSource", config.Acts, "server path readOnly", ""},
	{"ISCSIVolumeSource", config.Acts,
		"targetPortal iqn lun iscsiInterface fsType readOnly portals chapAuthSession secretRef initiatorName", ""},
	{"ISCSIVolumeSource", config.NoEffect, "chapAuthDiscovery",
		"nodelet logs in at the portals that the volume names and discovers no others"},
	{"LocalObjectReference", config.Acts, "name", ""},
	{"GlusterfsVolumeSource", config.Refused, "*", "the volume is refused"},
	{"PersistentVolumeClaimVolumeSource", config.Acts, "claimName readOnly", ""},
	{"RBDVolumeSource", config.Refused, "*", "the volume is refused"},
	{"FlexVolumeSource", config.Refused, "*", "the volume is refused"},
	{"CinderVolumeSource", config.Acts, "volumeID fsType readOnly", ""},
	{"CinderVolumeSource", elsewhere, "secretRef", translated},
	{"CephFSVolumeSource", config.Refused, "*", "the volume is refused"},
	{"FlockerVolumeSource", config.Refused, "*", "the volume is refused"},
	{"DownwardAPIVolumeSource", config.Acts, "items defaultMode defaultUser", ""},
	{"DownwardAPIVolumeFile", config.Acts, "path fieldRef resourceFieldRef mode user", ""},
	{"ObjectFieldSelector", config.Acts, "apiVersion fieldPath", ""},
	{"ResourceFieldSelector", config.Acts, "containerName resource divisor", ""},
	{"FCVolumeSource", config.Refused, "*", "the volume is refused"},
	{"AzureFileVolumeSource", config.Acts, "secretName shareName readOnly", ""},
	{"ConfigMapVolumeSource", config.Acts, "items defaultMode optional defaultUser", ""},
	{"VsphereVirtualDiskVolumeSource", config.Acts, "volumePath fsType storagePolicyName", ""},
	{"VsphereVirtualDiskVolumeSource", elsewhere, "storagePolicyID", translated},
	{"QuobyteVolumeSource", config.Refused, "*", "the volume is refused"},
	{"AzureDiskVolumeSource", config.Acts, "diskURI cachingMode fsType readOnly kind", ""},
	{"AzureDiskVolumeSource", elsewhere, "diskName", translated},
	{"PhotonPersistentDiskVolumeSource", config.Refused, "*", "the volume is refused"},
	{"ProjectedVolumeSource", config.Acts, "sources defaultMode defaultUser", ""},
	{"VolumeProjection", config.Acts,
		"secret downwardAPI configMap serviceAccountToken clusterTrustBundle podCertificate", ""},
	{"SecretProjection", config.Acts, "items optional", ""},
	{"DownwardAPIProjection", config.Acts, "items", ""},
	{"ConfigMapProjection", config.Acts, "items optional", ""},
	{"ServiceAccountTokenProjection", config.Acts, "audience expirationSeconds path user", ""},
	{"ClusterTrustBundleProjection", config.Acts, "name signerName labelSelector optional path user", ""},
	{"PodCertificateProjection", config.Acts,
		"signerName keyType maxExpirationSeconds credentialBundlePath keyPath certificateChainPath " +
			"userAnnotations user", ""},
	{"PortworxVolumeSource", config.Acts, "volumeID fsType readOnly", ""},
	{"ScaleIOVolumeSource", config.Refused, "*", "the volume is refused"},
	{"StorageOSVolumeSource", config.Refused, "*", "the volume is refused"},
	{"CSIVolumeSource", config.Acts, "driver readOnly fsType volumeAttributes nodePublishSecretRef", ""},
	{"EphemeralVolumeSource", elsewhere, "volumeClaimTemplate", claims},
	{"PersistentVolumeClaimTemplate", elsewhere, "*", claims},
	{"PersistentVolumeClaimSpec", elsewhere, "*", claims},
	{"VolumeResourceRequirements", elsewhere, "*", claims},
	{"TypedLocalObjectReference", elsewhere, "*", claims},
	{"TypedObjectReference", elsewhere, "*", claims},
	{"ImageVolumeSource", config.Acts, "reference", ""},
	{"ImageVolumeSource", config.Differs, "pullPolicy", "Always pulls when the pod starts, as the API describes it, and " +
		"again for the first container that starts after a restart of the agent; the kubelet pulls each time that a " +
		"container of the pod starts"},
	{"Container", config.Acts,
		"name image command args workingDir ports envFrom env resources resizePolicy restartPolicy " +
			"restartPolicyRules volumeMounts volumeDevices livenessProbe readinessProbe startupProbe lifecycle " +
			"terminationMessagePath terminationMessagePolicy imagePullPolicy securityContext stdin stdinOnce tty", ""},
	{"ContainerPort", config.Acts, "name containerPort protocol hostIP", ""},
	{"ContainerPort", config.Differs, "hostPort", "that of a sidecar is opened on the node too; with the kubelet it is " +
		"reserved by the scheduler, but not opened"},
	{"EnvFromSource", config.Acts, "prefix configMapRef secretRef", ""},
	{"ConfigMapEnvSource", config.Acts, "optional", ""},
	{"SecretEnvSource", config.Acts, "optional", ""},
	{"EnvVar", config.Acts, "name value valueFrom", ""},
	{"EnvVarSource", config.Acts, "fieldRef resourceFieldRef configMapKeyRef secretKeyRef fileKeyRef", ""},
	{"ConfigMapKeySelector", config.Acts, "key optional", ""},
	{"SecretKeySelector", config.Acts, "key optional", ""},
	{"FileKeySelector", config.Acts, "volumeName path", ""},
	{"FileKeySelector", config.Differs, "key", "one that the file sets to an empty value is found, and the variable is " +
		"empty; for the kubelet it is missing"},
	{"FileKeySelector", config.Differs, "optional", "without the file, the variable is left out, as the API describes " +
		"it; the kubelet does not create the container"},
	{"ResourceRequirements", config.Acts, "limits requests claims", ""},
	{"ResourceClaim", config.Acts, "name request", ""},
	{"ContainerResizePolicy", config.Acts, "resourceName restartPolicy", ""},
	{"ContainerRestartRule", config.Acts, "action exitCodes", ""},
	{"ContainerRestartRuleOnExitCodes", config.Acts, "operator values", ""},
	{"VolumeMount", config.Acts,
		"name readOnly recursiveReadOnly mountPath mountPropagation bindMountOptions", ""},
	{"VolumeMount", config.Differs, "subPath subPathExpr", "with containerd before 2.2, which ignores that of an image " +
		"volume, a container with one is not created; with the kubelet it gets the whole image"},
	{"VolumeDevice", config.Acts, "name devicePath", ""},
	{"Probe", config.Acts,
		"initialDelaySeconds timeoutSeconds successThreshold failureThreshold terminationGracePeriodSeconds", ""},
	{"Probe", config.Differs, "periodSeconds", "a startup probe is tried as soon as `initialDelaySeconds` are over; " +
		"while the container is younger than a period, it cannot fail"},
	{"ProbeHandler", config.Differs, "exec", "it does not fail while the container runtime answers no calls"},
	{"ProbeHandler", config.Acts, "httpGet tcpSocket", ""},
	{"ProbeHandler", config.Differs, "grpc", "a connection that is refused fails it at once, as in Kubernetes 1.38"},
	{"ExecAction", config.Acts, "command", ""},
	{"HTTPGetAction", config.Acts, "path port host scheme httpHeaders protocol", ""},
	{"HTTPHeader", config.Acts, "name value", ""},
	{"TCPSocketAction", config.Acts, "port host", ""},
	{"GRPCAction", config.Acts, "port service mode", ""},
	{"Lifecycle", config.Acts, "postStart preStop stopSignal", ""},
	{"LifecycleHandler", config.Acts, "exec httpGet tcpSocket sleep", ""},
	{"SleepAction", config.Acts, "seconds", ""},
	{"SecurityContext", config.Acts,
		"capabilities privileged seLinuxOptions runAsUser runAsGroup runAsNonRoot readOnlyRootFilesystem " +
			"allowPrivilegeEscalation procMount seccompProfile appArmorProfile", ""},
	{"SecurityContext", elsewhere, "windowsOptions", windows},
	{"Capabilities", config.Acts, "add drop", ""},
	{"SELinuxOptions", config.Acts, "user role type level", ""},
	{"WindowsSecurityContextOptions", elsewhere, "*", windows},
	{"SeccompProfile", config.Acts, "type localhostProfile", ""},
	{"AppArmorProfile", config.Acts, "type localhostProfile", ""},
	{"EphemeralContainer", config.Acts, "targetContainerName", ""},
	{"EphemeralContainerCommon", config.Acts,
		"name image command args workingDir envFrom env volumeMounts volumeDevices terminationMessagePath " +
			"terminationMessagePolicy imagePullPolicy securityContext stdin stdinOnce tty", ""},
	{"EphemeralContainerCommon", elsewhere,
		"ports resources resizePolicy restartPolicy restartPolicyRules livenessProbe readinessProbe startupProbe lifecycle",
		"the API server refuses it"},
	{"PodSecurityContext", config.Acts,
		"seLinuxOptions runAsUser runAsGroup runAsNonRoot supplementalGroups supplementalGroupsPolicy fsGroup " +
			"sysctls fsGroupChangePolicy seccompProfile appArmorProfile seLinuxChangePolicy", ""},
	{"PodSecurityContext", elsewhere, "windowsOptions", windows},
	{"Sysctl", config.Acts, "name value", ""},
	{"Affinity", config.Acts, "nodeAffinity", ""},
	{"Affinity", elsewhere, "podAffinity podAntiAffinity", scheduler},
	{"NodeAffinity", config.Acts, "requiredDuringSchedulingIgnoredDuringExecution", ""},
	{"NodeAffinity", elsewhere, "preferredDuringSchedulingIgnoredDuringExecution", scheduler},
	{"NodeSelector", config.Acts, "nodeSelectorTerms", ""},
	{"NodeSelectorTerm", config.Acts, "matchExpressions matchFields", ""},
	{"NodeSelectorRequirement", config.Acts, "key operator values", ""},
	{"PreferredSchedulingTerm", elsewhere, "*", scheduler},
	{"PodAffinity", elsewhere, "*", scheduler},
	{"PodAffinityTerm", elsewhere, "*", scheduler},
	{"WeightedPodAffinityTerm", elsewhere, "*", scheduler},
	{"PodAntiAffinity", elsewhere, "*", scheduler},
	{"Toleration", config.Acts, "key operator value effect", ""},
	{"Toleration", elsewhere, "tolerationSeconds", evictor},
	{"HostAlias", config.Acts, "ip hostnames", ""},
	{"PodDNSConfig", config.Acts, "nameservers searches options", ""},
	{"PodDNSConfigOption", config.Acts, "name value", ""},
	{"PodReadinessGate", config.Acts, "conditionType", ""},
	{"TopologySpreadConstraint", elsewhere, "*", scheduler},
	{"PodOS", config.Acts, "name", ""},
	{"PodSchedulingGate", elsewhere, "*", scheduler},
	{"PodResourceClaim", config.Acts, "name resourceClaimName", ""},
	{"PodResourceClaim", elsewhere, "resourceClaimTemplateName", "the status of the pod has the name of the claim"},
	{"PodSchedulingGroup", elsewhere, "*", scheduler},
	{"EvictionResponder", elsewhere, "*", evictor},
}

// PodFields is docs/reference/pods.md.
func PodFields() string {
	var b strings.Builder
	b.WriteString("# Reference of the pod fields\n" + generated +
		"All fields of PodSpec of Kubernetes " + config.KubernetesVersion + ", and what nodelet does with them:\n" +
		supportList +
		"- **" + string(elsewhere) + "**: the kubelet does not act on it either.\n\n" +
		"| type | fields | support | note |\n|---|---|---|---|\n")
	for _, row := range podFields {
		fields := "all"
		if row.fields != "*" {
			fields = "`" + strings.Join(strings.Fields(row.fields), "` `") + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", row.typ, fields, row.support, cell(row.note))
	}
	return b.String()
}
