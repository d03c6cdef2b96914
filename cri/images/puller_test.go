package images

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// discard is the logger of tests that read no log.
var discard = slog.New(slog.DiscardHandler)

func serve(t *testing.T, o Config) (*fake.Runtime, *Puller) {
	t.Helper()
	rt := fake.New()
	rt.Start()
	c, err := cri.Dial("unix:///run/fake.sock", cri.Options{Log: discard, Connect: rt.Connect})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		rt.Close()
	})
	return rt, newPuller(c, o)
}

// newPuller returns a puller without credential providers, if o has none.
func newPuller(c *cri.Client, o Config) *Puller {
	if o.Providers == nil {
		o.Providers = func(context.Context, *corev1.Pod, string) ([]Provided, []string) { return nil, nil }
	}
	o.Wanted, o.Pulled = func(string) {}, func() {}
	o.Log = discard
	return New(c, o)
}

func pullSecret(registry, user, password string) *corev1.Secret {
	return secret("s-"+user, corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey,
		`{"auths":{"`+registry+`":{"auth":"`+auth(user, password)+`"}}}`)
}

// pullRequest is what tests vary of a Request.
type pullRequest struct {
	Image       string
	Policy      corev1.PullPolicy
	Pod         *corev1.Pod
	PullSecrets []*corev1.Secret
}

func (r pullRequest) request() Request {
	return Request{
		Image:   r.Image,
		Policy:  r.Policy,
		Pod:     r.Pod,
		Secrets: func(context.Context) []*corev1.Secret { return r.PullSecrets },
		Sandbox: func() (*runtimeapi.PodSandboxConfig, error) { return nil, nil },
		Event:   func(string, string) {},
	}
}

func pull(ctx context.Context, p *Puller, r pullRequest) (Result, error) {
	r.Policy = corev1.PullAlways
	return p.Ensure(ctx, r.request())
}

func present(t *testing.T, p *Puller, image string) (Image, error) {
	t.Helper()
	got, err := p.Ensure(t.Context(), pullRequest{Image: image, Policy: corev1.PullNever}.request())
	return got.Image, err
}

func mustPull(t *testing.T, p *Puller, r pullRequest) Result {
	t.Helper()
	got, err := pull(t.Context(), p, r)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func wantReason(t *testing.T, err error, reason, message string) {
	t.Helper()
	if r, ok := errors.AsType[*Reason](err); !ok || r.Reason != reason || r.Message != message {
		t.Errorf("got %v\nwant %s: %s", err, reason, message)
	}
}

func TestPresentAndPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, p := serve(t, Config{})
		uid := int64(1000)
		rt.Publish(fake.RemoteImage{Name: "app:1", ID: "sha256:1", Size: 42, UID: &uid, Takes: time.Minute})
		rt.Publish(fake.RemoteImage{Name: "named", ID: "sha256:2", Username: "www"})
		_, err := present(t, p, "app:1")
		wantReason(t, err, "ErrImageNeverPull", `Container image "app:1" is not present with pull policy of Never`)
		got := mustPull(t, p, pullRequest{Image: "app:1"})
		if got.Took != time.Minute || got.ID != "sha256:1" || got.Size != 42 || *got.UID != 1000 {
			t.Errorf("got %+v", got)
		}
		have, err := present(t, p, "app:1")
		if err != nil || have.ID != "sha256:1" || *have.UID != 1000 || have.Username != "" {
			t.Errorf("after the pull: got %+v, %v, want the image with the user 1000", have, err)
		}
		mustPull(t, p, pullRequest{Image: "named"})
		if have, _ := present(t, p, "named:latest"); have.Username != "www" || have.UID != nil {
			t.Errorf("got %+v", have)
		}

		_, err = present(t, p, "UPPER")
		wantReason(t, err, "InvalidImageName",
			`Failed to apply default image tag "UPPER": couldn't parse image name "UPPER": `+
				`invalid reference format: repository name (library/UPPER) must be lowercase`)
		_, err = pull(t.Context(), p, pullRequest{Image: "UPPER"})
		if err == nil {
			t.Error("a name that is none: got no error, want one")
		}
		rt.Inject(&fake.Fault{Verb: "ImageStatus", Err: status.Error(codes.Internal, "boom"), Times: 1})
		_, err = present(t, p, "app:1")
		wantReason(t, err, "ImageInspectError",
			`Failed to inspect image "app:1": ImageStatus app:1: rpc error: code = Internal desc = boom`)
	})
}

