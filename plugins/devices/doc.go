// Package devices allocates the devices of device plugins to containers (k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1).
//
// It owns the socket <root-dir>/device-plugins/kubelet.sock at which plugins register, the connections to the plugins,
// the list of devices that each has sent last, and the allocations: the file kubelet_internal_checkpoint beside that
// socket, in the kubelet's format, written before a pod is admitted. Plugins that register in
// <root-dir>/plugins_registry come through Accept. At <root-dir>/pod-resources/kubelet.sock it serves the pod resources
// API (k8s.io/kubelet/pkg/apis/podresources/v1).
//
// It never decides which pod may run, never opens a device, and calls neither the API server nor the runtime:
// cmd/nodelet reports the capacities.
//
// The agent calls Reserve during admission, one pod after the other, and the function that Reserve returns in a
// goroutine, because plugins may be slow. It calls Container when it creates a container. One goroutine for each plugin
// follows its list of devices.
//
// A crash leaves the checkpoint. The next process takes everything in it as allocated, removes the sockets of the
// plugins so that they register again, and reports no device as allocatable before its plugin has registered. After a
// crash between a plugin's answer and the checkpoint, Allocate is called again.
package devices
