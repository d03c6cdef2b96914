package records

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodelet/nodelet/test/waittest"
)

const preloaded = "NeverVerifyPreloadedImages"

func open(t *testing.T, root, policy string, exempt ...string) *Store {
	t.Helper()
	s, err := Open(root, policy, exempt, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func secret(namespace, name, uid, hash string) Credentials {
	return Credentials{Secrets: []Secret{{UID: uid, Namespace: namespace, Name: name, CredentialHash: hash}}}
}

func account(namespace, name, uid string) Credentials {
	return Credentials{ServiceAccounts: []ServiceAccount{{UID: uid, Namespace: namespace, Name: name}}}
}

// pulled records a pull from its beginning to its end.
func pulled(t *testing.T, s *Store, image, ref string, c Credentials) {
	t.Helper()
	if err := s.Begin(t.Context(), image); err != nil {
		t.Fatal(err)
	}
	s.Succeeded(t.Context(), image, ref, c)
}

func allowed(t *testing.T, s *Store, image, ref string, pod Credentials) bool {
	t.Helper()
	ok, err := s.Allowed(t.Context(), image, ref, func() Credentials { return pod })
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

// TestAllowed checks which pods may use an image that was pulled, by what they have.
func TestAllowed(t *testing.T) {
	const image, ref = "r.io/app:1", "sha256:1"
	for name, tc := range map[string]struct {
		used, pod Credentials
		image     string
		want      bool
	}{
		"same secret":                  {used: secret("a", "s", "u", "h"), pod: secret("a", "s", "u", "h"), want: true},
		"same login in another secret": {used: secret("a", "s", "u", "h"), pod: secret("b", "t", "v", "h"), want: true},
		"rotated login, same object":   {used: secret("a", "s", "u", "h"), pod: secret("a", "s", "u", "new"), want: true},
		"another secret":               {used: secret("a", "s", "u", "h"), pod: secret("b", "s", "v", "other")},
		"re-created, same name":        {used: secret("a", "s", "u", "h"), pod: secret("a", "s", "v", "other")},
		"no hash on both sides":        {used: secret("a", "s", "u", ""), pod: secret("b", "t", "v", "")},
		"no secret":                    {used: secret("a", "s", "u", "h")},
		"without credentials":          {used: Credentials{EveryPod: true}, want: true},
		"unknown credentials":          {pod: secret("a", "s", "u", "h")},
		"same account":                 {used: account("a", "s", "u"), pod: account("a", "s", "u"), want: true},
		"same account with new UID":    {used: account("a", "s", "u"), pod: account("a", "s", "v")},
		"account of another namespace": {used: account("a", "s", "u"), pod: account("b", "s", "u")},
		"another tag": {
			used:  secret("a", "s", "u", "h"),
			pod:   secret("a", "s", "u", "h"),
			image: "r.io/app:2",
			want:  true,
		},
		"by digest": {used: secret("a", "s", "u", "h"), pod: secret("a", "s", "u", "h"),
			image: "r.io/app@sha256:" + strings.Repeat("0", 64), want: true},
		"another repository": {used: secret("a", "s", "u", "h"), pod: secret("a", "s", "u", "h"), image: "r.io/other:1"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			s := open(t, root, preloaded)
			pulled(t, s, image, ref, tc.used)
			if tc.image == "" {
				tc.image = image
			}
			if got := allowed(t, s, tc.image, ref, tc.pod); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
			if got := allowed(t, open(t, root, preloaded), tc.image, ref, tc.pod); got != tc.want {
				t.Errorf("after a restart: got %t, want %t", got, tc.want)
			}
		})
	}
}

// TestPolicies checks when a pod without credentials may use an image, by policy.
func TestPolicies(t *testing.T) {
	exempt := []string{"r.io/free", "r.io/team/*"}
	for _, tc := range []struct {
		policy    string
		image     string
		preloaded bool
		want      bool
	}{
		{"NeverVerify", "r.io/app", false, true},
		{"NeverVerify", "r.io/app", true, true},
		{preloaded, "r.io/app", false, false},
		{preloaded, "r.io/app", true, true},
		{"NeverVerifyAllowlistedImages", "r.io/app", true, false},
		{"NeverVerifyAllowlistedImages", "r.io/free:1", true, true},
		{"NeverVerifyAllowlistedImages", "r.io/free:1", false, true},
		{"NeverVerifyAllowlistedImages", "r.io/freedom", true, false},
		{"NeverVerifyAllowlistedImages", "r.io/team/a/b:1", true, true},
		{"NeverVerifyAllowlistedImages", "r.io/teams", true, false},
		{"AlwaysVerify", "r.io/app", true, false},
		{"AlwaysVerify", "r.io/app", false, false},
	} {
		s := open(t, t.TempDir(), tc.policy, exempt...)
		if !tc.preloaded {
			pulled(t, s, tc.image, "sha256:1", secret("a", "s", "u", "h"))
		}
		if got := allowed(t, s, tc.image, "sha256:1", Credentials{}); got != tc.want {
			t.Errorf("%s, %s, preloaded %t: got %t, want %t", tc.policy, tc.image, tc.preloaded, got, tc.want)
		}
	}
}

// TestUnfinishedPull checks that an image whose pull has begun does not look preloaded, whatever happened then, until
// a pull has ended.
func TestUnfinishedPull(t *testing.T) {
	const image, ref = "r.io/app:1", "sha256:1"
	root := t.TempDir()
	s := open(t, root, preloaded)
	check := func(when string, s *Store, want bool) {
		t.Helper()
		if got := allowed(t, s, image, ref, Credentials{}); got != want {
			t.Errorf("%s: got allowed %t, want %t", when, got, want)
		}
	}
	check("before", s, true)
	for range 2 {
		if err := s.Begin(t.Context(), image); err != nil {
			t.Fatal(err)
		}
	}
	check("two pulls under way", s, false)
	s.Failed(image)
	check("one pull under way", s, false)
	check("after a crash", open(t, root, preloaded), false)
	s.Failed(image)
	check("both failed", s, true)

	for range 2 {
		if err := s.Begin(t.Context(), image); err != nil {
			t.Fatal(err)
		}
		s.Unknown(image, "")
		check("lost answer", s, false)
	}
	for when, s := range map[string]*Store{"two lost answers": s, "a restart": open(t, root, preloaded)} {
		if got, want := s.Unresolved(), []string{image}; !slices.Equal(got, want) {
			t.Fatalf("unresolved after %s: got %q, want %q", when, got, want)
		}
	}
	s = open(t, root, preloaded)
	s.Resolve(t.Context(), image, ref)
	if left := append(s.Unresolved(), s.intents()...); len(left) != 0 {
		t.Errorf("unresolved images and intents after they were resolved: got %q, want none", left)
	}
	check("resolved", s, false)
	if allowed(t, s, "r.io/other:1", ref, Credentials{}) {
		t.Error("resolved, by another name: got allowed, want not")
	}
	pulled(t, s, image, ref, Credentials{EveryPod: true})
	check("pulled without credentials", s, true)
}

// TestPullEndsMeanwhile checks that an image does not look preloaded to a pod that is asked about while its pull ends.
func TestPullEndsMeanwhile(t *testing.T) {
	const image, ref = "r.io/app:1", "sha256:1"
	root := t.TempDir()
	s := open(t, root, preloaded)
	if err := s.Begin(t.Context(), image); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock() // which Allowed needs, to look for pulls under way
	answer := make(chan bool, 1)
	go func() {
		ok, err := s.Allowed(t.Context(), image, ref, func() Credentials { return Credentials{} })
		answer <- ok || err != nil
	}()
	waittest.Until(t, "Allowed looks for pulls under way", func() bool {
		stacks := make([]byte, 1<<20)
		return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "(*Store).hasBegun(")
	})
	ended := open(t, root, preloaded) // the same files, with a mutex of its own
	ended.Succeeded(t.Context(), image, ref, secret("ns", "s", "uid", "hash"))
	delete(s.begun, image)
	s.mu.Unlock()
	if <-answer {
		t.Error("a pod without the secret: got allowed or an error, want neither")
	}
}

// TestUnfinishedPullByAnotherName checks that an image whose pull has begun does not look preloaded by any name by
// which it may be found, until a pull has ended, or ended without an answer and brought nothing. Images of other
// repositories and with other tags do.
func TestUnfinishedPullByAnotherName(t *testing.T) { synctest.Test(t, testUnfinishedPullByAnotherName) }

func testUnfinishedPullByAnotherName(t *testing.T) {
	const image, ref = "docker.io/team/app:1", "sha256:1"
	digest := "sha256:" + strings.Repeat("0", 64)
	root := t.TempDir()
	s := open(t, root, preloaded)
	check := func(when string, s *Store, want bool) {
		t.Helper()
		for _, name := range []string{image, "team/app:1", "docker.io/team/app@" + digest, "team/app:2@" + digest, digest,
			"sha256:0000"} {
			if got := allowed(t, s, name, ref, Credentials{}); got != want {
				t.Errorf("%s, %s: got allowed %t, want %t", when, name, got, want)
			}
		}
		for _, name := range []string{"r.io/team/app:1", "docker.io/team/application:1", "docker.io/team/app:2",
			"team/app"} {
			if !allowed(t, s, name, "sha256:2", Credentials{}) {
				t.Errorf("%s, %s: got not allowed, want allowed", when, name)
			}
		}
	}
	begin := func() {
		t.Helper()
		if err := s.Begin(t.Context(), image); err != nil {
			t.Fatal(err)
		}
	}
	check("before", s, true)
	begin()
	check("pull under way", s, false)
	check("after a crash", open(t, root, preloaded), false)
	s.Failed(image)
	check("failed", s, true)
	begin()
	s.Unknown(image, "")
	check("lost answer", s, false)
	s.Resolve(t.Context(), image, "")
	check("not yet there", s, false)
	check("not yet there, after a restart", open(t, root, preloaded), false)
	begin()
	s.Failed(image)
	check("the next pull failed", s, false)
	time.Sleep(Settle)
	begin()
	s.Resolve(t.Context(), image, "")
	check("not there, another pull under way", s, false)
	s.Failed(image)
	check("not there", s, true)
	check("not there, after a restart", open(t, root, preloaded), true)
}

// TestNamesOfUnfinishedPull checks by which names an image does not look preloaded while it is pulled.
func TestNamesOfUnfinishedPull(t *testing.T) {
	one, two := "@sha256:"+strings.Repeat("1", 64), "@sha256:"+strings.Repeat("2", 64)
	for image, names := range map[string]struct{ pulled, preloaded []string }{
		"app":                     {[]string{"app:latest", "docker.io/library/app:latest", "app" + one}, []string{"app:1"}},
		"docker.io/library/app:1": {[]string{"app:1", "app:2" + one}, []string{"app", "app:2"}},
		"r.io/app" + one:          {[]string{"r.io/app" + two, "r.io/app:1" + one}, []string{"r.io/app", "r.io/app:1"}},
		"r.io/app:1" + one:        {[]string{"r.io/app" + one}, []string{"r.io/app", "r.io/app:1", "app" + one}},
		"UPPER":                   {[]string{"UPPER"}, []string{"upper", "UPPER:latest"}},
	} {
		s := open(t, t.TempDir(), preloaded)
		if err := s.Begin(t.Context(), image); err != nil {
			t.Fatal(err)
		}
		for _, name := range append(slices.Clone(names.pulled), names.preloaded...) {
			want := slices.Contains(names.preloaded, name)
			if got := allowed(t, s, name, "sha256:1", Credentials{}); got != want {
				t.Errorf("%s while %s is pulled: got allowed %t, want %t", name, image, got, want)
			}
		}
	}
}

// TestUnresolvedPulls checks what pulls that ended without an answer have brought, by the IDs that the image had before
// them, and has now.
func TestUnresolvedPulls(t *testing.T) {
	const image = "r.io/app:1"
	for name, tc := range map[string]struct {
		before  []string
		now     string
		brought bool
	}{
		"nothing":                       {[]string{""}, "", false},
		"an image":                      {[]string{""}, "sha256:1", true},
		"a newer image":                 {[]string{"sha256:1"}, "sha256:2", true},
		"no newer image":                {[]string{"sha256:1"}, "sha256:1", false},
		"the first pull an image":       {[]string{"", "sha256:1"}, "sha256:1", true},
		"the second pull an image":      {[]string{"sha256:1", ""}, "sha256:1", true},
		"two pulls no newer image":      {[]string{"sha256:1", "sha256:1"}, "sha256:1", false},
		"the image is gone after pulls": {[]string{"sha256:1", "sha256:1"}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := open(t, t.TempDir(), preloaded)
				for range tc.before {
					if err := s.Begin(t.Context(), image); err != nil {
						t.Fatal(err)
					}
				}
				for _, before := range tc.before {
					s.Unknown(image, before)
				}
				s.Resolve(t.Context(), image, tc.now)
				if got := len(s.intents()) == 0; got != tc.brought {
					t.Errorf("at once: got resolved %t, want %t", got, tc.brought)
				}
				time.Sleep(Settle)
				s.Resolve(t.Context(), image, tc.now)
				if left := append(s.Unresolved(), s.intents()...); len(left) != 0 {
					t.Errorf("later: got unresolved pulls and intents %q, want none", left)
				}
				if got := allowed(t, s, image, tc.now, Credentials{}); got == tc.brought {
					t.Errorf("without credentials: got allowed %t, want %t", got, !tc.brought)
				}
			})
		})
	}
}

