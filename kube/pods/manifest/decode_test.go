package manifest

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

var origin = Origin{NodeName: "node-1", Source: "file", Where: "/m/a.yaml"}

const podText = `apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: web
    image: w:1
`

func parseOne(t *testing.T, text string) Pod {
	t.Helper()
	f, errs := Parse([]byte(text), origin)
	if len(errs) > 0 || len(f.Pods) != 1 {
		t.Fatalf("got %d pods and errors %v, want one pod", len(f.Pods), errs)
	}
	return f.Pods[0]
}

func TestStaticPod(t *testing.T) {
	p := parseOne(t, podText)
	if p.Name != "web-node-1" || p.Namespace != "default" || p.Spec.NodeName != "node-1" ||
		p.Status.Phase != corev1.PodPending {
		t.Errorf("got %s/%s on %s, %s", p.Namespace, p.Name, p.Spec.NodeName, p.Status.Phase)
	}
	if len(p.UID) != 32 || string(p.UID) != p.Hash || p.Annotations[podutil.AnnotationHash] != p.Hash {
		t.Errorf("got UID %q, hash %q and annotation %q, want the same 32 digits", p.UID, p.Hash,
			p.Annotations[podutil.AnnotationHash])
	}
	if p.Annotations[podutil.AnnotationSource] != "file" {
		t.Errorf("annotations: got %v, want the source file", p.Annotations)
	}
	want := corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	if len(p.Spec.Tolerations) != 1 || p.Spec.Tolerations[0] != want {
		t.Errorf("tolerations: got %v, want %v alone", p.Spec.Tolerations, want)
	}
	if p.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		t.Error("got no defaults, want them set")
	}
}

// TestToleratesNoExecute checks that the toleration of all NoExecute taints is there once and has no end, and that
// others stay as they are.
func TestToleratesNoExecute(t *testing.T) {
	const other = "{key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 5}"
	want := parseOne(t, podText+"  tolerations: ["+other+"]\n").Spec.Tolerations
	if len(want) != 2 || *want[0].TolerationSeconds != 5 || want[1].Key != "" || want[1].TolerationSeconds != nil {
		t.Fatalf("got %v, want the one of the manifest and one of all taints", want)
	}
	for _, own := range []string{"{operator: Exists, effect: NoExecute, tolerationSeconds: 300}",
		"{operator: Exists, effect: NoExecute}"} {
		got := parseOne(t, podText+"  tolerations: ["+other+", "+own+"]\n").Spec.Tolerations
		if !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("%s: got %v, want %v", own, got, want)
		}
	}
}

// TestStaticPodFromExport checks that what the server set in a manifest exported from a cluster has no effect.
func TestStaticPodFromExport(t *testing.T) {
	p := parseOne(t, `apiVersion: v1
kind: Pod
metadata:
  name: web
  annotations: {kubernetes.io/config.mirror: abc, kubernetes.io/config.source: api, keep: me}
  ownerReferences: [{apiVersion: v1, kind: Node, name: node, uid: u}]
  resourceVersion: "5"
  creationTimestamp: "2020-01-01T00:00:00Z"
  deletionTimestamp: "2020-01-01T00:00:00Z"
  uid: 6d2a5b2e-1111-2222-3333-444455556666
spec: {containers: [{name: web, image: w}]}
status: {phase: Running, podIP: 1.2.3.4}
`)
	if p.DeletionTimestamp != nil || p.OwnerReferences != nil || p.ResourceVersion != "" || p.Status.PodIP != "" {
		t.Errorf("got fields of the server, want none: %+v", p.ObjectMeta)
	}
	if _, mirror := p.Annotations[podutil.AnnotationMirror]; mirror || p.Annotations["keep"] != "me" {
		t.Errorf("annotations: got %v, want the user's, without that of a mirror pod", p.Annotations)
	}
	if p.UID != "6d2a5b2e-1111-2222-3333-444455556666" || p.Annotations[podutil.AnnotationHash] != string(p.UID) {
		t.Errorf("UID: got %q with hash annotation %q, want the manifest's", p.UID, p.Annotations[podutil.AnnotationHash])
	}
}

