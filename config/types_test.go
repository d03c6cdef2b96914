package config

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	official "k8s.io/kubelet/config/v1beta1"

	"github.com/nodelet/nodelet/internal/strict"
)

// TestTypesMirrorTheOfficialOnes walks both types side by side: a field that is missing, too many, or of another JSON
// shape fails. The test may import Kubernetes' own types, because tests are not part of the binary.
func TestTypesMirrorTheOfficialOnes(t *testing.T) {
	sameShape(t, reflect.TypeFor[KubeletConfiguration](), reflect.TypeFor[official.KubeletConfiguration](), "")
}

func sameShape(t *testing.T, ours, theirs reflect.Type, path string) {
	t.Helper()
	// that one reads and writes JSON by itself: see TestFlushFrequency
	if ours == theirs || path == ".logging.flushFrequency" {
		return
	}
	if ours.Kind() != theirs.Kind() {
		t.Errorf("%s: got kind %v, want %v", path, ours.Kind(), theirs.Kind())
		return
	}
	switch ours.Kind() {
	case reflect.Pointer, reflect.Slice:
		sameShape(t, ours.Elem(), theirs.Elem(), path)
	case reflect.Map:
		sameShape(t, ours.Key(), theirs.Key(), path+"{key}")
		sameShape(t, ours.Elem(), theirs.Elem(), path+"{}")
	case reflect.Struct:
		sameFields(t, ours, theirs, path)
	}
}

func sameFields(t *testing.T, ours, theirs reflect.Type, path string) {
	t.Helper()
	a, b := strict.Fields(ours), strict.Fields(theirs)
	for name, index := range b {
		mine, ok := a[name]
		if !ok {
			t.Errorf("got no field %s, want it", path+"."+name)
			continue
		}
		f, g := ours.FieldByIndex(mine), theirs.FieldByIndex(index)
		if f.Tag.Get("json") != g.Tag.Get("json") {
			t.Errorf("%s: got tag %q, want %q", path+"."+name, f.Tag.Get("json"), g.Tag.Get("json"))
		}
		sameShape(t, f.Type, g.Type, path+"."+name)
	}
	for name := range a {
		if _, ok := b[name]; !ok {
			t.Errorf("got field %s, want only those of the official type", path+"."+name)
		}
	}
}

// TestSameJSON sends a configuration in which every field has a value through both types.
func TestSameJSON(t *testing.T) {
	full := &official.KubeletConfiguration{}
	fill(reflect.ValueOf(full).Elem(), 0)
	want, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	ours := &KubeletConfiguration{}
	if err := json.Unmarshal(want, ours); err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(ours)
	if err != nil {
		t.Fatal(err)
	}
	var a, b any
	if json.Unmarshal(want, &a) != nil || json.Unmarshal(got, &b) != nil {
		t.Fatalf("got %s and %s, want JSON", want, got)
	}
	// nodelet writes text, Kubernetes a number: both read both
	delete(a.(map[string]any)["logging"].(map[string]any), "flushFrequency")
	delete(b.(map[string]any)["logging"].(map[string]any), "flushFrequency")
	for _, taint := range a.(map[string]any)["registerWithTaints"].([]any) {
		delete(taint.(map[string]any), "timeAdded") // a zero time is written as null, which reads as "not set"
	}
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	if n := strings.Count(string(want), ":"); n < 150 {
		t.Fatalf("got %d values, want at least 150", n)
	}
}

// fill gives every field a value that is not zero.
func fill(v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), depth+1)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth+1)
	case reflect.Map:
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(k, depth+1)
		fill(e, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(k, e)
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint32:
		v.SetUint(7)
	case reflect.Float64:
		v.SetFloat(0.5)
	}
}

// TestDefaults compares with the configuration that the kubelet itself has with an empty file.
func TestDefaults(t *testing.T) {
	want, err := os.ReadFile("testdata/defaults.json")
	if err != nil {
		t.Fatal(err)
	}
	c := &KubeletConfiguration{}
	setDefaults(c)
	c.APIVersion, c.Kind = "", ""
	if !cmp.Equal(c.EvictionHard, defaultEvictionHard) {
		t.Errorf("evictionHard: got %v, want %v", c.EvictionHard, defaultEvictionHard)
	}
	c.EvictionHard = nil // the kubelet adds them at another place
	got, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var a, b any
	if err := json.Unmarshal(want, &a); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(got, &b); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("want, as in the kubelet (-), got (+):\n%s", diff)
	}
}

func TestFlushFrequency(t *testing.T) {
	for text, want := range map[string]string{`"5s"`: "5s", `5000000000`: "5s", `0`: "0s"} {
		var f FlushFrequency
		if err := json.Unmarshal([]byte(text), &f); err != nil || f.Duration.String() != want {
			t.Errorf("%s: got %v, %v, want %s", text, f, err, want)
		}
	}
	var f FlushFrequency
	if err := json.Unmarshal([]byte(`"soon"`), &f); err == nil {
		t.Error(`"soon" as a duration: got no error, want one`)
	}
}

// TestInUse checks that /configz shows the cgroup driver in use, and headers that are not named like credentials.
func TestInUse(t *testing.T) {
	c := mustLoad(t, "cgroupDriver: cgroupfs\nstaticPodURL: http://me:hunter2@example.com/pods\n"+
		"staticPodURLHeader: {Authorization: [hunter2], X-Api-Key: [a], Accept: [b]}\n")
	got, hidden := c.Kubelet.InUse("systemd"), []string{"<masked>"}
	want := map[string][]string{"Authorization": hidden, "X-Api-Key": hidden, "Accept": {"b"}}
	if !reflect.DeepEqual(got.StaticPodURLHeader, want) || got.CgroupDriver != "systemd" {
		t.Errorf("got the headers %q and the driver %q, want %q and systemd", got.StaticPodURLHeader, got.CgroupDriver, want)
	}
	if want := "http://me:xxxxx@example.com/pods"; got.StaticPodURL != want {
		t.Errorf("URL: got %q, want %q", got.StaticPodURL, want)
	}
	if got := c.Kubelet.StaticPodURLHeader["Authorization"][0]; got != "hunter2" {
		t.Errorf("header of the configuration itself: got %q, want hunter2", got)
	}
}

// TestLogValue checks that the configuration in the log is that of the kubelet's log, without secrets.
func TestLogValue(t *testing.T) {
	c := mustLoad(t, "eventBurst: 101\nstaticPodURLHeader: {Authorization: [hunter2]}\n"+
		"staticPodURL: http://me:hunter2@example.com/pods\n")
	got := c.Kubelet.LogValue().String()
	for _, want := range []string{"kind: KubeletConfiguration\n", "eventBurst: 101\n", "Authorization:\n  - <masked>\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwant %q in it", got, want)
		}
	}
	if kept := c.Kubelet.StaticPodURLHeader["Authorization"]; strings.Contains(got, "hunter2") || kept[0] != "hunter2" {
		t.Errorf("got the header %q, and in the log\n%s", kept, got)
	}
}
