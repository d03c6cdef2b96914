package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/cri"
	"github.com/nodelet/nodelet/cri/images/records"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/test/cri/fake"
)

// recorded starts a puller with records below root.
func recorded(t *testing.T, root, policy string, cfg Config) (*fake.Runtime, *Puller) {
	t.Helper()
	rt, p := serve(t, Config{})
	return rt, again(t, root, policy, cfg, p.runtime)
}

// again returns the puller of the agent's next process.
func again(t *testing.T, root, policy string, cfg Config, runtime *cri.Client) *Puller {
	t.Helper()
	var err error
	cfg.Records, err = records.Open(root, policy, nil, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return newPuller(runtime, cfg)
}

const preloaded = "NeverVerifyPreloadedImages"

// ensure asks for an image as a pod with the pull secrets, and returns the events.
func ensure(t *testing.T, p *Puller, image string, policy corev1.PullPolicy,
	secrets ...*corev1.Secret) ([]string, error) {
	t.Helper()
	r := pullRequest{Image: image, Policy: policy, PullSecrets: secrets}.request()
	var events []string
	r.Event = func(reason, _ string) { events = append(events, reason) }
	_, err := p.Ensure(t.Context(), r)
	return events, err
}

const denied = `failed to pull and unpack image "r.io/app:1": failed to resolve image: pull access ` +
	"denied, repository does not exist or may require authorization: authorization failed: no basic auth credentials"

// TestPrivateImageOfAnotherPod checks that a pod without the credentials cannot use an image that was pulled with a
// secret.
func TestPrivateImageOfAnotherPod(t *testing.T) {
	const never = `Container image "r.io/app:1" is not present with pull policy of Never`
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		rt, p := recorded(t, root, preloaded, Config{})
		rt.Publish(fake.RemoteImage{Name: "r.io/app:1", Logins: map[string]string{"me": "pw"}})
		mine, other := pullSecret("r.io", "me", "pw"), pullSecret("r.io", "other", "pw")
		check := func(when string, p *Puller, policy corev1.PullPolicy, s *corev1.Secret, want ...string) {
			t.Helper()
			got, err := ensure(t, p, "r.io/app:1", policy, s)
			if !slices.Equal(got, want) || err != nil {
				t.Errorf("%s: got events %q, %v, want %q", when, got, err, want)
			}
		}
		check("first pod", p, corev1.PullIfNotPresent, mine, "Pulling", "Pulled")
		for when, p := range map[string]*Puller{
			"same process": p,
			"next process": again(t, root, preloaded, Config{}, p.runtime),
		} {
			check(when+", same secret", p, corev1.PullIfNotPresent, mine, "Pulled")
			check(when+", same secret", p, corev1.PullNever, mine, "Pulled")
			_, err := ensure(t, p, "r.io/app:1", corev1.PullNever, other)
			wantReason(t, err, "ErrImageNeverPull", never)
			_, err = ensure(t, p, "r.io/app:1", corev1.PullNever)
			wantReason(t, err, "ErrImageNeverPull", never)
			events, err := ensure(t, p, "r.io/app:1", corev1.PullIfNotPresent, other)
			wantReason(t, err, "ErrImagePull", denied)
			if !slices.Equal(events, []string{"Pulling"}) {
				t.Errorf("%s, other secret: got events %q, want Pulling", when, events)
			}
		}
		moved := pullSecret("r.io", "me", "pw")
		moved.Namespace, moved.UID = "other", "9"
		check("same login in another namespace", p, corev1.PullIfNotPresent, moved, "Pulled")
		off := newPuller(p.runtime, Config{})
		check("gate is off", off, corev1.PullNever, other, "Pulled")
	})
}

// TestImageForEveryPod checks that an image that was pulled without credentials or with the node's, or is preloaded,
// needs no proof.
func TestImageForEveryPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, p := recorded(t, t.TempDir(), preloaded, Config{})
		rt.Publish(fake.RemoteImage{Name: "r.io/public:1"})
		rt.AddImage(fake.RemoteImage{Name: "r.io/preloaded:1"})
		if _, err := ensure(t, p, "r.io/public:1", corev1.PullIfNotPresent); err != nil {
			t.Fatal(err)
		}
		for _, image := range []string{"r.io/public:1", "r.io/preloaded:1"} {
			r := pullRequest{Image: image, Policy: corev1.PullNever}.request()
			r.Secrets = func(context.Context) []*corev1.Secret {
				t.Errorf("%s: got a request for pull secrets, want none", image)
				return nil
			}
			if _, err := p.Ensure(t.Context(), r); err != nil {
				t.Errorf("%s: got %v, want no error", image, err)
			}
		}
		strict := again(t, t.TempDir(), "AlwaysVerify", Config{}, p.runtime)
		_, err := ensure(t, strict, "r.io/preloaded:1", corev1.PullNever)
		wantReason(t, err, "ErrImageNeverPull", `Container image "r.io/preloaded:1" is not present with pull policy of Never`)
	})
}

