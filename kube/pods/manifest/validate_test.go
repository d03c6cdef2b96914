package manifest

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// valid is a pod which uses most fields and which the API server accepts.
func valid(t *testing.T) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	mustRead(t, "testdata/valid.yaml", pod)
	setAllDefaults(pod)
	return pod
}

var restartForCPU = corev1.ContainerResizePolicy{
	ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.RestartContainer,
}

func TestValidateAccepts(t *testing.T) {
	for name, change := range map[string]func(s *corev1.PodSpec){
		"the pod": func(*corev1.PodSpec) {},
		"another host port of an init container": func(s *corev1.PodSpec) {
			s.HostNetwork, s.Containers[0].Ports = true, nil
			s.InitContainers[1].Ports[0].HostPort = 91
		},
		"huge pages": func(s *corev1.PodSpec) {
			for _, list := range []corev1.ResourceList{s.Containers[0].Resources.Limits, s.Containers[0].Resources.Requests} {
				list["hugepages-2Mi"], list["hugepages-1Gi"] = resource.MustParse("4Mi"), resource.MustParse("0")
			}
		},
		"the old name of spec.nodeName": func(s *corev1.PodSpec) {
			s.Containers[0].Env[1].ValueFrom.FieldRef.FieldPath = "spec.host"
		},
		"an environment file by its path from the root of the volume": func(s *corev1.PodSpec) {
			s.Containers[0].Env[6].ValueFrom.FileKeyRef.Path = "/a/config.env"
		},
		"other names of an iSCSI target and initiator": func(s *corev1.PodSpec) {
			v := s.Volumes[8].ISCSI
			v.IQN, v.InitiatorName = "eui.0123456789abcdef", new("naa.0123456789abcdef0123456789abcdef")
			v.SessionCHAPAuth, v.SecretRef = false, nil
		},
		"the limit of the pod for a container": func(s *corev1.PodSpec) {
			gi := corev1.ResourceList{"memory": resource.MustParse("1Gi")}
			s.Resources = &corev1.ResourceRequirements{Limits: gi, Requests: gi}
		},
		"a sidecar that restarts for a resize": func(s *corev1.PodSpec) {
			s.InitContainers[1].ResizePolicy = []corev1.ContainerResizePolicy{restartForCPU}
			s.InitContainers[0].ResizePolicy = []corev1.ContainerResizePolicy{{
				ResourceName: corev1.ResourceCPU, RestartPolicy: corev1.NotRequired}}
		},
	} {
		pod := valid(t)
		change(&pod.Spec)
		if errs := validate(pod); len(errs) > 0 {
			t.Errorf("%s: got %v, want no errors", name, errs.ToAggregate())
		}
	}
}