// TestMovedTag checks that a pod that pulls always gets the image that a tag names now, and others that of the node.
// The image that had the tag stays for those who run it, without a name.
func TestMovedTag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, p := serve(t, Config{})
		ensure := func(policy corev1.PullPolicy) string {
			got, err := p.Ensure(t.Context(), pullRequest{Image: "app:1", Policy: policy}.request())
			if err != nil {
				t.Fatal(err)
			}
			return got.ID
		}
		rt.Publish(fake.RemoteImage{Name: "app:1", ID: "sha256:1"})
		ensure(corev1.PullAlways)
		rt.Publish(fake.RemoteImage{Name: "app:1", ID: "sha256:2"})
		got := []string{ensure(corev1.PullIfNotPresent), ensure(corev1.PullAlways), ensure(corev1.PullIfNotPresent)}
		if want := []string{"sha256:1", "sha256:2", "sha256:2"}; !slices.Equal(got, want) {
			t.Errorf("if not present, always, if not present: got images %q, want %q", got, want)
		}
		all, err := p.runtime.ListImages(t.Context())
		if err != nil || len(all) != 2 || len(all[0].RepoTags) != 0 {
			t.Errorf("on the node: got %v, %v, want both images, the first without a tag", all, err)
		}
	})
}

// TestSandboxesThatShareAPull checks that pods share a pull only if the runtime would pull the image for each of them
// in the same way: the namespace chooses the policy for signatures, and annotations the snapshotter.
func TestSandboxesThatShareAPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, p := serve(t, Config{})
		rt.Publish(fake.RemoteImage{Name: "app:1", Takes: time.Minute})
		var all sync.WaitGroup
		for _, sandbox := range []*runtimeapi.PodSandboxConfig{
			{Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "a", Name: "1"}},
			{Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "a", Name: "2"}},
			{Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "b", Name: "1"}},
			{
				Metadata:    &runtimeapi.PodSandboxMetadata{Namespace: "a", Name: "3"},
				Annotations: map[string]string{"io.containerd.cri.runtime-handler": "kata"},
			},
		} {
			r := pullRequest{Image: "app:1", Policy: corev1.PullAlways}.request()
			r.Sandbox = func() (*runtimeapi.PodSandboxConfig, error) { return sandbox, nil }
			all.Go(func() {
				if _, err := p.Ensure(t.Context(), r); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := rt.Verbs()["PullImage"]; n != 3 {
			t.Errorf("got %d pulls, want 3: for two pods of one namespace, another namespace, and other annotations", n)
		}
	})
}

// TestOnePullForAll checks that the same image with the same credentials is pulled once for all who wait, another
// time for others.
func TestOnePullForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, p := serve(t, Config{})
		rt.Publish(fake.RemoteImage{Name: "app:1", Takes: time.Minute})
		var all sync.WaitGroup
		start := func(r pullRequest) {
			all.Go(func() {
				if _, err := pull(t.Context(), p, r); err != nil {
					t.Error(err)
				}
			})
		}
		for range 5 {
			start(pullRequest{Image: "app:1"})
		}
		for range 3 {
			start(pullRequest{Image: "app:1", PullSecrets: []*corev1.Secret{pullSecret("docker.io", "me", "pw")}})
		}
		start(pullRequest{Image: "app:1", PullSecrets: []*corev1.Secret{pullSecret("docker.io", "me", "other")}})
		start(pullRequest{Image: "app:1", PullSecrets: []*corev1.Secret{pullSecret("quay.io", "me", "unrelated")}})
		all.Wait()
		if n := rt.Verbs()["PullImage"]; n != 3 {
			t.Errorf("got %d pulls, want 3: without, with one and with another credential", n)
		}
		mustPull(t, p, pullRequest{Image: "app:1"})
		if n := rt.Verbs()["PullImage"]; n != 4 {
			t.Error("a pull after the end of another: got the result of the other, want a new pull")
		}
	})
}

// TestWaitersLeave checks that one that goes does not take the pull from the others; when the last goes, the pull
// ends.
func TestWaitersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, p := serve(t, Config{})
		rt.Publish(fake.RemoteImage{Name: "app:1", Takes: time.Hour})
		ctx, leave := context.WithCancel(t.Context())
		first := make(chan error)
		go func() {
			_, err := pull(ctx, p, pullRequest{Image: "app:1"})
			first <- err
		}()
		second := make(chan error)
		go func() {
			_, err := pull(t.Context(), p, pullRequest{Image: "app:1"})
			second <- err
		}()
		synctest.Wait()
		leave()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("the request that was cancelled: got %v, want context.Canceled", err)
		}
		if err := <-second; err != nil || rt.Verbs()["PullImage"] != 1 {
			t.Errorf("the request that stayed: got %v after %d pulls, want none after one", err, rt.Verbs()["PullImage"])
		}

		ctx, leave = context.WithTimeout(t.Context(), time.Minute)
		defer leave()
		if _, err := pull(ctx, p, pullRequest{Image: "app:1"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		began := time.Now()
		if got := mustPull(t, p, pullRequest{Image: "app:1"}); got.Took != time.Hour || time.Since(began) != time.Hour {
			t.Errorf("the next pull: got %s, want an hour", got.Took)
		}
	})
}