// TestProvidedForAccount checks that an image that was pulled with a provider's login for a service account is that
// account's, also while the provider fails: tokens come from the API server.
func TestProvidedForAccount(t *testing.T) {
	failing := false
	providers := func(_ context.Context, pod *corev1.Pod, _ string) ([]Provided, []string) {
		source := Source{UID: pod.UID, Namespace: "ns", Name: pod.Spec.ServiceAccountName, ServiceAccount: true}
		password := "pw"
		if source.Name != "builder" {
			password = "wrong"
		}
		if failing {
			return []Provided{{Source: source}}, []string{"failing"}
		}
		return []Provided{{Source: source, Logins: map[string]*Login{"r.io": {Username: "u", Password: password}}}}, nil
	}
	synctest.Test(t, func(t *testing.T) {
		rt, p := recorded(t, t.TempDir(), preloaded, Config{Providers: providers})
		rt.Publish(fake.RemoteImage{Name: "r.io/app:1", Logins: map[string]string{"u": "pw"}})
		for _, tc := range []struct {
			account string
			policy  corev1.PullPolicy
			failing bool
			want    bool
		}{
			{"builder", corev1.PullIfNotPresent, true, false},
			{"builder", corev1.PullIfNotPresent, false, true},
			{"builder", corev1.PullNever, false, true},
			{"builder", corev1.PullNever, true, true},
			{"builder", corev1.PullAlways, true, false},
			{"visitor", corev1.PullNever, false, false},
			{"visitor", corev1.PullNever, true, false},
			{"visitor", corev1.PullIfNotPresent, false, false},
		} {
			failing = tc.failing
			pod := &corev1.Pod{Spec: corev1.PodSpec{ServiceAccountName: tc.account}}
			_, err := p.Ensure(t.Context(), pullRequest{Image: "r.io/app:1", Policy: tc.policy, Pod: pod}.request())
			if (err == nil) != tc.want {
				t.Errorf("%s, %s, failing %t: got %v, want success %t", tc.account, tc.policy, tc.failing, err, tc.want)
			}
		}
	})
}

// TestSharedPullIsRecordedForAll checks that each pod that shared a pull is recorded with its own secret.
func TestSharedPullIsRecordedForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, p := recorded(t, t.TempDir(), preloaded, Config{})
		rt.Publish(fake.RemoteImage{Name: "r.io/app:1", Logins: map[string]string{"me": "pw"}, Takes: time.Minute})
		var all sync.WaitGroup
		var secrets []*corev1.Secret
		for _, namespace := range []string{"a", "b"} {
			s := pullSecret("r.io", "me", "pw")
			s.Namespace, s.UID = namespace, "uid-"+s.UID
			secrets = append(secrets, s)
			all.Go(func() {
				if _, err := ensure(t, p, "r.io/app:1", corev1.PullIfNotPresent, s); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if got := rt.Verbs()["PullImage"]; got != 1 {
			t.Errorf("pulls: got %d, want 1", got)
		}
		for _, s := range secrets {
			rotated := pullSecret("r.io", "me", "new")
			rotated.ObjectMeta = s.ObjectMeta
			if _, err := ensure(t, p, "r.io/app:1", corev1.PullNever, rotated); err != nil {
				t.Errorf("rotated secret of namespace %s: got %v, want no error", s.Namespace, err)
			}
		}
	})
}

// TestLostAnswerOfPull checks that an image whose pull ended without an answer does not look preloaded, under
// whatever name.
func TestLostAnswerOfPull(t *testing.T) {
	for name, fault := range map[string]*fake.Fault{
		"connection broken": {Verb: "PullImage", Lose: true, Times: 1},
		// before and after the pull
		"image cannot be inspected": {Verb: "ImageStatus", Err: status.Error(codes.Internal, "boom"), Times: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				root := t.TempDir()
				rt, p := recorded(t, root, preloaded, Config{})
				for _, image := range []string{"r.io/app:1", "r.io/alias:1"} {
					rt.Publish(fake.RemoteImage{Name: image, ID: "sha256:1", Logins: map[string]string{"me": "pw"}})
				}
				rt.Inject(fault)
				if _, err := ensure(t, p, "r.io/app:1", corev1.PullAlways, pullSecret("r.io", "me", "pw")); err == nil {
					t.Fatal("got no error, want that of the lost answer")
				}
				rt.AddImage(fake.RemoteImage{Name: "r.io/alias:1", ID: "sha256:1"})
				for when, p := range map[string]*Puller{
					"same process": p,
					"next process": again(t, root, preloaded, Config{}, p.runtime),
				} {
					for _, image := range []string{"r.io/alias:1", "r.io/app:1"} {
						if _, err := ensure(t, p, image, corev1.PullNever); err == nil {
							t.Errorf("%s: got %s usable without credentials, want it refused", when, image)
						}
					}
				}
			})
		})
	}
}

