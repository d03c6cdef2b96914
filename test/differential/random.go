package main

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/test/testbed"
)

// randomPods returns n pods with the seeds from seed on. A seed always makes the same pod. The pods combine features
// that the corpus has one by one. Their programs decide what they do by files of the pod and not by time, so that two
// agents see the same; and all come to rest: they end, run on, or wait for something that never comes.
func randomPods(seed uint64, n int) (pods []*corev1.Pod) {
	for i := range uint64(n) {
		pods = append(pods, randomPod(seed+i))
	}
	return pods
}

func randomPod(seed uint64) *corev1.Pod {
	m := &podMaker{Rand: rand.New(rand.NewPCG(seed, 0)), pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:        fmt.Sprint("random-", seed),
			Annotations: map[string]string{"until": "rest", "note": "a value"},
			Labels:      map[string]string{"app": "random"},
		},
	}}
	m.podFields()
	m.volumes()
	for i := range m.IntN(4) {
		m.initContainer(fmt.Sprint("init-", i))
	}
	for i := range 1 + m.IntN(3) {
		m.appContainer(fmt.Sprint("app-", i))
	}
	if m.oneIn(5) {
		m.spoil()
	}
	return m.pod
}

// podMaker makes one pod.
type podMaker struct {
	*rand.Rand
	pod *corev1.Pod
}

func (m *podMaker) oneIn(n int) bool { return m.IntN(n) == 0 }

// one returns one of the values.
func one[T any](m *podMaker, values ...T) T { return values[m.IntN(len(values))] }

func quantities(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

func (m *podMaker) podFields() {
	spec := &m.pod.Spec
	spec.RestartPolicy = one(m, corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)
	spec.TerminationGracePeriodSeconds = new(one(m, int64(2), 3, 5))
	if m.oneIn(3) {
		spec.AutomountServiceAccountToken = new(false)
	}
	if m.oneIn(4) {
		spec.EnableServiceLinks = new(false)
	}
	if m.oneIn(4) {
		spec.ShareProcessNamespace = new(true)
	}
	if m.oneIn(6) {
		spec.HostPID = spec.ShareProcessNamespace == nil
	}
	if m.oneIn(6) {
		spec.HostIPC = true
	}
	if m.oneIn(4) {
		spec.Hostname = "host"
		spec.Subdomain = one(m, "", "sub")
		spec.SetHostnameAsFQDN = one(m, nil, new(false), new(true))
	}
	if m.oneIn(4) {
		spec.HostAliases = []corev1.HostAlias{{IP: "10.1.2.3", Hostnames: []string{"a.example", "b"}}}
	}
	if m.oneIn(3) {
		spec.DNSPolicy = one(m, corev1.DNSDefault, corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet, corev1.DNSNone)
		spec.DNSConfig = &corev1.PodDNSConfig{
			Nameservers: []string{"10.9.9.9"},
			Searches:    []string{"x.example"},
			Options:     []corev1.PodDNSConfigOption{{Name: "ndots", Value: new("3")}, {Name: "edns0"}},
		}
	}
	if m.oneIn(6) {
		spec.Resources = &corev1.ResourceRequirements{
			Requests: quantities("cpu", "100m", "memory", "200Mi"),
			Limits:   quantities("cpu", "2", "memory", "600Mi"),
		}
	}
	if m.oneIn(8) {
		spec.RuntimeClassName = new("heavy")
	}
	m.podSecurity()
}

func (m *podMaker) podSecurity() {
	sc := &corev1.PodSecurityContext{}
	m.pod.Spec.SecurityContext = sc
	if m.oneIn(4) {
		sc.RunAsUser = new(one(m, int64(0), 1000))
		sc.RunAsGroup = one(m, nil, new(int64(1000)))
	}
	if m.oneIn(3) {
		sc.FSGroup = new(int64(2000))
		sc.FSGroupChangePolicy = one(m, nil, new(corev1.FSGroupChangeOnRootMismatch))
	}
	if m.oneIn(4) {
		sc.SupplementalGroups = []int64{3000, 3001}
		sc.SupplementalGroupsPolicy = one(m, nil, new(corev1.SupplementalGroupsPolicyMerge))
	}
	if m.oneIn(4) {
		sc.SeccompProfile = &corev1.SeccompProfile{
			Type: one(m, corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined),
		}
	}
	if m.oneIn(5) && !m.pod.Spec.HostIPC {
		sc.Sysctls = []corev1.Sysctl{{Name: "kernel.shm_rmid_forced", Value: "1"}}
	}
}

// dataDir is where all containers see the volume "data", which keeps what a program remembers beyond its restarts.
const dataDir = "/data"

func (m *podMaker) volumes() {
	empty := &corev1.EmptyDirVolumeSource{}
	if m.oneIn(4) {
		empty.Medium = corev1.StorageMediumMemory
	}
	if m.oneIn(3) {
		empty.SizeLimit = new(resource.MustParse("16Mi"))
	}
	m.volume("data", corev1.VolumeSource{EmptyDir: empty})
	settings := corev1.LocalObjectReference{Name: "settings"}
	items := []corev1.KeyToPath{{Key: "color", Path: "deep/color", Mode: new(int32(0o600))}}
	mode := one(m, nil, new(int32(0o440)))
	fields := []corev1.DownwardAPIVolumeFile{
		{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
		{Path: "note", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['note']"}},
	}
	sources := map[string]corev1.VolumeSource{
		"config": {ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: settings, DefaultMode: mode, Items: one(m, nil, items),
		}},
		"absent": {ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "no-such-map"}, Optional: new(true),
		}},
		"secret": {Secret: &corev1.SecretVolumeSource{SecretName: "secret", DefaultMode: mode}},
		"fields": {DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: fields, DefaultMode: mode}},
		"mixed": {Projected: &corev1.ProjectedVolumeSource{DefaultMode: mode, Sources: []corev1.VolumeProjection{
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: settings, Items: items}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: fields}},
		}}},
	}
	for _, name := range []string{"config", "absent", "secret", "fields", "mixed"} {
		if m.oneIn(4) {
			m.volume(name, sources[name])
		}
	}
}