// TestParallel checks how long three pulls of a minute take together.
func TestParallel(t *testing.T) {
	for name, tc := range map[string]struct {
		config Config
		want   time.Duration
		queued int
	}{
		"no bound": {Config{}, time.Minute, 0},
		"two":      {Config{MaxParallel: 2}, 2 * time.Minute, 1},
		"serial":   {Config{MaxParallel: 1}, 3 * time.Minute, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt, p := serve(t, tc.config)
				began := time.Now()
				var all sync.WaitGroup
				for _, image := range []string{"a:1", "b:1", "c:1"} {
					rt.Publish(fake.RemoteImage{Name: image, Takes: time.Minute})
					all.Go(func() {
						got, err := pull(t.Context(), p, pullRequest{Image: image})
						if err != nil || got.Took != time.Minute {
							t.Errorf("%s: got %s, %v, want a minute: the wait for others must not count",
								image, got.Took, err)
						}
					})
				}
				synctest.Wait()
				if got := 3 - rt.Verbs()["PullImage"]; got != tc.queued {
					t.Errorf("queued pulls: got %d, want %d", got, tc.queued)
				}
				all.Wait()
				if took := time.Since(began); took != tc.want {
					t.Errorf("took %s, want %s", took, tc.want)
				}
			})
		})
	}
}

// TestPullRate checks that pulls beyond the burst wait instead of failing, and that the time Took does not count that.
func TestPullRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, p := serve(t, Config{QPS: 0.5, Burst: 2})
		began := time.Now()
		var all sync.WaitGroup
		for _, image := range []string{"a:1", "b:1", "c:1", "d:1"} {
			rt.Publish(fake.RemoteImage{Name: image, Takes: time.Second})
			all.Go(func() {
				got, err := pull(t.Context(), p, pullRequest{Image: image})
				if err != nil || got.Took != time.Second {
					t.Errorf("%s: took %s, %v, want a second", image, got.Took, err)
				}
			})
		}
		synctest.Wait()
		if got := rt.Verbs()["PullImage"]; got != 2 {
			t.Errorf("pulls at once: got %d, want the burst of 2", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := pull(ctx, p, pullRequest{Image: "e:1"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a request that gives up: got %v", err)
		}
		all.Wait()
		if took, want := time.Since(began), 5*time.Second; took != want {
			t.Errorf("two more pulls at one in two seconds: took %s, want %s", took, want)
		}
	})
}

// TestQueuedWaiterLeaves checks who gives up in the queue does not keep its place.
func TestQueuedWaiterLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, p := serve(t, Config{MaxParallel: 1})
		rt.Publish(fake.RemoteImage{Name: "a:1", Takes: time.Hour})
		go pull(t.Context(), p, pullRequest{Image: "a:1"})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := pull(ctx, p, pullRequest{Image: "b:1"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		time.Sleep(2 * time.Hour)
		if n := rt.Verbs()["PullImage"]; n != 1 {
			t.Errorf("got %d pulls, want 1", n)
		}
	})
}

