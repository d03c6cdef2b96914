package images

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ring is a keyring in which each pattern's user is the pattern itself.
func ring(patterns ...string) keyring {
	var k keyring
	for _, p := range patterns {
		k.add(Source{}, map[string]*Login{p: {Username: p}})
	}
	k.sort()
	return k
}

func users(found []credential) (names []string) {
	for _, c := range found {
		names = append(names, c.login.Username)
	}
	return names
}

func TestLookup(t *testing.T) {
	for _, tc := range []struct {
		patterns   []string
		repository string
		want       []string
	}{
		{[]string{"quay.io"}, "quay.io/a/b", []string{"quay.io"}},
		{[]string{"quay.io"}, "other.io/a/b", nil},
		{[]string{"https://quay.io"}, "quay.io/a", []string{"https://quay.io"}},
		{[]string{"http://quay.io/v2/"}, "quay.io/a", []string{"http://quay.io/v2/"}},
		// The longer path comes first, then the others in turn.
		{
			[]string{"quay.io", "quay.io/coreos", "quay.io/core"},
			"quay.io/coreos/etcd",
			[]string{"quay.io/coreos", "quay.io/core", "quay.io"},
		},
		{[]string{"quay.io/coreos"}, "quay.io/other", nil},
		{[]string{"https://quay.io/v1/team"}, "quay.io/team/a", []string{"https://quay.io/v1/team"}},
		// Ports must be the same, also where there is none.
		{[]string{"localhost:5000"}, "localhost:5000/a", []string{"localhost:5000"}},
		{[]string{"localhost"}, "localhost:5000/a", nil},
		{[]string{"localhost:5000"}, "localhost/a", nil},
		{[]string{"*.io:5000"}, "quay.io:5000/a", []string{"*.io:5000"}},
		{[]string{"[fd00::1]:5000", "[fd00::2]:5000", "[fd00::1]"}, "[fd00::1]:5000/a", []string{"[fd00::1]:5000"}},
		{[]string{"https://[fd00::1]/v2/"}, "[fd00::1]/a", []string{"https://[fd00::1]/v2/"}},
		// A glob stays within its part of the name.
		{[]string{"*.example.com"}, "eu.example.com/a", []string{"*.example.com"}},
		{[]string{"*.example.com"}, "a.eu.example.com/a", nil},
		{[]string{"*.example.com"}, "example.com/a", nil},
		{[]string{"*"}, "example.com/a", nil},
		{[]string{"*.*"}, "example.com/a", []string{"*.*"}},
		{
			[]string{"*.dkr.ecr.*.amazonaws.com"},
			"123.dkr.ecr.eu-west-1.amazonaws.com/a",
			[]string{"*.dkr.ecr.*.amazonaws.com"},
		},
		{[]string{"eu-?.gcr.io"}, "eu-1.gcr.io/a", nil}, // ? begins a query in a URL
		{[]string{"[.io"}, "x.io/a", nil},
		{[]string{"", "https://", "https:///x", ":bad", "%zz"}, "x.io/a", nil},
		// Docker Hub, by its names.
		{[]string{"https://index.docker.io/v1/"}, "docker.io/library/busybox", []string{"https://index.docker.io/v1/"}},
		{[]string{"index.docker.io"}, "docker.io/team/app", []string{"index.docker.io"}},
		{[]string{"docker.io", "index.docker.io"}, "docker.io/team/app", []string{"docker.io"}},
		{[]string{"index.docker.io"}, "quay.io/a", nil},
		{[]string{"index.docker.io:443"}, "docker.io/a", nil},
	} {
		if got := users(ring(tc.patterns...).lookup(tc.repository)); !slices.Equal(got, tc.want) {
			t.Errorf("%v for %s: got %v, want %v", tc.patterns, tc.repository, got, tc.want)
		}
	}
}

func auth(user, password string) string {
	return base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
}

