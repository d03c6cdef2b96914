package pods

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/pods/manifest"
	"github.com/nodelet/nodelet/test/waittest"
)

func podYAML(name, image string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {containers: [{name: c, image: %q}]}\n",
		name, image)
}

func configMapYAML(name string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {k: v}\n", name)
}

func podWithConfigMap(name, configMap string) string {
	return strings.Replace(podYAML(name, "i"), "}]}",
		fmt.Sprintf("}], volumes: [{name: v, configMap: {name: %s}}]}", configMap), 1)
}

// bench is a manifest directory under test. The files it writes are older than racy, unless they are fresh.
type bench struct {
	t   *testing.T
	dir string
	d   *directory
	now time.Time
}

func newBench(t *testing.T, change func(*Config)) *bench {
	dir := t.TempDir()
	cfg := Config{NodeName: "n1", Manifests: dir}
	if change != nil {
		change(&cfg)
	}
	return &bench{t, dir, newDirectory(cfg, nil), time.Now().Add(time.Hour)}
}

func (b *bench) write(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) remove(name string) {
	b.t.Helper()
	if err := os.Remove(filepath.Join(b.dir, name)); err != nil {
		b.t.Fatal(err)
	}
}

// scan returns the delivery and checks the pods, written as "name:image name:image" in order.
func (b *bench) scan(want string) delivery {
	b.t.Helper()
	state, again := b.d.scan(b.now)
	if again || !state.synced {
		b.t.Errorf("got another look %v and synced %v, want false and true", again, state.synced)
	}
	var got []string
	for _, p := range state.pods {
		got = append(got, p.Name+":"+p.Spec.Containers[0].Image)
	}
	slices.Sort(got)
	if g := strings.Join(got, " "); g != want {
		b.t.Errorf("pods: got %q, want %q (problems %v)", g, want, state.problems)
	}
	return state
}

// wantProblems checks that each problem holds its text, and that there are no others.
func (b *bench) wantProblems(state delivery, texts ...string) {
	b.t.Helper()
	slices.SortFunc(state.problems, func(x, y Problem) int { return strings.Compare(x.String(), y.String()) })
	if len(state.problems) != len(texts) {
		b.t.Fatalf("problems: got %q, want %d", state.problems, len(texts))
	}
	for i, want := range texts {
		if got := state.problems[i].String(); !strings.Contains(got, want) {
			b.t.Errorf("problem: got %q, want %q in it", got, want)
		}
	}
}

