package provider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/nodelet/nodelet/cri/images"
)

// cluster has the service account builder, and gives out tokens.
type cluster struct {
	account *corev1.ServiceAccount
	tokens  atomic.Int32
	expires time.Duration
}

func (c *cluster) serve(o *Options) {
	o.Tokens = true
	o.Account = func(_ context.Context, pod *corev1.Pod) (*corev1.ServiceAccount, error) {
		if pod.Spec.ServiceAccountName != c.account.Name {
			return nil, errors.New("no such service account")
		}
		return c.account, nil
	}
	o.Token = func(_ context.Context, pod *corev1.Pod, uid types.UID, audience string, _ int64) (
		string, time.Time, error) {
		if uid != c.account.UID {
			return "", time.Time{}, fmt.Errorf("there is no service account with the UID %q", uid)
		}
		return fmt.Sprintf("token-%s-%s-%d", audience, pod.UID, c.tokens.Add(1)), time.Now().Add(c.expires), nil
	}
}

func newCluster() *cluster {
	return &cluster{
		expires: time.Hour,
		account: &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "builder", UID: "sa-1",
			Annotations: map[string]string{"r/role": "puller", "o/zone": "west", "other": "unseen"}}},
	}
}

func podOf(uid types.UID, account string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: string(uid), UID: uid},
		Spec:       corev1.PodSpec{ServiceAccountName: account},
	}
}

func tokenFields(cacheType, more string) string {
	return `matchImages: ["*.example.com"], defaultCacheDuration: 1h, apiVersion: ` + v1 +
		", tokenAttributes: {serviceAccountTokenAudience: aud, cacheType: " + cacheType + ", " + more + "}"
}

const bothKeys = "requireServiceAccount: true, requiredServiceAccountAnnotationKeys: " +
	"[r/role], optionalServiceAccountAnnotationKeys: [o/zone, o/none]"

// TestToken checks that a provider gets a token and the annotations that it wants to see, and its logins are the
// service account's.
func TestToken(t *testing.T) {
	w, c := newWorld(t, answering("Image", ""), tokenFields("ServiceAccount", bothKeys)), newCluster()
	c.serve(&w.options)
	p := w.start(t)
	given, problems := p.Ask(t.Context(), podOf("p1", "builder"), "r.example.com/app")
	want := images.Source{UID: "sa-1", Namespace: "ns", Name: "builder", ServiceAccount: true}
	if len(problems) != 0 || len(given) != 1 || given[0].Source != want || len(given[0].Logins) != 1 {
		t.Fatalf("got %+v, %q, want one login of the service account", given, problems)
	}
	asked := w.asked(t)
	if len(asked) != 1 || asked[0].ServiceAccountToken != "token-aud-p1-1" ||
		!maps.Equal(asked[0].ServiceAccountAnnotations, map[string]string{"r/role": "puller", "o/zone": "west"}) {
		t.Errorf("requests: got %+v, want one with the token and the annotations", asked)
	}
	if _, problems := p.Ask(t.Context(), podOf("p1", "away"), "r.example.com/app"); len(problems) != 1 {
		t.Errorf("a service account that is not there: got %q, want one", problems)
	}
	delete(c.account.Annotations, "r/role")
	if given, problems := p.Ask(t.Context(), podOf("p1", "builder"), "r.example.com/app"); len(problems) != 0 ||
		len(given[0].Logins) != 0 {
		t.Errorf("without the annotation: got %+v, %q, want no login and no problem", given, problems)
	}
}

