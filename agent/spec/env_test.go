package spec

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

func testInput() *ContainerInput {
	pod := testPod()
	return &ContainerInput{
		Node: testNode(nodeFacts{}), Pod: pod, Container: &pod.Spec.Containers[0],
		Image: Image{Ref: "sha256:c"}, PodIPs: []string{"10.0.0.1"},
		Objects: Objects{
			ConfigMaps: map[string]*corev1.ConfigMap{"cm": {Data: map[string]string{"k": "v"}}},
			Secrets:    map[string]*corev1.Secret{"s": {Data: map[string][]byte{"k": []byte("v"), "nul": {'a', 0}}}},
			EnvFiles:   map[EnvFile][]byte{{"vol", "f"}: []byte("K='v'\nE=''\n"), {"vol", "bad"}: []byte("x")},
		},
		Volumes: map[string]Volume{
			"vol": {HostPath: "/vol"},
			"img": {Image: &runtimeapi.ImageSpec{Image: "i"}},
			"raw": {Device: "/dev/raw"},
		},
		SubPaths: map[int]string{},
	}
}

// wantReason checks that err is a *Reason with the given reason, and that its message contains text.
func wantReason(t *testing.T, name string, err error, reason, text string) {
	t.Helper()
	if r, ok := errors.AsType[*Reason](err); !ok || r.Reason != reason || !strings.Contains(r.Message, text) ||
		r.Error() != r.Message {
		t.Errorf("%s: got %v, want %s with %q", name, err, reason, text)
	}
}

func env(in *ContainerInput, vars ...corev1.EnvVar) { in.Container.Env = vars }

// servicePorts returns a service of the pod's namespace with so many ports, and the longest name.
func servicePorts(n int) []*corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: testPod().Namespace, Name: strings.Repeat("s", 63)},
		Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"}}
	for i := range n {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: int32(i + 1), Name: fmt.Sprintf("p%d", i)})
	}
	return []*corev1.Service{s}
}

// TestArgumentsAreBounded checks that a few references to values that have references again do not fill the memory of
// the agent: neither in the environment, nor in the command and its arguments, nor in a subPath. Nor do the ports of a
// service.
func TestArgumentsAreBounded(t *testing.T) {
	large := corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "large"}}
	for name, set := range map[string]func(c *corev1.Container){
		"variables of variables": func(c *corev1.Container) {
			for i := range 7 {
				value := strings.Repeat(fmt.Sprintf("$(V%d)", i-1), 10)
				c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("V%d", i), Value: value})
			}
		},
		"many copies of a ConfigMap": func(c *corev1.Container) {
			for i := range 20 {
				c.EnvFrom = append(c.EnvFrom, corev1.EnvFromSource{Prefix: fmt.Sprintf("P%d_", i), ConfigMapRef: &large})
			}
		},
		"command": func(c *corev1.Container) {
			c.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &large}}
			c.Command = slices.Repeat([]string{"$(k)"}, 20)
		},
		"arguments": func(c *corev1.Container) {
			c.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &large}}
			c.Args = []string{strings.Repeat("$(k)", 20)}
		},
		"subPath": func(c *corev1.Container) {
			c.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &large}}
			c.VolumeMounts = []corev1.VolumeMount{{Name: "vol", MountPath: "/vol", SubPathExpr: "$(k)"}}
		},
	} {
		in := testInput()
		in.SubPaths[0] = "/vol/sub"
		in.Objects.ConfigMaps["large"] = &corev1.ConfigMap{Data: map[string]string{"k": strings.Repeat("x", 1<<20)}}
		set(in.Container)
		_, err := Container(in)
		wantReason(t, name, err, podutil.ReasonCreateContainerConfig, "bytes")
	}
	in := testInput()
	in.Objects.Services = servicePorts(30_000)
	_, err := Container(in)
	wantReason(t, "service", err, podutil.ReasonCreateContainerConfig, "bytes")
}

