package cni

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/cni/shim"
)

func TestParseNetwork(t *testing.T) {
	for _, test := range []struct{ want, text string }{
		{"not JSON", `{`},
		{"not JSON", ``},
		{"not a network configuration", `[]`},
		{"no plugin", `{"cniVersion":"1.0.0","name":"a"}`},
		{"no plugin", `{"cniVersion":"1.0.0","name":"a","plugins":[]}`},
		{"not a network configuration", `{"cniVersion":"1.0.0","name":"a","plugins":7}`},
		{"failed to parse plugin config 0", `{"cniVersion":"1.0.0","name":"a","plugins":[7]}`},
		{"missing 'type'", `{"cniVersion":"1.0.0","name":"a","plugins":[{}]}`},
		{"no name", `{"cniVersion":"1.0.0","plugins":[{"type":"x"}]}`},
		{`"name" "a b"`, `{"cniVersion":"1.0.0","name":"a b","plugins":[{"type":"x"}]}`},
		{`unknown "cniVersion" "9.1.0"`, `{"cniVersion":"9.1.0","name":"a","plugins":[{"type":"x"}]}`},
		{"invalid cniVersion type", `{"cniVersion":1,"name":"a","plugins":[{"type":"x"}]}`},
		{"is not the name of a program", `{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"../../sh"}]}`},
		{"is not the name of a program", `{"cniVersion":"1.0.0","name":"a","type":"/bin/sh"}`},
		{"", `{"cniVersion":"1.0.0","name":"a","type":"x"}`},
		{"", `{"cniVersion":"0.3.1","name":"a","plugins":[{"type":"x"}]}`},
		{"", `{"cniVersion":"1.1.0","name":"a","plugins":[{"type":"x"},{"type":"y","ipam":{"type":"z"}}]}`},
	} {
		n, err := parseNetwork([]byte(test.text))
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: got %v, want no error", test.text, err)
		case test.want == "" && n.Name != "a":
			t.Errorf("%s: got %+v, want the name a", test.text, n)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: %v; test.want an error with %q", test.text, err, test.want)
		}
	}
	n, err := parseNetwork([]byte(`{"name":"a","plugins":[{"type":"x"},{"type":"y","ipam":{"type":"z"}},{"type":"x"}]}`))
	if err != nil || strings.Join(programs(n), " ") != "x y" {
		t.Errorf("got %v, %v, want the plugins x and y", programs(n), err)
	}
}

