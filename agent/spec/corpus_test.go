package spec

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

// facts are the inputs besides the pod that a corpus file can set, in a document of kind Facts.
type facts struct {
	Attempt           uint32
	PodIPs            []string
	ImageUID          *int64
	ImageUser         string
	UserNS            uint32 // first host ID of a range of 65536
	Target            string
	RecursiveReadOnly bool
	ExtraGroups       []int64

	CDI              []string
	DeviceEnv        string            // NAME=value
	DeviceMount      string            // host:container
	Device           string            // host:container
	DeviceAnnotation string            // key=value
	EnvFiles         map[string]string // volume/path: content
	Node             nodeFacts
}

type nodeFacts struct {
	CgroupV1, Cgroupfs, Flat             bool
	CgroupRoot                           string
	NoClusterDNS, NoResolvConf           bool
	SeccompDefault, SELinux              bool
	NoQuota, SingleProcessOOMKill        bool
	QuotaPeriodMillis                    int64
	SwapController, LimitedSwap          bool
	MemoryQoS                            string // none or tiered
	HostIPs, Nameservers, Search, Option []string
}

// world is the parsed content of one corpus file.
type world struct {
	name    string
	facts   facts
	node    *Node
	pod     *corev1.Pod
	objects Objects
}

func testNode(f nodeFacts) *Node {
	n := &Node{
		HostIPs:    []string{"192.168.1.10"},
		PodLogsDir: "/var/log/pods",
		PodsDir:    "/var/lib/kubelet/pods",
		NodeDNS: NodeDNS{
			ClusterDNS:    []string{"10.96.0.10"},
			ClusterDomain: "cluster.local",
			Resolv: ResolvConf{
				Nameservers: []string{"192.168.1.1"},
				Search:      []string{"example.com"},
				Options:     []string{"edns0"},
			},
			NoResolvConf: f.NoResolvConf,
		},
		SeccompDir:     "/var/lib/kubelet/seccomp",
		SeccompDefault: f.SeccompDefault,
		SELinux:        f.SELinux,
		Cgroups:        Cgroups{Root: "/", Systemd: !f.Cgroupfs, Flat: f.Flat},
		CgroupV2:       !f.CgroupV1,
		HugepageSizes:  []string{"2MB", "1GB"},
		Limits: Limits{
			CPUCFSQuota:          !f.NoQuota,
			CPUCFSQuotaPeriod:    time.Duration(f.QuotaPeriodMillis) * time.Millisecond,
			SingleProcessOOMKill: f.SingleProcessOOMKill,
		},
		Swap:        Swap{Controller: f.SwapController, Limited: f.LimitedSwap, Capacity: 4 << 30},
		Capacity:    list("8", "8Gi"),
		Allocatable: list("7500m", "7Gi"),
	}
	n.Allocatable[corev1.ResourceEphemeralStorage] = resource.MustParse("50Gi")
	if f.NoClusterDNS {
		n.ClusterDNS = nil
	}
	if f.NoResolvConf {
		n.Resolv = ResolvConf{}
	}
	if f.CgroupRoot != "" {
		n.Cgroups.Root = f.CgroupRoot
	}
	if f.HostIPs != nil {
		n.HostIPs = f.HostIPs
	}
	if f.MemoryQoS != "" {
		n.MemoryQoS = &MemoryQoS{ThrottlingFactor: 0.9, Tiered: f.MemoryQoS == "tiered", PageSize: 4096}
	}
	return n
}

