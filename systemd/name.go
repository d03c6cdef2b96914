package systemd

import (
	"log/slog"
	"os"
	"path/filepath"
)

// name returns the name by which this program was started: that of the kubelet in kubelet.service, where add-ons look
// for it.
func name() string {
	if filepath.Base(os.Args[0]) == "kubelet" {
		return "kubelet"
	}
	return "nodelet"
}

// TakeName gives the process the name by which it was started, for ps, pgrep and the field _COMM of the journal. The
// kernel has named it after the file of the program.
func TakeName(log *slog.Logger) {
	if err := os.WriteFile("/proc/self/comm", []byte(name()), 0); err != nil {
		log.Warn("cannot set the name of this process, by which add-ons look for it", "err", err)
	}
}