// TestCredentials checks the order of credentials: the pod's come before the node's. An image is pulled without any
// only if there is none.
func TestCredentials(t *testing.T) {
	node := filepath.Join(t.TempDir(), "config.json")
	config := `{"auths":{"r.io":{"auth":"` + auth("node", "pw") + `"}}}`
	if err := os.WriteFile(node, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	denied := `failed to pull and unpack image "r.io/app:1": failed to resolve image: pull access ` +
		"denied, repository does not exist or may require authorization: authorization failed: no basic auth credentials"
	pod := pullSecret("r.io", "pod", "pw")
	for name, tc := range map[string]struct {
		logins  map[string]string
		secrets []*corev1.Secret
		tries   int
		used    int
		message string
	}{
		"pod's":             {map[string]string{"pod": "pw", "node": "pw"}, []*corev1.Secret{pod}, 1, 0, ""},
		"node's":            {map[string]string{"node": "pw"}, nil, 1, 0, ""},
		"pod's then node's": {map[string]string{"node": "pw"}, []*corev1.Secret{pod}, 2, 1, ""},
		"public image":      {nil, []*corev1.Secret{pod}, 1, 0, ""},
		"none is right":     {map[string]string{"other": "pw"}, []*corev1.Secret{pod}, 2, 0, denied},
		"a broken secret is named": {map[string]string{"other": "pw"},
			[]*corev1.Secret{secret("bad", corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey, "{")}, 1, 0,
			denied + "; pull secret ns/bad was not used: .dockerconfigjson has no valid docker configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt, p := serve(t, Config{NodeConfigs: []string{node}})
				rt.Publish(fake.RemoteImage{Name: "r.io/app:1", Logins: tc.logins})
				got, err := pull(t.Context(), p, pullRequest{Image: "r.io/app:1", PullSecrets: tc.secrets})
				if tc.message != "" {
					wantReason(t, err, "ErrImagePull", tc.message)
				} else if err != nil || got.used != tc.used {
					t.Errorf("got %+v, %v", got, err)
				}
				if n := rt.Verbs()["PullImage"]; n != tc.tries {
					t.Errorf("tried %d times, want %d", n, tc.tries)
				}
			})
		})
	}
}

// TestSharedPullFails checks that a pod which shares a failed pull gets the names of its own broken secrets, and not
// those of the other's.
func TestSharedPullFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, p := serve(t, Config{})
		rt.Inject(&fake.Fault{Verb: "PullImage", Err: status.Error(codes.Unknown, "boom"), Delay: time.Minute})
		var all sync.WaitGroup
		for _, name := range []string{"one", "two", ""} {
			want, r := "boom", pullRequest{Image: "app:1"}
			if name != "" {
				r.PullSecrets = []*corev1.Secret{secret(name, corev1.SecretTypeDockerConfigJson, corev1.DockerConfigJsonKey, "{")}
				want += "; pull secret ns/" + name + " was not used: .dockerconfigjson has no valid docker configuration"
			}
			all.Go(func() {
				_, err := pull(t.Context(), p, r)
				wantReason(t, err, "ErrImagePull", want)
			})
		}
		all.Wait()
		if n := rt.Verbs()["PullImage"]; n != 1 {
			t.Errorf("pulls: got %d, want 1", n)
		}
	})
}

