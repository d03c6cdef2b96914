package logs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// linkName is the name of the link to the log of the pod.
const linkName = "web_ns_app-c0de.log"

// treeWorld is a Tree with a pod's log, and a directory outside of it that looks like the pod's.
type treeWorld struct {
	*Tree
	t       *testing.T
	outside string
}

func newTree(t *testing.T) *treeWorld {
	t.Helper()
	root := t.TempDir()
	tree, err := NewTree(filepath.Join(root, "pods"), filepath.Join(root, "containers"))
	if err != nil {
		t.Fatal(err)
	}
	w := &treeWorld{Tree: tree, t: t, outside: filepath.Join(root, "outside")}
	for _, dir := range []string{w.outside, w.log("")} {
		w.put(filepath.Join(dir, "0.log"))
		w.put(filepath.Join(dir, "0.log.20260101-000000"))
		w.put(filepath.Join(dir, "1.log"))
	}
	if err := w.Link(w.log("0.log"), linkName); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *treeWorld) log(name string) string { return filepath.Join(w.pods, "ns_web_uid/app", name) }

func (w *treeWorld) put(path string) {
	w.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		w.t.Fatal(err)
	}
}

// replace puts a link to the directory outside in the place of another one.
func (w *treeWorld) replace(dir string) {
	w.t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Symlink(w.outside, dir); err != nil {
		w.t.Fatal(err)
	}
}

func (w *treeWorld) checkFiles(dir string, want ...string) {
	w.t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		w.t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("%s: got %q, want %q", dir, got, want)
	}
}

// TestTree checks that a log goes with its rotated logs and its link, a pod with all its directories and links.
func TestTree(t *testing.T) {
	w := newTree(t)
	if err := w.Link(w.log("0.log"), linkName); err != nil {
		t.Errorf("link that is there: got %v, want no error", err)
	}
	for range 2 {
		if err := w.RemoveLog(w.log("0.log"), linkName); err != nil {
			t.Fatal(err)
		}
	}
	w.checkFiles(w.log(""), "1.log")
	w.checkFiles(w.links)
	for dir, link := range map[string]string{
		"ns_other_uid": "other_ns_app-1.log",
		"ns_web_uid-2": "web_ns_app-2.log",
	} {
		if err := w.Make(filepath.Join(w.pods, dir, "app")); err != nil {
			t.Fatal(err)
		}
		if err := w.Link(filepath.Join(w.pods, dir, "app/0.log"), link); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := w.RemovePod(&metav1.ObjectMeta{UID: "uid"}); err != nil {
			t.Fatal(err)
		}
	}
	w.checkFiles(w.pods, "ns_web_uid-2")
	w.checkFiles(w.links, "web_ns_app-2.log")
	for _, pod := range []*metav1.ObjectMeta{
		{Namespace: "ns", Name: "web", UID: "uid"}, // gone
		{Namespace: "ns", Name: "web", UID: "uid-2"},
	} {
		has, err := w.Has(pod)
		if err != nil || has != (pod.UID == "uid-2") {
			t.Errorf("pod %s has logs: got %t, %v", pod.UID, has, err)
		}
		if err := w.RemovePod(pod); err != nil {
			t.Fatal(err)
		}
	}
	w.checkFiles(w.pods)
	w.checkFiles(w.links)
}

// TestLongPodName checks that a pod for which no log directory can be made, because its name would be too long, has
// none.
func TestLongPodName(t *testing.T) {
	w := newTree(t)
	pod := &metav1.ObjectMeta{Namespace: "ns", Name: strings.Repeat("a", 253), UID: "uid-3"}
	if has, err := w.Has(pod); has || err != nil {
		t.Errorf("logs of the pod: got %t, %v, want none", has, err)
	}
	if err := w.RemovePod(pod); err != nil {
		t.Errorf("remove the logs of the pod: %v", err)
	}
}

