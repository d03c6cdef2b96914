// Package plugins registers the plugins that leave a socket in <root-dir>/plugins_registry, such as CSI drivers and
// device plugins (k8s.io/kubelet/pkg/apis/pluginregistration). It also has what the handlers of several plugin types
// share.
//
// It owns the watch on that directory and the two calls of the registration. It never knows what a plugin is for: the
// packages that serve a type of plugin are its Handlers, and call their plugins themselves. cmd/nodelet runs one
// Registry.
//
// A crash leaves nothing behind: the sockets are still there, and the next process registers their plugins again.
package plugins