// TestProvidedCredentials checks the order of the providers' credentials: they come last, the more special patterns
// first, and keep their source.
func TestProvidedCredentials(t *testing.T) {
	node := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(node, []byte(`{"auths":{"r.io":{"auth":"`+auth("node", "pw")+`"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	account := Source{UID: "u", Namespace: "ns", Name: "builder", ServiceAccount: true}
	pod := &corev1.Pod{}
	providers := func(_ context.Context, of *corev1.Pod, repository string) ([]Provided, []string) {
		if of != pod || repository != "r.io/team/app" {
			t.Errorf("providers: got a request for %p and %s, want the pod and r.io/team/app", of, repository)
		}
		return []Provided{
			{Logins: map[string]*Login{"r.io": {Username: "wide"}, "other.io": {Username: "other"}}},
			{Source: account, Logins: map[string]*Login{"r.io": {Username: "second"}, "r.io/team": {Username: "special"}}},
		}, []string{"one is broken"}
	}
	synctest.Test(t, func(t *testing.T) {
		rt, p := serve(t, Config{NodeConfigs: []string{node}, Providers: providers})
		n, err := parseName("r.io/team/app:1")
		if err != nil {
			t.Fatal(err)
		}
		found, problems := p.credentials(t.Context(), n, pullRequest{
			Pod:         pod,
			PullSecrets: []*corev1.Secret{pullSecret("r.io", "pod", "pw")},
		}.request())
		if got, want := users(found), []string{"pod", "node", "special", "wide", "second"}; !slices.Equal(got, want) {
			t.Errorf("the order: got %v, want %v", got, want)
		}
		if !slices.Equal(problems, []string{"one is broken"}) {
			t.Errorf("problems: got %q, want that of the provider", problems)
		}
		for user, want := range map[string]int{"wide": 2, "second": 3} {
			rt.Publish(fake.RemoteImage{Name: "r.io/team/app:1", Logins: map[string]string{user: ""}})
			if got := mustPull(t, p, pullRequest{Image: "r.io/team/app:1", Pod: pod}); got.used != want {
				t.Errorf("pulled as %s: got credential %d, want %d", user, got.used, want)
			}
		}
		rt.Publish(fake.RemoteImage{Name: "r.io/team/app:1", Logins: map[string]string{"other": ""}})
		if _, err := pull(t.Context(), p, pullRequest{Image: "r.io/team/app:1", Pod: pod}); err == nil ||
			!strings.HasSuffix(err.Error(), "; one is broken") {
			t.Errorf("got error %v, want it to end with the problem", err)
		}
	})
}

// TestStaleCredential checks that a public image is not pulled without the credential that the registry refuses: the
// user is to see that it is wrong.
func TestStaleCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, p := serve(t, Config{})
		rt.Publish(fake.RemoteImage{Name: "r.io/app:1"})
		rt.Inject(&fake.Fault{Verb: "PullImage", Times: 1, Err: status.Error(codes.Unknown, "401 Unauthorized")})
		stale := pullSecret("r.io", "me", "old")
		_, err := pull(t.Context(), p, pullRequest{Image: "r.io/app:1", PullSecrets: []*corev1.Secret{stale}})
		wantReason(t, err, "ErrImagePull", "401 Unauthorized")
		mustPull(t, p, pullRequest{Image: "r.io/app:1"})
	})
}

// TestPullErrors checks that the runtime's failures are reported in the kubelet's words.
func TestPullErrors(t *testing.T) {
	both := []*corev1.Secret{pullSecret("r.io", "a", "pw"), pullSecret("r.io", "b", "pw")}
	for name, tc := range map[string]struct {
		errs            []error
		secrets         []*corev1.Secret
		reason, message string
		tries           int
	}{
		"code unknown": {[]error{status.Error(codes.Unknown, "boom")}, nil, "ErrImagePull", "boom", 1},
		"a code": {
			[]error{status.Error(codes.NotFound, "boom")},
			nil,
			"ErrImagePull",
			"rpc error: code = NotFound desc = boom",
			1,
		},
		"registry unavailable": {[]error{status.Error(codes.Unknown, "RegistryUnavailable: try later")}, nil,
			"RegistryUnavailable", "image pull failed for r.io/app because the registry is unavailable: try later", 1},
		"signature": {[]error{status.Error(codes.Unknown, "SignatureValidationFailed: unsigned")}, nil,
			"SignatureValidationFailed", "image pull failed for r.io/app because the signature validation failed: unsigned", 1},
		"two credentials": {[]error{status.Error(codes.Unknown, "first"), status.Error(codes.Unknown, "second")}, both,
			"ErrImagePull", "[first, second]", 2},
		"the same twice": {[]error{status.Error(codes.Unknown, "no"), status.Error(codes.Unknown, "no")}, both,
			"ErrImagePull", "no", 2},
		"runtime gone": {[]error{status.Error(codes.Unavailable, "down")}, both, "ErrImagePull",
			"rpc error: code = Unavailable desc = down", 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt, p := serve(t, Config{})
				for _, err := range tc.errs {
					rt.Inject(&fake.Fault{Verb: "PullImage", Err: err, Times: 1})
				}
				_, err := pull(t.Context(), p, pullRequest{Image: "r.io/app", PullSecrets: tc.secrets})
				wantReason(t, err, tc.reason, tc.message)
				if errors.Unwrap(err) == nil {
					t.Error("the error: got another, want that of the runtime")
				}
				if n := rt.Verbs()["PullImage"]; n != tc.tries {
					t.Errorf("tried %d times, want %d", n, tc.tries)
				}
				for _, c := range rt.Calls() {
					if !strings.HasSuffix(c.Object, "r.io/app:latest") {
						t.Errorf("got a pull of %q, want r.io/app:latest", c.Object)
					}
				}
			})
		})
	}
}

// TestGoneAfterPull checks that an image that is removed between its pull and the look at it is a failure, not an
// image without user.
func TestGoneAfterPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, p := serve(t, Config{})
		rt.Publish(fake.RemoteImage{Name: "app:1", ID: "sha256:1"})
		slow := rt.Inject(&fake.Fault{Verb: "ImageStatus", Hang: true})
		got := make(chan error)
		go func() {
			_, err := pull(t.Context(), p, pullRequest{Image: "app:1"})
			got <- err
		}()
		synctest.Wait()
		if err := p.runtime.RemoveImage(t.Context(), "app:1"); err != nil {
			t.Fatal(err)
		}
		rt.Release(slow)
		wantReason(t, <-got, "ImageInspectError",
			`Failed to inspect image "app:1": it was removed after its pull as sha256:1`)
	})
}