func TestDockerConfig(t *testing.T) {
	for name, tc := range map[string]struct {
		text    string
		want    map[string]Login
		skipped int
	}{
		"plain": {`{"r.io":{"username":"u","password":"p","email":"e"}}`, map[string]Login{"r.io": {"u", "p", "e"}},
			0},
		"auth": {`{"r.io":{"auth":"` + auth("u", "p") + `"}}`, map[string]Login{"r.io": {"u", "p", ""}}, 0},
		"auth wins": {`{"r.io":{"username":"x","password":"y","auth":"` + auth("u", "p") + `"}}`,
			map[string]Login{"r.io": {"u", "p", ""}}, 0},
		"unpadded": {`{"r.io":{"auth":"` + strings.TrimRight(auth("u", "pw"), "=") + `"}}`,
			map[string]Login{"r.io": {"u", "pw", ""}}, 0},
		"line break":   {`{"r.io":{"auth":"` + auth("u", "pw") + `\n"}}`, map[string]Login{"r.io": {"u", "pw", ""}}, 0},
		"colons":       {`{"r.io":{"auth":"` + auth("u", "p:q:") + `"}}`, map[string]Login{"r.io": {"u", "p:q:", ""}}, 0},
		"token only":   {`{"r.io":{"auth":"` + auth("", "t") + `"}}`, map[string]Login{"r.io": {"", "t", ""}}, 0},
		"helper":       {`{"r.io":{}}`, map[string]Login{}, 0},
		"one bad of 2": {`{"a.io":{"auth":"!!"},"b.io":{"username":"u"}}`, map[string]Login{"b.io": {"u", "", ""}}, 1},
		"no colon": {`{"a.io":{"auth":"` + base64.StdEncoding.EncodeToString([]byte("u")) + `"}}`, map[string]Login{},
			1},
		"wrong kind":    {`{"a.io":"x","b.io":{"username":7}}`, map[string]Login{}, 2},
		"null":          {`null`, map[string]Login{}, 0},
		"entry is null": {`{"r.io":null}`, map[string]Login{}, 0},
		"unknown field": {`{"r.io":{"username":"u","identitytoken":"x"}}`, map[string]Login{"r.io": {"u", "", ""}}, 0},
	} {
		for form, read := range map[string]func() (map[string]*Login, int, error){
			"dockercfg": func() (map[string]*Login, int, error) { return dockercfg([]byte(tc.text)) },
			"config.json": func() (map[string]*Login, int, error) {
				return dockerConfigJSON([]byte(`{"auths":` + tc.text +
					`}`))
			},
		} {
			got, skipped, err := read()
			if err != nil || skipped != tc.skipped || fmt.Sprint(len(got)) != fmt.Sprint(len(tc.want)) {
				t.Errorf("%s as %s: got %d logins, skipped %d, err %v, want %d", name, form, len(got), skipped, err, tc.skipped)
			}
			for registry, want := range tc.want {
				if l := got[registry]; l == nil || *l != want {
					t.Errorf("%s as %s: got another login of %s, want that of the file", name, form, registry)
				}
			}
		}
	}
}

func secret(name string, kind corev1.SecretType, key, text string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid-1"}, Type: kind,
		Data: map[string][]byte{key: []byte(text)}}
}

// TestSecretsStaySecret checks that secrets that cannot be read are named, and nothing of their content gets out.
func TestSecretsStaySecret(t *testing.T) {
	const hidden = "hunter2"
	k, problems := secretKeyring([]*corev1.Secret{
		secret("good", corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey,
			`{"auths":{"a.io":{"auth":"`+auth("u", hidden)+`"}}}`),
		secret("old", corev1.SecretTypeDockercfg, corev1.DockerConfigKey,
			`{"b.io":{"username":"u","password":"`+hidden+`"}}`),
		secret("broken", corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey,
			`{"auths":{"c.io":{"password":"`+hidden+`}}}`),
		secret("half", corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey,
			`{"auths":{"d.io":{"auth":"`+hidden+`"}}}`),
		secret("opaque", corev1.SecretTypeOpaque, corev1.DockerConfigJsonKey, `{"auths":{"e.io":{"password":"`+hidden+`"}}}`),
	})
	if len(k) != 2 || *k.lookup("a.io/x")[0].login != (Login{Username: "u", Password: hidden}) ||
		*k.lookup("b.io/x")[0].login != (Login{Username: "u", Password: hidden}) {
		t.Fatalf("got %d credentials, want 2", len(k))
	}
	if s := k.lookup("a.io/x")[0].source; s != (Source{UID: "uid-1", Namespace: "ns", Name: "good"}) {
		t.Errorf("source: got %+v, want the Secret ns/good", s)
	}
	for _, name := range []string{"broken", "half", "opaque"} {
		if !slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, "ns/"+name) }) {
			t.Errorf("got problems %q, want one that names %s", problems, name)
		}
	}
	j := job{credentials: k}
	l := k[0].login
	printed := fmt.Sprintf("%v %+v %#v %v %+v %#v %v %+v %#v %s %q", k, k, k, j, &j, j, l, l, *l, *l, problems)
	if strings.Contains(printed, hidden) || strings.Contains(printed, auth("u", hidden)) {
		t.Errorf("a password got out: %s", printed)
	}
}