func TestEnvironmentErrors(t *testing.T) {
	from := func(s corev1.EnvVarSource) corev1.EnvVar { return corev1.EnvVar{Name: "X", ValueFrom: &s} }
	cm := func(name, key string) corev1.EnvVar {
		return from(corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: name},
			Key:                  key,
		}})
	}
	secret := func(name, key string) corev1.EnvVar {
		return from(corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: name},
			Key:                  key,
		}})
	}
	file := func(volume, path, key string) corev1.EnvVar {
		return from(corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: volume, Path: path, Key: key}})
	}
	field := func(version, path string) corev1.EnvVar {
		return from(corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: version, FieldPath: path}})
	}
	res := func(container, name string) corev1.EnvVar {
		return from(corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: container,
			Resource: name}})
	}
	for name, c := range map[string]struct {
		v    corev1.EnvVar
		text string
	}{
		"no ConfigMap":        {cm("gone", "k"), `configmap "gone" not found`},
		"no ConfigMap key":    {cm("cm", "gone"), `couldn't find key gone in ConfigMap ns/cm`},
		"no Secret":           {secret("gone", "k"), `secret "gone" not found`},
		"no Secret key":       {secret("s", "gone"), `couldn't find key gone in Secret ns/s`},
		"NUL":                 {secret("s", "nul"), "NUL"},
		"no file volume":      {file("gone", "f", "K"), `cannot find the volume "gone"`},
		"no file":             {file("vol", "gone", "K"), `"gone" not found`},
		"no file key":         {file("vol", "f", "gone"), `"gone" not found in file "f"`},
		"bad file":            {file("vol", "bad", "K"), "couldn't parse env file"},
		"file above":          {file("vol", "../f", "K"), "without .."},
		"file above the root": {file("vol", "/../f", "K"), "without .."},
		"file unnamed":        {file("vol", "", "K"), "path in the volume"},
		"version":             {field("v2", "metadata.name"), "unsupported pod version: v2"},
		"version of status":   {field("v2", "status.podIP"), "unsupported pod version: v2"},
		"field":               {field("v1", "status.phase"), "unsupported fieldPath: status.phase"},
		"field key":           {field("v1", "spec.nodeSelector['a']"), "does not support subscript"},
		"field key malformed": {field("v1", "metadata.labels['a b']"), "invalid key subscript"},
		"field key unclosed":  {field("v1", "metadata.labels['a"), "unsupported fieldPath"},
		"field key alone":     {field("v1", "['a']"), "unsupported fieldPath"},
		"resource":            {res("", "limits.gpu"), "unsupported container resource : limits.gpu"},
		"resource of nothing": {res("", "cpu"), "unsupported container resource : cpu"},
		"resource container":  {res("gone", "limits.cpu"), "container gone not found"},
		"no source":           {from(corev1.EnvVarSource{}), "valueFrom has no known source"},
		"name with =":         {corev1.EnvVar{Name: "A=B", Value: "x"}, "A=B"},
		"no name":             {corev1.EnvVar{Value: "x"}, "empty"},
	} {
		in := testInput()
		env(in, c.v)
		_, err := Container(in)
		wantReason(t, name, err, "CreateContainerConfigError", c.text)
		in.Container.VolumeMounts = []corev1.VolumeMount{{Name: "vol", MountPath: "/vol", SubPath: "sub"}}
		_, err = SubPaths(in)
		wantReason(t, name, err, "CreateContainerConfigError", c.text)
	}
}

func TestEnvironmentFromErrors(t *testing.T) {
	ref := corev1.LocalObjectReference{Name: "gone"}
	in := testInput()
	in.Container.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref}}}
	_, err := Container(in)
	wantReason(t, "ConfigMap", err, "CreateContainerConfigError", `configmap "gone" not found`)
	in.Container.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref}}}
	_, err = Container(in)
	wantReason(t, "Secret", err, "CreateContainerConfigError", `secret "gone" not found`)
}

