// Package manifest decodes a manifest file into static pods, and the ConfigMaps and Secrets that they use.
//
// It owns the decoding (strict: an unknown or duplicate field is an error that names its path), the identity of a
// static pod (name, UID, annotations, toleration, as in the kubelet), the defaults that the API server would set, and
// the part of its validation that protects the node. It is pure: bytes in, values out; it opens no file and makes no
// request. kube/pods calls it for files and URLs; a command may call it to check a file. It keeps no state, so a crash
// leaves nothing behind.
package manifest