func (m *podMaker) volume(name string, source corev1.VolumeSource) {
	m.pod.Spec.Volumes = append(m.pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
}

// failsFirst is the beginning of a program that exits with a code in its first n instances.
func failsFirst(name string, n, code int) string {
	file := dataDir + "/" + name
	return fmt.Sprintf("n=$(cat %s 2>/dev/null || echo 0); echo $((n+1)) > %s; "+
		"if [ $n -lt %d ]; then sleep 4; exit %d; fi; ", file, file, n, code)
}

// livesOn is a program that runs until a signal ends it.
func (m *podMaker) livesOn() string {
	if m.oneIn(4) {
		return "trap '' TERM; while :; do sleep 1; done" // it is killed
	}
	return fmt.Sprintf("trap 'exit %d' TERM; sleep 3600 & wait", one(m, 0, 0, 3, 143))
}

func (m *podMaker) initContainer(name string) {
	c := m.container(name)
	var first string
	if m.pod.Spec.RestartPolicy != corev1.RestartPolicyNever && m.oneIn(3) {
		first = failsFirst(name, 1, one(m, 1, 7))
	}
	if m.oneIn(2) {
		c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		first += m.probes(c)
		c.Command = []string{"sh", "-c", first + m.livesOn()}
		m.hooks(c)
	} else {
		code := 0
		if m.pod.Spec.RestartPolicy == corev1.RestartPolicyNever && m.oneIn(6) {
			code = 5
		}
		c.Command = []string{"sh", "-c", fmt.Sprint(first, m.message(c), "sleep 4; exit ", code)}
	}
	m.pod.Spec.InitContainers = append(m.pod.Spec.InitContainers, *c)
}

// appContainer adds a container that ends or lives on, perhaps after some instances that fail.
func (m *podMaker) appContainer(name string) {
	c := m.container(name)
	policy := m.pod.Spec.RestartPolicy
	restarts, code := m.IntN(3), one(m, 1, 42)
	switch {
	case policy != corev1.RestartPolicyNever:
	case m.oneIn(3):
		c.RestartPolicy = new(corev1.ContainerRestartPolicyNever)
		c.RestartPolicyRules = []corev1.ContainerRestartRule{{
			Action: corev1.ContainerRestartRuleActionRestart,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
				Operator: one(m, corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn),
				Values:   []int32{42, 43},
			},
		}}
		if c.RestartPolicyRules[0].ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpNotIn {
			// The container would be restarted for ever once it succeeds.
			c.RestartPolicyRules[0].ExitCodes.Values = []int32{0, 3, 137, 143}
		}
	case m.oneIn(3):
		c.RestartPolicy = new(corev1.ContainerRestartPolicyOnFailure)
	default:
		restarts = 0
	}
	program := failsFirst(name, restarts, code)
	if policy == corev1.RestartPolicyAlways || m.oneIn(3) {
		program += m.probes(c) + m.message(c) + m.livesOn()
	} else {
		end := 0
		if c.RestartPolicy == nil && policy == corev1.RestartPolicyNever {
			end = one(m, 0, 0, 3)
		}
		program += fmt.Sprint(m.message(c), "sleep ", one(m, 4, 6), "; exit ", end)
	}
	m.hooks(c)
	c.Command = []string{"sh", "-c", program}
	m.pod.Spec.Containers = append(m.pod.Spec.Containers, *c)
}