// TestHash checks that the UID follows what the manifest says, not how it is written.
func TestHash(t *testing.T) {
	base := parseOne(t, podText).Hash
	for name, c := range map[string]struct {
		text string
		same bool
	}{
		"comments and layout": {"# c\n" + strings.ReplaceAll(podText, "{name: web}", "\n  name:   \"web\" # x"), true},
		"JSON": {`{"kind":"Pod","apiVersion":"v1","spec":{"containers":[{"image":"w:1","name":"web"}]},
			"metadata":{"name":"web"}}`, true},
		"with its separator": {"---\n" + podText + "---\n", true},
		"other image":        {strings.ReplaceAll(podText, "w:1", "w:2"), false},
		"label":              {strings.ReplaceAll(podText, "{name: web}", "{name: web, labels: {a: b}}"), false},
	} {
		if got := parseOne(t, c.text).Hash; (got == base) != c.same {
			t.Errorf("%s: the hash is the same: got %v, want %v", name, got == base, c.same)
		}
	}
	for _, o := range []Origin{
		{"n2", "file", "/m/a.yaml"},
		{"node-1", "file", "/m/b.yaml"},
		{"node-1", "http", "/m/a.yaml"},
	} {
		f, errs := Parse([]byte(podText), o)
		if errs != nil || f.Pods[0].Hash == base {
			t.Errorf("%v: got the same hash (%v), want another one", o, errs)
		}
	}
}

// TestMerge checks that a mapping may replace what it merges, and that the pod has the UID of the same manifest without
// a merge, as with the kubelet.
func TestMerge(t *testing.T) {
	const text = podText + "    env: [{name: A, value: b}]\n"
	merged := strings.Replace(text, "- name: web", "- &web\n    name: web", 1) + "  - {<<: *web, name: two, image: t:1}\n"
	plain := parseOne(t, text+"  - {name: two, image: t:1, env: [{name: A, value: b}]}\n")
	if p := parseOne(t, merged); len(p.Spec.Containers) != 2 || p.Spec.Containers[1].Image != "t:1" || p.UID != plain.UID {
		t.Errorf("got containers %v and UID %s, want two and UID %s", p.Spec.Containers, p.UID, plain.UID)
	}
}

func TestDocuments(t *testing.T) {
	text := "%YAML 1.1\n---\n# only a comment\n---\n" + podText + `--- # second
apiVersion: v1
kind: ConfigMap
metadata: {name: c}
data: {k: "a\n---\nb"}
...
---
apiVersion: v1
kind: Secret
metadata: {name: s, namespace: other}
stringData: {k: v}
data: {x: eQ==}
--- {apiVersion: v1, kind: Pod, metadata: {name: inline}, spec: {containers: [{name: a, image: b}]}}
`
	f, errs := Parse([]byte(text), origin)
	if errs != nil {
		t.Fatal(errs)
	}
	if len(f.Pods) != 2 || len(f.ConfigMaps) != 1 || len(f.Secrets) != 1 {
		t.Fatalf("got %d pods, %d ConfigMaps, %d Secrets", len(f.Pods), len(f.ConfigMaps), len(f.Secrets))
	}
	if c := f.ConfigMaps[0]; c.Namespace != "default" || c.Data["k"] != "a\n---\nb" {
		t.Errorf("ConfigMap: got %+v, want default and its data", c)
	}
	if s := f.Secrets[0]; s.Namespace != "other" || string(s.Data["k"]) != "v" || string(s.Data["x"]) != "y" ||
		s.StringData != nil || s.Type != corev1.SecretTypeOpaque {
		t.Errorf("Secret: got %+v, want other, its data, and Opaque", s)
	}
}

// TestOtherKinds checks that a document of another kind after the first one, or an item of such a List, leaves the rest
// of the file valid: the kubelet reads only the first document.
func TestOtherKinds(t *testing.T) {
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n"
	const deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n"
	second := strings.ReplaceAll(podText, "{name: web}", "{name: b}")
	const list = "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Service}, " +
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}]\n"
	f, errs := Parse([]byte(podText+"---\n"+service+"---\n"+second+"---\n"+deployment+"---\n"+list), origin)
	if len(errs) > 0 || len(f.Pods) != 2 || len(f.ConfigMaps) != 1 {
		t.Errorf("got %d pods, %d ConfigMaps and errors %v, want two and one", len(f.Pods), len(f.ConfigMaps), errs)
	}
	got := fmt.Sprint(f.Ignored)
	for _, want := range []string{
		`document 2 (line 8): apiVersion "v1" with kind "Service"`,
		`document 4 (line 20): apiVersion "apps/v1" with kind "Deployment"`,
		`document 5 (line 24): List: items[0]: apiVersion "v1" with kind "Service"`,
	} {
		if len(f.Ignored) != 3 || !strings.Contains(got, want) {
			t.Errorf("ignored: got %s, want two documents and an item, and in it %s", got, want)
		}
	}
}