// TestAbandonedPull checks that a pull that was given up, because its pod was deleted or the agent was killed, does not
// keep pods for long from images that no pull has brought: of the same repository, by ID, or by the same name.
func TestAbandonedPull(t *testing.T) {
	for when, abandon := range map[string]func(*testing.T, *Puller, string){
		"pod deleted": func(t *testing.T, p *Puller, image string) {
			ctx, end := context.WithTimeout(t.Context(), time.Second)
			defer end()
			if _, err := pull(ctx, p, pullRequest{Image: image}); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("pull of %s: got %v, want it to be given up", image, err)
			}
			synctest.Wait()
		},
		"agent killed": func(t *testing.T, p *Puller, image string) {
			if err := p.cfg.Records.Begin(t.Context(), image); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(when, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				root := t.TempDir()
				rt, p := recorded(t, root, preloaded, Config{})
				rt.AddImage(fake.RemoteImage{Name: "r.io/app:1", ID: "sha256:1"})
				rt.AddImage(fake.RemoteImage{Name: "r.io/other:1", ID: "sha256:2"})
				rt.Publish(fake.RemoteImage{Name: "r.io/app:2", ID: "sha256:new", Takes: time.Hour})
				abandon(t, p, "r.io/app:2")
				if when == "agent killed" {
					p = again(t, root, preloaded, Config{}, p.runtime)
				}
				time.Sleep(2 * time.Minute)
				usable := func(images ...string) {
					t.Helper()
					next := again(t, root, preloaded, Config{}, p.runtime)
					for process, p := range map[string]*Puller{"this": p, "the next": next} {
						for _, image := range images {
							if _, err := ensure(t, p, image, corev1.PullNever); err != nil {
								t.Errorf("%s, %s process: got %v, want it usable", image, process, err)
							}
						}
					}
				}
				usable("r.io/app:1", "sha256:2")
				rt.AddImage(fake.RemoteImage{Name: "r.io/app:2", ID: "sha256:imported"})
				usable("r.io/app:2")
			})
		})
	}
}

// TestPullOfAnotherTag checks that pods can use a preloaded image while another tag of its repository is pulled, and
// that the image of the pull does not look preloaded.
func TestPullOfAnotherTag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, p := recorded(t, t.TempDir(), preloaded, Config{})
		rt.AddImage(fake.RemoteImage{Name: "r.io/app:1", ID: "sha256:1"})
		rt.Publish(fake.RemoteImage{Name: "r.io/app:2", ID: "sha256:2", Takes: time.Hour})
		go ensure(t, p, "r.io/app:2", corev1.PullIfNotPresent)
		time.Sleep(2 * time.Minute)
		rt.AddImage(fake.RemoteImage{Name: "r.io/app:2", ID: "sha256:2"}) // as a runtime that is about to answer
		for _, policy := range []corev1.PullPolicy{corev1.PullNever, corev1.PullIfNotPresent} {
			events, err := ensure(t, p, "r.io/app:1", policy)
			if want := []string{"Pulled"}; err != nil || !slices.Equal(events, want) {
				t.Errorf("%s: got events %q, error %v, want %q", policy, events, err, want)
			}
		}
		_, err := ensure(t, p, "r.io/app:2", corev1.PullNever)
		wantReason(t, err, "ErrImageNeverPull", `Container image "r.io/app:2" is not present with pull policy of Never`)
		time.Sleep(time.Hour)
	})
}

