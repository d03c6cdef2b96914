package cri

import (
	"os"
	"path/filepath"
)

// sockets are where container runtimes usually listen.
var sockets = []string{
	"/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/cri-dockerd.sock",
	"/run/k3s/containerd/containerd.sock",
}

// Sockets returns the usual endpoints below root that exist, apart from endpoint. An empty root means /.
func Sockets(root, endpoint string) []string {
	own, _ := socketPath(endpoint)
	var found []string
	for _, path := range sockets {
		info, err := os.Stat(filepath.Join("/", root, path))
		if err == nil && info.Mode()&os.ModeSocket != 0 && path != own {
			found = append(found, "unix://"+path)
		}
	}
	return found
}