// TestAddedPlugins checks that a network has the plugins in the directory with its name, as for libcni.
func TestAddedPlugins(t *testing.T) {
	const list = `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"first"}]`
	for name, test := range map[string]struct {
		file  string
		added map[string]string
		want  string
	}{
		"none":            {list + "}", nil, "first"},
		"beside inlined":  {list + "}", map[string]string{"b.conf": `{"type":"c"}`, "a.conf": `{"type":"b"}`}, "first b c"},
		"only added":      {`{"cniVersion":"1.0.0","name":"net"}`, map[string]string{"a.conf": `{"type":"b"}`}, "b"},
		"other files":     {list + "}", map[string]string{"a.json": `{"type":"b"}`, "b.conflist": `{}`}, "first"},
		"refused by list": {list + `,"loadOnlyInlinedPlugins":true}`, map[string]string{"a.conf": `{"type":"b"}`}, "first"},
		"single plugin":   {`{"name":"net","type":"a"}`, map[string]string{"a.conf": `{"type":"b"}`}, "a"},
		"broken":          {list + "}", map[string]string{"a.conf": `{}`}, "!a.conf: error parsing configuration: missing"},
		"odd type":        {list + "}", map[string]string{"a.conf": `{"type":"../b"}`}, "!is not the name of a program"},
		"no plugin":       {`{"cniVersion":"1.0.0","name":"net"}`, map[string]string{"a.json": `{}`}, "!no plugin"},
		"large":           {list + "}", map[string]string{"a.conf": strings.Repeat(" ", maxConfig+1)}, "!too large"},
		"together large": {list + "}", map[string]string{
			"a.conf": `{"type":"` + strings.Repeat("x", maxConfig-11) + `"}`}, "!larger than"},
	} {
		dir := t.TempDir()
		file, added := filepath.Join(dir, "10-net.conflist"), filepath.Join(dir, "net")
		err := os.WriteFile(file, []byte(test.file), 0o600)
		if test.added != nil {
			err = errors.Join(err, os.Mkdir(added, 0o700))
		}
		for name, text := range test.added {
			err = errors.Join(err, os.WriteFile(filepath.Join(added, name), []byte(text), 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
		n, err := readNetwork(file)
		if want, fails := strings.CutPrefix(test.want, "!"); fails || err != nil {
			if !fails || err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %q", name, err, test.want)
			}
			continue
		}
		flat, err := flatten(n, nil)
		if err == nil {
			err = os.WriteFile(file, flat, 0o600)
		}
		again, errAgain := readNetwork(file)
		whole, errWhole := parseNetwork(n.Bytes)
		if err := errors.Join(err, errAgain, errWhole); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for what, n := range map[string]*Network{"read": n, "stored and read": again, "in its bytes": whole} {
			if got := strings.Join(programs(n), " "); got != test.want {
				t.Errorf("%s, %s: got %q, want %q", name, what, got, test.want)
			}
		}
	}
}

func TestParseSelections(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "",
		"blue":                       "home/blue@net1",
		" blue , default/green@eth1": "home/blue@net1 default/green@eth1",
		"kube-system/blue":           "kube-system/blue@net1",
		"blue,far/green":             "!network far/green: the pod may select only networks of its own namespace home",
		"blue,blue":                  "home/blue@net1 home/blue@net2",
		`[{"name":"blue"}]`:          "home/blue@net1",
		`[{"name":"blue","namespace":"default","interface":"x","mac":"0a:58:0a:00:00:07","ips":["10.0.0.7"],
			"infiniband-guid":"g"}]`: "default/blue@x",
		"blue,":                       "!is not a valid network",
		"Blue":                        "!is not a valid network",
		"../blue":                     "!is not a valid network",
		"blue@":                       "home/blue@net1",
		"blue@a/b":                    "!interface",
		"blue@lo":                     "!already used",
		"blue@x,green@x":              "!already used",
		"blue@averylonginterfacename": "!interface",
		"[":                           "!not a list",
		`[{"name":"blue"}] x`:         "!after the list",
		`{"name":"blue"}`:             "!is not a valid network",
		`[{"name":7}]`:                "!not a list",
		`[{"name":"b","default-route":["10.0.0.1"]}]`:    "!network home/b: default-route is not supported",
		`[{"name":"b","portMappings":[{"hostPort":1}]}]`: "!network home/b: portMappings is not allowed",
		`[{"name":"b","mac":"blue"}]`:                    `!network home/b: mac "blue"`,
		`[{"name":"b","ips":["10.0.0.1","10.0.0"]}]`:     `!network home/b: ips: "10.0.0"`,
		strings.Repeat("a,", 40) + "a":                   "!limit is 32",
		strings.Repeat("a", 253):                         "home/" + strings.Repeat("a", 253) + "@net1",
		strings.Repeat("a", 254):                         "!is not a valid network",
	} {
		all, err := parseSelections(text, "home")
		var got []string
		for _, s := range all {
			got = append(got, s.label()+"@"+s.IfName)
		}
		if bad, ok := strings.CutPrefix(want, "!"); ok {
			if err == nil || !strings.Contains(err.Error(), bad) {
				t.Errorf("%q: got %v, %v, want an error with %q", text, got, err, bad)
			}
		} else if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: got %v, %v, want %q", text, got, err, want)
		}
	}
	all, err := parseSelections(`[{"name":"b","mac":"0a:58:0a:00:00:07","ips":["10.0.0.7/24","fd00::7"],
		"infiniband-guid":"g","bandwidth":{"ingressRate":1},"portMappings":[],"deviceID":"d"}]`, "home")
	if err != nil {
		t.Fatal(err)
	}
	if c := all[0].capabilities(); len(c) != 5 || c["infinibandGUID"] != "g" || c["mac"] != "0a:58:0a:00:00:07" ||
		c["deviceID"] != "d" {
		t.Errorf("capabilities: got %v, want all five", c)
	}
}

func TestParseDefaultNetwork(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "",
		" blue ":                                "kube-system/blue",
		"default/blue@eth0":                     "default/blue",
		"home/blue":                             "home/blue",
		"far/blue":                              "!network far/blue: the pod may select only networks",
		`[{"name":"b","portMappings":[{}]}]`:    "!network kube-system/b: portMappings is not allowed",
		`[{"name":"blue","ips":["10.0.0.7"]}]`:  "kube-system/blue",
		"blue,green":                            "!got 2 networks",
		"blue@net1":                             "!must be eth0",
		"../blue":                               "!is not a valid network",
		`[{"name":"b","default-route":["::"]}]`: "!default-route is not supported",
		`[{"name":"blue","colour":"of the sky"}]`: "!not a list",
	} {
		s, err := parseDefaultNetwork(text, "home")
		if bad, ok := strings.CutPrefix(want, "!"); ok {
			if err == nil || !strings.Contains(err.Error(), bad) || !strings.Contains(err.Error(), defaultNetworkAnnotation) {
				t.Errorf("%q: got %v, %v, want an error with %q", text, s, err, bad)
			}
		} else if err != nil || (s == nil) != (want == "") || s != nil && (s.label() != want || s.IfName != "eth0") {
			t.Errorf("%q: got %v, %v, want %q", text, s, err, want)
		}
	}
}

