// Package devices gives the devices of device plugins to containers (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1).
//
// It owns the socket <root-dir>/device-plugins/kubelet.sock at which plugins register, the connections to them, what
// they last said of their devices, and which container has which: the file kubelet_internal_checkpoint beside that
// socket, in the kubelet's form, written before a pod is told that it has its devices. Plugins that register in
// <root-dir>/plugins_registry come through Accept.
//
// At <root-dir>/pod-resources/kubelet.sock it tells who asks which container has which devices
// (k8s.io/kubelet/pkg/apis/podresources/v1).
//
// It never decides which pod may run, never opens a device, and knows neither the API server nor the runtime: what it
// tells of capacities, cmd/nodelet passes on. Of NUMA nodes it keeps what plugins say, and chooses nothing by them.
//
// The agent calls it: Reserve where pods are admitted, one after the other, what that returns aside, since plugins may
// be slow, and Container in the step that makes one. A plugin is asked for one pod at a time. One goroutine a plugin
// follows what it says of its devices.
//
// A crash leaves the checkpoint. The next life takes all that stands in it for given out, removes the sockets of the
// plugins, which makes them register anew, and shows no device as allocatable before its plugin has. A crash between a
// plugin's answer and the checkpoint costs nothing but that Allocate is called again.
package devices