// container returns a container with all fields that do not say what it does.
func (m *podMaker) container(name string) *corev1.Container {
	c := &corev1.Container{Name: name, Image: testbed.BusyboxImage}
	for _, v := range m.pod.Spec.Volumes {
		if v.Name == "data" {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: dataDir})
		} else if m.oneIn(2) {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{
				Name: v.Name, MountPath: "/mnt/" + v.Name, ReadOnly: m.oneIn(2),
			})
		}
	}
	if m.oneIn(4) {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{
			Name: "data", MountPath: "/mnt/sub", SubPath: one(m, "a", "a/b"),
		})
	}
	m.environment(c)
	switch m.IntN(10) { // the requests of all pods that run at a time fit a small node
	case 0, 1, 2:
		c.Resources.Requests = quantities("cpu", "10m", "memory", "20Mi")
	case 3, 4, 5:
		c.Resources.Requests = quantities("cpu", "10m")
		c.Resources.Limits = quantities("cpu", "500m", "memory", "50Mi")
	case 6:
		c.Resources.Limits = quantities("cpu", "100m", "memory", "50Mi")
	}
	if m.oneIn(5) {
		c.WorkingDir = "/tmp"
	}
	m.security(c)
	return c
}

func (m *podMaker) environment(c *corev1.Container) {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: path},
		}}
	}
	limit := func(name, resource string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
			ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: resource},
		}}
	}
	settings := corev1.LocalObjectReference{Name: "settings"}
	for _, v := range []corev1.EnvVar{
		{Name: "A", Value: "a"},
		{Name: "B", Value: "$(A)-$(NOT)-$$(A)"},
		{Name: "A", Value: "$(B)"},
		field("NAME", "metadata.name"),
		field("LABEL", "metadata.labels['app']"),
		field("ACCOUNT", "spec.serviceAccountName"),
		field("NODE", "spec.nodeName"),
		limit("CPU", "limits.cpu"),
		limit("MEMORY", "limits.memory"),
		limit("STORAGE", "requests.ephemeral-storage"),
		{Name: "COLOR", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: settings, Key: "color",
		}}},
		{Name: "MAYBE", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: settings, Key: "no-such-key", Optional: new(true),
		}}},
	} {
		if m.oneIn(4) {
			c.Env = append(c.Env, v)
		}
	}
	if m.oneIn(4) {
		c.EnvFrom = []corev1.EnvFromSource{
			{Prefix: one(m, "", "P_"), ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: settings}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "secret"}}},
		}
	}
}

func (m *podMaker) security(c *corev1.Container) {
	if !m.oneIn(2) {
		return
	}
	sc := &corev1.SecurityContext{}
	c.SecurityContext = sc
	if m.oneIn(3) {
		sc.RunAsUser = new(one(m, int64(0), 1001))
	}
	if m.oneIn(3) {
		sc.ReadOnlyRootFilesystem = new(true)
	}
	if m.oneIn(3) {
		sc.Capabilities = &corev1.Capabilities{
			Add:  []corev1.Capability{one(m, corev1.Capability("NET_ADMIN"), "SYS_TIME")},
			Drop: []corev1.Capability{one(m, corev1.Capability("ALL"), "MKNOD")},
		}
	}
	switch m.IntN(4) {
	case 0:
		sc.AllowPrivilegeEscalation = new(false)
	case 1:
		sc.Privileged = new(true)
	}
	if m.oneIn(4) {
		sc.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	}
}

