package usage

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestOpenFiles counts the open files of this process, before and after it opens a file and a socket. Of a process that
// has too many, only the kernel's own count is known, if it has one.
func TestOpenFiles(t *testing.T) {
	root := t.TempDir()
	procs := filepath.Join(root, "x", "cgroup.procs")
	if err := os.Mkdir(filepath.Dir(procs), 0o755); err != nil {
		t.Fatal(err)
	}
	text := strconv.Itoa(os.Getpid()) + "\n999999999\n"
	if err := os.WriteFile(procs, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h := NewHierarchy(map[string]string{"memory": root})
	before := h.openFiles("/x", maxOpenFiles)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	after := h.openFiles("/x", maxOpenFiles)
	if after.Sockets.n <= before.Sockets.n || after.Files.n <= before.Files.n {
		t.Errorf("got %+v with one socket more than %+v", after, before)
	}
	if !after.HasSoft || after.Soft == 0 {
		t.Errorf("got limit %v, %v, want one", after.Soft, after.HasSoft)
	}
	if few := h.openFiles("/x", 2); !few.Sockets.unknown || !few.Files.unknown && few.Files.n <= 2 {
		t.Errorf("got %+v with a look at two files, want no number of sockets, and none or all files", few)
	}
}

// TestOpenFilesOfRuntime checks that the open files of the container runtime are exposed, without the limit of one of
// its processes: the kubelet has that of the main process of a container alone.
func TestOpenFilesOfRuntime(t *testing.T) {
	w := newWorld(t, true)
	w.cfg.RuntimeCgroup = "/system.slice/containerd.service"
	tree(t, w.cfg.Hierarchy.unified, v2Files(w.cfg.RuntimeCgroup))
	procs := map[string]string{w.cfg.RuntimeCgroup + "/cgroup.procs": strconv.Itoa(os.Getpid()) + "\n"}
	tree(t, w.cfg.Hierarchy.unified, procs)
	text := w.text(w.WriteCadvisor)
	for family, want := range map[string]bool{
		"container_file_descriptors": true, "container_sockets": true, "container_ulimits_soft": false,
	} {
		if got := strings.Contains(text, family+`{container="",id="`+w.cfg.RuntimeCgroup+`"`); got != want {
			t.Errorf("got %s: %v, want %v in:\n%s", family, got, want, text)
		}
	}
}

func TestSoftLimit(t *testing.T) {
	const head = "Limit                     Soft Limit           Hard Limit           Units     \n"
	for text, want := range map[string]float64{
		head + "Max open files            1048576              1048576              files     \n": 1048576,
		head + "Max open files            unlimited            unlimited            files     \n": -1,
	} {
		if got, ok := softLimit([]byte(text)); got != want || !ok {
			t.Errorf("%q: got %v, %v, want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", head, "Max open files", "Max open files x y\n"} {
		if got, ok := softLimit([]byte(text)); ok {
			t.Errorf("%q: got %v, want nothing", text, got)
		}
	}
}