// TestManyAbandonedPulls checks that pulls that were given up do not slow down the use of images whose pull is recorded
// or that are not there, that pods with images without a record look at them together, and that each of them is looked
// at once when it can bring nothing any more.
func TestManyAbandonedPulls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, p := recorded(t, t.TempDir(), preloaded, Config{})
		rt.Publish(fake.RemoteImage{Name: "r.io/app:1"})
		if _, err := ensure(t, p, "r.io/app:1", corev1.PullAlways); err != nil {
			t.Fatal(err)
		}
		looks := func(do func()) int {
			before := rt.Verbs()["ImageStatus"]
			do()
			return rt.Verbs()["ImageStatus"] - before
		}
		const many = 50
		for i := range many {
			image := fmt.Sprintf("r.io/other%d:1", i)
			rt.Publish(fake.RemoteImage{Name: image, Takes: time.Hour})
			ctx, end := context.WithTimeout(t.Context(), time.Second/10)
			if _, err := pull(ctx, p, pullRequest{Image: image}); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("pull of %s: got %v, want it to be given up", image, err)
			}
			end()
		}
		synctest.Wait()
		for policy, want := range map[corev1.PullPolicy]int{
			corev1.PullNever: 1, corev1.PullAlways: 2, // before and after the pull
		} {
			if got := looks(func() { ensure(t, p, "r.io/app:1", policy) }); got != want {
				t.Errorf("%s: got %d questions about images, want %d", policy, got, want)
			}
		}
		if got := looks(func() { ensure(t, p, "r.io/none:1", corev1.PullNever) }); got != 1 {
			t.Errorf("an image that is not there: got %d questions about images, want 1", got)
		}
		rt.AddImage(fake.RemoteImage{Name: "r.io/preloaded:1"})
		rt.Inject(&fake.Fault{Verb: "ImageStatus", Delay: time.Second / 100})
		const pods = 20
		if got := looks(func() {
			var all sync.WaitGroup
			for range pods {
				all.Go(func() {
					if _, err := ensure(t, p, "r.io/preloaded:1", corev1.PullNever); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
		}); got < pods+many || got > pods+2*many {
			t.Errorf("%d pods, image without a record: got %d questions about images, want at most %d", pods, got, pods+2*many)
		}
		if got := looks(func() { time.Sleep(2 * records.Settle) }); got != many {
			t.Errorf("later: got %d questions about images, want one for each of %d", got, many)
		}
		if left := p.cfg.Records.Unresolved(); len(left) != 0 {
			t.Errorf("later: got the pulls %q left, want none", left)
		}
	})
}

// TestLooksAreShared checks that those who ask during a look share the next one, because the one under way may have
// missed their images. If that is cut short, they share another one.
func TestLooksAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l looks
		var all sync.WaitGroup
		looked, end := 0, make(chan struct{})
		all.Go(func() { l.share(t.Context(), func() { looked++; <-end }) })
		synctest.Wait()
		for range 9 {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			all.Go(func() {
				l.share(ctx, func() {
					if looked++; looked == 2 {
						cancel()
					}
				})
			})
		}
		synctest.Wait()
		close(end)
		if all.Wait(); looked != 3 {
			t.Errorf("got %d looks, want 3", looked)
		}
	})
}

// TestAbandonedUpdate checks that an image that no pull has brought does not count as pulled because the pull of a
// newer one by the same name was given up.
func TestAbandonedUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, p := recorded(t, t.TempDir(), preloaded, Config{})
		rt.AddImage(fake.RemoteImage{Name: "r.io/app:1", ID: "sha256:old"})
		rt.Publish(fake.RemoteImage{Name: "r.io/app:1", ID: "sha256:new", Takes: time.Hour})
		ctx, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		if _, err := pull(ctx, p, pullRequest{Image: "r.io/app:1"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, want the pull to be given up", err)
		}
		synctest.Wait()
		if _, err := ensure(t, p, "r.io/app:1", corev1.PullNever); err == nil {
			t.Error("soon: got the image usable, want it refused: the pull may still bring another one")
		}
		time.Sleep(2 * time.Minute)
		if _, err := ensure(t, p, "r.io/app:1", corev1.PullNever); err != nil {
			t.Errorf("later: got %v, want the image usable", err)
		}
	})
}

// TestIntentCannotBeRecorded checks that nothing is pulled whose pull cannot be recorded.
func TestIntentCannotBeRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		rt, p := recorded(t, root, preloaded, Config{})
		rt.Publish(fake.RemoteImage{Name: "app:1"})
		if err := os.RemoveAll(filepath.Join(root, "image_manager")); err != nil {
			t.Fatal(err)
		}
		_, err := ensure(t, p, "app:1", corev1.PullIfNotPresent)
		if r, ok := err.(*Reason); !ok || r.Reason != podutil.ReasonErrImagePull {
			t.Errorf("got %v, want reason %s", err, podutil.ReasonErrImagePull)
		}
		if got := rt.Verbs()["PullImage"]; got != 0 {
			t.Errorf("pulls: got %d, want none", got)
		}
	})
}
