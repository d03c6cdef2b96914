package plugins_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nodelet/nodelet/plugins"
	"github.com/nodelet/nodelet/test/plugins/fake"
	"github.com/nodelet/nodelet/test/waittest"
)

const pluginType = "Test"

// world is a root directory, a registry that works in it, and the handler of its plugins.
type world struct {
	t        *testing.T
	root     string
	stop     func()
	registry *plugins.Registry

	mu sync.Mutex
	// known are the plugins that are registered, and how often one of that name was.
	known map[string]plugins.Info
	count map[string]int
	// refuse is why plugins are refused now.
	refuse error
	// slow is what the dismissal of a plugin waits for, by its name.
	slow map[string]chan struct{}
	log  strings.Builder
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "plugins") // short: a socket's path has at most 107 characters
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, root: dir, known: map[string]plugins.Info{}, count: map[string]int{}}
	t.Cleanup(func() {
		w.stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	w.begin()
	return w
}

// begin starts the registry.
func (w *world) begin() {
	ctx, cancel := context.WithCancel(context.Background())
	r := plugins.New(plugins.Config{
		Root:         w.root,
		Handlers:     map[string]plugins.Handler{pluginType: w},
		Log:          slog.New(slog.NewTextHandler(w, nil)),
		PollInterval: 20 * time.Millisecond,
	})
	w.registry = r
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx)
	}()
	w.stop = func() { cancel(); <-ended }
}

// Accept is plugins.Handler's.
func (w *world) Accept(_ context.Context, p plugins.Info) (func(context.Context), error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse != nil {
		return nil, w.refuse
	}
	w.known[p.Name] = p
	w.count[p.Name]++
	slow := w.slow[p.Name]
	return func(context.Context) {
		if slow != nil {
			<-slow
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.known, p.Name)
	}, nil
}

// Write takes the log.
func (w *world) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(line)
}

func (w *world) logged() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

func (w *world) setRefuse(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuse = err
}

func (w *world) path(socket string) string { return filepath.Join(w.root, "plugins_registry", socket) }

// plugin starts a plugin that registers at a socket by its name.
func (w *world) plugin(socket, name string, change func(*registration.PluginInfo)) *fake.Plugin {
	w.t.Helper()
	info := &registration.PluginInfo{
		Type:              pluginType,
		Name:              name,
		Endpoint:          "/run/" + name,
		SupportedVersions: []string{"v1"},
	}
	if change != nil {
		change(info)
	}
	p := &fake.Plugin{}
	w.t.Cleanup(p.Close)
	if err := p.Register(w.path(socket), info); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// until waits for what no call of the test brings about.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	limit := time.Now().Add(waittest.Limit)
	for !ok() {
		if time.Now().After(limit) {
			w.t.Fatalf("never: %s\n%s", what, w.logged())
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// untilKnown waits until these plugins are registered and no others.
func (w *world) untilKnown(names ...string) {
	w.t.Helper()
	w.until("registered are "+strings.Join(names, ", "), func() bool {
		accepted := slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Values(w.registry.Names()))...)))
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Equal(slices.Sorted(maps.Keys(w.known)), names) && slices.Equal(accepted, names)
	})
}

func (w *world) registered(name string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count[name]
}

// untilNotified waits until a plugin has received n registration statuses. The last must have why in its error; with an
// empty why it must report success.
func (w *world) untilNotified(p *fake.Plugin, n int, why string) {
	w.t.Helper()
	w.until("the plugin is notified", func() bool { return len(p.Registrations()) >= n })
	last := p.Registrations()[n-1]
	if last.PluginRegistered != (why == "") || !strings.Contains(last.Error, why) {
		w.t.Errorf("got status %v, want error %q", last, why)
	}
}

// TestRegistered checks that a plugin that is there when the agent starts, and one that comes later, are passed to
// the handler with their own data and are notified of success. A plugin without an endpoint is called at the socket
// where it registers.
func TestRegistered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stop()
	if err := os.MkdirAll(w.path("below"), 0o755); err != nil {
		t.Fatal(err)
	}
	early := w.plugin("early.sock", "early",
		func(i *registration.PluginInfo) { i.SupportedVersions = []string{"v1", "v2"} })
	w.begin()
	w.untilNotified(early, 1, "")
	late := w.plugin("below/late.sock", "late", func(i *registration.PluginInfo) { i.Endpoint = "" })
	w.untilNotified(late, 1, "")
	w.mu.Lock()
	defer w.mu.Unlock()
	if got := w.known["early"]; got.Type != pluginType || got.Endpoint != "/run/early" ||
		!slices.Equal(got.Versions, []string{"v1", "v2"}) {
		t.Errorf("early: got %+v, want the type, endpoint and versions that it has registered", got)
	}
	if got := w.known["late"]; got.Endpoint != w.path("below/late.sock") {
		t.Errorf("late: got %+v, want its own socket as endpoint", got)
	}
}

