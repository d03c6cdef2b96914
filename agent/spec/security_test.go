package spec

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// TestRunAs checks the user of the process, with and without runAsNonRoot.
func TestRunAs(t *testing.T) {
	type user struct {
		uid  *int64
		name string
	}
	id := func(n int64) *int64 { return &n }
	for name, c := range map[string]struct {
		pod, container, image *int64
		imageName             string
		want                  user
		nonRootError          string // with runAsNonRoot; empty means it runs all the same
	}{
		"no user set": {
			want:         user{uid: id(0)},
			nonRootError: "container has runAsNonRoot and image will run as root",
		},
		"image": {image: id(5), want: user{uid: id(5)}},
		"image root": {
			image:        id(0),
			want:         user{uid: id(0)},
			nonRootError: "container has runAsNonRoot and image will run as root",
		},
		"image name": {
			imageName:    "bob",
			want:         user{name: "bob"},
			nonRootError: "container has runAsNonRoot and image has non-numeric user (bob), cannot verify user is non-root",
		},
		"image number before name": {image: id(5), imageName: "bob", want: user{uid: id(5)}},
		"image below zero":         {image: id(-1), want: user{uid: id(-1)}, nonRootError: "invalid user id (-1)"},
		"image too large": {
			image:        id(1 << 31),
			want:         user{uid: id(1 << 31)},
			nonRootError: "invalid user id (2147483648)",
		},
		"pod": {pod: id(6), image: id(0), want: user{uid: id(6)}},
		"pod root": {
			pod:          id(0),
			image:        id(5),
			want:         user{uid: id(0)},
			nonRootError: "container's runAsUser breaks non-root policy",
		},
		"container": {pod: id(0), container: id(7), imageName: "root", want: user{uid: id(7)}},
		"container root": {
			pod:          id(7),
			container:    id(0),
			want:         user{uid: id(0)},
			nonRootError: "container's runAsUser breaks non-root policy",
		},
		"largest": {container: id(1<<31 - 1), want: user{uid: id(1<<31 - 1)}},
	} {
		for _, nonRoot := range []*bool{nil, new(false), new(true)} {
			in := testInput()
			in.Image = Image{UID: c.image, Username: c.imageName}
			in.Pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: c.pod, RunAsNonRoot: nonRoot}
			in.Container.SecurityContext = &corev1.SecurityContext{RunAsUser: c.container}
			config, err := Container(in)
			if nonRoot != nil && *nonRoot && c.nonRootError != "" {
				wantReason(t, name, err, "CreateContainerConfigError", c.nonRootError)
				wantReason(t, name, err, "CreateContainerConfigError", `(pod: "p_ns(uid-1)", container: c)`)
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			sc := config.Linux.SecurityContext
			got := user{name: sc.RunAsUsername}
			if sc.RunAsUser != nil {
				got.uid = &sc.RunAsUser.Value
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(user{})); diff != "" {
				t.Errorf("%s: got %s, want none", name, diff)
			}
		}
	}
}

// TestRunAsNonRootOverride checks that runAsNonRoot of the container overrides that of the pod, whether it is true or
// false.
func TestRunAsNonRootOverride(t *testing.T) {
	for _, c := range []struct{ pod, container, fails bool }{{true, false, false}, {false, true, true}} {
		in := testInput()
		in.Pod.Spec.SecurityContext.RunAsNonRoot = &c.pod
		in.Container.SecurityContext = &corev1.SecurityContext{RunAsNonRoot: &c.container}
		if _, err := Container(in); (err != nil) != c.fails {
			t.Errorf("pod %v, container %v: got the error %v, want one: %v", c.pod, c.container, err, c.fails)
		}
	}
}

