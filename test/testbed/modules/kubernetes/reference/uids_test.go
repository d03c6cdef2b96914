package reference

import (
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	core "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install" // registers the types and their defaults
	"k8s.io/kubernetes/pkg/util/hash"
)

// manifests is the package that computes the UIDs of static pods, seen from config.
const manifests = "../kube/pods/manifest"

// minor returns the minor version of Kubernetes that this module requires, for example "1.37".
func minor(t *testing.T) string {
	t.Helper()
	return regexp.MustCompile(`\d+\.\d+`).FindString(kubernetesVersion(t))
}

// TestFields compares the table of the fields of the internal types that a Pod consists of.
func TestFields(t *testing.T) {
	w := walk{}
	w.visit(reflect.TypeFor[core.Pod](), reflect.TypeFor[corev1.Pod]())
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(w)) {
		lines = append(lines, name+": "+w[name])
	}
	compare(t, filepath.Join(manifests, "fields", minor(t)+".txt"), lines)
}

// walk collects the fields of structs, by the name of the internal type.
type walk map[string]string

// visit adds an internal type and those of its fields. A minus marks a field that only the type of API version v1 has.
func (w walk) visit(internal, v1 reflect.Type) {
	switch internal.Kind() {
	case reflect.Map, reflect.Pointer, reflect.Slice:
		w.visit(internal.Elem(), v1.Elem())
	case reflect.Struct:
		if _, seen := w[internal.String()]; seen {
			return
		}
		var names []string
		for _, f := range reflect.VisibleFields(v1) {
			if _, both := internal.FieldByName(f.Name); !both && len(f.Index) == 1 {
				names = append(names, "-"+f.Name)
			}
		}
		for i := range internal.NumField() {
			names = append(names, internal.Field(i).Name)
		}
		w[internal.String()] = strings.Join(names, " ")
		for i := range internal.NumField() {
			f := internal.Field(i)
			if g, both := v1.FieldByName(f.Name); both {
				w.visit(f.Type, g.Type)
			}
		}
	}
}

// TestUIDs compares the UIDs that the kubelet gives the manifests in testdata/uid, as files at one path on one node.
func TestUIDs(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(config, manifests, "testdata/uid/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("got %d manifests (%v), want some", len(files), err)
	}
	var lines []string
	for _, file := range files {
		lines = append(lines, filepath.Base(file)+" "+uid(t, file))
	}
	compare(t, filepath.Join(manifests, "testdata/uid", minor(t)+".txt"), lines)
}

// uid returns the UID of a static pod as the kubelet computes it (pkg/kubelet/config) from its file on the node.
func uid(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	json, err := utilyaml.ToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	pod, err := runtime.Decode(legacyscheme.Codecs.UniversalDecoder(), json)
	if err != nil {
		t.Fatal(err)
	}
	h := fnv.New128a()
	hash.DeepHashObject(h, pod)
	fmt.Fprintf(h, "host:%s", "node-1")
	fmt.Fprintf(h, "file:%s", "/m/a.yaml")
	return hex.EncodeToString(h.Sum(nil))
}