func TestHostIPUnknown(t *testing.T) {
	for _, path := range []string{"status.hostIP", "status.hostIPs"} {
		in := testInput()
		in.Node.HostIPs = nil
		env(in, corev1.EnvVar{
			Name:      "X",
			ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}},
		})
		_, err := Container(in)
		wantReason(t, path, err, "CreateContainerConfigError", "host IP unknown")
	}
}

func TestFieldVersion(t *testing.T) {
	in := testInput()
	for version, want := range map[string]string{"": "uid-1", "v1": "uid-1", "v2": ""} {
		got, err := fieldValue(in, &corev1.ObjectFieldSelector{APIVersion: version, FieldPath: "metadata.uid"})
		if got != want || (err == nil) != (want != "") {
			t.Errorf("version %q: got %q, %v; want %q", version, got, err, want)
		}
	}
}

// TestPodIP checks that on the host network the addresses of the pod are those of the node. Otherwise they never are.
func TestPodIP(t *testing.T) {
	for _, c := range []struct {
		hostNetwork bool
		ips         []string
		want        string
	}{
		{true, nil, "192.168.1.10"}, {true, []string{"10.1.1.1"}, "10.1.1.1"}, {false, nil, ""},
		{false, []string{"10.1.1.1"}, "10.1.1.1"},
	} {
		in := testInput()
		in.Pod.Spec.HostNetwork, in.PodIPs = c.hostNetwork, c.ips
		if got, err := fieldValue(in, &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}); err != nil || got != c.want {
			t.Errorf("%+v: got %q, %v, want %q", c, got, err, c.want)
		}
	}
}

// TestPodIPOrder checks the order of the addresses, also on the host network, where those in the status count before
// the addresses of the node are known.
func TestPodIPOrder(t *testing.T) {
	for _, c := range []struct{ hostNetwork, known, ipv6First bool }{
		{true, true, true}, {true, true, false}, {true, false, true}, {true, false, false},
		{false, true, true}, {false, true, false},
	} {
		in := testInput()
		in.Node.HostIPs, in.PodIPs = nil, nil
		in.Node.IPv6First, in.Pod.Spec.HostNetwork = c.ipv6First, c.hostNetwork
		switch ips := []string{"fd01::2", "10.1.1.1"}; {
		case !c.hostNetwork:
			in.PodIPs = ips
		case c.known:
			in.Node.HostIPs = ips
		default:
			in.Pod.Status.PodIPs = []corev1.PodIP{{IP: ips[0]}, {IP: ips[1]}}
		}
		want := "10.1.1.1,fd01::2"
		if c.ipv6First {
			want = "fd01::2,10.1.1.1"
		}
		got, err := fieldValue(in, &corev1.ObjectFieldSelector{FieldPath: "status.podIPs"})
		if err != nil || got != want {
			t.Errorf("%+v: got %q, %v, want %q", c, got, err, want)
		}
	}
}

// TestEnvironmentOptional checks that a missing optional source does not change an earlier value.
func TestEnvironmentOptional(t *testing.T) {
	yes := true
	in := testInput()
	env(in,
		corev1.EnvVar{Name: "X", Value: "kept"},
		corev1.EnvVar{
			Name: "X",
			ValueFrom: &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: "vol", Path: "gone", Key: "K",
				Optional: &yes}},
		},
		corev1.EnvVar{
			Name:      "E",
			ValueFrom: &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: "vol", Path: "f", Key: "E"}},
		},
	)
	got, err := variables(in)
	if err != nil || len(got) != 2 || string(got[0].Value) != "kept" || got[1].Key != "E" || len(got[1].Value) != 0 {
		t.Errorf("got %v %v, want two", got, err)
	}
	if files := EnvFiles(in.Container); !slices.Equal(files, []EnvFile{{"vol", "gone"}, {"vol", "f"}}) {
		t.Errorf("got files %v", files)
	}
}

