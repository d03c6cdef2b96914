package volumes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/nodelet/nodelet/csi"
	"github.com/nodelet/nodelet/kube/pluginname"
	"github.com/nodelet/nodelet/test/wallclock"
	"github.com/nodelet/nodelet/volumes/podfs"
)

// issuer is an API server that issues tokens for an hour, with its own clock.
type issuer struct {
	Objects
	now    time.Time
	issued int
	err    error
}

func (i *issuer) Token(_ context.Context, _ *corev1.Pod, _ string, seconds int64) (string, time.Time, error) {
	if i.err != nil {
		return "", time.Time{}, i.err
	}
	i.issued++
	return fmt.Sprintf("token %d", i.issued), i.now.Add(time.Duration(seconds) * time.Second), nil
}

// vaultDriver asks for a token.
func vaultDriver() *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: storagev1.CSIDriverSpec{
		ServiceAccountTokenInSecrets: ptr.To(false),
		TokenRequests:                []storagev1.TokenRequest{{Audience: "vault"}},
	}}
}

// TestTokensAreKept checks which token a driver gets that is called again and again.
func TestTokensAreKept(t *testing.T) {
	t.Parallel()
	driver, began := vaultDriver(), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	manager, server := &Manager{}, &issuer{now: began}
	for _, step := range []struct {
		pod  types.UID
		at   time.Duration // since began
		down bool
		want string // the token, or what is in the error
	}{
		{"a", 0, false, "token 1"},
		{"a", 47 * time.Minute, false, "token 1"},
		{"b", 47 * time.Minute, false, "token 2"},
		{"a", 49 * time.Minute, false, "token 3"},
		{"a", 107 * time.Minute, true, "token 3"},
		{"b", 107 * time.Minute, true, "API server is away"},
		{"a", 109 * time.Minute, true, "API server is away"},
		{"a", 110 * time.Minute, false, "token 4"},
		{"a", -24 * time.Hour, true, "API server is away"}, // nobody knows how old it is
		{"a", -24 * time.Hour, false, "token 5"},
		{"a", -24*time.Hour + time.Minute, false, "token 5"},
	} {
		server.now, server.err = began.Add(step.at), nil
		if step.down {
			server.err = errors.New("the API server is away")
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: step.pod}}
		d := &driven{
			mounting: &mounting{manager, Request{Request: podfs.Request{Pod: pod, Now: server.now}}, server},
			driver:   driver,
			volume:   &csi.Volume{},
		}
		got := ""
		if err := d.addTokens(t.Context()); err != nil {
			got = err.Error()
		} else {
			got = d.volume.PublishAttributes[tokensKey]
		}
		if !strings.Contains(got, step.want) {
			t.Errorf("pod %s after %s: got %s, want %s", step.pod, step.at, got, step.want)
		}
	}
}

// TestTokensGoByTheWallClock checks that a token does not count longer because the machine was suspended, when the
// monotonic clock stands still, and that a clock that was set back is noticed.
func TestTokensGoByTheWallClock(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]time.Duration{"suspended": 2 * time.Hour, "set back": -2 * time.Hour} {
		kept, key := &tokens{}, tokenKey{"a", "vault", tokenSeconds}
		issued, began := 0, time.Now()
		for _, now := range []time.Time{began, wallclock.After(t, began, d)} {
			_, err := kept.get(key, now, func() (string, time.Time, error) {
				issued++
				return "token", now.Round(0).Add(time.Hour), nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if issued != 2 {
			t.Errorf("%s: got %d requests for a token, want 2", name, issued)
		}
	}
}

// TestTokensOfEndedPod checks that the tokens of a pod are not kept until they expire if the pod ends before that.
func TestTokensOfEndedPod(t *testing.T) {
	t.Parallel()
	manager, server := newTestManager(t, Config{Root: t.TempDir()}, nil), &issuer{now: time.Now()}
	for _, uid := range []types.UID{"a", "b"} {
		d := &driven{
			mounting: &mounting{manager, requestFor(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}, nil), server},
			driver:   vaultDriver(),
			volume:   &csi.Volume{},
		}
		if err := d.addTokens(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := manager.Unmount(t.Context(), "a", OnDisk{Plugin: pluginname.CSI, Name: "secrets"}); err != nil {
		t.Fatal(err)
	}
	if _, kept := manager.tokens.kept[tokenKey{"b", "vault", tokenSeconds}]; len(manager.tokens.kept) != 1 || !kept {
		t.Errorf("got %d tokens, want only that of pod b", len(manager.tokens.kept))
	}
}