func TestLists(t *testing.T) {
	item := `{metadata: {name: a}, spec: {containers: [{name: a, image: b}]}}`
	full := `{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: a, image: b}]}}`
	for _, text := range []string{
		"apiVersion: v1\nkind: PodList\nitems:\n- " + item,
		"apiVersion: v1\nkind: List\nmetadata: {}\nitems:\n- " + full,
	} {
		parseOne(t, text)
	}
}

// TestNameTwiceInPodList checks that of two pods of one name in a PodList the first counts, as in the kubelet, and that
// the others of the list count.
func TestNameTwiceInPodList(t *testing.T) {
	const item = "{metadata: {name: %s}, spec: {containers: [{name: a, image: %s}]}}"
	text := "apiVersion: v1\nkind: PodList\nitems: [" +
		fmt.Sprintf(item+", "+item+", "+item, "a", "first", "a", "second", "b", "third") + "]\n"
	f, errs := Parse([]byte(text), origin)
	if len(errs) > 0 || len(f.Pods) != 2 || f.Pods[0].Spec.Containers[0].Image != "first" || f.Pods[1].Name != "b-node-1" {
		t.Errorf("got pods %v and errors %v, want the first and the third", f.Pods, errs)
	}
	const want = "[PodList: items[1]: duplicate object in this file: there is another Pod default/a-node-1]"
	if got := fmt.Sprint(f.Ignored); got != want {
		t.Errorf("ignored: got %s, want %s", got, want)
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string // each must be in the errors
	}{
		{"empty", "", []string{"file is empty"}},
		{"only comments", "# x\n---\n# y\n", []string{"file is empty"}},
		{"no object", "- a\n- b\n", []string{"not an API object"}},
		{"no kind", "a: b\n", []string{"apiVersion or kind is missing"}},
		{"other kind", "apiVersion: apps/v1\nkind: Deployment\n",
			[]string{`"apps/v1"`, `"Deployment"`, "Pods, ConfigMaps and Secrets"}},
		{"other kind before the Pod", "apiVersion: v1\nkind: Service\n---\n" + podText, []string{"document 1", `"Service"`}},
		{"other kind without a version", podText + "---\nkind: Service\n",
			[]string{"document 2", "apiVersion or kind is missing"}},
		{"misspelled kind of a later document", podText + "---\n" + strings.Replace(podText, "Pod", "Pdo", 1),
			[]string{"document 2 (line 8)", `kind: v1 has no "Pdo"`, "Pods, ConfigMaps and Secrets"}},
		{"misspelled version of a later document", podText + "---\n" + strings.Replace(podText, "v1", "apps/v1", 1),
			[]string{"document 2 (line 8)", `kind: apps/v1 has no "Pod"`}},
		{"unknown version of a later document", podText + "---\napiVersion: v2\nkind: Service\n",
			[]string{"document 2 (line 8)", `kind: v2 has no "Service"`}},
		{"other kind in a list", "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Service}]}\n---\n" + podText,
			[]string{"document 1", "List: items[0]", `"Service"`}},
		{"misspelled kind in a later list",
			podText + "---\n{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Pdo}]}\n",
			[]string{"document 2", "List: items[0]", `"Pdo"`}},
		{"syntax in the first document", "apiVersion: v1\nkind: [Pod\n", []string{"line 2"}},
		{"syntax in the second", podText + "---\na: b\n  c: d\n", []string{"document 2 (line 8)", "line 10"}},
		{"key twice", strings.ReplaceAll(podText, "    image", "    name: x\n    image"),
			[]string{`key "name" already set`, "line 7"}},
		{"key twice beside a merge", strings.ReplaceAll(podText, "- name: web", "- <<: {name: a}\n    name: web") +
			"    image: x\n", []string{`key "image" already set`, "line 9"}},
		{"JSON key twice", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"a",
			"image":"b","image":"c"}]}}`,
			[]string{`duplicate field "spec.containers[0].image"`}},
		{"unknown field", strings.ReplaceAll(podText, "image:", "imag:"),
			[]string{`Pod "web"`, `spec.containers[0].imag: unknown field; did you mean "image"?`}},
		{"wrong case", strings.ReplaceAll(podText, "image:", "Image:"), []string{"spec.containers[0].Image: unknown field"}},
		{"wrong type", strings.ReplaceAll(podText, "image: w:1", "image: w:1\n    ports: 80"),
			[]string{"spec.containers[0].ports: 80 is not a list"}},
		{"number for text", strings.ReplaceAll(podText, "image: w:1", "image: w\n    command: [sleep, 3]"),
			[]string{`spec.containers[0].command[1]: 3 is not text; put it in quotes: "3"`}},
		{"text for number", strings.ReplaceAll(podText, "spec:", "spec:\n  activeDeadlineSeconds: soon"),
			[]string{`spec.activeDeadlineSeconds: "soon" is not a whole number of 64 bits`}},
		{"quantity", strings.ReplaceAll(podText, "image: w:1", "image: w:1\n    resources: {limits: {cpu: 1core}}"),
			[]string{`spec.containers[0].resources.limits[cpu]: "1core" is not a quantity`}},
		{"no name", strings.ReplaceAll(podText, "name: web}", "namespace: x}"), []string{"metadata.name: Required value"}},
		{"invalid", strings.ReplaceAll(podText, "image: w:1", "imagePullPolicy: Sometimes"),
			[]string{"spec.containers[0].image: Required", "spec.containers[0].imagePullPolicy: Unsupported"}},
		{"same name twice", podText + "---\n" + podText,
			[]string{"document 2", `Pod "web"`, "duplicate object in this file"}},
		{"two bad documents", "a: b\n---\na: b\n", []string{"document 1", "document 2"}},
		{"escaping UID", strings.ReplaceAll(podText, "{name: web}", `{name: web, uid: "../../etc"}`),
			[]string{"metadata.uid", "letters, digits, hyphens and dots"}},
		{"bad name", strings.ReplaceAll(podText, "{name: web}", "{name: we/b}"), []string{"metadata.name", "we/b"}},
		{"bad item", "apiVersion: v1\nkind: PodList\nitems:\n- {metadata: {name: a}, spec: {x: y}}\n",
			[]string{"items[0]: spec.x: unknown field"}},
		{"bad data key", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a/b: x}\n", []string{"data[a/b]"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, errs := Parse([]byte(c.text), origin)
			if len(errs) == 0 || len(f.Pods)+len(f.ConfigMaps)+len(f.Secrets) > 0 {
				t.Fatalf("got %v and errors %v, want errors alone", f, errs)
			}
			var all strings.Builder
			for _, e := range errs {
				all.WriteString(e.Error() + "\n")
			}
			for _, w := range c.want {
				if !strings.Contains(all.String(), w) {
					t.Errorf("error: got\n%s\nwant %q in it", all.String(), w)
				}
			}
		})
	}
}

func TestSecretValuesStayOutOfErrors(t *testing.T) {
	for _, text := range []string{
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {k: [hunter2]}\n",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {k: hunter2!}\n",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: hunter2\n",
	} {
		_, errs := Parse([]byte(text), origin)
		if len(errs) != 1 || strings.Contains(errs[0].Error(), "hunter2") || !strings.Contains(errs[0].Error(), "ata") {
			t.Errorf("%q: got %v, want an error with the field and without the value", text, errs)
		}
	}
}

func TestParseLimits(t *testing.T) {
	if _, errs := Parse(make([]byte, MaxSize+1), origin); len(errs) != 1 || !strings.Contains(errs[0].Error(), "10 MiB") {
		t.Errorf("errors: got %v, want one that says 10 MiB", errs)
	}
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for _, l := range "bcdefghi" {
		prev := string(l - 1)
		bomb += string(l) + ": &" + string(l) + " [" + strings.TrimSuffix(strings.Repeat("*"+prev+",", 9), ",") + "]\n"
	}
	if _, errs := Parse([]byte(bomb), origin); len(errs) != 1 {
		t.Errorf("a YAML bomb: got %v, want one", errs)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		podText, "---\n" + podText + "---\n" + podText, `{"apiVersion":"v1","kind":"Pod"}`,
		"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: a}, stringData: {a: b}}",
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\nbinaryData: {a: eA==}", "a: &a [*a]", "...\n---\n%YAML 1.1\n",
		strings.ReplaceAll(podText, "image: w:1",
			"image: w:1\n    resources: {limits: {cpu: 1}}\n    livenessProbe: {httpGet: {port: http}}"),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, errs := Parse(data, origin)
		if len(errs) > 0 {
			if len(file.Pods)+len(file.ConfigMaps)+len(file.Secrets) > 0 {
				t.Fatal("got objects beside errors, want none")
			}
			return
		}
		for _, p := range file.Pods {
			if !podutil.ValidUID(p.UID) || p.Name == "" || p.Namespace == "" || len(p.Spec.Containers) == 0 {
				t.Fatalf("got a pod %s/%s with UID %q, want names, a UID and containers", p.Namespace, p.Name, p.UID)
			}
			if again, errs := Parse(data, origin); errs != nil || again.Pods[0].Hash != file.Pods[0].Hash {
				t.Fatal("got another hash of the same pod, want the same")
			}
		}
	})
}