// TestRefused checks that a plugin that the handler refuses is notified of the reason and asked again later; so is
// one of a type without a handler.
func TestRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.setRefuse(errors.New("version v0 is not supported"))
	p := w.plugin("a.sock", "a", nil)
	w.untilNotified(p, 1, "version v0 is not supported")
	w.untilNotified(p, 2, "version v0 is not supported")
	w.setRefuse(nil)
	w.until("the plugin is registered", func() bool { got := p.Registrations(); return got[len(got)-1].PluginRegistered })
	w.untilKnown("a")
	other := w.plugin("b.sock", "b", func(i *registration.PluginInfo) { i.Type = "Other" })
	w.untilNotified(other, 1, `plugins of type "Other" are not served`)
	w.untilKnown("a")
	want := map[string]bool{w.path("a.sock"): true, w.path("b.sock"): false}
	if got := w.registry.Sockets(); !maps.Equal(got, want) {
		t.Errorf("got the sockets %v, want %v", got, want)
	}
	other.Close()
	delete(want, w.path("b.sock"))
	w.until("the socket is forgotten", func() bool { return maps.Equal(w.registry.Sockets(), want) })
}

// TestNotNotified checks that a plugin that could not take the news of its registration gets it again, and that it is
// registered once all the time.
func TestNotNotified(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stop()
	p := w.plugin("a.sock", "a", nil)
	p.RefuseStatus(errors.New("not now"))
	w.begin()
	w.untilNotified(p, 2, "")
	w.untilKnown("a")
	if n := w.registered("a"); n != 1 {
		t.Errorf("the plugin: registered %d times, want once", n)
	}
}

// TestSocketGone checks that a plugin whose socket goes is dismissed, once; the others are not asked again.
func TestSocketGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plugin("a.sock", "a", nil)
	b := w.plugin("b.sock", "b", nil)
	w.untilKnown("a", "b")
	w.untilNotified(b, 1, "")
	if err := os.Remove(w.path("a.sock")); err != nil {
		t.Fatal(err)
	}
	w.untilKnown("b")
	if n := len(b.Registrations()); n != 1 || w.registered("b") != 1 {
		t.Errorf("the other plugin: got %d statuses and %d registrations, want 1 and 1", n, w.registered("b"))
	}
}

// TestDirectoryGone checks that plugins whose directory goes are dismissed, and come back with it: a directory below
// the one where plugins register, and that one.
func TestDirectoryGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, dir := range []string{"below", ""} {
		socket := filepath.Join(dir, "a.sock")
		w.plugin(socket, "a", nil)
		w.untilKnown("a")
		if err := os.RemoveAll(w.path(dir)); err != nil {
			t.Fatal(err)
		}
		w.untilKnown()
		w.plugin(socket, "a", nil)
		w.untilKnown("a")
		if err := os.Remove(w.path(socket)); err != nil {
			t.Fatal(err)
		}
		w.untilKnown()
	}
	if err := errors.Join(os.RemoveAll(w.path("")), os.Symlink(t.TempDir(), w.path(""))); err != nil {
		t.Errorf("replace the directory by a link: %v", err)
	}
}

// TestLinkedDirectory checks that plugins register in a directory that plugins_registry is a link to.
func TestLinkedDirectory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stop()
	data := filepath.Join(w.root, "data")
	if err := errors.Join(os.RemoveAll(w.path("")), os.Mkdir(data, 0o755), os.Symlink(data, w.path(""))); err != nil {
		t.Fatal(err)
	}
	w.plugin("early.sock", "early", nil)
	w.begin()
	w.untilKnown("early")
	w.plugin("below/late.sock", "late", func(i *registration.PluginInfo) { i.Endpoint = "" })
	w.untilKnown("early", "late")
	if want := map[string]bool{w.path("early.sock"): true, w.path("below/late.sock"): true}; !maps.Equal(
		w.registry.Sockets(), want) {
		t.Errorf("got the sockets %v, want %v", w.registry.Sockets(), want)
	}
	if err := os.Remove(filepath.Join(data, "early.sock")); err != nil {
		t.Fatal(err)
	}
	w.untilKnown("late")
}

// TestRestarted checks that a plugin that comes back at its path, perhaps without the agent having seen that it was
// gone, is dismissed and registered again.
func TestRestarted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for run := 1; run <= 4; run++ {
		p := w.plugin("a.sock", "a", nil)
		w.untilNotified(p, 1, "")
		w.until("the plugin is registered once in each run", func() bool { return w.registered("a") == run })
		if run%2 == 0 {
			continue // the next takes its path while it runs
		}
		p.Close()
	}
	w.untilKnown("a")
}