// TestSecurityFailsClosed checks that an unknown value in a security field is an error. It never falls back to a
// default (CVE-2023-2431).
func TestSecurityFailsClosed(t *testing.T) {
	seccomp := func(kind corev1.SeccompProfileType, file *string) func(*ContainerInput) {
		return func(in *ContainerInput) {
			in.Container.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: kind, LocalhostProfile: file}
		}
	}
	apparmor := func(kind corev1.AppArmorProfileType, name *string) func(*ContainerInput) {
		return func(in *ContainerInput) {
			in.Container.SecurityContext.AppArmorProfile = &corev1.AppArmorProfile{Type: kind, LocalhostProfile: name}
		}
	}
	annotation := func(value string) func(*ContainerInput) {
		return func(in *ContainerInput) {
			in.Pod.Annotations = map[string]string{"container.apparmor.security.beta.kubernetes.io/c": value}
		}
	}
	for name, change := range map[string]func(*ContainerInput){
		"seccomp: no file":          seccomp("Localhost", nil),
		"seccomp: empty file":       seccomp("Localhost", new("")),
		"seccomp: absolute":         seccomp("Localhost", new("/etc/passwd")),
		"seccomp: above":            seccomp("Localhost", new("a/../../b")),
		"seccomp: the directory":    seccomp("Localhost", new("./.")),
		"seccomp: a directory":      seccomp("Localhost", new("a/")),
		"seccomp: NUL":              seccomp("Localhost", new("a\x00")),
		"seccomp: no type":          seccomp("", nil),
		"seccomp: unknown type":     seccomp("runtime/default", nil),
		"seccomp: file for default": seccomp("RuntimeDefault", new("a")),
		"seccomp: file for none":    seccomp("Unconfined", new("a")),
		"seccomp: pod": func(in *ContainerInput) {
			in.Pod.Spec.SecurityContext.SeccompProfile = &corev1.SeccompProfile{}
		},
		"apparmor: no name":       apparmor("Localhost", nil),
		"apparmor: empty name":    apparmor("Localhost", new("")),
		"apparmor: blanks":        apparmor("Localhost", new(" a")),
		"apparmor: no type":       apparmor("", nil),
		"apparmor: unknown type":  apparmor("Some", nil),
		"apparmor: name for none": apparmor("Unconfined", new("a")),
		"apparmor: annotation":    annotation("unconfied"),
		"apparmor: no name noted": annotation("localhost/"),
		"apparmor: pod": func(in *ContainerInput) {
			in.Pod.Spec.SecurityContext.AppArmorProfile = &corev1.AppArmorProfile{}
		},
		"procMount": func(in *ContainerInput) {
			in.Container.SecurityContext.ProcMount = new(corev1.ProcMountType("unmasked"))
		},
		"groups policy": func(in *ContainerInput) {
			in.Pod.Spec.SecurityContext.SupplementalGroupsPolicy = new(corev1.SupplementalGroupsPolicy("strict"))
		},
		"user below zero":    func(in *ContainerInput) { in.Container.SecurityContext.RunAsUser = new(int64(-1)) },
		"user too large":     func(in *ContainerInput) { in.Container.SecurityContext.RunAsUser = new(int64(1) << 31) },
		"group below zero":   func(in *ContainerInput) { in.Container.SecurityContext.RunAsGroup = new(int64(-1)) },
		"pod group":          func(in *ContainerInput) { in.Pod.Spec.SecurityContext.RunAsGroup = new(int64(-1)) },
		"fsGroup":            func(in *ContainerInput) { in.Pod.Spec.SecurityContext.FSGroup = new(int64(-1)) },
		"supplemental group": func(in *ContainerInput) { in.Pod.Spec.SecurityContext.SupplementalGroups = []int64{1, -1} },
		"empty capability": func(in *ContainerInput) {
			in.Container.SecurityContext.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{""}}
		},
		"malformed capability": func(in *ContainerInput) {
			in.Container.SecurityContext.Capabilities = &corev1.Capabilities{Add: []corev1.Capability{"NET_RAW,ALL"}}
		},
		"no user namespace": func(in *ContainerInput) { in.Pod.Spec.HostUsers = new(false) },
		"user namespace is host's": func(in *ContainerInput) {
			in.Pod.Spec.HostUsers, in.UserNS = new(false), []*runtimeapi.IDMapping{{Length: 65536}}
		},
		"user namespace is empty": func(in *ContainerInput) {
			in.Pod.Spec.HostUsers, in.UserNS = new(false), []*runtimeapi.IDMapping{{HostId: 65536}}
		},
		"user namespace, no root": func(in *ContainerInput) {
			in.Pod.Spec.HostUsers, in.UserNS = new(false), []*runtimeapi.IDMapping{{ContainerId: 1,
				HostId: 65536, Length: 10}}
		},
		"stop signal": func(in *ContainerInput) {
			in.Container.Lifecycle = &corev1.Lifecycle{StopSignal: new(corev1.Signal("TERM"))}
		},
		"stop signal in CRI terms": func(in *ContainerInput) {
			in.Container.Lifecycle = &corev1.Lifecycle{StopSignal: new(corev1.Signal("SIGRTMINPLUS1"))}
		},
		"no stop signal": func(in *ContainerInput) {
			in.Container.Lifecycle = &corev1.Lifecycle{StopSignal: new(corev1.Signal("RUNTIME_DEFAULT"))}
		},
		"port of no kind": func(in *ContainerInput) {
			in.Container.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{
				TCPSocket: &corev1.TCPSocketAction{Port: intstr.IntOrString{Type: 7}}}}
		},
		"container name": func(in *ContainerInput) { in.Container.Name = "../c" },
		"pod name":       func(in *ContainerInput) { in.Pod.Name = "a/b" },
		"namespace":      func(in *ContainerInput) { in.Pod.Namespace = ".." },
		"UID":            func(in *ContainerInput) { in.Pod.UID = "../x" },
	} {
		in := testInput()
		in.Container.SecurityContext = &corev1.SecurityContext{}
		change(in)
		config, err := Container(in)
		if config != nil {
			t.Errorf("%s: got a configuration, want an error", name)
		}
		wantReason(t, name, err, "CreateContainerConfigError", "")
	}
}

