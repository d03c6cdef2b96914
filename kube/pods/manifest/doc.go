// Package manifest turns a manifest file into static pods, and the ConfigMaps and Secrets they use.
//
// It owns the reading (strict: an unknown or doubled field is an error that names its path), what makes a pod static (name,
// UID, annotations, toleration, as the kubelet does it), the defaults the API server would have set, and the validation the
// API server would have made, as far as a node can be hurt. It is pure: bytes in, values out; it opens no file and asks
// nobody. kube/pods calls it for files and URLs; a command may call it to check a file. It keeps nothing, so a crash leaves
// nothing behind.
package manifest