// TestTreeIsMadeAgain checks that logs are made and removed after an administrator has removed the directories.
func TestTreeIsMadeAgain(t *testing.T) {
	for name, do := range map[string]func(w *treeWorld) error{
		"make":       func(w *treeWorld) error { return w.Make(w.log("")) },
		"link":       func(w *treeWorld) error { return w.Link(w.log("0.log"), linkName) },
		"remove log": func(w *treeWorld) error { return w.RemoveLog(w.log("0.log"), linkName) },
		"remove pod": func(w *treeWorld) error { return w.RemovePod(&metav1.ObjectMeta{UID: "uid"}) },
	} {
		w := newTree(t)
		if err := os.RemoveAll(filepath.Dir(w.pods)); err != nil {
			t.Fatal(err)
		}
		if err := do(w); err != nil {
			t.Errorf("%s: got %v, want no error", name, err)
		}
	}
}

// TestLinksWithoutLogs checks that the links of a pod go with it after an administrator has removed its directory.
func TestLinksWithoutLogs(t *testing.T) {
	w := newTree(t)
	if err := w.Link(filepath.Join(w.pods, "ns_web_uid-2/app/0.log"), "web_ns_app-2.log"); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(w.pods); err != nil {
		t.Fatal(err)
	}
	if err := w.RemovePod(&metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid"}); err != nil {
		t.Fatal(err)
	}
	w.checkFiles(w.links, "web_ns_app-2.log")
}

// TestTreeStaysInside checks that whatever a pod replaces by a link, nothing outside is made or removed.
func TestTreeStaysInside(t *testing.T) {
	for name, dir := range map[string]func(w *treeWorld) string{
		"container directory": func(w *treeWorld) string { return w.log("") },
		"pod directory":       func(w *treeWorld) string { return filepath.Dir(w.log("")) },
		"pods directory":      func(w *treeWorld) string { return w.pods },
		"links directory":     func(w *treeWorld) string { return w.links },
	} {
		t.Run(name, func(t *testing.T) {
			w := newTree(t)
			w.put(filepath.Join(w.outside, linkName))
			w.replace(dir(w))
			for what, err := range map[string]error{
				"make":       w.Make(w.log("more")),
				"link":       w.Link(w.log("0.log"), "second.log"),
				"remove log": w.RemoveLog(w.log("0.log"), linkName),
				"remove pod": w.RemovePod(&metav1.ObjectMeta{UID: "uid"}),
			} {
				t.Logf("%s: %v", what, err)
			}
			w.checkFiles(w.outside, "0.log", "0.log.20260101-000000", "1.log", linkName)
		})
	}
}

// TestTreeBehindLinks checks directories that the administrator has put elsewhere.
func TestTreeBehindLinks(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "data/containers"), 0o755); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"log": "data", "containers": "data/containers"} {
		if err := os.Symlink(filepath.Join(root, target), filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := NewTree(filepath.Join(root, "log/pods"), filepath.Join(root, "containers"))
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.Make(filepath.Join(root, "log/pods/ns_web_uid/app")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "data/pods/ns_web_uid/app")); err != nil {
		t.Error(err)
	}
}

// TestAttempts checks that the highest number of a log counts, also that of a rotated one, and no other name: pods may
// be able to write some.
func TestAttempts(t *testing.T) {
	w := newTree(t)
	pod := &metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid"}
	check := func(what, container string, want uint32) {
		t.Helper()
		if got, err := w.Attempts(pod, container); got != want || err != nil {
			t.Errorf("%s: got %d, %v, want %d", what, got, err, want)
		}
	}
	check("two logs", "app", 2)
	check("no directory", "other", 0)
	for _, name := range []string{
		"7", "8.txt", "x9.log", "-9.log", "+9.log", " 9.log", "9_0.log", ".log",
		"1073741824.log", "4294967295.log", "18446744073709551616.log",
	} {
		w.put(w.log(name))
	}
	check("other names", "app", 2)
	w.put(w.log("5.log.20260101-000000.gz"))
	check("a log that was rotated", "app", 6)
	w.put(w.log("1073741823.log"))
	check("the highest number", "app", 1<<30)
	w.replace(w.log(""))
	if got, err := w.Attempts(pod, "app"); got != 0 || err == nil {
		t.Errorf("a link to a directory outside: got %d, %v, want an error", got, err)
	}
}