// TestSlowDismissal checks that while the dismissal of a plugin takes its time, as without the API server, others
// register, and one that has taken its socket waits.
func TestSlowDismissal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	letGo := make(chan struct{})
	w.mu.Lock()
	w.slow = map[string]chan struct{}{"a": letGo}
	w.mu.Unlock()
	w.plugin("a.sock", "a", nil)
	w.untilKnown("a")
	w.plugin("a.sock", "next", nil)
	w.plugin("b.sock", "b", nil)
	w.untilKnown("a", "b")
	close(letGo)
	w.untilKnown("b", "next")
}

// TestSocketComesBack checks that a plugin whose socket is moved away, and comes back before its dismissal ends, is
// registered again.
func TestSocketComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	letGo := make(chan struct{})
	w.mu.Lock()
	w.slow = map[string]chan struct{}{"a": letGo}
	w.mu.Unlock()
	w.plugin("a.sock", "a", nil)
	w.untilKnown("a")
	aside := filepath.Join(w.root, "aside")
	if err := os.Rename(w.path("a.sock"), aside); err != nil {
		t.Fatal(err)
	}
	w.plugin("b.sock", "b", nil) // so that the registry has looked once more
	w.untilKnown("a", "b")
	if err := os.Rename(aside, w.path("a.sock")); err != nil {
		t.Fatal(err)
	}
	close(letGo)
	w.until("the plugin is registered again", func() bool { return w.registered("a") == 2 })
}

// TestSocketChanged checks that a plugin stays registered when its socket gets another mode or owner, as it does from
// many plugins after they have begun to listen.
func TestSocketChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plugin("a.sock", "a", nil)
	w.untilKnown("a")
	if err := errors.Join(os.Chmod(w.path("a.sock"), 0o600), os.Lchown(w.path("a.sock"), 1000, 1000)); err != nil {
		t.Fatal(err)
	}
	w.plugin("b.sock", "b", nil)
	w.untilKnown("a", "b")
	w.plugin("c.sock", "c", nil) // so that the registry has looked once more
	w.untilKnown("a", "b", "c")
	if n := w.registered("a"); n != 1 {
		t.Errorf("the plugin whose socket was changed: registered %d times, want once", n)
	}
}

// TestDirectories checks that the directories that pods of plugins mount exist before any plugin does.
func TestDirectories(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, dir := range []string{"plugins", "plugins_registry"} {
		w.until(dir+" is there", func() bool {
			info, err := os.Stat(filepath.Join(w.root, dir))
			return err == nil && info.IsDir()
		})
	}
}

// TestTwoSockets checks that two plugins of one name are two registrations; the handler decides which of them it
// uses.
func TestTwoSockets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plugin("a.sock", "a", nil)
	w.until("the first is registered", func() bool { return w.registered("a") == 1 })
	second := w.plugin("b.sock", "a", nil)
	w.untilNotified(second, 1, "")
	if n := w.registered("a"); n != 2 {
		t.Errorf("registered %d times, want twice", n)
	}
}

// TestLinkedSocket checks that a link to a socket elsewhere registers the plugin there, that the plugin stays while the
// socket is away, is registered again with another socket, and is dismissed when the link goes.
func TestLinkedSocket(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	listen := func() *fake.Plugin {
		p := &fake.Plugin{}
		t.Cleanup(p.Close)
		if err := p.Register(filepath.Join(w.root, "elsewhere.sock"),
			&registration.PluginInfo{Type: pluginType, Name: "elsewhere"}); err != nil {
			t.Fatal(err)
		}
		return p
	}
	elsewhere := listen()
	if err := errors.Join(os.MkdirAll(w.path(""), 0o755),
		os.Symlink(filepath.Join(w.root, "elsewhere.sock"), w.path("link.sock"))); err != nil {
		t.Fatal(err)
	}
	w.untilNotified(elsewhere, 1, "")
	w.untilKnown("elsewhere")
	elsewhere.Close()
	w.plugin("a.sock", "a", nil)
	w.untilKnown("a", "elsewhere")
	w.plugin("b.sock", "b", nil) // so that the registry has looked once more
	w.untilKnown("a", "b", "elsewhere")
	if n := w.registered("elsewhere"); n != 1 {
		t.Errorf("the plugin behind the link: registered %d times while its socket was away, want once", n)
	}
	again := listen()
	w.plugin("c.sock", "c", nil)
	w.untilNotified(again, 1, "")
	w.untilKnown("a", "b", "c", "elsewhere")
	if n := w.registered("elsewhere"); n != 2 {
		t.Errorf("the plugin behind the link: registered %d times with a second socket, want twice", n)
	}
	if err := os.Remove(w.path("link.sock")); err != nil {
		t.Fatal(err)
	}
	w.untilKnown("a", "b", "c")
}

