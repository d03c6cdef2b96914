package systemd

import (
	"path/filepath"
	"strings"
	"testing"
)

// FuzzTakeOver: whatever the unit of the kubelet contains, the drop-in starts one program, nodelet.
func FuzzTakeOver(f *testing.F) {
	for _, seed := range []string{"", "ExecStart=/usr/bin/kubelet $ARGS\n",
		"ExecStart=\nExecStart=-/usr/bin/kubelet \\\n  --config=x\n", "ExecStart=@/usr/bin/kubelet kubelet\n",
		"ExecStart=/bin/a\nExecStart=/bin/b\n", "ExecStart=\\\nExecStart=/bin/kubelet\r\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, unit string) {
		kubelet, err := (&Installer{}).kubeletCommand(unit)
		if err != nil {
			return
		}
		dropIn := takeOver(kubelet, "/usr/bin/nodelet", "--accept-missing=x")
		command, err := execStart(dropIn)
		if err != nil {
			t.Fatalf("%q: %v in the drop-in %q", unit, err, dropIn)
		}
		program, args, _ := strings.Cut(strings.TrimLeft(command, "-:+!|"), " ")
		name, args, _ := strings.Cut(args, " ")
		if program != "@/usr/bin/nodelet" || filepath.Base(name) != "kubelet" ||
			!strings.HasSuffix(args, "--accept-missing=x") {
			t.Errorf("%q: got a drop-in that starts %q, want nodelet as kubelet with all arguments", unit, command)
		}
	})
}
