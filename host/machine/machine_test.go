package machine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// root returns a directory with these files.
func root(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestReadIdentity checks the fallbacks: a virtual machine on Arm has no DMI, an image may have no machine-id.
func TestReadIdentity(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		want  Identity
	}{
		"all": {map[string]string{
			"etc/machine-id":                 "id-1\n",
			"sys/class/dmi/id/product_uuid":  "uuid-1\n",
			"proc/device-tree/vm,uuid":       "uuid-2\x00",
			"proc/sys/kernel/random/boot_id": "boot-1\n",
			"proc/sys/kernel/osrelease":      "6.18.0\n",
			"etc/os-release":                 "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n",
		}, Identity{"id-1", "uuid-1", "boot-1", "6.18.0", "Debian GNU/Linux 12"}},
		"fallbacks": {map[string]string{
			"var/lib/dbus/machine-id":  "id-2\n",
			"proc/device-tree/vm,uuid": "uuid-2\x00",
			"usr/lib/os-release":       "PRETTY_NAME='Other'\n",
		}, Identity{MachineID: "id-2", SystemUUID: "uuid-2", OSImage: "Other"}},
		"nothing": {nil, Identity{OSImage: "Linux"}},
	} {
		if got := ReadIdentity(root(t, test.files)); got != test.want {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
	}
}

func TestBootID(t *testing.T) {
	want := ReadIdentity("/").BootID
	for range 2 {
		if got, err := BootID(); err != nil || got != want || len(got) != 36 {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
}

func TestParseMeminfo(t *testing.T) {
	var total, free uint64
	swap := uint64(7)
	into := map[string]*uint64{"MemTotal": &total, "MemFree": &free, "SwapTotal": &swap}
	text := "MemTotal:       24684084 kB\nMemFree:  0 kB\nMemFreeX: x\nHugePages_Total:  3\n"
	if err := ParseMeminfo([]byte(text), into); err != nil || total != 24684084<<10 || free != 0 || swap != 7 {
		t.Errorf("got total %d, free %d, swap %d, %v, want %d, 0, 7", total, free, swap, err, 24684084<<10)
	}
	for _, broken := range []string{"MemTotal:\n", "MemTotal: -1 kB\n", "MemTotal: 9223372036854775807 kB\n"} {
		if err := ParseMeminfo([]byte(broken), into); err == nil {
			t.Errorf("%q: got no error, want one", broken)
		}
	}
}

func TestTasks(t *testing.T) {
	const loadavg = "0.20 0.18 0.12 1/80 11206\n"
	for name, test := range map[string]struct {
		loadavg, pidMax, threads string
		running, limit           int64
	}{
		"fewer threads":   {loadavg, "32768\n", "1000\n", 80, 1000},
		"fewer numbers":   {loadavg, "900\n", "1000\n", 80, 900},
		"too few fields":  {"0 0 0\n", "900\n", "1000\n", 0, 0},
		"no number":       {"0 0 0 1/x 1\n", "900\n", "1000\n", 0, 0},
		"negative":        {"0 0 0 1/-8 1\n", "900\n", "1000\n", 0, 0},
		"no limit":        {loadavg, "", "1000\n", 0, 0},
		"limit no number": {loadavg, "900\n", "max\n", 0, 0},
	} {
		proc := root(t, map[string]string{
			"loadavg":                test.loadavg,
			"sys/kernel/pid_max":     test.pidMax,
			"sys/kernel/threads-max": test.threads,
		})
		running, limit, err := Tasks(proc)
		if running != test.running || limit != test.limit || (err == nil) != (test.limit > 0) {
			t.Errorf("%s: got %d of %d, %v, want %d of %d", name, running, limit, err, test.running, test.limit)
		}
	}
	if _, _, err := Tasks(t.TempDir()); err == nil {
		t.Error("without files: got no error, want one")
	}
}

func TestProcessStat(t *testing.T) {
	if got, err := ProcessStat(os.Getpid(), 4); err != nil || got != strconv.Itoa(os.Getppid()) {
		t.Errorf("parent: got %q, %v, want %d", got, err, os.Getppid())
	}
	if got, err := ProcessStat(os.Getpid(), 99); err == nil {
		t.Errorf("field 99: got %q, want an error", got)
	}
	if _, err := ProcessStat(1<<30, 4); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such process: got %v, want that it does not exist", err)
	}
}

func FuzzFiles(f *testing.F) {
	f.Add([]byte("MemTotal: 12 kB\nSwapTotal: 1 kB\n"))
	f.Add([]byte("MemTotal:\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		total, swap := int64(0), int64(0)
		_ = ParseMeminfo(text, map[string]*int64{"MemTotal": &total, "SwapTotal": &swap})
		if total < 0 || swap < 0 {
			t.Errorf("got memory %d and swap %d, want none below zero", total, swap)
		}
	})
}
