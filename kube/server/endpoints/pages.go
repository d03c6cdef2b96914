package endpoints

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodelet/nodelet/internal/release"
)

// component is the name under which the pages show the agent.
const component = "kubelet"

// page is a status page in the formats that the components of Kubernetes share (KEP-4827, KEP-4828): text, or an object
// of the group config.k8s.io for a client that asks for one.
type page struct {
	kind   string // of the object, such as Flagz
	text   func(w io.Writer)
	object func(head objectHead) any
}

// objectHead begins the object of a page.
type objectHead struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name string `json:"name"`
	} `json:"metadata"`
}

func (p page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	format, version, ok := p.negotiate(r.Header.Get("Accept"))
	switch {
	case !ok:
		http.Error(w, "only text/plain, and application/json and application/yaml with "+
			"g=config.k8s.io;v=v1beta1;as="+p.kind+" are served", http.StatusNotAcceptable)
		return
	case format == "text/plain":
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(w, "\n%s %s\nWarning: This endpoint is not meant to be machine parseable, has no formatting "+
			"compatibility guarantees and is for debugging purposes only.\n", component, strings.ToLower(p.kind))
		p.text(w)
		return
	case version == "v1alpha1":
		w.Header().Set("Warning", fmt.Sprintf(`299 - "This version of the %s endpoint is deprecated. `+
			`Please use a newer version."`, strings.ToLower(p.kind)))
	}
	head := objectHead{TypeMeta: metav1.TypeMeta{Kind: p.kind, APIVersion: "config.k8s.io/" + version}}
	head.Metadata.Name = component
	text, err := json.Marshal(p.object(head))
	if err == nil && format == "application/yaml" {
		text, err = yaml.JSONToYAML(text)
	}
	if err != nil {
		http.Error(w, "encode the page: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", format)
	_, _ = w.Write(text)
}

// negotiate returns the first format of an Accept header that the page has, and the version of the object. ok is false
// if there is none.
func (p page) negotiate(accept string) (format, version string, ok bool) {
	if strings.TrimSpace(accept) == "" {
		return "text/plain", "", true
	}
	for part := range strings.SplitSeq(accept, ",") {
		format, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		switch format {
		case "text/plain", "text/*", "*/*":
			return "text/plain", "", true
		case "application/json", "application/yaml":
			version := params["v"]
			known := version == "v1alpha1" || version == "v1beta1"
			if known && params["g"] == "config.k8s.io" && params["as"] == p.kind {
				return format, version, true
			}
		}
	}
	return "", "", false
}

// statusPage shows the program, its start time and its paths. As in the kubelet its versions have no leading v.
func statusPage(began time.Time, version string, paths []string) http.Handler {
	up := func() int64 { return int64(time.Since(began).Seconds()) }
	version = strings.TrimPrefix(version, "v")
	return page{
		kind: "Statusz",
		text: func(w io.Writer) {
			s := up()
			fmt.Fprintf(w, "\nStarted: %s\nUp: %d hr %02d min %02d sec\nGo version: %s\nBinary version: %s\n"+
				"Emulation version: %s\nPaths: %s\n", began.UTC().Format(time.UnixDate), s/3600, s/60%60, s%60,
				runtime.Version(), version, release.Minor(), strings.Join(paths, " "))
		},
		object: func(head objectHead) any {
			return struct {
				objectHead
				StartTime        metav1.Time `json:"startTime"`
				UptimeSeconds    int64       `json:"uptimeSeconds"`
				GoVersion        string      `json:"goVersion"`
				BinaryVersion    string      `json:"binaryVersion"`
				EmulationVersion string      `json:"emulationVersion"`
				Paths            []string    `json:"paths"`
			}{head, metav1.NewTime(began), up(), runtime.Version(), version, release.Minor(), paths}
		},
	}
}

// flagsPage lists all flags and their values; /configz shows the whole configuration.
func flagsPage(flags map[string]string) http.Handler {
	return page{
		kind: "Flagz",
		text: func(w io.Writer) {
			for _, name := range slices.Sorted(maps.Keys(flags)) {
				fmt.Fprintf(w, "%s=%s\n", name, flags[name])
			}
		},
		object: func(head objectHead) any {
			return struct {
				objectHead
				Flags map[string]string `json:"flags,omitempty"`
			}{head, flags}
		},
	}
}
