package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/waittest"
)

func TestAttachAndDetachInOrder(t *testing.T) {
	b := newBench(t)
	b.plugin("first", answer)
	b.plugin("second", pass)
	b.plugin("other", answer)
	own := b.network(chain("first", "second"))
	more := b.network(`{"cniVersion":"1.0.0","name":"more","type":"other","capabilities":{"mac":true}}`)
	rec := b.record("s1")
	err := b.Attach(context.Background(), rec, []Wanted{
		{Network: own, IfName: "eth0"},
		{Network: more, IfName: "net1", Label: "default/more", Args: map[string]any{"color": "blue"},
			Capabilities: map[string]any{"mac": "0a:00:00:00:00:09", "ips": []string{"10.1.1.1/24"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Check(context.Background(), "s1"); err != nil {
		t.Fatal(err)
	}
	if err := b.Detach(context.Background(), "s1", "", nil); err != nil {
		t.Fatal(err)
	}
	want := []string{"ADD first s1 eth0", "ADD second s1 eth0", "ADD other s1 net1", "CHECK first s1 eth0",
		"CHECK second s1 eth0",
		"CHECK other s1 net1", "DEL other s1 net1", "DEL second s1 eth0", "DEL first s1 eth0"}
	if got := b.calls(); !slices.Equal(got, want) {
		t.Errorf("calls: got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	add := b.got("other", "ADD")
	if args, _ := json.Marshal(add["args"]); string(args) != `{"cni":{"color":"blue"}}` {
		t.Errorf("args of the second network: got %s, want the colour blue", args)
	}
	if rc, _ := json.Marshal(add["runtimeConfig"]); string(rc) != `{"mac":"0a:00:00:00:00:09"}` {
		t.Errorf("capability arguments: got %s, want those alone that the plugin declares", rc)
	}
	if b.got("first", "DEL")["prevResult"] == nil {
		t.Error("DEL: got another result, want that of ADD")
	}
	if got := b.kept(); len(got) != 0 {
		t.Errorf("still on record: got %q, want none", got)
	}
	if len(b.seen) != len(want) || b.seen[0].Plugin != "first" || b.seen[0].Verb != "ADD" || b.seen[0].Took <= 0 {
		t.Errorf("observed calls: got %+v, want %d that begin with ADD of first", b.seen, len(want))
	}
}

func TestFailedAddIsUndone(t *testing.T) {
	b := newBench(t)
	b.plugin("first", answer)
	b.plugin("bad", `[ "$CNI_COMMAND" = ADD ] && { echo '{"cniVersion":"1.0.0","code":100,
		"msg":"no luck"}'; exit 1; }; exit 0`)
	err := b.attach("s1", b.network(chain("first", "bad")))
	if err == nil || !strings.Contains(err.Error(), "no luck") || !strings.Contains(err.Error(), `"bad"`) {
		t.Fatalf("got error %v, want the plugin's words and its name", err)
	}
	want := []string{"ADD first s1 eth0", "ADD bad s1 eth0", "DEL bad s1 eth0", "DEL first s1 eth0"}
	if got := b.calls(); !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
	if got := b.kept(); len(got) != 0 {
		t.Errorf("still on record: got %q, want none", got)
	}
}

// TestFailedUndoIsTriedAgain checks that what cannot be given back stays on record, and is given back when it can be.
func TestFailedUndoIsTriedAgain(t *testing.T) {
	b := newBench(t)
	b.plugin("sticky", `[ -e DIR/stuck ] && { echo "cannot $CNI_COMMAND" >&2; exit 3; }; exit 0`)
	if err := os.WriteFile(filepath.Join(b.dir, "stuck"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := b.attach("s1", b.network(chain("sticky")))
	if err == nil || !strings.Contains(err.Error(), "cannot ADD") || !strings.Contains(err.Error(), "cannot DEL") {
		t.Fatalf("got error %v, want what ADD and DEL said", err)
	}
	if got := b.kept(); !slices.Equal(got, []string{"s1"}) {
		t.Fatalf("on record: got %q, want s1", got)
	}
	if err := os.Remove(filepath.Join(b.dir, "stuck")); err != nil {
		t.Fatal(err)
	}
	rec, err := b.store.read("s1")
	if err != nil || rec.Whole {
		t.Fatalf("record: got %+v, %v, want an unfinished one", rec, err)
	}
	rec.NetNS = "/nowhere"
	if err := b.store.write(rec); err != nil {
		t.Fatal(err)
	}
	r, err := b.Reap(context.Background(), Alive{List: listed()})
	if err != nil || !slices.Equal(r.Sandboxes, []string{"s1"}) || len(b.kept()) != 0 {
		t.Errorf("reaped: got %+v, %v, want s1; on record: got %q, want none", r, err, b.kept())
	}
}

// TestAddedTwice checks that a second ADD undoes the first one, and then does its work.
func TestAddedTwice(t *testing.T) {
	b := newBench(t)
	b.plugin("first", answer)
	for range 2 {
		if err := b.attach("s1", b.network(chain("first"))); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"ADD first s1 eth0", "DEL first s1 eth0", "ADD first s1 eth0"}
	if got := b.calls(); !slices.Equal(got, want) {
		t.Errorf("calls: got %q, want %q", got, want)
	}
	if rec, err := b.store.read("s1"); err != nil || rec == nil || !rec.Whole {
		t.Errorf("record: got %+v, %v, want a whole one", rec, err)
	}
}

// TestHugeArguments checks that a pod whose arguments make a configuration too large to be read again gets no network,
// and that its sandbox can be removed.
func TestHugeArguments(t *testing.T) {
	b := newBench(t)
	b.plugin("first", answer)
	b.plugin("other", answer)
	// JSON makes six bytes of each: the arguments of a pod's annotation are small enough for that
	args := map[string]any{"text": strings.Repeat("<", 200<<10)}
	err := b.Attach(t.Context(), b.record("s1"), []Wanted{
		{Network: b.network(chain("first")), IfName: "eth0"},
		{Network: b.network(`{"cniVersion":"1.0.0","name":"more","type":"other"}`), IfName: "net1", Args: args},
	})
	if err == nil || !strings.Contains(err.Error(), "network more: larger than 1048576 bytes") {
		t.Errorf("attach: got error %v, want that network more is too large", err)
	}
	if err := b.Detach(t.Context(), "s1", "", nil); err != nil {
		t.Errorf("detach: got error %v, want none", err)
	}
	if got := b.kept(); len(got) != 0 {
		t.Errorf("on record: got %q, want none", got)
	}
}

// TestHangingPluginIsKilled checks that a plugin that hangs is killed with all that it has started, and its ADD is
// undone.
func TestHangingPluginIsKilled(t *testing.T) {
	var b *bench
	for limit := time.Second; ; limit *= 2 {
		b = newBench(t)
		b.limit = limit
		b.plugin("hang", `[ "$CNI_COMMAND" = ADD ] || exit 0
sleep 600 & echo $! >DIR/child; echo $$ >DIR/pid; mv DIR/pid DIR/self; wait`)
		err := b.attach("s1", b.network(chain("hang")))
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("did not finish ADD within %s and was killed", limit)) {
			t.Fatalf("got %v, want that the plugin was killed", err)
		}
		_, began := os.Stat(filepath.Join(b.dir, "self"))
		if began == nil && !strings.Contains(err.Error(), "did not finish DEL") || limit > waittest.Limit {
			break // on a busy machine, ADD needs more time until it hangs, and DEL until it ends
		}
	}
	for _, who := range []string{"child", "self"} {
		text, err := os.ReadFile(filepath.Join(b.dir, who))
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		gone(t, pid)
	}
	if got := b.kept(); len(got) != 0 {
		t.Errorf("still on record: got %q, want none", got)
	}
}

func TestCallerGivesUp(t *testing.T) {
	b := newBench(t)
	b.plugin("slow", `[ "$CNI_COMMAND" = ADD ] && { touch DIR/begun; sleep 600; }; exit 0`)
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		for {
			if _, err := os.Stat(filepath.Join(b.dir, "begun")); err == nil {
				cancel(errors.New("the runtime waits no longer"))
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	err := b.Attach(ctx, b.record("s1"), []Wanted{{Network: b.network(chain("slow")), IfName: "eth0"}})
	if err == nil || !strings.Contains(err.Error(), "the runtime waits no longer") {
		t.Fatalf("got %v, want that the runtime no longer waits", err)
	}
	if got := b.calls(); !slices.Equal(got, []string{"ADD slow s1 eth0", "DEL slow s1 eth0"}) {
		t.Errorf("calls: got %q, want ADD and DEL", got)
	}
}

func TestHostileOutput(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"garbage":        {"echo 'all went well!'", "is not JSON"},
		"null entry":     {`echo '{"cniVersion":"1.0.0","interfaces":[null]}'`, "a list has a null entry"},
		"nothing":        {"exit 0", "is not JSON"},
		"null":           {"echo null", ""},
		"a list":         {"echo '[]'", "cannot unmarshal"},
		"a number":       {"echo 7", "cannot unmarshal"},
		"too much":       {"head -c 3000000 /dev/zero | tr '\\0' x", "printed more than"},
		"wrong version":  {`echo '{"cniVersion":"7.0.0"}'`, "7.0.0"},
		"odd version":    {`echo '{"cniVersion":{"a":1}}'`, ""},
		"wrong address":  {`echo '{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1"}]}'`, "invalid CIDR"},
		"silent failure": {"exit 4", "exit status 4"},
		"noisy failure":  {"echo 'oh dear' >&2; exit 1", "oh dear"},
		"killed":         {"kill -9 $$", "signal: killed"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.plugin("odd", `[ "$CNI_COMMAND" = ADD ] || exit 0`+"\n"+c.body)
			err := b.attach("s1", b.network(chain("odd")))
			switch {
			case c.want == "" && err != nil:
				t.Logf("fails with: %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got error %v, want one with %q", err, c.want)
			}
			if err != nil && len(b.kept()) != 0 {
				t.Errorf("on record: got %q, want none", b.kept())
			}
		})
	}
}

func TestMissingPluginIsNamed(t *testing.T) {
	b := newBench(t)
	b.plugin("first", answer)
	err := b.attach("s1", b.network(chain("first", "nowhere")))
	if err == nil || !strings.Contains(err.Error(), `"nowhere"`) || !strings.Contains(err.Error(), b.dir) {
		t.Fatalf("got error %v, want the plugin and where it was looked for", err)
	}
	// It cannot be detached without the plugin either, until that is there.
	if got := b.kept(); !slices.Equal(got, []string{"s1"}) {
		t.Fatalf("on record: got %q, want s1", got)
	}
	b.plugin("nowhere", pass)
	if err := b.Detach(context.Background(), "s1", "", nil); err != nil || len(b.kept()) != 0 {
		t.Errorf("detach: %v; on record: got %q, want none", err, b.kept())
	}
}

// TestDetachWithoutRecord checks that a lost or broken record is made up for by what libcni keeps, and that by the
// node's own network.
func TestDetachWithoutRecord(t *testing.T) {
	for name, break_ := range map[string]func(dir string) error{
		"garbage": func(dir string) error { return os.WriteFile(filepath.Join(dir, recordFile), []byte(`{"sand`), 0o600) },
		"empty":   func(dir string) error { return os.WriteFile(filepath.Join(dir, recordFile), nil, 0o600) },
		"gone":    func(dir string) error { return os.Remove(filepath.Join(dir, recordFile)) },
		"nothing": os.RemoveAll,
		"torn result": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "results", "net-s1-eth0"), []byte(`{"ki`), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.plugin("first", answer)
			n := b.network(chain("first"))
			if err := b.attach("s1", n); err != nil {
				t.Fatal(err)
			}
			if err := break_(b.store.path("s1")); err != nil {
				t.Fatal(err)
			}
			config, _ := flatten(n, nil)
			otherwise := b.record("s1")
			otherwise.Attachments = []Attachment{{Network: "net", IfName: "eth0", Config: config}}
			for range 2 { // a second time is no error
				if err := b.Detach(context.Background(), "s1", "", otherwise); err != nil {
					t.Fatal(err)
				}
			}
			if got := b.calls(); len(got) < 2 || got[1] != "DEL first s1 eth0" {
				t.Errorf("calls: got %q, want the second to be DEL", got)
			}
			if got := b.kept(); len(got) != 0 {
				t.Errorf("still on record: got %q, want none", got)
			}
		})
	}
}

// TestDetachOnFullDisk checks that a sandbox which could not be attached because the disk was full can be detached: it
// has no directory, and none can be made.
func TestDetachOnFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount a file system")
	}
	b := newBench(t)
	b.plugin("first", answer)
	n := b.network(chain("first"))
	if err := os.MkdirAll(b.store.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", b.store.dir, "tmpfs", 0, "nr_inodes=1"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(b.store.dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := b.attach("s1", n); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("attach: got %v, want that there is no space", err)
	}
	otherwise := b.record("s1")
	otherwise.Attachments = []Attachment{{Network: "net", IfName: "eth0", Config: []byte(chain("first"))}}
	for _, otherwise := range []*Record{nil, otherwise} {
		if err := b.Detach(t.Context(), "s1", "", otherwise); err != nil {
			t.Errorf("detach: %v", err)
		}
	}
	if got := b.calls(); !slices.Equal(got, []string{"DEL first s1 eth0"}) {
		t.Errorf("calls: got %q, want one DEL", got)
	}
	b.plugin("first", "exit 1")
	if err := b.Detach(t.Context(), "s1", "", otherwise); err == nil {
		t.Error("detach with a plugin that fails: got no error, want one, so that the runtime repeats it")
	}
}

func TestOnlyIfAsked(t *testing.T) {
	n, err := parseNetwork([]byte(`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a","onlyIfAsked":true},
		{"type":"b"},
		{"type":"c","onlyIfAsked":true,"capabilities":{"portMappings":true,"bandwidth":false}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		capabilities map[string]any
		want         string
	}{
		{nil, "a b"},
		{map[string]any{"portMappings": []any{}}, "a b"},
		{map[string]any{"bandwidth": map[string]any{"ingressRate": 1}}, "a b"}, // it says that it does not take that
		{map[string]any{"portMappings": []any{map[string]any{"hostPort": 1}}}, "a b c"},
	} {
		if got := strings.Join(programs(asked(n, c.capabilities)), " "); got != c.want {
			t.Errorf("asked for %v: got %q, want %q", c.capabilities, got, c.want)
		}
	}
	if len(n.Plugins) != 3 {
		t.Error("the network itself: got a plugin less, want all")
	}
}
