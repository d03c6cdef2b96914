package cri_test

import "strings"

// nameReserved reports whether a sandbox or container of the same name and attempt exists or is being made. CRI has no
// code for it; these are the messages of containerd and of CRI-O.
func nameReserved(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	return strings.Contains(text, "failed to reserve sandbox name") ||
		strings.Contains(text, "failed to reserve container name") ||
		strings.Contains(text, "name is reserved")
}