// TestValidateRefuses checks that each change makes the valid pod bad in one way, and the error names the field. The
// API server refuses them too, apart from those marked ours.
func TestValidateRefuses(t *testing.T) {
	const web = "spec.containers[0]."
	for want, change := range map[string]func(p *corev1.Pod, s *corev1.PodSpec, c *corev1.Container){
		"metadata.name":        func(p *corev1.Pod, _ *corev1.PodSpec, _ *corev1.Container) { p.Name = "a_b" },
		"metadata.namespace":   func(p *corev1.Pod, _ *corev1.PodSpec, _ *corev1.Container) { p.Namespace = "a.b" },
		"metadata.uid":         func(p *corev1.Pod, _ *corev1.PodSpec, _ *corev1.Container) { p.UID = "a/../b" }, // ours
		"metadata.labels":      func(p *corev1.Pod, _ *corev1.PodSpec, _ *corev1.Container) { p.Labels["a"] = "b c" },
		"metadata.annotations": func(p *corev1.Pod, _ *corev1.PodSpec, _ *corev1.Container) { p.Annotations["a b"] = "" },
		"spec.containers":      func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) { s.Containers = nil },
		"spec.containers[1].name": func(_ *corev1.Pod, s *corev1.PodSpec,
			_ *corev1.Container) {
			s.Containers[1].Name = "web"
		},
		"spec.initContainers[0].name": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.InitContainers[0].Name = "two"
		},
		"spec.initContainers[0].livenessProbe": func(_ *corev1.Pod, s *corev1.PodSpec, c *corev1.Container) {
			s.InitContainers[0].LivenessProbe = c.LivenessProbe
		},
		"spec.volumes[1].name": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) { s.Volumes[1].Name = "data" },
		"spec.volumes[1]": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.Volumes[1].HostPath = &corev1.HostPathVolumeSource{Path: "/x"}
		},
		"spec.volumes[0].hostPath.path": func(_ *corev1.Pod, s *corev1.PodSpec,
			_ *corev1.Container) {
			s.Volumes[0].HostPath.Path = "/a/../b"
		},
		"spec.volumes[0].hostPath.type": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.Volumes[0].HostPath.Type = new(corev1.HostPathType("Dir"))
		},
		"spec.volumes[1].emptyDir.sizeLimit": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.Volumes[1].EmptyDir.SizeLimit = new(resource.MustParse("-1"))
		},
		"spec.volumes[1].emptyDir.mode": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.Volumes[1].EmptyDir.Mode = new(int32(1777))
		},
		"spec.volumes[2].configMap.items[0].path": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.Volumes[2].ConfigMap.Items[0].Path = "..data"
		},
		"spec.volumes[2].configMap.defaultMode": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.Volumes[2].ConfigMap.DefaultMode = new(int32(777))
		},
		// ours
		"spec.volumes[3].secret.secretName": func(_ *corev1.Pod, s *corev1.PodSpec,
			_ *corev1.Container) {
			s.Volumes[3].Secret.SecretName = "a/b"
		},
		"spec.volumes[4].downwardAPI.items[0].fieldRef.fieldPath": func(_ *corev1.Pod, s *corev1.PodSpec,
			_ *corev1.Container) {
			s.Volumes[4].DownwardAPI.Items[0].FieldRef.FieldPath = "status.podIP"
		},
		"spec.volumes[5].projected.sources[2]": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.Volumes[5].Projected.Sources[2].DownwardAPI.Items[0].Path = "p1"
		},
		"spec.volumes[7].nfs.path": func(_ *corev1.Pod, s *corev1.PodSpec,
			_ *corev1.Container) {
			s.Volumes[7].NFS.Path = "x"
		},
		"spec.volumes[8].iscsi.targetPortal": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.Volumes[8].ISCSI.TargetPortal = ""
		},
		"spec.volumes[8].iscsi.iqn": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.Volumes[8].ISCSI.IQN = "iqn.2001-04.com.example" // without the part after the colon
		},
		"spec.volumes[8].iscsi.initiatorName": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.Volumes[8].ISCSI.InitiatorName = new("node-1")
		},
		"spec.volumes[8].iscsi.lun": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.Volumes[8].ISCSI.Lun = 256
		},
		"spec.volumes[8].iscsi.secretRef": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.Volumes[8].ISCSI.SecretRef = nil
		},
		"spec.initContainers[0].resizePolicy[0].restartPolicy": func(
			_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.InitContainers[0].ResizePolicy = []corev1.ContainerResizePolicy{restartForCPU}
		},
		"spec.securityContext.seLinuxChangePolicy": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.SecurityContext.SELinuxChangePolicy = new(corev1.PodSELinuxChangePolicy("recursive"))
		},
		web + "resources.limits[memory]": func(_ *corev1.Pod, s *corev1.PodSpec, c *corev1.Container) {
			gi := corev1.ResourceList{"memory": resource.MustParse("1Gi")}
			s.Resources = &corev1.ResourceRequirements{Limits: gi, Requests: gi}
			c.Resources.Limits["memory"] = resource.MustParse("2Gi")
		},
		"spec.restartPolicy": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) { s.RestartPolicy = "Sometimes" },
		"spec.dnsPolicy":     func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) { s.DNSPolicy = "First" },
		"spec.dnsConfig.nameservers": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.DNSPolicy, s.DNSConfig.Nameservers = corev1.DNSNone, nil
		},
		"spec.dnsConfig.searches[0]": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.DNSConfig.Searches[0] = "a\nnameserver 1.1.1.1"
		},
		"spec.activeDeadlineSeconds": func(_ *corev1.Pod, s *corev1.PodSpec,
			_ *corev1.Container) {
			s.ActiveDeadlineSeconds = new(int64(0))
		},
		"spec.ephemeralContainers": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.EphemeralContainers = make([]corev1.EphemeralContainer, 1)
		},
		"spec.resourceClaims": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.ResourceClaims = make([]corev1.PodResourceClaim, 1)
		},
		"spec.schedulingGates": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a"}}
		},
		"spec.os.name": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.OS = &corev1.PodOS{Name: corev1.Windows}
		}, // ours
		"spec.hostname": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) { s.Hostname = "a.b" },
		"spec.tolerations[0].key": func(_ *corev1.Pod, s *corev1.PodSpec,
			_ *corev1.Container) {
			s.Tolerations[0].Key = "a b"
		},
		"spec.hostAliases[0].ip": func(_ *corev1.Pod, s *corev1.PodSpec,
			_ *corev1.Container) {
			s.HostAliases[0].IP = "1.2.3"
		},
		"spec.shareProcessNamespace": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) { s.HostPID = true },
		"spec.securityContext.sysctls[0].name": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.HostIPC = true
		},
		"spec.securityContext.runAsUser": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.SecurityContext.RunAsUser = new(int64(1 << 31))
		},
		"spec.hostUsers": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.HostUsers = new(false)
			s.HostNetwork, s.ShareProcessNamespace = true, nil
		},
		web + "image": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) { c.Image = "" },
		web + "imagePullPolicy": func(_ *corev1.Pod, _ *corev1.PodSpec,
			c *corev1.Container) {
			c.ImagePullPolicy = "Never ever"
		},
		web + "volumeMounts[0].name": func(_ *corev1.Pod, _ *corev1.PodSpec,
			c *corev1.Container) {
			c.VolumeMounts[0].Name = "nope"
		},
		web + "volumeMounts[1].mountPath": func(_ *corev1.Pod, _ *corev1.PodSpec,
			c *corev1.Container) {
			c.VolumeMounts[1].MountPath = "/data"
		},
		web + "volumeMounts[0].subPath": func(_ *corev1.Pod, _ *corev1.PodSpec,
			c *corev1.Container) {
			c.VolumeMounts[0].SubPath = "a/../../b"
		},
		web + "volumeMounts[2].subPathExpr": func(_ *corev1.Pod, _ *corev1.PodSpec,
			c *corev1.Container) {
			c.VolumeMounts[2].SubPath = "x"
		},
		web + "volumeMounts[1].mountPropagation": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.VolumeMounts[1].MountPropagation = new(corev1.MountPropagationBidirectional)
		},
		web + "volumeMounts[2].recursiveReadOnly": func(_ *corev1.Pod, _ *corev1.PodSpec,
			c *corev1.Container) {
			c.VolumeMounts[2].ReadOnly = false
		},
		web + "volumeDevices[0].name": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.VolumeDevices = []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/x"}}
		},
		web + "ports[0].containerPort": func(_ *corev1.Pod, _ *corev1.PodSpec,
			c *corev1.Container) {
			c.Ports[0].ContainerPort = 65536
		},
		web + "ports[1].name": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) { c.Ports[1].Name = "http" },
		web + "ports[1].protocol": func(_ *corev1.Pod, _ *corev1.PodSpec,
			c *corev1.Container) {
			c.Ports[1].Protocol = "tcp"
		},
		// ours
		web + "ports[0].hostIP":  func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) { c.Ports[0].HostIP = "eth0" },
		web + "env[0].name":      func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) { c.Env[0].Name = "A=B" },
		web + "env[1].valueFrom": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) { c.Env[1].Value = "x" },
		web + "env[3].valueFrom.configMapKeyRef.key": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.Env[3].ValueFrom.ConfigMapKeyRef.Key = ""
		},
		web + "env[2].valueFrom.resourceFieldRef.resource": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.Env[2].ValueFrom.ResourceFieldRef.Resource = "limits.gpu"
		},
		web + "env[2].valueFrom.resourceFieldRef.divisor": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.Env[2].ValueFrom.ResourceFieldRef.Divisor = resource.MustParse("1Mi") // of a CPU
		},
		"spec.volumes[4].downwardAPI.items[1].resourceFieldRef.divisor": func(_ *corev1.Pod, s *corev1.PodSpec,
			_ *corev1.Container) {
			ref := s.Volumes[4].DownwardAPI.Items[1].ResourceFieldRef
			ref.Resource, ref.Divisor = "limits.memory", resource.MustParse("3Mi")
		},
		web + "env[6].valueFrom.fileKeyRef.path": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.Env[6].ValueFrom.FileKeyRef.Path = ""
		},
		web + "env[6].valueFrom.fileKeyRef.key": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.Env[6].ValueFrom.FileKeyRef.Key = "A=B"
		},
		web + "restartPolicyRules": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			never, rule := corev1.ContainerRestartPolicyNever, corev1.ContainerRestartRule{
				Action:    corev1.ContainerRestartRuleActionRestart,
				ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn},
			}
			c.RestartPolicy, c.RestartPolicyRules = &never, slices.Repeat([]corev1.ContainerRestartRule{rule}, 21)
		},
		web + "restartPolicyRules[0].exitCodes.values": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyNever)
			c.RestartPolicyRules = []corev1.ContainerRestartRule{{
				Action: corev1.ContainerRestartRuleActionRestart,
				ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
					Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: make([]int32, 256),
				},
			}}
		},
		web + "lifecycle.stopSignal": func(_ *corev1.Pod, s *corev1.PodSpec, c *corev1.Container) {
			s.OS = &corev1.PodOS{Name: corev1.Linux}
			c.Lifecycle.StopSignal = new(corev1.Signal("SIGFOO"))
		},
		web + "envFrom[0]": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) { c.EnvFrom[0].ConfigMapRef = nil },
		web + "resources.requests[memory]": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.Resources.Requests["memory"] = resource.MustParse("2Gi")
		},
		web + "resources.requests[example.com/x]": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.Resources.Requests["example.com/x"] = resource.MustParse("1")
		},
		web + "resources.limits[example.com/y]": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.Resources.Limits["example.com/y"] = resource.MustParse("500m")
		},
		web + "resources.limits[hugepages-2Mi]": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.Resources.Limits["hugepages-2Mi"] = resource.MustParse("3Mi")
		},
		web + "resources.limits[hugepages-big]": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.Resources.Limits["hugepages-big"] = resource.MustParse("2Mi")
		},
		web + "resources": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			pages := corev1.ResourceList{"hugepages-2Mi": resource.MustParse("2Mi")}
			c.Resources = corev1.ResourceRequirements{Limits: pages, Requests: pages}
		},
		web + "resources.limits[pods]": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.Resources.Limits["pods"] = resource.MustParse("1")
		},
		web + "resources.limits[cpu]": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.Resources.Limits["cpu"] = resource.MustParse("-1")
		},
		web + "resizePolicy[0].resourceName": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.ResizePolicy = []corev1.ContainerResizePolicy{{ResourceName: "disk", RestartPolicy: corev1.NotRequired}}
		},
		web + "livenessProbe.httpGet.port": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.LivenessProbe.HTTPGet.Port = intstr.FromInt32(0)
		},
		web + "livenessProbe.httpGet.protocol": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.LivenessProbe.HTTPGet.Protocol = new(corev1.HTTPProtocol("http2"))
		},
		"spec.containers[1].livenessProbe.httpGet.protocol": func(
			_ *corev1.Pod, s *corev1.PodSpec, c *corev1.Container) {
			s.Containers[1].LivenessProbe = c.LivenessProbe.DeepCopy()
			get := s.Containers[1].LivenessProbe.HTTPGet
			get.Protocol, get.Scheme = new(corev1.HTTPProtocolHTTP2), corev1.URISchemeHTTPS
		},
		web + "livenessProbe.successThreshold": func(_ *corev1.Pod, _ *corev1.PodSpec,
			c *corev1.Container) {
			c.LivenessProbe.SuccessThreshold = 2
		},
		web + "livenessProbe": func(_ *corev1.Pod, _ *corev1.PodSpec,
			c *corev1.Container) {
			c.LivenessProbe.HTTPGet = nil
		},
		web + "readinessProbe.periodSeconds": func(_ *corev1.Pod, _ *corev1.PodSpec,
			c *corev1.Container) {
			c.ReadinessProbe.PeriodSeconds = -1
		},
		web + "readinessProbe.terminationGracePeriodSeconds": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.ReadinessProbe.TerminationGracePeriodSeconds = new(int64(3))
		},
		web + "startupProbe.grpc.port": func(_ *corev1.Pod, _ *corev1.PodSpec,
			c *corev1.Container) {
			c.StartupProbe.GRPC.Port = 0
		},
		web + "startupProbe.grpc.mode": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.StartupProbe.GRPC.Mode = new(corev1.GRPCProbeMode("tls"))
		},
		web + "lifecycle.postStart.exec.command": func(_ *corev1.Pod, _ *corev1.PodSpec,
			c *corev1.Container) {
			c.Lifecycle.PostStart.Exec.Command = nil
		},
		web + "lifecycle.preStop.sleep.seconds": func(_ *corev1.Pod, _ *corev1.PodSpec,
			c *corev1.Container) {
			c.Lifecycle.PreStop.Sleep.Seconds = 31
		},
		web + "securityContext.allowPrivilegeEscalation": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.SecurityContext.Privileged = new(true)
		},
		web + "securityContext.seccompProfile.localhostProfile": func(_ *corev1.Pod, _ *corev1.PodSpec, c *corev1.Container) {
			c.SecurityContext.SeccompProfile.LocalhostProfile = nil
		},
		"spec.initContainers[1].ports[1].hostPort": func(_ *corev1.Pod, s *corev1.PodSpec, _ *corev1.Container) {
			s.InitContainers[1].Ports = append(s.InitContainers[1].Ports, s.InitContainers[1].Ports[0])
		},
	} {
		t.Run(want, func(t *testing.T) {
			pod := valid(t)
			change(pod, &pod.Spec, &pod.Spec.Containers[0])
			errs := validate(pod)
			for _, e := range errs {
				if e.Field == want {
					return
				}
			}
			t.Errorf("errors: got %v, want one at %s", errs.ToAggregate(), want)
		})
	}
}

