package metrics

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodelet/nodelet/test/exposition"
)

func written(t *testing.T, r *Registry) string {
	t.Helper()
	text := &Text{}
	r.Write(context.Background(), text)
	exposition.Parse(t, string(text.Bytes()))
	return string(text.Bytes())
}

func TestFamiliesAreWrittenInTheTextFormat(t *testing.T) {
	r := &Registry{}
	r.Counter("a_total", "Says a\nand \\ more.").Add(2.5)
	v := r.Counters("b_total", "B.", "one", "two")
	v.With("y", `quote " back \ line`+"\n").Inc()
	v.With("x", "").Add(3)
	r.Gauge("c", "C.").Set(math.Inf(-1))
	r.Gauges("never_set", "Not written.", "label")
	r.Func(func(_ context.Context, t *Text) {
		t.Family("d", "D.", KindGauge)
		t.Rendered(1e18, 1700000000123, Labels("l", "v"), "more", "w")
		t.Sample(12345678)
	})
	const want = `# HELP a_total Says a\nand \\ more.
# TYPE a_total counter
a_total 2.5
# HELP b_total B.
# TYPE b_total counter
b_total{one="x",two=""} 3
b_total{one="y",two="quote \" back \\ line\n"} 1
# HELP c C.
# TYPE c gauge
c -Inf
# HELP d D.
# TYPE d gauge
d{l="v",more="w"} 1e+18 1700000000123
d 12345678
`
	got := written(t, r)
	if got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	families := exposition.Parse(t, got)
	if help := families["a_total"].GetHelp(); help != "Says a\nand \\ more." {
		t.Errorf("help that Prometheus reads: got %q, want two lines with a backslash", help)
	}
	if value := families["b_total"].Metric[1].Label[1].GetValue(); value != `quote " back \ line`+"\n" {
		t.Errorf("label that Prometheus reads: got %q, want a quote, a backslash and a line end", value)
	}
}

// The kernel takes nearly every byte in the name of a network interface.
func TestLabelsAreUTF8(t *testing.T) {
	r := &Registry{}
	r.Gauges("bytes", "B.", "interface").With("a\xff").Set(1)
	r.Func(func(_ context.Context, t *Text) {
		t.Family("packets", "P.", KindGauge)
		t.Rendered(2, 0, Labels("pod", "p"), "interface", "\xfe\xff\"é")
	})
	const want = "# HELP bytes B.\n# TYPE bytes gauge\nbytes{interface=\"a\uFFFD\"} 1\n" +
		"# HELP packets P.\n# TYPE packets gauge\npackets{pod=\"p\",interface=\"\uFFFD\\\"é\"} 2\n"
	if got := written(t, r); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestHistogramsAreCumulative(t *testing.T) {
	r := &Registry{}
	h := r.Histograms("h_seconds", "H.", []float64{0.1, 1}, "op")
	one := h.With("get")
	one.Took(100 * time.Millisecond) // on a bound: belongs to it
	one.Observe(0.5)
	one.Observe(7)
	const want = `# HELP h_seconds H.
# TYPE h_seconds histogram
h_seconds_bucket{op="get",le="0.1"} 1
h_seconds_bucket{op="get",le="1"} 2
h_seconds_bucket{op="get",le="+Inf"} 3
h_seconds_sum{op="get"} 7.6
h_seconds_count{op="get"} 3
`
	if got := written(t, r); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	h.Forget(func(v []string) bool { return v[0] == "get" })
	if got := written(t, r); got != "" {
		t.Errorf("got after Forget:\n%s\nwant nothing", got)
	}
}

func TestHandlerCompressesIfAccepted(t *testing.T) {
	r := &Registry{}
	r.Counter("a_total", "A.").Inc()
	AddProcess(r)
	server := httptest.NewServer(r.Handler())
	defer server.Close()
	read := func(encoding string) string {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		req.Header.Set("Accept-Encoding", encoding)
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got := resp.Header.Get("Content-Type"); got != contentType {
			t.Errorf("content type: got %q, want %q", got, contentType)
		}
		var body io.Reader = resp.Body
		if resp.Header.Get("Content-Encoding") == "gzip" {
			if body, err = gzip.NewReader(body); err != nil {
				t.Fatal(err)
			}
		} else if encoding == "gzip" {
			t.Error("got an answer that is not compressed, want gzip")
		}
		text, err := io.ReadAll(body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, encoding := range []string{"identity", "gzip"} {
		text := read(encoding)
		for _, want := range []string{
			"a_total 1\n", "\ngo_goroutines ", "\nprocess_cpu_seconds_total ", "\nprocess_resident_memory_bytes ",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: got no %q, want it in:\n%s", encoding, want, text)
			}
		}
	}
}

func TestRuntimeOperationsHaveTheKubeletsNames(t *testing.T) {
	for verb, want := range map[string]string{
		"RunPodSandbox": "run_podsandbox", "PodSandboxStatus": "podsandbox_status", "ListPodSandbox": "list_podsandbox",
		"ListPodSandboxStats": "list_podsandbox_stats", "CreateContainer": "create_container", "ExecSync": "exec_sync",
		"UpdateContainerResources": "update_container", "ImageFsInfo": "image_fs_info", "Version": "version",
		"PullImage":          "pull_image",
		"ReopenContainerLog": "reopen_container_log", "UpdatePodSandboxResources": "update_podsandbox_resources",
		"GetContainerEvents": "get_container_events", "UpdateRuntimeConfig": "update_runtime_config",
	} {
		if got := runtimeOperation(verb); got != want {
			t.Errorf("%s: got %s, want %s", verb, got, want)
		}
	}
}

// TestOutdatedRuntime checks that a runtime that does not report its cgroup driver is known to lose support, and that
// no other failure says so.
func TestOutdatedRuntime(t *testing.T) {
	const losing = `kubelet_cri_losing_support{version="1.38.0"} 1`
	for _, test := range []struct {
		verb string
		code codes.Code
		want bool
	}{
		{"RuntimeConfig", codes.Unimplemented, true},
		{"RuntimeConfig", codes.Unavailable, false},
		{"GetContainerEvents", codes.Unimplemented, false},
	} {
		r := &Registry{}
		NewAgent(r, "node").RuntimeCall(test.verb, 0, fmt.Errorf("%s: %w", test.verb, status.Error(test.code, "")))
		if got := strings.Contains(written(t, r), losing); got != test.want {
			t.Errorf("%s with %s: got the metric: %t, want %t", test.verb, test.code, got, test.want)
		}
	}
}

func TestImageSizes(t *testing.T) {
	for bytes, want := range map[uint64]string{
		0: "0-10MB", 10 << 20: "10MB-100MB", 3 << 30: "1GB-5GB", 1 << 40: "GT100GB",
	} {
		if got := ImageSize(bytes); got != want {
			t.Errorf("%d: got %s, want %s", bytes, got, want)
		}
	}
}
