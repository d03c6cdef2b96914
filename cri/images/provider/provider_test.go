package provider

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/credentialprovider/v1"

	"github.com/nodelet/nodelet/cri/images"
	"github.com/nodelet/nodelet/test/waittest"
	"github.com/nodelet/nodelet/test/wallclock"
)

const (
	v1     = "credentialprovider.kubelet.k8s.io/v1"
	hidden = "hunter2"
)

// world is a directory with one provider, a shell script that notes each request.
type world struct {
	dir     string
	options Options
	log     bytes.Buffer
}

// newWorld makes a provider of a script and of what its configuration has beside the name; empty for the usual.
func newWorld(t *testing.T, script, fields string) *world {
	t.Helper()
	w := &world{dir: t.TempDir()}
	if fields == "" {
		fields = `matchImages: ["*.example.com"], defaultCacheDuration: 1h, apiVersion: ` + v1
	}
	w.write(t, "bin/login", "#!/bin/sh\ncat >> "+w.path("asked")+"\n"+script+"\n")
	w.write(t, "config.yaml",
		"apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- {name: login, "+fields+"}\n")
	w.options = Options{
		Config: w.path("config.yaml"),
		BinDir: w.path("bin"),
		Ran:    func(string, time.Duration, error) {},
		Log:    slog.New(slog.NewTextHandler(&w.log, nil)),
	}
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(w.path(name)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.path(name), []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
}

func (w *world) start(t *testing.T) *Providers {
	t.Helper()
	p, err := New(w.options)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// asked are the requests that the program has had.
func (w *world) asked(t *testing.T) (all []api.CredentialProviderRequest) {
	t.Helper()
	text, err := os.ReadFile(w.path("asked"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var r api.CredentialProviderRequest
		if err := d.Decode(&r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// answering is a script that gives an answer; hold is empty for none of its own.
func answering(scope, hold string) string {
	if hold != "" {
		hold = fmt.Sprintf(`"cacheDuration":%q,`, hold)
	}
	return fmt.Sprintf(`echo '{"apiVersion":%q,"kind":"CredentialProviderResponse","cacheKeyType":%q,%s`+
		`"auth":{"*.example.com":{"username":"me","password":"'$LOGIN_WORD$1'"},`+
		`"empty.example.com":{"username":"","password":""}}}'`, v1, scope, hold)
}

// ask gives the passwords for a repository, by registry.
func ask(t *testing.T, p *Providers, pod *corev1.Pod, repository string) (passwords []string) {
	t.Helper()
	given, problems := p.Ask(t.Context(), pod, repository)
	if len(problems) > 0 {
		t.Errorf("%s: got the problems %q, want none", repository, problems)
	}
	for _, g := range given {
		for registry, l := range g.Logins {
			if registry != "*.example.com" || l.Username != "me" {
				t.Errorf("%s: got a login for %s of %s, want *.example.com of me", repository, registry, l.Username)
			}
			passwords = append(passwords, l.Password)
		}
	}
	return passwords
}

// TestAsk checks that a provider is asked for the images that it is meant for, with its arguments and environment.
func TestAsk(t *testing.T) {
	t.Setenv("LOGIN_WORD", "not this one")
	w := newWorld(t, answering("Image", ""),
		`matchImages: ["*.example.com/team"], defaultCacheDuration: 1h, apiVersion: `+v1+
			`, args: [word], env: [{name: LOGIN_WORD, value: pass}]`)
	p := w.start(t)
	for repository, want := range map[string][]string{
		"r.example.com/team/app": {"password"}, "r.example.com/other/app": nil, "example.com/team/app": nil,
		"r.example.com:5000/team/app": nil,
	} {
		if got := ask(t, p, nil, repository); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", repository, got, want)
		}
	}
	asked := w.asked(t)
	if len(asked) != 1 || asked[0].Image != "r.example.com/team/app" || asked[0].APIVersion != v1 ||
		asked[0].Kind != "CredentialProviderRequest" || asked[0].ServiceAccountToken != "" {
		t.Errorf("requests: got %+v, want one of v1 without a token", asked)
	}
}

// TestWhatIsKept checks that an answer counts for what it says, and as long.
func TestWhatIsKept(t *testing.T) {
	repositories := []string{"a.example.com/app", "a.example.com/app", "a.example.com/other", "b.example.com/app"}
	for name, tc := range map[string]struct {
		scope, hold string
		want        int
	}{
		"image": {"Image", "", 3}, "registry": {"Registry", "1m", 2}, "everywhere": {"Global", "1m", 1},
		"not": {"Global", "0s", 4}, "negative": {"Global", "-1s", 4},
	} {
		w := newWorld(t, answering(tc.scope, tc.hold), "")
		p := w.start(t)
		for _, r := range repositories {
			if got := ask(t, p, nil, r); len(got) != 1 {
				t.Errorf("%s: got %d logins for %s, want 1", name, len(got), r)
			}
		}
		if n := len(w.asked(t)); n != tc.want {
			t.Errorf("%s: got asked %d times, want %d", name, n, tc.want)
		}
	}
}

// TestRuns checks that each run of a program is counted, and none for an answer that is kept or no longer awaited.
func TestRuns(t *testing.T) {
	w := newWorld(t, answering("Image", ""), "")
	var runs []string
	w.options.Ran = func(provider string, _ time.Duration, err error) {
		runs = append(runs, fmt.Sprintf("%s %t", provider, err == nil))
	}
	p := w.start(t)
	ask(t, p, nil, "a.example.com/app")
	ask(t, p, nil, "a.example.com/app")
	w.write(t, "bin/login", "#!/bin/sh\nexit 1\n")
	p.Ask(t.Context(), nil, "b.example.com/app")
	givenUp, giveUp := context.WithCancel(t.Context())
	giveUp()
	if _, err := p.all[0].program.run(givenUp, api.CredentialProviderRequest{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a run that was given up: got %v, want %v", err, context.Canceled)
	}
	if want := []string{"login true", "login false"}; !slices.Equal(runs, want) {
		t.Errorf("got the runs %q, want %q", runs, want)
	}
}

// TestExpiry checks that an answer is not used after its time, and does not stay in memory.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cache
		logins := map[string]*images.Login{"r.io": {Username: "me"}}
		c.keep(key("r.io", identity{}), logins, time.Now(), time.Hour)
		time.Sleep(time.Hour - 1)
		if _, ok := c.find(identity{}, "r.io/app", time.Now()); !ok {
			t.Error("it was forgotten too early")
		}
		if _, ok := c.find(identity{key: "other"}, "r.io/app", time.Now()); ok {
			t.Error("another identity: got the credentials, want none")
		}
		time.Sleep(1)
		if _, ok := c.find(identity{}, "r.io/app", time.Now()); ok {
			t.Error("after their time: got the credentials, want none")
		}
		c.keep(key("x.io", identity{}), logins, time.Now(), time.Hour)
		if len(c.answers) != 1 {
			t.Errorf("got %d answers kept, want 1", len(c.answers))
		}
	})
}

// TestAnswersGoByTheWallClock checks that an answer does not count longer because the machine was suspended, when the
// monotonic clock stands still, nor after the clock was set back, when it is not known how long it counts.
func TestAnswersGoByTheWallClock(t *testing.T) {
	began := time.Now()
	for name, d := range map[string]time.Duration{"suspended": 2 * time.Hour, "set back": -2 * time.Hour} {
		var c cache
		c.keep(key("r.io", identity{}), nil, began, time.Hour)
		if _, ok := c.find(identity{}, "r.io/app", began); !ok {
			t.Errorf("%s: got no answer before that, want it", name)
		}
		if _, ok := c.find(identity{}, "r.io/app", wallclock.After(t, began, d)); ok {
			t.Errorf("%s: got the answer, want none", name)
		}
	}
}

// TestAnswersAreBounded checks that new answers take the place of those that expire first.
func TestAnswersAreBounded(t *testing.T) {
	var c cache
	began := time.Now()
	for i := range maxAnswers + 50 {
		c.keep(key(fmt.Sprintf("r%d.io", i), identity{}), nil, began, time.Hour+time.Duration(i)*time.Minute)
	}
	if len(c.answers) != maxAnswers {
		t.Errorf("got %d answers kept, want %d", len(c.answers), maxAnswers)
	}
	for i := range maxAnswers + 50 {
		if _, ok := c.find(identity{}, fmt.Sprintf("r%d.io/app", i), began); ok != (i >= 50) {
			t.Errorf("answer %d: got kept %t, want the last %d", i, ok, maxAnswers)
		}
	}
}

// hanging is a run of a program that hangs, and counts itself. Only good.example.com gets an answer.
func hanging(runs *atomic.Int32) func(context.Context, api.CredentialProviderRequest) (
	*api.CredentialProviderResponse, error) {
	return func(ctx context.Context, r api.CredentialProviderRequest) (*api.CredentialProviderResponse, error) {
		runs.Add(1)
		if registryOf(r.Image) == "good.example.com" {
			return &api.CredentialProviderResponse{CacheKeyType: api.ImagePluginCacheKeyType}, nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(runTime):
		}
		return nil, errors.New("no answer")
	}
}

// TestRunsAreBounded checks that a provider runs a few times at once, and never for a request that was given up.
func TestRunsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newWorld(t, "", "").start(t)
		var runs atomic.Int32
		p.all[0].run = hanging(&runs)
		var giveUp []context.CancelFunc
		for _, of := range []string{"running", "queued"} {
			ctx, cancel := context.WithCancel(t.Context())
			giveUp = append(giveUp, cancel)
			for i := range maxRuns {
				go p.Ask(ctx, nil, fmt.Sprintf("r%d.example.com/%s", i, of))
			}
			synctest.Wait()
		}
		if got := runs.Load(); got != maxRuns {
			t.Errorf("got %d runs at once, want %d", got, maxRuns)
		}
		for _, cancel := range slices.Backward(giveUp) {
			cancel()
			synctest.Wait()
		}
		if got := runs.Load(); got != maxRuns {
			t.Errorf("after all requests were given up: got %d runs, want no more than %d", got, maxRuns)
		}
	})
}

