package endpoints

import (
	"encoding/json"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodelet/nodelet/internal/release"
	"github.com/nodelet/nodelet/kube/server"
)

// TestPagesNegotiate checks which format a client gets: text, or the object of config.k8s.io that it asks for.
func TestPagesNegotiate(t *testing.T) {
	h := flagsPage(map[string]string{"v": "4", "config": "/c.yaml"})
	const object = ";g=config.k8s.io;as=Flagz;v="
	for accept, want := range map[string]struct {
		code int
		text string
	}{
		"":                                 {200, "kubelet flagz\n"},
		"text/plain":                       {200, "config=/c.yaml\nv=4\n"},
		"*/*":                              {200, "kubelet flagz\n"},
		"application/json":                 {406, ""},
		"application/json;g=x;as=Flagz":    {406, ""},
		"application/cbor" + object + "v1": {406, ""},
		"application/json" + object + "v1beta1": {200, `{"kind":"Flagz","apiVersion":"config.k8s.io/v1beta1",` +
			`"metadata":{"name":"kubelet"},"flags":{"config":"/c.yaml","v":"4"}}`},
		"application/yaml" + object + "v1alpha1":        {200, "apiVersion: config.k8s.io/v1alpha1\nflags:\n  c"},
		"application/json, text/plain;q=0.5":            {200, "kubelet flagz\n"},
		"application/json;as=Statusz;v=v1beta1;g=other": {406, ""},
	} {
		r := httptest.NewRequest("GET", "/flagz", nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want.code || !strings.Contains(w.Body.String(), want.text) {
			t.Errorf("Accept %q: got %d %q, want %d with %q", accept, w.Code, w.Body, want.code, want.text)
		}
		if deprecated := w.Header().Get("Warning") != ""; deprecated != strings.Contains(accept, "v1alpha1") {
			t.Errorf("Accept %q: got warning %q", accept, w.Header().Get("Warning"))
		}
	}
}

// TestConfigz checks that /configz shows the configuration of the moment.
func TestConfigz(t *testing.T) {
	driver := "cgroupfs"
	mounts := Mounts(Config{Configuration: func() any { return map[string]string{"cgroupDriver": driver} }}, nil)
	i := slices.IndexFunc(mounts, func(m server.Mount) bool { return m.Path == "/configz" })
	driver = "systemd" // as the runtime says later
	w := httptest.NewRecorder()
	mounts[i].Handler.ServeHTTP(w, httptest.NewRequest("GET", "/configz", nil))
	if want := `{"kubeletconfig":{"cgroupDriver":"systemd"}}`; strings.TrimSpace(w.Body.String()) != want {
		t.Errorf("/configz: got %s, want %s", w.Body, want)
	}
}

// TestStatusPage checks the text and the object of /statusz against those of the kubelet.
func TestStatusPage(t *testing.T) {
	began := time.Now().Add(-(26*time.Hour + 3*time.Minute))
	h := statusPage(began, "v1.2.3+nodelet.0.1.0", []string{"/healthz", "/pods"})
	get := func(accept string) string {
		r := httptest.NewRequest("GET", "/statusz", nil)
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Body.String()
	}
	text := get("text/plain")
	for _, want := range []string{
		`\nUp: 26 hr \d\d min \d\d sec\n`, `\nBinary version: 1\.2\.3\+nodelet\.0\.1\.0\n`,
		`\nEmulation version: 1\.\d+\n`, `\nPaths: /healthz /pods\n$`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("text: got %q, want %q in it", text, want)
		}
	}
	var got struct {
		Kind             string
		BinaryVersion    string
		EmulationVersion string
		UptimeSeconds    int
		Paths            []string
	}
	if err := json.Unmarshal([]byte(get("application/json;as=Statusz;v=v1beta1;g=config.k8s.io")), &got); err != nil {
		t.Fatal(err)
	}
	if got.Kind != "Statusz" || got.BinaryVersion != "1.2.3+nodelet.0.1.0" || got.UptimeSeconds < 26*3600+180 ||
		got.EmulationVersion != release.Minor() || len(got.Paths) != 2 {
		t.Errorf("got %+v, want a Statusz of 1.2.3, up for 26 hours, which emulates %s, with two paths",
			got, release.Minor())
	}
}