func TestSandboxFailsClosed(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"pod name":       func(p *corev1.Pod) { p.Name = "" },
		"namespace":      func(p *corev1.Pod) { p.Namespace = "a.b" },
		"UID":            func(p *corev1.Pod) { p.UID = "" },
		"dnsPolicy":      func(p *corev1.Pod) { p.Spec.DNSPolicy = "x" },
		"hostname":       func(p *corev1.Pod) { p.Spec.Hostname = "A" },
		"user namespace": func(p *corev1.Pod) { p.Spec.HostUsers = new(false) },
		"user":           func(p *corev1.Pod) { p.Spec.SecurityContext.RunAsUser = new(int64(-1)) },
		"groups policy": func(p *corev1.Pod) {
			p.Spec.SecurityContext.SupplementalGroupsPolicy = new(corev1.SupplementalGroupsPolicy("x"))
		},
		"sysctl without key": func(p *corev1.Pod) { p.Spec.SecurityContext.Sysctls = []corev1.Sysctl{{Value: "1"}} },
		"sysctl above": func(p *corev1.Pod) {
			p.Spec.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "net/../kernel"}}
		},
		"port": func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 65536}} },
		"host port": func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 1, HostPort: -1}}
		},
		"protocol": func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Protocol: "ICMP"}} },
	} {
		pod := testPod()
		change(pod)
		config, _, err := Sandbox(&SandboxInput{Node: testNode(nodeFacts{}), Pod: pod})
		if config != nil {
			t.Errorf("%s: got a configuration, want an error", name)
		}
		wantReason(t, name, err, "ConfigPodSandboxError", "")
	}
}

// TestOnlyRequestedCapabilities checks that no container has a capability that its pod does not ask for, such as
// NET_RAW, with which it could send router advertisements (CVE-2020-10749).
func TestOnlyRequestedCapabilities(t *testing.T) {
	for name, c := range map[string]struct{ requested, want *corev1.Capabilities }{
		"none": {nil, &corev1.Capabilities{}},
		"all dropped": {&corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			&corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
		"one added": {&corev1.Capabilities{Add: []corev1.Capability{"CHOWN"}},
			&corev1.Capabilities{Add: []corev1.Capability{"CHOWN"}}},
	} {
		in := testInput()
		in.Container.SecurityContext = &corev1.SecurityContext{Capabilities: c.requested}
		config, err := Container(in)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got corev1.Capabilities
		for _, add := range config.Linux.SecurityContext.GetCapabilities().GetAddCapabilities() {
			got.Add = append(got.Add, corev1.Capability(add))
		}
		for _, drop := range config.Linux.SecurityContext.GetCapabilities().GetDropCapabilities() {
			got.Drop = append(got.Drop, corev1.Capability(drop))
		}
		if !slices.Equal(got.Add, c.want.Add) || !slices.Equal(got.Drop, c.want.Drop) {
			t.Errorf("%s: got %v, want %v", name, got, *c.want)
		}
	}
}

func TestPortBounds(t *testing.T) {
	pod := testPod()
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 65535, HostPort: 65535}}
	if got, err := portMappings(pod); err != nil || len(got) != 1 || got[0].HostPort != 65535 {
		t.Errorf("got %v %v, want one", got, err)
	}
}

