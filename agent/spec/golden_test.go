package spec

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	podutil "github.com/nodelet/nodelet/kube/pod"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestGolden compares the CRI configuration of every pod in testdata with its golden file. Read the difference before
// you accept it with -update: running clusters will see it.
func TestGolden(t *testing.T) {
	for _, w := range corpus(t) {
		t.Run(w.name, func(t *testing.T) {
			before := w.pod.DeepCopy()
			got := render(t, w)
			if !cmp.Equal(before, w.pod) {
				t.Errorf("got a modified pod: %s", cmp.Diff(before, w.pod))
			}
			if again := render(t, w); !bytes.Equal(got, again) {
				t.Errorf("the second time: want (-), got (+):\n%s", cmp.Diff(string(got), string(again)))
			}
			file := "testdata/" + w.name + ".golden"
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func render(t *testing.T, w *world) []byte {
	t.Helper()
	var out bytes.Buffer
	sandbox, warnings, err := Sandbox(w.sandboxInput())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&out, "== sandbox\n%s", readable(t, sandbox))
	for _, warning := range warnings {
		fmt.Fprintf(&out, "warning %s: %s\n", warning.Reason, warning.Message)
	}
	for kind, c := range podutil.Containers(&w.pod.Spec) {
		config, err := Container(w.containerInput(t, c))
		if err != nil {
			t.Fatalf("container %s: %v", c.Name, err)
		}
		fmt.Fprintf(&out, "== %s container %s\n%s", kind, c.Name, readable(t, config))
	}
	hosts, err := HostsFile(w.pod, w.node, w.facts.PodIPs, []byte("127.0.0.1\tlocalhost node-1\n"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&out, "== hosts\n%s", hosts)
	settings := PodCgroup(w.pod, w.node)
	cgroup, err := json.MarshalIndent(struct {
		PodResources
		Unified map[string]string
	}{settings, settings.Unified(settings.Size.Memory)}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&out, "== cgroup\n%s\n", cgroup)
	return out.Bytes()
}

// readable returns the message as JSON with sorted keys. Modes are shown even if they are the default, and variables as
// NAME=value.
func readable(t *testing.T, m proto.Message) []byte {
	t.Helper()
	text, err := protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	prune(fields)
	if config, ok := m.(*runtimeapi.ContainerConfig); ok && len(config.Envs) > 0 {
		var envs []string
		for _, e := range config.Envs {
			envs = append(envs, e.Key+"="+string(e.Value))
		}
		fields["envs"] = envs
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(fields); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// prune removes empty values. A wrapped value that is zero stays: user 0 is not the same as no user.
func prune(v any) {
	switch v := v.(type) {
	case []any:
		for _, element := range v {
			prune(element)
		}
	case map[string]any:
		for key, element := range v {
			switch key {
			case "annotations", "labels", "sysctls", "unified":
				// The entries of such a map are set explicitly.
			default:
				prune(element)
			}
			if key != "value" && empty(element) {
				delete(v, key)
			}
		}
	}
}

func empty(v any) bool {
	switch v := v.(type) {
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return v == nil || v == "" || v == "0" || v == false || v == float64(0)
}