// TestHangingRunsCountForAWhile checks that a registry whose runs hang delays the others a little only, and that not
// too many hang at once.
func TestHangingRunsCountForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newWorld(t, "", "").start(t)
		var runs atomic.Int32
		p.all[0].run = hanging(&runs)
		for i := range 6 * maxRuns {
			go p.Ask(t.Context(), nil, fmt.Sprintf("r%d.example.com/app", i))
		}
		time.Sleep(runTime - time.Nanosecond)
		synctest.Wait()
		if got, want := runs.Load(), int32(maxRuns*runTime/runCountFor); got != want {
			t.Errorf("got %d runs that hang at once, want %d", got, want)
		}
		began := time.Now()
		if given, problems := p.Ask(t.Context(), nil, "good.example.com/app"); len(given) != 1 || len(problems) > 0 {
			t.Errorf("got %d answers, the problems %q, want one answer", len(given), problems)
		}
		if took := time.Since(began); took > runTime {
			t.Errorf("got an answer after %v, want it after at most %v", took, runTime)
		}
	})
}

// TestTokenTakesNoTurn checks that a request whose token does not come keeps no other from running.
func TestTokenTakesNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "", tokenFields("ServiceAccount", "requireServiceAccount: true"))
		newCluster().serve(&w.options)
		token := w.options.Token
		w.options.Token = func(ctx context.Context, pod *corev1.Pod, uid types.UID, audience string, seconds int64) (
			string, time.Time, error) {
			if pod.Name == "slow" {
				<-ctx.Done()
			}
			return token(ctx, pod, uid, audience, seconds)
		}
		p := w.start(t)
		var runs atomic.Int32
		p.all[0].run = hanging(&runs)
		for i := range 2 * maxRuns {
			go p.Ask(t.Context(), podOf("slow", "builder"), fmt.Sprintf("r%d.example.com/app", i))
		}
		synctest.Wait()
		go p.Ask(t.Context(), podOf("p1", "builder"), "good.example.com/app")
		synctest.Wait()
		if got := runs.Load(); got != 1 {
			t.Errorf("got %d runs, want that of the pod whose token came", got)
		}
	})
}