// message gives a container a message of its end, and returns what its program does for it.
func (m *podMaker) message(c *corev1.Container) string {
	switch m.IntN(4) {
	case 0:
		return "echo the end > /dev/termination-log; "
	case 1:
		c.TerminationMessagePath = "/dev/last-words"
		return "echo another end > /dev/last-words; "
	case 2:
		c.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
		return "echo from the log; "
	}
	return ""
}

// probes gives a container probes, and returns what its program does for them. A file in the container's own file
// system would not do: that can be read-only.
func (m *podMaker) probes(c *corev1.Container) (program string) {
	file := func(name string) string { return dataDir + "/" + c.Name + "-" + name }
	probe := func(script string, failures int32) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler:     corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", script}}},
			PeriodSeconds:    1,
			TimeoutSeconds:   5,
			FailureThreshold: failures,
		}
	}
	if m.oneIn(3) {
		c.StartupProbe = probe("[ -f "+file("up")+" ]", 60)
		program += "(sleep 2; touch " + file("up") + ") & "
	}
	if m.oneIn(3) {
		c.ReadinessProbe = probe(one(m, "true", "true", "false"), 3)
	}
	if m.oneIn(4) {
		c.LivenessProbe = probe("true", 3)
		if c.RestartPolicy == nil && m.pod.Spec.RestartPolicy == corev1.RestartPolicyAlways && m.oneIn(2) {
			c.LivenessProbe = probe("[ -f "+file("second")+" ]", 3)
			c.LivenessProbe.InitialDelaySeconds = 3
			program += fmt.Sprintf("if [ -f %s ]; then touch %s; fi; touch %s; ", file("first"), file("second"), file("first"))
		}
	}
	return program
}

// hooks gives a container that is ready for it hooks.
func (m *podMaker) hooks(c *corev1.Container) {
	hook := func(script string) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", script}}}
	}
	if !m.oneIn(3) {
		return
	}
	c.Lifecycle = &corev1.Lifecycle{}
	if m.oneIn(2) {
		c.Lifecycle.PreStop = hook(one(m, "true", "sleep 1", "sleep 60", "exit 1"))
		if m.oneIn(4) {
			c.Lifecycle.PreStop = &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}
		}
	}
	if m.oneIn(2) {
		c.Lifecycle.PostStart = hook("true") // each instance runs for longer, also on a busy machine
	}
	if *c.Lifecycle == (corev1.Lifecycle{}) {
		c.Lifecycle = nil
	}
}

// spoil makes the pod wait for something that never comes, or has the node refuse or end it. The pod's name says what.
func (m *podMaker) spoil() {
	spec := &m.pod.Spec
	c := &spec.Containers[m.IntN(len(spec.Containers))]
	spoils := []struct {
		name string
		do   func()
	}{
		{"no-secret", func() {
			m.volume("missing", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "no-such-secret"}})
		}},
		{"no-key", func() {
			c.Env = append(c.Env, corev1.EnvVar{Name: "MISSING", ValueFrom: &corev1.EnvVarSource{
				SecretKeyRef: &corev1.SecretKeySelector{
					LocalObjectReference: corev1.LocalObjectReference{Name: "secret"}, Key: "no-such-key",
				},
			}})
		}},
		{"no-image", func() { c.Image, c.ImagePullPolicy = "no-such-image.example/x:1", corev1.PullNever }},
		{"root", func() {
			if c.SecurityContext == nil {
				c.SecurityContext = &corev1.SecurityContext{}
			}
			c.SecurityContext.RunAsUser, spec.SecurityContext.RunAsUser = nil, nil
			c.SecurityContext.RunAsNonRoot = new(true)
		}},
		{"too-large", func() {
			c.Resources.Requests = quantities("cpu", "1k")
			c.Resources.Limits, spec.Resources = nil, nil
		}},
		{"elsewhere", func() { spec.NodeSelector = map[string]string{"no-such-label": "x"} }},
		{"late", func() { spec.ActiveDeadlineSeconds = new(int64(40)) }},
		{"sysctl", func() {
			spec.HostIPC = false
			spec.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "kernel.msgmax", Value: "65536"}}
		}},
		{"no-variable", func() {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{
				Name: "data", MountPath: "/mnt/expr", SubPathExpr: "$(NO_SUCH_VARIABLE)",
			})
		}},
	}
	spoil := spoils[m.IntN(len(spoils))]
	spoil.do()
	m.pod.Name += "-" + spoil.name
}
