// Package poddir says where the files of a pod are below the agent's root directory, and its logs, as in a kubelet.
//
// It owns no file and reads nothing. volumes and podfs, csi, cri/logs, agent/spec, kube/node and metrics/usage call it.
// A crash leaves nothing behind.
package poddir

import (
	"fmt"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodelet/nodelet/kube/pluginname"
)

// Pods is the directory below the root directory that has a directory for each pod, by its UID.
const Pods = "pods"

// What is in the directory of a pod.
const (
	Volumes    = "volumes"         // <plugin>/<volume>
	Devices    = "volumeDevices"   // <plugin>/<volume>, a link to the device of a block volume
	Plugins    = "plugins"         // what a plugin notes about a volume: <plugin>/<volume>
	Containers = "containers"      // <container>/<termination log>
	Subpaths   = "volume-subpaths" // <volume>/<container>/<index of the volumeMount>
	Hosts      = "etc-hosts"
)

// Of returns the path of something that a plugin has in the directory of a pod, relative to that. kind is Volumes,
// Devices or Plugins.
func Of(kind, plugin, volume string) string {
	return path.Join(kind, pluginname.Directory(plugin), volume)
}

// Logs returns the name of the directory of a pod's logs, which has a directory for each container.
func Logs(namespace, name string, pod types.UID) string {
	return namespace + "_" + name + "_" + string(pod)
}

// CheckName returns an error for a name that is not one element of a path. UIDs and names come from the API, from
// manifests and from files on the disk.
func CheckName(what, name string) error {
	if name == "" || name == "." || name == ".." || len(name) > 255 || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("%s %q cannot be the name of a directory", what, name)
	}
	return nil
}