func TestParseDefinition(t *testing.T) {
	for _, test := range []struct{ want, text string }{
		{"", `{"metadata":{"name":"blue","namespace":"x"},"spec":{"config":"{\"type\":\"a\"}"}}`},
		{"", `{"metadata":{"name":"blue","namespace":"x"},"spec":{"config":"{\"name\":\"n\",\"type\":\"a\"}"}}`},
		{"x/blue is not a JSON object", `{"metadata":{"name":"blue","namespace":"x"},"spec":{"config":"oops"}}`},
		{"x/blue is empty", `{"metadata":{"name":"blue","namespace":"x"},"spec":{}}`},
		{"no plugin", `{"metadata":{"name":"blue","namespace":"x"},"spec":{"config":"{}"}}`},
		{"parse the NetworkAttachmentDefinition", `oops`},
	} {
		_, err := ParseDefinition([]byte(test.text))
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v; test.want %q", test.text, err, test.want)
		}
	}
}

func FuzzParseNetwork(f *testing.F) {
	f.Add([]byte(chain("a", "b")))
	f.Add([]byte(`{"cniVersion":"1.0.0","name":"a","type":"x","capabilities":{"a":true},"cniVersions":["0.1.0"],
		"disableCheck":"true"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		n, err := parseNetwork(text)
		if err != nil {
			return
		}
		flat, err := flatten(n, map[string]any{"a": "b"})
		if err != nil {
			return // odd "args"
		}
		again, err := parseNetwork(flat)
		if err != nil || again.Name != n.Name || len(again.Plugins) != len(n.Plugins) {
			t.Fatalf("%q written as %q: got %v, want the same network", text, flat, err)
		}
	})
}

func FuzzParseSelections(f *testing.F) {
	f.Add("a,b/c@d")
	f.Add(`[{"name":"blue","ips":["a"],"mac":"x","cni-args":{"a":{}}}]`)
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseSelections(text, "home")
		seen := map[string]bool{}
		for _, s := range all {
			if err == nil && (s.IfName == "" || seen[s.IfName] || strings.ContainsAny(s.label()[len(s.Namespace)+1:], "/\\ ")) {
				t.Fatalf("%q: got %+v, want interfaces of their own and plain names", text, all)
			}
			seen[s.IfName] = true
		}
	})
}

// FuzzSocket checks that the quick reader finds what the real one finds, or nothing.
func FuzzSocket(f *testing.F) {
	f.Add(`{"a":{"socket":"/no"},"socket":"/yes","b":"\"socket\":\"/no\""}`)
	f.Add(`{"socket" : "/yes" , "c":["socket",{"x":"}"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		got := shim.Socket(text)
		var parsed struct {
			Socket any `json:"socket"`
		}
		all := map[string]any{}
		if json.Unmarshal([]byte(text), &parsed) != nil || json.Unmarshal([]byte(text), &all) != nil || got == "" {
			return // what is no JSON did not come from a runtime
		}
		if want, _ := all["socket"].(string); got != want && strings.ToValidUTF8(got, "\uFFFD") != want {
			t.Fatalf("%q: got found %q, want %q", text, got, want)
		}
	})
}

func TestSocket(t *testing.T) {
	for text, want := range map[string]string{
		`{"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"socket":"/evil"}},"socket":"/good"}`: "/good",
		`{"runtimeConfig":{"socket":"/evil"}}`:                                                        "",
		`{"a":"socket","b":"/evil"}`:                                                                  "",
		`{"a":"\"socket\":\"/evil\"","socket":"/good"}`:                                               "/good",
		`{"socket":"/a","socket":"/b"}`:                                                               "",
		`{"so\u0063ket":"/a","socket":"/b"}`:                                                          "",
		`{"socket":"/a\u0041"}`:                                                                       "",
		`[{"socket":"/a"}]`:                                                                           "",
		`{"socket":7}`:                                                                                "",
		`{"socket":"/a`:                                                                               "",
	} {
		if got := shim.Socket(text); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

func TestRequestOverTheWire(t *testing.T) {
	r := &shim.Request{Command: "ADD", ContainerID: "c", Config: strings.Repeat("x", 70000), Parent: "12"}
	wire := r.Encode()
	var back shim.Request
	if n := shim.Length(wire); n != len(wire)-4 || !back.Decode(wire[4:]) || back != *r {
		t.Errorf("written and read again: got %+.100v, want the same", back)
	}
	for i := 4; i < 40; i++ {
		if back.Decode(wire[4:i]) {
			t.Errorf("the first %d bytes of a request: got a whole one, want none", i)
		}
	}
}