// TestRecordCannotBeWritten checks that if the end of a pull cannot be recorded, its beginning stays recorded until it
// can.
func TestRecordCannotBeWritten(t *testing.T) {
	root := t.TempDir()
	s := open(t, root, preloaded)
	if err := s.Begin(t.Context(), "app:1"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(s.pulled); err != nil {
		t.Fatal(err)
	}
	s.Succeeded(t.Context(), "app:1", "sha256:1", Credentials{EveryPod: true})
	if got := s.intents(); !slices.Equal(got, []string{"app:1"}) {
		t.Errorf("intents: got %q, want that of the pull", got)
	}
	if allowed(t, s, "app:1", "sha256:1", Credentials{}) {
		t.Error("got allowed, want not")
	}
	s.Resolve(t.Context(), "app:1", "sha256:1")
	if got := s.Unresolved(); !slices.Equal(got, []string{"app:1"}) {
		t.Errorf("while the record cannot be written: got unresolved %q, want the pull", got)
	}
	if err := os.Mkdir(s.pulled, 0o700); err != nil {
		t.Fatal(err)
	}
	s.Resolve(t.Context(), "app:1", "sha256:1")
	if left := append(s.Unresolved(), s.intents()...); len(left) != 0 {
		t.Errorf("when the record can be written: got unresolved pulls and intents %q, want none", left)
	}
	if allowed(t, s, "app:1", "sha256:1", Credentials{}) {
		t.Error("resolved: got allowed, want not")
	}
	if err := os.RemoveAll(s.pulling); err != nil {
		t.Fatal(err)
	}
	if err := s.Begin(t.Context(), "app:1"); err == nil {
		t.Error("Begin without its directory: got no error")
	}
}

// TestDamagedRecord checks that a record that makes no sense means that credentials must be verified; the next pull
// replaces it.
func TestDamagedRecord(t *testing.T) {
	const image, ref = "app:1", "sha256:1"
	for name, text := range map[string]string{
		"empty": "",
		"cut off": `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","imageRef":"sha256:1",
			"cred`,
		"no JSON": "\x00\x00\x00",
		"another image": `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":null,
			"imageRef":"sha256:2","credentialMapping":{"app":{"nodePodsAccessible":true}}}`,
		"another kind": `{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","imageRef":"sha256:1"}`,
		"another version": `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v9","lastUpdatedTime":null,
			"imageRef":"sha256:1","credentialMapping":{"app":{"nodePodsAccessible":true}}}`,
		"unknown field": `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":null,
			"imageRef":"sha256:1","credentialMapping":{"app":{"nodePodsAccessible":true,"but":"not"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, t.TempDir(), preloaded)
			if err := os.WriteFile(s.recordFile(ref), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if allowed(t, s, image, ref, Credentials{}) {
				t.Error("got allowed, want not")
			}
			pulled(t, s, image, ref, secret("a", "s", "u", "h"))
			if !allowed(t, s, image, ref, secret("a", "s", "u", "h")) || allowed(t, s, image, ref, Credentials{}) {
				t.Error("after the next pull: want its secret allowed and no other pod")
			}
		})
	}
}

// TestUnreadableRecord checks that a record that cannot be read just now is an error. It is no reason for a pull, and
// not taken for a damaged record and replaced. Where every pod may use the image, nothing is read.
func TestUnreadableRecord(t *testing.T) {
	const image, ref = "app:1", "sha256:1"
	for what, breakDisk := range map[string]func(s *Store) error{
		"record":  func(s *Store) error { return os.Mkdir(s.recordFile(ref), 0o700) },
		"intents": func(s *Store) error { return errors.Join(os.Remove(s.pulling), os.WriteFile(s.pulling, nil, 0o600)) },
	} {
		s := open(t, t.TempDir(), preloaded)
		if err := breakDisk(s); err != nil {
			t.Fatal(err)
		}
		if ok, err := s.Allowed(t.Context(), image, ref, func() Credentials { return Credentials{} }); ok || err == nil {
			t.Errorf("unreadable %s: got allowed %t, error %v, want an error", what, ok, err)
		}
		if what == "record" {
			if err := s.Add(t.Context(), image, ref, Credentials{EveryPod: true}); err == nil {
				t.Error("Add: got no error, want the one of the read")
			}
		}
		s.policy = policy{name: "NeverVerify"}
		if ok, err := s.Allowed(t.Context(), image, ref, nil); !ok || err != nil {
			t.Errorf("unreadable %s, images of everybody: got allowed %t, error %v, want allowed", what, ok, err)
		}
	}
}

// TestPrune checks that the records of images that are gone go; one of an image that was pulled after the list was
// requested stays, also if the pull had nothing new to record.
func TestPrune(t *testing.T) {
	s := open(t, t.TempDir(), preloaded)
	for _, ref := range []string{"sha256:1", "sha256:2", "sha256:again"} {
		pulled(t, s, "app:1", ref, Credentials{EveryPod: true})
	}
	damaged := filepath.Join(s.pulled, fileName("sha256:gone"))
	if err := os.WriteFile(damaged, []byte("?"), 0o600); err != nil {
		t.Fatal(err)
	}
	requested := time.Now()
	for _, ref := range []string{"sha256:3", "sha256:again"} {
		pulled(t, s, "app:1", ref, Credentials{EveryPod: true})
	}
	s.Prune(nil, requested)
	if got := len(s.list(s.pulled)); got != 5 {
		t.Errorf("records after an empty list: got %d, want all 5", got)
	}
	s.Prune([]string{"sha256:1"}, requested)
	want := []string{fileName("sha256:1"), fileName("sha256:3"), fileName("sha256:again")}
	slices.Sort(want)
	if got := s.list(s.pulled); !slices.Equal(got, want) {
		t.Errorf("records: got %q, want %q", got, want)
	}
	s.Prune([]string{"sha256:1"}, time.Now())
	if got := s.list(s.pulled); !slices.Equal(got, []string{fileName("sha256:1")}) {
		t.Errorf("records after the next list: got %q, want the one of sha256:1", got)
	}
}

// TestLearnedSecretsAreBounded checks that secrets with a known login are added to the record, up to a limit, and are
// allowed beyond it.
func TestLearnedSecretsAreBounded(t *testing.T) {
	const image, ref = "app:1", "sha256:1"
	s := open(t, t.TempDir(), preloaded)
	var many Credentials
	for i := range maxLearned - 1 {
		many.Secrets = append(many.Secrets, secret("ns", "s", strconv.Itoa(i), "h").Secrets...)
	}
	pulled(t, s, image, ref, many)
	for i := range 3 {
		if !allowed(t, s, image, ref, secret("ns", "s", string(rune('a'+i)), "h")) {
			t.Fatalf("secret %d: got not allowed", i)
		}
	}
	r, err := s.get(ref)
	if got := len(r.CredentialMapping["app"].Secrets); err != nil || got != maxLearned {
		t.Errorf("secrets in the record: got %d, %v, want %d", got, err, maxLearned)
	}
}

// TestKubeletsFiles checks that records that the kubelet has written are read, and what nodelet writes is the same to
// the byte.
func TestKubeletsFiles(t *testing.T) {
	hash := HashLogin("us<er", "p&w", "e@x")
	s := open(t, t.TempDir(), preloaded)
	if err := os.CopyFS(filepath.Dir(s.pulled), os.DirFS("testdata/kubelet/image_manager")); err != nil {
		t.Fatal(err)
	}
	if got, want := s.intents(), []string{"r.io/app:1"}; !slices.Equal(got, want) {
		t.Errorf("intents: got %q, want %q", got, want)
	}
	for _, tc := range []struct {
		image string
		pod   Credentials
		want  bool
	}{
		{"r.io/app:2", secret("other", "o", "o", hash), true},
		{"r.io/app:2", account("ns", "builder", "a"), true},
		{"r.io/app:2", Credentials{}, false},
		{"r.io/open:1", Credentials{}, true},
	} {
		if got := allowed(t, s, tc.image, "sha256:1", tc.pod); got != tc.want {
			t.Errorf("%s with %+v: got %t, want %t", tc.image, tc.pod, got, tc.want)
		}
	}
	own := open(t, t.TempDir(), preloaded)
	if err := own.Begin(t.Context(), "r.io/app:1"); err != nil {
		t.Fatal(err)
	}
	both := secret("ns", "s", "u", hash)
	both.ServiceAccounts = account("ns", "builder", "a").ServiceAccounts
	for image, c := range map[string]Credentials{"r.io/app:1": both, "r.io/open": {EveryPod: true}} {
		if err := own.Add(t.Context(), image, "sha256:1", c); err != nil {
			t.Fatal(err)
		}
	}
	r, err := own.get("sha256:1")
	if err != nil {
		t.Fatal(err)
	}
	r.LastUpdatedTime.Time = time.Unix(1761000000, 0).UTC()
	for file, got := range map[string]string{
		"pulling/" + fileName("r.io/app:1"): read(t, own.intentFile("r.io/app:1")),
		"pulled/" + fileName("sha256:1"):    string(encode(r)),
	} {
		if want := read(t, "testdata/kubelet/image_manager/"+file); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", file, got, want)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