func TestDirectory(t *testing.T) {
	b := newBench(t, nil)
	b.scan("")
	b.write("a.yaml", podYAML("a", "1")+"---\n"+podYAML("b", "1")+"---\n"+configMapYAML("c"))
	b.write("d.json", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"d"},"spec":{"containers":[{"name":"c",
		"image":"1"}]}}`)
	b.write("e.manifest", podYAML("e", "1"))
	b.write("f", podYAML("f", "1"))
	b.write(".hidden.yaml", podYAML("x", "1"))
	state := b.scan("a-n1:1 b-n1:1 d-n1:1 e-n1:1 f-n1:1")
	b.wantProblems(state)
	if len(state.configMaps) != 1 {
		t.Errorf("got %d ConfigMaps, want 1", len(state.configMaps))
	}
	b.write("a.yaml", podYAML("a", "2"))
	b.remove("d.json")
	state = b.scan("a-n1:2 e-n1:1 f-n1:1")
	if len(state.configMaps) != 0 {
		t.Errorf("got %d ConfigMaps, want 0", len(state.configMaps))
	}
	if err := os.RemoveAll(b.dir); err != nil {
		t.Fatal(err)
	}
	b.wantProblems(b.scan(""))
}

func TestIgnoredFilesAreReported(t *testing.T) {
	b := newBench(t, nil)
	b.write("a.yaml.bak", podYAML("a", "1"))
	b.write("b.yaml~", podYAML("a", "1")+"---\n"+configMapYAML("c"))
	b.write("c.yaml.swp", "\x00")
	if err := os.Mkdir(filepath.Join(b.dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	state := b.scan("")
	b.wantProblems(state, "a.yaml.bak: ignored", "b.yaml~: ignored", "c.yaml.swp: ignored",
		"sub: ignored: it is a directory")
}

// TestOtherNameOfRunningPod checks that a file whose name is not that of a manifest counts while the pod that another
// agent has started from it runs, and only then.
func TestOtherNameOfRunningPod(t *testing.T) {
	const file = "a.pod"
	for _, c := range []struct {
		name string
		uid  func(path string) types.UID
		want string
	}{
		{"from this file", func(path string) types.UID { return olderUID(t, podYAML("a", "1"), path, SourceFile) }, "a-n1:1"},
		{"from its original", func(path string) types.UID {
			return olderUID(t, podYAML("a", "1"), strings.Replace(path, file, "a.yaml", 1), SourceFile)
		}, ""},
		{"of an unknown version", func(string) types.UID { return "0123abcd" }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, nil)
			uid := c.uid(filepath.Join(b.dir, file))
			b.d.running = map[types.NamespacedName]Running{
				{Namespace: "default", Name: "a-n1"}: {uid, SourceFile, time.Now().Add(time.Hour), nil},
			}
			b.write(file, podYAML("a", "1"))
			state := b.scan(c.want)
			if c.want == "" {
				b.wantProblems(state, "a.pod: ignored: its name")
				return
			}
			b.wantProblems(state, "a.pod: its name does not end in .yaml, .yml, .json or .manifest: its pod keeps running")
			if got := state.pods[0].UID; got != uid {
				t.Errorf("got UID %s, want %s of the running pod", got, uid)
			}
			b.write("a.yaml", podYAML("a", "2"))
			b.wantProblems(b.scan("a-n1:1"), "a.pod: its name", "a.yaml: Pod default/a-n1 is also in ")
			b.remove("a.yaml")
			b.write(file, podYAML("a", "3"))
			b.scan("a-n1:3")
			b.write(file, "{")
			b.wantProblems(b.scan("a-n1:3"), "a.pod: its name", "a.pod: yaml: line 1: ")
			b.remove(file)
			b.wantProblems(b.scan(""))
			b.write("a.pod.bak", podYAML("a", "1"))
			b.wantProblems(b.scan(""), "a.pod.bak: ignored: its name")
		})
	}
}

// TestOtherNameWithUID checks that a backup does not count because its pod sets its UID, which is that of the running
// pod.
func TestOtherNameWithUID(t *testing.T) {
	b := newBench(t, nil)
	b.d.running = map[types.NamespacedName]Running{
		{Namespace: "default", Name: "a-n1"}: {"0123abcd", SourceFile, time.Now().Add(-time.Hour), nil},
	}
	for file, image := range map[string]string{"a.yaml": "1", "a.yaml.bak": "2"} {
		b.write(file, strings.Replace(podYAML("a", image), "{name: a}", "{name: a, uid: 0123abcd}", 1))
	}
	b.wantProblems(b.scan("a-n1:1"), "a.yaml.bak: ignored")
}

// TestBadFile checks that a bad file takes nothing from others, and nothing from itself as it was.
func TestBadFile(t *testing.T) {
	b := newBench(t, nil)
	b.write("good.yaml", podYAML("good", "1"))
	b.write("bad.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec: {containers: [{name: c, imag: x}]}\n")
	state := b.scan("good-n1:1")
	b.wantProblems(state, `bad.yaml: Pod "bad": spec.containers[0].imag: unknown field; did you mean "image"?`)
	if !state.problems[0].Unknown {
		t.Error("a file that was never good: got its pods known, want them unknown")
	}
	b.write("bad.yaml", podYAML("bad", "1"))
	uid := b.scan("bad-n1:1 good-n1:1").pods[0].UID

	for name, text := range map[string]string{
		"syntax": "apiVersion: [\n", "field": strings.ReplaceAll(podYAML("bad", "2"), "image", "imag"),
		"empty, as while it is written": "", "one of two": podYAML("bad", "2") + "---\nkind: Nonsense\n",
		"misspelled kind": configMapYAML("c") + "---\n" + strings.Replace(podYAML("bad", "2"), "Pod", "Pdo", 1),
	} {
		b.write("bad.yaml", text)
		state = b.scan("bad-n1:1 good-n1:1")
		if state.pods[0].UID != uid && state.pods[1].UID != uid {
			t.Errorf("%s: the pod got another UID", name)
		}
		if len(state.problems) != 1 || state.problems[0].Unknown ||
			!strings.Contains(state.problems[0].Message, "keep running as before") {
			t.Errorf("%s: got the problems %+v, want one that says that pods keep running", name, state.problems)
		}
	}
	b.write("bad.yaml", podYAML("bad", "3")+"---\napiVersion: v1\nkind: Service\n")
	b.wantProblems(b.scan("bad-n1:3 good-n1:1"), "bad.yaml: ignored: document 2 (line 5): ")
	b.remove("bad.yaml")
	b.wantProblems(b.scan("good-n1:1"))
}

// TestDuplicateNames checks two files with one pod: the file that had it first keeps it, whatever the files are
// called.
func TestDuplicateNames(t *testing.T) {
	b := newBench(t, nil)
	b.write("m.yaml", podYAML("a", "m"))
	b.scan("a-n1:m")
	b.write("b.yaml", podYAML("a", "b"))
	b.wantProblems(b.scan("a-n1:m"), "b.yaml: Pod default/a-n1 is also in "+filepath.Join(b.dir, "m.yaml"))
	b.write("m.yaml", "apiVersion: [\n") // bad, so it counts as it was
	b.wantProblems(b.scan("a-n1:m"), "b.yaml: Pod default/a-n1", "m.yaml: ")
	b.remove("m.yaml")
	b.wantProblems(b.scan("a-n1:b"))

	fresh := newBench(t, nil)
	fresh.write("2.yaml", podYAML("a", "2")+"---\n"+configMapYAML("c"))
	fresh.write("1.yaml", podYAML("a", "1")+"---\n"+configMapYAML("c"))
	fresh.wantProblems(fresh.scan("a-n1:2"), "1.yaml: ConfigMap default/c is also in",
		"1.yaml: Pod default/a-n1 is also in "+filepath.Join(fresh.dir, "2.yaml")+", which is used:")
	got := fmt.Sprint(Check(fresh.d.cfg))
	if !strings.Contains(got, "2.yaml, which is used unless another one already is:") {
		t.Errorf("check: got %s, want the file that is used if the pod does not run", got)
	}
}

// TestDuplicateOfRunningPod checks two files with one pod, which runs when the agent starts: the file that it comes
// from has it, whatever the files are called. Only the pod of this file keeps its UID, also if the other file takes
// over.
func TestDuplicateOfRunningPod(t *testing.T) {
	const foreign = types.UID("0123abcd") // of a kubelet of an unknown version
	for _, c := range []struct {
		name    string
		from    string        // the file that gives the pod the UID that it has
		seen    time.Duration // when the pod was first seen, from now
		newer   string        // the file that has changed since
		used    string
		adopted bool
	}{
		{"from the first file", "a-copy.yaml", time.Minute, "", "a-copy.yaml", true},
		{"from the last file", "a.yaml", time.Minute, "", "a.yaml", true},
		{"from a kubelet of an unknown version", "", time.Minute, "", "a.yaml", true},
		{"a copy that was added since", "", time.Minute, "a.yaml", "a-copy.yaml", true},
		{"both have changed since", "", -time.Hour, "", "a.yaml", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, nil)
			for _, file := range []string{"a.yaml", "a-copy.yaml"} {
				b.write(file, podYAML("a", file))
			}
			uid := foreign
			if c.from != "" {
				uid = olderUID(t, podYAML("a", c.from), filepath.Join(b.dir, c.from), SourceFile)
			}
			b.d.running = map[types.NamespacedName]Running{
				{Namespace: "default", Name: "a-n1"}: {uid, SourceFile, time.Now().Add(c.seen), nil},
			}
			if c.newer != "" { // the time of its last change is not known
				b.remove(c.newer)
				b.write(".real", podYAML("a", c.newer))
				if err := os.Symlink(".real", filepath.Join(b.dir, c.newer)); err != nil {
					t.Fatal(err)
				}
			}
			state := b.scan("a-n1:" + c.used)
			if got := state.pods[0].UID; (got == uid) != c.adopted {
				t.Errorf("got UID %s, want that of the running pod, %s: %v", got, uid, c.adopted)
			}
			b.remove(c.used)
			other := "a.yaml"
			if c.used == other {
				other = "a-copy.yaml"
			}
			if got := b.scan("a-n1:" + other).pods[0].UID; got == uid {
				t.Errorf("the other file took over with the UID %s of the running pod, want another", got)
			}
		})
	}
}

// TestReferences checks that beside an API server a static pod uses the ConfigMaps that are manifests, and no others.
func TestReferences(t *testing.T) {
	b := newBench(t, func(c *Config) { c.API = true })
	b.write("a.yaml", podWithConfigMap("a", "c"))
	b.write("s.yaml", strings.Replace(podYAML("s", "i"), "spec: {", "spec: {serviceAccountName: x, ", 1))
	state := b.scan("")
	b.wantProblems(state, "a.yaml: pod a-n1: spec.volumes[0].configMap.name: Forbidden",
		"s.yaml: pod s-n1: spec.serviceAccountName: Forbidden")
	b.write("c.yaml", configMapYAML("c"))
	b.remove("s.yaml")
	b.wantProblems(b.scan("a-n1:i"))
	b.remove("c.yaml")
	state = b.scan("a-n1:i")
	b.wantProblems(state, "it keeps running with what it has")
	running := map[types.NamespacedName]Running{}
	for _, p := range state.pods {
		running[nameOf(p)], _ = RunningOf(p.Annotations)
	}

	// It keeps running under the next agent, also if that one cannot read the manifests at first.
	next := newDirectory(b.d.cfg, running)
	restarted := &bench{t, b.dir, next, b.now}
	broken := "a.yaml"
	restarted.write(broken, "{")
	if got, _ := next.scan(b.now); len(got.pods) != 0 || len(got.problems) != 1 || !got.problems[0].Unknown {
		t.Errorf("with a broken manifest: got pods %v, problems %v, want no pod and an unknown file", got.pods, got.problems)
	}
	restarted.write(broken, podWithConfigMap("a", "c"))
	for range 2 {
		restarted.wantProblems(restarted.scan("a-n1:i"), "it keeps running with what it has")
	}
	restarted.remove(broken)
	restarted.scan("")
	restarted.write(broken, podWithConfigMap("a", "c"))
	// it ended when its manifest went
	restarted.wantProblems(restarted.scan(""), "spec.volumes[0].configMap.name: Forbidden")

	alone := newBench(t, nil)
	alone.write("a.yaml", podWithConfigMap("a", "c"))
	alone.wantProblems(alone.scan("a-n1:i")) // it will wait for its ConfigMap
}

// TestEmptyPullSecret checks that a static pod may list a pull secret without a name beside an API server: an edit that
// adds one replaces the running pod.
func TestEmptyPullSecret(t *testing.T) {
	b := newBench(t, func(c *Config) { c.API = true })
	for _, step := range []struct{ secrets, image string }{
		{"", "i"}, {"imagePullSecrets: [{}], ", "j"}, {"imagePullSecrets: [{name: ''}], ", "k"},
	} {
		b.write("a.yaml", strings.Replace(podYAML("a", step.image), "spec: {", "spec: {"+step.secrets, 1))
		b.wantProblems(b.scan("a-n1:" + step.image))
	}
}

// TestUnchanged checks that an unchanged object is the same pointer, so that receivers can compare pointers, and
// keeps the time when it was first seen.
func TestUnchanged(t *testing.T) {
	b := newBench(t, nil)
	b.write("a.yaml", podYAML("a", "1")+"---\n"+podYAML("b", "1"))
	first := b.scan("a-n1:1 b-n1:1")
	b.now = b.now.Add(time.Hour)
	b.write("a.yaml", podYAML("a", "1")+"---\n"+podYAML("b", "1")) // touched
	if !first.same(b.scan("a-n1:1 b-n1:1")) {
		t.Error("a touched file: got that it has changed, want that it has not")
	}
	b.write("a.yaml", "# a comment\n"+podYAML("a", "1")+"---\n"+podYAML("b", "2"))
	second := b.scan("a-n1:1 b-n1:2")
	if first.pods[0] != second.pods[0] || first.pods[1].UID == second.pods[1].UID {
		t.Error("want the same pod a, and another b")
	}
	if first.pods[0].Annotations[podutil.AnnotationSeen] == second.pods[1].Annotations[podutil.AnnotationSeen] {
		t.Error("got a and the new b first seen at the same time, want b later")
	}
}

// TestRemovedAndBack checks that a file that was removed and is there again counts as removed once, so that its pods
// start again.
func TestRemovedAndBack(t *testing.T) {
	b := newBench(t, nil)
	b.write("a.yaml", podYAML("a", "1"))
	b.write("b.yaml", podYAML("b", "1"))
	first := b.scan("a-n1:1 b-n1:1")
	b.d.absent[filepath.Join(b.dir, "a.yaml")] = true
	state, again := b.d.scan(b.now)
	if !again || len(state.pods) != 1 || state.pods[0] != first.pods[1] {
		t.Errorf("got pods %v, again %v; want the other one, and to scan again", state.pods, again)
	}
	if second := b.scan("a-n1:1 b-n1:1"); second.pods[0].UID != first.pods[0].UID {
		t.Errorf("got UID %s, want %s as before", second.pods[0].UID, first.pods[0].UID)
	}
}

// TestRacyWrites checks that a file that was just written is read again: its time stamps may not change with the next
// write.
func TestRacyWrites(t *testing.T) {
	b := newBench(t, nil)
	b.now = time.Now()
	b.write("a.yaml", podYAML("a", "1"))
	b.scan("a-n1:1")
	if f := b.d.files[filepath.Join(b.dir, "a.yaml")]; f.stamp != (stamp{}) {
		t.Errorf("stamp of a fresh file: got %v, want none", f.stamp)
	}
	b.now = b.now.Add(time.Hour)
	b.scan("a-n1:1")
	if f := b.d.files[filepath.Join(b.dir, "a.yaml")]; f.stamp == (stamp{}) {
		t.Error("stamp of an old file: got none, so each scan reads it again; want one")
	}
}

// TestWrittenAtTheStart checks that the pods of a file that changes while it is read for the first time are unknown: an
// agent that starts then must not end them.
func TestWrittenAtTheStart(t *testing.T) {
	b := newBench(t, nil)
	b.write("a.yaml", podYAML("a", "1")+"#"+strings.Repeat("x", 4<<20))
	var all sync.WaitGroup
	defer all.Wait()
	stop := make(chan struct{})
	defer close(stop)
	all.Go(func() { b.touch("a.yaml", stop) })
	for limit := waittest.Context(t); limit.Err() == nil; {
		state, again := newDirectory(b.d.cfg, nil).scan(b.now)
		if !again {
			continue // the writer was too slow
		}
		if len(state.pods) != 0 || len(state.problems) != 1 || !state.problems[0].Unknown {
			t.Errorf("got %d pods and the problems %+v, want none and an unknown one", len(state.pods), state.problems)
		}
		return
	}
	t.Error("the file never changed while it was read")
}

// touch writes the last byte of a file again and again until stop is closed.
func (b *bench) touch(name string, stop <-chan struct{}) {
	f, err := os.OpenFile(filepath.Join(b.dir, name), os.O_WRONLY, 0)
	if err != nil {
		b.t.Error(err)
		return
	}
	defer f.Close()
	for {
		select {
		case <-stop:
			return
		default:
		}
		if _, err := f.WriteAt([]byte("x"), 4<<20); err != nil {
			b.t.Error(err)
			return
		}
	}
}

func TestUnreadable(t *testing.T) {
	b := newBench(t, nil)
	b.write("a.yaml", podYAML("a", "1"))
	b.scan("a-n1:1")
	// Another kind of file in its place: reading a FIFO would hang.
	b.remove("a.yaml")
	if err := unix.Mkfifo(filepath.Join(b.dir, "a.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	state := b.scan("a-n1:1")
	b.wantProblems(state, "a.yaml: read "+filepath.Join(b.dir, "a.yaml")+": not a regular file")

	d := newDirectory(Config{NodeName: "n1", Manifests: filepath.Join(b.dir, "a.yaml", "below")}, nil)
	state, _ = d.scan(b.now)
	if state.synced || len(state.problems) != 1 || !state.problems[0].Unknown {
		t.Errorf("path that cannot be read: got synced %v with %+v, want false and one unknown problem",
			state.synced, state.problems)
	}
}

func TestSingleFileAndLinks(t *testing.T) {
	b := newBench(t, nil)
	b.write("real", podYAML("a", "1"))
	if err := os.Symlink("real", filepath.Join(b.dir, "link.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(b.dir, "broken.yaml")); err != nil {
		t.Fatal(err)
	}
	d := newDirectory(Config{NodeName: "n1", Manifests: filepath.Join(b.dir, "link.yaml")}, nil)
	if state, _ := d.scan(b.now); len(state.pods) != 1 || len(state.problems) != 0 {
		t.Errorf("linked file: got %d pods and %v, want one and no problem", len(state.pods), state.problems)
	}
	b.remove("real")
	b.wantProblems(b.scan(""))
}

// TestAdopt checks that a static pod keeps the UID that it runs under if its manifest has not been touched since, or
// if a kubelet of another version gives this UID to the manifest.
func TestAdopt(t *testing.T) {
	for _, c := range []struct {
		name    string
		seen    time.Duration // from now
		link    bool
		uid     types.UID
		adopted bool
	}{
		{"unchanged since", time.Minute, false, "0123abcd", true},
		{"seen in the future: the clock was set back since", 3 * time.Hour, false, "0123abcd", false},
		{"changed since", -time.Hour, false, "0123abcd", false},
		{"behind a link", time.Minute, true, "0123abcd", false},
		{"dangerous UID", time.Minute, false, "../x", false},
		{"the UID of the kubelet 1.36, behind a link", -time.Hour, true, "", true},
		{"an older file with another image is back", time.Minute, false, "0123abcd", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			seen := time.Now().Add(c.seen)
			b := newBench(t, nil)
			if c.uid == "" {
				c.uid = olderUID(t, podYAML("a", "1"), filepath.Join(b.dir, "a.yaml"), SourceFile)
			}
			image := "1"
			if strings.Contains(c.name, "another image") {
				image = "2"
			}
			hash := podutil.ContainerHash(&corev1.Container{Name: "c", Image: image})
			b.d.running = map[types.NamespacedName]Running{
				{Namespace: "default", Name: "a-n1"}: {c.uid, SourceFile, seen, map[string]string{"c": hash}},
			}
			b.write(".real", podYAML("a", "1"))
			place := os.Rename
			if c.link {
				place = os.Symlink
			}
			if err := place(filepath.Join(b.dir, ".real"), filepath.Join(b.dir, "a.yaml")); err != nil {
				t.Fatal(err)
			}
			p := b.scan("a-n1:1").pods[0]
			if adopted := p.UID == c.uid; adopted != c.adopted {
				t.Errorf("UID: got %q, adopted %v, want %v", p.UID, adopted, c.adopted)
			}
			if p.Annotations[podutil.AnnotationHash] != string(p.UID) {
				t.Errorf("annotations: got %v, want the hash %q", p.Annotations, p.UID)
			}
			if c.adopted && p.Annotations[podutil.AnnotationSeen] != seenAt(seen) {
				t.Errorf("adopted pod: got first seen at %s, want %s, as the other agent recorded it",
					p.Annotations[podutil.AnnotationSeen], seenAt(seen))
			}
			// It stays so when only a comment changes.
			b.write("a.yaml", "# x\n"+podYAML("a", "1"))
			if again := b.scan("a-n1:1").pods[0]; again.UID != p.UID {
				t.Errorf("after a changed comment: got UIDs %q and %q, want the same", p.UID, again.UID)
			}
		})
	}
}

// TestAdoptBehindLinkedDirectory checks that the age of a file tells nothing if one of its directories is a link, which
// may have been turned back to an older directory.
func TestAdoptBehindLinkedDirectory(t *testing.T) {
	b := newBench(t, nil)
	b.write("a.yaml", podYAML("a", "1"))
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Dir(b.dir), link); err != nil {
		t.Fatal(err)
	}
	b.d.cfg.Manifests = filepath.Join(link, filepath.Base(b.dir))
	b.d.running = map[types.NamespacedName]Running{
		{Namespace: "default", Name: "a-n1"}: {UID: "0123abcd", Source: SourceFile, Seen: time.Now().Add(time.Minute)},
	}
	if p := b.scan("a-n1:1").pods[0]; p.UID == "0123abcd" {
		t.Errorf("UID: got that of the running pod")
	}
}

// olderUID returns the UID that the kubelet before the one that nodelet follows gives a manifest.
func olderUID(t *testing.T, text, where string, source Source) types.UID {
	t.Helper()
	file, errs := manifest.Parse([]byte(text), manifest.Origin{NodeName: "n1", Source: string(source), Where: where})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return types.UID(file.Pods[0].Older[0])
}
