package pressure

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzFiles: whatever the files of the kernel contain, a level is not negative and not above its total.
func FuzzFiles(f *testing.F) {
	f.Add("MemTotal: 1000 kB\nAnonPages: 100 kB\nBuffers: 1 kB\nCached: 70 kB\nInactive(file): 50 kB\n",
		"0.2 0.1 0.1 1/80 11206\n", "32768\n")
	f.Add("MemTotal: 9223372036854775807 kB\nCached: -1 kB\n", "a b c /", "max\n")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, meminfo, loadavg, number string) {
		p := proc(t, nil)
		for name, text := range map[string]string{"meminfo": meminfo, "loadavg": loadavg, "sys/kernel/pid_max": number,
			"sys/kernel/threads-max": number} {
			path := filepath.Join(dir, name)
			if os.MkdirAll(filepath.Dir(path), 0o755) != nil || os.WriteFile(path, []byte(text), 0o600) != nil {
				t.Fatal("no file")
			}
		}
		p = Proc(dir)
		for what, level := range map[string]func() (Level, error){"memory": p.Memory, "processes": p.Processes} {
			if l, err := level(); err == nil && (l.Available < 0 || l.Available > l.Capacity) {
				t.Errorf("%s: got %+v", what, l)
			}
		}
	})
}