func TestCheckReferences(t *testing.T) {
	pod := valid(t)
	all := func(_, name string) bool { return name != "" }
	pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}, {Name: ""}}
	if errs := CheckReferences(pod, all); len(errs) > 0 {
		t.Errorf("all are there: got %v, want no errors", errs)
	}
	errs := CheckReferences(pod, func(kind, name string) bool { return kind != "Secret" || name != "s" })
	var paths []string
	for _, e := range errs {
		paths = append(paths, e.Field)
	}
	want := "spec.containers[0].env[4].valueFrom.secretKeyRef.name spec.containers[0].envFrom[1].secretRef.name " +
		"spec.volumes[3].secret.secretName spec.volumes[5].projected.sources[1].secret.name"
	if got := strings.Join(paths, " "); got != want {
		t.Errorf("the Secret is missed at\n%s, want\n%s", got, want)
	}
	for want, change := range map[string]func(s *corev1.PodSpec){
		"spec.serviceAccountName": func(s *corev1.PodSpec) { s.ServiceAccountName = "a" },
		"spec.serviceAccount":     func(s *corev1.PodSpec) { s.DeprecatedServiceAccount = "a" },
		"spec.volumes[3].secret.secretName": func(s *corev1.PodSpec) {
			s.Volumes[3].Secret.SecretName = ""
		},
		"spec.volumes[0].persistentVolumeClaim": func(s *corev1.PodSpec) {
			s.Volumes[0].VolumeSource = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}
		},
		"spec.volumes[0].csi": func(s *corev1.PodSpec) {
			s.Volumes[0].VolumeSource = corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}
		},
		"spec.volumes[5].projected.sources[0].serviceAccountToken": func(s *corev1.PodSpec) {
			s.Volumes[5].Projected.Sources[0].ServiceAccountToken = &corev1.ServiceAccountTokenProjection{}
		},
	} {
		pod := valid(t)
		change(&pod.Spec)
		if errs := CheckReferences(pod, all); len(errs) != 1 || errs[0].Field != want ||
			errs[0].Type != field.ErrorTypeForbidden {
			t.Errorf("errors: got %v, want one at %s", errs, want)
		}
	}
}