// TestRecreatedAccount checks that the token of a service account that was created again does not go with the
// annotations of the one before, and that the new one gets its logins.
func TestRecreatedAccount(t *testing.T) {
	w, c := newWorld(t, answering("Image", ""), tokenFields("ServiceAccount", bothKeys)), newCluster()
	c.serve(&w.options)
	read := w.options.Account
	w.options.Account = func(ctx context.Context, pod *corev1.Pod) (*corev1.ServiceAccount, error) {
		old, err := read(ctx, pod)
		if old.UID == "sa-1" {
			c.account = newCluster().account
			c.account.UID, c.account.Annotations["r/role"] = "sa-2", "none"
		}
		return old, err
	}
	p := w.start(t)
	if _, problems := p.Ask(t.Context(), podOf("p1", "builder"), "r.example.com/app"); len(problems) != 1 ||
		len(w.asked(t)) != 0 {
		t.Errorf("got %q, requests %+v, want a problem and none", problems, w.asked(t))
	}
	given, problems := p.Ask(t.Context(), podOf("p1", "builder"), "r.example.com/app")
	if len(problems) != 0 || len(given) != 1 || given[0].Source.UID != "sa-2" || len(given[0].Logins) != 1 {
		t.Errorf("the next time: got %+v, %q, want one login of the new account", given, problems)
	}
	if asked := w.asked(t); len(asked) != 1 || asked[0].ServiceAccountAnnotations["r/role"] != "none" {
		t.Errorf("requests: got %+v, want one with the new annotations", asked)
	}
}

// TestWhoSharesAnAnswer checks that pods of one service account share an answer, unless it is bound to the token;
// other accounts never do.
func TestWhoSharesAnAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		cacheType string
		change    func(*cluster)
		second    *corev1.Pod
		want      int
	}{
		"the same pod":     {"ServiceAccount", nil, podOf("p1", "builder"), 1},
		"another pod":      {"ServiceAccount", nil, podOf("p2", "builder"), 1},
		"another namesake": {"ServiceAccount", func(c *cluster) { c.account.UID = "sa-2" }, podOf("p1", "builder"), 2},
		"other annotations": {"ServiceAccount", func(c *cluster) { c.account.Annotations["o/zone"] = "east" },
			podOf("p1", "builder"), 2},
		"unseen annotation": {"ServiceAccount", func(c *cluster) { c.account.Annotations["other"] = "new" },
			podOf("p1", "builder"), 1},
		"token, the same pod":    {"Token", nil, podOf("p1", "builder"), 1},
		"token, another pod":     {"Token", nil, podOf("p2", "builder"), 2},
		"token, expired already": {"Token", func(c *cluster) { c.expires = -time.Hour }, podOf("p1", "builder"), 2},
	} {
		w, c := newWorld(t, answering("Global", ""), tokenFields(tc.cacheType, bothKeys)), newCluster()
		c.serve(&w.options)
		p := w.start(t)
		if tc.change != nil && strings.HasPrefix(name, "token") {
			tc.change(c)
		}
		ask(t, p, podOf("p1", "builder"), "r.example.com/app")
		if tc.change != nil {
			tc.change(c)
		}
		ask(t, p, tc.second, "r.example.com/other")
		if n := len(w.asked(t)); n != tc.want {
			t.Errorf("%s: got asked %d times, want %d", name, n, tc.want)
		}
	}
}

// TestSharedRequestFails checks that a request which pods of one service account share is made once more, with the
// token of another pod, if the pod whose token it had is deleted meanwhile. Its own requests are not repeated.
func TestSharedRequestFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, c := newWorld(t, "", tokenFields("ServiceAccount", bothKeys)), newCluster()
		c.serve(&w.options)
		deleted, token := make(chan struct{}), w.options.Token
		tried := map[string]int{}
		w.options.Token = func(ctx context.Context, pod *corev1.Pod, uid types.UID, audience string, seconds int64) (
			string, time.Time, error) {
			tried[pod.Name]++
			if pod.Name == "p1" {
				<-deleted
				return "", time.Time{}, errors.New("no such pod")
			}
			return token(ctx, pod, uid, audience, seconds)
		}
		p := w.start(t)
		p.all[0].run = func(context.Context, api.CredentialProviderRequest) (*api.CredentialProviderResponse, error) {
			return &api.CredentialProviderResponse{CacheKeyType: api.ImagePluginCacheKeyType}, nil
		}
		problems := make([]int, 3)
		for i, name := range []types.UID{"p1", "p1", "p2"} {
			go func() {
				_, all := p.Ask(t.Context(), podOf(name, "builder"), "r.example.com/app")
				problems[i] = len(all)
			}()
			synctest.Wait()
		}
		close(deleted)
		synctest.Wait()
		if want := []int{1, 1, 0}; !slices.Equal(problems, want) {
			t.Errorf("problems of those who ask: got %v, want %v", problems, want)
		}
		if want := map[string]int{"p1": 1, "p2": 1}; !maps.Equal(tried, want) {
			t.Errorf("requests for tokens by pod: got %v, want %v", tried, want)
		}
	})
}