// TestSandboxWithoutSecurityContext checks that without a security context the sandbox still shares the namespaces
// that the pod requests.
func TestSandboxWithoutSecurityContext(t *testing.T) {
	pod := testPod()
	pod.Spec.SecurityContext, pod.Spec.HostNetwork = nil, true
	config, _, err := Sandbox(&SandboxInput{Node: testNode(nodeFacts{}), Pod: pod})
	if err != nil || config.Linux.SecurityContext.NamespaceOptions.Network != runtimeapi.NamespaceMode_NODE {
		t.Errorf("got %v, %v, want the network of the node", config, err)
	}
	in := testInput()
	in.Pod.Spec.SecurityContext = nil
	if _, err := Container(in); err != nil {
		t.Error(err)
	}
}

// TestPrivilegedInAnyKind checks that a privileged container of any kind makes the sandbox privileged (the class of
// CVE-2023-2727).
func TestPrivilegedInAnyKind(t *testing.T) {
	sc := &corev1.SecurityContext{Privileged: new(true)}
	for name, change := range map[string]func(*corev1.Pod){
		"init": func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "x", SecurityContext: sc}} },
		"app":  func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext = sc },
		"ephemeral": func(p *corev1.Pod) {
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name:            "x",
				SecurityContext: sc,
			}}}
		},
		"none": func(*corev1.Pod) {},
	} {
		pod := testPod()
		change(pod)
		config, _, err := Sandbox(&SandboxInput{Node: testNode(nodeFacts{}), Pod: pod})
		if err != nil || config.Linux.SecurityContext.Privileged != (name != "none") {
			t.Errorf("%s: got %v, %v, want privileged unless no container is", name, config, err)
		}
	}
}

func TestNamespaces(t *testing.T) {
	const pod, node, container, target = runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_NODE,
		runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_TARGET
	for name, c := range map[string]struct {
		change  func(*corev1.Pod)
		pid     runtimeapi.NamespaceMode
		network runtimeapi.NamespaceMode
		ipc     runtimeapi.NamespaceMode
		user    runtimeapi.NamespaceMode
		debug   runtimeapi.NamespaceMode // pid of an ephemeral container with a target
	}{
		"default":      {func(p *corev1.Pod) {}, container, pod, pod, node, target},
		"host network": {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, container, node, pod, node, target},
		"host IPC":     {func(p *corev1.Pod) { p.Spec.HostIPC = true }, container, pod, node, node, target},
		"host PID":     {func(p *corev1.Pod) { p.Spec.HostPID = true }, node, pod, pod, node, node},
		"shared PID":   {func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) }, pod, pod, pod, node, pod},
		"not shared": {func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(false) }, container, pod, pod, node,
			target},
		"host over share": {func(p *corev1.Pod) { p.Spec.ShareProcessNamespace, p.Spec.HostPID = new(true), true }, node, pod,
			pod, node, node},
		"host users": {func(p *corev1.Pod) { p.Spec.HostUsers = new(true) }, container, pod, pod, node, target},
		"own users":  {func(p *corev1.Pod) { p.Spec.HostUsers = new(false) }, container, pod, pod, pod, target},
	} {
		in := testInput()
		in.UserNS = []*runtimeapi.IDMapping{{HostId: 65536, Length: 65536}}
		c.change(in.Pod)
		config, err := Container(in)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		n := config.Linux.SecurityContext.NamespaceOptions
		if n.Pid != c.pid || n.Network != c.network || n.Ipc != c.ipc || n.UsernsOptions.Mode != c.user {
			t.Errorf("%s: got %v, want %+v", name, n, c)
		}
		in.Pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}, TargetContainerName: "c",
		}}
		_, in.Container = podutil.Container(&in.Pod.Spec, "debug")
		for _, id := range []string{"", "id"} {
			in.TargetID = id
			config, err = Container(in)
			if id == "" && c.debug == target {
				wantReason(t, name+": target not running", err, "CreateContainerConfigError", "unable to find target container c")
				continue
			}
			if err != nil {
				t.Errorf("%s: debug container: %v", name, err)
				continue
			}
			n = config.Linux.SecurityContext.NamespaceOptions
			if n.Pid != c.debug || (n.TargetId == "id") != (c.debug == target) {
				t.Errorf("%s: debug container: got %v", name, n)
			}
		}
	}
}

