package provider

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

const head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n"

// one is a provider as a list entry in which some fields are replaced; a field without a value goes.
func one(replaced map[string]string) string {
	fields := map[string]string{
		"name":                 "ecr",
		"matchImages":          "['*.example.com']",
		"defaultCacheDuration": "12h",
		"apiVersion":           v1,
	}
	maps.Copy(fields, replaced)
	var all []string
	for k, v := range fields {
		if v != "" {
			all = append(all, k+": "+v)
		}
	}
	slices.Sort(all)
	return "- {" + strings.Join(all, ", ") + "}\n"
}

func tokens(fields string) map[string]string {
	return map[string]string{"tokenAttributes": "{" + fields + "}"}
}

const goodTokens = "serviceAccountTokenAudience: a, cacheType: Token, requireServiceAccount: true"

// TestConfig checks that what is wrong is said with the path of its field.
func TestConfig(t *testing.T) {
	const attributes = "providers[0].tokenAttributes"
	for name, tc := range map[string]struct{ text, want string }{
		"good": {head + one(nil), ""},
		"all fields": {head + one(map[string]string{
			"args":            "[a]",
			"env":             "[{name: A, value: b}]",
			"tokenAttributes": "{" + goodTokens + "}",
		}), ""},
		"JSON": {`{"apiVersion":"kubelet.config.k8s.io/v1alpha1","kind":"CredentialProviderConfig","providers":[]}`, ""},
		"beta": {strings.Replace(head, "/v1", "/v1beta1",
			1) + one(map[string]string{"apiVersion": v1 + "beta1", "defaultCacheDuration": "0s"}), ""},
		"empty":   {" \n", "the file is empty"},
		"no YAML": {"a: b: c", "mapping values"},
		"other kind": {strings.Replace(head, "CredentialProviderConfig", "KubeletConfiguration", 1),
			`kind: unsupported value "KubeletConfiguration"`},
		"other version": {strings.Replace(head, "/v1", "/v2", 1), `apiVersion: unsupported value "kubelet.config.k8s.io/v2"`},
		"two documents": {head + one(nil) + "---\n" + head, "more than one document"},
		"a list":        {"[]", "the file contains a list"},
		"unknown field": {head + one(map[string]string{"matchImage": "x"}), `providers[0].matchImage: unknown field; did`},
		"wrong case":    {head + one(map[string]string{"Args": "[x]"}), `providers[0].Args: unknown field`},
		"field twice":   {head + "- {name: a, name: b}\n", `"name" already set`},
		"wrong type":    {head + one(map[string]string{"matchImages": "x"}), `matchImages: "x" is not a list`},
		"secret": {head + one(map[string]string{"env": "[{name: KEY, value: 1234}]"}),
			"env[0].value: the value (not shown) is not text"},
		"no name":    {head + one(map[string]string{"name": ""}), "providers[0].name: it is missing"},
		"path":       {head + one(map[string]string{"name": "a/b"}), `providers[0].name: "a/b"`},
		"space":      {head + one(map[string]string{"name": "'a b'"}), `providers[0].name: "a b"`},
		"parent":     {head + one(map[string]string{"name": "'..'"}), `providers[0].name: ".."`},
		"no version": {head + one(map[string]string{"apiVersion": ""}), `providers[0].apiVersion: ""`},
		"second's version": {head + one(nil) + one(map[string]string{"name": "b", "apiVersion": "v1"}),
			`providers[1].apiVersion: "v1"`},
		"no patterns": {head + one(map[string]string{"matchImages": ""}), "providers[0].matchImages: it is missing"},
		"bad pattern": {head + one(map[string]string{"matchImages": "[a.io, '%zz']"}),
			`providers[0].matchImages[1]: "%zz"`},
		"empty pattern": {head + one(map[string]string{"matchImages": "['']"}), `providers[0].matchImages[0]: ""`},
		"no duration": {head + one(map[string]string{"defaultCacheDuration": ""}),
			"providers[0].defaultCacheDuration: it is missing"},
		"negative": {head + one(map[string]string{"defaultCacheDuration": "-1s"}),
			"providers[0].defaultCacheDuration: -1s"},
		"variable": {head + one(map[string]string{"env": "[{name: A=B, value: x}]"}), `providers[0].env[0]: "A=B"`},
		"argument": {head + one(map[string]string{"args": `["\0"]`}), "providers[0].args[0]"},
		"old tokens": {strings.Replace(head, "/v1", "/v1beta1", 1) + one(tokens(goodTokens)),
			attributes + ": it needs the file"},
		"old provider": {head + one(map[string]string{
			"apiVersion":      v1 + "beta1",
			"tokenAttributes": "{" + goodTokens + "}",
		}), attributes + ": it needs a provider"},
		"no audience": {head + one(tokens("cacheType: Token, requireServiceAccount: true")),
			attributes + ".serviceAccountTokenAudience"},
		"no cache type": {head + one(tokens("serviceAccountTokenAudience: a, requireServiceAccount: true")),
			attributes + ".cacheType"},
		"not required": {head + one(tokens("serviceAccountTokenAudience: a, cacheType: Token")),
			attributes + ".requireServiceAccount"},
		"nothing required": {head +
			one(tokens(strings.Replace(goodTokens, "true", "false", 1)+", requiredServiceAccountAnnotationKeys: [a/b]")),
			"they need requireServiceAccount: true"},
		"bad annotation": {head + one(tokens(goodTokens+", optionalServiceAccountAnnotationKeys: ['a b']")),
			attributes + `.optionalServiceAccountAnnotationKeys: "a b"`},
		"both annotations": {head +
			one(tokens(goodTokens+", requiredServiceAccountAnnotationKeys: [A/b], optionalServiceAccountAnnotationKeys: [A/b]")),
			`"A/b" is there twice`},
	} {
		_, err := decode([]byte(tc.text), true)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
	if _, err := decode([]byte(head+one(tokens(goodTokens))), false); err == nil ||
		!strings.Contains(err.Error(), "feature gate") {
		t.Errorf("tokens without the gate: got %v, want an error that names the gate", err)
	}
}

// TestDirectory checks that the files of a directory count together, in the order of their names, also for the hash of
// the configuration.
func TestDirectory(t *testing.T) {
	w := newWorld(t, "", "")
	for name, provider := range map[string]string{
		"conf/20.yml":         "c",
		"conf/10.yaml":        "b",
		"conf/05.json":        "a",
		"conf/00.conf":        "none",
		"conf/00.yaml/x.yaml": "none",
	} {
		w.write(t, name, head+one(map[string]string{"name": provider}))
	}
	for _, name := range []string{"a", "b", "c"} {
		w.write(t, "bin/"+name, "#!/bin/sh\n")
	}
	w.options.Config = w.path("conf")
	var names []string
	started := w.start(t)
	for _, p := range started.all {
		names = append(names, p.program.name)
	}
	if !slices.Equal(names, []string{"a", "b", "c"}) {
		t.Errorf("order: got %q, want a, b, c", names)
	}
	// The kubelet shows this hash for the same files.
	if want := "sha256:6c8265d3a25297115e5643e35007afe9c347f28543dd61e7b36bbce3f6a6594a"; started.Hash != want {
		t.Errorf("hash: got %s, want %s", started.Hash, want)
	}
	w.write(t, "conf/30.yaml", head+one(map[string]string{"name": "b"}))
	if _, err := New(w.options); err == nil ||
		!strings.Contains(err.Error(), `conf/30.yaml: provider "b" is already in `+w.path("conf/10.yaml")) {
		t.Errorf("the same name twice: got %v, want an error that names both files", err)
	}
}

// TestStartFails checks that with a wrong configuration there are no providers at all.
func TestStartFails(t *testing.T) {
	w := newWorld(t, "", "")
	w.write(t, "empty/readme.txt", "")
	w.write(t, "none.yaml", head+" []\n")
	w.write(t, "typo.yaml", head+one(map[string]string{"apiVersion": "v1"}))
	w.write(t, "away.yaml", head+one(map[string]string{"name": "away"}))
	w.write(t, "directory.yaml", head+one(map[string]string{"name": "sub"}))
	w.write(t, "bin/sub/file", "")
	const config, bin = "--image-credential-provider-config: ", "--image-credential-provider-bin-dir: "
	for _, tc := range []struct{ config, bin, want string }{
		{"", "bin", config + "it is not set"},
		{"config.yaml", "", bin + "it is not set"},
		{"missing.yaml", "bin", config + "stat " + w.path("missing.yaml")},
		{"empty", "bin", config + w.path("empty") + " has no file"},
		{"none.yaml", "bin", config + w.path("none.yaml") + ": providers: the list is empty"},
		{"typo.yaml", "bin", config + w.path("typo.yaml") + ": providers[0].apiVersion"},
		{"away.yaml", "bin", bin + "credential provider away has no executable program"},
		{"directory.yaml", "bin", bin + "credential provider sub has no executable program"},
		{"config.yaml", "nowhere", bin + "credential provider login has no executable program"},
	} {
		o := Options{Tokens: true}
		if tc.config != "" {
			o.Config = w.path(tc.config)
		}
		if tc.bin != "" {
			o.BinDir = w.path(tc.bin)
		}
		if _, err := New(o); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("%q and %q: got %v, want %q", tc.config, tc.bin, err, tc.want)
		}
	}
}

// FuzzConfig checks that no configuration makes a panic, and what is taken can be used.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(head + one(nil)))
	f.Add([]byte(head + one(tokens(goodTokens))))
	f.Add([]byte(`{"apiVersion":"kubelet.config.k8s.io/v1","kind":"CredentialProviderConfig","providers":[null,
		{"env":[null]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := decode(text, true)
		for _, p := range all {
			if err == nil && (p.Name == "" || strings.Contains(p.Name, "/") || p.DefaultCacheDuration == nil ||
				len(p.MatchImages) == 0) {
				t.Errorf("%q: got no error, want one", text)
			}
		}
	})
}