// TestQueuedRequestsShareAnAnswer checks that a request that has waited for its turn uses what was answered meanwhile.
func TestQueuedRequestsShareAnAnswer(t *testing.T) {
	w := newWorld(t, answering("Registry", "1h"), "")
	p := w.start(t)
	var all sync.WaitGroup
	for i := range 3 * maxRuns {
		all.Go(func() {
			if got := ask(t, p, nil, fmt.Sprintf("r.example.com/app%d", i)); len(got) != 1 {
				t.Errorf("got %d logins, want 1", len(got))
			}
		})
	}
	all.Wait()
	if n := len(w.asked(t)); n > maxRuns {
		t.Errorf("got %d requests, want at most %d", n, maxRuns)
	}
}

// TestAbandonedRunEnds checks that a program is killed when nobody waits for its answer any more.
func TestAbandonedRunEnds(t *testing.T) {
	w := newWorld(t, "echo $$ > $0.new; mv $0.new $0.pid; exec sleep 600", "")
	p := w.start(t)
	p.all[0].program.limit = time.Hour
	ctx, giveUp := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if given, problems := p.Ask(ctx, nil, "r.example.com/app"); len(given) != 0 || len(problems) != 1 {
			t.Errorf("got %d logins, %q, want one problem", len(given), problems)
		}
	}()
	var pid []byte
	waittest.Until(t, "the program runs", func() bool {
		var err error
		pid, err = os.ReadFile(w.path("bin/login.pid"))
		return err == nil
	})
	giveUp()
	<-ended
	untilEnded(t, pid)
}

