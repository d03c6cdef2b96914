// Package release names the version of Kubernetes that nodelet follows. It owns that one constant and never reads
// anything. Packages that tell others their version call it. It has no state, so a crash leaves nothing behind.
package release

import "strings"

// Kubernetes is the version of the kubelet whose behavior, fields, flags and feature gates nodelet follows.
const Kubernetes = "v1.37.2"

// Minor returns major and minor number of Kubernetes, for example "1.37".
func Minor() string {
	version := strings.TrimPrefix(Kubernetes, "v")
	return version[:strings.LastIndex(version, ".")]
}