// TestEnvironmentFileFromRoot checks that a path with a slash at its beginning is one in the volume, as in the kubelet.
func TestEnvironmentFileFromRoot(t *testing.T) {
	in := testInput()
	in.Objects.EnvFiles[EnvFile{"vol", "/f"}] = in.Objects.EnvFiles[EnvFile{"vol", "f"}]
	env(in, corev1.EnvVar{Name: "X", ValueFrom: &corev1.EnvVarSource{
		FileKeyRef: &corev1.FileKeySelector{VolumeName: "vol", Path: "/f", Key: "K"}}})
	got, err := variables(in)
	if err != nil || len(got) != 1 || string(got[0].Value) != "v" {
		t.Errorf("got %v, %v, want v", got, err)
	}
}

func TestServiceVariables(t *testing.T) {
	service := func(namespace, name, ip string, ports ...corev1.ServicePort) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: ports}}
	}
	master := service("default", "kubernetes", "1.1.1.1")
	own := service("ns", "kubernetes", "2.2.2.2")
	other := service("ns", "web", "3.3.3.3")
	yes, no := true, false
	for name, c := range map[string]struct {
		links    *bool
		services []*corev1.Service
		want     map[string]string
	}{
		"none":             {&yes, nil, map[string]string{}},
		"default is links": {nil, []*corev1.Service{other}, map[string]string{"WEB_SERVICE_HOST": "3.3.3.3"}},
		"no links": {&no, []*corev1.Service{other, master, own},
			map[string]string{"KUBERNETES_SERVICE_HOST": "1.1.1.1"}},
		"own wins, first": {&yes, []*corev1.Service{own, master},
			map[string]string{"KUBERNETES_SERVICE_HOST": "2.2.2.2"}},
		"own wins, last": {&yes, []*corev1.Service{master, own},
			map[string]string{"KUBERNETES_SERVICE_HOST": "2.2.2.2"}},
		"no address": {&yes, []*corev1.Service{service("ns", "a", ""), service("ns", "b", "None")},
			map[string]string{}},
		"other in default":      {&yes, []*corev1.Service{service("default", "web", "4.4.4.4")}, map[string]string{}},
		"kubernetes elsewhere":  {&yes, []*corev1.Service{service("other", "kubernetes", "4.4.4.4")}, map[string]string{}},
		"own but without links": {&no, []*corev1.Service{own}, map[string]string{}},
		"no ports but an address": {&yes, []*corev1.Service{service("ns", "a-b", "fd00::1")},
			map[string]string{"A_B_SERVICE_HOST": "fd00::1"}},
	} {
		pod := testPod()
		pod.Spec.EnableServiceLinks = c.links
		if got, err := serviceVariables(pod, c.services, maxArguments); err != nil || !maps.Equal(got, c.want) {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
}

func TestEnvFile(t *testing.T) {
	for name, c := range map[string]struct {
		content, key string
		want         string
		ok           bool
		err          string
	}{
		"found":               {content: "A='1'\nB='2'\n", key: "B", want: "2", ok: true},
		"first wins":          {content: "A='1'\nA='2'\n", key: "A", want: "1", ok: true},
		"none":                {content: "A='1'", key: "B"},
		"empty":               {content: "", key: "B"},
		"comments, blanks":    {content: "\n  # A='x'\n \t A='1' # y\r\n", key: "A", want: "1", ok: true},
		"lines":               {content: "A='1\r\n2\n\n#3' \nB='x'", key: "A", want: "1\n2\n\n#3", ok: true},
		"after lines":         {content: "A='1\n2'\nB='x'", key: "B", want: "x", ok: true},
		"empty value":         {content: "A=''", key: "A", ok: true},
		"blank after =":       {content: "A= 'x'", key: "A", ok: true},
		"other blank":         {content: "A= 'x'\nB='2'", key: "B", want: "2", ok: true},
		"no escapes":          {content: `A='\n$(X) "'`, key: "A", want: `\n$(X) "`, ok: true},
		"error after the key": {content: "A='1'\nnonsense", key: "A", want: "1", ok: true},
		"no =":                {content: "\nA", key: "A", err: "line 2"},
		"no name":             {content: "='1'", key: "A", err: "line 1"},
		"blank before =":      {content: "A ='1'", key: "A", err: "line 1"},
		"another name":        {content: "export A='1'\nB='2'", key: "B", want: "2", ok: true},
		"unquoted":            {content: "A=1", key: "A", err: "single quotes"},
		"double quotes":       {content: `A="1"`, key: "A", err: "single quotes"},
		"no value":            {content: "A=", key: "A", err: "single quotes"},
		"unclosed":            {content: "X='1'\nA='1\n2\n", key: "A", err: "line 2: the value of A has no closing quote"},
		"text after":          {content: "A='1'x", key: "A", err: "text after"},
		"text after lines":    {content: "A='1\n2' x", key: "B", err: "line 2: text after"},
		"line numbers":        {content: "A='1\n2'\n\nB", key: "B", err: "line 4"},
		"quote within a key":  {content: "A'='1'", key: "A'", want: "1", ok: true},
	} {
		got, ok, err := envFileValue(c.content, c.key)
		if got != c.want || ok != c.ok || (err != nil) != (c.err != "") || err != nil &&
			!strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: got %q, %v, %v", name, got, ok, err)
		}
	}
}