// untilEnded waits for the end of a process.
func untilEnded(t *testing.T, pid []byte) {
	t.Helper()
	waittest.Until(t, "the process has ended", func() bool {
		stat, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "stat"))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

// TestOneRunForAll checks that those who ask the same at the same time share one run.
func TestOneRunForAll(t *testing.T) {
	w := newWorld(t, "", "")
	w.write(t, "bin/login",
		"#!/bin/sh\ncat >> "+w.path("asked")+"\nwhile [ ! -e "+w.path("go")+" ]; do sleep 0.01; done\n"+answering("Image",
			"")+"\n")
	p := w.start(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if got := ask(t, p, nil, "r.example.com/app"); len(got) != 1 {
				t.Errorf("got %d logins, want 1", len(got))
			}
		})
	}
	waittest.Until(t, "the program runs", func() bool { return len(w.asked(t)) > 0 })
	w.write(t, "go", "")
	all.Wait()
	if n := len(w.asked(t)); n != 1 {
		t.Errorf("got %d requests, want 1", n)
	}
}

// TestBadProgramsLeakNothing checks that the log says what is wrong with a program or its answer, but never has the
// answer itself; the problem that users of the pod see has only the name of the provider.
func TestBadProgramsLeakNothing(t *testing.T) {
	good := answering("Image", "")
	for name, tc := range map[string]struct{ script, want string }{
		"fails": {"echo " + hidden + "; echo no metadata service >&2; exit 3",
			`exit status 3; its standard error: \"no metadata service\"`},
		"flood":         {"exec yes " + hidden, "its answer is longer than 1048576 bytes"},
		"complains":     {"yes complaint | head -c 100000 >&2; exit 1", `its standard error: \"complaint`},
		"nothing":       {"", "not a CredentialProviderResponse"},
		"no JSON":       {"echo " + hidden, "not a CredentialProviderResponse"},
		"cut off":       {`echo '{"auth":{"r":{"password":"` + hidden + `"'`, "not a CredentialProviderResponse"},
		"two":           {good + ";" + good, "not a CredentialProviderResponse"},
		"old":           {strings.Replace(good, v1, v1+"beta1", 1), "apiVersion " + v1},
		"wrong kind":    {strings.Replace(good, "Response", hidden, 1), "kind CredentialProviderResponse"},
		"unknown field": {strings.Replace(good, `"auth"`, `"`+hidden+`":1,"auth"`, 1), "unknown or duplicate fields"},
		"wrong case":    {strings.Replace(good, `"auth"`, `"Auth"`, 1), "unknown or duplicate fields"},
		"no scope":      {strings.Replace(good, `"cacheKeyType":"Image"`, `"cacheKeyType":"`+hidden+`"`, 1), "cacheKeyType"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("LOGIN_WORD", hidden)
			w := newWorld(t, tc.script, "")
			p := w.start(t)
			given, problems := p.Ask(t.Context(), nil, "r.example.com/app")
			w.wantRefused(t, given, problems, tc.want)
		})
	}
}

