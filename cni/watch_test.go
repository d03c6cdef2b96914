package cni

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodelet/nodelet/host/atomicfile"
	"github.com/nodelet/nodelet/test/faulttest"
	"github.com/nodelet/nodelet/test/waittest"
)

// TestDirsAreLookedAtAnyway checks that directories that cannot be watched are looked at now and then.
func TestDirsAreLookedAtAnyway(t *testing.T) {
	dir := t.TempDir()
	restore := faulttest.NoFiles(t)
	looks := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		watchDirs(ctx, []string{dir}, discard(), func() {
			select {
			case looks <- struct{}{}:
			case <-ctx.Done():
			}
		})
	}()
	for range 3 {
		<-looks
	}
	restore()
	<-looks // what has happened before the watch
	cancel()
	<-done
}

func TestSourceFollowsItsFile(t *testing.T) {
	dir := t.TempDir()
	bin, conf := filepath.Join(dir, "bin"), filepath.Join(dir, "conf.d", "net.conflist")
	changed := make(chan struct{}, 100)
	s := NewSource(SourceConfig{Dir: filepath.Join(dir, "state"), Conf: conf, BinDirs: []string{bin}, Log: discard(),
		Changed: func() { changed <- struct{}{} }})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	step := func(want string, do func() error) {
		t.Helper()
		if err := do(); err != nil {
			t.Fatal(err)
		}
		for {
			n, err := s.Now()
			if err != nil && strings.Contains(err.Error(), want) || n != nil && "="+n.Name == want {
				return
			}
			select {
			case <-changed:
			case <-waittest.Context(t).Done():
				t.Fatalf("now %v, %v; want %q", n, err, want)
			}
		}
	}
	write := func(path, text string, mode os.FileMode) func() error {
		return func() error {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			return atomicfile.Write(path, []byte(text), mode)
		}
	}
	step("no such file", func() error { return nil })
	step(`needs the plugin "one"`, write(conf, `{"cniVersion":"1.0.0","name":"a","type":"one"}`, 0o644))
	step("=a", write(filepath.Join(bin, "one"), "x", 0o755))
	step("=b", write(conf, `{"cniVersion":"1.0.0","name":"b","type":"one"}`, 0o644))
	step("not JSON", write(conf, `{"cniVersion":`, 0o644))
	step("=c", write(conf, `{"cniVersion":"1.0.0","name":"c","type":"one"}`, 0o644))
	step(`needs the plugin "one"`, func() error { return os.Remove(filepath.Join(bin, "one")) })
	if n, err := readNetwork(filepath.Join(dir, "state", ownFile)); err != nil || n.Name != "c" {
		t.Errorf("network for a DEL without the agent: got %v, %v, want c", n, err)
	}
}

// TestSourceInTheRuntimesDirectory checks that nodelet's configuration for the runtime is not taken for the node's own
// network, where the runtime's directory is that of the user's configuration too.
func TestSourceInTheRuntimesDirectory(t *testing.T) {
	b := newBench(t)
	b.plugin("first", answer)
	conf := filepath.Join(b.dir, "net.d")
	if err := install(InstallConfig{ConfDir: conf, BinDir: b.dir, Program: "/bin/true"}); err != nil {
		t.Fatal(err)
	}
	s := NewSource(SourceConfig{Dir: filepath.Join(b.dir, "state"), Conf: conf, BinDirs: []string{b.dir}, Log: discard(),
		Changed: func() {}})
	if n, err := s.Now(); err == nil || !strings.Contains(err.Error(), "no network configuration") {
		t.Errorf("nodelet's configuration alone: got %v, %v, want an error that there is none", n, err)
	}
	if err := os.WriteFile(filepath.Join(conf, "10-net.conflist"), []byte(chain("first")), 0o644); err != nil {
		t.Fatal(err)
	}
	s.refresh()
	if n, err := s.Now(); err != nil || n.Name != "net" {
		t.Errorf("beside nodelet's configuration: got %v, %v, want net", n, err)
	}
}