func FuzzEnvFile(f *testing.F) {
	f.Add("A='1'\n#\nB='2\n3' # c\n", "B")
	f.Add("A= x\nA='", "A")
	f.Fuzz(func(t *testing.T, content, key string) {
		value, ok, err := envFileValue(content, key)
		if err != nil && (ok || value != "") {
			t.Errorf("got %q, %v with error %v", value, ok, err)
		}
		if strings.Contains(value, "'") {
			t.Errorf("got value %q with a quote, want none", value)
		}
	})
}

func TestResourceFieldValue(t *testing.T) {
	in := testInput()
	always := corev1.ContainerRestartPolicyAlways
	in.Pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: list("1500m", "")}
	in.Pod.Spec.InitContainers = []corev1.Container{{Name: "side", RestartPolicy: &always}}
	debug := corev1.EphemeralContainer{}
	debug.Name = "debug"
	in.Pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{debug}
	in.Node.Allocatable = list("7500m", "7Gi")
	app, side := &in.Pod.Spec.Containers[0], &in.Pod.Spec.InitContainers[0]
	for _, c := range []struct {
		what                string
		container           *corev1.Container
		named, field, limit string
		want                string // "" is an error
	}{
		{"own limit, rounded up", app, "", "limits.cpu", "", "2"},
		{"the node's", app, "", "limits.memory", "", "7516192768"},
		{"the pod's", app, "", "limits.memory", "2Gi", "2147483648"},
		{"nothing known", app, "", "limits.ephemeral-storage", "", "0"},
		{"by name", side, "c", "limits.cpu", "", "2"},
		{"no own request", side, "c", "requests.cpu", "", "0"},
		{"a sidecar itself", side, "", "limits.cpu", "", "8"},
		{"a sidecar by name", app, "side", "limits.cpu", "", "0"},
		{"an ephemeral container", app, "debug", "limits.cpu", "", ""},
		{"no such container", app, "none", "limits.cpu", "", ""},
	} {
		in.Container, in.Pod.Spec.Resources = c.container, nil
		if c.limit != "" {
			in.Pod.Spec.Resources = &corev1.ResourceRequirements{Limits: list("", c.limit)}
		}
		got, err := resourceFieldValue(in, &corev1.ResourceFieldSelector{ContainerName: c.named, Resource: c.field})
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: got %q, %v; want %q", c.what, got, err, c.want)
		}
	}
	if got := in.Node.Allocatable.Memory().String(); got != "7Gi" {
		t.Errorf("allocatable memory after that: got %s, want 7Gi", got)
	}
}