// TestNodeConfig checks that the first file that is there and makes sense counts.
func TestNodeConfig(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	missing := filepath.Join(dir, "no/config.json")
	broken := write("broken/config.json", `{`)
	long := write("long/config.json", `{"auths":{"a.io":{"username":"`+strings.Repeat("x", maxConfig)+`"}}}`)
	first := write("1/config.json", `{"auths":{"a.io":{"username":"first"}}}`)
	second := write("2/.dockercfg", `{"a.io":{"username":"second"}}`)
	for _, tc := range []struct {
		files    []string
		want     []string
		problems int
	}{
		{nil, nil, 0},
		{[]string{missing}, nil, 0},
		{[]string{missing, first, second}, []string{"first"}, 0},
		{[]string{second, first}, []string{"second"}, 0},
		{[]string{broken, first}, []string{"first"}, 1},
		{[]string{long, broken}, nil, 2},
	} {
		k, problems := nodeKeyring(tc.files)
		if got := users(k.lookup("a.io/x")); !slices.Equal(got, tc.want) || len(problems) != tc.problems {
			t.Errorf("%v: got %v, %q", tc.files, got, problems)
		}
	}
}

// TestNodeConfigFiles checks the places of the node's credentials and their order. Without $HOME, which a service of
// systemd does not have, the home directory of root is not among them.
func TestNodeConfigFiles(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for home, want := range map[string][]string{
		"/home/a": {
			"/k/config.json", dir + "/config.json", "/home/a/.docker/config.json", "/.docker/config.json",
			"/k/.dockercfg", dir + "/.dockercfg", "/home/a/.dockercfg", "/.dockercfg",
		},
		"": {
			"/k/config.json", dir + "/config.json", dir + "/.docker/config.json", "/.docker/config.json",
			"/k/.dockercfg", dir + "/.dockercfg", "/.dockercfg",
		},
	} {
		t.Setenv("HOME", home)
		if got := nodeConfigFiles("/k"); !slices.Equal(got, want) {
			t.Errorf("HOME=%q: got %v, want %v", home, got, want)
		}
	}
}

// FuzzDockerConfig checks that untrusted configurations cause no panic, and every pattern in them can be looked up.
func FuzzDockerConfig(f *testing.F) {
	f.Add([]byte(`{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"}}}`), "docker.io/library/busybox")
	f.Add([]byte(`{"*.[a.io:5000/x":{"username":"u","password":"p"},"b":{"auth":"="}}`), "b.io:5000/x/y")
	f.Add([]byte(`{"auths":{"\u0000":{"auth":"Og=="},"http://%41:99999999":{"username":"x"}}}`), "")
	f.Fuzz(func(t *testing.T, text []byte, repository string) {
		for _, read := range []func([]byte) (map[string]*Login, int, error){dockercfg, dockerConfigJSON} {
			logins, _, err := read(text)
			if err != nil && err != errNotDockerConfig {
				t.Errorf("got an error that may quote what was read, want none: %v", err)
			}
			if err == nil && !json.Valid(text) {
				t.Errorf("%q: got no error, want one, because it is no JSON", text)
			}
			var k keyring
			k.add(Source{}, logins)
			k.sort()
			for _, c := range k.lookup(repository) {
				if *c.login == (Login{}) {
					t.Errorf("%q: got an empty login, want none", text)
				}
			}
		}
	})
}