// TestSharedRequestFailsForAll checks that of pods of one service account whose shared request has failed all share the
// next one, too: a program that hangs does not run once for each pod.
func TestSharedRequestFailsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, c := newWorld(t, "", tokenFields("ServiceAccount", bothKeys)), newCluster()
		c.serve(&w.options)
		p := w.start(t)
		var runs, failed atomic.Int32
		p.all[0].run = func(context.Context, api.CredentialProviderRequest) (*api.CredentialProviderResponse, error) {
			runs.Add(1)
			time.Sleep(time.Minute)
			return nil, errors.New("no answer")
		}
		const pods = 5
		for i := range pods {
			go func() {
				_, all := p.Ask(t.Context(), podOf(types.UID(fmt.Sprint("p", i)), "builder"), "r.example.com/app")
				failed.Add(int32(len(all)))
			}()
		}
		time.Sleep(time.Hour)
		if runs.Load() != 2 || failed.Load() != pods {
			t.Errorf("got %d runs and %d problems, want 2 and %d", runs.Load(), failed.Load(), pods)
		}
	})
}

// TestPodWithoutAccount checks that a provider is asked for such pods, without a token, only if it wants to be.
func TestPodWithoutAccount(t *testing.T) {
	for required, want := range map[bool]int{true: 0, false: 1} {
		w := newWorld(t, answering("Image", ""), tokenFields("Token", fmt.Sprintf("requireServiceAccount: %t", required)))
		newCluster().serve(&w.options)
		given, problems := w.start(t).Ask(t.Context(), podOf("static", ""), "r.example.com/app")
		asked := w.asked(t)
		if len(problems) != 0 || given[0].Source != (images.Source{}) || len(asked) != want || len(given[0].Logins) != want {
			t.Errorf("required %t: got %+v, %q after %d requests, want %d", required, given, problems, len(asked), want)
		}
		if want == 1 && asked[0].ServiceAccountToken != "" {
			t.Error("got a token, want none")
		}
	}
}

// TestTokenAsPassword checks that a token may be the password only where answers are bound to it, and never gets into
// the log.
func TestTokenAsPassword(t *testing.T) {
	for cacheType, problemsWanted := range map[string]int{"ServiceAccount": 1, "Token": 0} {
		w := newWorld(t, `LOGIN_WORD=token-aud-p1-1; `+answering("Image", ""),
			tokenFields(cacheType, "requireServiceAccount: true"))
		newCluster().serve(&w.options)
		given, problems := w.start(t).Ask(t.Context(), podOf("p1", "builder"), "r.example.com/app")
		if len(problems) != problemsWanted || len(given) != 1 || len(given[0].Logins) != 1-problemsWanted ||
			given[0].Source.UID != "sa-1" {
			t.Errorf("%s: got %+v and the problems %q, want the account and %d problems", cacheType, given, problems,
				problemsWanted)
		}
		if strings.Contains(w.log.String(), "token-aud") || problemsWanted == 1 &&
			!strings.Contains(w.log.String(), "cacheType") {
			t.Errorf("%s: got the log %q, want the cause and no token", cacheType, w.log.String())
		}
	}
	w := newWorld(t, "echo got token-aud-p1-1 >&2; exit 1", tokenFields("Token", "requireServiceAccount: true"))
	newCluster().serve(&w.options)
	w.start(t).Ask(t.Context(), podOf("p1", "builder"), "r.example.com/app")
	if log := w.log.String(); strings.Contains(log, "token-aud") || !strings.Contains(log, "got (token)") {
		t.Errorf("log: got %q, want the answer without the token", log)
	}
}