// wantRefused checks that a request got no login, and that only the log says why.
func (w *world) wantRefused(t *testing.T, given []images.Provided, problems []string, why string) {
	t.Helper()
	if len(given) != 0 || len(problems) != 1 ||
		problems[0] != "credential provider login gave no login; the log of the node agent says why" {
		t.Errorf("got %d logins and %q, want none and a problem that refers to the log", len(given), problems)
	}
	log := w.log.String()
	if !strings.Contains(log, why) || strings.Contains(log, hidden) || len(log) > 3*maxComplaint {
		t.Errorf("the log: got %.1000q, want %q", log, why)
	}
	if n := len(w.asked(t)); n != 1 {
		t.Errorf("got %d requests, want 1", n)
	}
}

// TestProgramThatHangs checks that a program which does not answer is killed, and its child with it.
func TestProgramThatHangs(t *testing.T) {
	t.Setenv("LOGIN_WORD", hidden)
	script := "echo waiting >&2; sleep 600 & echo $! > $0.child; mv $0.child $0.hangs; wait"
	for limit := 100 * time.Millisecond; ; limit *= 2 {
		w := newWorld(t, script, "")
		p := w.start(t)
		p.all[0].program.limit = limit
		given, problems := p.Ask(t.Context(), nil, "r.example.com/app")
		child, err := os.ReadFile(w.path("bin/login.hangs"))
		if os.IsNotExist(err) && limit < waittest.Limit {
			continue // it was killed before it could hang
		}
		if err != nil {
			t.Fatal(err)
		}
		w.wantRefused(t, given, problems, `and was killed; its standard error: \"waiting\"`)
		untilEnded(t, child)
		return
	}
}

// FuzzAnswer checks that no answer makes a panic, and no error quotes one.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"` + v1 + `","kind":"CredentialProviderResponse","cacheKeyType":"Image",` +
		`"cacheDuration":"1h","auth":{"r.io":{"username":"u","password":"p"}}}`))
	f.Add([]byte(`{"apiVersion":"` + v1 + `","kind":"CredentialProviderResponse","cacheDuration":7,"auth":null,"x":[{}]}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, text []byte) {
		answer, err := parse(text, v1)
		if (answer == nil) == (err == nil) {
			t.Fatalf("got %v and %v, want an answer or an error", answer, err)
		}
		if err == nil && !json.Valid(text) {
			t.Errorf("%q: got no error, want one, because it is no JSON", text)
		}
		if err != nil && len(err.Error()) > 200 {
			t.Errorf("got an error that may quote what was read, want a short one: %v", err)
		}
	})
}