// TestIgnoredFileIsLoggedOnce checks that a file which is no network configuration is not logged at each look.
func TestIgnoredFileIsLoggedOnce(t *testing.T) {
	b := newBench(t)
	b.plugin("first", answer)
	conf := t.TempDir()
	for name, text := range map[string]string{"10-broken.conflist": "{", "20-net.conflist": chain("first")} {
		if err := os.WriteFile(filepath.Join(conf, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var log strings.Builder
	s := NewSource(SourceConfig{Dir: filepath.Join(b.dir, "state"), Conf: conf, BinDirs: []string{b.dir},
		Log: slog.New(slog.NewTextHandler(&log, nil)), Changed: func() {}})
	s.refresh()
	if n, err := s.Now(); err != nil || n.Name != "net" {
		t.Errorf("beside the broken file: got %v, %v, want net", n, err)
	}
	if n := strings.Count(log.String(), "10-broken.conflist"); n != 1 {
		t.Errorf("got the broken file %d times in the log, want once:\n%s", n, &log)
	}
}

// TestRangesAreKeptLater checks that pod CIDRs that could not be stored are stored as soon as that is possible.
func TestRangesAreKeptLater(t *testing.T) {
	c := SourceConfig{Dir: filepath.Join(t.TempDir(), "state"), Log: discard(), Changed: func() {}}
	if err := os.WriteFile(c.Dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ranges := []netip.Prefix{netip.MustParsePrefix("10.55.0.0/24")}
	s := NewSource(c)
	s.SetRanges(ranges)
	if err := os.Remove(c.Dir); err != nil {
		t.Fatal(err)
	}
	s.refresh()
	if got := NewSource(c).Ranges(); !slices.Equal(got, ranges) {
		t.Errorf("after a start: got the ranges %v, want %v", got, ranges)
	}
}

// TestSourceKeepsRanges checks that a node that starts without its API server goes on with the pod CIDRs of before.
func TestSourceKeepsRanges(t *testing.T) {
	b := newBench(t)
	for _, plugin := range []string{"bridge", "host-local", "portmap", "bandwidth"} {
		b.plugin(plugin, pass)
	}
	start := func() *Source {
		return NewSource(SourceConfig{Dir: filepath.Join(b.dir, "state"), BinDirs: []string{b.dir}, Log: discard(),
			Changed: func() {}})
	}
	s := start()
	if _, err := s.Now(); err == nil || !strings.Contains(err.Error(), "no pod CIDR yet") {
		t.Fatalf("without a range: got %v, want an error that says so", err)
	}
	ranges := []netip.Prefix{netip.MustParsePrefix("10.55.0.0/24"), netip.MustParsePrefix("fd55::/64")}
	s.SetRanges(ranges)
	s = start()
	s.SetRanges(nil) // the Node has not come yet
	n, err := s.Now()
	if err != nil || !strings.Contains(string(n.Bytes), "fd55::/64") || !slices.Equal(s.Ranges(), ranges) {
		t.Errorf("after a start without API server: got %v, %v and the ranges %v, want those of before", n, err, s.Ranges())
	}
	if err := os.WriteFile(filepath.Join(s.Dir, rangesFile), []byte("[7"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := start().Ranges(); len(got) != 0 {
		t.Errorf("from a spoilt file: got %v, want none", got)
	}
}

func TestWatcherNamesWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	d := Dirs{Conf: filepath.Join(dir, "net.d"), Bins: []string{filepath.Join(dir, "bin"), filepath.Join(dir, "more")}}
	changes := 0
	w := NewWatcher(d, func() { changes++ }, discard())
	for _, step := range []struct {
		file, text     string
		ready, unready string // what Problem says when the runtime is ready, and when not
	}{
		{"", "", "", "list network configurations: open " + d.Conf},
		{"net.d/README", "x", "", "no network configuration"},
		{"net.d/20-b.conflist", chain("flannel"), `plugin "flannel", which is not in`, `plugin "flannel"`},
		{"net.d/10-a.conf", "oops", `plugin "flannel", which is not in`, "10-a.conf: not JSON"},
		{"bin/flannel", "x", "", "10-a.conf: not JSON"},
		{"net.d/10-a.conf", `{"name":"a","type":"antrea","ipam":{"type":"dhcp"}}`, `plugin "antrea"`, `plugin "antrea"`},
		{"more/antrea", "x", "", ""},                                          // it does not run dhcp on the node
		{"bin/antrea", "", "bin/antrea, which is not executable", "chmod +x"}, // a runtime runs the first one
	} {
		if step.file != "" {
			path := filepath.Join(dir, step.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			mode := os.FileMode(0o755)
			if step.text == "" {
				mode = 0o644
			}
			if err := atomicfile.Write(path, []byte(step.text), mode); err != nil {
				t.Fatal(err)
			}
		}
		changes = 0
		for range 2 {
			w.look()
		}
		if changes != 1 {
			t.Errorf("after %s and two looks: got %d changes, want one", step.file, changes)
		}
		for ready, want := range map[bool]string{true: step.ready, false: step.unready} {
			if err := w.Problem(ready); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("after %s, runtime ready %v: got %v, want %q", step.file, ready, err, want)
			}
		}
	}
	dirs := RuntimeDirs(map[string]string{"config": `{"cni":{"binDirs":["/a","/b"],"confDir":"/c"}}`})
	if dirs.Conf != "/c" || !slices.Equal(dirs.Bins, []string{"/a", "/b"}) {
		t.Errorf("directories of the runtime: got %+v, want /c, /a and /b", dirs)
	}
	if old := RuntimeDirs(map[string]string{"config": `{"cni":{"binDir":"/a"}}`}); !slices.Equal(old.Bins,
		[]string{"/a"}) {
		t.Errorf("directories of an older containerd: got %+v, want /a", old)
	}
}

func TestInstall(t *testing.T) {
	dir := t.TempDir()
	c := InstallConfig{
		ConfDir: filepath.Join(dir, "net.d"),
		BinDir:  filepath.Join(dir, "bin"),
		Program: "/usr/bin/nodelet",
		Socket:  "/s",
		Dir:     "/d",
	}
	if !Vacant(c.ConfDir) {
		t.Error("Vacant: got false for a missing directory")
	}
	var before os.FileInfo
	for i := range 2 {
		if err := install(c); err != nil {
			t.Fatal(err)
		}
		after, err := os.Stat(filepath.Join(c.ConfDir, installedFile))
		if err != nil || i == 1 && !os.SameFile(before, after) {
			t.Errorf("unchanged file: got another one (%v), want the same", err)
		}
		before = after
	}
	if to, err := os.Readlink(filepath.Join(c.BinDir, "nodelet-cni")); err != nil || to != c.Program {
		t.Errorf("plugin: got %q, %v, want %q", to, err, c.Program)
	}
	if !Vacant(c.ConfDir) {
		t.Error("Vacant with nodelet's own configuration: got false, want true")
	}
	other := filepath.Join(c.ConfDir, "00-a.conflist")
	if err := os.WriteFile(other, []byte(chain("x")), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := install(c); err == nil || !strings.Contains(err.Error(), "00-a.conflist instead of 00-nodelet.conflist") {
		t.Errorf("another configuration first: got %v, want an error that names both", err)
	}
	if Vacant(c.ConfDir) {
		t.Error("Vacant with another configuration: got true, want false")
	}
	for _, want := range []bool{true, false} {
		if removed, err := Uninstall(c.ConfDir); removed != want || err != nil {
			t.Errorf("uninstall: got %v, %v, want %v", removed, err, want)
		}
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
}