// TestNoSockets checks that a file that is no socket, or is hidden, is not called and disturbs no plugin.
func TestNoSockets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := errors.Join(
		os.MkdirAll(w.path("directory.sock"), 0o755),
		os.WriteFile(w.path("file.sock"), []byte("x"), 0o600),
		unix.Mkfifo(w.path("fifo.sock"), 0o600),
		os.Symlink("file.sock", w.path("link.sock")),
		os.Symlink("nothing.sock", w.path("dangling.sock")),
		os.Symlink(w.root, w.path("linked-directory")),
		os.Symlink("loop.sock", w.path("loop.sock")),
	); err != nil {
		t.Fatal(err)
	}
	hidden := w.plugin(".hidden.sock", "hidden", nil)
	below := w.plugin(".hidden/below.sock", "below", nil)
	w.plugin("good.sock", "good", nil)
	w.untilKnown("good")
	for name, p := range map[string]*fake.Plugin{"hidden": hidden, "below a hidden directory": below} {
		if len(p.Registrations()) > 0 {
			t.Errorf("socket that is %s: got a call, want none", name)
		}
	}
	if got := w.logged(); strings.Contains(got, "cannot") {
		t.Errorf("got the log %s, want nothing about the others", got)
	}
}

// TestUnreadableDirectory checks that a directory that can be neither watched nor read hides no plugin beside it: those
// that are registered stay, and others register.
func TestUnreadableDirectory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plugin("known.sock", "known", nil)
	w.untilKnown("known")
	name := strings.Repeat("a", 255)
	dir, err := unix.Open(w.path(""), unix.O_PATH, 0)
	for range unix.PathMax / len(name) { // too long for any call that takes a path
		if err != nil {
			break
		}
		var below int
		if err = unix.Mkdirat(dir, name, 0o755); err == nil {
			below, err = unix.Openat(dir, name, unix.O_PATH, 0)
		}
		err = errors.Join(err, unix.Close(dir))
		dir = below
	}
	if err = errors.Join(err, unix.Close(dir)); err != nil {
		t.Fatal(err)
	}
	w.plugin("later.sock", "later", nil)
	w.untilKnown("known", "later")
	if n := w.registered("known"); n != 1 {
		t.Errorf("the plugin that was there: registered %d times, want once", n)
	}
	said := func() int { return strings.Count(w.logged(), "cannot watch all directories of plugins") }
	w.until("the log says that a directory cannot be watched", func() bool { return said() > 0 })
	if n := said(); n != 1 {
		t.Errorf("the log says %d times that a directory cannot be watched, want once", n)
	}
}

// silent does not answer until letGo is closed.
type silent struct {
	registration.UnimplementedRegistrationServer
	once         sync.Once
	asked, letGo chan struct{}
}

func (s *silent) GetInfo(ctx context.Context, _ *registration.InfoRequest) (*registration.PluginInfo, error) {
	s.once.Do(func() { close(s.asked) })
	select {
	case <-s.letGo:
	case <-ctx.Done():
	}
	return nil, errors.New("too late")
}

// TestSilentPlugin checks that a plugin that does not answer, and a socket without a listener, block no other plugin,
// and not the agent's end.
func TestSilentPlugin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := &silent{asked: make(chan struct{}), letGo: make(chan struct{})}
	p := &fake.Plugin{}
	defer p.Close()
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, s)
	if err := p.Serve(server, w.path("silent.sock")); err != nil {
		t.Fatal(err)
	}
	<-s.asked
	dead, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		err = errors.Join(unix.Bind(dead, &unix.SockaddrUnix{Name: w.path("dead.sock")}), unix.Close(dead))
	}
	if err != nil {
		t.Fatal(err)
	}
	w.plugin("good.sock", "good", nil)
	w.untilKnown("good")
	w.stop()
	w.untilKnown() // who is registered is dismissed at the end
	w.begin()
	w.untilKnown("good")
}

// TestNoDirectory checks that where plugins cannot register the log says so, once; when they can, they do.
func TestNoDirectory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stop()
	if err := errors.Join(os.RemoveAll(w.path("")),
		os.WriteFile(filepath.Join(w.root, "plugins_registry"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	w.begin()
	w.until("the log says so",
		func() bool { return strings.Contains(w.logged(), "cannot watch the directory of plugins") })
	if err := os.Remove(filepath.Join(w.root, "plugins_registry")); err != nil {
		t.Fatal(err)
	}
	w.until("the directory is there", func() bool { _, err := os.Stat(w.path("")); return err == nil })
	w.plugin("good.sock", "good", nil)
	w.untilKnown("good")
	if n := strings.Count(w.logged(), "cannot watch"); n != 1 {
		t.Errorf("lines about plugins that cannot be watched: got %d, want 1:\n%s", n, w.logged())
	}
}