func TestMaskedPaths(t *testing.T) {
	in := testInput()
	in.Node.ThermalThrottlePaths = []string{"/sys/devices/system/cpu/cpu0/thermal_throttle"}
	for _, mode := range []*corev1.ProcMountType{nil, new(corev1.DefaultProcMount), new(corev1.UnmaskedProcMount)} {
		in.Container.SecurityContext = &corev1.SecurityContext{ProcMount: mode}
		config, err := Container(in)
		if err != nil {
			t.Fatal(err)
		}
		sc := config.Linux.SecurityContext
		masked := strings.HasSuffix(strings.Join(sc.MaskedPaths, " "),
			"/sys/devices/virtual/powercap /sys/devices/system/cpu/cpu0/thermal_throttle")
		unmasked := len(sc.MaskedPaths) == 0 && len(sc.ReadonlyPaths) == 0
		if wantUnmasked := mode != nil && *mode == corev1.UnmaskedProcMount; unmasked != wantUnmasked ||
			masked == wantUnmasked {
			t.Errorf("procMount %v: got %v, want masked paths unless it is Unmasked", mode, sc)
		}
	}
	if len(maskedPaths) != 12 {
		t.Error("got a modified list, want it unchanged")
	}
}

func TestAppArmorSources(t *testing.T) {
	const key = "container.apparmor.security.beta.kubernetes.io/c"
	profile := func(kind corev1.AppArmorProfileType) *corev1.AppArmorProfile {
		return &corev1.AppArmorProfile{Type: kind}
	}
	for name, c := range map[string]struct {
		container, pod *corev1.AppArmorProfile
		annotations    map[string]string
		want           string
	}{
		"none": {want: ""},
		"pod":  {pod: profile("RuntimeDefault"), want: "runtime/default"},
		"annotation over pod": {
			pod:         profile("RuntimeDefault"),
			annotations: map[string]string{key: "unconfined"},
			want:        "unconfined",
		},
		"empty annotation": {
			pod:         profile("RuntimeDefault"),
			annotations: map[string]string{key: ""},
			want:        "runtime/default",
		},
		"annotation of another": {annotations: map[string]string{key + "2": "unconfined"}, want: ""},
		"annotation default":    {annotations: map[string]string{key: "runtime/default"}, want: "runtime/default"},
		"annotation profile":    {annotations: map[string]string{key: "localhost/a/b"}, want: "localhost/a/b"},
		"container over annotation": {
			container:   profile("Unconfined"),
			annotations: map[string]string{key: "localhost/a"},
			want:        "unconfined",
		},
	} {
		pod := testPod()
		pod.Annotations = c.annotations
		pod.Spec.SecurityContext.AppArmorProfile = c.pod
		pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{AppArmorProfile: c.container}
		got, text, err := apparmorProfile(pod, &pod.Spec.Containers[0])
		if err != nil || text != c.want || (got == nil) != (text == "") {
			t.Errorf("%s: got %v, %q, %v, want %q", name, got, text, err, c.want)
		}
	}
	pod := testPod()
	pod.Spec.SecurityContext = nil
	if got, _, err := apparmorProfile(pod, &pod.Spec.Containers[0]); got != nil || err != nil {
		t.Errorf("got %v, %v, want no profile", got, err)
	}
}