func list(cpu, memory string) corev1.ResourceList {
	out := corev1.ResourceList{}
	if cpu != "" {
		out[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		out[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	return out
}

// corpus reads testdata/*.yaml.
func corpus(t *testing.T) []*world {
	t.Helper()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("read the corpus: got no files, %v, want some", err)
	}
	var out []*world
	for _, file := range files {
		out = append(out, readWorld(t, file))
	}
	return out
}

func readWorld(t *testing.T, file string) *world {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		name:    strings.TrimSuffix(filepath.Base(file), ".yaml"),
		facts:   facts{PodIPs: []string{"10.244.0.7"}},
		objects: Objects{ConfigMaps: map[string]*corev1.ConfigMap{}, Secrets: map[string]*corev1.Secret{}},
	}
	for doc := range bytes.SplitSeq(content, []byte("\n---\n")) {
		w.read(t, file, doc)
	}
	if w.pod == nil {
		t.Fatalf("%s: got no pod, want one", file)
	}
	w.node = testNode(w.facts.Node)
	w.objects.EnvFiles = map[EnvFile][]byte{}
	for name, text := range w.facts.EnvFiles {
		volume, path, _ := strings.Cut(name, "/")
		w.objects.EnvFiles[EnvFile{Volume: volume, Path: path}] = []byte(text)
	}
	return w
}

func (w *world) read(t *testing.T, file string, doc []byte) {
	t.Helper()
	var kind struct{ Kind string }
	into := func(v any) {
		if err := yaml.UnmarshalStrict(doc, v); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	if err := yaml.Unmarshal(doc, &kind); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	switch kind.Kind {
	case "Facts":
		into(&struct {
			Kind string
			*facts
		}{facts: &w.facts})
	case "ConfigMap":
		v := &corev1.ConfigMap{}
		into(v)
		w.objects.ConfigMaps[v.Name] = v
	case "Secret":
		v := &corev1.Secret{}
		into(v)
		w.objects.Secrets[v.Name] = v
	case "Service":
		v := &corev1.Service{}
		into(v)
		w.objects.Services = append(w.objects.Services, v)
	case "Pod":
		w.pod = &corev1.Pod{}
		into(w.pod)
		setDefaults(w.pod)
	default:
		t.Fatalf("%s: got kind %q, want one of those above", file, kind.Kind)
	}
}

// setDefaults sets the defaults of the API server that affect these tests.
func setDefaults(pod *corev1.Pod) {
	if pod.Namespace == "" {
		pod.Namespace = "default"
	}
	if pod.UID == "" {
		pod.UID = "01234567-89ab-cdef-0123-456789abcdef"
	}
	if pod.Spec.SecurityContext == nil {
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	if pod.Spec.DNSPolicy == "" {
		pod.Spec.DNSPolicy = corev1.DNSClusterFirst
	}
	if pod.Spec.EnableServiceLinks == nil {
		links := true
		pod.Spec.EnableServiceLinks = &links
	}
	if pod.Spec.TerminationGracePeriodSeconds == nil {
		grace := int64(30)
		pod.Spec.TerminationGracePeriodSeconds = &grace
	}
	for _, c := range podutil.Containers(&pod.Spec) {
		if c.TerminationMessagePath == "" {
			c.TerminationMessagePath = corev1.TerminationMessagePathDefault
		}
		if c.TerminationMessagePolicy == "" {
			c.TerminationMessagePolicy = corev1.TerminationMessageReadFile
		}
		for i := range c.Env {
			if from := c.Env[i].ValueFrom; from != nil && from.FieldRef != nil && from.FieldRef.APIVersion == "" {
				from.FieldRef.APIVersion = "v1"
			}
		}
	}
}

// volumes returns the volumes of the pod, set up by their types. A PersistentVolumeClaim whose name starts with block
// is a device.
func (w *world) volumes() map[string]Volume {
	out := map[string]Volume{}
	for _, v := range w.pod.Spec.Volumes {
		dir := func(plugin string) string {
			return w.node.podDir(w.pod.UID) + "/volumes/kubernetes.io~" + plugin + "/" + v.Name
		}
		switch {
		case v.HostPath != nil:
			out[v.Name] = Volume{HostPath: v.HostPath.Path}
		case v.EmptyDir != nil:
			out[v.Name] = Volume{HostPath: dir("empty-dir"), Relabel: true}
		case v.ConfigMap != nil:
			out[v.Name] = Volume{HostPath: dir("configmap"), Relabel: true, ReadOnly: true}
		case v.Projected != nil:
			out[v.Name] = Volume{HostPath: dir("projected"), Relabel: true, ReadOnly: true}
		case v.Image != nil:
			out[v.Name] = Volume{Image: &runtimeapi.ImageSpec{Image: "sha256:volume", UserSpecifiedImage: v.Image.Reference}}
		case v.PersistentVolumeClaim != nil && strings.HasPrefix(v.PersistentVolumeClaim.ClaimName, "block"):
			out[v.Name] = Volume{Device: "/dev/block/" + v.Name, ReadOnly: v.PersistentVolumeClaim.ReadOnly}
		case v.PersistentVolumeClaim != nil:
			out[v.Name] = Volume{HostPath: dir("csi") + "/mount", ReadOnly: v.PersistentVolumeClaim.ReadOnly}
		}
	}
	return out
}

func (w *world) sandboxInput() *SandboxInput {
	return &SandboxInput{Node: w.node, Pod: w.pod, Attempt: w.facts.Attempt, UserNS: w.userNS()}
}

func (w *world) userNS() []*runtimeapi.IDMapping {
	if w.facts.UserNS == 0 {
		return nil
	}
	return []*runtimeapi.IDMapping{{HostId: w.facts.UserNS, Length: 65536}}
}

// containerInput returns the input for c. The sub-paths are host paths below the volumes.
func (w *world) containerInput(t *testing.T, c *corev1.Container) *ContainerInput {
	t.Helper()
	f := w.facts
	in := &ContainerInput{
		Node: w.node, Pod: w.pod, Container: c, Attempt: f.Attempt,
		Image:  Image{Ref: "sha256:" + c.Name, UID: f.ImageUID, Username: f.ImageUser},
		PodIPs: f.PodIPs, Objects: w.objects, Volumes: w.volumes(), SubPaths: map[int]string{},
		TargetID: f.Target, UserNS: w.userNS(), ExtraGroups: f.ExtraGroups, RecursiveReadOnly: f.RecursiveReadOnly,
		Devices: f.devices(),
	}
	subs, err := SubPaths(in)
	if err != nil {
		t.Fatalf("%s: sub-paths of %s: %v", w.name, c.Name, err)
	}
	for _, s := range subs {
		in.SubPaths[s.Index] = in.Volumes[s.Volume].HostPath + "/" + s.Path
	}
	return in
}

func (f facts) devices() Devices {
	d := Devices{CDI: f.CDI}
	if key, value, ok := strings.Cut(f.DeviceEnv, "="); ok {
		d.Envs = []*runtimeapi.KeyValue{{Key: key, Value: []byte(value)}}
	}
	if host, container, ok := strings.Cut(f.DeviceMount, ":"); ok {
		d.Mounts = []*runtimeapi.Mount{{HostPath: host, ContainerPath: container, Readonly: true}}
	}
	if host, container, ok := strings.Cut(f.Device, ":"); ok {
		d.Devices = []*runtimeapi.Device{{HostPath: host, ContainerPath: container, Permissions: "rw"}}
	}
	if key, value, ok := strings.Cut(f.DeviceAnnotation, "="); ok {
		d.Annotations = map[string]string{key: value}
	}
	return d
}
